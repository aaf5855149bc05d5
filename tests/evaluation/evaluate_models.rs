//! `kdgat evaluate` on the runs of a small dataset.

use std::collections::BTreeSet;
use std::sync::Arc;

use kdgat::can::Dataset;
use kdgat::evaluate::{METRICS, Scorer, TrainedModel};
use kdgat::graph::{BuildOptions, Split, Store, assemble, open_or_build};
use kdgat::nn::attention::Backend;
use kdgat::nn::layers::Mode;
use kdgat::nn::{Architecture, GivenTensors, Scope, Vgae, vgae};
use serde_json::Value;
use support::evaluate::{Bench, KNOWN, UNKNOWN, stderr};
use support::graph::{traffic, write_log};
use tch::Device;

/// A graph has the same score, bit by bit, in any batch.
#[test]
fn scores_do_not_depend_on_the_batch() {
    tch::set_num_threads(1);
    let bench = Bench::new();
    let store = Arc::new(kdgat::graph::Store::open(bench.store.path()).unwrap());
    let graphs = store.select(Split::Test, None);
    for run in [bench.gat("gat_student_normal", 1, 1), bench.vgae("vgae_student_autoencoder", 1, 1)] {
        let model = TrainedModel::read(&run).unwrap();
        let scorer = Scorer::new(&model, Device::Cpu, Backend::Auto).unwrap();
        let together = scorer.score_store(&store, &graphs).unwrap();
        for (&graph, together) in graphs.iter().zip(&together) {
            let batch = assemble(&store, &[graph], &scorer.assemble_options()).unwrap();
            let alone = scorer.raw_scores(&batch).unwrap()[0];
            let explained = scorer.explain(&batch, None).unwrap();
            assert_eq!(alone, explained.window.raw, "{}: graph {graph}, explained", model.name);
            assert!(batch.can_ids.contains(&explained.can_id) && explained.contribution.is_finite());
            assert_eq!(alone, *together, "{}: graph {graph}, alone and in a batch of 512", model.name);
        }
    }
}

/// A window in a report has the score of the evaluation, and the attention weights of each node sum to one.
#[test]
fn a_dissected_graph_has_its_score_and_whole_attention() {
    tch::set_num_threads(1);
    let bench = Bench::new();
    let graphs = bench.store.select(Split::Test, None);
    for run in [bench.gat("gat_student_normal", 1, 1), bench.vgae("vgae_student_autoencoder", 1, 1)] {
        let model = TrainedModel::read(&run).unwrap();
        let kernels = [Backend::Fused, Backend::Composed];
        let [fused, composed] = kernels.map(|kernel| Scorer::new(&model, Device::Cpu, kernel).unwrap());
        let batch = assemble(&bench.store, &graphs[..1], &fused.assemble_options()).unwrap();
        let (found, other) = (fused.dissect(&batch).unwrap(), composed.dissect(&batch).unwrap());
        assert_eq!(found.raw, fused.raw_scores(&batch).unwrap()[0], "{}", model.name);
        assert_eq!(found.by_node.len() as i64, batch.num_nodes());
        assert_eq!(found.edges.len() as i64, batch.adjacency.num_edges());
        let mut paid = vec![0.0f64; batch.num_nodes() as usize];
        for (edge, same) in found.edges.iter().zip(&other.edges) {
            paid[edge.1] += f64::from(edge.2);
            assert_eq!((edge.0, edge.1), (same.0, same.1));
            assert!((edge.2 - same.2).abs() < 1e-5, "{}: {edge:?} fused, {same:?} composed", model.name);
        }
        assert!(paid.iter().all(|sum| (sum - 1.0).abs() < 1e-5), "{}: {paid:?}", model.name);
    }
}

