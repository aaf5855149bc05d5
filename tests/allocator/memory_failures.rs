//! Random allocation failures during a training: it ends with the same losses or with a clear error.

use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};
use support::process::{alone, rounds};

use kdgat::config::{self, Config, Sources, Stage, TeacherCache};
use kdgat::stage::{EvaluateOptions, StageError};
use kdgat::torch;
use kdgat::torch::allocator::{self, Failures};
use kdgat::train::checkpoint;
use kdgat::train::state::Position;
use support::cli::{Workplace, loss_columns, small_dataset};

/// Number of trainings, each with failures at other places: a sample, and under `scripts/test --soak`.
const RUNS: (u64, u64) = (40, 200);
/// Failure probabilities of an allocation; a training of two epochs makes some tens of thousands of them.
const PROBABILITIES: [f64; 4] = [2e-5, 1e-4, 5e-4, 2e-3];

/// Runs one test at a time, because failures affect the whole process.
fn turn() -> MutexGuard<'static, ()> {
    let guard = alone();
    allocator::install().unwrap();
    guard
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Training {
    /// A VGAE whose teacher's targets are cached in memory.
    Cached,
    /// A VGAE whose teacher's targets are cached in a file, which the first run fills for the others.
    FromDisk,
    /// A VGAE whose teacher visits the device for each burst.
    Visited,
    /// A GAT without a teacher.
    Classifier,
}

impl Training {
    const ALL: [Self; 4] = [Self::Cached, Self::FromDisk, Self::Visited, Self::Classifier];

    fn configured(self, workplace: &Workplace, run: &Path) -> Config {
        let model = if self == Self::Classifier { "gat" } else { "vgae" };
        let presets = vec![model.into(), "student".into()];
        let mut config = config::load(&Sources { presets, ..Sources::default() }).unwrap().config;
        config.data.data = Some(small_dataset().to_path_buf());
        config.data.stores_dir = workplace.path().join("stores");
        config.distillation.teachers_dir = workplace.path().join("teachers");
        config.distillation.teacher_cache_dir = workplace.path().join("targets");
        config.output.run_dir = Some(run.to_path_buf());
        (config.training.max_epochs, config.training.threads) = (2, 1);
        match self {
            Self::Classifier => (config.model.hidden, config.distillation.use_kd) = (vec![8], false),
            _ => (config.model.hidden, config.model.latent, config.model.embedding) = (vec![8, 8, 4], 4, 2),
        }
        if self == Self::FromDisk {
            config.distillation.teacher_cache = TeacherCache::Disk;
        }
        if self == Self::Visited {
            (config.distillation.offload_teacher, config.distillation.use_teacher_cache) = (true, false);
        }
        config
    }

    fn run(self, config: &Config) -> Result<(), StageError> {
        match self {
            Self::Classifier => kdgat::stage::run_stage(Stage::Classifier, config).map(drop),
            _ => kdgat::stage::run_stage(Stage::Autoencoder, config).map(drop),
        }
    }
}

/// Runs `work` while allocations fail; returns its result and the number of failures. At most a minute, and no panic.
fn with_failures<T>(seed: u64, work: impl FnOnce() -> Result<T, StageError>) -> (Result<T, String>, u64) {
    let before = allocator::stats().failures;
    let start = Instant::now();
    allocator::inject_failures(Failures::Random { seed, probability: PROBABILITIES[seed as usize % 4] });
    let outcome = catch_unwind(AssertUnwindSafe(|| torch::recover(work)));
    allocator::inject_failures(Failures::Never);
    assert!(start.elapsed() < Duration::from_secs(60), "seed {seed} took {:?}", start.elapsed());
    let outcome = outcome.unwrap_or_else(|_| panic!("seed {seed}: a panic instead of an error"));
    (outcome.map_err(|error| with_causes(&error)), allocator::stats().failures - before)
}

fn with_causes(error: &dyn Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", with_causes(source)),
        None => error.to_string(),
    }
}

