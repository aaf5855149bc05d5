//! `kdgat sweep --executor slurm` with a real one-node Slurm, started by a script of the repository.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use support::cli::{Workplace, contents, only_store, said};
use support::stops::wait_for;

/// A Slurm cluster that is stopped at the end of the test.
struct Slurm {
    folder: tempfile::TempDir,
}

fn script() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("scripts/slurm/local")
}

impl Slurm {
    /// Starts Slurm; without it, prints the reason and returns `None`.
    fn start() -> Option<Self> {
        let there = |program: &str| {
            let found = Command::new("sh").args(["-c", &format!("PATH=$PATH:/usr/sbin command -v {program}")]).output();
            found.is_ok_and(|output| output.status.success())
        };
        if !["slurmctld", "slurmd", "munged", "sbatch"].into_iter().all(there) {
            println!(
                "skipped: tests of Slurm (slurm-wlm and munge are not installed; scripts/test --all installs them)"
            );
            return None;
        }
        if !rustix::process::getuid().is_root() {
            println!("skipped: tests of Slurm (its daemons are started as root here)");
            return None;
        }
        let slurm = Self { folder: tempfile::tempdir().unwrap() };
        let output =
            Command::new(script()).arg("start").arg(slurm.folder.path()).args(["--cpus", "4"]).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        Some(slurm)
    }

    fn conf(&self) -> PathBuf {
        self.folder.path().join("slurm.conf")
    }

    fn call(&self, program: &str, arguments: &[&str]) -> String {
        let output = Command::new(program).args(arguments).env("SLURM_CONF", self.conf()).output().unwrap();
        assert!(output.status.success(), "{program} {arguments:?}: {}", said(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Jobs of a step in this state.
    fn jobs(&self, step: &str, state: &str) -> Vec<String> {
        let listed = self.call("squeue", &["--noheader", "--array", "--format=%i %T %j"]);
        let fits = |line: &&str| line.split(' ').nth(1) == Some(state) && line.ends_with(step);
        listed.lines().filter(fits).map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    }

    /// Resumes a drained node. A controller that has just started does not know the node yet.
    fn resume(&self, node: &str) {
        wait_for("a node that takes jobs", || {
            let arguments = ["update", &format!("nodename={node}"), "state=resume"];
            let _ = Command::new("scontrol").args(arguments).env("SLURM_CONF", self.conf()).output();
            let state = self.call("sinfo", &["--noheader", "--format=%T"]);
            ["idle", "mixed", "allocated"].contains(&state.trim())
        });
    }

    fn wait_for_running(&self, step: &str) -> String {
        let mut job = None;
        wait_for(&format!("a job of {step}"), || {
            job = self.jobs(step, "RUNNING").into_iter().next();
            job.is_some()
        });
        job.unwrap()
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for name in ["slurmctld.log", "slurmd.log"] {
                let log = std::fs::read_to_string(self.folder.path().join("log").join(name)).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                println!("the end of {name}:\n{}", lines[lines.len().saturating_sub(60)..].join("\n"));
            }
        }
        let _ = Command::new(script()).arg("stop").arg(self.folder.path()).status();
    }
}

fn write_file(workplace: &Workplace, epochs: u64, axes: &str) {
    let text = format!(
        "metric = \"val_task_loss\"\n{axes}\n[slurm]\ntime = \"00:10:00\"\n[resources]\nmemory_per_trial = \"700MiB\"\nthreads = 1\n\
         [[step]]\nname = \"student\"\ncommand = \"autoencoder\"\npreset = \"vgae,student\"\n\
         set = {{ hidden = [8, 8, 4], latent = 4, embedding = 2, max_epochs = {epochs} }}\n"
    );
    std::fs::write(workplace.path().join("small.toml"), text).unwrap();
}

fn on_slurm(workplace: &Workplace, slurm: &Slurm, folder: &str) -> Child {
    let arguments = ["sweep", "small.toml", "--executor", "slurm", "--output", folder];
    let mut command = workplace.command(&arguments);
    command.env("SLURM_CONF", slurm.conf()).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
}

/// Trial, state and metric of every row.
fn metrics(workplace: &Workplace, folder: &str) -> Vec<[String; 3]> {
    columns(workplace, folder, ["trial", "state", "metric"])
}

fn columns<const N: usize>(workplace: &Workplace, folder: &str, names: [&str; N]) -> Vec<[String; N]> {
    let mut reader = csv::Reader::from_path(workplace.path().join(folder).join("sweep.csv")).unwrap();
    let header = reader.headers().unwrap().clone();
    let columns = names.map(|name| header.iter().position(|found| found == name).unwrap());
    reader.records().map(|row| row.map(|row| columns.map(|at| row[at].to_owned())).unwrap()).collect()
}

/// Replaces text in the sweep file.
fn change_file(workplace: &Workplace, from: &str, to: &str) {
    let path = workplace.path().join("small.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{text}");
    std::fs::write(path, text.replace(from, to)).unwrap();
}

/// Processes of a student in training: the job's, and the training that it has started.
struct Working {
    job: Pid,
    training: Pid,
}

impl Working {
    /// Waits until the first epochs are done.
    fn wait(workplace: &Workplace, folder: &str) -> Self {
        let mut working = None;
        wait_for("the training of a student", || {
            working = Self::find(&workplace.path().join(folder).join("tasks"));
            working.is_some()
        });
        working.unwrap()
    }

    fn find(tasks: &Path) -> Option<Self> {
        let mut folders = std::fs::read_dir(tasks).ok()?.map(|entry| entry.unwrap().path());
        let task = folders.find(|path| path.file_name().unwrap().to_string_lossy().starts_with("student-"))?;
        let epochs = std::fs::read_to_string(task.join("run/metrics.csv")).ok()?.lines().count();
        let state = std::fs::read_to_string(task.join("state.json")).ok()?;
        let state: serde_json::Value = serde_json::from_str(state.split_once('\n')?.1).ok()?;
        let job = (epochs > 2 && state["status"] == "running").then(|| state["worker"]["process"].as_i64())??;
        let children = std::fs::read_to_string(format!("/proc/{job}/task/{job}/children")).ok()?;
        let training = children.split_whitespace().next()?.parse().ok()?;
        Some(Self { job: Pid::from_raw(job as i32)?, training: Pid::from_raw(training)? })
    }

    /// Kills everything at once, as the system does when the job's memory is used up, so that no process can record anything.
    fn kill(&self) {
        kill_process(self.job, Signal::STOP).unwrap();
        kill_process(self.training, Signal::KILL).unwrap();
        kill_process(self.job, Signal::KILL).unwrap();
    }

    /// True if the training has received the request to save, although it is stopped.
    fn is_told(&self) -> bool {
        const TERM: u64 = 1 << (15 - 1);
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.training.as_raw_nonzero())).unwrap();
        let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap();
        u64::from_str_radix(pending.trim(), 16).unwrap() & TERM != 0
    }
}

