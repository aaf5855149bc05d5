//! `kdgat fusion` on a small dataset, from the models to the verdict.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::OnceLock;

use kdgat::graph::{Split, Store};
use serde_json::Value;
use support::cli::{Workplace, copy_folder, loss_columns, only_store, said};
use support::stops::kill_when;

const VGAE: &[&str] = &["--hidden", "8,8,4", "--latent", "4", "--embedding", "2"];
const GAT: &[&str] = &["--hidden", "8", "--layers", "2", "--heads", "2", "--embedding", "2"];
const AGENT: &[&str] = &["--hidden", "16,16", "--max-epochs", "3", "--resamples", "50"];

const SHORT: &[&str] = &["--use-kd", "false", "--max-epochs", "3"];

/// Workplace with a small VGAE and a small GAT of size student.
fn with_models() -> Workplace {
    static TRAINED: OnceLock<Workplace> = OnceLock::new();
    let trained = TRAINED.get_or_init(|| {
        let workplace = Workplace::new();
        workplace.success(&[&["autoencoder", "--preset", "vgae,student"], VGAE, SHORT].concat());
        workplace.success(&[&["classifier", "--preset", "gat,student"], GAT, SHORT].concat());
        workplace
    });
    let workplace = Workplace::new();
    for folder in ["runs", "stores"] {
        copy_folder(&trained.path().join(folder), &workplace.path().join(folder));
    }
    workplace
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn teacher(workplace: &Workplace, more: &[&str]) -> String {
    let models = [
        "--fusion-vgae",
        "runs/small/vgae_student_autoencoder/1",
        "--fusion-gat",
        "runs/small/gat_student_normal/1/best.safetensors",
    ];
    workplace.success(&[&["fusion", "--preset", "dqn,teacher"], &models[..], AGENT, more].concat())
}

#[test]
fn an_agent_stands_beside_its_baselines() {
    let workplace = with_models();
    let text = teacher(&workplace, &[]);
    let run = workplace.run_folder("dqn_teacher_fusion", 1);
    let report = json(&run.join("fusion.json"));

    // The verdict is printed first and agrees with the numbers.
    let verdict = report["verdict"]["text"].as_str().unwrap();
    let beats = report["verdict"]["agent_beats_fixed_weight"].as_bool().unwrap();
    let [agent, fixed] = [0, 1].map(|side| report["verdict"]["mean_f1"][side].as_f64().unwrap());
    assert_eq!(beats, agent > fixed);
    assert!(verdict.starts_with("Learned fusion (dqn_teacher_fusion/1) "), "{verdict}");
    assert_eq!(verdict.lines().next().unwrap().contains("does not beat the best fixed weight"), !beats, "{verdict}");
    assert!(text.contains(verdict), "{text}");

    // Six candidates with intervals on each test folder; the single models have their own scores.
    let models = report["evaluation"]["models"].as_array().unwrap();
    let names: Vec<&str> = models.iter().map(|model| model["model"].as_str().unwrap()).collect();
    assert_eq!((names.len(), names[0], &names[1..3]), (6, "dqn_teacher_fusion/1", &["VGAE alone", "GAT alone"][..]));
    assert!(names[3].starts_with("fixed weight") && names[4..] == ["logistic regression", "small MLP"], "{names:?}");
    for model in models {
        let of_folders = model["results"].as_array().unwrap().iter().filter(|row| row["scope"] == "folder");
        let folders: BTreeSet<&str> = of_folders
            .map(|row| {
                assert!(row["metrics"]["f1"]["low"].is_number() && row["threshold"].is_number(), "{row}");
                row["folder"].as_str().unwrap()
            })
            .collect();
        assert_eq!(folders.len(), 2, "{folders:?}");
    }
    let mut rows = csv::Reader::from_path(run.join("fusion.csv")).unwrap();
    assert!(rows.records().count() >= 6 * (2 + 2));

    // The ranking metrics of the single models equal those of `kdgat evaluate`, which does not list agents as models.
    let evaluation = workplace.success(&["evaluate", "--resamples", "0"]);
    assert!(!evaluation.contains("dqn_teacher"), "{evaluation}");
    let evaluated = json(&workplace.path().join("runs/small/evaluation/metrics.json"));
    let auc = |report: &Value, name: &str| -> Vec<f64> {
        let model = report["models"].as_array().unwrap().iter().find(|model| model["model"] == name).unwrap();
        let rows = model["results"].as_array().unwrap().iter().filter(|row| row["scope"] == "file");
        let mut seen = BTreeSet::new();
        let once = rows.filter(|row| seen.insert((row["folder"].to_string(), row["file"].to_string())));
        once.map(|row| row["metrics"]["roc_auc"]["value"].as_f64().unwrap_or(-1.0)).collect()
    };
    for (alone, run) in [("VGAE alone", "vgae_student_autoencoder/1"), ("GAT alone", "gat_student_normal/1")] {
        let (found, expected) = (auc(&report["evaluation"], alone), auc(&evaluated, run));
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-3, "{alone}: {found} instead of {expected}");
        }
    }

    // The log, and the summary.
    assert_eq!(loss_columns(&run).len(), 3);
    let summary = json(&run.join("summary.json"));
    assert_eq!(summary["weights_digest"], models[0]["weights_digests"][0]);
    assert_eq!(summary["num_parameters"], 15 * 16 + 3 * 16 + 16 * 16 + 3 * 16 + 17 * 21);
}

