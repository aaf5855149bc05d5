//! `--validation logs` and `--validation attacks`: what a store holds out, and what training, evaluation and distillation make of it.

use std::collections::BTreeSet;
use std::path::Path;

use kdgat::can::Dataset;
use kdgat::graph::store::manifest::FileEntry;
use kdgat::graph::{BuildOptions, Split, Store, StoreError, Validation, open_or_build};
use support::graph::{traffic, write_log};
use support::stage::Workplace;
use support::starter;

const FREE: &str = "train_01_attack_free";
const ATTACKS: &str = "train_02_with_attacks";

/// Builds the store of a dataset with two attack-free logs, of 12 and 16 IDs, and these attack logs, larger ones first.
fn store(folder: &Path, attacks: &[&str], validation: Validation) -> Result<Store, StoreError> {
    let data = folder.join("cars");
    write_log(&data, FREE, "first.csv", &traffic(6_000, 12, 1, 0..0));
    write_log(&data, FREE, "second.csv", &traffic(3_000, 16, 2, 0..0));
    for (number, name) in attacks.iter().enumerate() {
        let frames = 6_000 - 500 * number;
        write_log(&data, ATTACKS, name, &traffic(frames, 12, 3 + number as u64, 2_000..3_000));
    }
    let options = BuildOptions { validation, ..BuildOptions::default() };
    open_or_build(&Dataset::open(&data).unwrap(), &options, &folder.join("stores"), &())
}

/// Names of the logs with windows of this set.
fn logs_of(store: &Store, split: Split) -> BTreeSet<&str> {
    let has = |entry: &&FileEntry| !entry.split.stretches(split).is_empty();
    store.manifest().files.iter().filter(has).map(|entry| entry.name.as_str()).collect()
}

#[test]
fn whole_logs_and_whole_kinds_are_held_out() {
    let folder = tempfile::tempdir().unwrap();
    let attacks = ["DoS-1.csv", "DoS-2.csv", "fuzzing-1.csv"];
    let [blocks, logs, kinds] = [Validation::Blocks, Validation::Logs, Validation::Attacks]
        .map(|validation| store(folder.path(), &attacks, validation).unwrap());
    let set = |names: &[&'static str]| names.iter().copied().collect::<BTreeSet<&str>>();
    let all = set(&["first.csv", "second.csv", "DoS-1.csv", "DoS-2.csv", "fuzzing-1.csv"]);
    assert_eq!((logs_of(&blocks, Split::Train), logs_of(&blocks, Split::Validation)), (all.clone(), all));
    assert_eq!(logs_of(&logs, Split::Validation), set(&["second.csv", "fuzzing-1.csv"]));
    assert_eq!(logs_of(&logs, Split::Train), set(&["first.csv", "DoS-1.csv", "DoS-2.csv"]));
    assert_eq!(logs_of(&kinds, Split::Validation), set(&["first.csv", "second.csv", "fuzzing-1.csv"]));
    assert_eq!(logs_of(&kinds, Split::Train), set(&["first.csv", "second.csv", "DoS-1.csv", "DoS-2.csv"]));

    // The vocabulary is of the training data alone.
    assert_eq!((blocks.vocabulary().len(), logs.vocabulary().len()), (17, 13), "UNKNOWN, and 16 or 12 IDs");
    // All windows of a held-out log validate.
    let of_log =
        |store: &Store, name: &str| store.manifest().files.iter().find(|file| file.name == name).unwrap().graphs;
    let expected = of_log(&logs, "second.csv") + of_log(&logs, "fuzzing-1.csv");
    assert_eq!(logs.select(Split::Validation, None).len() as u64, expected);
    let digests: BTreeSet<&str> = [&blocks, &logs, &kinds].map(Store::digest).into_iter().collect();
    assert_eq!(digests.len(), 3);
}

#[test]
fn data_that_cannot_be_divided_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |attacks: &[&str], validation, text: &str| {
        let folder = tempfile::tempdir_in(folder.path()).unwrap();
        let error = store(folder.path(), attacks, validation).unwrap_err();
        assert!(error.is_input() && error.to_string().contains(text), "{error}");
        // Blocks need no more than one log.
        assert!(store(folder.path(), attacks, Validation::Blocks).is_ok());
    };
    refused(
        &["DoS-1.csv", "DoS-2.csv"],
        Validation::Attacks,
        "dataset cars cannot be divided by --validation attacks: expected at least two kinds of attack in the training logs, recorded or \
         synthetic, found dos; use --validation blocks",
    );
    refused(&["DoS-1.csv"], Validation::Logs, "found 1 with attacks, 2 attack-free and 0 with synthetic attacks");
}