const TWELVE: &str = "seeds = [1, 2]\n[[axis]]\nfield = \"kd_alpha\"\nvalues = [0.3, 0.5, 0.7]\n\
                      [[axis]]\nfield = \"lr\"\nvalues = [0.002, 0.004]\n";

#[test]
fn slurm_gives_the_metrics_of_this_machine_through_faults() {
    let Some(slurm) = Slurm::start() else { return };
    let workplace = Workplace::with_teacher();
    write_file(&workplace, 30, TWELVE);
    workplace.success(&["sweep", "small.toml", "--output", "local"]);

    // The submitting process is killed; the jobs continue, and another process monitors them.
    let mut first = on_slurm(&workplace, &slurm, "slurm");
    slurm.wait_for_running("student");
    first.kill().unwrap();
    first.wait().unwrap();
    let second = on_slurm(&workplace, &slurm, "slurm");
    // The signal that Slurm sends before a time limit: the task saves, and the job is requeued.
    // A job that has just ended cannot be signalled; then another one is.
    // For a job that is just starting, `scancel` waits so long that all others may end.
    let tell = |job: &str| {
        let mut command = Command::new("timeout");
        command.args(["2", "scancel", "--batch", "--signal=USR1", job]).env("SLURM_CONF", slurm.conf());
        command.status().unwrap().success()
    };
    while !tell(&slurm.wait_for_running("student")) {}
    // The node is drained: running jobs continue, and none starts until it is resumed.
    let node = slurm.call("sinfo", &["--noheader", "--format=%n"]).trim().to_owned();
    slurm.call("scontrol", &["update", &format!("nodename={node}"), "state=drain", "reason=test"]);
    let restarted = Command::new(script()).arg("restart").arg(slurm.folder.path()).status().unwrap();
    assert!(restarted.success(), "the controller does not come back");
    slurm.resume(&node);
    let output = second.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(metrics(&workplace, "slurm"), metrics(&workplace, "local"), "{}", said(&output));
}

