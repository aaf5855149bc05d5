//! `kdgat data check` reports the content and problems of a dataset. Duplicates never stay in training.

use std::fs;
use std::path::Path;

use kdgat::can::check::{CheckOptions, CheckReport, Severity, check};
use kdgat::can::{Dataset, Frame, ReadOptions};
use kdgat::graph::{BuildOptions, Split, Store, open_or_build};
use support::cli::{Workplace, said};
use support::graph::{traffic, write_log};
use support::real_data::candata;
use support::starter;

fn report_of(root: &Path) -> CheckReport {
    let options =
        CheckOptions { format: None, read: ReadOptions::default(), window: 100, max_reject_share: 0.01, threads: 2 };
    check(&Dataset::open(root).unwrap(), &options)
}

fn assert_said(report: &CheckReport, severity: Severity, parts: &[&str]) {
    let found = report
        .findings
        .iter()
        .any(|finding| finding.severity == severity && parts.iter().all(|part| finding.text.contains(part)));
    assert!(found, "no {severity:?} with {parts:?} in {:#?}", report.findings);
}

#[test]
fn what_may_mislead_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("car");
    let benign = traffic(3000, 12, 1, 0..0);
    write_log(&root, "train_01_attack_free", "drive.csv", &benign);
    write_log(&root, "train_02_with_attacks", "attack.csv", &traffic(3000, 12, 2, 500..900));
    write_log(&root, "test_01", "copy.csv", &benign);
    // The same drive from a later frame on, with shifted times and a bad row.
    let shifted: Vec<Frame> =
        benign[333..2000].iter().map(|frame| Frame { timestamp: frame.timestamp + 5000.0, ..*frame }).collect();
    write_log(&root, "test_01", "shifted.csv", &shifted);
    let path = root.join("test_01/shifted.csv");
    fs::write(&path, fs::read_to_string(&path).unwrap() + "1.0,XYZ,00,0\n").unwrap();
    let mut backward = traffic(2000, 16, 3, 0..100);
    backward[1000].timestamp -= 0.25;
    backward[50].payload_length = 0;
    write_log(&root, "test_02_other", "backward.csv", &backward);

    let report = report_of(&root);
    assert_said(&report, Severity::Warning, &["the same log in training and in a test", "drive.csv", "copy.csv"]);
    assert_said(&report, Severity::Warning, &["shifted.csv: 100.0 % of its stretches of 20 benign frames"]);
    assert_said(&report, Severity::Warning, &["shifted.csv: 1 of 1668 rows left out", "line 1669", "XYZ"]);
    assert_said(
        &report,
        Severity::Note,
        &["backward.csv: time steps back 1 times, by up to 249.500 ms, first at line"],
    );
    assert_said(&report, Severity::Warning, &["1 frames have no payload, all of them attack frames"]);
    assert_said(&report, Severity::Note, &["test_02_other: IDs unseen in training send", "100.00 % of its attack"]);
    assert_said(&report, Severity::Note, &["training logs with attacks: 13.33 % of 3000 frames"]);
    let log = |name: &str| report.logs.iter().find(|log| log.name == name).unwrap();
    assert_eq!((log("drive.csv").ids, log("drive.csv").benign_overlap), (12, None));
    assert_eq!(log("backward.csv").unseen.ids, 4 + 16, "four of the car, and those of the attack");
    assert_eq!(log("backward.csv").benign_overlap, Some(0.0));
    assert!((log("drive.csv").duration_seconds - 1.4995).abs() < 1e-6);
    assert!(report.findings.is_sorted_by_key(|finding| finding.severity), "worst first");
}

/// A parked car sends the same payloads over and over: a detector trained on them takes driving for an attack.
#[test]
fn traffic_of_a_parked_car_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let warned = |different: usize| {
        let root = folder.path().join(different.to_string());
        let frame = |number: usize| {
            let value = (number % different) as u16;
            let mut payload = [0; 8];
            payload[..2].copy_from_slice(&value.to_be_bytes());
            let timestamp = 1000.0 + 0.0005 * number as f64;
            Frame { timestamp, can_id: 0x100 + (number % 20) as u32, payload, payload_length: 8, attack: false }
        };
        write_log(&root, "train_01_attack_free", "drive.csv", &(0..20_000).map(frame).collect::<Vec<_>>());
        report_of(&root).findings.iter().any(|finding| finding.text.contains("the car may be parked in them"))
    };
    assert_eq!([warned(200), warned(20_000)], [true, false]);
}

