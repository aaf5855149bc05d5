//! Networks in space from the command line: energies and forces of a teacher, its students, and their evaluation.

use std::collections::HashMap;
use std::f64::consts::PI;
use std::fs;
use std::path::Path;

use support::cli::{Workplace, loss_columns};
use support::stops::kill_when;

/// A number from 0 to 1 that looks random.
fn noise(index: usize) -> f64 {
    let value = (index as f64 * 12.9898).sin() * 43_758.545;
    value - value.floor()
}

/// Molecules of three or four atoms on a circle, moved at random, as extended XYZ: a spring between each two atoms has the energy
/// k (d − 1.2)², with k = 3 between two of the same element and 1 otherwise.
fn write_springs(path: &Path, molecules: usize, with_forces: bool) {
    write_springs_at(path, molecules, with_forces, 0.0);
}

/// The same with another zero of energies.
fn write_springs_at(path: &Path, molecules: usize, with_forces: bool, zero: f64) {
    let mut text = String::new();
    for molecule in 0..molecules {
        let atoms = 3 + molecule % 2;
        let elements: Vec<&str> = (0..atoms).map(|atom| ["C", "O"][(atom + molecule) % 2]).collect();
        let place = |atom: usize, axis: usize| {
            let angle = 2.0 * PI * atom as f64 / atoms as f64;
            [angle.cos(), angle.sin(), 0.0][axis] + 0.6 * (noise(97 * molecule + 7 * atom + axis) - 0.5)
        };
        let (mut energy, mut forces) = (0.0, vec![[0.0; 3]; atoms]);
        for one in 0..atoms {
            for other in 0..one {
                let vector = [0, 1, 2].map(|axis| place(other, axis) - place(one, axis));
                let distance = vector.iter().map(|value| value * value).sum::<f64>().sqrt();
                let stiffness = if elements[one] == elements[other] { 3.0 } else { 1.0 };
                energy += stiffness * (distance - 1.2).powi(2);
                for axis in 0..3 {
                    let pull = 2.0 * stiffness * (distance - 1.2) * vector[axis] / distance;
                    forces[one][axis] += pull;
                    forces[other][axis] -= pull;
                }
            }
        }
        let columns = if with_forces { "species:S:1:pos:R:3:forces:R:3" } else { "species:S:1:pos:R:3" };
        text += &format!("{atoms}\nProperties={columns} energy={:.6}\n", energy + zero);
        for atom in 0..atoms {
            let numbers: Vec<f64> = (0..3).map(|axis| place(atom, axis)).chain(forces[atom]).collect();
            let count = if with_forces { 6 } else { 3 };
            let cells: Vec<String> = numbers[..count].iter().map(|value| format!("{value:.6}")).collect();
            text += &format!("{} {}\n", elements[atom], cells.join(" "));
        }
    }
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

const DATA: [&str; 6] = ["--data", "springs.xyz", "--device", "cpu", "--threads", "1"];
const SMALL: [&str; 6] = ["--hidden", "16", "--layers", "2", "--radial-functions", "12"];

fn with(place: &Workplace, arguments: &[&str]) -> String {
    place.success(&[arguments, &DATA].concat())
}

/// Metrics of the evaluated models.
fn metrics(place: &Workplace) -> HashMap<(String, String), f64> {
    let rows: Vec<HashMap<String, String>> =
        csv::Reader::from_path(place.path().join("runs/springs/evaluation/graph_metrics.csv"))
            .unwrap()
            .deserialize()
            .map(Result::unwrap)
            .collect();
    let metric = |row: &HashMap<String, String>| {
        ((row["model"].clone(), row["metric"].clone()), row["value"].parse().unwrap_or(f64::NAN))
    };
    rows.iter().map(metric).collect()
}

/// Columns of a run's metrics by epoch.
fn column(place: &Workplace, run: &str, name: &str) -> Vec<f64> {
    let path = place.path().join("runs/springs").join(run).join("metrics.csv");
    let mut reader = csv::Reader::from_path(path).unwrap();
    let at = reader.headers().unwrap().iter().position(|header| header == name).unwrap();
    reader.records().map(|record| record.unwrap()[at].parse().unwrap_or(f64::NAN)).collect()
}

#[test]
fn energies_and_forces_are_learned_taught_and_evaluated() {
    let place = Workplace::new();
    write_springs(&place.path().join("springs.xyz"), 120, true);
    let epochs = ["--max-epochs", "30", "--lr", "0.005"];
    with(&place, &[&["train", "--preset", "painn,teacher"], &SMALL[..], &epochs].concat());
    let errors = column(&place, "painn_teacher_train/1", "val_force_error");
    assert!(errors[29] < 0.5 * errors[0], "{errors:?}");

    // The teacher's forces are cached.
    let student = ["train", "--preset", "schnet,student", "--hidden", "8", "--layers", "2", "--offload-teacher"];
    let text = with(&place, &[&student[..], &["--max-epochs", "3"]].concat());
    assert!(text.contains("of targets cached"), "{text}");
    let painn = ["train", "--preset", "painn,student", "--hidden", "8", "--layers", "2", "--kd-hint-weight", "0.1"];
    with(&place, &[&painn[..], &["--max-epochs", "2", "--cutoff", "3"]].concat());
    let hints = column(&place, "painn_student_train_kd/1", "hint_kd");
    assert!(hints.iter().all(|hint| *hint > 0.0), "{hints:?}");

    // Pairs of near nodes count, not listed edges; forces are part of the step.
    for run in ["painn_teacher_train/1", "schnet_student_train_kd/1", "painn_student_train_kd/1"] {
        let summary = fs::read(place.path().join("runs/springs").join(run).join("summary.json")).unwrap();
        let summary: serde_json::Value = serde_json::from_slice(&summary).unwrap();
        let bytes = |name: &str| summary[name].as_f64().unwrap();
        let ratio = bytes("expected_peak_memory_bytes") / bytes("peak_memory_bytes");
        assert!((0.95..1.05).contains(&ratio), "{run}: {ratio}");
    }

    with(&place, &["evaluate", "--resamples", "50"]);
    let metrics = metrics(&place);
    let of = |model: &str, metric: &str| metrics[&(model.to_owned(), metric.to_owned())];
    let (teacher, student) = ("painn_teacher_train/1", "schnet_student_train_kd/1");
    assert!(of(teacher, "forces MAE") < of(student, "forces MAE"), "{metrics:?}");
    // The mean force of the data is 0, and so is that of a model that knows nothing; its error is about 1.
    assert!(of(teacher, "forces MAE") < 0.5 && of(teacher, "energy R2") > 0.5, "{metrics:?}");
}

/// In 32 bits, energies near -97,000 would be multiples of 0.008: losses and errors are those of the same energies near 0.
#[test]
fn energies_far_from_zero_lose_nothing() {
    let trained = |zero: f64| {
        let place = Workplace::new();
        write_springs_at(&place.path().join("springs.xyz"), 60, false, zero);
        with(&place, &[&["train", "--preset", "schnet,teacher", "--max-epochs", "3"], &SMALL[..]].concat());
        with(&place, &["evaluate", "--resamples", "50", "--predictions", "predicted.csv"]);
        let run = "schnet_teacher_train/1";
        let mut numbers = column(&place, run, "val_loss");
        numbers.push(metrics(&place)[&(run.to_owned(), "energy MAE".to_owned())]);
        let rows = csv::Reader::from_path(place.path().join("predicted.csv")).unwrap().into_records();
        let first = rows.map(Result::unwrap).find(|row| &row[0] == run).unwrap();
        numbers.extend([first.len() - 2, first.len() - 1].map(|at| first[at].parse::<f64>().unwrap() - zero));
        numbers
    };
    let (near, far) = (trained(0.0), trained(-97_000.0));
    assert_eq!(near.len(), 6);
    for (near, far) in near.iter().zip(&far) {
        assert!((near - far).abs() < 1e-5 * near.abs().max(1.0), "{near} near 0, {far} far from it");
    }
}

/// A network of representations teaches a SchNet and a smaller one of its own kind, which is killed and goes on to the losses of a run that was
/// not interrupted.
#[test]
fn representations_are_learned_taught_and_resumed() {
    let place = Workplace::new();
    write_springs(&place.path().join("springs.xyz"), 120, true);
    let few = ["--irreps", "6x0e + 3x1o + 2x2e", "--layers", "2", "--radial-hidden", "12", "--schedule", "constant"];
    let teacher = [&["train", "--preset", "irreps,teacher"], &few[..]].concat();
    with(&place, &[&teacher[..], &["--max-epochs", "20", "--lr", "0.005"]].concat());
    let errors = column(&place, "irreps_teacher_train/1", "val_force_error");
    assert!(errors[19] < 0.5 * errors[0], "{errors:?}");

    let student = ["train", "--preset", "schnet,student", "--hidden", "8", "--layers", "2", "--offload-teacher"];
    let text = with(&place, &[&student[..], &["--max-epochs", "2", "--kd-hint-weight", "0.1"]].concat());
    assert!(text.contains("of targets cached"), "{text}");
    let hints = column(&place, "schnet_student_train_kd/1", "hint_kd");
    assert!(hints.iter().all(|hint| *hint > 0.0), "{hints:?}");

    let student = [&["train", "--preset", "irreps,student", "--layer-norm", "true"], &few[..]].concat();
    let into = |run: &'static str| [&student[..], &["--max-epochs", "8", "--run-dir", run]].concat();
    with(&place, &into("whole"));
    let metrics = place.path().join("killed/metrics.csv");
    let is_begun = || fs::read_to_string(&metrics).is_ok_and(|text| text.lines().count() > 3);
    kill_when(&mut place.command(&[&into("killed")[..], &DATA].concat()), "the end of epoch 3", is_begun);
    with(&place, &[&into("killed")[..], &["--resume"]].concat());
    let losses = |run: &str| loss_columns(&place.path().join(run));
    assert_eq!(losses("whole"), losses("killed"));
}

/// Distances and elements of the pairs of each molecule in an XYZ file.
fn pairs_of(path: &Path) -> Vec<Vec<(f64, bool)>> {
    let text = fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    let mut molecules = Vec::new();
    while let Some(atoms) = lines.next() {
        let atoms: usize = atoms.parse().unwrap();
        let _ = lines.next();
        let rows: Vec<Vec<&str>> = lines.by_ref().take(atoms).map(|line| line.split(' ').collect()).collect();
        let place = |atom: usize, axis: usize| rows[atom][1 + axis].parse::<f64>().unwrap();
        let distance = |one: usize, other: usize| {
            (0..3).map(|axis| (place(one, axis) - place(other, axis)).powi(2)).sum::<f64>().sqrt()
        };
        let all = (0..atoms).flat_map(|one| (0..one).map(move |other| (one, other)));
        molecules.push(all.map(|(one, other)| (distance(one, other), rows[one][0] == rows[other][0])).collect());
    }
    molecules
}

/// The embeddings of a model that is not here are learned from shapes, so that unseen molecules are found by them; killed and resumed with the same
/// losses.
#[test]
fn embeddings_of_a_teacher_from_elsewhere_are_learned_in_space() {
    let place = Workplace::new();
    let path = place.path().join("springs.xyz");
    write_springs(&path, 200, false);
    const COLUMNS: usize = 24;
    let names: Vec<String> = (0..COLUMNS).map(|column| format!("embedding_{column}")).collect();
    let mut table = format!("graph_id,{}\n", names.join(","));
    for (molecule, pairs) in pairs_of(&path).iter().enumerate() {
        let of_column = |column: usize| {
            let wave = |(distance, alike): &(f64, bool)| {
                (distance * (1.0 + 2.0 * noise(column)) + 6.0 * noise(100 + column) + f64::from(u8::from(*alike))).sin()
            };
            format!("{:.5}", pairs.iter().map(wave).sum::<f64>())
        };
        let cells: Vec<String> = (0..COLUMNS).map(of_column).collect();
        table += &format!("{},{}\n", molecule + 1, cells.join(","));
    }
    fs::write(place.path().join("rows.csv"), table).unwrap();
    for (preset, more) in [("irreps,student", &["--irreps", "12x0e + 4x1o"]), ("painn,student", &["--hidden", "12"])] {
        let train = ["train", "--preset", preset, "--layers", "2", "--targets-file", "rows.csv"];
        let losses = ["--kd-embedding-loss", "contrastive", "--kd-alpha", "1", "--lr", "0.01", "--max-epochs", "15"];
        let into = |run: &'static str| [&train[..], more, &losses, &["--run-dir", run]].concat();
        let whole = if preset.starts_with("irreps") { "whole" } else { "of-painn" };
        with(&place, &into(whole));
        let said =
            place.success(&["evaluate", whole, "--data", "springs.xyz", "--output", "found", "--resamples", "20"]);
        let found: serde_json::Value =
            serde_json::from_slice(&fs::read(place.path().join("found/graph_metrics.json")).unwrap()).unwrap();
        let metrics = found["models"][0]["metrics"].as_array().unwrap();
        let value =
            |name: &str| metrics.iter().find(|metric| metric["name"] == name).unwrap()["value"].as_f64().unwrap();
        // Among the first five of 20 molecules, a quarter by chance.
        assert!(value("embedding top-5") >= 0.7, "{preset}: {said}");
    }
    let train = ["train", "--preset", "irreps,student", "--layers", "2", "--targets-file", "rows.csv", "--irreps"];
    let losses = ["12x0e + 4x1o", "--kd-embedding-loss", "contrastive", "--kd-alpha", "1", "--lr", "0.01"];
    let killed = [&train[..], &losses, &["--max-epochs", "15", "--run-dir", "killed"], &DATA].concat();
    let metrics = place.path().join("killed/metrics.csv");
    let is_begun = || fs::read_to_string(&metrics).is_ok_and(|text| text.lines().count() > 3);
    kill_when(&mut place.command(&killed), "the end of epoch 3", is_begun);
    place.success(&[&killed[..], &["--resume"]].concat());
    assert_eq!(loss_columns(&place.path().join("whole")), loss_columns(&place.path().join("killed")));
}

/// Without forces, and with a weight of 0 for them, the energies alone are learned.
#[test]
fn energies_alone_are_learned() {
    let place = Workplace::new();
    write_springs(&place.path().join("springs.xyz"), 60, false);
    with(&place, &[&["train", "--preset", "schnet,teacher", "--max-epochs", "2"], &SMALL[..]].concat());
    write_springs(&place.path().join("springs.xyz"), 60, true);
    let alone =
        ["train", "--preset", "painn,teacher", "--max-epochs", "2", "--force-weight", "0", "--radial-basis", "bessel"];
    with(&place, &[&alone[..], &SMALL[..]].concat());
    for run in ["schnet_teacher_train/1", "painn_teacher_train/1"] {
        let text = fs::read_to_string(place.path().join("runs/springs").join(run).join("metrics.csv")).unwrap();
        assert!(!text.contains("force_error"), "{run}: {text}");
    }
}

#[test]
fn what_cannot_be_trained_in_space_is_refused() {
    let place = Workplace::new();
    write_springs(&place.path().join("springs.xyz"), 20, true);
    let refused = |arguments: &[&str], expected: &str| {
        let said = place.refused(&[&["train", "--preset", "painn,teacher"], arguments, &DATA].concat());
        assert!(said.contains(expected), "{arguments:?}: {said}");
    };
    refused(&["--dropout", "0.1"], "--dropout");
    refused(&["--pooling", "max"], "pooling");
    refused(&["--virtual-node", "true"], "virtual");
    refused(&["--energy-weight", "0", "--force-weight", "0"], "energy_weight and force_weight are both 0");
    refused(&["--cutoff", "0"], "cutoff");
    let of_irreps = |arguments: &[&str], expected: &str| {
        let said = place.refused(&[&["train", "--preset", "irreps,teacher"], arguments, &DATA].concat());
        assert!(said.contains(expected), "{arguments:?}: {said}");
    };
    of_irreps(&["--irreps", "8x0e + 4x3o"], "--irreps '4x3o' in '8x0e + 4x3o': expected a count");
    of_irreps(&["--irreps", "8x1o"], "expected scalars (0e)");
    of_irreps(&["--hidden", "8"], "use --irreps");
    refused(&["--layer-norm", "true"], "only an irreps reads it");
    let said = place.refused(&[&["train", "--preset", "gin,teacher", "--cutoff", "4"][..], &DATA].concat());
    assert!(said.contains("only networks of positions read it"), "{said}");
}
