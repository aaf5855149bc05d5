//! Synthetic attacks: made from the attack-free logs alone, the same everywhere, without a leak between training and validation, and
//! joined to the dataset like recorded logs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use kdgat::can::synthetic::{
    BlockSet, CopiedBlock, Divide, FOLDER, SourceBlock, SyntheticKind, SyntheticOptions, SyntheticRecord,
    ensure_synthetic, has_synthetic,
};
use kdgat::can::{CanError, Dataset, Format, Frame, ReadOptions, Role, open_log};
use kdgat::graph::split::{frames_of, source_blocks};
use kdgat::graph::store::manifest::{FileEntry, Manifest};
use kdgat::graph::{BuildOptions, Share, Split, Store, build_part, merge, open_or_build};
use serde_json::Value;
use support::cli::{Workplace, contents, only_store, small_dataset};
use support::graph::{Draw, traffic, write_dataset, write_log};

/// The blocks of a store with default options.
const DIVIDE: Divide<'static> = &|_, frames| source_blocks(frames, 100, 100, 0.2);

fn record_of(folder: &Path) -> SyntheticRecord {
    serde_json::from_slice(&fs::read(folder.join("synthetic.json")).unwrap()).unwrap()
}

fn frames_in(path: &Path) -> Vec<Frame> {
    let (mut log, mut all, mut block) = (open_log(path, None).unwrap(), Vec::new(), Vec::new());
    while log.read_block(4096, &mut block).unwrap() > 0 {
        all.extend_from_slice(&block);
    }
    assert_eq!(log.report().rejected_rows(), 0, "{}", path.display());
    all
}

/// A dataset with attack-free logs, and its synthetic attacks.
fn synthetic(folder: &Path, options: &SyntheticOptions) -> (Dataset, PathBuf) {
    let dataset = Dataset::open(small_dataset()).unwrap();
    let target = folder.join("attacks");
    ensure_synthetic(&dataset, options, None, &ReadOptions::default(), DIVIDE, &target).unwrap();
    (dataset, target)
}

#[test]
fn each_attack_free_log_gets_a_log_for_each_kind() {
    let folder = tempfile::tempdir().unwrap();
    let (dataset, target) = synthetic(folder.path(), &SyntheticOptions::default());
    let record = record_of(&target);
    let drives = ["drive-1", "drive-2"];
    let expected: BTreeSet<String> = drives
        .iter()
        .flat_map(|drive| SyntheticKind::ADDED.map(|kind| format!("{drive}-{kind}.csv.gz")))
        .chain(["synthetic.json".to_owned()])
        .collect();
    assert_eq!(contents(&target).into_keys().collect::<BTreeSet<_>>(), expected);
    let mut windows = [0, 0];
    for file in &record.files {
        let frames = frames_in(&target.join(&file.name));
        let attacks = frames.iter().filter(|frame| frame.attack).count() as u64;
        assert_eq!((frames.len() as u64, attacks), (file.frames, file.attack_frames), "{}", file.name);
        assert_eq!(file.blocks.iter().map(|block| block.frames.end).max(), Some(file.frames));
        assert!(file.blocks.windows(2).all(|pair| pair[0].frames.end == pair[1].frames.start));
        for chunk in frames.chunks_exact(100) {
            windows[usize::from(chunk.iter().any(|frame| frame.attack))] += 1;
        }
    }
    let share = windows[1] as f64 / (windows[0] + windows[1]) as f64;
    assert!((share - 0.5).abs() < 0.1, "{share} of the windows have an attack");

    let (name, recorded) = (dataset.name.clone(), dataset.files.len());
    let joined = dataset.with_synthetic(&target).unwrap();
    assert_eq!((joined.name.clone(), joined.files.len()), (name, recorded + 12));
    assert!(joined.files.is_sorted_by_key(|file| (file.folder.clone(), file.path.file_name().unwrap().to_owned())));
    let added: Vec<_> = joined.files.iter().filter(|file| file.folder == FOLDER).collect();
    assert!(added.len() == 12 && added.iter().all(|file| file.role == Role::TrainWithAttacks));
    assert!(matches!(joined.with_synthetic(&target), Err(CanError::SyntheticFolderTaken { .. })));
}