#[test]
fn a_job_cancelled_from_outside_is_told_and_a_cancelled_sweep_leaves_no_job() {
    let Some(slurm) = Slurm::start() else { return };
    let workplace = Workplace::with_teacher();
    write_file(&workplace, 5000, "[[axis]]\nfield = \"lr\"\nvalues = [0.002, 0.004]\n");
    let child = on_slurm(&workplace, &slurm, "cancelled");
    let job = slurm.wait_for_running("student");
    slurm.call("scancel", &[&job]);
    wait_for("a failed trial", || metrics(&workplace, "cancelled").iter().any(|row| row[1] == "failed"));
    let text = std::fs::read_to_string(workplace.path().join("cancelled/sweep.csv")).unwrap();
    assert!(text.contains("was cancelled by another user or program"), "{text}");
    workplace.success(&["sweep", "cancel", "cancelled"]);
    let output = child.wait_with_output().unwrap();
    assert!(said(&output).contains("cancelled; run the same command again to continue"), "{}", said(&output));
    wait_for("the end of all jobs", || {
        ["RUNNING", "PENDING"].iter().all(|state| slurm.jobs("student", state).is_empty())
    });
}

/// Parts of a store and of a teacher's targets are jobs like the tasks of a sweep; if the submitting process is killed, another one monitors
/// them.
#[test]
fn slurm_builds_the_parts_of_a_store_and_of_targets() {
    let Some(slurm) = Slurm::start() else { return };
    let workplace = Workplace::with_teacher();
    let build = || {
        let arguments = ["data", "build", "--executor", "slurm", "--parts", "5", "--stores-dir", "parts"];
        let mut command = workplace.command(&arguments);
        command.env("SLURM_CONF", slurm.conf()).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
    };
    let mut first = build();
    slurm.wait_for_running("part");
    first.kill().unwrap();
    first.wait().unwrap();
    let output = build().wait_with_output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    workplace.success(&["data", "build", "--stores-dir", "single"]);
    let [merged, single] = ["parts", "single"].map(|stores| only_store(&workplace.path().join(stores)));
    assert!(contents(&merged) == contents(&single), "other bytes: {}", said(&output));

    let cache = ["teachers", "cache", "--preset", "vgae,student", "--batch-size", "16", "--teacher-cache-dir"];
    let parts = [&cache[..], &["eight", "--parts", "8", "--executor", "slurm"]].concat();
    let output = workplace.command(&parts).env("SLURM_CONF", slurm.conf()).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    workplace.success(&[&cache[..], &["one"]].concat());
    let [eight, one] = ["eight", "one"].map(|folder| contents(&workplace.path().join(folder)));
    assert!(eight == one && one.len() == 1, "other bytes: {}", said(&output));
}

/// Slurm itself sends the signal before the limit. It checks limits twice a minute, so the training is stopped meanwhile.
#[test]
fn a_job_at_its_time_limit_saves_and_goes_on() {
    let Some(slurm) = Slurm::start() else { return };
    let workplace = Workplace::with_teacher();
    write_file(&workplace, 30, "seeds = [1]");
    workplace.success(&["sweep", "small.toml", "--output", "local"]);
    change_file(&workplace, "time = \"00:10:00\"", "time = \"00:01:00\"\nsignal_seconds = 55");
    let child = on_slurm(&workplace, &slurm, "limited");
    let working = Working::wait(&workplace, "limited");
    kill_process(working.training, Signal::STOP).unwrap();
    wait_for("the signal before the time limit", || working.is_told());
    kill_process(working.training, Signal::CONT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(metrics(&workplace, "limited"), metrics(&workplace, "local"), "{}", said(&output));
    assert_eq!(columns(&workplace, "limited", ["attempts", "memory_rung"]), [["2", "0"]], "{}", said(&output));
    // The same job is requeued; no new one is submitted.
    assert_eq!(said(&output).matches("tasks of student").count(), 1, "{}", said(&output));
}

#[test]
fn a_job_killed_for_memory_goes_a_rung_down_or_gets_more() {
    let Some(slurm) = Slurm::start() else { return };
    let workplace = Workplace::with_teacher();
    write_file(&workplace, 30, "seeds = [1]");
    workplace.success(&["sweep", "small.toml", "--output", "local"]);
    let child = on_slurm(&workplace, &slurm, "rung");
    Working::wait(&workplace, "rung").kill();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("has ended (FAILED)"), "{}", said(&output));
    assert_eq!(metrics(&workplace, "rung"), metrics(&workplace, "local"), "{}", said(&output));
    assert_eq!(columns(&workplace, "rung", ["attempts", "memory_rung"]), [["2", "1"]], "{}", said(&output));

    let more = "[resources]\nmore_memory = { factor = 1.5, at_most = \"4GiB\" }";
    change_file(&workplace, "[resources]", more);
    let child = on_slurm(&workplace, &slurm, "more");
    let asked =
        || slurm.call("scontrol", &["show", "job", slurm.wait_for_running("student").split('_').next().unwrap()]);
    let working = Working::wait(&workplace, "more");
    assert!(asked().contains("MinMemoryNode=805M"), "{}", asked());
    let first = slurm.wait_for_running("student");
    working.kill();
    wait_for("another job", || slurm.wait_for_running("student") != first);
    assert!(asked().contains("MinMemoryNode=1208M"), "{}", asked());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(metrics(&workplace, "more"), metrics(&workplace, "local"), "{}", said(&output));
    assert_eq!(columns(&workplace, "more", ["attempts", "memory_rung"]), [["2", "0"]], "{}", said(&output));
}

