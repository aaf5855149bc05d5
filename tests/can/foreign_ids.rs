//! The list of known IDs as evidence in addition to a classifier.

use std::collections::HashMap;

use kdgat::can::Frame;
use kdgat::evaluate::{Scorer, TrainedModel};
use kdgat::graph::{ForeignCounts, ForeignIds, Split, Store, Vocabulary, assemble};
use kdgat::nn::attention::Backend;
use serde_json::Value;
use support::evaluate::{Bench, KNOWN, UNKNOWN, candump, frames_of, stderr, stdout};
use support::stage::Workplace;
use tch::Device;

/// In the data of the bench all attacks use IDs outside the vocabulary, and all other traffic uses known IDs.
#[test]
fn a_foreign_id_adds_its_evidence_and_a_known_one_nothing() {
    tch::set_num_threads(1);
    let bench = Bench::new();
    let [listed, alone] = [bench.gat("gat_student_normal", 1, 1), bench.gat_with("gat_student_normal", 2, 1, None)]
        .map(|run| Scorer::new(&TrainedModel::read(&run).unwrap(), Device::Cpu, Backend::Auto).unwrap());
    let counted = listed.id_list().unwrap().counted();
    assert_eq!(alone.id_list().map(|list| list.counted()), None);
    let graphs = bench.store.select_folder(KNOWN, Split::Test, None);
    let batch = assemble(&bench.store, &graphs, &listed.assemble_options()).unwrap();
    let (with, without) = (listed.raw_scores(&batch).unwrap(), alone.raw_scores(&batch).unwrap());
    let logits =
        [&listed, &alone].map(|scorer| Vec::<f32>::try_from(scorer.answers(&batch).unwrap().flatten(0, -1)).unwrap());
    let mut raised = 0;
    for (position, &graph) in graphs.iter().enumerate() {
        let attack = bench.store.graph(graph).attack;
        let expected = if attack { counted.evidence() as f32 } else { 0.0 };
        raised += u64::from(attack);
        assert_eq!(with[position], without[position] + expected, "graph {graph}");
        assert_eq!(logits[0][2 * position], logits[1][2 * position], "the logit of normal");
        assert_eq!(logits[0][2 * position + 1], logits[1][2 * position + 1] + expected, "the logit of an attack");
        // For a single graph, the evidence is divided among the nodes with foreign IDs.
        let one = assemble(&bench.store, &[graph], &listed.assemble_options()).unwrap();
        let [with, without] = [&listed, &alone].map(|scorer| scorer.dissect(&one).unwrap().by_node);
        let added: Vec<f32> = with.iter().zip(&without).map(|(with, without)| with - without).collect();
        let foreign =
            |node: usize| listed.assemble_options().vocabulary.index_of(one.can_ids[node]) == Vocabulary::UNKNOWN;
        let sum: f32 = added.iter().sum();
        assert!((sum - expected).abs() < 1e-4, "graph {graph}: {sum} of {expected}");
        assert!((0..added.len()).all(|node| foreign(node) || added[node] == 0.0), "graph {graph}: {added:?}");
    }
    assert!(raised > 10 && raised < graphs.len() as u64 && counted.evidence() > 2.0, "{raised}, {counted:?}");
}

