//! Views of training graphs (`--kd-views`): the IDs that are hidden from a student are hidden from its teacher, too, and the teacher's
//! targets for each view are cached.

use support::stage::Workplace;
use support::starter;
use support::stops::kill_when;

const SMALL: [&str; 6] = ["--hidden", "8", "--layers", "2", "--heads", "2"];
const VIEWS: [&str; 2] = ["--kd-views", "2"];
const EPOCHS: usize = 4;

fn teacher(place: &Workplace) {
    let classifier =
        ["classifier", "--preset", "gat,student", "--use-kd", "false", "--max-epochs", "2", "--run-dir", "teacher"];
    place.run(&[&classifier[..], &SMALL].concat());
}

/// The command of a student of the run `teacher` in the run folder `name`.
fn student<'a>(name: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    student_of("teacher", name, more)
}

fn student_of<'a>(teacher: &'a str, name: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let student =
        ["classifier", "--preset", "gat,student", "--max-epochs", "4", "--teacher-path", teacher, "--run-dir", name];
    [&student[..], &SMALL, more].concat()
}

fn losses(place: &Workplace, name: &str) -> Vec<Vec<String>> {
    let columns = ["train_loss", "kd_loss", "val_loss", "val_kd_loss", "teacher_agreement"];
    columns.map(|column| place.metric(name, column).iter().map(f64::to_string).collect()).to_vec()
}

/// Targets that the cache did not have, by epoch.
fn computed(place: &Workplace, name: &str) -> Vec<u64> {
    let mut reader = csv::Reader::from_path(place.path(name).join("steps.csv")).unwrap();
    let headers = reader.headers().unwrap().clone();
    let column = |name: &str| headers.iter().position(|found| found == name).unwrap();
    let (epoch, misses) = (column("epoch"), column("cache_miss_rows"));
    let mut by_epoch = vec![0; EPOCHS];
    for row in reader.records().map(Result::unwrap) {
        by_epoch[row[epoch].parse::<usize>().unwrap()] += row[misses].parse::<u64>().unwrap();
    }
    by_epoch
}

#[test]
fn where_the_teacher_is_changes_no_loss_of_views() {
    let place = Workplace::new();
    teacher(&place);
    place.run(&student("plain", &["--kd-views", "0"]));
    place.run(&student("views", &VIEWS));
    let expected = losses(&place, "views");
    assert_ne!(expected, losses(&place, "plain"), "the teacher sees another view, and epoch 3 that of epoch 1");
    let ways: [&[&str]; 4] = [
        &["--use-teacher-cache", "false"],
        &["--teacher-residency", "layer", "--use-teacher-cache", "false"],
        &["--offload-teacher", "--teacher-cache", "ram"],
        &["--offload-teacher", "--teacher-cache", "disk"],
    ];
    for (index, way) in ways.iter().enumerate() {
        let name = format!("way-{index}");
        place.run(&student(&name, &[&VIEWS[..], way].concat()));
        assert_eq!(losses(&place, &name), expected, "{way:?}");
    }

    // The cache has the targets of both views after two epochs, and of all from the beginning in the next training.
    let by_epoch = computed(&place, "way-3");
    assert!(by_epoch[0] > 0 && by_epoch[1] > 0 && by_epoch[2..] == [0, 0], "{by_epoch:?}");
    let on_disk = ["--offload-teacher", "--teacher-cache", "disk"];
    place.run(&student("again", &[&VIEWS[..], &on_disk].concat()));
    assert_eq!((losses(&place, "again"), computed(&place, "again")), (expected.clone(), vec![0; EPOCHS]));

    // The views of another seed are the same.
    place.run(&student("seed", &[&VIEWS[..], &on_disk, &["--seed", "7"]].concat()));
    assert_eq!(computed(&place, "seed"), vec![0; EPOCHS]);
    assert_ne!(losses(&place, "seed"), expected);
    // Other hidden IDs, other targets: nothing of it is used.
    for (name, more) in
        [("less", ["--kd-views", "2", "--unknown-drop", "0.2"]), ("three", ["--kd-views", "3", "--seed", "42"])]
    {
        place.run(&student(name, &[&more[..], &on_disk].concat()));
        assert!(computed(&place, name)[0] > 0, "{name}");
        assert_ne!(losses(&place, name), expected, "{name}");
    }
}

/// `kdgat teachers cache` computes the targets of all views; by default there are as many as the preset says.
#[test]
fn targets_of_views_are_computed_before_the_training() {
    let place = Workplace::new();
    teacher(&place);
    place.run(&student("alone", &["--use-teacher-cache", "false"]));
    let cache = ["teachers", "cache", "--preset", "gat,student", "--teacher-path", "teacher"];
    let output = starter::output(&mut place.command(&cache));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(said.contains(" training graphs in 4 views and ") && said.contains(" validation graphs take "), "{said}");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let numbers: Vec<u64> = printed.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(printed.starts_with("complete: ") && numbers[0] == numbers[1] && numbers[2] == numbers[0], "{printed}");

    place.run(&student("cached", &["--teacher-cache", "disk"]));
    assert_eq!((losses(&place, "cached"), computed(&place, "cached")), (losses(&place, "alone"), vec![0; EPOCHS]));
    let again = place.run(&cache);
    assert!(again.contains(", 0 computed now"), "{again}");
}