#[test]
fn injected_failures_change_no_loss_or_end_clearly() {
    let _turn = turn();
    let workplace = Workplace::with_teacher();
    let expected = Training::ALL.map(|training| {
        let reference = workplace.path().join(format!("reference-{training:?}"));
        training.run(&training.configured(&workplace, &reference)).unwrap();
        loss_columns(&reference)
    });
    let runs = rounds(RUNS.0, RUNS.1);
    let (mut same, mut recovered, mut refused) = (0, 0, Vec::new());
    for seed in 0..runs {
        let run = workplace.path().join(format!("run-{seed}"));
        let kind = (seed / 4) as usize % Training::ALL.len();
        let training = Training::ALL[kind];
        let config = training.configured(&workplace, &run);
        match with_failures(seed, || training.run(&config)) {
            (Ok(()), failures) => {
                assert_close(seed, &loss_columns(&run), &expected[kind]);
                same += 1;
                recovered += u64::from(failures > 0);
            }
            (Err(text), failures) => {
                assert!(text.contains("memory"), "seed {seed}: {text}");
                refused.push(format!("seed {seed}, {failures} failures: {}", first_words(&text)));
            }
        }
        check_folder(&run);
    }
    println!(
        "{runs} runs: {same} with the same losses ({recovered} of them after failures), {} ended with an error:\n{}",
        refused.len(),
        refused.join("\n")
    );
    assert!(same * 100 >= runs * 95, "only {same} of {runs} runs came through");
    assert!(recovered * 2 >= runs, "only {recovered} of {runs} runs had failures and recovered");
}

#[test]
fn scores_and_evaluations_come_through() {
    let _turn = turn();
    let workplace = Workplace::with_teacher();
    let run = workplace.path().join("run");
    let config = Training::Cached.configured(&workplace, &run);
    kdgat::stage::run_stage(Stage::Autoencoder, &config).unwrap();
    let scored = |name: &str| workplace.path().join(name);
    kdgat::stage::score_only(&config, Some(&scored("expected.csv"))).unwrap();
    let judged = |name: &str| EvaluateOptions {
        runs: vec![run.clone()],
        predictions: Some(workplace.path().join(format!("{name}.csv"))),
        output: Some(workplace.path().join(name)),
        resamples: 10,
        ..EvaluateOptions::default()
    };
    kdgat::stage::evaluate(&config, &judged("judged")).unwrap();
    let mut recovered = 0;
    for seed in 0..40 {
        let path = scored(&format!("{seed}.csv"));
        let (outcome, failures) = with_failures(seed, || kdgat::stage::score_only(&config, Some(&path)));
        outcome.unwrap_or_else(|text| panic!("seed {seed}: {text}"));
        recovered += u64::from(failures > 0);
        assert_close(seed, &table(&path), &table(&scored("expected.csv")));
    }
    for seed in 0..8 {
        let name = format!("judged-{seed}");
        let (outcome, failures) = with_failures(seed, || kdgat::stage::evaluate(&config, &judged(&name)));
        outcome.unwrap_or_else(|text| panic!("seed {seed}: {text}"));
        recovered += u64::from(failures > 0);
        assert_close(seed, &table(&scored(&format!("{name}.csv"))), &table(&scored("judged.csv")));
    }
    println!("{recovered} of 48 had failures");
    assert!(recovered >= 10, "only {recovered} had failures");
}

fn table(path: &Path) -> Vec<Vec<String>> {
    let mut reader = csv::Reader::from_path(path).unwrap();
    reader.records().map(|row| row.unwrap().iter().map(str::to_owned).collect()).collect()
}

fn first_words(text: &str) -> &str {
    let end = text.char_indices().nth(160).map_or(text.len(), |(index, _)| index);
    text[..end].lines().next().unwrap_or_default()
}

fn assert_close(seed: u64, found: &[Vec<String>], expected: &[Vec<String>]) {
    assert_eq!(found.len(), expected.len(), "seed {seed}: epochs");
    for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
        if let (Ok(found), Ok(expected)) = (found.parse::<f64>(), expected.parse::<f64>()) {
            assert!(
                (found - expected).abs() <= 1e-5 * expected.abs().max(1.0),
                "seed {seed}: {found} instead of {expected}"
            );
        }
    }
}

/// Checks that every file in a run's folder is complete.
fn check_folder(run: &Path) {
    for name in ["config.json", "summary.json"] {
        if let Ok(text) = std::fs::read(run.join(name)) {
            serde_json::from_slice::<serde_json::Value>(&text).unwrap();
        }
    }
    let last = run.join("last/state.safetensors");
    if last.exists() {
        checkpoint::read::<Position>(&last).unwrap();
    }
    let best = run.join("best.safetensors");
    if best.exists() {
        checkpoint::read::<kdgat::nn::ModelDescription>(&best).unwrap();
    }
}