/// The list changes no weight: it is counted on validation windows and stored with the weights.
#[test]
fn a_training_counts_validation_windows_and_learns_the_same_without() {
    let place = Workplace::new();
    let normal = [
        "classifier",
        "--preset",
        "gat,teacher",
        "--hidden",
        "8",
        "--layers",
        "2",
        "--heads",
        "2",
        "--max-epochs",
        "2",
    ];
    place.run(&[&normal[..], &["--run-dir", "alone", "--foreign-ids", "false"]].concat());
    place.run(&[&normal[..], &["--run-dir", "listed"]].concat());
    place.run(&["compare", "listed", "alone", "--tolerance", "0"]);
    let store = std::fs::read_dir(place.path("stores")).unwrap().map(|entry| entry.unwrap().path());
    let store = Store::open(&store.into_iter().find(|path| path.join("store.json").exists()).unwrap()).unwrap();
    let counted = |split| ForeignIds::count(&store, &store.select(split, None)).unwrap();
    assert_eq!(place.description("alone").foreign_ids, None);
    assert_eq!(place.description("listed").foreign_ids, counted(Split::Validation));
    assert!(counted(Split::Validation).is_some() && counted(Split::Validation) != counted(Split::Train));
    let counts = ForeignCounts::of(&store, &store.select(Split::Validation, None)).unwrap();
    assert!(!counts.has_seen_none() && counts.shares() == counted(Split::Validation));
    let log = std::fs::read_to_string(place.path("listed/log.txt")).unwrap();
    assert!(log.contains(&counts.text()), "{log}");
    let of_normals = store.select(Split::Validation, Some(false));
    assert_eq!(ForeignIds::count(&store, &of_normals).unwrap(), None, "nothing is known of attacks then");

    // A registered teacher is evaluated like the run that trained it.
    let evaluate = ["evaluate", "listed", "teachers/tiny/gat", "--resamples", "0", "--output", "judged"];
    place.run(&evaluate);
    let rows = csv::Reader::from_path(place.path("judged/metrics.csv")).unwrap().into_deserialize();
    let rows: Vec<HashMap<String, String>> = rows.map(Result::unwrap).collect();
    let of = |model: &str| -> Vec<String> {
        let own = rows.iter().filter(|row| row["model"].contains(model));
        own.map(|row| format!("{} {} {}", row["folder"], row["threshold"], row["roc_auc"])).collect()
    };
    let (listed, registered) = (of("listed"), of("teacher"));
    assert!(!listed.is_empty() && listed == registered, "{listed:?}\n{registered:?}");

    // A resumed run uses the list it began with, and an autoencoder has none.
    let resume = ["--run-dir", "listed", "--resume", "--foreign-ids", "false"];
    let refusal = place.refused(&[&normal[..], &resume].concat());
    assert!(refusal.contains("foreign_ids (it was true, now false) changed"), "{refusal}");
    let autoencoder = ["autoencoder", "--preset", "vgae,student", "--use-kd", "false", "--foreign-ids", "true"];
    let refusal = place.refused(&autoencoder);
    assert!(refusal.contains("belongs to the classifier"), "{refusal}");
    // Outside training the flag is refused, and a model's list does not change.
    let refusal = place.refused(&["evaluate", "listed", "--foreign-ids", "false"]);
    assert!(refusal.contains("does not read it"), "{refusal}");
}