/// The autoencoder's score is the model's difficulty.
#[test]
fn an_autoencoder_scores_by_difficulty() {
    tch::set_num_threads(1);
    let bench = Bench::new();
    let model = TrainedModel::read(&bench.vgae("vgae_student_autoencoder", 1, 1)).unwrap();
    let scorer = Scorer::new(&model, Device::Cpu, Backend::Auto).unwrap();
    let Architecture::Vgae(config) = &model.description.architecture else { panic!("a VGAE was written") };
    let tensors = model.state.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone()));
    let vgae = Vgae::new(Scope::root(&mut GivenTensors::new(tensors)), config, Backend::Auto).unwrap();
    let graphs = bench.store.select(Split::Test, None);
    let batch = assemble(&bench.store, &graphs, &scorer.assemble_options()).unwrap();
    let output = tch::no_grad(|| vgae.forward(&batch, Mode::Evaluation)).unwrap();
    let expected = Vec::<f32>::try_from(vgae::difficulty(&output, &batch).unwrap().total).unwrap();
    assert_eq!(scorer.raw_scores(&batch).unwrap(), expected);
}

#[test]
fn all_models_of_a_dataset_are_scored_and_their_thresholds_recorded() {
    let bench = Bench::new();
    bench.gat("gat_student_normal", 1, 1);
    bench.gat_with("gat_student_normal", 2, 2, None);
    bench.vgae("vgae_student_autoencoder", 1, 1);
    // An unfinished run is not evaluated.
    let unfinished = bench.vgae("vgae_student_autoencoder", 2, 2);
    std::fs::remove_file(unfinished.join("summary.json")).unwrap();
    let text = bench.evaluate(&["--resamples", "100", "--calibrate-seconds", "1", "--predictions", "predictions.csv"]);
    assert!(text.contains("mean ± standard deviation over runs") && text.contains(UNKNOWN), "{text}");
    let wide = text.lines().find(|line| line.chars().count() > 120);
    assert!(text.contains("false alarms/h  episodes  until found"), "{text}");
    assert_eq!(wide, None, "a line is longer than a terminal's");

    let rows = bench.rows_of_models("runs/small/evaluation/metrics.csv");
    let models: std::collections::BTreeSet<&str> = rows.iter().map(|row| row["model"].as_str()).collect();
    let expected = [
        "gat_student_normal/1",
        "gat_student_normal/1 + vgae_student_autoencoder/1",
        "gat_student_normal/2",
        "gat_student_normal/2 + vgae_student_autoencoder/1",
        "vgae_student_autoencoder/1",
    ];
    assert_eq!(models.into_iter().collect::<Vec<_>>(), expected);
    for row in &rows {
        for metric in METRICS {
            let value = |suffix: &str| row[&format!("{metric}{suffix}")].parse::<f64>();
            if let (Ok(value), Ok(low), Ok(high)) = (value(""), value("_low"), value("_high")) {
                assert!(low <= value + 0.05 && value <= high + 0.05, "{metric} {value} outside {low} to {high}");
            }
        }
        let count = |name: &str| row[name].parse::<u64>().unwrap();
        assert_eq!(
            count("graphs"),
            ["true_positives", "false_positives", "true_negatives", "false_negatives"].map(count).iter().sum::<u64>()
        );
        assert!(count("parameters") > 1000 && row["frames_per_second"].parse::<f64>().unwrap() > 0.0);
    }
    let of = |model: &str, scope: &str, folder: &str, calibration: &str| {
        rows.iter()
            .filter(|row| {
                row["model"] == model
                    && row["scope"] == scope
                    && row["folder"] == folder
                    && row["calibration"] == calibration
            })
            .collect::<Vec<_>>()
    };
    // At the recorded threshold and at 0.5, for the folder and for each of its two files.
    assert_eq!(of("gat_student_normal/1", "folder", KNOWN, "none").len(), 2);
    assert_eq!(of("gat_student_normal/1", "file", KNOWN, "none").len(), 4);
    assert_eq!(of("vgae_student_autoencoder/1", "file", KNOWN, "none").len(), 2);
    // The calibration windows, and the one that shares a frame with the last of them, are excluded from the test before and after.
    let (before, after) =
        (of("gat_student_normal/1", "file", UNKNOWN, "none"), of("gat_student_normal/1", "file", UNKNOWN, "first 1 s"));
    assert_eq!((before.len(), after.len()), (2, 1));
    assert_eq!(
        (before[0]["graphs"].as_str(), after[0]["graphs"].as_str()),
        ("58", "58"),
        "79 windows, 20 in the first second, one beside them"
    );
    let roc_auc = |rows: &[&std::collections::HashMap<String, String>]| rows[0]["roc_auc"].parse::<f64>().unwrap();
    assert!(roc_auc(&after) > roc_auc(&before), "the car's own list of IDs finds those of the attack");
    let alone = "gat_student_normal/2";
    let (before, after) = (of(alone, "file", UNKNOWN, "none"), of(alone, "file", UNKNOWN, "first 1 s"));
    assert_eq!(before[0]["roc_auc"], after[0]["roc_auc"], "without a list, one car on another scale keeps its order");

    // A folder has the sums of its files, and the false alarms per hour are those of its counts.
    let number = |row: &std::collections::HashMap<String, String>, name: &str| row[name].parse::<f64>().unwrap();
    for folder in of(alone, "folder", KNOWN, "none") {
        let files = of(alone, "file", KNOWN, "none");
        let files: Vec<_> =
            files.into_iter().filter(|row| row["threshold_method"] == folder["threshold_method"]).collect();
        for name in ["hours_without_attack", "episodes", "episodes_found"] {
            let sum: f64 = files.iter().map(|row| number(row, name)).sum();
            assert!((number(folder, name) - sum).abs() < 1e-12, "{name}: {sum}");
        }
        let rate = number(folder, "false_positives") / number(folder, "hours_without_attack");
        assert!((number(folder, "false_alarms_per_hour") - rate).abs() < 1e-6 * rate.max(1.0), "{rate}");
        // Both files have one attack, and a window lasts 0.05 s: 49 of 59 windows and 19 of 29 are attack-free.
        assert_eq!(number(folder, "episodes"), 2.0);
        assert!((number(folder, "hours_without_attack") * 3600.0 - 0.05 * 68.0).abs() < 1e-6, "{folder:?}");
    }

    let predictions = bench.rows_of_models("predictions.csv");
    let tested =
        |model: &str| predictions.iter().filter(|row| row["model"] == model && row["calibration"] == "none").count();
    assert_eq!(tested("gat_student_normal/1"), 59 + 29 + 58);
    for row in &predictions {
        let number = |name: &str| row[name].parse::<f64>().unwrap();
        assert_eq!(row["predicted"] == "1", number("score") > number("threshold"), "{row:?}");
    }

    // The threshold is chosen once, then read: file and decisions do not change.
    let thresholds = bench.path().join("runs/small/gat_student_normal/1/thresholds.json");
    let recorded = std::fs::read(&thresholds).unwrap();
    bench.evaluate(&["--resamples", "0", "runs/small/gat_student_normal/1", "--output", "again"]);
    assert_eq!(std::fs::read(&thresholds).unwrap(), recorded);
    let again = bench.rows_of_models("again/metrics.csv");
    let first = of("gat_student_normal/1", "folder", KNOWN, "none")[0];
    let same = again.iter().find(|row| row["scope"] == "folder" && row["folder"] == KNOWN).unwrap();
    for column in ["threshold_method", "true_positives", "false_positives", "f1", "roc_auc"] {
        assert_eq!(first[column], same[column], "{column}");
    }
    assert!(same["f1_low"].is_empty());
    bench.evaluate(&[
        "--resamples",
        "0",
        "--threshold",
        "youden",
        "runs/small/gat_student_normal/1",
        "--output",
        "again",
    ]);
    let file: serde_json::Value = serde_json::from_slice(&std::fs::read(&thresholds).unwrap()).unwrap();
    let methods: Vec<&str> =
        file["thresholds"].as_array().unwrap().iter().map(|one| one["method"].as_str().unwrap()).collect();
    assert_eq!(methods, ["fpr:0.001", "youden"]);
}