#[test]
fn the_command_prints_a_table_or_json_and_ends_with_2_when_a_log_cannot_be_read() {
    let workplace = Workplace::new();
    let text = workplace.success(&["data", "check"]);
    assert!(text.contains("benign overlap") && text.contains("note: test logs:"), "{text}");
    let root = workplace.path().join("car");
    write_log(&root, "train_01_attack_free", "drive.csv", &traffic(500, 12, 1, 0..0));
    fs::write(root.join("train_01_attack_free/broken.csv"), "no log at all\n").unwrap();
    let output = workplace.run(&["data", "check", "--data", "car", "--json"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["logs"][1]["report"]["frames"], 500);
    assert!(json["logs"][0]["error"].as_str().unwrap().contains("no known log format"), "{json}");
    assert_eq!(json["findings"][0]["severity"], "error");
}

#[test]
fn what_vanishes_is_said() {
    let workplace = Workplace::new();
    let root = workplace.path().join("car");
    write_log(&root, "train_01_attack_free", "drive.csv", &traffic(3000, 12, 1, 0..0));
    write_log(&root, "test_01_short", "a.csv", &traffic(100, 12, 2, 0..0));
    write_log(&root, "test_02", "long.csv", &traffic(500, 12, 3, 0..0));
    fs::create_dir_all(root.join("test_02/sub")).unwrap();
    fs::write(root.join("test_02/b.csv.bz2"), "x").unwrap();
    fs::write(root.join("test_02/capture_metadata.json"), "{}").unwrap();
    fs::create_dir_all(root.join("test_03_none")).unwrap();
    fs::write(root.join("test_03_none/c.blf"), "x").unwrap();
    let messages = [
        "test_01_short: 1 of 1 logs are too short for a window, which needs 101 frames (a.csv)",
        "test_02 holds files that are not taken for logs: b.csv.bz2, sub/; logs must",
        "test_03_none holds no log (found c.blf)",
    ];
    for command in ["check", "build", "build", "info"] {
        let said = workplace.success(&["data", command, "--data", "car", "--stores-dir", "stores"]);
        messages.iter().for_each(|message| assert!(said.contains(message), "{command}: {message} is not in\n{said}"));
        assert!(!said.contains("no test folder") && !said.contains("capture_metadata"), "{said}");
    }
    let said = workplace.success(&["data", "check", "--data", "car", "--window", "50"]);
    assert!(!said.contains("too short for a window"), "{said}");
    fs::remove_dir_all(root.join("test_01_short")).unwrap();
    fs::remove_dir_all(root.join("test_02")).unwrap();
    let report = report_of(&root);
    assert_said(&report, Severity::Warning, &["test_03_none holds no log"]);
    assert!(!report.findings.iter().any(|finding| finding.text == "no test folder"), "{:?}", report.findings);
}

#[test]
fn a_log_that_a_build_refuses_is_an_error() {
    let workplace = Workplace::new();
    let root = workplace.path().join("car");
    write_log(&root, "train_01_attack_free", "drive.csv", &traffic(950, 12, 1, 0..0));
    let path = root.join("train_01_attack_free/drive.csv");
    fs::write(&path, fs::read_to_string(&path).unwrap() + &"1.0,XYZ,00,0\n".repeat(50)).unwrap();
    for command in ["check", "build"] {
        let said = workplace.refused(&["data", command, "--data", "car", "--stores-dir", "stores"]);
        assert!(said.contains("50 of 1000 rows") && said.contains("--max-reject-share"), "{command}: {said}");
    }
    let said = workplace.success(&["data", "check", "--data", "car", "--max-reject-share", "0.06"]);
    assert!(said.contains("warning: train_01_attack_free/drive.csv: 50 of 1000 rows"), "{said}");
}

#[test]
fn labels_that_may_be_missing_are_said() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("car");
    write_log(&root, "train_01_attack_free", "drive.csv", &traffic(300, 12, 1, 0..0));
    write_log(&root, "train_02_with_attacks", "attack.csv", &traffic(300, 12, 2, 50..90));
    let path = root.join("train_02_with_attacks/attack.csv");
    fs::write(&path, fs::read_to_string(&path).unwrap().replacen("attack\n", "is_attack\n", 1)).unwrap();
    fs::create_dir_all(root.join("test_01")).unwrap();
    fs::write(root.join("test_01/road.log"), "(1.0) can0 123#00\n(2.0) can0 123#00\n").unwrap();
    fs::write(root.join("test_01/capture_metadata.json"), r#"{"other": {"injection_interval": [0, 1]}}"#).unwrap();
    let report = report_of(&root);
    assert_said(&report, Severity::Warning, &["attack.csv: its header has no column attack or label", "(is_attack)"]);
    assert_said(&report, Severity::Warning, &["road.log: ", "capture_metadata.json has no entry \"road\""]);
    assert_said(
        &report,
        Severity::Warning,
        &["test_01: none of its 2 frames is labelled as an attack", "F1 are not defined"],
    );
    // A folder has labels if any of its logs has an attack.
    write_log(&root, "test_01", "attack.csv", &traffic(300, 12, 3, 50..90));
    let report = report_of(&root);
    assert!(!report.findings.iter().any(|finding| finding.text.contains("is labelled as an attack")), "{report:#?}");
}

#[test]
fn absurd_times_are_printed_with_an_exponent() {
    let workplace = Workplace::new();
    let root = workplace.path().join("car");
    fs::create_dir_all(root.join("train_01_attack_free")).unwrap();
    fs::write(root.join("train_01_attack_free/a.csv"), "1e308,123,00,0\n-1e308,123,00,0\n").unwrap();
    let said = workplace.success(&["data", "check", "--data", "car"]);
    assert!(said.contains("e308 s") && said.lines().all(|line| line.len() < 250), "{said}");
}

#[test]
fn training_that_is_all_in_a_test_says_so() {
    let workplace = Workplace::new();
    let root = workplace.path().join("car");
    let drive = traffic(2000, 12, 1, 0..0);
    write_log(&root, "train_01_attack_free", "drive.csv", &drive);
    write_log(&root, "test_01", "copy.csv", &drive);
    let said = workplace.refused(&["autoencoder", "--data", "car", "--stores-dir", "stores", "--run-dir", "run"]);
    assert!(said.contains("left out, because they are also in") && said.contains("--keep-duplicates"), "{said}");
}

/// Dataset whose training logs repeat a test log and validation windows.
fn leaky(root: &Path) -> Dataset {
    let drive = traffic(4000, 12, 1, 0..0);
    write_log(root, "train_01_attack_free", "drive.csv", &drive);
    let mut other = traffic(4000, 12, 2, 0..0);
    // These IDs occur only in windows that are dropped.
    other.iter_mut().take(1000).for_each(|frame| frame.can_id += 1);
    write_log(root, "train_01_attack_free", "other.csv", &other);
    write_log(root, "train_02_with_attacks", "attack.csv", &traffic(4000, 12, 3, 100..2000));
    write_log(root, "test_01", "copy.csv", &other[..1000]);
    // The part of the first drive that is held out for validation.
    write_log(root, "train_01_attack_free", "again.csv", &drive[780..1000]);
    Dataset::open(root).unwrap()
}

fn same(store: &Store, one: u64, other: u64) -> bool {
    let (one, other) = (store.graph(one), store.graph(other));
    one.can_ids == other.can_ids
        && (one.sources, one.targets) == (other.sources, other.targets)
        && (one.node_features, one.edge_features) == (other.node_features, other.edge_features)
}

#[test]
fn graphs_of_validation_and_tests_are_left_out_of_training() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = leaky(&folder.path().join("car"));
    let options = BuildOptions { window: 20, stride: 20, shard_bytes: 60_000, ..BuildOptions::default() };
    let store = open_or_build(&dataset, &options, &folder.path().join("stores"), &()).unwrap();
    let kept = BuildOptions { keep_duplicates: true, ..options.clone() };
    let with_all = open_or_build(&dataset, &kept, &folder.path().join("stores"), &()).unwrap();
    assert_ne!(store.digest(), with_all.digest());
    let (train, all) = (store.select(Split::Train, None), with_all.select(Split::Train, None));
    let held_out = [store.select(Split::Validation, None), store.select(Split::Test, None)].concat();
    let expected: Vec<u64> =
        all.iter().copied().filter(|&graph| !held_out.iter().any(|&other| same(&store, graph, other))).collect();
    assert_eq!(train, expected);
    let duplicates = &store.manifest().duplicates;
    assert_eq!(duplicates.train_in_test, 38, "of the test's 49 windows, the others are held out for validation");
    assert_eq!(duplicates.validation_in_test, 10);
    assert!(duplicates.train_in_validation >= 6, "{duplicates:?}");
    assert_eq!(duplicates.num_dropped() as usize, all.len() - train.len());
    assert_eq!(with_all.manifest().duplicates.num_dropped(), 0);
    assert_eq!(with_all.manifest().duplicates.train_in_test, 38, "counted all the same");
    // The shifted IDs are in dropped windows only, except for the one at the border.
    assert!(with_all.vocabulary().len() >= store.vocabulary().len());
}

