//! `kdgat sweep` on this machine: killed and resumed, by several processes at once, within its memory, with shared work
//! done once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use kdgat::can::{SimulationOptions, simulate};
use kdgat::exit;
use rustix::process::Signal;
use support::cli::{SMALL_TEACHER, Workplace, said};
use support::starter;
use support::stops::{KillLoop, children, end_of, ended_by, kill_process_if_there, wait_for};

/// 12 short trials: 3 values, 2 values, 2 seeds.
const TWELVE: &str = "seeds = [1, 2]\n[[axis]]\nfield = \"kd_alpha\"\nvalues = [0.3, 0.5, 0.7]\n\
                      [[axis]]\nfield = \"lr\"\nvalues = [0.002, 0.004]\n";

/// Writes the file of a sweep of small students, with these additional lines.
fn write_file(workplace: &Workplace, epochs: u64, lines: &str) {
    let text = format!(
        "metric = \"val_task_loss\"\n{lines}\n[[step]]\nname = \"student\"\ncommand = \"autoencoder\"\npreset = \"vgae,student\"\n\
         set = {{ hidden = [8, 8, 4], latent = 4, embedding = 2, max_epochs = {epochs}, threads = 1 }}\n"
    );
    std::fs::write(workplace.path().join("small.toml"), text).unwrap();
}

fn sweep<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["sweep", "small.toml"], more].concat()
}

fn spawn(workplace: &Workplace, arguments: &[&str]) -> Child {
    let mut command = starter::with_shared_children(workplace.command(arguments));
    command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
}

type Row = BTreeMap<String, String>;

fn table(workplace: &Workplace, folder: &str) -> Vec<Row> {
    let mut reader = csv::Reader::from_path(workplace.path().join(folder).join("sweep.csv")).unwrap();
    reader.deserialize().map(Result::unwrap).collect()
}

/// Trial, state and metric of every row.
fn metrics(workplace: &Workplace, folder: &str) -> Vec<[String; 3]> {
    let row = |row: Row| ["trial", "state", "metric"].map(|name| row[name].clone());
    table(workplace, folder).into_iter().map(row).collect()
}

/// Folders of a step's tasks.
fn tasks(workplace: &Workplace, folder: &str, step: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(workplace.path().join(folder).join("tasks")).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.file_name().unwrap().to_str().unwrap().starts_with(step));
    paths
}

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn killed_and_continued_it_has_the_metrics_of_one_that_was_not() {
    let workplace = Workplace::with_teacher();
    write_file(&workplace, 8, TWELVE);
    let start = Instant::now();
    let said_once = workplace.success(&sweep(&["--output", "whole"]));
    let whole_time = start.elapsed();
    assert!(!said_once.contains("--retry-failed"), "{said_once}");
    assert!(said_once.contains("12 of 12 trials done") && said_once.contains("best: val_task_loss"), "{said_once}");
    let whole = metrics(&workplace, "whole");
    assert_eq!(whole.len(), 12);
    assert!(whole.iter().all(|row| row[1] == "done" && !row[2].is_empty()), "{whole:?}");

    // Every second time together with its child processes; otherwise these continue alone.
    let takes_children = |attempt| attempt % 2 == 0;
    let kills = KillLoop { whole: whole_time, first_share: 0.02, growth: 0.03, takes_children: Some(takes_children) };
    let kills = kills.run(|| workplace.command(&sweep(&["--output", "killed"])));
    assert!(kills >= 3, "killed {kills} times only");
    assert_eq!(metrics(&workplace, "killed"), whole, "after {kills} kills");
    assert!(table(&workplace, "killed").iter().all(|row| row["memory_rung"] == "0"), "taken for want of memory");
}

