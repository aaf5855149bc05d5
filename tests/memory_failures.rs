//! Allocations that fail at random moments of a training: it ends with the same losses or with a clear error.

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use kdgat::config::{self, Config, Sources};
use kdgat::torch;
use kdgat::torch::allocator::{self, Failures};
use kdgat::train::checkpoint;
use kdgat::train::state::Position;
use support::cli::{Workplace, loss_columns, small_dataset};

/// Runs with failures at other places each (`FAILURE_RUNS` for more).
const RUNS: u64 = 200;

fn configured(workplace: &Workplace, run: &Path) -> Config {
    let mut config =
        config::load(&Sources { presets: vec!["vgae".into(), "student".into()], ..Sources::default() }).unwrap().config;
    config.data.data = Some(small_dataset().to_path_buf());
    config.data.stores_dir = workplace.path().join("stores");
    config.distillation.teachers_dir = workplace.path().join("teachers");
    config.distillation.teacher_cache_dir = workplace.path().join("targets");
    config.output.run_dir = Some(run.to_path_buf());
    (config.model.hidden, config.model.latent, config.model.embedding) = (vec![8, 8, 4], 4, 2);
    (config.training.max_epochs, config.training.threads) = (2, 1);
    config
}

#[test]
fn injected_failures_change_no_loss_or_end_clearly() {
    allocator::install().unwrap();
    let workplace = Workplace::with_teacher();
    let reference = workplace.path().join("reference");
    kdgat::stage::autoencoder(&configured(&workplace, &reference)).unwrap();
    let expected = loss_columns(&reference);
    let runs = std::env::var("FAILURE_RUNS").ok().and_then(|text| text.parse().ok()).unwrap_or(RUNS);
    let (mut same, mut recovered, mut refused) = (0, 0, Vec::new());
    for seed in 0..runs {
        let run = workplace.path().join(format!("run-{seed}"));
        let config = configured(&workplace, &run);
        let before = allocator::stats().failures;
        let probability = [2e-5, 1e-4, 5e-4, 2e-3][seed as usize % 4];
        let start = Instant::now();
        allocator::inject_failures(Failures::Random { seed, probability });
        let outcome = catch_unwind(AssertUnwindSafe(|| torch::recover(|| kdgat::stage::autoencoder(&config))));
        allocator::inject_failures(Failures::Never);
        assert!(start.elapsed() < Duration::from_secs(60), "seed {seed} took {:?}", start.elapsed());
        let failures = allocator::stats().failures - before;
        match outcome.unwrap_or_else(|_| panic!("seed {seed}: a panic instead of an error")) {
            Ok(_) => {
                assert_close(seed, &loss_columns(&run), &expected);
                same += 1;
                recovered += u64::from(failures > 0);
            }
            Err(error) => {
                let mut causes = vec![error.to_string()];
                let mut cause = std::error::Error::source(&error);
                while let Some(source) = cause {
                    causes.push(source.to_string());
                    cause = source.source();
                }
                let text = causes.join(": ");
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
    assert!(recovered > 0, "no failure was recovered from");
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

/// Whatever is in a run's folder is whole.
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
