//! What the file's section `[slurm]` may say.

use serde::{Deserialize, Serialize};

use crate::sweep::plan::file::MOST_THREADS;

/// How jobs are submitted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SlurmSettings {
    pub partition: Option<String>,
    pub account: Option<String>,
    /// `HH:MM:SS` of a job, or another of Slurm's forms; it goes on with its checkpoint when that is over.
    pub time: String,
    /// Cores of a job.
    pub cpus: usize,
    /// Memory that is asked for beyond what a task is granted, as a share of it.
    pub memory_margin: f64,
    /// What `--gres` asks for, such as `gpu:1`.
    pub gres: Option<String>,
    /// Seconds before the time limit at which a task is told to save.
    pub signal_seconds: u64,
    /// Jobs of an array at once; 0: as many as Slurm lets run.
    pub at_once: usize,
    /// Further directives, without `#SBATCH`.
    pub directives: Vec<String>,
    /// Shell commands before the task: modules, an environment.
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

/// What `--signal` takes at most.
const MOST_SIGNAL_SECONDS: u64 = 65535;
/// Memory is asked for so many times beyond the grant at most.
const MOST_MARGIN: f64 = 10.0;

impl SlurmSettings {
    /// Memory in MiB that Slurm is asked for, for a task that is granted so many bytes.
    pub fn asked_mebibytes(&self, granted: u64) -> u64 {
        (granted as f64 * (1.0 + self.memory_margin.max(0.0)) / f64::from(1 << 20)).ceil() as u64
    }

    /// What cannot be meant, so that it is told before a job is submitted, and not by `sbatch`.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut refuse = |refused: bool, name: &str, found: &dyn std::fmt::Display, expected: &str| {
            if refused {
                problems.push(format!("[slurm] {name} = {found} cannot be meant; expected {expected}"));
            }
        };
        let Self { time, cpus, memory_margin, signal_seconds, .. } = self;
        refuse(!(1..=MOST_THREADS).contains(cpus), "cpus", cpus, &format!("1 to {MOST_THREADS}"));
        // Not a number is in no range.
        let is_margin = (0.0..=MOST_MARGIN).contains(memory_margin);
        refuse(!is_margin, "memory_margin", memory_margin, &format!("a share from 0 to {MOST_MARGIN}"));
        let seconds = 1..=MOST_SIGNAL_SECONDS;
        refuse(!seconds.contains(signal_seconds), "signal_seconds", signal_seconds, "1 to 65535");
        refuse(!is_time(time), "time", &format!("{time:?}"), "HH:MM:SS, D-HH:MM:SS, or minutes");
        for (name, value) in [("partition", &self.partition), ("account", &self.account), ("gres", &self.gres)] {
            let Some(value) = value else { continue };
            let is_word = !value.is_empty()
                && !value.contains(|letter: char| letter.is_whitespace() || letter.is_control() || letter == '#');
            refuse(!is_word, name, &format!("{value:?}"), "one word, as sbatch takes it");
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

/// Whether Slurm takes it for a time: minutes, `MM:SS`, `HH:MM:SS`, and after days `HH`, `HH:MM`, `HH:MM:SS`.
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