#[test]
fn eight_processes_do_no_trial_twice_and_lose_no_row() {
    let workplace = Workplace::with_teacher();
    write_file(&workplace, 2, TWELVE);
    let processes: Vec<Child> =
        (0..8).map(|_| spawn(&workplace, &sweep(&["--output", "shared", "--jobs", "1"]))).collect();
    for process in processes {
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
    }
    let rows = table(&workplace, "shared");
    assert_eq!(rows.len(), 12);
    assert!(rows.iter().all(|row| row["state"] == "done" && row["attempts"] == "1"), "{rows:?}");
    for task in ["store", "targets", "student"].iter().flat_map(|step| tasks(&workplace, "shared", step)) {
        let state = std::fs::read_to_string(task.join("state.json")).unwrap();
        assert!(state.contains("\"attempts\": 1,"), "{}: {state}", task.display());
    }
    let students = tasks(&workplace, "shared", "student");
    assert_eq!(students.len(), 12);
    for student in students {
        let log = std::fs::read_to_string(student.join("log.txt")).unwrap();
        assert_eq!(log.matches("all epochs done").count(), 1, "{log}");
    }
}

#[test]
fn the_teacher_sees_the_dataset_once_in_a_whole_sweep() {
    let workplace = Workplace::with_teacher();
    write_file(
        &workplace,
        3,
        "[[axis]]\nfield = \"kd_alpha\"\nvalues = [0.3, 0.4, 0.5, 0.6, 0.7]\n[[axis]]\nfield = \"lr\"\nvalues = [0.002, 0.004]\n",
    );
    workplace.success(&sweep(&["--output", "kd"]));
    let students = tasks(&workplace, "kd", "student");
    assert_eq!(students.len(), 10);
    for student in &students {
        let teacher = &json(&student.join("run/summary.json"))["teacher"];
        assert_eq!(teacher["forwards"], 0, "a student ran the teacher: {teacher}");
        assert!(teacher["total"]["cache_hit_rows"].as_u64().unwrap() > 0);
        assert_eq!(teacher["total"]["cache_miss_rows"], 0);
    }
    // One pass: every training and validation graph once.
    let log = std::fs::read_to_string(students[0].join("log.txt")).unwrap();
    let line = log.lines().find(|line| line.contains("training and")).unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    let before = |word: &str| words[words.iter().position(|found| *found == word).unwrap() - 1].parse::<u64>().unwrap();
    let graphs = before("training") + before("validation");
    let targets = tasks(&workplace, "kd", "targets");
    assert_eq!(targets.len(), 1);
    let log = std::fs::read_to_string(targets[0].join("log.txt")).unwrap();
    assert!(log.contains(&format!("targets of {graphs} of {graphs} graphs")), "{log}");
    assert!(log.contains(&format!(" {graphs} computed now")), "{log}");
}

