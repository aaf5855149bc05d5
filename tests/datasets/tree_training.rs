//! Trees in SWC files, the network over their paths, and initial weights from another run, from the command line.

use std::fs;
use std::path::Path;

use support::cli::Workplace;

/// Number of points of a made-up tree.
const POINTS: usize = 14;

/// Writes a tree whose points lie on a straight line (`bend` 0) or on one that turns by `bend` at each point.
fn write_tree(path: &Path, bend: f64, seed: usize) {
    write_typed_tree(path, bend, seed, POINTS);
}

/// The same; points from number `typed` on are of type 4, others of type 3.
fn write_typed_tree(path: &Path, bend: f64, seed: usize, typed: usize) {
    let mut text = String::from("# made up\n");
    let (mut angle, mut place) = (seed as f64, [0.0, seed as f64 % 3.0, 0.0]);
    for point in 1..=POINTS {
        let parent = if point == 1 { -1 } else { point as i64 - 1 };
        let radius = 1.0 + (point + seed) as f64 % 3.0 / 10.0;
        let kind = if point > typed { 4 } else { 3 };
        text += &format!("{point} {kind} {:.4} {:.4} {:.4} {radius} {parent}\n", place[0], place[1], place[2]);
        angle += bend;
        place = [place[0] + 2.0 * angle.cos(), place[1] + 2.0 * angle.sin(), place[2]];
    }
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn write_trees(place: &Workplace, each: usize) {
    for (class, bend) in [("straight", 0.0), ("winding", 1.2)] {
        (0..each).for_each(|seed| write_tree(&place.path().join(format!("trees/{class}/{seed}.swc")), bend, seed));
    }
}

const DATA: [&str; 6] = ["--data", "trees", "--device", "cpu", "--threads", "1"];
const SMALL: [&str; 6] = ["--hidden", "8", "--layers", "1", "--cutoff", "6"];

fn with(place: &Workplace, arguments: &[&str]) -> String {
    place.success(&[arguments, &DATA].concat())
}

/// Features of points are alike in both classes: the network has to read the angles of paths.
#[test]
fn a_network_over_paths_is_trained_taught_and_evaluated() {
    let place = Workplace::new();
    write_trees(&place, 30);
    let told = place.success(&["data", "check", "--data", "trees"]);
    for expected in ["2 classes (straight: 30, winding: 30)", "paths", "22 to 22 of three edges a graph"] {
        assert!(told.contains(expected), "{expected}: {told}");
    }
    with(&place, &[&["train", "--preset", "sgmp,teacher", "--max-epochs", "40", "--lr", "0.01"], &SMALL[..]].concat());
    let student =
        ["train", "--preset", "sgmp,student", "--max-epochs", "2", "--kd-hint-weight", "0.1", "--offload-teacher"];
    let said = with(&place, &[&student[..], &SMALL[..]].concat());
    assert!(said.contains("of targets cached"), "{said}");
    with(&place, &["evaluate", "--resamples", "50"]);
    let metrics = fs::read_to_string(place.path().join("runs/trees/evaluation/graph_metrics.csv")).unwrap();
    let of_teacher = metrics.lines().find(|line| line.contains("sgmp_teacher_train/1") && line.contains("accuracy"));
    let accuracy: f64 =
        of_teacher.unwrap().split(',').find_map(|cell| cell.parse().ok().filter(|value| *value <= 1.0)).unwrap();
    assert!(accuracy > 0.9, "{metrics}");

    // Straight and winding trees differ in their extents, which logistic regression on descriptors reads.
    let text = fs::read_to_string(place.path().join("runs/trees/evaluation/graph_metrics.json")).unwrap();
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(found["linear"]["accuracy"]["mean"].as_f64().unwrap() > 0.9, "{}", found["linear"]);

    let verified = place.success(&["teachers", "verify"]);
    assert!(verified.contains("trees/graph"), "{verified}");

    // The layers begin with those of the teacher; another start is another run.
    let start =
        ["--init-from", "runs/trees/sgmp_teacher_train/1", "--freeze", "--use-kd", "false", "--run-dir", "started"];
    let again = [&["train", "--preset", "sgmp,student", "--max-epochs", "2"], &SMALL[..], &start[..]].concat();
    let said = with(&place, &again);
    assert!(
        said.contains("22 tensors of runs/trees/sgmp_teacher_train/1") && said.contains("new: head.lins.0"),
        "{said}"
    );
    let resumed = with(&place, &[&again[..], &["--resume"]].concat());
    assert!(!resumed.contains("nothing to resume"), "{resumed}");
    let changed = ["--init-from", "runs/trees/sgmp_student_train_kd/1", "--resume"];
    let said = place.refused(&[&again[..], &changed, &DATA].concat());
    assert!(said.contains("the initial weights"), "{said}");
    let said = place.refused(&[&again[..], &["--fold", "2", "--run-dir", "fold"], &DATA].concat());
    assert!(said.contains("may have seen what this run tests on") && said.contains("--transductive"), "{said}");

    // What began with weights that may have seen the test graphs is no start and no teacher of others without a word.
    let teacher = ["train", "--preset", "sgmp,teacher", "--max-epochs", "1", "--fold", "2", "--run-dir", "seen"];
    let seen = ["--init-from", "runs/trees/sgmp_teacher_train/1", "--transductive"];
    with(&place, &[&teacher[..], &SMALL, &seen].concat());
    let begun = ["--fold", "2", "--run-dir", "begun", "--init-from", "seen"];
    let said = place.refused(&[&again[..], &begun, &DATA].concat());
    assert!(said.contains("itself began with weights that may have seen its test items"), "{said}");
    let said = place.refused(&[&student[..], &SMALL, &["--fold", "2"], &DATA].concat());
    assert!(said.contains("began with weights that may have seen the test graphs (--transductive)"), "{said}");
}

#[test]
fn types_are_left_out_and_a_tree_without_folder_is_refused() {
    let place = Workplace::new();
    write_trees(&place, 3);
    let told = place.success(&["data", "check", "--data", "trees"]);
    assert!(told.contains("radius, children, ln_root_distance, type (1 values)"), "{told}");
    fs::write(place.path().join("trees/kdgat-graphs.toml"), "kinds = \"none\"\nlength_unit = \"µm\"\n").unwrap();
    let told = place.success(&["data", "check", "--data", "trees"]);
    assert!(told.contains("radius, children, ln_root_distance\n"), "{told}");
    assert!(told.contains("positions      in µm\n"), "{told}");
    write_tree(&place.path().join("trees/alone.swc"), 0.0, 1);
    let said = place.refused(&["data", "check", "--data", "trees"]);
    assert!(said.contains("alone.swc: a tree outside of any folder"), "{said}");
}

/// Trees of both classes are of equal shape; only the share of a type tells them apart, which the simplest model reads where types are read.
#[test]
fn the_simplest_model_reads_the_types_of_points() {
    let place = Workplace::new();
    for (class, typed) in [("short", 10), ("long", 4)] {
        let path = |seed| place.path().join(format!("trees/{class}/{seed}.swc"));
        (0..20).for_each(|seed| write_typed_tree(&path(seed), 0.3, seed, typed));
    }
    let accuracy = |kinds: &str| {
        fs::write(place.path().join("trees/kdgat-graphs.toml"), kinds).unwrap();
        with(
            &place,
            &["train", "--preset", "gin,student", "--use-kd", "false", "--max-epochs", "1", "--run-dir", "run"],
        );
        with(&place, &["evaluate", "run", "--resamples", "0", "--output", "evaluation"]);
        let text = fs::read_to_string(place.path().join("evaluation/graph_metrics.json")).unwrap();
        fs::remove_dir_all(place.path().join("run")).unwrap();
        let found: serde_json::Value = serde_json::from_str(&text).unwrap();
        found["linear"]["accuracy"]["mean"].as_f64().unwrap()
    };
    assert_eq!(accuracy(""), 1.0);
    assert!(accuracy("kinds = \"none\"\n") < 0.8);
}
