//! Whole runs on a card made of software: losses of the CPU, peaks and leftovers of memory, races, and errors in any call.

mod software_card_support;
mod stage_support;

use std::process::Output;

use serde_json::Value;
use software_card_support::Card;
use stage_support::Workplace;

const TEACHERS: [(&str, &[&str]); 2] = [
    ("autoencoder", &["--preset", "vgae,teacher", "--hidden", "24,12,8", "--latent", "8", "--embedding", "4"]),
    ("normal", &["--preset", "gat,teacher", "--hidden", "8"]),
];

/// Batches whose size is given, and the same operations on both devices.
const COMMON: &[&str] =
    &["--batch-size", "64", "--optimize-batch-size", "false", "--attention", "composed", "--max-epochs", "2"];

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs the program on a card; its output and what the card counted.
fn on_card(workplace: &Workplace, card: &Card, arguments: &[&str]) -> (Output, Value) {
    static NUMBER: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let report = workplace.path(&format!("report-{number}.json"));
    let mut command = workplace.command(arguments);
    card.clone().report(&report).apply(&mut command);
    let output = command.args(["--device", "cuda"]).output().unwrap();
    let counted = std::fs::read(&report).unwrap_or_else(|error| panic!("{error}:\n{}", said(&output)));
    (output, serde_json::from_slice(&counted).unwrap())
}

fn losses(workplace: &Workplace, run: &str) -> Vec<f64> {
    [workplace.metric(run, "train_loss"), workplace.metric(run, "val_loss")].concat()
}

fn assert_same_losses(what: &str, found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= 1e-6 * expected.abs(), "{what}: loss {found} instead of {expected}");
    }
}

#[test]
fn software_card_trains_teachers_as_the_cpu_does() {
    let workplace = Workplace::new();
    for (stage, model) in TEACHERS {
        let run = |name: &str| [&[stage], model, COMMON, &["--run-dir", name]].concat().join(" ");
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let cpu = words(&run(&format!("{stage}-cpu")));
        let cpu: Vec<&str> = cpu.iter().map(String::as_str).collect();
        let mut command = workplace.command(&cpu);
        Card::new().apply(&mut command);
        let output = command.args(["--device", "cpu"]).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        let expected = losses(&workplace, &format!("{stage}-cpu"));
        for (name, card) in [("at-once", Card::new()), ("late", Card::new().late(1)), ("later", Card::new().late(2))] {
            let run_dir = format!("{stage}-{name}");
            let arguments = words(&run(&run_dir));
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let (output, counted) = on_card(&workplace, &card, &arguments);
            let said = said(&output);
            assert!(output.status.success(), "{said}");
            assert!(said.contains("takes the place of libtorch_cuda"), "{said}");
            assert_same_losses(&run_dir, &losses(&workplace, &run_dir), &expected);
            assert_eq!(counted["fault"], false, "{said}");
            assert_eq!(counted["late_operators"].as_u64().unwrap() > 0, name != "at-once");
            assert_eq!(counted["cards"][0]["allocated_bytes"], 0, "memory is left on the card");
        }
    }
}
