//! The batch script of a job array.

use std::path::Path;

use crate::SweepError;
use crate::cluster::{on_one_line, text_of_path};
use crate::plan::{Plan, Task};
use crate::state::SweepFolder;
use kdgat_base::exit::INTERRUPTED;
use kdgat_base::shell::quoted;

/// Builds the script for tasks of one step, with one array element per task. Each task may use `granted` bytes of host
/// memory. `scripts/slurm/sweep.sbatch` is an example with explanations.
///
/// # Errors
/// If a path cannot be used in a script.
pub fn script(
    program: &Path,
    folder: &SweepFolder,
    plan: &Plan,
    tasks: &[&Task],
    granted: u64,
) -> Result<String, SweepError> {
    let program = text_of_path(program)?;
    let settings = &plan.slurm;
    let step = tasks.first().map_or("", |task| task.step.as_str());
    // Each process of a task has a core at least.
    let cpus = tasks.iter().map(|task| task.processes as usize).max().unwrap_or(1).max(settings.cpus);
    let at_once = if settings.at_once > 0 { format!("%{}", settings.at_once) } else { String::new() };
    let log = format!("{}/slurm/{step}-%A_%a.log", pattern(folder.path())?);
    let mut directives = vec![
        format!("--job-name=kdgat-{}-{step}", plain(&plan.name)),
        format!("--array=0-{}{at_once}", tasks.len().saturating_sub(1)),
        format!("--cpus-per-task={cpus}"),
        format!("--mem={}M", settings.asked_mebibytes(granted)),
        format!("--time={}", settings.time),
        format!("--signal=B:USR1@{}", settings.signal_seconds),
        "--requeue".to_owned(),
        "--open-mode=append".to_owned(),
        format!("--output={}", quoted(&log)),
    ];
    directives.extend(settings.partition.iter().map(|name| format!("--partition={name}")));
    directives.extend(settings.account.iter().map(|name| format!("--account={name}")));
    directives.extend(settings.gres.iter().map(|what| format!("--gres={what}")));
    directives.extend(settings.directives.iter().cloned());

    let mut text = String::from("#!/usr/bin/env bash\n");
    directives.iter().for_each(|directive| text += &format!("#SBATCH {directive}\n"));
    text += &format!(
        "# The task may use {} MiB; the job requests {:.0} % more.\nset -uo pipefail\n",
        granted >> 20,
        100.0 * settings.memory_margin
    );
    settings.setup.iter().for_each(|line| text += &format!("{line}\n"));
    text += r#"# Before the time limit (USR1) the task saves and the job is requeued; when the job is cancelled (TERM) the task only saves.
# The traps come first: without them a signal would end this script but not the task.
task= told=no cancelled=no
tell() { told=yes; [ -z "$task" ] || kill -TERM "$task" 2> /dev/null; }
trap tell USR1
trap 'cancelled=yes; tell' TERM
tasks=(
"#;
    tasks.iter().for_each(|task| text += &format!("  {}  # {}\n", task.id, on_one_line(&task.label)));
    text += &format!(
        ")\n{program} sweep work {folder} \"${{tasks[$SLURM_ARRAY_TASK_ID]}}\" --threads {cpus} --memory {granted}B &\n",
        program = quoted(program),
        folder = quoted(text_of_path(folder.path())?),
    );
    text += &format!(
        r#"task=$!
[ "$told" = no ] || kill -TERM "$task" 2> /dev/null
# A signal interrupts `wait`, not the task: wait again.
while told=no; wait "$task"; code=$?; [ "$told" = yes ]; do :; done
if [ "$code" -eq {INTERRUPTED} ] && [ "$cancelled" = no ]; then
  scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
fi
exit "$code"
"#
    );
    Ok(text)
}

/// Escapes a folder for `--output` of sbatch: `%` starts a symbol that Slurm replaces, `%%` is a literal `%`. A backslash would
/// turn off all replacements, and all jobs would write to one file.
///
/// # Errors
/// If the path has a backslash, or cannot be used in a script.
fn pattern(folder: &Path) -> Result<String, SweepError> {
    let text = text_of_path(folder)?;
    if text.contains('\\') {
        return Err(SweepError::Usage(format!(
            "{text}: Slurm cannot write logs below a path with a backslash; choose another folder with --output"
        )));
    }
    Ok(text.replace('%', "%%"))
}

/// Makes a name one word for sbatch: a sweep is named after its file, whose name may have spaces.
fn plain(name: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    name.chars().map(|letter| if is_plain(letter) { letter } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts;
    use kdgat_config::Config;

    /// Builds the script of a sweep in this folder.
    fn script_in(folder: &str) -> Result<String, String> {
        let plan = parts::plan("store", &Config::default(), 2, &Default::default());
        let tasks: Vec<&Task> = plan.tasks.iter().collect();
        let folder = SweepFolder::at(Path::new(folder)).unwrap();
        script(Path::new("/bin/kdgat"), &folder, &plan, &tasks, 1 << 30).map_err(|error| error.to_string())
    }

    #[test]
    fn the_name_of_a_folder_is_no_command() {
        for folder in ["/tmp/a\ntouch /tmp/owned\n", "/tmp/a\r#SBATCH --uid=0", "/tmp/a\u{1b}"] {
            let said = script_in(folder).unwrap_err();
            assert!(said.contains("control character") && said.contains("--output"), "{said}");
        }
        assert!(script_in("/tmp/a\\b").unwrap_err().contains("backslash"));
    }

    #[test]
    fn slurm_replaces_nothing_in_a_folder() {
        let text = script_in("/data/50%a/%u").unwrap();
        assert!(text.contains("#SBATCH --output=/data/50%%a/%%u/slurm/part-%A_%a.log\n"), "{text}");
        assert!(text.contains("/bin/kdgat sweep work /data/50%a/%u "), "{text}");
    }

    #[test]
    fn a_label_stays_a_comment() {
        let mut plan = parts::plan("store", &Config::default(), 1, &Default::default());
        plan.tasks[0].label = "data=a\r\n) ; touch owned".to_owned();
        let folder = SweepFolder::at(Path::new("/tmp/a")).unwrap();
        let text = script(Path::new("/bin/kdgat"), &folder, &plan, &[&plan.tasks[0]], 1).unwrap();
        assert!(text.contains(&format!("  {}  # data=a  ) ; touch owned\n)\n", plan.tasks[0].id)), "{text}");
    }
}
