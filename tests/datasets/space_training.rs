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
    kill_when(place.command(&[&into("killed")[..], &DATA].concat()), "the end of epoch 3", is_begun);
    with(&place, &[&into("killed")[..], &["--resume"]].concat());
    let losses = |run: &str| loss_columns(&place.path().join(run));
    assert_eq!(losses("whole"), losses("killed"));
}

/// A student of displaced graphs learns from the teacher's answers for them, cached or not, and whatever was killed goes on.
#[test]
fn displaced_graphs_have_the_teachers_answers() {
    let place = Workplace::new();
    write_springs(&place.path().join("springs.xyz"), 60, true);
    with(&place, &[&["train", "--preset", "painn,teacher", "--max-epochs", "5"], &SMALL[..]].concat());
    let student = ["train", "--preset", "schnet,student", "--hidden", "8", "--layers", "2", "--kd-displacement", "0.1"];
    let views = |run: &'static str, more: &[&'static str]| {
        [&student[..], &["--kd-views", "3", "--max-epochs", "7", "--run-dir", run], more].concat()
    };
    let text = with(&place, &views("whole", &["--offload-teacher"]));
    // Of the 60 graphs 43 are for training, in three views, and 11 for validation.
    assert!(text.contains("targets of 140 graphs"), "{text}");
    with(&place, &views("uncached", &["--use-teacher-cache", "false"]));
    let cached =
        ["--hidden", "8", "--layers", "2", "--kd-displacement", "0.1", "--kd-views", "3", "--batch-size", "20"];
    with(&place, &[&["teachers", "cache", "--preset", "schnet,student", "--parts", "2"], &cached[..]].concat());
    let text = with(&place, &views("ahead", &["--teacher-cache", "disk"]));
    assert!(text.contains("140 of 140 graphs already cached"), "{text}");
    let metrics = place.path().join("killed/metrics.csv");
    let is_begun = || fs::read_to_string(&metrics).is_ok_and(|text| text.lines().count() > 3);
    kill_when(place.command(&[&views("killed", &[])[..], &DATA].concat()), "the end of epoch 3", is_begun);
    with(&place, &[&views("killed", &[])[..], &["--resume"]].concat());
    let losses = |run: &str| loss_columns(&place.path().join(run));
    for run in ["uncached", "ahead", "killed"] {
        assert_eq!(losses("whole"), losses(run), "{run}");
    }
    let views = ["--kd-views", "3", "--max-epochs", "7", "--run-dir", "still", "--kd-displacement", "1e-9"];
    with(&place, &[&student[..7], &views].concat());
    assert!(losses("still") != losses("whole"));

    let refused = |arguments: &[&str], expected: &str| {
        let said = place.refused(&[arguments, &DATA].concat());
        assert!(said.contains(expected), "{said}");
    };
    refused(&student, "there are fewer than two");
    refused(&[&student[..7], &["--kd-views", "3"]].concat(), "none are displaced");
    let gin = ["train", "--preset", "gin,student", "--kd-displacement", "0.1", "--kd-views", "3"];
    refused(&gin, "only networks that read positions see displaced nodes");
}

/// Chains of four or five atoms as tables, whose energy is that of springs along their bonds, each with a length that the bond's feature says, of
/// their angles and of their dihedrals.
fn write_chains(folder: &Path, molecules: usize) {
    let (mut graphs, mut nodes, mut edges) = ("graph_id,y\n".to_owned(), String::new(), String::new());
    nodes += "graph_id,node_id,c_element,pos_x,pos_y,pos_z\n";
    edges += "graph_id,source,target,e_length\n";
    let dot = |one: [f64; 3], other: [f64; 3]| (0..3).map(|axis| one[axis] * other[axis]).sum::<f64>();
    let cross =
        |a: [f64; 3], b: [f64; 3]| [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];
    let cosine = |one: [f64; 3], other: [f64; 3]| dot(one, other) / (dot(one, one) * dot(other, other)).sqrt();
    for molecule in 0..molecules {
        let (mut energy, mut steps): (f64, Vec<[f64; 3]>) = (0.0, Vec::new());
        let mut place = [0.0; 3];
        for atom in 0..4 + molecule % 2 {
            let random = |axis: usize| noise(131 * molecule + 17 * atom + axis);
            nodes += &format!("{molecule},{atom},C,{:.4},{:.4},{:.4}\n", place[0], place[1], place[2]);
            if let Some(&step) = steps.last() {
                let length = 0.8 + 0.6 * random(5);
                edges += &format!("{molecule},{},{atom},{length:.4}\n", atom - 1);
                energy += 5.0 * (dot(step, step).sqrt() - length).powi(2);
            }
            // Along the chain with turns of up to a right angle.
            let step = [0.5 + 0.5 * random(0), 1.4 * (random(1) - 0.5), 1.4 * (random(2) - 0.5)];
            steps.push(step);
            place = [0, 1, 2].map(|axis| place[axis] + step[axis]);
        }
        // The last step leads to no atom.
        steps.pop();
        energy += steps.windows(2).map(|pair| cosine(pair[0], pair[1])).sum::<f64>();
        let planes: Vec<[f64; 3]> = steps.windows(2).map(|pair| cross(pair[0], pair[1])).collect();
        energy += planes.windows(2).map(|pair| cosine(pair[0], pair[1])).sum::<f64>();
        graphs += &format!("{molecule},{energy:.6}\n");
    }
    fs::create_dir_all(folder).unwrap();
    [("graphs.csv", graphs), ("nodes.csv", nodes), ("edges.csv", edges)]
        .iter()
        .for_each(|(name, text)| fs::write(folder.join(name), text).unwrap());
}

