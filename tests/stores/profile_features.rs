//! The profile of a car, deviations from it, and rules: known facts on made-up traffic, and the whole program on the simulated car.

use std::collections::HashMap;

use kdgat::can::Frame;
use kdgat::distill::frozen::{self, Asked, LoadedModel, TeacherVocabulary};
use kdgat::distill::{StoreShape, TargetName, Teacher, TeacherOptions};
use kdgat::evaluate::{Scorer, TrainedModel};
use kdgat::graph::assemble::assemble;
use kdgat::graph::columns::Columns;
use kdgat::graph::profile::deviations as feature;
use kdgat::graph::profile::rules::Rule;
use kdgat::graph::profile::{DEVIATIONS, PROFILE_VERSION, ProfileLearner};
use kdgat::graph::{CarProfile, FeatureSet, GraphStream, Split, Store};
use kdgat::nn::attention::Backend;
use proptest::prelude::*;
use support::stage::{Workplace, dataset};
use support::starter;
use tch::Device;

const WINDOW: usize = 20;

fn frame(timestamp: f64, can_id: u32, bytes: [u8; 2]) -> Frame {
    let payload = [bytes[0], bytes[1], 0, 0, 0, 0, 0, 0];
    Frame { timestamp, can_id, payload, payload_length: 2, attack: false }
}

/// IDs 1 and 2 every 10 ms, 3 ms apart, ID 3 every 50 ms; the first byte of ID 1 counts, the second of ID 2 is 7.
fn usual(milliseconds: u32) -> Vec<Frame> {
    let mut frames = Vec::new();
    for at in (0..milliseconds).step_by(10) {
        let seconds = f64::from(at) / 1e3;
        frames.push(frame(seconds, 1, [(at / 10) as u8, 0]));
        frames.push(frame(seconds + 0.003, 2, [0, 7]));
        if at % 50 == 0 {
            frames.push(frame(seconds + 0.005, 3, [1, 2]));
        }
    }
    frames
}

fn graphs(frames: &[Frame], blocks: usize) -> Columns {
    let mut stream = GraphStream::new(FeatureSet::Profile, WINDOW, WINDOW);
    let mut columns = Columns::new(FeatureSet::Profile);
    for block in frames.chunks(blocks) {
        let append = |mut window: kdgat::graph::graph_stream::ReadyWindow<'_>| {
            window.append_to(0, &mut columns);
            Ok::<(), ()>(())
        };
        stream.push(block, append).unwrap();
    }
    columns
}

fn learned(columns: &Columns) -> CarProfile {
    ProfileLearner::of((0..columns.num_graphs()).map(|graph| columns.graph(graph))).profile()
}

/// Deviations by ID of the last graph, and what the rules count in it.
fn last(profile: &CarProfile, frames: &[Frame]) -> (HashMap<u32, Vec<f32>>, HashMap<&'static str, u32>) {
    let columns = graphs(frames, usize::MAX);
    let view = columns.graph(columns.num_graphs() - 1);
    let mut rows = Vec::new();
    profile.append_deviations(&view, &mut rows);
    let by_id = view.can_ids.iter().zip(rows.chunks(DEVIATIONS)).map(|(&id, row)| (id, row.to_vec())).collect();
    let counts = profile.rule_counts(&view);
    (by_id, Rule::ALL.iter().map(|rule| rule.name()).zip(counts).collect())
}

#[test]
fn a_profile_knows_gaps_and_bytes() {
    let profile = learned(&graphs(&usual(20_000), 777));
    assert_eq!(profile.ids().iter().map(|id| id.can_id).collect::<Vec<_>>(), [1, 2, 3]);
    let (one, three) = (profile.id(1).unwrap(), profile.id(3).unwrap());
    // Histograms tell gaps apart that differ by more than 2.2 %.
    for (found, expected) in
        [(one.gap_median_seconds, 0.01), (one.gap_low_seconds, 0.01), (three.gap_median_seconds, 0.05)]
    {
        assert!((found / expected - 1.0).abs() < 0.022, "{found} instead of {expected}");
    }
    assert!((one.gap_mean_seconds - 0.01).abs() < 1e-6);
    assert!((one.changed_bytes - 1.0).abs() < 1e-6 && one.repeats == 0.0 && three.repeats == 1.0);
    assert!(one.bytes[0].has_seen(200) && !one.bytes[1].has_seen(1) && profile.id(4).is_none());
    // From 255 the counter returns to 0: its largest change.
    assert_eq!((one.bytes[0].change_most, one.bytes[1].change_most), (255, 0));
    assert_eq!(profile.problem(), None);
    let json = serde_json::to_string(&profile).unwrap();
    assert_eq!(serde_json::from_str::<CarProfile>(&json).unwrap(), profile);
    let version = format!("\"version\":{PROFILE_VERSION}");
    let other = json.replace(&version, "\"version\":99");
    let other: CarProfile = serde_json::from_str(&other).unwrap();
    assert!(other.problem().unwrap().contains("version 99"), "{:?}", other.problem());
}