#[test]
fn what_cannot_be_evaluated_is_named() {
    let bench = Bench::new();
    let run = bench.gat("gat_student_normal", 1, 1);
    for (arguments, message) in [
        (vec!["nowhere"], "nowhere: does not exist; name a run's folder"),
        (vec!["small"], "holds no best.safetensors"),
        (vec!["--window", "50", "runs/small/gat_student_normal/1"], "the store has windows of 50; use --window 100"),
        (vec!["--calibrate-seconds", "10", "--threshold", "youden"], "--threshold fpr:0.001"),
        (vec!["--calibrate-seconds", "-1"], "must be above 0"),
        (vec!["--resamples", "100000000000"], "is not in 0..=1000000"),
        (vec!["--predictions", "small"], "small: cannot write"),
        (vec!["--runs-dir", "empty"], "no finished run of dataset small"),
    ] {
        let output = bench.kdgat(&[&["evaluate", "--data", "small", "--device", "cpu"], arguments.as_slice()].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(message), "{arguments:?}: {}", stderr(&output));
    }
    std::fs::write(run.join("thresholds.json"), "{\"format_version\": 7, \"thresholds\": []}").unwrap();
    let output = bench.kdgat(&["evaluate", "--data", "small", "runs/small/gat_student_normal/1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("thresholds.json: is format version 7"), "{}", stderr(&output));
}

#[test]
fn a_calibration_of_nothing_is_said() {
    let bench = Bench::new();
    let run = bench.gat("gat_student_normal", 1, 1);
    let data = bench.path().join("plain");
    write_log(&data, "train_01_attack_free", "drive-1.csv", &traffic(6_000, 12, 1, 0..0));
    write_log(&data, "train_02_with_attacks", "fuzzing.csv", &traffic(6_000, 12, 2, 4_000..5_800));
    write_log(&data, KNOWN, "fuzzing.csv", &traffic(6_000, 12, 3, 2_000..3_000));
    for (data, is_said) in [("plain", true), ("small", false)] {
        let arguments = ["evaluate", "--data", data, "--device", "cpu", "--resamples", "0", "--calibrate-seconds", "1"];
        let output = bench.kdgat(&[&arguments[..], &[run.to_str().unwrap()]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(stderr(&output).contains("nothing was calibrated"), is_said, "{data}: {}", stderr(&output));
    }
}

/// The decisions of `kdgat detect` do not depend on thresholds tried in between, and it prints which threshold it uses.
#[test]
fn the_deciding_threshold_is_a_rules_and_is_said() {
    let bench = Bench::new();
    let run = bench.gat("gat_student_normal", 1, 1);
    let log = bench.log(KNOWN, "fuzzing.csv");
    let detect = || {
        let output = bench.kdgat(&["detect", "--model", run.to_str().unwrap(), log.to_str().unwrap()]);
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output).lines().find(|line| line.starts_with("attacks: ")).unwrap().to_owned()
    };
    let methods = || -> Vec<String> {
        let file = std::fs::read(run.join("thresholds.json")).unwrap();
        let file: serde_json::Value = serde_json::from_slice(&file).unwrap();
        file["thresholds"].as_array().unwrap().iter().map(|one| one["method"].as_str().unwrap().to_owned()).collect()
    };
    assert!(detect().contains("scores above 0.5 (no threshold is recorded"), "{}", detect());
    let tried = |threshold: &str| {
        bench.evaluate(&["--resamples", "0", "--threshold", threshold, "runs/small/gat_student_normal/1"]);
        detect()
    };
    assert_eq!(tried("0.9"), "attacks: scores above 0.9 (0.9, recorded on small)");
    let youden = tried("youden");
    assert!(youden.contains("(youden, recorded on small)"), "{youden}");
    assert_eq!(tried("0.9"), youden, "a number that was tried");
    assert_eq!(methods(), ["youden", "0.9"], "the one that was used last stands at the end");
    assert!(tried("fpr:0.1").contains("(fpr:0.1, "));
    assert_eq!(tried("youden"), youden, "the rule that was used last");
    assert!(tried("fpr:0.001").contains("(fpr:0.001, "));
    assert!(tried("youden").contains("(fpr:0.001, "), "the default rule comes before others");
}

/// One drive calibrates the others of its car, and is not tested with its own calibration.
#[test]
fn a_drive_calibrates_the_other_drives_of_its_car() {
    let bench = Bench::new();
    let run = bench.gat("gat_student_normal", 1, 1);
    let from = format!("{KNOWN}/fuzzing.csv");
    let judge = |more: &[&str]| {
        let arguments = ["--resamples", "0", "--output", "judged", run.to_str().unwrap()];
        bench.evaluate(&[&arguments[..], more].concat());
        bench.rows_of_models("judged/metrics.csv")
    };
    let rows = judge(&["--calibrate-seconds", "1", "--calibrate-from", &from]);
    let name = format!("first 1 s of {from}");
    let calibrated: Vec<&str> = rows
        .iter()
        .filter(|row| row["calibration"] == name && row["scope"] == "file")
        .map(|row| row["file"].as_str())
        .collect();
    assert_eq!(calibrated, ["spoofing.csv"]);
    let graphs = |scope: &str, file: &str| {
        let row = rows.iter().find(|row| row["scope"] == scope && row["file"] == file && row["folder"] == KNOWN);
        row.unwrap()["graphs"].parse::<u64>().unwrap()
    };
    assert_eq!(
        graphs("folder", ""),
        graphs("file", "fuzzing.csv") + graphs("file", "spoofing.csv"),
        "nothing is left out"
    );

    let refused = |arguments: &[&str], text: &str| {
        let output = bench.kdgat(&[&["evaluate", "--data", "small", "--device", "cpu"], arguments].concat());
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(text), "{}", stderr(&output));
    };
    let missing = format!("{KNOWN}/fuzing.csv");
    refused(&["--calibrate-seconds", "1", "--calibrate-from", &missing], &format!("did you mean {from}?"));
    refused(&["--calibrate-from", &from], "add --calibrate-seconds SECONDS");
}

#[test]
fn a_run_named_in_several_ways_counts_once() {
    let bench = Bench::new();
    bench.gat("gat_student_normal", 1, 1);
    let run = "runs/small/gat_student_normal/1";
    let names = [run.to_owned(), format!("{run}/"), format!("{run}/best.safetensors")];
    let arguments = ["evaluate", "--data", "small", "--device", "cpu", "--resamples", "0", "--output", "once"];
    let output = bench.kdgat(&[&arguments[..], &names.each_ref().map(String::as_str)].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(
        stderr(&output).matches("is already in the list; it is evaluated once").count(),
        2,
        "{}",
        stderr(&output)
    );
    let folders = bench.rows_of_models("once/metrics.csv").into_iter().filter(|row| row["scope"] == "folder").count();
    assert_eq!(folders, 4, "two folders at two thresholds");
}

#[test]
fn a_threshold_that_cannot_be_recorded_is_used_all_the_same() {
    let bench = Bench::new();
    let run = bench.gat("gat_student_normal", 1, 1);
    std::os::unix::fs::symlink("/absent/thresholds.json", run.join("thresholds.json")).unwrap();
    let arguments = ["evaluate", "--data", "small", "--device", "cpu", "--resamples", "0"];
    let output = bench.kdgat(&[&arguments[..], &[run.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("cannot record the threshold"), "{}", stderr(&output));
    assert!(!bench.rows("runs/small/evaluation/metrics.csv").is_empty());
}

/// Too few windows are not used for calibration, as in `kdgat calibrate`; the calibrated row of a folder is of its calibrated files.
#[test]
fn files_with_too_few_windows_are_not_calibrated() {
    let bench = Bench::new();
    let run = bench.gat("gat_student_normal", 1, 1);
    let evaluate = |seconds: &str| {
        let arguments = ["evaluate", "--data", "small", "--device", "cpu", "--resamples", "0", "--calibrate-seconds"];
        let output = bench.kdgat(&[&arguments[..], &[seconds, run.to_str().unwrap()]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let rows = bench.rows_of_models("runs/small/evaluation/metrics.csv");
        let of_unknown = |row: &_| {
            let row: &std::collections::HashMap<String, String> = row;
            row["folder"] == UNKNOWN && row["scope"] == "folder" && row["threshold_method"] == "fpr:0.001"
        };
        (stderr(&output), rows.into_iter().filter(of_unknown).collect::<Vec<_>>())
    };
    let (said, rows) = evaluate("0.0001");
    assert!(said.contains("other.csv is not calibrated: its first 0.0001 s have 1 attack-free windows"), "{said}");
    assert_eq!((rows.len(), rows[0]["graphs"].as_str()), (1, "79"), "nothing leaves the test");

    write_log(&bench.path().join("small"), UNKNOWN, "short.csv", &traffic(3_000, 20, 6, 200..2_900));
    let (said, rows) = evaluate("1");
    assert!(said.contains("short.csv is not calibrated") && said.contains("of those others only"), "{said}");
    let [raw, calibrated] = rows.as_slice() else { panic!("{} rows", rows.len()) };
    assert_eq!(calibrated["calibration"], "first 1 s");
    assert_eq!((raw["graphs"].as_str(), calibrated["graphs"].as_str()), ("87", "58"), "29 windows of short.csv");
    let all = bench.rows_of_models("runs/small/evaluation/metrics.csv");
    let alone = all.iter().find(|row| row["scope"] == "file" && row["calibration"] == "first 1 s").unwrap();
    for column in ["f1", "roc_auc", "true_positives", "false_alarms_per_hour", "episodes", "median_delay_seconds"] {
        assert_eq!(calibrated[column], alone[column], "{column}");
    }
}

/// Runs that differ in their data or teacher are not repetitions of each other, nor are models of unknown settings.
#[test]
fn only_repetitions_have_a_mean() {
    let bench = Bench::new();
    let runs = [1, 2].map(|seed| bench.gat("gat_student_normal", seed, seed));
    let says_mean = || {
        let names = runs.each_ref().map(|run| run.to_str().unwrap());
        let text = bench.evaluate(&[&["--resamples", "0"], &names[..]].concat());
        text.contains("mean ± standard deviation")
    };
    let set = |run: usize, inputs: Value| {
        let path = runs[run].join("config.json");
        let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        config["inputs"] = inputs;
        std::fs::write(path, config.to_string()).unwrap();
    };
    let inputs = |data: &str, teacher: &str| {
        let dataset = serde_json::json!({ "name": "small", "digest": data });
        serde_json::json!({ "dataset": dataset, "teacher_digest": teacher, "batch_graphs": data.len() })
    };
    assert!(says_mean());
    set(0, inputs("aaaa", "bbbb"));
    set(1, inputs("aaaa", "bbbb"));
    assert!(says_mean());
    set(1, inputs("aaaa", "cccc"));
    assert!(!says_mean(), "another teacher");
    set(1, inputs("dddd", "bbbb"));
    assert!(!says_mean(), "other data");
    runs.iter().for_each(|run| std::fs::remove_file(run.join("config.json")).unwrap());
    assert!(!says_mean(), "nobody knows how these were trained");
}

/// Windows that share a frame with a calibration window are not tested.
#[test]
fn calibration_windows_share_no_frame_with_tested_ones() {
    let bench = Bench::new();
    let run = bench.gat("gat_student_normal", 1, 1);
    let mut first = Vec::new();
    for stride in [25usize, 100] {
        let arguments =
            ["--stride", &stride.to_string(), "--resamples", "0", "--calibrate-seconds", "1", "--predictions"];
        bench.evaluate(&[&arguments[..], &["predictions.csv", run.to_str().unwrap()]].concat());
        let tested = bench.rows("predictions.csv").into_iter().filter(|row| row["file"] == "other.csv");
        first.push(tested.map(|row| row["first_frame"].parse::<usize>().unwrap()).min().unwrap());
    }
    // Frames arrive every 0.5 ms: the last calibration window reads frames 1975 to 2075 (1900 to 2000).
    assert_eq!(first, [2100, 2100]);
}

/// No threshold is chosen on frames that the model was trained on, however the store is cut.
#[test]
fn no_threshold_is_chosen_on_training_windows() {
    let bench = Bench::new();
    let run = bench.gat("gat_student_normal", 1, 1);
    let name = run.to_str().unwrap();
    let evaluate = |arguments: &[&str]| {
        bench
            .kdgat(&[&["evaluate", "--data", "small", "--device", "cpu", "--resamples", "0", name], arguments].concat())
    };
    let thresholds = || -> Vec<Value> {
        let file: Value = serde_json::from_slice(&std::fs::read(run.join("thresholds.json")).unwrap()).unwrap();
        file["thresholds"].as_array().unwrap().clone()
    };
    // Counted by frames, from the stores only.
    let options = BuildOptions { stride: 50, validation_fraction: 0.4, ..BuildOptions::default() };
    let dataset = Dataset::open(&bench.path().join("small")).unwrap();
    let other = open_or_build(&dataset, &options, &bench.path().join("stores"), &()).unwrap();
    let frames = |store: &Store, graph: u64| {
        let first = store.graph(graph).first_frame;
        (first..=first + 100).map(|frame| (store.log_of(graph).name.clone(), frame)).collect::<Vec<_>>()
    };
    let trained: BTreeSet<(String, u64)> =
        bench.store.select(Split::Train, None).into_iter().flat_map(|graph| frames(&bench.store, graph)).collect();
    let validation = other.select(Split::Validation, None);
    let is_held_out = |graph: &&u64| frames(&other, **graph).iter().all(|frame| !trained.contains(frame));
    let held_out = validation.iter().filter(is_held_out).count();
    assert!(0 < held_out && held_out < validation.len(), "{held_out} of {}", validation.len());

    let otherwise = ["--stride", "50", "--validation-fraction", "0.4"];
    let output = evaluate(&otherwise);
    assert!(output.status.success(), "{}", stderr(&output));
    let said = format!("on frames of {} of the {} validation windows", validation.len() - held_out, validation.len());
    assert!(stderr(&output).contains(&said), "{}", stderr(&output));
    let [recorded] = thresholds().try_into().unwrap();
    let count = |name: &str| recorded[name].as_u64().unwrap() as usize;
    assert_eq!(count("benign_graphs") + count("attack_graphs"), held_out);
    assert!(evaluate(&otherwise).status.success());
    assert_eq!(thresholds(), [recorded]);

    // A model trained on all windows takes its threshold from a store with its own validation split, or has none.
    std::fs::remove_file(run.join("thresholds.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&std::fs::read(run.join("config.json")).unwrap()).unwrap();
    config["config"]["data"]["validation_fraction"] = 0.001.into();
    std::fs::write(run.join("config.json"), config.to_string()).unwrap();
    let refused = evaluate(&["--stride", "50", "--validation-fraction", "0.2"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    let said = "it was trained on frames of all validation windows; evaluate it once with --stride 100";
    assert!(stderr(&refused).contains(said), "{}", stderr(&refused));
    assert!(evaluate(&["--validation-fraction", "0.2"]).status.success(), "the store that its digest names");
    let own = thresholds();
    assert!(evaluate(&["--stride", "50", "--validation-fraction", "0.2"]).status.success());
    assert_eq!(thresholds(), own);
}

/// A run is evaluated on its own dataset by default, and the program prints which one.
#[test]
fn the_dataset_of_a_run_is_the_default() {
    let bench = Bench::new();
    let (gat, vgae) = (bench.gat("gat_student_normal", 1, 1), bench.vgae("vgae_student_autoencoder", 1, 1));
    let model = gat.to_str().unwrap();
    let evaluate = ["evaluate", "--device", "cpu", "--resamples", "0", model];
    let output = bench.kdgat(&evaluate);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!bench.rows("runs/small/evaluation/metrics.csv").is_empty());
    let said = stderr(&bench.kdgat(&["export", model, "--examples", "3"]));
    let fusion = ["fusion", "--preset", "dqn,student", "--use-kd", "false", "--max-epochs", "1", "--device", "cpu"];
    let fused = ["--resamples", "0", "--fusion-gat", model, "--fusion-vgae", vgae.to_str().unwrap()];
    let fusion = bench.kdgat(&[&fusion[..], &fused].concat());
    assert!(fusion.status.success(), "{}", stderr(&fusion));
    let stores: Vec<String> = std::fs::read_dir(bench.path().join("stores"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("sim"))
        .collect();
    assert!(stores.is_empty(), "the simulated car was made: {stores:?}\n{said}");
    // The run's windowing is the default, too.
    let mut config: Value = serde_json::from_slice(&std::fs::read(gat.join("config.json")).unwrap()).unwrap();
    config["config"]["data"]["stride"] = 50.into();
    std::fs::write(gat.join("config.json"), config.to_string()).unwrap();
    assert!(bench.kdgat(&evaluate).status.success());
    let metrics: Value =
        serde_json::from_slice(&std::fs::read(bench.path().join("runs/small/evaluation/metrics.json")).unwrap())
            .unwrap();
    assert_eq!(metrics["stride"], 50, "{metrics}");
    config["config"]["data"]["stride"] = 100.into();
    std::fs::write(gat.join("config.json"), config.to_string()).unwrap();

    // Another dataset is named.
    let plain = bench.path().join("plain");
    write_log(&plain, "train_01_attack_free", "drive-1.csv", &traffic(6_000, 12, 1, 0..0));
    write_log(&plain, "train_02_with_attacks", "fuzzing.csv", &traffic(6_000, 12, 2, 4_000..5_800));
    write_log(&plain, KNOWN, "fuzzing.csv", &traffic(6_000, 12, 3, 2_000..3_000));
    let fused: Vec<&str> =
        [&["fusion", "--preset", "dqn,student", "--use-kd", "false", "--max-epochs", "1"], &fused[..]].concat();
    for arguments in [&evaluate[..], &["export", model, "--examples", "3"], &fused] {
        let output = bench.kdgat(&[arguments, &["--data", "plain"]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let said = "gat_student_normal/1 was trained on dataset 'small' and is used on 'plain' here";
        assert!(stderr(&output).contains(said), "{arguments:?}: {}", stderr(&output));
    }
    // Runs of several datasets have no common default.
    config["config"]["data"]["data"] = "plain".into();
    std::fs::write(gat.join("config.json"), config.to_string()).unwrap();
    let output = bench.kdgat(&[&evaluate[..], &[vgae.to_str().unwrap()]].concat());
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains(" on small; name the dataset with --data"), "{}", stderr(&output));
    // For a missing dataset, or one without a recorded folder, `--data` is requested.
    config["config"]["data"]["data"] = "gone".into();
    std::fs::write(gat.join("config.json"), config.to_string()).unwrap();
    for said in ["was trained on gone: ", "was trained on dataset 'small', whose folder it does not record: "] {
        let output = bench.kdgat(&evaluate);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(said), "{}", stderr(&output));
        assert!(stderr(&output).contains("name the dataset's folder with --data"), "{}", stderr(&output));
        std::fs::rename(bench.path().join("small"), bench.path().join("elsewhere")).ok();
        std::fs::remove_file(gat.join("config.json")).ok();
    }
}

/// A false-positive rate below the resolution of the validation windows gives a warning.
#[test]
fn a_rate_that_the_windows_cannot_show_is_called_out() {
    let bench = Bench::new();
    let run = bench.gat("gat_student_normal", 1, 1);
    let said = |threshold: &str| {
        let output = bench.kdgat(&["evaluate", "--resamples", "0", "--threshold", threshold, run.to_str().unwrap()]);
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    let windows = bench.store.select(Split::Validation, Some(false)).len();
    let text = said("fpr:0.0001");
    let expected = format!(
        "--threshold fpr:0.0001: {windows} attack-free validation windows support no false-positive rate below fpr:"
    );
    let smallest = text.split_once(&expected).unwrap_or_else(|| panic!("{text}")).1.split_once(';').unwrap().0;
    assert!((smallest.parse::<f64>().unwrap() * windows as f64 - 1.0).abs() < 0.1, "{smallest}, {windows} windows");
    assert!(!said(&format!("fpr:{smallest}")).contains("support no false-positive rate"));
    assert!(!said("0.5").contains("support no false-positive rate"));
}