#[test]
fn the_same_logs_and_seed_give_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b, c] = ["a", "b", "c"].map(|name| folder.path().join(name));
    let options = SyntheticOptions { most_frames: 40_000, ..SyntheticOptions::default() };
    synthetic(&a, &options);
    let one_thread = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    one_thread.install(|| synthetic(&b, &options));
    synthetic(&c, &SyntheticOptions { seed: 2, ..options });
    let [a, b, c] = [a, b, c].map(|folder| contents(&folder.join("attacks")));
    assert!(a == b, "one thread gives other bytes");
    assert!(a.iter().all(|(name, bytes)| c[name] != *bytes), "seeds 1 and 2 share a file");
}

/// The digest was computed on x86-64; other machines must get the same. A change of the synthetic attacks changes this digest and must
/// change `SYNTHETIC_VERSION`.
#[test]
fn every_machine_makes_the_same_frames() {
    let folder = tempfile::tempdir().unwrap();
    let options = SyntheticOptions { most_frames: 40_000, ..SyntheticOptions::default() };
    let (_, target) = synthetic(folder.path(), &options);
    let mut rows = Vec::new();
    for file in record_of(&target).files {
        for frame in frames_in(&target.join(file.name)) {
            kdgat::can::formats::can_train_and_test::write_row(&frame, &mut rows);
        }
    }
    assert_eq!(&blake3::hash(&rows).to_hex()[..16], "c5e875d5f0d14a27");
    assert_eq!(kdgat::can::synthetic::SYNTHETIC_VERSION, 1);
}

#[test]
fn the_number_of_frames_is_limited() {
    let folder = tempfile::tempdir().unwrap();
    let options = SyntheticOptions { most_frames: 30_000, ..SyntheticOptions::default() };
    let (_, target) = synthetic(folder.path(), &options);
    let record = record_of(&target);
    let taken = |block: &CopiedBlock| block.source.end - block.source.start;
    let taken: u64 = record.files.iter().flat_map(|file| &file.blocks).map(taken).sum();
    assert!((20_000..=30_000).contains(&taken), "{taken} frames");
    let sets: BTreeSet<BlockSet> =
        record.files.iter().flat_map(|file| file.blocks.iter().map(|block| block.set)).collect();
    assert!(sets.contains(&BlockSet::Training) && sets.len() > 1, "{sets:?}");
}

#[test]
fn attacks_are_made_again_when_their_logs_or_options_change() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = write_dataset(&folder.path().join("car"), 6_000);
    let log = dataset.root.join("train_01_attack_free/drive-1.csv");
    let target = folder.path().join("new/attacks");
    let options = SyntheticOptions::default();
    let ensure = |options: &SyntheticOptions, divide: Divide<'_>| {
        ensure_synthetic(&dataset, options, None, &ReadOptions::default(), divide, &target).unwrap()
    };
    assert!(!has_synthetic(&dataset, &options, None, &ReadOptions::default(), DIVIDE, &target).unwrap());
    assert!(ensure(&options, DIVIDE) && !ensure(&options, DIVIDE));
    // Only the time of a log has changed.
    let bytes = fs::read(target.join("drive-1-replay.csv.gz")).unwrap();
    let later = SystemTime::now() + Duration::from_secs(60);
    File::options().append(true).open(&log).unwrap().set_modified(later).unwrap();
    assert!(!ensure(&options, DIVIDE) && !ensure(&options, DIVIDE));
    // A log of the same size with other content.
    let old = fs::read_to_string(&log).unwrap();
    fs::write(&log, old.replacen("1000.000500", "1000.000501", 1)).unwrap();
    assert!(!has_synthetic(&dataset, &options, None, &ReadOptions::default(), DIVIDE, &target).unwrap());
    assert!(ensure(&options, DIVIDE) && !ensure(&options, DIVIDE));
    assert_ne!(record_of(&target).sources[0].blake3, blake3::hash(old.as_bytes()).to_hex().to_string());
    // Other options, other blocks, a damaged log, a damaged record.
    let other = SyntheticOptions { share: 0.4, ..options.clone() };
    assert!(ensure(&other, DIVIDE) && ensure(&options, DIVIDE));
    assert!(ensure(&options, &|_, frames| source_blocks(frames, 100, 50, 0.2)) && ensure(&options, DIVIDE));
    assert_eq!(fs::read(target.join("drive-2-replay.csv.gz")).unwrap().len(), {
        fs::write(target.join("drive-2-replay.csv.gz"), &bytes).unwrap();
        assert!(ensure(&options, DIVIDE), "a changed file is not noticed");
        fs::read(target.join("drive-2-replay.csv.gz")).unwrap().len()
    });
    fs::write(target.join("synthetic.json"), "{").unwrap();
    assert!(ensure(&options, DIVIDE) && !ensure(&options, DIVIDE));
    // Nothing but the folder and its lock is left.
    let mut left: Vec<_> =
        fs::read_dir(folder.path().join("new")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, [".attacks.lock", "attacks"]);
}

