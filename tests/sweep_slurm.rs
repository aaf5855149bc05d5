//! `kdgat sweep --executor slurm` against a real Slurm of one node, started by a script of the repository.

mod support;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::cli::{Workplace, contents, only_store, said};

/// A Slurm that ends with the test.
struct Slurm {
    folder: tempfile::TempDir,
}

fn script() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("scripts/slurm/local")
}

impl Slurm {
    /// `None`, with the reason printed, where there is none.
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

    /// Jobs in this state that belong to a step.
    fn jobs(&self, step: &str, state: &str) -> Vec<String> {
        let listed = self.call("squeue", &["--noheader", "--array", "--format=%i %T %j"]);
        let fits = |line: &&str| line.split(' ').nth(1) == Some(state) && line.ends_with(step);
        listed.lines().filter(fits).map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    }

    /// Takes a drained node back. A controller that has just been started does not know it yet.
    fn resume(&self, node: &str) {
        let start = Instant::now();
        loop {
            let arguments = ["update", &format!("nodename={node}"), "state=resume"];
            let _ = Command::new("scontrol").args(arguments).env("SLURM_CONF", self.conf()).output();
            let state = self.call("sinfo", &["--noheader", "--format=%T"]);
            if ["idle", "mixed", "allocated"].contains(&state.trim()) {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "the node stays {state}");
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    fn wait_for_running(&self, step: &str) -> String {
        let start = Instant::now();
        loop {
            if let Some(job) = self.jobs(step, "RUNNING").first() {
                return job.clone();
            }
            assert!(start.elapsed() < Duration::from_secs(90), "no job of {step} runs");
            std::thread::sleep(Duration::from_millis(100));
        }
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
    let mut reader = csv::Reader::from_path(workplace.path().join(folder).join("sweep.csv")).unwrap();
    let header = reader.headers().unwrap().clone();
    let columns = ["trial", "state", "metric"].map(|name| header.iter().position(|found| found == name).unwrap());
    reader.records().map(|row| row.map(|row| columns.map(|at| row[at].to_owned())).unwrap()).collect()
}

const TWELVE: &str = "seeds = [1, 2]\n[[axis]]\nfield = \"kd_alpha\"\nvalues = [0.3, 0.5, 0.7]\n\
                      [[axis]]\nfield = \"lr\"\nvalues = [0.002, 0.004]\n";

#[test]
fn slurm_gives_the_metrics_of_this_machine_through_faults() {
    let Some(slurm) = Slurm::start() else { return };
    let workplace = Workplace::with_teacher();
    write_file(&workplace, 30, TWELVE);
    workplace.success(&["sweep", "small.toml", "--output", "local"]);

    // The submitting process is killed, the jobs go on; another one looks after them.
    let mut first = on_slurm(&workplace, &slurm, "slurm");
    slurm.wait_for_running("student");
    first.kill().unwrap();
    first.wait().unwrap();
    let second = on_slurm(&workplace, &slurm, "slurm");
    // What Slurm sends before a time limit: the task saves, the job is put into the queue again.
    // A job that has just ended cannot be told any more; then another one is.
    let tell = |job: &str| {
        let mut command = Command::new("scancel");
        command.args(["--batch", "--signal=USR1", job]).env("SLURM_CONF", slurm.conf());
        command.status().unwrap().success()
    };
    while !tell(&slurm.wait_for_running("student")) {}
    // A node is drained: what runs goes on, nothing new begins until it is back.
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
    let start = Instant::now();
    while !metrics(&workplace, "cancelled").iter().any(|row| row[1] == "failed") {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "nothing was noticed: {:?}",
            metrics(&workplace, "cancelled")
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    let text = std::fs::read_to_string(workplace.path().join("cancelled/sweep.csv")).unwrap();
    assert!(text.contains("was cancelled from outside"), "{text}");
    workplace.success(&["sweep", "cancel", "cancelled"]);
    let output = child.wait_with_output().unwrap();
    assert!(said(&output).contains("cancelled; the same command goes on"), "{}", said(&output));
    let start = Instant::now();
    while !slurm.jobs("student", "RUNNING").is_empty() || !slurm.jobs("student", "PENDING").is_empty() {
        assert!(start.elapsed() < Duration::from_secs(60), "jobs are left");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Parts of a store are jobs like the tasks of a sweep, looked after by another process when the first one is killed.
#[test]
fn slurm_builds_the_parts_of_a_store() {
    let Some(slurm) = Slurm::start() else { return };
    let workplace = Workplace::new();
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
    assert_eq!(said.matches("#!/usr/bin/env bash").count(), 3, "one script each for store, targets and students");
    let place = |step: &str| said.find(&format!("--job-name=kdgat-small-{step}")).unwrap();
    assert!(place("store") < place("targets") && place("targets") < place("student"));
    // The shell takes them as they are.
    for script in said.split("#!/usr/bin/env bash").skip(1) {
        let mut shell = Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(&mut shell.stdin.take().unwrap(), script.as_bytes()).unwrap();
        assert!(shell.wait().unwrap().success(), "{script}");
    }
}

/// Whenever the signal comes, the task's own exit code decides: one that has saved is put into the queue again.
#[test]
fn a_signal_never_costs_the_exit_code() {
    let workplace = Workplace::with_teacher();
    write_file(&workplace, 3, TWELVE);
    let said = workplace.success(&["sweep", "small.toml", "--executor", "slurm", "--dry-run"]);
    let script = said.split("#!/usr/bin/env bash").nth(1).unwrap();
    // In the place of the program one that saves as soon as it is told to, and in that of Slurm one that notes it.
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
