//! Builds in pieces, builds in parts, and builds resumed after a kill: always the same bytes.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use kdgat::can::{Dataset, Format, Frame, ReadOptions, ReadReport, open_log, read_piece};
use kdgat::graph::{BuildOptions, FeatureSet, Share, StoreError, build_part, merge, open_or_build};
use proptest::prelude::*;
use support::cli::{Workplace, contents, said};
use support::graph::{Draw, traffic, write_dataset, write_log};
use support::starter;
use support::stops::kill_when;

fn small() -> BuildOptions {
    BuildOptions { window: 20, stride: 20, shard_bytes: 60_000, piece_bytes: 30_000, threads: 2, ..Default::default() }
}

fn parts(dataset: &Dataset, options: &BuildOptions, count: usize, stores: &Path) -> Vec<PathBuf> {
    let build = |part| build_part(dataset, options, Share { part, parts: count }, stores, &()).unwrap();
    (1..=count).map(build).collect()
}

#[test]
fn parts_become_the_store_of_a_single_build() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = write_dataset(&folder.path().join("car"), 4000);
    write_log(&dataset.root, "test_02_unknown", "short.csv", &traffic(300, 20, 9, 0..0));
    let dataset = Dataset::open(&dataset.root).unwrap();
    let single = open_or_build(&dataset, &small(), &folder.path().join("single"), &()).unwrap();
    let bytes = contents(single.path());
    for count in [1, 2, 3, 5, 12] {
        let stores = folder.path().join(format!("of-{count}"));
        let mut parts = parts(&dataset, &small(), count, &stores.join("parts"));
        // Merged in any order, without the logs.
        parts.reverse();
        let merged = merge(&parts, &stores, &()).unwrap();
        assert!(contents(merged.path()) == bytes, "{count} parts give other bytes");
        assert_eq!(merged.path().file_name(), single.path().file_name());
        assert!(parts.iter().all(|part| part.join("part.json").exists()), "parts are kept");
        merged.verify().unwrap();
    }
}

/// The feature statistics are sums over all parts.
#[test]
fn parts_with_rich_features_become_the_store_of_a_single_build() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = write_dataset(&folder.path().join("car"), 4000);
    write_log(&dataset.root, "test_02_unknown", "short.csv", &traffic(300, 20, 9, 0..0));
    let dataset = Dataset::open(&dataset.root).unwrap();
    for (features, count) in [(FeatureSet::Rich, 1), (FeatureSet::Rich, 3), (FeatureSet::Rich, 7)] {
        let options = BuildOptions { features, ..small() };
        let single = open_or_build(&dataset, &options, &folder.path().join("single"), &()).unwrap();
        let bytes = contents(single.path());
        let one_thread = BuildOptions { threads: 1, ..options.clone() };
        let again = open_or_build(&dataset, &one_thread, &folder.path().join(format!("again-{count}")), &()).unwrap();
        assert!(contents(again.path()) == bytes, "one thread gives other bytes");
        let stores = folder.path().join(format!("of-{count}-{features}"));
        let mut parts = parts(&dataset, &options, count, &stores.join("parts"));
        // Merged in any order, without the logs.
        parts.reverse();
        let merged = merge(&parts, &stores, &()).unwrap();
        assert!(contents(merged.path()) == bytes, "{count} parts give other bytes");
        assert_eq!(merged.path().file_name(), single.path().file_name());
        assert!(parts.iter().all(|part| part.join("part.json").exists()), "parts are kept");
        merged.verify().unwrap();
    }
}

#[test]
fn parts_that_make_no_store_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = write_dataset(&folder.path().join("car"), 1000);
    let stores = folder.path().join("stores");
    let halves = parts(&dataset, &small(), 2, &stores);
    let thirds = parts(&dataset, &small(), 3, &stores);
    let other_options = parts(&dataset, &BuildOptions { stride: 10, ..small() }, 2, &stores);
    let refused = |parts: &[&PathBuf], expected: &[&str]| {
        let parts: Vec<PathBuf> = parts.iter().map(|&part| part.clone()).collect();
        let error = merge(&parts, &stores, &()).unwrap_err();
        assert!(error.is_input() && matches!(error, StoreError::Parts { .. }), "{error}");
        expected.iter().for_each(|text| assert!(error.to_string().contains(text), "{text} is not in: {error}"));
    };
    refused(&[&halves[0]], &["2/2 is missing"]);
    refused(&[&halves[0], &halves[1], &halves[0]], &["part 1/2 is given twice"]);
    refused(&[&halves[0], &thirds[1]], &["1/2 and 2/3", "same number of parts"]);
    refused(&[&halves[0], &other_options[1]], &["different options"]);
    refused(&[&folder.path().to_path_buf()], &["no part.json"]);
    write_log(&dataset.root, "train_01_attack_free", "drive-1.csv", &traffic(900, 12, 1, 0..0));
    let changed = parts(&dataset, &small(), 2, &folder.path().join("changed"));
    refused(&[&halves[0], &changed[1]], &["train_01_attack_free/drive-1.csv differs in size, in time"]);
    let description = halves[1].join("part.json");
    let text = fs::read_to_string(&description).unwrap();
    fs::write(&description, text.replacen("can_train", "can-train", 1).replacen("graphs", "Graphs", 1)).unwrap();
    refused(&[&halves[0], &halves[1]], &["is damaged"]);
}

