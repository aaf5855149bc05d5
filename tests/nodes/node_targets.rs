//! Targets of a teacher for the nodes of one large graph, through the command line: from sampled neighbours, for the nodes that are asked
//! for, in parts with the bytes of one computation, killed and resumed.

use std::fs;
use std::path::{Path, PathBuf};

use support::cli::{Workplace, loss_columns};

const GRAPH: [&str; 13] = [
    "data",
    "simulate",
    "--kind",
    "citations",
    "--nodes",
    "12000",
    "--edges",
    "60000",
    "--classes",
    "8",
    "--columns",
    "16",
    "net",
];
const DATA: [&str; 2] = ["--data", "net.kdgat-nodes"];
const STUDENT: [&str; 6] = ["--preset", "sage,student", "--teacher-fanouts", "6,4", "--kd-nodes-per-label", "6"];

/// A workplace with a graph and a teacher.
fn place() -> Workplace {
    let place = Workplace::new();
    place.success(&GRAPH);
    let teacher = ["train", "--preset", "sage,teacher", "--hidden", "16", "--fanouts", "5,3", "--max-epochs", "2"];
    place.success(&[&teacher[..], &DATA].concat());
    place
}

fn cache(place: &Workplace, arguments: &[&str]) -> String {
    place.success(&[&["teachers", "cache"], &DATA[..], &STUDENT, arguments].concat())
}

/// Files of targets in a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

fn only_bytes(folder: &Path) -> Vec<u8> {
    let found = files(folder);
    assert_eq!(found.len(), 1, "{found:?}");
    fs::read(&found[0]).unwrap()
}

#[test]
fn parts_have_the_bytes_of_one_computation() {
    let place = place();
    let said = cache(&place, &["--teacher-cache-dir", "whole", "--num-workers", "2"]);
    assert!(said.contains("from 6,4 sampled neighbours") && said.contains("complete: targets of"), "{said}");
    let whole = only_bytes(&place.path().join("whole"));
    for part in ["1/3", "3/3", "2/3"] {
        let said = cache(
            &place,
            &["--teacher-cache-dir", "apart", "--part", part, "--features-from", "direct", "--batch-size", "64"],
        );
        assert!(said.contains("complete: targets of"), "{said}");
    }
    assert_eq!(files(&place.path().join("apart")).len(), 3);
    let said = cache(&place, &["--teacher-cache-dir", "apart", "--parts", "3"]);
    assert!(said.contains("3 parts, 3 of them done") && said.contains(" 0 computed now"), "{said}");
    assert!(only_bytes(&place.path().join("apart")) == whole, "three commands change the bytes");
    let said = cache(&place, &["--teacher-cache-dir", "local", "--parts", "4", "--jobs", "2"]);
    assert!(said.contains("4 parts, 0 of them done"), "{said}");
    assert!(only_bytes(&place.path().join("local")) == whole, "four processes change the bytes");
    let again = cache(&place, &["--teacher-cache-dir", "local", "--parts", "4"]);
    assert!(again.contains(" 0 computed now") && again.contains("complete"), "{again}");
    let script = cache(&place, &["--teacher-cache-dir", "new", "--parts", "2", "--executor", "slurm", "--dry-run"]);
    assert!(script.contains("sbatch") || script.contains("SBATCH"), "{script}");
    assert!(!place.path().join("new").exists() || files(&place.path().join("new")).is_empty());
}

#[test]
fn a_student_learns_from_the_targets_that_were_computed_before() {
    let place = place();
    let train = |arguments: &[&str]| {
        let common = ["train", "--fanouts", "5,3", "--max-epochs", "2", "--batch-size", "200"];
        place.success(&[&common[..], &DATA, &STUDENT, arguments].concat())
    };
    // Computed by the training itself.
    let said = train(&["--run-dir", "first"]);
    assert!(said.contains("from 6,4 sampled neighbours"), "{said}");
    assert!(said.contains("training nodes (") && !said.contains("12000 training nodes"), "{said}");
    let losses = loss_columns(&place.path().join("first"));
    // By a command before it, in half the nodes of a damaged file, and with the records on disk.
    cache(&place, &["--teacher-cache-dir", "before"]);
    let said = train(&["--run-dir", "second", "--teacher-cache-dir", "before", "--teacher-cache", "disk"]);
    assert!(!said.contains("sampled neighbours;"), "computed again: {said}");
    assert_eq!(loss_columns(&place.path().join("second")), losses);
    let file = files(&place.path().join("before"))[0].clone();
    let mut bytes = fs::read(&file).unwrap();
    let end = bytes.len() - 1;
    let damaged = (end / 2..end).find(|&at| bytes[at] != 0).unwrap();
    bytes[damaged] ^= 1;
    fs::write(&file, bytes).unwrap();
    let said = cache(&place, &["--teacher-cache-dir", "before"]);
    assert!(said.contains("computed now") && !said.contains(" 0 computed now"), "{said}");
    train(&["--run-dir", "third", "--teacher-cache-dir", "before"]);
    assert_eq!(loss_columns(&place.path().join("third")), losses);
    // The exact targets, of the same nodes.
    let exact = ["--preset", "sage,student", "--kd-nodes-per-label", "6", "--teacher-cache-dir", "exact"];
    let said = place.success(&[&["teachers", "cache"], &DATA[..], &exact].concat());
    assert!(said.contains("from all neighbours") && said.contains("complete: targets of"), "{said}");
}

#[test]
fn labelled_nodes_alone_can_be_taught() {
    let place = place();
    let student = ["--preset", "mlp,student", "--kd-nodes-per-label", "1", "--teacher-fanouts", "6,4"];
    let common = ["train", "--max-epochs", "1", "--run-dir", "run"];
    let said = place.success(&[&common[..], &DATA, &student].concat());
    let line = said.lines().find(|line| line.contains("training nodes (")).unwrap();
    let numbers: Vec<&str> =
        line.split(|character: char| !character.is_ascii_digit()).filter(|text| !text.is_empty()).collect();
    let at = numbers.iter().position(|&number| line.contains(&format!("{number} training nodes"))).unwrap();
    assert_eq!(numbers[at], numbers[at + 1], "{line}");
}

#[test]
fn what_cannot_be_computed_in_parts_is_refused() {
    let place = place();
    let refused = |arguments: &[&str], text: &str| {
        let said = place.refused(&[&["teachers", "cache"], &DATA[..], arguments].concat());
        assert!(said.contains(text), "{arguments:?}: {said}");
    };
    let student = ["--preset", "sage,student"];
    refused(&[&student[..], &["--part", "1/2"]].concat(), "give --teacher-fanouts");
    refused(&[&student[..], &["--parts", "2"]].concat(), "--parts needs --teacher-fanouts");
    refused(&[&student[..], &["--teacher-fanouts", "5"]].concat(), "the teacher has 2 layers that read neighbours");
    refused(&[&STUDENT[..], &["--teacher-cache", "ram"]].concat(), "--teacher-cache ram");
    refused(&[&STUDENT[..], &["--part", "3/2"]].concat(), "is not a part such as 2/8");
    let alone = ["train", "--preset", "sage,student", "--use-kd", "false", "--teacher-fanouts", "5,3"];
    let said = place.refused(&[&alone[..], &DATA].concat());
    assert!(said.contains("nothing is distilled while use_kd is false"), "{said}");
}
