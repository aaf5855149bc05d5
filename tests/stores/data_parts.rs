//! `kdgat data build --parts` on this machine: processes build parts, and the result equals the store of a single build.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use support::cli::{Workplace, contents, only_store, said};

/// Files of the store that a single build writes.
fn single(workplace: &Workplace) -> std::collections::BTreeMap<String, Vec<u8>> {
    workplace.success(&["data", "build", "--stores-dir", "single"]);
    contents(&only_store(&workplace.path().join("single")))
}

/// File names in a folder, including hidden ones.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.collect();
    names.sort();
    names
}

#[test]
fn parts_become_the_store_and_one_that_is_there_is_not_built_again() {
    let workplace = Workplace::new();
    let expected = single(&workplace);
    workplace.success(&["data", "build", "--part", "1/3", "--stores-dir", "stores"]);
    let arguments = ["data", "build", "--parts", "3", "--executor", "local", "--stores-dir", "stores"];
    let text = workplace.success(&arguments);
    assert!(text.contains("in 3 parts, 1 of them done"), "{text}");
    assert!(!text.contains("started  part 1/3"), "it is built again:\n{text}");
    assert!(text.contains("started  part 2/3") && text.contains("started  part 3/3"), "{text}");
    let stores = workplace.path().join("stores");
    assert!(contents(&only_store(&stores)) == expected, "other bytes");
    let store = only_store(&stores).file_name().unwrap().to_string_lossy().into_owned();
    assert_eq!(names(&stores), [format!(".{store}.lock"), store], "parts are left");

    let again = workplace.success(&arguments);
    assert!(!again.contains("started") && again.contains("graphs"), "{again}");
}

#[test]
fn a_build_that_was_killed_goes_on() {
    let workplace = Workplace::new();
    let expected = single(&workplace);
    let arguments = ["data", "build", "--parts", "4", "--jobs", "1", "--stores-dir", "stores"];
    let mut child = workplace.command(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut done = Vec::new();
    for line in BufReader::new(child.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        done.extend(line.strip_prefix("done     part ").map(|rest| rest.split(' ').next().unwrap().to_owned()));
        if done.len() == 2 {
            child.kill().unwrap();
            break;
        }
    }
    child.wait().unwrap();
    assert_eq!(done.len(), 2);
    let text = workplace.success(&arguments);
    for part in &done {
        assert!(!text.contains(&format!("started  part {part}")), "{part} is built again:\n{text}");
    }
    assert!(contents(&only_store(&workplace.path().join("stores"))) == expected, "other bytes");
}

#[test]
fn a_part_that_fails_is_tried_again_and_named() {
    let workplace = Workplace::new();
    let expected = single(&workplace);
    let stores = workplace.path().join("stores");
    // Something else is in the place of the part's lock.
    let store = only_store(&workplace.path().join("single")).file_name().unwrap().to_string_lossy().into_owned();
    let obstacle = stores.join(format!(".{store}.part-2-of-2.lock"));
    fs::create_dir_all(&obstacle).unwrap();
    let arguments = ["data", "build", "--parts", "2", "--stores-dir", "stores"];
    let output = workplace.run(&arguments);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("started  part 2/2, attempt 2"), "it is not tried again:\n{text}");
    assert!(text.contains("error: 1 of 2 parts failed") && text.contains("part 2/2: "), "{text}");
    assert!(text.contains("part-2-of-2.lock"), "the reason is not told:\n{text}");
    fs::remove_dir(&obstacle).unwrap();
    let text = workplace.success(&arguments);
    assert!(text.contains("1 of them done") && !text.contains("started  part 1/2"), "{text}");
    assert!(contents(&only_store(&stores)) == expected, "other bytes");
}

#[test]
fn a_dry_run_prints_what_would_run_and_makes_nothing() {
    let workplace = Workplace::new();
    let dry = |more: &[&str]| {
        let arguments = [&["data", "build", "--parts", "3", "--dry-run"], more].concat();
        workplace.success(&arguments)
    };
    let local = dry(&[]);
    assert_eq!(local.matches("kdgat data build --config").count(), 3, "{local}");
    assert!(local.contains("--part 1/3") && local.contains("--part 3/3"), "{local}");
    let settings = "retries = 2\n[resources]\nmemory_per_trial = \"2GiB\"\n[slurm]\npartition = \"long\"\ncpus = 3\n";
    fs::write(workplace.path().join("jobs.toml"), settings).unwrap();
    let slurm = dry(&["--executor", "slurm", "--jobs-file", "jobs.toml"]);
    for words in ["#SBATCH --array=0-2", "#SBATCH --mem=2356M", "--partition=long", "--cpus-per-task=3", "# 2/3"] {
        assert!(slurm.contains(words), "no `{words}` in\n{slurm}");
    }
    let ray = dry(&["--executor", "ray"]);
    assert_eq!(ray.matches("\"entrypoint\"").count(), 3, "{ray}");
    assert_eq!(names(workplace.path()), ["jobs.toml"]);

    fs::write(workplace.path().join("jobs.toml"), "[slurm]\npartitions = 3\n").unwrap();
    let text = workplace.refused(&["data", "build", "--parts", "3", "--jobs-file", "jobs.toml"]);
    assert!(text.contains("jobs.toml:2") && text.contains("partitions"), "{text}");
    workplace.refused(&["data", "build", "--executor", "slurm"]);
    workplace.refused(&["data", "build", "--parts", "3", "--part", "1/3"]);
}