#[test]
fn a_damaged_part_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = write_dataset(&folder.path().join("car"), 1000);
    let stores = folder.path().join("stores");
    let halves = parts(&dataset, &BuildOptions { piece_bytes: 10_000, ..small() }, 2, &stores);
    let shards = || fs::read_dir(&halves[1]).unwrap().map(|entry| entry.unwrap().path());
    let shard = shards().find(|path| path.extension().is_some_and(|ending| ending == "safetensors")).unwrap();
    let mut bytes = fs::read(&shard).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&shard, bytes).unwrap();
    let error = merge(&halves, &folder.path().join("merged"), &()).unwrap_err();
    let text = error.to_string();
    assert!(error.is_input() && text.contains(shard.to_str().unwrap()) && !text.contains(".building"), "{text}");
    assert!(
        text.contains("--part 2/2") && text.contains(&format!("delete the folder {}", halves[1].display())),
        "{text}"
    );
}

#[test]
fn parts_are_numbered_from_1_to_at_most_10000() {
    assert_eq!("10000/10000".parse(), Ok(Share { part: 10_000, parts: 10_000 }));
    for text in ["0/3", "4/3", "1/10001", "1/99999999999", "1", "a/b"] {
        assert!(text.parse::<Share>().is_err(), "{text}");
    }
}

#[test]
fn a_log_in_pieces_gives_the_windows_of_a_log_read_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = write_dataset(&folder.path().join("car"), 1500);
    for (window, stride) in [(20, 20), (50, 7), (10, 700)] {
        let build = |piece_bytes, threads, name: &str| {
            let options = BuildOptions { window, stride, piece_bytes, threads, ..small() };
            open_or_build(&dataset, &options, &folder.path().join(name), &()).unwrap()
        };
        let whole = build(u64::MAX, 1, "whole");
        for piece_bytes in [150, 1000, 30_000] {
            let cut = build(piece_bytes, 3, "cut");
            assert_eq!(cut.num_graphs(), whole.num_graphs());
            for graph in 0..whole.num_graphs() {
                assert_eq!(cut.graph(graph), whole.graph(graph), "pieces of {piece_bytes} bytes, graph {graph}");
            }
            let strip = |store: &kdgat::graph::Store| store.manifest().files.clone();
            assert_eq!(strip(&cut), strip(&whole), "pieces of {piece_bytes} bytes");
            assert_eq!(cut.vocabulary(), whole.vocabulary());
            let again = build(piece_bytes, 1, "again");
            assert!(contents(again.path()) == contents(cut.path()), "1 and 3 threads give other bytes");
        }
    }
}

/// Text of a log with every kind of bad row.
fn messy_log(seed: u64, rows: usize, header: bool) -> Vec<u8> {
    let mut draw = Draw(seed);
    let mut text = if header { "attack,data_field,timestamp,arbitration_id\n".to_string() } else { String::new() };
    for row in 0..rows {
        let ending = ["\n", "\r\n", "\n\n", "\n  \n"][draw.next(4) as usize % if draw.next(5) == 0 { 4 } else { 1 }];
        let time = 1000.0 + row as f64 * 0.001 - if draw.next(9) == 0 { 0.5 } else { 0.0 };
        let id = ["12A", "7FF", "xyz", "1ABCDEF0"][draw.next(4) as usize];
        let data = ["", "00FF", "0", "0011223344556677", "001122334455667788"][draw.next(5) as usize];
        let attack = draw.next(3);
        match header {
            true => write!(text, "{attack},{data},{time:.6},{id}{ending}").unwrap(),
            false => write!(text, "{time:.6},{id},{data},{attack}{ending}").unwrap(),
        }
    }
    text.into_bytes()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pieces_of_a_log_are_the_log(
        seed in any::<u64>(),
        rows in 1usize..200,
        header in any::<bool>(),
        ended in any::<bool>(),
        mut cuts in prop::collection::vec(0.0f64..1.0, 0..12),
        long_line in prop::option::of(0.0f64..1.0),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.csv");
        let mut text = messy_log(seed, rows, header);
        if let Some(place) = long_line {
            let place = (text.len() as f64 * place) as usize;
            text.splice(place..place, std::iter::repeat_n(b'7', 70_000));
        }
        if !ended {
            text.pop();
        }
        fs::write(&path, &text).unwrap();
        let mut log = open_log(&path, Some(Format::CanTrainAndTest)).unwrap();
        let (mut expected, mut block): (Vec<Frame>, Vec<Frame>) = (Vec::new(), Vec::new());
        while log.read_block(37, &mut block).unwrap() > 0 {
            expected.extend(&block);
        }
        cuts.extend([0.0, 1.0]);
        cuts.sort_by(f64::total_cmp);
        let length = text.len() as u64;
        let cuts: Vec<u64> = cuts.iter().map(|cut| (cut * length as f64) as u64).collect();
        let (mut found, mut report): (Vec<Frame>, _) = (Vec::new(), ReadReport::default());
        let (mut lines, mut last_timestamp) = (0, None);
        for range in cuts.windows(2) {
            let format = Format::CanTrainAndTest;
            let mut piece = read_piece(&path, format, range[0]..range[1], length, &ReadOptions::default(), &mut block).unwrap();
            piece.follow(lines, last_timestamp);
            lines += piece.lines;
            last_timestamp = piece.last_timestamp.or(last_timestamp);
            report.merge(&piece.report);
            found.extend(&block);
        }
        prop_assert_eq!(found, expected);
        prop_assert_eq!(&report, log.report());
    }
}