#[test]
fn usual_traffic_deviates_from_nothing() {
    let profile = learned(&graphs(&usual(20_000), usize::MAX));
    let (rows, counts) = last(&profile, &usual(3_000));
    assert!(counts.values().all(|&count| count == 0), "{counts:?}");
    let alarming = [
        feature::UNKNOWN,
        feature::EARLY,
        feature::OFF_SCHEDULE,
        feature::OFF_SCHEDULE_BYTES,
        feature::JUMPS,
        feature::RETURNS,
        feature::SILENCE,
        feature::STANDSTILL,
    ];
    for (id, row) in rows {
        assert!(alarming.iter().all(|&at| row[at] == 0.0) && row[feature::SHARE] > 0.0, "ID {id}: {row:?}");
    }
}

/// A single frame, its time and its bytes right in all but one respect.
#[test]
fn each_kind_of_deviation_shows_where_it_belongs() {
    let profile = learned(&graphs(&usual(20_000), usize::MAX));
    let with = |extra: Frame| {
        let mut frames = usual(3_000);
        let at = frames.partition_point(|frame| frame.timestamp < extra.timestamp);
        frames.insert(at, extra);
        frames.truncate(at + 5);
        // The last complete window ends with the frame before the last one.
        while !(frames.len() - 1).is_multiple_of(WINDOW) {
            let skipped = frames.remove(0);
            assert!(skipped.timestamp < 1.0);
        }
        last(&profile, &frames)
    };
    let (rows, counts) = with(frame(2.5045, 1, [250, 0]));
    assert_eq!((counts["off-schedule"], counts["unknown-id"]), (1, 0), "{counts:?}");
    assert!(rows[&1][feature::OFF_SCHEDULE] > 0.0 && rows[&2][feature::OFF_SCHEDULE] == 0.0);
    let (rows, counts) = with(frame(2.5045, 9, [0, 0]));
    assert_eq!((counts["unknown-id"], counts["off-schedule"]), (1, 0), "{counts:?}");
    assert!(rows[&9][feature::UNKNOWN] > 0.5 && rows[&1][feature::UNKNOWN] == 0.0);
    let (rows, counts) = with(frame(2.5045, 2, [90, 7]));
    assert!(counts["unseen-byte"] == 1 && counts["byte-jump"] >= 1, "{counts:?}");
    assert!(rows[&2][feature::LARGEST_JUMP] > 1.0 && rows[&2][feature::OFF_SCHEDULE_BYTES] > 0.0);
}

#[test]
fn a_silent_id_is_a_node_of_its_window() {
    let profile = learned(&graphs(&usual(20_000), usize::MAX));
    let mut frames = usual(3_000);
    frames.retain(|frame| frame.can_id != 2 || frame.timestamp < 2.0);
    let (rows, counts) = last(&profile, &frames);
    assert_eq!(counts["missing"], 1, "{counts:?}");
    assert!(rows[&2][feature::SILENCE] > 1.0 && rows[&2][feature::SHARE] == 0.0, "{:?}", rows[&2]);
    assert_eq!(rows[&1][feature::SILENCE], 0.0);
}