/// IDs that are hidden by other random ones, because teacher and student hash IDs, are hidden from both.
#[test]
fn a_teacher_that_hashes_ids_sees_the_view_of_its_student() {
    let place = Workplace::new();
    let hashed = ["--id-encoding", "hash", "--unknown-drop", "0.3"];
    let classifier =
        ["classifier", "--preset", "gat,student", "--use-kd", "false", "--max-epochs", "2", "--run-dir", "teacher"];
    place.run(&[&classifier[..], &SMALL, &hashed].concat());
    // With the seed of the views, the student's view of the first epoch is the same with and without them.
    let hashed = [&hashed[..], &["--seed", "0"]].concat();
    place.run(&student("plain", &[&["--kd-views", "0"], &hashed[..]].concat()));
    place.run(&student("views", &[&VIEWS[..], &hashed].concat()));
    place.run(&student("live", &[&VIEWS[..], &hashed, &["--use-teacher-cache", "false"]].concat()));
    assert_eq!(losses(&place, "live"), losses(&place, "views"));
    // What it is taught about it is not.
    let first = |name: &str, column: &str| place.metric(name, column)[0];
    assert_ne!(first("plain", "kd_loss"), first("views", "kd_loss"));
}

/// A student with a vocabulary learns from a teacher that hashes IDs, and the other way round; caches of the two are different ones.
#[test]
fn teachers_of_either_encoding_see_the_view_of_their_student() {
    let place = Workplace::new();
    teacher(&place);
    let hash = ["--id-encoding", "hash"];
    let classifier =
        ["classifier", "--preset", "gat,student", "--use-kd", "false", "--max-epochs", "2", "--run-dir", "hashed"];
    place.run(&[&classifier[..], &SMALL, &hash].concat());
    for (of, name, more) in [("hashed", "a", &VIEWS[..]), ("teacher", "b", &[&VIEWS[..], &hash].concat())] {
        let training = |name, way: &[&'static str]| {
            place.run(&[&student_of(of, name, more)[..], way].concat());
            losses(&place, name)
        };
        let live = training(name, &["--use-teacher-cache", "false"]);
        assert_eq!(training("cached", &["--teacher-cache", "disk"]), live, "of {of}");
        assert_eq!(training("cached-again", &["--teacher-cache", "disk"]), live, "of {of}");
        assert_eq!(computed(&place, "cached-again"), vec![0; EPOCHS]);
        let whole = training("whole", &["--kd-views", "0", "--seed", "0"]);
        assert_ne!(training("views", &["--seed", "0"])[1][0], whole[1][0], "the same view of the student, of {of}");
        for name in ["cached", "cached-again", "whole", "views"] {
            std::fs::remove_dir_all(place.path(name)).unwrap();
        }
    }
}

/// A stopped training goes on with the view of its next epoch.
#[test]
fn a_resumed_training_has_the_losses_of_an_uninterrupted_one() {
    let place = Workplace::new();
    teacher(&place);
    place.run(&student("whole", &[&VIEWS[..], &["--min-steps-per-epoch", "40"]].concat()));
    let arguments = student("stopped", &["--kd-views", "2", "--min-steps-per-epoch", "40", "--resume"]);
    let written = place.path("stopped/metrics.csv");
    kill_when(place.command(&arguments), "a first epoch", || written.exists());
    place.run(&arguments);
    assert_eq!(losses(&place, "stopped"), losses(&place, "whole"));
    let said = place.refused(&student("stopped", &["--kd-views", "3", "--min-steps-per-epoch", "40", "--resume"]));
    assert!(said.contains("kd_views"), "{said}");
}

#[test]
fn views_without_hidden_ids_are_refused() {
    let place = Workplace::new();
    teacher(&place);
    for (more, expected) in [
        (["--kd-views", "2", "--unknown-drop", "0"], "none are hidden"),
        (["--kd-views", "2", "--features", "profile"], "none are hidden"),
        (["--kd-views", "2", "--use-kd", "false"], "use_kd is false"),
        (["--kd-views", "65", "--unknown-drop", "0.3"], "kd_views"),
    ] {
        let said = place.refused(&student("refused", &more));
        assert!(said.contains(expected), "{more:?}: {said}");
    }
    let said = place.refused(&["autoencoder", "--preset", "vgae,student", "--kd-views", "2"]);
    assert!(said.contains("none are hidden"), "{said}");
}