#[test]
fn a_killed_build_goes_on_and_gives_the_same_bytes() {
    let workplace = Workplace::new();
    let data = workplace.path().join("car");
    for number in 0..6 {
        write_log(&data, "train_01_attack_free", &format!("{number}.csv"), &traffic(60_000, 30, number, 0..0));
    }
    write_log(&data, "test_01", "large.csv", &traffic(700_000, 30, 99, 100..5000));
    let build = |stores: &str, parts: &[&str]| {
        let arguments = [&["data", "build", "--data", "car", "--stores-dir", stores], parts].concat();
        workplace.command(&arguments)
    };
    assert!(starter::output(&mut build("whole", &[])).status.success());
    let whole = only_folder(&workplace.path().join("whole"));
    let folder = workplace.path().join("killed");
    let mut went_on = 0;
    for lines in [2, 4, 6, 9, 12] {
        // Killed as soon as the journal has this many lines.
        kill_when(build("killed", &[]), "the next line of the journal", || journal_lines(&folder) >= lines);
        if lines == 6 {
            // The result of a kill during a write: an incomplete line, and a file that the journal does not list.
            let unfinished = only_folder(&folder);
            if unfinished.file_name().unwrap().to_string_lossy().starts_with('.') {
                let journal = unfinished.join("build.journal");
                let text = fs::read(&journal).unwrap();
                fs::write(&journal, &text[..text.len() - 9]).unwrap();
                fs::write(unfinished.join("unit-000099-000000.safetensors"), b"torn").unwrap();
            }
        }
        let output = starter::output(&mut build("killed", &[]));
        assert!(output.status.success(), "{}", said(&output));
        went_on += usize::from(said(&output).contains("resuming an interrupted build"));
        let built = only_folder(&folder);
        assert!(contents(&built) == contents(&whole), "killed after {lines} lines: other bytes");
        fs::remove_dir_all(&built).unwrap();
    }
    assert!(went_on >= 2, "only {went_on} of 5 builds were killed in time to go on");
}

/// Number of lines in the journal of the unfinished store in a folder.
fn journal_lines(stores: &Path) -> usize {
    let Ok(entries) = fs::read_dir(stores) else { return 0 };
    let journals = entries.filter_map(|entry| fs::read(entry.ok()?.path().join("build.journal")).ok());
    journals.map(|text| text.iter().filter(|&&byte| byte == b'\n').count()).max().unwrap_or(0)
}

fn only_folder(stores: &Path) -> PathBuf {
    let entries = fs::read_dir(stores).unwrap().map(|entry| entry.unwrap().path());
    let folders: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
    assert_eq!(folders.len(), 1, "{folders:?}");
    folders[0].clone()
}

#[test]
fn parts_and_merge_on_the_command_line() {
    let workplace = Workplace::new();
    let build = |part: &str| {
        let output = workplace.run(&["data", "build", "--part", part, "--stores-dir", "parts"]);
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8(output.stdout).unwrap().trim().to_string()
    };
    let (first, second) = (build("1/2"), build("2/2"));
    assert_eq!(first, build("1/2"), "a part that is there is not built again");
    let merged = workplace.success(&["data", "merge", &first, &second, "--stores-dir", "merged"]);
    assert!(merged.contains("graphs"), "{merged}");
    workplace.success(&["data", "build", "--stores-dir", "single"]);
    let (single, merged) = (workplace.path().join("single"), workplace.path().join("merged"));
    assert!(contents(&only_folder(&single)) == contents(&only_folder(&merged)), "other bytes");
    let text = workplace.refused(&["data", "build", "--part", "3/2"]);
    assert!(text.contains("3/2"), "{text}");
    let text = workplace.refused(&["data", "merge", &first, "--stores-dir", "merged"]);
    assert!(text.contains("2/2 is missing"), "{text}");
}