#[test]
fn what_cannot_be_attacked_is_refused_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = write_dataset(&folder.path().join("car"), 3_000);
    let target = folder.path().join("attacks");
    let refused = |dataset: &Dataset, options: &SyntheticOptions| {
        ensure_synthetic(dataset, options, None, &ReadOptions::default(), DIVIDE, &target).unwrap_err().to_string()
    };
    let default = SyntheticOptions::default;
    for (options, message) in [
        (
            SyntheticOptions { share: 0.0, ..default() },
            "option share of synthetic attacks is 0; expected a number above 0",
        ),
        (SyntheticOptions { share: f64::NAN, ..default() }, "share of synthetic attacks is NaN"),
        (SyntheticOptions { most_frames: 99, ..default() }, "most_frames of synthetic attacks is 99"),
        (SyntheticOptions { kinds: vec![], ..default() }, "kinds of synthetic attacks is empty"),
        (
            SyntheticOptions { kinds: vec![SyntheticKind::Replay; 2], ..default() },
            "is replay twice; expected each kind once",
        ),
    ] {
        let said = refused(&dataset, &options);
        assert!(said.contains(message), "{said}");
    }
    let overlapping: Divide<'_> = &|_, frames| {
        let block = |frames| SourceBlock { set: BlockSet::Training, frames };
        vec![block(0..frames), block(frames - 1..frames)]
    };
    let said = ensure_synthetic(&dataset, &default(), None, &ReadOptions::default(), overlapping, &target)
        .unwrap_err()
        .to_string();
    assert!(said.contains("option divide") && said.contains("without overlap"), "{said}");
    let mut without = dataset.clone();
    without.files.retain(|file| file.role != Role::TrainAttackFree);
    let said = refused(&without, &default());
    assert!(said.contains("car: has no attack-free training log") && said.contains("train_*attack_free*"), "{said}");
    let short = folder.path().join("short");
    write_log(&short, "train_01_attack_free", "a.csv", &traffic(50, 5, 1, 0..0));
    let said = refused(&Dataset::open(&short).unwrap(), &default());
    assert!(said.contains("1 attack-free training logs with 50 frames, too few"), "{said}");
    fs::write(short.join("train_01_attack_free/b.csv"), "").unwrap();
    let said = refused(&Dataset::open(&short).unwrap(), &default());
    assert!(said.contains("b.csv: the file is empty"), "{said}");
    fs::write(short.join("train_01_attack_free/b.csv"), "hello\nworld\n").unwrap();
    let said = refused(&Dataset::open(&short).unwrap(), &default());
    assert!(said.contains("b.csv: no known log format"), "{said}");
    assert!(!target.exists());
    // Nothing that was not written by this function is replaced.
    fs::create_dir(&target).unwrap();
    fs::write(target.join("notes.txt"), "mine").unwrap();
    let said = refused(&dataset, &default());
    assert!(said.contains("attacks: exists already and is not empty"), "{said}");
    assert_eq!(fs::read(target.join("notes.txt")).unwrap(), b"mine");
    assert!(matches!(dataset.with_synthetic(&target), Err(CanError::MissingFile { .. })));
}