/// ID 1 counts in every frame. Once its payload repeats for longer than the profile allows, it stands still; and so does the counter alone.
#[test]
fn a_standing_counter_deviates_where_the_profile_has_seen_enough_of_it() {
    let long = learned(&graphs(&usual(20_000), usize::MAX));
    let still = |forge: fn(&mut Frame)| {
        let mut frames = usual(3_000);
        frames.iter_mut().filter(|frame| frame.can_id == 1 && frame.timestamp > 2.0).for_each(forge);
        frames
    };
    let frozen = still(|frame| frame.payload[0] = 200);
    // The second byte of ID 1 is 0 in attack-free traffic: it may change, and the counter stands still nevertheless.
    let varied = still(|frame| frame.payload[..2].copy_from_slice(&[200, (1e3 * frame.timestamp) as u8]));
    for frames in [&frozen, &varied] {
        let (rows, counts) = last(&long, frames);
        assert_eq!(counts["standstill"], 1, "{counts:?}");
        assert!(rows[&1][feature::STANDSTILL] > 1.0, "{:?}", rows[&1]);
        assert_eq!((rows[&2][feature::STANDSTILL], rows[&3][feature::STANDSTILL]), (0.0, 0.0));
    }
    let columns = graphs(&frozen, usize::MAX);
    let culprits = long.culprits(&columns.graph(columns.num_graphs() - 1), 3);
    assert_eq!(culprits[0].can_id, 1);
    assert!(culprits[0].reasons[0].starts_with("payload unchanged for "), "{culprits:?}");
    let columns = graphs(&varied, usize::MAX);
    let culprits = long.culprits(&columns.graph(columns.num_graphs() - 1), 3);
    assert!(culprits[0].reasons.iter().any(|reason| reason.starts_with("byte 0 unchanged for ")), "{culprits:?}");
    // Nine seconds show 900 gaps: too few to call anything a standstill.
    let (rows, counts) = last(&learned(&graphs(&usual(9_000), usize::MAX)), &frozen);
    assert_eq!((counts["standstill"], rows[&1][feature::STANDSTILL]), (0, 0.0));
    // Nor does a payload stand still that may do so: ID 2 never changes.
    let (rows, counts) = last(&long, &usual(3_000));
    assert_eq!((counts["standstill"], rows[&2][feature::STANDSTILL]), (0, 0.0));
}

/// Traffic under attack does not show for how long a payload stands still, neither shorter nor longer.
#[test]
fn standstills_are_learned_from_windows_without_attacks() {
    let mut frames = usual(20_000);
    for frame in frames.iter_mut().filter(|frame| frame.can_id == 1 && (8.0..9.0).contains(&frame.timestamp)) {
        (frame.payload[0], frame.attack) = (200, true);
    }
    let partly = learned(&graphs(&frames, usize::MAX));
    let one = partly.id(1).unwrap();
    assert_eq!((one.longest_standstill, one.bytes[0].repeats), (0, false));
    frames.iter_mut().filter(|frame| frame.can_id == 3).for_each(|frame| frame.attack = true);
    let everywhere = learned(&graphs(&frames, usize::MAX));
    let one = everywhere.id(1).unwrap();
    assert_eq!((one.longest_standstill, one.bytes[0].repeats), (255, true));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Graphs do not depend on the blocks in which frames arrive, and a profile does not depend on the order of its parts.
    #[test]
    fn blocks_and_parts_change_nothing(
        seeds in prop::collection::vec((0u32..6, 0u32..40, any::<[u8; 2]>()), 60..300),
        block in 1usize..90,
    ) {
        let mut time = 0.0;
        let frames: Vec<Frame> = seeds
            .into_iter()
            .map(|(id, step, bytes)| {
                time += f64::from(step) / 1e3;
                frame(time, id, bytes)
            })
            .collect();
        let (whole, in_blocks) = (graphs(&frames, usize::MAX), graphs(&frames, block));
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
        prop_assert_eq!(bits(&whole.frame_gaps), bits(&in_blocks.frame_gaps));
        prop_assert_eq!(bits(&whole.node_scheduled), bits(&in_blocks.node_scheduled));
        prop_assert_eq!((&whole.can_ids, &whole.node_repeated), (&in_blocks.can_ids, &in_blocks.node_repeated));
        let halves: Vec<ProfileLearner> = [true, false]
            .map(|first| {
                let count = whole.num_graphs();
                ProfileLearner::of((0..count).filter(|graph| (*graph < count / 2) == first).map(|graph| whole.graph(graph)))
            })
            .to_vec();
        let profile = learned(&whole);
        let reversed: Vec<ProfileLearner> = halves.iter().rev().cloned().collect();
        let halves_of_car = halves.clone();
        for parts in [halves, reversed] {
            let merged = ProfileLearner::merged(&parts, None).profile();
            prop_assert_eq!(merged.ids().len(), profile.ids().len());
            for (one, other) in merged.ids().iter().zip(profile.ids()) {
                // Sums of gaps are rounded in another order.
                prop_assert!((one.gap_mean_seconds - other.gap_mean_seconds).abs() <= 1e-6);
                prop_assert_eq!((one.gaps, &one.bytes, one.longest_standstill), (other.gaps, &other.bytes, other.longest_standstill));
            }
        }
        // Half of the traffic judges the other: with the IDs of both, and with what it has learned itself of those that it has.
        let judging = ProfileLearner::judging(&halves_of_car, 1).profile();
        let own = halves_of_car[0].profile();
        let ids = |profile: &CarProfile| profile.ids().iter().map(|id| id.can_id).collect::<Vec<_>>();
        prop_assert_eq!(ids(&judging), ids(&profile));
        for id in judging.ids() {
            let of = own.id(id.can_id).map_or_else(|| halves_of_car[1].profile().id(id.can_id).cloned(), |own| Some(own.clone()));
            prop_assert_eq!(Some(id), of.as_ref());
        }
        let mut rows = Vec::new();
        (0..whole.num_graphs()).for_each(|graph| profile.append_deviations(&whole.graph(graph), &mut rows));
        prop_assert!(rows.iter().all(|value| value.is_finite() && value.abs() <= 10.0));
    }
}

