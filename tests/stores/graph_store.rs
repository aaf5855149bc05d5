//! Stores: reading returns what was written, nothing leaks between splits, and no damaged or partial store is used.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use kdgat::can::{CanError, Dataset, Frame, Role};
use kdgat::graph::split::FileSplit;
use kdgat::graph::store::shard::{self, Shard};
use kdgat::graph::{BuildOptions, FeatureSet, Share, Split, Store, StoreError, Vocabulary, build_part, open_or_build};
use proptest::prelude::*;
use support::graph::{Fixture, Heard, any_graph, columns_of, contents_names, fixture, small, traffic, write_log};
use support::real_data::candata;

/// Bytes of every file of a folder.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_shard_gives_back_any_graphs(graphs in prop::collection::vec(any_graph(), 1..12)) {
        let folder = tempfile::tempdir().unwrap();
        let columns = columns_of(&graphs);
        let (entry, _) = shard::write(&folder.path().join("shard-00000.safetensors"), &columns).unwrap();
        let shard = Shard::open(folder.path(), &entry, FeatureSet::Window, 100).unwrap();
        shard.verify(&entry).unwrap();
        prop_assert_eq!(entry.graphs as usize, graphs.len());
        for index in 0..graphs.len() {
            prop_assert_eq!(shard.graph(index).unwrap(), columns.graph(index));
        }
        prop_assert_eq!(shard.labels(), columns.labels.as_slice());
        prop_assert!(columns.bytes() <= entry.bytes && entry.bytes < columns.bytes() + 2048, "size estimate");
    }

    #[test]
    fn splits_share_no_frame(
        graphs in 0u64..3000,
        window in 2usize..300,
        stride in 1usize..400,
        fraction in 0.0f64..0.9,
    ) {
        let split = FileSplit::new(graphs, window, stride, fraction);
        let frames = |part: &Range<u64>| part.start * stride as u64..=(part.end - 1) * stride as u64 + window as u64;
        for train in &split.train {
            for validation in &split.validation {
                let (train, validation) = (frames(train), frames(validation));
                let apart = train.end() < validation.start() || validation.end() < train.start();
                prop_assert!(apart, "training frames {train:?} and validation frames {validation:?}");
            }
        }
        let parts = |parts: &[Range<u64>]| parts.iter().map(|part| part.end - part.start).sum::<u64>();
        let wanted = (graphs as f64 * fraction).round() as u64;
        prop_assert_eq!(parts(&split.validation), wanted, "validation windows");
        let most_dropped = 2 * split.validation.len() as u64 * (window / stride) as u64;
        prop_assert!(parts(&split.train) + wanted + most_dropped >= graphs, "too many dropped: {split:?}");
        for graph in 0..graphs {
            let within = |parts: &[Range<u64>]| parts.iter().any(|part| part.contains(&graph));
            let expected = match (within(&split.train), within(&split.validation)) {
                (true, false) => Some(Split::Train),
                (false, true) => Some(Split::Validation),
                (false, false) => None,
                (true, true) => panic!("graph {graph} is on both sides"),
            };
            prop_assert_eq!(split.of(graph), expected);
        }
    }
}