#[test]
fn logs_of_the_same_name_get_names_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("car");
    for (part, name) in [("train_01_attack_free", "a.csv"), ("train_05_attack_free", "a.csv")] {
        write_log(&root, part, name, &traffic(3_000, 9, part.len() as u64 + u64::from(name.as_bytes()[0]), 0..0));
    }
    let (dataset, target) = (Dataset::open(&root).unwrap(), folder.path().join("attacks"));
    let options = SyntheticOptions { kinds: vec![SyntheticKind::Replay], ..SyntheticOptions::default() };
    ensure_synthetic(&dataset, &options, None, &ReadOptions::default(), DIVIDE, &target).unwrap();
    let names: Vec<String> = record_of(&target).files.into_iter().map(|file| file.name).collect();
    assert_eq!(names, ["a-replay.csv.gz", "a-2-replay.csv.gz"]);
    let origins: Vec<String> = dataset
        .with_synthetic(&target)
        .unwrap()
        .files
        .iter()
        .filter_map(|file| file.synthetic.as_ref().map(|origin| origin.folder.clone()))
        .collect();
    assert_eq!(origins, ["train_05_attack_free", "train_01_attack_free"], "the copies are in order of their names");
}

/// The payload that carries a frame's number and log, with a check value: forged bytes never give another frame's payload.
fn numbered(log: u64, number: usize) -> [u8; 8] {
    let check = blake3::hash(&[&log.to_le_bytes()[..], &number.to_le_bytes()].concat());
    let mut payload = [0; 8];
    payload[..3].copy_from_slice(&(number as u32).to_le_bytes()[..3]);
    payload[3..].copy_from_slice(&check.as_bytes()[..5]);
    payload
}

/// Frames of a log that can be recognised wherever they are sent again.
fn numbered_log(log: u64, frames: usize, seed: u64) -> Vec<Frame> {
    let mut draw = Draw(seed);
    let frame = |number: usize| {
        let can_id = 0x100 + (draw.next(40) * draw.next(40) / 100) as u32;
        let timestamp = 1000.0 + number as f64 * 0.001;
        Frame { timestamp, can_id, payload: numbered(log, number), payload_length: 8, attack: false }
    };
    (0..frames).map(frame).collect()
}

/// Source frames whose content is in the windows of a split, by log; `stretches` selects the windows of a file.
fn sources_in(
    dataset: &Dataset,
    store: &Store,
    known: &BTreeMap<[u8; 8], (u64, usize)>,
    stretches: impl Fn(&FileEntry) -> Vec<Range<u64>>,
) -> BTreeSet<(u64, usize)> {
    let BuildOptions { window, stride, .. } = store.manifest().options;
    let mut found = BTreeSet::new();
    for (entry, file) in store.manifest().files.iter().zip(&dataset.files) {
        let frames = frames_in(&file.path);
        for stretch in stretches(entry).into_iter().filter(|stretch| !stretch.is_empty()) {
            assert!(stretch.end <= entry.graphs, "{}: {stretch:?} of {} graphs", entry.name, entry.graphs);
            let read = frames_of(&stretch, window, stride);
            let read = &frames[read.start as usize..read.end as usize];
            found.extend(read.iter().filter_map(|frame| known.get(&frame.payload)));
        }
    }
    found
}