/// As a teacher, a model of the profile set gives the outputs that it has as a student: IDs are hidden from both.
fn assert_is_its_own_teacher(place: &Workplace, run: &std::path::Path) {
    let model = TrainedModel::read(run).unwrap();
    let scorer = Scorer::new(&model, Device::Cpu, Backend::Auto).unwrap();
    let stores = std::fs::read_dir(place.path("stores")).unwrap().map(|entry| entry.unwrap().path());
    let store = stores.filter_map(|path| Store::open(&path).ok()).find(|store| store.features() == FeatureSet::Profile);
    let store = store.unwrap();
    let batch = assemble(&store, &(0..40).collect::<Vec<_>>(), &scorer.assemble_options()).unwrap();
    let own = scorer.answers(&batch).unwrap();
    let loaded = LoadedModel::open(run).unwrap();
    let vocabulary = TeacherVocabulary::new(&loaded.architecture, loaded.vocabulary, store.vocabulary());
    let frozen = frozen::model(loaded.architecture, vocabulary, Backend::Auto, Asked::OUTPUTS).unwrap();
    let options = TeacherOptions::new(Device::Cpu);
    let mut teacher = Teacher::start(frozen, loaded.weights, &options, &StoreShape::new(&store, None)).unwrap();
    teacher.submit(vec![batch]);
    let targets = teacher.targets().unwrap();
    let taught = targets.get(TargetName::Logits).unwrap();
    assert!(taught.allclose(&own, 1e-5, 1e-5, false), "{taught} {own}");
    teacher.finish().unwrap();
}

/// Synthetic attack windows without a trace exist, are attacks of synthetic logs, and belong to no split.
fn assert_traceless_windows_are_left_out(place: &Workplace) {
    let stores = std::fs::read_dir(place.path("stores")).unwrap().map(|entry| entry.unwrap().path());
    let store = stores.filter_map(|path| Store::open(&path).ok()).find(|store| store.features() == FeatureSet::Profile);
    let store = store.unwrap();
    let (manifest, profile) = (store.manifest(), store.profile().unwrap());
    let traceless: Vec<u64> = manifest.traceless.iter().cloned().flatten().collect();
    assert!(!traceless.is_empty());
    for &graph in &traceless {
        let view = store.graph(graph);
        assert!(view.attack && manifest.files[view.file as usize].synthetic.is_some(), "{graph}");
    }
    for split in [Split::Train, Split::Validation] {
        let selected = store.select(split, None);
        assert!(selected.iter().all(|graph| traceless.binary_search(graph).is_err()), "{split:?}");
    }
    // Validation is judged with the profile of all training windows.
    for graph in store.select(Split::Validation, Some(true)) {
        let view = store.graph(graph);
        let is_synthetic = manifest.files[view.file as usize].synthetic.is_some();
        let has_trace = profile.culprits(&view, usize::MAX).iter().any(|culprit| culprit.attack_frames > 0);
        assert!(!is_synthetic || has_trace, "{graph}");
    }
}