#[test]
fn counts_splits_and_vocabulary_are_those_of_the_frames() {
    let fixture = fixture(3000);
    let store = open_or_build(&fixture.dataset, &small(), &fixture.stores, &()).unwrap();
    store.verify().unwrap();
    let manifest = store.manifest();
    let frames = [3000, 1000, 3000, 3037, 3000];
    let roles = [Role::Test, Role::Test, Role::TrainAttackFree, Role::TrainAttackFree, Role::TrainWithAttacks];
    for ((file, frames), role) in manifest.files.iter().zip(frames).zip(roles) {
        assert_eq!((file.report.frames, file.graphs, file.role), (frames, (frames - 1) / 20, role), "{}", file.name);
    }
    assert_eq!(store.num_graphs(), manifest.files.iter().map(|file| file.graphs).sum::<u64>());
    assert_eq!(manifest.totals.attack_frames, 2000);
    assert_eq!(manifest.totals.ids, 20 + 12, "IDs of traffic and of attacks");
    assert!(manifest.shards.len() > 10, "{} shards of 20 kB", manifest.shards.len());

    // Attack IDs begin at 0x700; the second training file has 14 IDs; the test has more.
    let expected: Vec<u32> = (0..14).map(|id| 0x100 + id * 3).collect();
    assert_eq!(store.vocabulary(), &Vocabulary::from_ids(expected));

    let select = |split, attack| store.select(split, attack);
    assert_eq!(select(Split::Test, None).len() as u64, manifest.files[0].graphs + manifest.files[1].graphs);
    assert_eq!(
        select(Split::Test, None),
        [
            store.select_folder("test_01_known", Split::Test, None),
            store.select_folder("test_02_unknown", Split::Test, None)
        ]
        .concat()
    );
    for split in [Split::Train, Split::Validation, Split::Test] {
        let (free, attack) = (select(split, Some(false)), select(split, Some(true)));
        assert!(!free.is_empty() && !attack.is_empty(), "{split:?}");
        assert!(attack.iter().all(|&graph| store.graph(graph).attack));
        assert!(free.iter().all(|&graph| !store.graph(graph).attack));
        let both: BTreeSet<u64> = free.into_iter().chain(attack).collect();
        assert_eq!(both.into_iter().collect::<Vec<_>>(), select(split, None));
    }
    let seen = |split| {
        let frames = |graph: u64| (0..=20).map(move |step| (graph, step));
        let place = |(graph, step)| (store.graph(graph).file, store.graph(graph).first_frame + step);
        select(split, None).into_iter().flat_map(frames).map(place).collect::<HashSet<_>>()
    };
    assert!(seen(Split::Train).is_disjoint(&seen(Split::Validation)), "a frame is on both sides");
}

#[test]
fn the_store_is_the_same_from_any_number_of_threads() {
    let fixture = fixture(4000);
    let build = |threads, folder: &str| {
        let stores = fixture.stores.join(folder);
        let store = open_or_build(&fixture.dataset, &BuildOptions { threads, ..small() }, &stores, &()).unwrap();
        contents(store.path())
    };
    let one = build(1, "one");
    assert!(one.len() > 10, "{:?}", one.keys());
    assert!(one == build(4, "four"), "bytes differ between 1 and 4 threads");
}

#[test]
fn a_store_is_built_once_and_again_when_something_changed() {
    let mut fixture = fixture(1000);
    let open = |fixture: &Fixture, options: &BuildOptions| {
        let heard = Heard::default();
        let store = open_or_build(&fixture.dataset, options, &fixture.stores, &heard).unwrap();
        (store, heard)
    };
    let (first, heard) = open(&fixture, &small());
    assert_eq!(heard.count("started"), 1);
    assert_eq!(open(&fixture, &small()).1.count("started"), 0, "built twice");

    // A touched file with the same content is compared by content, once.
    let file = fixture.dataset.files[2].path.clone();
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes).unwrap();
    let (touched, heard) = open(&fixture, &small());
    assert_eq!((heard.count("started"), touched.digest()), (0, first.digest()));

    // Another digit, with the same file size.
    let changed = String::from_utf8(bytes).unwrap().replacen("0,10", "0,11", 1);
    fs::write(&file, changed).unwrap();
    let (second, heard) = open(&fixture, &small());
    assert_eq!((heard.count("started"), heard.count("rebuilding")), (1, 1));
    assert_eq!(second.path(), first.path());
    assert_ne!(second.digest(), first.digest());

    // Other options or more rows give another store.
    let (other, heard) = open(&fixture, &BuildOptions { stride: 10, ..small() });
    assert_eq!(heard.count("started"), 1);
    assert_ne!(other.path(), second.path());
    write_log(&fixture.dataset.root, "train_01_attack_free", "drive-1.csv", &traffic(1200, 12, 1, 0..0));
    fixture.dataset = Dataset::open(&fixture.dataset.root).unwrap();
    let (longer, heard) = open(&fixture, &small());
    assert_eq!((heard.count("started"), longer.num_graphs()), (1, second.num_graphs() + 10));
}