#[test]
fn trials_at_once_stay_below_the_memory_limit() {
    const LIMIT: u64 = 1300 << 20;
    let workplace = Workplace::with_teacher();
    write_file(&workplace, 10, &format!("{TWELVE}[resources]\nmemory_per_trial = \"600MiB\"\nthreads = 1\n"));
    let limited = sweep(&["--output", "limited", "--memory", "1300MiB", "--jobs", "2"]);
    // Its tasks have all of their memory for themselves.
    let mut child = workplace.command(&limited).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let (mut most_bytes, mut most_at_once) = (0, 0);
    while child.try_wait().unwrap().is_none() {
        let resident = |process: u32| {
            let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
            line.split_whitespace().next()?.parse::<u64>().ok().map(|kibibytes| kibibytes << 10)
        };
        let tasks: Vec<u64> = children(child.id()).into_iter().filter_map(resident).collect();
        most_bytes = most_bytes.max(tasks.iter().sum());
        most_at_once = most_at_once.max(tasks.len());
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(most_at_once, 2);
    assert!(most_bytes > 100 << 20, "nothing was measured: {most_bytes} bytes");
    assert!(most_bytes <= LIMIT, "{} MiB in use, {} allowed", most_bytes >> 20, LIMIT >> 20);
}

#[test]
fn ctrl_c_saves_and_the_same_command_goes_on() {
    let workplace = Workplace::with_teacher();
    write_file(&workplace, 80, "[[axis]]\nfield = \"lr\"\nvalues = [0.002, 0.004]\n");
    workplace.success(&sweep(&["--output", "whole"]));
    let child = spawn(&workplace, &sweep(&["--output", "stopped"]));
    let begun =
        || tasks(&workplace, "stopped", "student").iter().any(|task| task.join("run/last/state.safetensors").exists());
    wait_for("a training", || workplace.path().join("stopped/tasks").exists() && begun());
    let output = ended_by(child, Signal::INT);
    assert_eq!(output.status.code(), Some(exit::INTERRUPTED.into()), "{}", said(&output));
    assert!(said(&output).contains("run the same command again to continue"), "{}", said(&output));
    let rows = table(&workplace, "stopped");
    assert!(rows.iter().any(|row| row["state"] == "waiting"), "{rows:?}");
    let shown = workplace.success(&["sweep", "status", "stopped"]);
    assert!(shown.contains("waiting") && shown.contains("student"), "{shown}");
    workplace.success(&sweep(&["--output", "stopped"]));
    assert_eq!(metrics(&workplace, "stopped"), metrics(&workplace, "whole"));
}

#[test]
fn what_was_killed_is_not_shown_as_running() {
    let workplace = Workplace::with_teacher();
    write_file(&workplace, 300, "[[axis]]\nfield = \"lr\"\nvalues = [0.002, 0.004]\n");
    let mut child = spawn(&workplace, &sweep(&["--output", "killed", "--jobs", "1"]));
    let path = workplace.path().join("killed/sweep.csv");
    let states = || table(&workplace, "killed").into_iter().map(|row| row["state"].clone()).collect::<Vec<_>>();
    wait_for("a training", || path.exists() && states() == ["running", "waiting"]);
    let trainings = children(child.id());
    child.kill().unwrap();
    child.wait().unwrap();
    // The training continues without its sweep.
    workplace.success(&["sweep", "status", "killed"]);
    assert_eq!(states(), ["running", "waiting"]);
    trainings.into_iter().for_each(kill_process_if_there);
    let shown = || workplace.success(&["sweep", "status", "killed"]);
    wait_for("the interrupted training", || shown().contains("  interrupted student lr=0.002"));
    assert_eq!(states(), ["interrupted", "waiting"]);
    workplace.success(&sweep(&["--output", "killed", "--set", "max_epochs=2"]));
    assert_eq!(states(), ["done", "done"]);
}

#[test]
fn cancelled_from_outside_it_saves_and_can_go_on() {
    let workplace = Workplace::with_teacher();
    write_file(&workplace, 300, "[[axis]]\nfield = \"lr\"\nvalues = [0.002, 0.004]\n");
    let child = spawn(&workplace, &sweep(&["--output", "cancelled", "--jobs", "1"]));
    let tasks_exist = || workplace.path().join("cancelled/tasks").exists();
    wait_for("a training", || tasks_exist() && !tasks(&workplace, "cancelled", "student").is_empty());
    workplace.success(&["sweep", "cancel", "cancelled"]);
    let output = end_of(child);
    assert!(said(&output).contains("cancelled"), "{}", said(&output));
    assert!(table(&workplace, "cancelled").iter().all(|row| row["state"] == "waiting"));
    workplace.success(&sweep(&["--output", "cancelled", "--set", "max_epochs=2"]));
    assert!(table(&workplace, "cancelled").iter().all(|row| row["state"] == "done"));
}

#[test]
fn what_fails_is_told_and_what_needs_it_is_not_begun() {
    let workplace = Workplace::with_teacher();
    write_file(&workplace, 1, "[[axis]]\nfield = \"lr\"\nvalues = [0.002, 0.004]\n");
    let registered = workplace.path().join("teachers/small/vgae/weights.safetensors");
    let whole = std::fs::read(&registered).unwrap();
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    std::fs::write(&registered, damaged).unwrap();
    let output = workplace.run(&sweep(&["--output", "failed"]));
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let rows = table(&workplace, "failed");
    // The registered teacher is damaged: wrong input, which is not retried.
    assert!(rows.iter().all(|row| row["state"] == "blocked" && row["reason"].contains("digest")), "{rows:?}");
    let targets = tasks(&workplace, "failed", "targets");
    assert!(std::fs::read_to_string(targets[0].join("state.json")).unwrap().contains("\"attempts\": 1,"));
    assert!(tasks(&workplace, "failed", "student").is_empty());

    // With the teacher restored, the sweep resumes on request; until then it prints what failed, why, and how to resume.
    std::fs::write(&registered, whole).unwrap();
    let output = workplace.run(&sweep(&["--output", "failed"]));
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    for words in
        ["failed: targets teacher vgae: exit status: 2: error: ", "digest", "with the same command and --retry-failed"]
    {
        assert!(said(&output).contains(words), "no `{words}` in\n{}", said(&output));
    }
    workplace.success(&sweep(&["--output", "failed", "--retry-failed"]));
    assert!(table(&workplace, "failed").iter().all(|row| row["state"] == "done" && row["reason"].is_empty()));
}

#[test]
fn out_of_memory_is_tried_again_down_the_ladder() {
    let workplace = Workplace::with_teacher();
    write_file(&workplace, 2, "");
    let set = ["--set", "memory_limit=200kB", "--set", "gradient_checkpointing=false", "--set", "teacher_cache=ram"];
    let output = workplace.run(&sweep(&[&["--output", "small"], &set[..]].concat()));
    let rows = table(&workplace, "small");
    assert_eq!(rows[0]["state"], "failed", "{}", said(&output));
    assert!(rows[0]["reason"].contains("no memory setting left to change"), "{rows:?}");
    assert!(rows[0]["memory_rung"].parse::<u32>().unwrap() >= 3, "{rows:?}");
    for words in [
        "out of memory; next attempt with teacher_cache=disk",
        "next attempt with gradient_checkpointing=true",
        "batch_size=",
    ] {
        assert!(said(&output).contains(words), "nothing was said of {words}:\n{}", said(&output));
    }
}

#[test]
fn a_trial_that_promises_little_is_stopped_early() {
    let workplace = Workplace::with_teacher();
    let lines = "[early_stopping]\nrule = \"median\"\nmin_epochs = 3\nmin_trials = 2\n\
                 [[axis]]\nfield = \"lr\"\nvalues = [0.004, 0.005, 0.006, 1e-9]\n";
    write_file(&workplace, 40, lines);
    workplace.success(&sweep(&["--output", "early", "--jobs", "1"]));
    let rows = table(&workplace, "early");
    let states: Vec<&str> = rows.iter().map(|row| row["state"].as_str()).collect();
    assert_eq!(states[3], "stopped", "{rows:?}");
    assert_eq!(states[0], "done");
    assert!(rows[3]["epochs"].parse::<u32>().unwrap() < 40, "{rows:?}");
    assert!(rows[3]["reason"].contains("median") && !rows[3]["metric"].is_empty(), "{rows:?}");
}

#[test]
fn a_chain_trains_its_own_teacher_once_and_leaves_the_registry_alone() {
    let workplace = Workplace::new();
    let small = "hidden = [8, 8, 4], latent = 4, embedding = 2";
    let text = format!(
        "metric = \"roc_auc\"\ndirection = \"maximize\"\n[[step]]\nname = \"teacher\"\ncommand = \"autoencoder\"\n\
         preset = \"vgae,teacher\"\nset = {{ {small}, max_epochs = 2 }}\n[[step]]\nname = \"student\"\ncommand = \"autoencoder\"\n\
         preset = \"vgae,student\"\nset = {{ {small}, max_epochs = 2 }}\nfrom = {{ teacher_path = \"teacher\" }}\n\
         [[step]]\nname = \"evaluate\"\ncommand = \"evaluate\"\nfrom = {{ runs = \"student\" }}\n\
         [[axis]]\nfield = \"kd_alpha\"\nvalues = [0.4, 0.8]\nsteps = [\"student\"]\n"
    );
    std::fs::write(workplace.path().join("small.toml"), &text).unwrap();
    let said_best = workplace.success(&sweep(&["--output", "chain"]));
    let rows = table(&workplace, "chain");
    assert_eq!(rows.len(), 2);
    for row in &rows {
        assert_eq!(row["state"], "done", "{rows:?}");
        assert!((0.0..=1.0).contains(&row["metric"].parse::<f64>().unwrap()));
        assert!(Path::new(&row["run"]).join("best.safetensors").exists(), "{rows:?}");
        assert_eq!(row["epochs"], "2");
    }
    assert_eq!(tasks(&workplace, "chain", "teacher").len(), 1);
    assert!(!workplace.path().join("teachers").exists(), "the sweep registered its teacher for everyone");
    assert_eq!(std::fs::read_dir(workplace.path().join("stores/targets")).unwrap().count(), 1);

    // The console and every report say where the best trial was selected.
    const CAVEAT: &str = "selected on the test folders, so an optimistic estimate for new data";
    let best = said_best.lines().find(|line| line.starts_with("best: roc_auc ")).unwrap();
    assert!(best.contains(&format!(" ({CAVEAT}) with kd_alpha=")), "{best}");
    let report = |folder: &str| {
        workplace.success(&["sweep", "report", folder]);
        ["report.md", "report.html"]
            .map(|name| std::fs::read_to_string(workplace.path().join(folder).join(name)).unwrap())
    };
    for text in report("chain") {
        assert!(text.contains(&format!("roc_auc is {CAVEAT}.")), "{text}");
        assert!(!text.contains("test roc_auc"), "{text}");
    }
    // Without a metric the same trials are compared on validation data, and the test results are shown beside.
    let text = text.replace("metric = \"roc_auc\"\ndirection = \"maximize\"\n", "");
    std::fs::write(workplace.path().join("small.toml"), text).unwrap();
    let said_best = workplace.success(&sweep(&["--output", "chain"]));
    assert!(said_best.contains("best: validation_roc_auc 0.") && !said_best.contains(CAVEAT), "{said_best}");
    assert!(table(&workplace, "chain").iter().all(|row| row["attempts"] == "1"), "trained again for another metric");
    for text in report("chain") {
        assert!(text.contains("Selected by validation_roc_auc; the test folders were not used."), "{text}");
        assert!(text.contains("test f1") && text.contains("test roc_auc") && !text.contains(CAVEAT), "{text}");
    }
}

/// Trial and metric of the only row, which one attempt must have completed.
fn only_row(workplace: &Workplace, folder: &str) -> [String; 2] {
    let rows = table(workplace, folder);
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0]["state"].as_str(), rows[0]["attempts"].as_str()), ("done", "1"), "{rows:?}");
    ["trial", "metric"].map(|name| rows[0][name].clone())
}