#[test]
fn the_known_facts_of_real_traffic_are_seen() {
    if let Some(root) = candata("hcrl_sa") {
        let report = report_of(&root);
        assert_eq!(report.logs.iter().map(|log| log.report.backward_timestamps).sum::<u64>(), 0);
        assert!(report.logs.iter().all(|log| log.empty_payloads.benign_frames == 0));
        assert_said(&report, Severity::Note, &["fuzzing-Spark.csv.gz: 92 frames are labelled attack-free"]);
        assert_said(&report, Severity::Note, &["test_02_unknown_vehicle_known_attack: IDs unseen in training send"]);
        assert!(report.copies.is_empty(), "{:?}", report.copies);
    }
    if let Some(root) = candata("set_04") {
        let report = report_of(&root);
        let backward = report.logs.iter().filter(|log| log.report.backward_timestamps > 0).count();
        assert!(backward > 0);
        let largest = report.logs.iter().map(|log| log.report.largest_backward_step_seconds).fold(0.0, f64::max);
        assert!((0.0001..0.0003).contains(&largest), "{largest}");
        assert!(report.logs.iter().all(|log| log.first_timestamp == Some(1_672_531_200.0)));
        assert_said(&report, Severity::Note, &["all logs begin at the same time"]);
    }
}

#[test]
fn known_datasets_are_listed_and_found_by_name() {
    let workplace = Workplace::new();
    write_log(&workplace.path().join("all/set_04"), "train_01_attack_free", "a.csv", &traffic(300, 12, 1, 0..0));
    let run = |arguments: &[&str]| {
        let output = starter::output(workplace.command(arguments).env("KDGAT_DATA", workplace.path().join("all")));
        (output.status.code(), said(&output))
    };
    let (code, text) = run(&["data", "list"]);
    assert!(code == Some(0) && text.contains("hcrl_sa  (not found)") && text.contains("all/set_04)"), "{text}");
    let (code, text) = run(&["data", "info", "--data", "set_04"]);
    assert!(code == Some(0) && text.starts_with("building") && text.contains("set_04: windows of 100"), "{text}");
    let (code, text) = run(&["data", "info", "--data", "set_05"]);
    assert!(code == Some(2) && text.contains("did you mean set_0"), "{text}");
    // A folder of several datasets sets no default.
    let (code, text) = run(&["data", "info"]);
    assert!(code == Some(0) && text.contains("sim: windows of 100"), "{text}");
    let (code, text) = run(&["data", "info", "--data", "all"]);
    assert!(code == Some(2) && text.contains("--data NAME"), "{text}");
}