#[test]
fn a_student_learns_from_the_teachers_values() {
    let workplace = with_models();
    teacher(&workplace, &[]);
    let student = &["fusion", "--preset", "dqn,student", "--hidden", "8", "--max-epochs", "2", "--resamples", "10"];
    let said = workplace.success(student);
    // The same models are found by size, and their states by digest.
    assert!(said.contains("fuses vgae_student_autoencoder/1 and gat_student_normal/1"), "{said}");
    assert!(said.contains("found in stores/fusion/small-") && !said.contains("computed in"), "{said}");
    let run = workplace.run_folder("dqn_student_fusion_kd", 1);
    let mut log = csv::Reader::from_path(run.join("metrics.csv")).unwrap();
    let column = log.headers().unwrap().iter().position(|name| name == "kd_loss").unwrap();
    assert!(log.records().all(|row| row.unwrap()[column].parse::<f64>().unwrap() > 0.0));
    let teacher = json(&workplace.run_folder("dqn_teacher_fusion", 1).join("summary.json"));
    assert_eq!(json(&run.join("config.json"))["inputs"]["teacher_digest"], teacher["weights_digest"]);
    // Without a teacher, the error says how to train one.
    std::fs::remove_dir_all(workplace.path().join("runs/small/dqn_teacher_fusion")).unwrap();
    let refused = workplace.refused(student);
    assert!(refused.contains("kdgat fusion --preset dqn,teacher"), "{refused}");
}

#[test]
fn a_bandit_learns_too_and_goes_on_where_it_was_killed() {
    let workplace = with_models();
    for kind in ["dqn", "bandit"] {
        let command = |folder: &'static str| {
            let settings = &[
                "--use-kd",
                "false",
                "--hidden",
                "32,32",
                "--max-epochs",
                "150",
                "--patience",
                "150",
                "--resamples",
                "0",
            ];
            [&["fusion", "--preset", "dqn,student", "--fusion", kind, "--run-dir", folder], &settings[..]].concat()
        };
        workplace.success(&command("whole"));
        let log = workplace.path().join("killed/metrics.csv");
        let epochs = || std::fs::read_to_string(&log).unwrap_or_default().lines().count();
        kill_when(workplace.command(&command("killed")), "a third epoch", || epochs() >= 4);
        assert!(!workplace.path().join("killed/summary.json").exists(), "{kind} had ended before it was killed");
        workplace.success(&[&command("killed")[..], &["--resume"]].concat());
        let [whole, killed] = ["whole", "killed"].map(|folder| workplace.path().join(folder));
        assert_eq!(loss_columns(&whole), loss_columns(&killed), "{kind}");
        let digest = |run: &Path| json(&run.join("summary.json"))["weights_digest"].clone();
        assert_eq!(digest(&whole), digest(&killed), "{kind}");
        let results = |run: &Path| json(&run.join("fusion.json"))["evaluation"]["models"][0]["results"].clone();
        assert_eq!(results(&whole), results(&killed), "{kind}");
        // Resuming with other settings is refused.
        std::fs::remove_file(killed.join("summary.json")).unwrap();
        let said = workplace.refused(&[&command("killed")[..], &["--resume", "--reward-balance", "0.2"]].concat());
        assert!(said.contains("other settings"), "{said}");
        assert!(said.contains("reward_balance (it was 0.05, now 0.2)"), "{said}");
        for folder in [whole, killed] {
            std::fs::remove_dir_all(folder).unwrap();
        }
    }
}