/// The first log without attacks of a simulated dataset.
fn first_log(data: &Path) -> PathBuf {
    let paths = |folder: &Path| {
        let mut paths: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    };
    let folder =
        paths(data).into_iter().find(|path| path.file_name().unwrap().to_string_lossy().starts_with("train_01"));
    paths(&folder.unwrap()).remove(0)
}

/// Line of a log with the frame's data reversed.
fn with_other_data(line: &str) -> String {
    let mut columns: Vec<String> = line.split(',').map(str::to_owned).collect();
    if columns[2].bytes().all(|byte| byte.is_ascii_hexdigit()) {
        columns[2] = columns[2].chars().rev().collect();
    }
    columns.join(",")
}

#[test]
fn results_belong_to_the_content_of_the_data() {
    let workplace = Workplace::new();
    let datasets = tempfile::tempdir().unwrap();
    let data = datasets.path().join("small");
    let options = SimulationOptions {
        attack_free_drives: 2,
        attack_free_frames: 10_000,
        with_attacks_frames: 10_000,
        test_frames: 10_000,
        gzip: false,
        ..SimulationOptions::default()
    };
    simulate(&options, &data).unwrap();
    write_file(&workplace, 2, "seeds = [1]");
    let run = || {
        let arguments = sweep(&["--output", "kept", "--set", "use_kd=false"]);
        let output = starter::output(workplace.command(&arguments).env("KDGAT_DATA", &data));
        assert!(output.status.success(), "{}", said(&output));
        (only_row(&workplace, "kept"), tasks(&workplace, "kept", "student").len())
    };
    let first = run();
    assert_eq!(run(), first, "nothing has changed");

    // A new modification time or a copy of the same log does not change the content.
    let log = first_log(&data);
    let old = std::fs::read_to_string(&log).unwrap();
    std::fs::remove_file(&log).unwrap();
    std::fs::write(&log, &old).unwrap();
    std::fs::remove_dir_all(workplace.path().join("stores")).unwrap();
    assert_eq!(run(), first, "the same content");

    // Another log of the same size under the same name.
    let new: Vec<String> = old.lines().map(with_other_data).collect();
    std::fs::write(&log, new.join("\n") + "\n").unwrap();
    assert_eq!(std::fs::metadata(&log).unwrap().len(), old.len() as u64);
    let second = run();
    assert!(second.0[0] != first.0[0] && second.0[1] != first.0[1], "{first:?} {second:?}");
    assert_eq!(second.1, 2, "the results of the old data are kept");
    assert_eq!(run(), second);
    std::fs::write(&log, &old).unwrap();
    assert_eq!(run().0, first.0, "the old data have their old results");
    assert_eq!(tasks(&workplace, "kept", "student").len(), 2);
}