/// Trains, evaluates with rules, calibrates, and detects: detection has the scores of the evaluation, bit by bit.
#[test]
fn a_classifier_of_the_profile_set_runs_through_all_commands() {
    let place = Workplace::new();
    place.run(&[
        "classifier",
        "--preset",
        "gat,student,profile",
        "--hidden",
        "8",
        "--heads",
        "2",
        "--max-epochs",
        "3",
        "--use-kd",
        "false",
    ]);
    assert_traceless_windows_are_left_out(&place);
    place.run(&[
        "evaluate",
        "--preset",
        "profile",
        "--resamples",
        "0",
        "--output",
        "judged",
        "--predictions",
        "scores.csv",
    ]);
    let rows: Vec<HashMap<String, String>> =
        csv::Reader::from_path(place.path("judged/metrics.csv")).unwrap().deserialize().map(Result::unwrap).collect();
    for rule in Rule::ALL {
        assert!(rows.iter().any(|row| row["model"] == format!("rule: {}", rule.name()) && row["kind"] == "rule"));
    }
    let scores: Vec<HashMap<String, String>> =
        csv::Reader::from_path(place.path("scores.csv")).unwrap().deserialize().map(Result::unwrap).collect();
    let first = scores.iter().find(|row| !row["model"].starts_with("rule")).unwrap();
    let of_file: Vec<f64> = scores
        .iter()
        .filter(|row| {
            row["model"] == first["model"] && row["file"] == first["file"] && row["folder"] == first["folder"]
        })
        .map(|row| row["score"].parse().unwrap())
        .collect();
    let run = place.path("runs/tiny").join(&first["model"]);
    let detect = |more: &[&str], log: &std::path::Path| {
        let output = starter::output(
            std::process::Command::new(env!("CARGO_BIN_EXE_kdgat"))
                .args(["detect", "--model"])
                .arg(&run)
                .args(more)
                .arg(log),
        );
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let log = dataset().join(&first["folder"]).join(&first["file"]);
    let parsed = |text: &str| -> Vec<f64> {
        let score = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["score"].as_f64().unwrap();
        text.lines().map(score).collect()
    };
    assert_eq!(parsed(&detect(&["--threshold", "0.5"], &log)), of_file);
    assert_is_its_own_teacher(&place, &run);
    // An alarm names who differs from the profile, and by what.
    let alarms = detect(&["--threshold", "0.0"], &log);
    let named: Vec<serde_json::Value> = alarms
        .lines()
        .filter(|line| line.contains("\"culprits\""))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(!named.is_empty());
    for alarm in &named {
        let culprits = alarm["culprits"].as_array().unwrap();
        assert!((1..=3).contains(&culprits.len()), "{alarm}");
        for culprit in culprits {
            assert!(u32::from_str_radix(culprit["id"].as_str().unwrap(), 16).is_ok(), "{alarm}");
            assert!(culprit["unusual"].as_array().is_some_and(|reasons| !reasons.is_empty()), "{alarm}");
        }
    }
    let all_normal = detect(&["--threshold", "1.0"], &log);
    assert!(!all_normal.contains("culprits"), "windows that are no alarms have none");
    // A calibration has a profile of its own, from which the deviations are taken.
    let benign = std::fs::read_dir(dataset().join("train_01_attack_free")).unwrap().next().unwrap().unwrap().path();
    let output = starter::output(
        std::process::Command::new(env!("CARGO_BIN_EXE_kdgat"))
            .args(["calibrate", "--name", "own", "--least-seconds", "1", "--model"])
            .arg(&run)
            .arg("--benign")
            .arg(&benign),
    );
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let calibration = std::fs::read_to_string(run.join("calibrations/own.json")).unwrap();
    assert!(calibration.contains("\"car_profile\""));
    // What bytes never do is not known after a few seconds, so that only times, IDs and relations count; attacks were tried on copies.
    assert!(calibration.contains("\"counts_bytes\": false"), "{calibration}");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("values and changes of bytes are no evidence") && said.contains("masquerade"), "{said}");
    let attacks = serde_json::from_str::<serde_json::Value>(&calibration).unwrap()["attacks"].clone();
    // IDs that are removed for the rest of a drive are counted beside the attacks of single windows.
    let (removals, of_windows): (Vec<_>, Vec<_>) =
        attacks.as_array().unwrap().iter().partition(|attack| attack["kind"] == "removal");
    assert!(removals.len() == 1 && (4..=8).contains(&of_windows.len()), "{calibration}");
    let calibrated = parsed(&detect(&["--calibration", "own"], &log));
    assert_eq!(calibrated.len(), of_file.len());
    assert_ne!(calibrated, of_file);
    assert_full_calibrations_are_counted(&place, &run, &benign);
    assert_a_calibration_goes_into_the_car(&place, &run, &log, &detect(&["--calibration", "own"], &log));
}

