//! Four processes fill one cache and are killed at random moments; no wrong row is ever read.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;
use support::process::only_test;

use kdgat::distill::{CacheMode, Targets, Teacher, TeacherOptions};
use support::distill::{Behaviour, Perceptron, batch, bits, cache_options, deviation, shape, values};
use tch::Device;

const GRAPHS: u64 = 1600;
const PROCESSES: u64 = 4;

fn start(options: &TeacherOptions) -> Teacher {
    let model = Perceptron::vgae(Behaviour::Proper);
    let weights = model.weights(3);
    Teacher::start(model, weights, options, &shape(GRAPHS)).unwrap()
}

/// Graphs in an order given by `seed`, eight per batch.
fn shuffled(seed: u64) -> Vec<Vec<u64>> {
    let keys = values(seed, GRAPHS as usize);
    let mut graphs: Vec<u64> = (0..GRAPHS).collect();
    graphs.sort_by(|left, right| keys[*left as usize].total_cmp(&keys[*right as usize]));
    graphs.chunks(8).map(<[u64]>::to_vec).collect()
}

/// Runs a teacher on the cache in `file` and compares its targets with those of a teacher without a cache.
fn check(file: &Path, seed: u64) -> Teacher {
    let mut reference = start(&TeacherOptions::new(Device::Cpu));
    let mut teacher = start(&cache_options(CacheMode::Disk, Some(file)));
    for burst in shuffled(seed).chunks(4) {
        let targets = |teacher: &mut Teacher| -> Vec<Targets> {
            teacher.submit(burst.iter().map(|graphs| batch(graphs)).collect());
            burst.iter().map(|_| teacher.targets().unwrap()).collect()
        };
        for (found, expected) in targets(&mut teacher).iter().zip(&targets(&mut reference)) {
            let deviation = deviation(found, expected);
            assert!(deviation < 1e-6, "a wrong row: it deviates by {deviation}");
        }
    }
    teacher
}

/// Body of each process, until it is killed.
#[test]
fn child_that_fills() {
    let Some(file) = std::env::var_os("KDGAT_TEST_CACHE") else { return };
    let seed: u64 = std::env::var("KDGAT_TEST_SEED").unwrap().parse().unwrap();
    tch::set_num_threads(1);
    std::fs::write(marker(Path::new(&file), seed), "started").unwrap();
    // All processes start together, so that they are killed while all are working.
    let go = Path::new(&file).with_extension("go");
    while std::env::var_os("KDGAT_TEST_ONCE").is_none() && !go.exists() {
        std::thread::sleep(Duration::from_micros(200));
    }
    for round in 0.. {
        check(Path::new(&file), seed * 1000 + round).finish().unwrap();
        if std::env::var_os("KDGAT_TEST_ONCE").is_some() {
            return;
        }
    }
}

/// File that a process creates when it is about to start working.
fn marker(file: &Path, seed: u64) -> PathBuf {
    file.with_extension(format!("{seed}.started"))
}

fn child(file: &Path, seed: u64, once: bool) -> Child {
    let mut command = only_test(module_path!(), "child_that_fills");
    command.arg("--nocapture");
    command.env("KDGAT_TEST_CACHE", file).env("KDGAT_TEST_SEED", seed.to_string());
    if once {
        command.env("KDGAT_TEST_ONCE", "1");
    }
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Kills four processes while they fill the cache; returns the number of cached graphs.
fn fill_and_kill(file: &Path, round: u64) -> u64 {
    let mut children: Vec<Child> = (0..PROCESSES).map(|number| child(file, round * 10 + number, false)).collect();
    while (0..PROCESSES).any(|number| !marker(file, round * 10 + number).exists()) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let go = file.with_extension("go");
    std::fs::write(&go, "go").unwrap();
    for (number, running) in children.iter_mut().enumerate() {
        let pause = 40.0 * f64::from(values(round * 31 + number as u64, 1)[0].abs());
        std::thread::sleep(Duration::from_micros((pause * 1e3) as u64));
        if let Some(status) = running.try_wait().unwrap() {
            let mut stderr = String::new();
            std::io::Read::read_to_string(running.stderr.as_mut().unwrap(), &mut stderr).unwrap();
            panic!("a process ended by itself with {status}: {stderr}");
        }
        running.kill().unwrap();
        running.wait().unwrap();
    }
    std::fs::remove_file(&go).unwrap();
    start(&cache_options(CacheMode::Disk, Some(file))).finish().unwrap().cache.unwrap().filled_graphs
}

#[test]
fn killed_processes_leave_no_wrong_row() {
    tch::set_num_threads(1);
    let folder = tempfile::tempdir().unwrap();
    let mut filled = Vec::new();
    for round in 0..4u64 {
        let file = folder.path().join(format!("targets-{round}.cache"));
        filled.push(fill_and_kill(&file, round));
        filled.push(fill_and_kill(&file, round + 100));
        // The remaining records are correct, and the cache can be completed.
        let teacher = check(&file, round);
        assert_eq!(teacher.finish().unwrap().cache.unwrap().filled_graphs, GRAPHS);
    }
    println!("graphs that were filled at the kills: {filled:?} of {GRAPHS}");
}

#[test]
fn processes_that_live_share_the_work_and_agree_bit_by_bit() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("targets.cache");
    let children: Vec<Child> = (0..PROCESSES).map(|number| child(&file, number, true)).collect();
    for running in children {
        let output = running.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let all = || {
        let mut teacher = start(&cache_options(CacheMode::Disk, Some(&file)));
        teacher.submit(shuffled(9).iter().map(|graphs| batch(graphs)).collect());
        let targets: Vec<_> = shuffled(9).iter().map(|_| bits(&teacher.targets().unwrap())).collect();
        assert_eq!(teacher.finish().unwrap().visits, 0, "together they filled it");
        targets
    };
    assert_eq!(all(), all());
}