#[test]
fn results_belong_to_the_registered_teacher() {
    let workplace = Workplace::with_teacher();
    write_file(&workplace, 2, "seeds = [1]");
    workplace.success(&sweep(&["--output", "taught"]));
    let first = only_row(&workplace, "taught");
    std::fs::rename(workplace.path().join("teachers"), workplace.path().join("old")).unwrap();
    workplace.success(&[&["autoencoder"], SMALL_TEACHER, &["--max-epochs", "1", "--seed", "7"]].concat());
    workplace.success(&sweep(&["--output", "taught"]));
    let second = only_row(&workplace, "taught");
    assert!(second[0] != first[0] && second[1] != first[1], "{first:?} {second:?}");
    assert_eq!(tasks(&workplace, "taught", "targets").len(), 2);
    assert_eq!(tasks(&workplace, "taught", "store").len(), 1, "no teacher is in a store");
    // The same for a file that a step names.
    let named = |folder: &str| {
        let path = format!("student.teacher_path={folder}/small/vgae/weights.safetensors");
        workplace.success(&sweep(&["--output", "named", "--set", &path]));
        only_row(&workplace, "named")
    };
    let of_old = named("old");
    std::fs::rename(workplace.path().join("old"), workplace.path().join("older")).unwrap();
    std::fs::rename(workplace.path().join("teachers"), workplace.path().join("old")).unwrap();
    let of_new = named("old");
    assert!(of_new[0] != of_old[0], "{of_old:?} {of_new:?}");
    assert_eq!((&of_old[1], &of_new[1]), (&first[1], &second[1]));
}