/// Frames of training logs that windows of a set are made of; those of a synthetic log count as its source's.
fn frames_of(store: &Store, split: Split) -> BTreeSet<(&str, u64)> {
    let window = store.manifest().options.window as u64;
    let mut frames = BTreeSet::new();
    for graph in store.select(split, None) {
        let (entry, first) = (store.log_of(graph), store.try_graph(graph).unwrap().first_frame);
        let own = first..first + window + 1;
        let (name, source) = match &entry.synthetic {
            Some(origin) => (origin.name.as_str(), origin.source_of(&own)),
            None => (entry.name.as_str(), own),
        };
        frames.extend(source.map(|frame| (name, frame)));
    }
    frames
}

fn only_store(place: &Workplace) -> Store {
    let stores = std::fs::read_dir(place.path("stores")).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<Store> = stores.filter_map(|path| Store::open(&path).ok()).collect();
    assert_eq!(found.len(), 1);
    found.remove(0)
}

/// The attack-free frames that synthetic attacks are made of belong to one set only, whatever is held out.
#[test]
fn no_frame_trains_and_validates() {
    for rule in ["logs", "attacks"] {
        let place = Workplace::new();
        place.run(&["data", "build", "--validation", rule, "--synthetic-attacks"]);
        let store = only_store(&place);
        let (training, validation) = (frames_of(&store, Split::Train), frames_of(&store, Split::Validation));
        assert!(training.is_disjoint(&validation), "{rule}");
        assert!(training.len() > 10_000 && validation.len() > 1_000, "{rule}: {} {}", training.len(), validation.len());
        let synthetic = |split: Split| -> BTreeSet<String> {
            let files = store.manifest().files.iter().filter(|file| file.synthetic.is_some());
            files.filter(|file| !file.split.stretches(split).is_empty()).map(|file| file.name.clone()).collect()
        };
        let (train, held_out) = (synthetic(Split::Train), synthetic(Split::Validation));
        assert!(
            !train.is_empty() && !held_out.is_empty() && train.is_disjoint(&held_out),
            "{rule}: {train:?} {held_out:?}"
        );
        // A training kind has no validation windows, in no half.
        let halves = store.validation_halves().concat();
        let validation: BTreeSet<u64> = store.select(Split::Validation, None).into_iter().collect();
        assert!(halves.iter().all(|graph| validation.contains(graph)), "{rule}");
    }
}

const SMALL: [&str; 8] = ["--hidden", "8", "--heads", "2", "--max-epochs", "1", "--layers", "1"];

/// Arguments of a small training that holds out whole logs.
fn train(more: &[&'static str]) -> Vec<&'static str> {
    [&["classifier", "--validation", "logs"], &SMALL[..], more].concat()
}

/// Training, threshold, evaluation and distillation use the division; a teacher of another one is refused.
#[test]
fn a_run_keeps_its_division() {
    let place = Workplace::new();
    place.run(&train(&["--preset", "gat,teacher", "--use-kd", "false"]));
    let store = only_store(&place);
    let threshold = &place.json("runs/tiny/gat_teacher_normal/1/thresholds.json")["thresholds"][0];
    let benign = store.select(Split::Validation, Some(false)).len();
    assert_eq!(threshold["benign_graphs"], benign, "the windows of the held-out logs");
    place.run(&train(&["--preset", "gat,student"]));
    assert_eq!(place.json("runs/tiny/gat_student_normal_kd/1/config.json")["config"]["data"]["validation"], "logs");
    // An evaluation of the run divides the data in the same way.
    let evaluate = ["evaluate", "runs/tiny/gat_student_normal_kd/1", "--resamples", "0", "--rules", "false"];
    let output = starter::output(place.command(&evaluate).env_remove("KDGAT_DATA"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    only_store(&place);

    let blocks = [&["classifier", "--preset", "gat,student"], &SMALL[..]].concat();
    let said = place.refused(&blocks);
    let expected = "was trained with --validation logs --validation-fraction 0.2, this run has --validation blocks --validation-fraction 0.2";
    assert!(said.contains(expected) && said.contains("kdgat classifier --preset gat,teacher"), "{said}");
    let said = place.refused(&train(&["--preset", "gat,student", "--validation-fraction", "0.9"]));
    assert!(said.contains("this run has --validation logs --validation-fraction 0.9"), "{said}");
    let said = place.refused(&["train", "--preset", "gin,student", "--data", "graphs", "--validation", "logs"]);
    assert!(said.contains("validation"), "{said}");
}

/// A model of another division is judged on validation windows that it was not trained on.
#[test]
fn windows_of_another_division_are_known() {
    let place = Workplace::new();
    place.run(
        &[&["classifier", "--preset", "gat,student", "--use-kd", "false", "--validation", "attacks"], &SMALL[..]]
            .concat(),
    );
    let run = "runs/tiny/gat_student_normal/1";
    let output = starter::output(&mut place.command(&["evaluate", run, "--validation", "logs", "--resamples", "0"]));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let own = "was trained (--stride 100 --validation-fraction 0.2 --validation attacks) on frames of";
    assert!(
        said.contains(own) && said.contains("(--stride 100 --validation-fraction 0.2 --validation logs)"),
        "{said}"
    );
}
