//! The section `[slurm]` of a sweep file.

use serde::{Deserialize, Serialize};

use crate::plan::MOST_THREADS;

/// Settings of Slurm jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SlurmSettings {
    pub partition: Option<String>,
    pub account: Option<String>,
    /// Time limit of a job, `HH:MM:SS` or another of Slurm's formats. A task that reaches it resumes from its checkpoint in a
    /// requeued job.
    pub time: String,
    /// Cores of a job.
    pub cpus: usize,
    /// Memory that a job requests beyond its task's limit, as a fraction of the limit.
    pub memory_margin: f64,
    /// Value of `--gres`, such as `gpu:1`.
    pub gres: Option<String>,
    /// Seconds before the time limit at which a task is asked to save.
    pub signal_seconds: u64,
    /// Maximum concurrent jobs of an array; 0 for no limit besides Slurm's.
    pub at_once: usize,
    /// Additional directives, without `#SBATCH`.
    pub directives: Vec<String>,
    /// Shell commands to run before the task, such as loading modules.
    pub setup: Vec<String>,
}

impl Default for SlurmSettings {
    fn default() -> Self {
        Self {
            partition: None,
            account: None,
            time: "04:00:00".to_owned(),
            cpus: 1,
            memory_margin: 0.15,
            gres: None,
            signal_seconds: 120,
            at_once: 0,
            directives: Vec::new(),
            setup: Vec::new(),
        }
    }
}

/// Maximum that `--signal` accepts, in seconds.
const MOST_SIGNAL_SECONDS: u64 = 65535;
/// Maximum `memory_margin`.
const MOST_MARGIN: f64 = 10.0;

impl SlurmSettings {
    /// Returns the memory in MiB that a job requests for a task that may use `granted` bytes.
    pub fn asked_mebibytes(&self, granted: u64) -> u64 {
        (granted as f64 * (1.0 + self.memory_margin.max(0.0)) / f64::from(1 << 20)).ceil() as u64
    }

    /// Returns messages for invalid values, which `sbatch` would reject only at submission.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut refuse = |refused: bool, name: &str, found: &dyn std::fmt::Display, expected: &str| {
            if refused {
                problems.push(format!("[slurm] {name} = {found} is invalid; expected {expected}"));
            }
        };
        let Self { time, cpus, memory_margin, signal_seconds, .. } = self;
        refuse(!(1..=MOST_THREADS).contains(cpus), "cpus", cpus, &format!("1 to {MOST_THREADS}"));
        // NaN is in no range.
        let is_margin = (0.0..=MOST_MARGIN).contains(memory_margin);
        refuse(!is_margin, "memory_margin", memory_margin, &format!("a fraction from 0 to {MOST_MARGIN}"));
        let seconds = 1..=MOST_SIGNAL_SECONDS;
        refuse(!seconds.contains(signal_seconds), "signal_seconds", signal_seconds, "1 to 65535");
        refuse(!is_time(time), "time", &format!("{time:?}"), "HH:MM:SS, D-HH:MM:SS, or minutes");
        for (name, value) in [("partition", &self.partition), ("account", &self.account), ("gres", &self.gres)] {
            let Some(value) = value else { continue };
            let is_word = !value.is_empty()
                && !value.contains(|letter: char| letter.is_whitespace() || letter.is_control() || letter == '#');
            refuse(!is_word, name, &format!("{value:?}"), "one word without `#`");
        }
        for directive in &self.directives {
            let is_flag = directive.starts_with('-') && !directive.contains(char::is_control);
            refuse(
                !is_flag,
                "directives",
                &format!("{directive:?}"),
                "a flag of sbatch on one line, such as --nice=100",
            );
        }
        problems
    }
}

/// True if Slurm accepts it as a time: minutes, `MM:SS`, `HH:MM:SS`, and after days `HH`, `HH:MM`, `HH:MM:SS`.
fn is_time(text: &str) -> bool {
    if ["UNLIMITED", "INFINITE"].iter().any(|word| text.eq_ignore_ascii_case(word)) {
        return true;
    }
    let is_number = |part: &str| (1..=9).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
    let (days, rest) = text.split_once('-').map_or((None, text), |(days, rest)| (Some(days), rest));
    let parts: Vec<&str> = rest.split(':').collect();
    days.is_none_or(is_number) && parts.len() <= 3 && parts.iter().all(|part| is_number(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_slurm_would_refuse_is_refused_before() {
        assert_eq!(SlurmSettings::default().problems(), Vec::<String>::new());
        let wrong = SlurmSettings {
            partition: Some("gpu\n#SBATCH --nice".to_owned()),
            time: "whenever".to_owned(),
            cpus: 0,
            memory_margin: f64::NAN,
            gres: Some("gpu:1 ".to_owned()),
            signal_seconds: 99_999_999,
            account: Some("a\u{1b}".to_owned()),
            directives: ["--nice=100", "nice", "--comment=a\u{85}b"].map(str::to_owned).to_vec(),
            ..SlurmSettings::default()
        };
        let problems = wrong.problems();
        assert_eq!(problems.len(), 9, "{problems:?}");
        for name in ["cpus = 0", "memory_margin = NaN", "signal_seconds = 99999999", "time = \"whenever\"", "partition"]
        {
            assert!(problems.iter().any(|problem| problem.contains(name)), "{name}: {problems:?}");
        }
        assert_eq!(SlurmSettings { memory_margin: -5.0, ..SlurmSettings::default() }.problems().len(), 1);
    }

    #[test]
    fn times_are_as_slurm_has_them() {
        for time in ["90", "30:00", "04:00:00", "2-0", "1-12:30", "7-00:00:00", "0", "UNLIMITED"] {
            assert!(is_time(time), "{time}");
        }
        for time in ["", "4h", "1:2:3:4", "1-", "-1", "04:00:", "1-2-3", " 90"] {
            assert!(!is_time(time), "{time}");
        }
    }
}