/// No frame of a training window is in a validation window of any log, nor is its payload; and the halves of the validation windows
/// share no frame either.
#[test]
fn nothing_leaks_between_training_and_validation() {
    let mut draw = Draw(11);
    // Validation windows of synthetic logs in all cases, without and with an attack.
    let mut validated = [0, 0];
    for case in 0..12 {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("car");
        let mut known = BTreeMap::new();
        for log in 0..2 {
            let frames = numbered_log(log, 4_000 + draw.next(9_000) as usize, case * 2 + log);
            known.extend(frames.iter().enumerate().map(|(number, frame)| (frame.payload, (log, number))));
            write_log(&root, "train_01_attack_free", &format!("{log}.csv"), &frames);
        }
        let window = [100, 50, 20][draw.next(3) as usize];
        let stride = [window, window / 2, 7, window + 30][draw.next(4) as usize];
        let validation_fraction = [0.2, 0.5, 0.07][draw.next(3) as usize];
        let options = BuildOptions { window, stride, validation_fraction, ..BuildOptions::default() };
        let dataset = Dataset::open(&root).unwrap();
        let attacks =
            SyntheticOptions { most_frames: [2_000_000, 25_000][case as usize % 2], seed: case, ..Default::default() };
        let target = folder.path().join("attacks");
        let divide = |_: &_, frames| source_blocks(frames, window, stride, validation_fraction);
        ensure_synthetic(&dataset, &attacks, None, &ReadOptions::default(), &divide, &target).unwrap();
        let dataset = dataset.with_synthetic(&target).unwrap();
        let store = open_or_build(&dataset, &options, &folder.path().join("stores"), &()).unwrap();
        let of = |split: Split| sources_in(&dataset, &store, &known, |entry| entry.split.stretches(split).to_vec());
        let (training, validation) = (of(Split::Train), of(Split::Validation));
        let text = format!("case {case}: window {window}, stride {stride}, validation {validation_fraction}");
        assert!(training.is_disjoint(&validation), "{text}");
        assert!(training.len() > 2_000 && validation.len() > 200, "{text}: {} {}", training.len(), validation.len());
        // Synthetic logs have windows of both, attacked and not; a small log may have few for validation.
        for attack in [true, false] {
            let windows = |split| store.select_folder(FOLDER, split, Some(attack)).len();
            assert!(windows(Split::Train) >= 10, "{text}: training windows, attack {attack}");
            validated[usize::from(attack)] += windows(Split::Validation);
        }
        let halves = store.validation_halves();
        let of_half = |half: &[u64]| {
            let in_half = |entry: &FileEntry| {
                let own = entry.first_graph..entry.first_graph + entry.graphs;
                let own = half.iter().filter(|graph| own.contains(graph)).map(|graph| graph - entry.first_graph);
                own.map(|graph| graph..graph + 1).collect()
            };
            sources_in(&dataset, &store, &known, in_half)
        };
        let [first, second] = [of_half(&halves[0]), of_half(&halves[1])];
        assert!(first.is_disjoint(&second), "{text}: the halves of the validation windows");
        let count = halves.iter().map(Vec::len).sum::<usize>();
        assert!(count <= store.select(Split::Validation, None).len() && !second.is_empty(), "{text}");
    }
    assert!(validated.iter().all(|&windows| windows > 100), "{validated:?}");
}

#[test]
fn a_store_with_synthetic_attacks_is_built_alike_in_parts_and_with_any_format_of_the_other_logs() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("car");
    for (part, name, attacks) in [
        ("train_01_attack_free", "drive.log", 0..0),
        ("train_02_with_attacks", "fuzzing.log", 1_000..2_000),
        ("test_01_known", "fuzzing.log", 1_000..2_000),
    ] {
        fs::create_dir_all(root.join(part)).unwrap();
        let row = |frame: &Frame| {
            let digits: String = frame.payload.iter().map(|byte| format!("{byte:02X}")).collect();
            format!("({:.6}) can0 {:03X}#{digits}\n", frame.timestamp, frame.can_id)
        };
        let text: String = traffic(5_000, 12, part.len() as u64, attacks).iter().map(row).collect();
        fs::write(root.join(part).join(name), text).unwrap();
    }
    let dataset = Dataset::open(&root).unwrap();
    let target = folder.path().join("attacks");
    let format = Some(Format::Candump);
    ensure_synthetic(&dataset, &SyntheticOptions::default(), format, &ReadOptions::default(), DIVIDE, &target).unwrap();
    let dataset = dataset.with_synthetic(&target).unwrap();
    let options = BuildOptions { format, piece_bytes: 20_000, ..BuildOptions::default() };
    let single = open_or_build(&dataset, &options, &folder.path().join("single"), &()).unwrap();
    let manifest = single.manifest();
    assert!(manifest.files.iter().any(|file| file.synthetic.is_some() && file.attack_graphs > 0));
    let stores = folder.path().join("parts");
    let build = |part| build_part(&dataset, &options, Share { part, parts: 3 }, &stores, &()).unwrap();
    let parts: Vec<PathBuf> = (1..=3).map(build).collect();
    let merged = merge(&parts, &stores, &()).unwrap();
    assert!(contents(merged.path()) == contents(single.path()), "parts give other bytes");
    // Other attacks under the same names are noticed.
    let other = SyntheticOptions { seed: 9, ..SyntheticOptions::default() };
    let recorded = Dataset::open(&root).unwrap();
    ensure_synthetic(&recorded, &other, format, &ReadOptions::default(), DIVIDE, &target).unwrap();
    let again = recorded.with_synthetic(&target).unwrap();
    let again = open_or_build(&again, &options, &folder.path().join("single"), &()).unwrap();
    assert_ne!(again.digest(), single.digest());
}