/// After calibration on a car, frames with IDs that the car does not have are detected.
#[test]
fn another_car_is_read_by_its_own_list() {
    let bench = Bench::new();
    let run = bench.gat("gat_student_normal", 1, 1);
    let model = run.strip_prefix(bench.path()).unwrap().display().to_string();
    let mut frames = frames_of(&bench.log(UNKNOWN, "other.csv"));
    // A single forged frame in the last window.
    frames[7850].can_id = 0x6f3;
    frames[7850].attack = true;
    std::fs::write(bench.path().join("benign.log"), candump(&frames[..4000])).unwrap();
    std::fs::write(bench.path().join("drive.log"), candump(&frames)).unwrap();
    let calibrate = bench.kdgat(&["calibrate", "--model", &model, "--benign", "benign.log", "--least-seconds", "1"]);
    assert!(calibrate.status.success(), "{}", stderr(&calibrate));
    let said = stdout(&calibrate);
    assert!(
        said.contains("raises a window's log odds of an attack by 4.3; 0 of these 39 windows have a CAN ID"),
        "{said}"
    );
    let file: Value = serde_json::from_slice(&std::fs::read(run.join("calibrations/benign.json")).unwrap()).unwrap();
    assert_eq!(file["car"]["ids"]["known"].as_array().unwrap().len(), 20, "{file}");
    let detected = bench.kdgat(&["detect", "--model", &model, "--calibration", "benign", "drive.log"]);
    assert!(detected.status.success(), "{}", stderr(&detected));
    let mut wrong = 0;
    let lines: Vec<Value> = stdout(&detected).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (line, window) in lines.iter().zip(frames.chunks(100)) {
        wrong += u64::from((line["label"] == "attack") != window.iter().any(|frame| frame.attack));
    }
    assert!(wrong <= 1, "{wrong} of 80 windows are called what they are not");
    // The forged ID contributes most, although all IDs of this car are foreign to the model.
    assert_eq!((&lines[78]["label"], &lines[78]["id"]), (&"attack".into(), &"6F3".into()), "{}", lines[78]);

    // Uncalibrated, all IDs are unknown to the model, and the program prints this.
    let foreign = bench.kdgat(&["detect", "--model", &model, "--calibration", "absent.json", "drive.log"]);
    assert_eq!(foreign.status.code(), Some(2));
    let said = stderr(&bench.kdgat(&["detect", "--model", &model, "--threshold", "0.5", "drive.log"]));
    assert!(said.contains("79 of 79 windows have CAN IDs that the model's training data lacks"), "{said}");

    // With rare IDs in several parts of the traffic the list is uncertain; it must not raise the threshold for other attacks.
    let calibrate = |traffic: &[Frame]| {
        std::fs::write(bench.path().join("benign.log"), candump(traffic)).unwrap();
        let arguments = ["calibrate", "--model", &model, "--benign", "benign.log", "--output", "car.json"];
        let said = stdout(&bench.kdgat(&[&arguments[..], &["--replace", "--least-seconds", "1"]].concat()));
        let file: Value = serde_json::from_slice(&std::fs::read(bench.path().join("car.json")).unwrap()).unwrap();
        (said, file["threshold"].as_f64().unwrap())
    };
    let (_, usual) = calibrate(&frames[..4000]);
    for (place, id) in [(250, 0x6f0), (1250, 0x6f1), (2250, 0x6f2), (3050, 0x6f4), (3850, 0x6f5)] {
        frames[place].can_id = id;
    }
    let (said, threshold) = calibrate(&frames[..4000]);
    assert!(
        said.contains(
            "is no evidence of an attack: alone it would not lift a window above the threshold; 5 of these 39 windows"
        ),
        "{said}"
    );
    assert!((threshold / usual - 1.0).abs() < 0.5, "{threshold} where it was {usual}");
}

/// Thresholds and calibrations made with another list of the same weights are not used.
#[test]
fn what_was_chosen_beside_another_list_is_not_used() {
    let bench = Bench::new();
    let run = bench.gat("gat_student_normal", 1, 1);
    let model = run.strip_prefix(bench.path()).unwrap().display().to_string();
    bench.evaluate(&["--resamples", "0", &model]);
    let log = bench.log(KNOWN, "fuzzing.csv");
    std::fs::write(bench.path().join("benign.log"), candump(&frames_of(&log)[..1500])).unwrap();
    let detect = || bench.kdgat(&["detect", "--model", &model, "benign.log"]);
    let threshold = |text: String| text.lines().find(|line| line.contains("attack")).unwrap_or_default().to_owned();
    let recorded = threshold(stderr(&detect()));
    assert!(recorded.contains("recorded on small"), "{recorded}");
    assert!(
        bench
            .kdgat(&[
                "calibrate",
                "--model",
                &model,
                "--benign",
                "benign.log",
                "--output",
                "car.json",
                "--least-seconds",
                "0"
            ])
            .status
            .success()
    );

    bench.gat_with("gat_student_normal", 1, 1, Some(ForeignIds { of_attacks: 0.25, of_normals: 0.125 }));
    let other = threshold(stderr(&detect()));
    assert!(!other.contains("recorded on small"), "{other}");
    let refused = bench.kdgat(&["detect", "--model", &model, "--calibration", "car.json", "benign.log"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr(&refused).contains("car.json: was made for the same weights with another list of known IDs"),
        "{}",
        stderr(&refused)
    );
}