/// A network that reads bonds learns what their features say, and others cannot; its student, killed, goes on to the same losses.
#[test]
fn bonds_angles_and_dihedrals_are_learned() {
    let place = Workplace::new();
    write_chains(&place.path().join("chains"), 200);
    let data = ["--data", "chains", "--device", "cpu", "--threads", "1"];
    let few = ["--irreps", "8x0e + 4x1o", "--layers", "2", "--radial-hidden", "12", "--lr", "0.01"];
    let train = |more: &[&str]| {
        let arguments =
            [&["train", "--preset", "irreps,teacher", "--max-epochs", "50"], &few[..], more, &data].concat();
        place.success(&arguments)
    };
    let best = |run: &str| {
        let text = fs::read(place.path().join(run).join("summary.json")).unwrap();
        serde_json::from_slice::<serde_json::Value>(&text).unwrap()["best_val_loss"].as_f64().unwrap()
    };
    train(&["--run-dir", "near"]);
    let text = train(&["--bonds", "true", "--run-dir", "bonds"]);
    assert!(text.contains("irreps teacher"), "{text}");
    assert!(best("bonds") < 0.5 * best("near"), "{} with bonds, {} without", best("bonds"), best("near"));
    // Each part can be left out.
    let parameters = |more: &[&str]| {
        let text = train(&[&["--bonds", "true", "--max-epochs", "1", "--run-dir", "part"], more].concat());
        fs::remove_dir_all(place.path().join("part")).unwrap();
        // Pairs of near nodes are looked for only where they send messages.
        assert_eq!(text.contains("pairs of near nodes"), !more.contains(&"--nonbonded"), "{text}");
        let (_, rest) = text.split_once("irreps teacher: ").unwrap();
        rest.split(' ').next().unwrap().parse::<usize>().unwrap()
    };
    let all = parameters(&[]);
    for part in [["--nonbonded", "false"], ["--multi-hop", "false"], ["--edge-features", "false"]] {
        assert!(parameters(&part) < all, "{part:?}");
    }
    let student = [
        "train",
        "--preset",
        "irreps,student",
        "--bonds",
        "true",
        "--teacher-path",
        "bonds",
        "--irreps",
        "6x0e + 2x1o",
    ];
    let into = |run: &'static str| [&student[..], &["--max-epochs", "8", "--run-dir", run], &data].concat();
    place.success(&into("whole"));
    let metrics = place.path().join("killed/metrics.csv");
    let is_begun = || fs::read_to_string(&metrics).is_ok_and(|text| text.lines().count() > 3);
    kill_when(place.command(&into("killed")), "the end of epoch 3", is_begun);
    place.success(&[&into("killed")[..], &["--resume"]].concat());
    assert_eq!(loss_columns(&place.path().join("whole")), loss_columns(&place.path().join("killed")));

    let refused = |more: &[&str]| place.refused(&[&["train", "--preset", "irreps,teacher"], more].concat());
    let said = refused(&["--data", "chains", "--multi-hop", "true"]);
    assert!(said.contains("only an irreps with messages along bonds reads it"), "{said}");
    fs::create_dir(place.path().join("loose")).unwrap();
    for name in ["graphs.csv", "nodes.csv"] {
        fs::copy(place.path().join("chains").join(name), place.path().join("loose").join(name)).unwrap();
    }
    let said = refused(&["--data", "loose", "--bonds", "true"]);
    assert!(said.contains("positions and no edges"), "{said}");
    let cell = "2\nLattice=\"3 0 0 0 3 0 0 0 3\" energy=1.0\nC 0 0 0\nC 1 0 0\n".repeat(20);
    fs::create_dir(place.path().join("cells")).unwrap();
    fs::write(place.path().join("cells/cells.xyz"), cell).unwrap();
    fs::write(place.path().join("cells/kdgat-graphs.toml"), "cutoff = 1.5\n").unwrap();
    let said = refused(&["--data", "cells", "--bonds", "true"]);
    assert!(said.contains("periodic cells"), "{said}");
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
    kill_when(place.command(&killed), "the end of epoch 3", is_begun);
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