/// ROAD's labels are in a file beside its logs.
#[test]
fn a_store_is_built_again_when_labels_beside_its_logs_change() {
    let mut fixture = fixture(1000);
    let folder = fixture.dataset.root.join("test_03_road");
    fs::create_dir_all(&folder).unwrap();
    let text: String =
        (0..300).map(|row| format!("({:.2}) can0 {:03X}#00\n", f64::from(row) / 20.0, row % 7)).collect();
    fs::write(folder.join("drive.log"), text).unwrap();
    fixture.dataset = Dataset::open(&fixture.dataset.root).unwrap();
    let open = |stores: &Path| {
        let heard = Heard::default();
        let store = open_or_build(&fixture.dataset, &small(), stores, &heard).unwrap();
        let file = store.manifest().files.iter().find(|file| file.folder == "test_03_road").unwrap().clone();
        (file.attack_graphs, file.source.labels_blake3.is_some(), heard.count("started"))
    };
    let share = Share { part: 1, parts: 2 };
    let part =
        || fs::read(build_part(&fixture.dataset, &small(), share, &fixture.stores, &()).unwrap().join("part.json"));
    let stores = fixture.stores.as_path();
    assert_eq!(open(stores), (0, false, 1));
    let before = part().unwrap();
    let labels = folder.join("capture_metadata.json");
    fs::write(&labels, r#"{"drive": {"injection_interval": [0.0, 0.5]}}"#).unwrap();
    assert_eq!(open(stores), (1, true, 1), "labels were added");
    assert_ne!(part().unwrap(), before, "a part with the labels as they were");
    assert_eq!(open(stores), (1, true, 0), "nothing changed");
    fs::write(&labels, r#"{"drive": {"injection_interval": [0.0, 4.95]}}"#).unwrap();
    let (attacks, _, started) = open(stores);
    assert!(attacks > 1 && started == 1, "the interval changed");
    fs::write(&labels, "{").unwrap();
    let error = open_or_build(&fixture.dataset, &small(), stores, &()).unwrap_err();
    assert!(error.to_string().contains("capture_metadata.json"), "{error}");
    fs::remove_file(&labels).unwrap();
    assert_eq!(open(stores), (0, false, 1), "labels were removed");
}

#[test]
fn a_store_of_another_version_is_named_and_rebuilt() {
    let fixture = fixture(1000);
    let store = open_or_build(&fixture.dataset, &small(), &fixture.stores, &()).unwrap();
    let manifest = store.path().join("store.json");
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, text.replace("\"format_version\": 1", "\"format_version\": 999")).unwrap();

    let error = Store::open(store.path()).unwrap_err();
    assert!(matches!(error, StoreError::Version { found: 999, .. }), "{error}");
    assert!(error.is_input() && error.to_string().contains("kdgat data build"), "{error}");
    let heard = Heard::default();
    let again = open_or_build(&fixture.dataset, &small(), &fixture.stores, &heard).unwrap();
    assert_eq!((heard.count("rebuilding"), again.digest()), (1, store.digest()));
}

#[test]
fn damage_is_found_and_named() {
    let fixture = fixture(1000);
    let store = open_or_build(&fixture.dataset, &small(), &fixture.stores, &()).unwrap();
    let folder = store.path().to_path_buf();
    let whole = contents(&folder);
    let open = || open_or_build(&fixture.dataset, &small(), &fixture.stores, &());
    let shard = folder.join("shard-00001.safetensors");
    let restore = || whole.iter().for_each(|(name, bytes)| fs::write(folder.join(name), bytes).unwrap());

    let names_shard = |error: StoreError| {
        let text = error.to_string();
        assert!(text.contains("shard-00001") && text.contains("data build"), "{text}");
        assert!(error.is_input());
    };
    fs::write(&shard, &whole["shard-00001.safetensors"][..5000]).unwrap();
    names_shard(Store::open(&folder).unwrap_err());
    names_shard(open().unwrap_err());
    fs::remove_file(&shard).unwrap();
    names_shard(Store::open(&folder).unwrap_err());

    // A flipped bit anywhere is found by verification and causes no panic during batch assembly.
    let bytes = &whole["shard-00001.safetensors"];
    for position in (0..bytes.len()).step_by(bytes.len() / 40) {
        let mut damaged = bytes.clone();
        damaged[position] ^= 0x40;
        fs::write(&shard, damaged).unwrap();
        match Store::open(&folder) {
            Err(error) => names_shard(error),
            Ok(store) => {
                names_shard(store.verify().unwrap_err());
                for graph in 0..store.num_graphs() {
                    let options = kdgat::graph::AssembleOptions {
                        vocabulary: std::sync::Arc::new(store.vocabulary().clone()),
                        unknown_drop: None,
                        edge_attributes: true,
                        hashed_ids: false,
                        profile: None,
                        short_profiles: false,
                        space: None,
                    };
                    let _ = kdgat::graph::assemble(&store, &[graph], &options);
                }
            }
        }
    }
    restore();
    for (damage, replaced) in [("\"graphs\": ", "\"graphs\": 1"), ("\"digest\": \"", "\"digest\": \"0"), ("{", "[")] {
        let text = String::from_utf8(whole["store.json"].clone()).unwrap();
        fs::write(folder.join("store.json"), text.replacen(damage, replaced, 1)).unwrap();
        let error = open().unwrap_err();
        assert!(error.to_string().contains("store.json is damaged"), "{error}");
    }
    restore();
    open().unwrap().verify().unwrap();
    assert!(matches!(Store::open(&fixture.stores).unwrap_err(), StoreError::Missing { .. }));
}

#[test]
fn pointers_that_descend_or_leave_a_shard_are_found_when_it_is_opened() {
    let fixture = fixture(1000);
    let store = open_or_build(&fixture.dataset, &small(), &fixture.stores, &()).unwrap();
    let shard = store.path().join("shard-00001.safetensors");
    let whole = fs::read(&shard).unwrap();
    let data = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let graphs = store.manifest().shards[1].graphs as usize;
    // One flipped bit in the first, a middle or the last pointer of `node_ptr` or `edge_ptr`, the first columns of a shard.
    for (column, name) in [(0, "node_ptr"), (1, "edge_ptr")] {
        for (graph, byte, bit) in [(0, 0, 0x01), (graphs / 2, 0, 0x80), (graphs / 2, 7, 0x80), (graphs, 0, 0x01)] {
            let mut damaged = whole.clone();
            damaged[data + 8 * (column * (graphs + 1) + graph) + byte] ^= bit;
            fs::write(&shard, damaged).unwrap();
            let error = Store::open(store.path()).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("shard-00001") && text.contains(name), "{name} {graph} {byte}: {text}");
            assert!(error.is_input());
        }
    }
}

