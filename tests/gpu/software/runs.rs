//! Runs of the program on a software card, and on the CPU for comparison.

use std::process::Output;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use super::Card;
use support::stage::Workplace;
use support::starter;

/// Stage with the settings of its teacher and its student.
pub struct Stage {
    pub name: &'static str,
    pub teacher: &'static [&'static str],
    pub student: &'static [&'static str],
}

pub const AUTOENCODER: Stage = Stage {
    name: "autoencoder",
    teacher: &["--preset", "vgae,teacher", "--hidden", "24,12,8", "--latent", "8", "--embedding", "4"],
    student: &["--preset", "vgae,student", "--hidden", "8,8,4", "--latent", "4", "--embedding", "2"],
};
pub const NORMAL: Stage = Stage {
    name: "classifier",
    teacher: &["--preset", "gat,teacher", "--hidden", "8"],
    student: &["--preset", "gat,student", "--hidden", "4"],
};

/// Settings with the same operations on both devices, in small steps.
pub const COMMON: &[&str] = &["--attention", "composed", "--batch-size", "64", "--optimize-batch-size", "false"];
pub const TWO_EPOCHS: &[&str] = &["--max-epochs", "2"];

/// Both teachers trained on the CPU, and the losses of their students there.
pub struct Trained {
    pub workplace: Workplace,
    pub autoencoder: Vec<f64>,
    pub normal: Vec<f64>,
}

impl Trained {
    pub fn get() -> &'static Self {
        static TRAINED: OnceLock<Trained> = OnceLock::new();
        TRAINED.get_or_init(|| {
            let workplace = Workplace::new();
            let train = |stage: &Stage| {
                let teacher = [&[stage.name], stage.teacher, COMMON, TWO_EPOCHS].concat();
                on_cpu(&workplace, &[&teacher[..], &["--run-dir", &format!("{}-teacher", stage.name)]].concat());
                let run = format!("{}-student", stage.name);
                on_cpu(&workplace, &[&student(stage, &run)[..], TWO_EPOCHS].concat());
                losses(&workplace, &run)
            };
            let (autoencoder, normal) = (train(&AUTOENCODER), train(&NORMAL));
            Self { workplace, autoencoder, normal }
        })
    }

    pub fn stages(&self) -> [(&'static Stage, &[f64]); 2] {
        [(&AUTOENCODER, &self.autoencoder), (&NORMAL, &self.normal)]
    }
}

pub fn student<'a>(stage: &'a Stage, run: &'a str) -> Vec<&'a str> {
    [&[stage.name], stage.student, COMMON, &["--use-kd", "true", "--run-dir", run]].concat()
}

pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs the program on the CPU while a card is present, so that it draws random numbers as on a GPU.
pub fn on_cpu(workplace: &Workplace, arguments: &[&str]) {
    let mut command = workplace.command(arguments);
    Card::new().apply(&mut command);
    let output = starter::output(command.args(["--device", "cpu"]));
    assert!(output.status.success(), "kdgat {arguments:?} failed:\n{}", said(&output));
}

/// Runs the program on a card; returns its output and the card's counts. Without `--cuda-graphs` in `arguments`, a training captures no
/// steps: padded batches draw other random numbers than those of the CPU.
pub fn run_on(card: &Card, workplace: &Workplace, arguments: &[&str]) -> (Output, Value) {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let report = workplace.path(&format!("report-{}.json", NUMBER.fetch_add(1, Ordering::Relaxed)));
    let mut command = workplace.command(arguments);
    card.clone().report(&report).apply(&mut command);
    let on_a_card = arguments.contains(&"--device");
    let is_training = ["autoencoder", "classifier", "curriculum"].contains(&arguments[0]);
    command.args(if on_a_card { &[][..] } else { &["--device", "cuda"] });
    command.args(if is_training && !arguments.contains(&"--cuda-graphs") {
        &["--cuda-graphs", "false"][..]
    } else {
        &[]
    });
    let output = starter::output(&mut command);
    let counted = std::fs::read(&report).unwrap_or_else(|error| panic!("{error}:\n{}", said(&output)));
    (output, serde_json::from_slice(&counted).unwrap())
}

/// Runs the program on a card, asserts success and no leaks; returns its output text and the card's counts.
pub fn success_on(card: &Card, workplace: &Workplace, arguments: &[&str]) -> (String, Value) {
    let (output, counted) = run_on(card, workplace, arguments);
    let said = said(&output);
    assert!(output.status.success(), "kdgat {arguments:?} on {card:?} failed:\n{said}");
    assert!(said.contains("takes the place of libtorch_cuda"), "{said}");
    assert_eq!(counted["fault"], false, "{said}");
    assert_eq!(counted["page_locked_ranges"], 0, "{arguments:?}");
    for card in counted["cards"].as_array().unwrap() {
        assert_eq!(card["allocated_bytes"], 0, "{arguments:?}: memory is left on the card");
    }
    (said, counted)
}

pub fn losses(workplace: &Workplace, run: &str) -> Vec<f64> {
    ["train_loss", "val_loss"].map(|column| workplace.metric(run, column)).concat()
}

pub fn same_losses(found: &[f64], expected: &[f64]) -> bool {
    let near = |(found, expected): (&f64, &f64)| (found - expected).abs() <= 1e-6 * expected.abs();
    found.len() == expected.len() && found.iter().zip(expected).all(near)
}

#[track_caller]
pub fn assert_same_losses(workplace: &Workplace, run: &str, expected: &[f64]) {
    let found = losses(workplace, run);
    assert!(same_losses(&found, expected), "{run}: losses {found:?} instead of {expected:?}");
}

/// The peak of a run was expected within 2 %.
#[track_caller]
pub fn assert_expected_peak(workplace: &Workplace, run: &str) {
    let summary = workplace.json(&format!("{run}/summary.json"));
    let [peak, expected] =
        ["peak_memory_bytes", "expected_peak_memory_bytes"].map(|field| summary[field].as_f64().unwrap());
    assert!((expected / peak - 1.0).abs() <= 0.02, "{run}: expected {expected}, peak {peak}");
}

pub fn column(workplace: &Workplace, file: &str, name: &str) -> Vec<f64> {
    let mut reader = csv::Reader::from_path(workplace.path(file)).unwrap();
    let position = reader.headers().unwrap().iter().position(|header| header == name).unwrap();
    reader.records().map(|row| row.unwrap()[position].parse().unwrap()).collect()
}