#[test]
fn a_task_of_two_processes_has_the_losses_of_one() {
    let workplace = Workplace::with_teacher();
    write_file(&workplace, 3, "seeds = [1]");
    workplace.success(&sweep(&["--output", "one"]));
    let file = workplace.path().join("small.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{text}processes = 2\n")).unwrap();
    workplace.success(&sweep(&["--output", "two"]));
    let [one, two] = ["one", "two"].map(|folder| only_row(&workplace, folder)[1].parse::<f64>().unwrap());
    assert!((one - two).abs() <= 1e-5 * one.abs(), "{one} {two}");
    let log = std::fs::read_to_string(tasks(&workplace, "two", "student")[0].join("run/log.txt")).unwrap();
    assert!(log.contains("2 processes"), "{log}");
    // A job of Slurm has a core for each process.
    let script = workplace.success(&sweep(&["--executor", "slurm", "--output", "jobs", "--dry-run"]));
    assert!(script.contains("#SBATCH --cpus-per-task=2\n") && script.contains("--threads 2 "), "{script}");
    std::fs::write(&file, format!("{text}processes = 3\n")).unwrap();
    let said = workplace.refused(&sweep(&["--output", "none"]));
    assert!(
        said.contains("3 processes need at least") && said.contains("memory_per_trial is 1024 MiB; raise it"),
        "{said}"
    );
    std::fs::write(&file, format!("{text}processes = 0\n")).unwrap();
    let said = workplace.refused(&sweep(&["--output", "none"]));
    assert!(said.contains("step `student`: processes = 0 must be from 1 to 1024"), "{said}");
}