#[test]
fn a_file_of_bad_rows_is_named() {
    let fixture = fixture(1000);
    let path = &fixture.dataset.files[2].path;
    let mut text = fs::read_to_string(path).unwrap();
    text.push_str("1.0,XYZ,00,0\n1.0,100,0,0,0,0,0\n1.0,100,123,0\n");
    fs::write(path, &text).unwrap();
    let store = open_or_build(&fixture.dataset, &small(), &fixture.stores, &()).unwrap();
    assert_eq!(store.manifest().totals.rejected_rows, 3, "few bad rows are counted");

    text.push_str(&"1.0,XYZ,00,0\n".repeat(20));
    fs::write(path, &text).unwrap();
    let error = open_or_build(&fixture.dataset, &small(), &fixture.stores, &()).unwrap_err();
    let message = error.to_string();
    assert!(matches!(error, StoreError::Can(CanError::Rejected { rejected: 23, rows: 1023, .. })), "{message}");
    assert!(error.is_input());
    for part in ["drive-1.csv", "line 1002", "not hexadecimal", "--max-reject-share"] {
        assert!(message.contains(part), "{part} is not in: {message}");
    }
    let left = contents_names(&fixture.stores);
    assert!(left.iter().all(|name| !name.contains(".building")), "left over: {left:?}");
    open_or_build(&fixture.dataset, &BuildOptions { max_reject_share: 0.05, ..small() }, &fixture.stores, &()).unwrap();
}

#[test]
fn what_gives_no_store_says_why() {
    let fixture = fixture(90);
    let open = |options: &BuildOptions| open_or_build(&fixture.dataset, options, &fixture.stores, &()).unwrap_err();
    let message = open(&BuildOptions { window: 200, ..small() }).to_string();
    assert!(
        message.contains("201 frames in one file") && message.contains("longest of its files has 127"),
        "{message}"
    );
    for (options, name) in [
        (BuildOptions { window: 1, ..small() }, "window"),
        (BuildOptions { stride: 0, ..small() }, "stride"),
        (BuildOptions { validation_fraction: f64::NAN, ..small() }, "validation_fraction"),
        (BuildOptions { max_reject_share: 1.5, ..small() }, "max_reject_share"),
    ] {
        let error = open(&options);
        assert!(error.is_input() && error.to_string().starts_with(name), "{error}");
    }
    let blocked = fixture.dataset.root.join("train_01_attack_free/drive-1.csv/stores");
    let error = open_or_build(&fixture.dataset, &small(), &blocked, &()).unwrap_err();
    // A path that nobody can create a folder at.
    assert!(error.is_input() && error.to_string().contains("cannot create"), "{error}");
}