/// Doubles the states of these graphs and updates the checksum.
fn double_states(path: &Path, graphs: &[u64], num_graphs: u64) {
    let mut bytes = std::fs::read(path).unwrap();
    let (row, trailer) = (64, 8);
    assert!(num_graphs <= 4096, "more than one chunk");
    let head = bytes.len() - trailer - row * num_graphs as usize;
    for &graph in graphs {
        for value in bytes[head + row * graph as usize..][..row].chunks_exact_mut(4) {
            let doubled = 2.0 * f32::from_le_bytes([value[0], value[1], value[2], value[3]]);
            value.copy_from_slice(&doubled.to_le_bytes());
        }
    }
    let end = bytes.len() - trailer;
    let checksum = crc32fast::hash(&bytes[head..end]);
    bytes[end..end + 4].copy_from_slice(&checksum.to_le_bytes());
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn the_graphs_that_the_models_were_trained_on_change_nothing() {
    let workplace = with_models();
    let said = teacher(&workplace, &["--run-dir", "as-they-are"]);
    let folder = workplace.path().join("stores/fusion");
    let states = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    let good = std::fs::read(&states).unwrap();
    let store = Store::open(&only_store(&workplace.path().join("stores"))).unwrap();
    let [learned_on, held_out] = store.validation_halves();
    let counts =
        format!("trained on {} validation graphs of small, selected on {} others", learned_on.len(), held_out.len());
    assert!(said.contains(&counts), "{said}");
    let of_split = store.select(Split::Validation, None);
    assert!(learned_on.iter().chain(&held_out).all(|graph| of_split.contains(graph)));
    assert!(learned_on.len().abs_diff(held_out.len()) * 5 < of_split.len(), "{counts}");

    let run_with_doubled = |graphs: &[u64], run: &str| {
        std::fs::write(&states, &good).unwrap();
        double_states(&states, graphs, store.num_graphs());
        let said = teacher(&workplace, &["--run-dir", run]);
        assert!(said.contains("found in stores/fusion/small-"), "{said}");
        workplace.path().join(run)
    };
    let expected = workplace.path().join("as-they-are");
    let digest = |run: &Path| json(&run.join("summary.json"))["weights_digest"].clone();
    let results = |run: &Path| {
        let report = json(&run.join("fusion.json"));
        let models = report["evaluation"]["models"].as_array().unwrap();
        (report["best_fixed_weight"].clone(), models.iter().map(|model| model["results"].clone()).collect::<Vec<_>>())
    };
    let learned = |run: &Path| {
        let mut log = csv::Reader::from_path(run.join("metrics.csv")).unwrap();
        let column = log.headers().unwrap().iter().position(|name| name == "train_loss").unwrap();
        log.records().map(|row| row.unwrap()[column].to_owned()).collect::<Vec<_>>()
    };

    let trained = run_with_doubled(&store.select(Split::Train, None), "training");
    assert_eq!((digest(&trained), results(&trained)), (digest(&expected), results(&expected)));
    // The agent learns from one half of the validation graphs; selection uses the other half.
    let first = run_with_doubled(&learned_on, "first-half");
    assert_ne!(learned(&first), learned(&expected));
    let second = run_with_doubled(&held_out, "second-half");
    assert_eq!(learned(&second), learned(&expected));
    assert_ne!(results(&second), results(&expected));
}

#[test]
fn models_of_another_store_are_named() {
    let workplace = with_models();
    let warning = "was trained on another store";
    assert!(!teacher(&workplace, &[]).contains(warning));
    // With longer validation sections, some training graphs of the models are validation graphs.
    let said = teacher(&workplace, &["--validation-fraction", "0.4"]);
    for model in ["vgae_student_autoencoder/1", "gat_student_normal/1"] {
        assert!(said.contains(&format!("warning: {model} {warning}")), "{said}");
    }
}

#[test]
fn damaged_states_are_named_and_computed_again() {
    let workplace = with_models();
    let first = teacher(&workplace, &["--run-dir", "first"]);
    assert!(first.contains("computed in"), "{first}");
    let folder = workplace.path().join("stores/fusion");
    let files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [states] = &files[..] else { panic!("one file of states, found {files:?}") };
    let good = std::fs::read(states).unwrap();
    let mut bytes = good.clone();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    std::fs::write(states, bytes).unwrap();
    let second = teacher(&workplace, &["--run-dir", "second"]);
    let name = states.file_name().unwrap().to_string_lossy().into_owned();
    assert!(second.contains(&format!("{name}: the states of graphs")) && second.contains("computed in"), "{second}");
    assert_eq!(std::fs::read(states).unwrap(), good);
    let digest = |run: &str| json(&workplace.path().join(run).join("summary.json"))["weights_digest"].clone();
    assert_eq!(digest("first"), digest("second"));
}

#[test]
fn settings_change_what_is_learned() {
    let workplace = with_models();
    // With the list of known IDs, the agent would have nothing to learn after the first epoch.
    workplace.success(&[&["classifier", "--preset", "gat,student", "--foreign-ids", "false"], GAT, SHORT].concat());
    let digest = |settings: &[&str]| {
        let student = &["fusion", "--preset", "dqn,student", "--use-kd", "false", "--hidden", "8", "--max-epochs", "3"];
        workplace.success(&[&student[..], &["--resamples", "0", "--run-dir", "run"], settings].concat());
        let summary = json(&workplace.path().join("run/summary.json"));
        std::fs::remove_dir_all(workplace.path().join("run")).unwrap();
        summary["weights_digest"].as_str().unwrap().to_owned()
    };
    let variants: &[&[&str]] = &[
        &[],
        &["--fusion-gamma", "0.5"],
        &["--fusion-gamma", "0.5", "--target-update-steps", "1"],
        &["--replay-capacity", "20"],
        &["--epsilon-start", "0.5"],
        &["--epsilon-end", "0.5"],
        &["--epsilon-epochs", "1"],
        &["--reward-correctness", "2"],
        &["--reward-agreement", "1"],
        &["--reward-confidence", "0"],
        &["--reward-balance", "1"],
        &["--seed", "7"],
        &["--fusion", "bandit"],
        &["--fusion", "bandit", "--bandit-exploration", "0.1"],
        &["--fusion", "bandit", "--bandit-ridge", "10"],
    ];
    let digests: Vec<String> = variants.iter().map(|settings| digest(settings)).collect();
    for (index, settings) in variants.iter().enumerate() {
        let same: Vec<_> = (0..index).filter(|&other| digests[other] == digests[index]).collect();
        assert!(
            same.is_empty(),
            "{settings:?} and {:?} learn the same",
            same.iter().map(|&at| variants[at]).collect::<Vec<_>>()
        );
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let workplace = with_models();
    let student = ["fusion", "--preset", "dqn,student", "--use-kd", "false"];
    for (arguments, message) in [
        (&["--heads", "4"][..], "reads states, not graphs"),
        (&["--bandit-ridge", "2"], "add --fusion bandit"),
        (&["--fusion", "bandit", "--fusion-gamma", "0.5"], "fusion is bandit"),
        (&["--epsilon-start", "0.1", "--epsilon-end", "0.5"], "is above epsilon_start"),
        (
            &["--reward-correctness", "0", "--reward-agreement", "0", "--reward-confidence", "0"],
            "would ignore the labels",
        ),
        (&["--fusion-vgae", "runs/small/gat_student_normal/1"], "this is a gat, expected a vgae"),
        (&["--fusion-gat", "nowhere"], "nowhere: does not exist"),
    ] {
        let said = workplace.refused(&[&student[..], arguments].concat());
        assert!(said.contains(message), "{arguments:?}: {said}");
    }
    let said = workplace.refused(&["fusion", "--preset", "gat,student"]);
    assert!(said.contains("trains a dqn") && said.contains("--preset dqn,student"), "{said}");
    let said = workplace.refused(&["autoencoder", "--preset", "vgae,student", "--fusion-gamma", "0.5"]);
    assert!(said.contains("only `kdgat fusion` reads it"), "{said}");
    let said = workplace.refused(&["fusion", "--preset", "dqn,teacher", "--use-kd", "false"]);
    assert!(said.contains("kdgat autoencoder --preset vgae,teacher"), "{said}");
    assert!(said_once(&workplace).contains("no finished"), "{}", said_once(&workplace));
}

#[test]
fn a_model_of_another_kind_is_named_with_what_is_wanted() {
    let workplace = with_models();
    teacher(&workplace, &["--run-dir", "agent"]);
    let said = workplace.refused(&["detect", "--model", "agent", "frames.log"]);
    assert!(said.contains("best.safetensors: is an agent of `kdgat fusion`; name a vgae or gat"), "{said}");
    let (vgae, gat) = ("runs/small/vgae_student_autoencoder/1", "runs/small/gat_student_normal/1/best.safetensors");
    let said = workplace.refused(&["fusion", "--preset", "dqn,student", "--teacher-path", vgae]);
    assert!(said.contains("is a model (vgae or gat); name an agent"), "{said}");
    let said = workplace.refused(&["autoencoder", "--preset", "vgae,student", "--teacher-path", gat]);
    assert!(said.contains(&format!("--teacher-path {gat}: this is a gat")), "{said}");
}

/// Message when there is nothing to fuse.
fn said_once(_: &Workplace) -> String {
    let empty = Workplace::new();
    said(&empty.run(&["fusion", "--preset", "dqn,student", "--use-kd", "false"]))
}