/// `kdgat export --calibration` writes a calibration that `kdgat-car` loads: its lines are those of `kdgat detect` with the same calibration,
/// the culprits included.
fn assert_a_calibration_goes_into_the_car(
    place: &Workplace,
    run: &std::path::Path,
    log: &std::path::Path,
    detected: &str,
) {
    use std::process::Command;
    if !Command::new("cc").arg("--version").output().is_ok_and(|found| found.status.success()) {
        return;
    }
    place.run(&["export", run.to_str().unwrap(), "--c", "own-car", "--threshold", "0.5", "--calibration", "own"]);
    let build = "cc -std=c99 -O1 -Iown-car own-car/*.c own-car/example/*.c -o own-car/kdgat-car -lm";
    let built = Command::new("sh").args(["-c", build]).current_dir(place.path("")).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let mut candump = String::new();
    for line in std::fs::read_to_string(log).unwrap().lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        candump += &format!("({}) can0 {:0>3}#{}\n", fields[0], fields[1], fields[2]);
    }
    std::fs::write(place.path("own.log"), candump).unwrap();
    let mut car = Command::new(place.path("own-car/kdgat-car"));
    let output =
        car.current_dir(place.path("")).args(["--load", "own-car/own.calibration", "own.log"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found = String::from_utf8(output.stdout).unwrap();
    let parsed = |text: &str| -> Vec<serde_json::Value> {
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let (found, expected) = (parsed(&found), parsed(detected));
    assert_eq!(found.len(), expected.len());
    let ids = |line: &serde_json::Value| -> Vec<String> {
        let culprits = line["culprits"].as_array().cloned().unwrap_or_default();
        culprits.iter().map(|culprit| culprit["id"].as_str().unwrap().to_owned()).collect()
    };
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!((&found["label"], ids(found)), (&expected["label"], ids(expected)), "{found} {expected}");
        let of = |line: &serde_json::Value| line["deviations"].as_f64().unwrap();
        assert!((of(found) - of(expected)).abs() < 1e-3 * (1.0 + of(expected).abs()), "{found} {expected}");
    }
    assert!(expected.iter().any(|line| !ids(line).is_empty()), "an alarm has culprits");
}

/// The exported detector refuses traffic for which a calibration has no room, and says how much it has.
fn assert_full_calibrations_are_counted(place: &Workplace, run: &std::path::Path, benign: &std::path::Path) {
    use std::process::Command;
    if !Command::new("cc").arg("--version").output().is_ok_and(|found| found.status.success()) {
        println!("skipped: compiling kdgat-car (it needs a C compiler `cc`)");
        return;
    }
    place.run(&["export", run.to_str().unwrap(), "--c", "car", "--threshold", "0.5"]);
    let build = "cc -std=c99 -O1 -DKDGAT_CALIBRATION_WINDOWS=20u -Icar car/*.c car/example/*.c -o kdgat-car -lm";
    let built = Command::new("sh").args(["-c", build]).current_dir(place.path("")).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    // The log, so slowly that 20 windows take more than the least 10 s.
    let text = std::fs::read_to_string(benign).unwrap();
    let mut candump = String::new();
    for (row, line) in text.lines().skip(1).enumerate() {
        let fields: Vec<&str> = line.split(',').collect();
        candump += &format!("({:.6}) can0 {:0>3}#{}\n", 1.0 + 0.02 * row as f64, fields[1], fields[2]);
    }
    std::fs::write(place.path("slow.log"), candump).unwrap();
    let calibrate = |duration: &str| {
        let mut command = Command::new(place.path("kdgat-car"));
        command.current_dir(place.path("")).args(["--calibrate", duration, "--save", "saved", "slow.log"]);
        let output = command.output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (is_made, said) = calibrate("1h");
    assert!(!is_made && said.contains("has room for 20 windows, which are the first 40.0 s"), "{said}");
    assert!(!place.path("saved").exists(), "nothing is saved");
    let (is_made, said) = calibrate("30s");
    assert!(is_made && place.path("saved").exists(), "{said}");
}