#[test]
fn a_dry_run_prints_the_scripts() {
    let workplace = Workplace::with_teacher();
    write_file(&workplace, 3, TWELVE);
    let said = workplace.success(&["sweep", "small.toml", "--executor", "slurm", "--dry-run"]);
    for words in [
        "#SBATCH --array=0-11",
        "#SBATCH --mem=805M",
        "#SBATCH --time=00:10:00",
        "#SBATCH --signal=B:USR1@120",
        "#SBATCH --requeue",
        "sweep work",
        "scontrol requeue",
    ] {
        assert!(said.contains(words), "no `{words}` in\n{said}");
    }
    assert!(said.contains("; 3 job arrays on Slurm, one element per task\n") && !said.contains("at once"), "{said}");
    assert!(said.contains("\n  array of 12 student: 1 cores, 805 MiB, 00:10:00 each\n"), "{said}");
    let refused = workplace.refused(&["sweep", "small.toml", "--executor", "slurm", "--dry-run", "--jobs", "2"]);
    assert!(refused.contains("--jobs divides this machine"), "{refused}");
    assert_eq!(said.matches("#!/usr/bin/env bash").count(), 3, "one script each for store, targets and students");
    let place = |step: &str| said.find(&format!("--job-name=kdgat-small-{step}")).unwrap();
    assert!(place("store") < place("targets") && place("targets") < place("student"));
    // The shell parses the scripts.
    for script in said.split("#!/usr/bin/env bash").skip(1) {
        let mut shell = Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(&mut shell.stdin.take().unwrap(), script.as_bytes()).unwrap();
        assert!(shell.wait().unwrap().success(), "{script}");
    }
}

/// Whenever the signal arrives, the task's own exit code decides: a task that has saved is requeued.
#[test]
fn a_signal_never_costs_the_exit_code() {
    let workplace = Workplace::with_teacher();
    write_file(&workplace, 3, TWELVE);
    let said = workplace.success(&["sweep", "small.toml", "--executor", "slurm", "--dry-run"]);
    let script = said.split("#!/usr/bin/env bash").nth(1).unwrap();
    // Fakes: a program that saves as soon as it is signalled, and a Slurm that records the call.
    let (mut lines, mut replaced) = (String::from("scontrol() { echo requeued; }\n"), 0);
    for line in script.lines() {
        let is_task = line.contains(" sweep work ");
        replaced += usize::from(is_task);
        lines +=
            if is_task { "bash -c 'trap \"exit 75\" TERM; echo began; while :; do sleep 0.002; done' &" } else { line };
        lines.push('\n');
    }
    assert_eq!(replaced, 1, "{script}");
    for round in 0..40 {
        let mut command = Command::new("bash");
        command.args(["-c", &lines]).envs([("SLURM_ARRAY_TASK_ID", "0"), ("SLURM_ARRAY_JOB_ID", "7")]);
        let mut shell = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut output = std::io::BufReader::new(shell.stdout.take().unwrap());
        let mut text = String::new();
        std::io::BufRead::read_line(&mut output, &mut text).unwrap();
        std::thread::sleep(Duration::from_micros(200 * round));
        let pid = rustix::process::Pid::from_child(&shell);
        rustix::process::kill_process(pid, rustix::process::Signal::USR1).unwrap();
        std::io::Read::read_to_string(&mut output, &mut text).unwrap();
        assert_eq!(shell.wait().unwrap().code(), Some(75), "round {round}: {text}");
        assert_eq!(text, "began\nrequeued\n", "round {round}");
    }
}