fn manifest_in(stores: &Path) -> Manifest {
    Manifest::read(&only_store(stores)).unwrap()
}

#[test]
fn a_classifier_trains_with_them_and_its_evaluation_uses_them_by_default() {
    let workplace = Workplace::new();
    let train = [
        "classifier",
        "--preset",
        "gat,student,quick",
        "--use-kd",
        "false",
        "--max-epochs",
        "2",
        "--synthetic-attacks",
    ];
    let said = workplace.success(&train);
    assert!(
        said.contains("made 12 logs with synthetic attacks from the attack-free training logs of the dataset 'small'"),
        "{said}"
    );
    let manifest = manifest_in(&workplace.path().join("stores"));
    let added: Vec<&FileEntry> = manifest.files.iter().filter(|file| file.folder == FOLDER).collect();
    assert!(added.len() == 12 && added.iter().all(|file| file.attack_graphs > 0 && !file.split.validation.is_empty()));
    assert_eq!(manifest.dataset, "small");
    // The IDs of fuzzing and flooding are not in the vocabulary.
    let plain = Workplace::new();
    plain.success(&["data", "build"]);
    let without = manifest_in(&plain.path().join("stores"));
    assert_eq!(manifest.vocabulary, without.vocabulary);

    let run = workplace.path().join("runs/small/gat_student_normal/1");
    let run = run.to_str().unwrap();
    let digest = |output: &str| {
        let path = workplace.path().join(output).join("metrics.json");
        let metrics: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        metrics["data_digest"].as_str().unwrap().to_owned()
    };
    // The rules would have a store of their own.
    let evaluate =
        |more: &[&str]| workplace.success(&[&["evaluate", run, "--resamples", "0", "--rules", "false"], more].concat());
    let small = small_dataset().to_str().unwrap();
    let changed = "before its logs changed";
    let said = evaluate(&["--output", "with"]);
    assert!(!said.contains(changed) && !said.contains("made "), "{said}");
    evaluate(&["--data", small, "--output", "named"]);
    assert_eq!((digest("with"), digest("named")), (manifest.digest.clone(), manifest.digest.clone()));
    let said = evaluate(&["--synthetic-attacks", "false", "--output", "without"]);
    assert!(!said.contains(changed) && !said.contains("its threshold is chosen without"), "{said}");
    assert_eq!(digest("without"), without.digest);
    // A model of other blocks: its training frames are not in the windows that validation figures are of, nor choose a new threshold.
    let said = evaluate(&["--validation-fraction", "0.4", "--output", "other"]);
    let recorded = "its validation figures are computed without them; its threshold is the recorded one";
    assert!(said.contains(recorded) && !said.contains("its threshold is chosen without"), "{said}");
    let said = evaluate(&["--validation-fraction", "0.4", "--threshold", "youden", "--output", "youden"]);
    assert!(said.contains("its threshold is chosen without them"), "{said}");
    // Commands that write nothing, and those that do not read them.
    assert!(
        workplace
            .success(&["data", "info", "--synthetic-attacks"])
            .contains("train_03_synthetic_attacks/drive-1-replay")
    );
    assert!(workplace.refused(&["data", "check", "--synthetic-attacks"]).contains("--synthetic-attacks"));
    assert!(!plain.success(&["data", "check"]).contains(FOLDER));
}

#[test]
fn a_dataset_without_attack_free_logs_says_what_is_needed() {
    let workplace = Workplace::new();
    let root = workplace.path().join("car");
    write_log(&root, "train_02_with_attacks", "a.csv", &traffic(3_000, 9, 1, 900..1_200));
    let said = workplace.refused(&["data", "build", "--data", "car", "--synthetic-attacks"]);
    assert!(
        said.contains("car: has no attack-free training log") && said.contains("--synthetic-attacks false"),
        "{said}"
    );
    write_log(&root, FOLDER, "b.csv", &traffic(3_000, 9, 2, 900..1_200));
    write_log(&root, "train_01_attack_free", "c.csv", &traffic(3_000, 9, 3, 0..0));
    let said = workplace.refused(&["data", "build", "--data", "car", "--synthetic-attacks"]);
    assert!(said.contains("train_03_synthetic_attacks: the dataset has a folder with this name"), "{said}");
}