/// The logs of a known dataset are read in any format; a format that is not the publisher's is noted.
#[test]
fn logs_in_another_format_than_the_published_one_are_noted() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("set_01");
    write_log(&root, "train_01_attack_free", "drive.csv", &traffic(3000, 12, 1, 0..0));
    let checked = |data: &Path| {
        let options = CheckOptions {
            format: None,
            read: ReadOptions::default(),
            window: 100,
            max_reject_share: 0.01,
            threads: 2,
        };
        check(&kdgat::can::catalogue::open(data, Some(folder.path())).unwrap(), &options)
    };
    let noted = |report: &CheckReport| report.findings.iter().any(|finding| finding.text.contains("is published as"));
    assert!(!noted(&checked(Path::new("set_01"))));
    let copy: String = (0..200).map(|frame| format!("({frame}.000000) can0 044#2A366C2BBA\n")).collect();
    fs::write(root.join("train_01_attack_free/copy.log"), copy).unwrap();
    for data in [Path::new("set_01"), &root] {
        let report = checked(data);
        assert_said(&report, Severity::Note, &["1 logs are in the format candump", "copy.log", "can-train-and-test"]);
        assert!(report.logs.iter().all(|log| log.report.rejected_rows() == 0));
    }
    fs::rename(&root, folder.path().join("mine")).unwrap();
    assert!(!noted(&checked(Path::new("mine"))));
}