#[test]
fn real_traffic_has_the_known_counts() {
    let Some(data) = candata("hcrl_sa") else { return };
    let stores = tempfile::tempdir().unwrap();
    let dataset = Dataset::open(&data).unwrap();
    let start = Instant::now();
    let store = open_or_build(&dataset, &BuildOptions::default(), stores.path(), &()).unwrap();
    let seconds = start.elapsed().as_secs_f64();
    let totals = &store.manifest().totals;
    let rate = totals.frames as f64 / seconds / 1e6;
    println!("{} frames in {seconds:.2} s: {rate:.2} million a second; {totals:?}", totals.frames);
    let graphs = |training: bool, attacks: bool| {
        let files = store.manifest().files.iter().filter(|file| (file.role != Role::Test) == training);
        files.map(|file| if attacks { file.attack_graphs } else { file.graphs }).sum::<u64>()
    };
    assert_eq!((graphs(true, false), graphs(true, true)), (6271, 1298), "training windows");
    assert_eq!((graphs(false, false), graphs(false, true)), (9712, 4150), "test windows");
    assert_eq!((totals.frames, totals.attack_frames, totals.rejected_rows), (1_598_906, 183_314, 0));
    let backward: u64 = store.manifest().files.iter().map(|file| file.report.backward_timestamps).sum();
    assert_eq!(backward, 0);

    let start = Instant::now();
    let opened = open_or_build(&dataset, &BuildOptions::default(), stores.path(), &()).unwrap();
    println!("opened in {:?}: {} shards", start.elapsed(), opened.manifest().shards.len());
    assert!(start.elapsed() < Duration::from_secs(1));
}

/// Folds, validation and shards divide a log of joined drives; wherever the pause lies among them, it is no silence of an ID.
#[test]
fn a_pause_in_a_stores_log_is_no_silence() {
    let folder = tempfile::tempdir().unwrap();
    // IDs 1 to 8 every 10 ms, ID 9 every second.
    let frames = |pause_at: usize| -> Vec<Frame> {
        let of_step = |step: usize| {
            let ids = (1..=8).chain(step.is_multiple_of(100).then_some(9));
            ids.map(move |can_id| {
                let time = 0.01 * step as f64 + 0.001 * f64::from(can_id);
                let payload = [step as u8, (step >> 8) as u8, can_id as u8, 0, 0, 0, 0, 0];
                Frame { timestamp: time, can_id, payload, payload_length: 8, attack: false }
            })
        };
        let mut frames: Vec<Frame> = (0..4000).flat_map(of_step).collect();
        frames[pause_at..].iter_mut().for_each(|frame| frame.timestamp += 300.0);
        frames
    };
    // Of blocks of 64 windows of 20 frames, and somewhere in them.
    for (number, pause_at) in
        [2 * 1280 - 3, 2 * 1280, 2 * 1280 + 15, 7 * 1280 - 40, 9 * 1280 + 640].into_iter().enumerate()
    {
        let root = folder.path().join(format!("car-{number}"));
        write_log(&root, "train_01_attack_free", "drive.csv", &frames(pause_at));
        write_log(&root, "test_01_known", "drive.csv", &frames(5));
        let dataset = Dataset::open(&root).unwrap();
        for shard_bytes in [100_000, 64 << 20] {
            let options = BuildOptions { features: FeatureSet::Profile, shard_bytes, keep_duplicates: true, ..small() };
            let store = open_or_build(&dataset, &options, &root.join(format!("{shard_bytes}")), &()).unwrap();
            let profiles = store.manifest().profile.as_ref().unwrap();
            for profile in [&profiles.whole].into_iter().chain(&profiles.without) {
                for (can_id, longest) in [(1, 0.03), (9, 1.1)] {
                    let id = profile.id(can_id).unwrap();
                    assert!(id.longest_silence_seconds < longest, "{pause_at}, {shard_bytes}: {id:?}");
                }
                assert_eq!(profile.id(1).unwrap().gone_seconds(), 5.0);
            }
        }
    }
}
