//! A classifier of windows that learns from several teachers (`--more-teachers`), as a user runs it.

use support::stage::Workplace;

const SMALL: [&str; 8] = ["--hidden", "8", "--layers", "2", "--heads", "2", "--max-epochs", "2"];

/// Trains a classifier alone, into a folder of that name.
fn alone(place: &Workplace, name: &str, more: &[&str]) {
    let classifier = ["classifier", "--preset", "gat,student", "--use-kd", "false", "--run-dir", name];
    place.run(&[&classifier[..], &SMALL, more].concat());
}

/// Losses of a student of the teacher `first`, whose run has the name `name`.
fn losses(place: &Workplace, name: &str, more: &[&str]) -> Vec<String> {
    let student =
        ["classifier", "--preset", "gat,student", "--max-epochs", "2", "--teacher-path", "first", "--run-dir", name];
    place.run(&[&student[..], more].concat());
    let columns = ["train_loss", "kd_loss", "val_loss", "teacher_agreement"];
    columns.iter().map(|column| format!("{:?}", place.metric(name, column))).collect()
}

/// The targets are those of both, wherever the weights are and whatever is cached.
#[test]
fn a_student_learns_from_the_mean_of_its_teachers() {
    let place = Workplace::new();
    alone(&place, "first", &["--seed", "1"]);
    alone(&place, "second", &["--seed", "2", "--hidden", "12", "--embedding", "4"]);
    let both = ["--more-teachers", "second"];
    let expected = losses(&place, "both", &both);
    assert_ne!(losses(&place, "one", &[]), expected);
    assert_ne!(losses(&place, "twice-the-second", &["--more-teachers", "second,second"]), expected);
    let variants: [&[&str]; 4] = [
        &["--offload-teacher", "--teacher-burst", "4"],
        &["--teacher-residency", "layer", "--teacher-layer-slots", "1", "--use-teacher-cache", "false"],
        &["--offload-teacher", "--use-teacher-cache", "false", "--teacher-burst", "2"],
        &["--teacher-cache", "disk"],
    ];
    for (index, variant) in variants.iter().enumerate() {
        assert_eq!(losses(&place, &format!("variant-{index}"), &[&both, *variant].concat()), expected, "{variant:?}");
    }

    // Computed before the training; of one teacher alone there are others.
    let before =
        ["teachers", "cache", "--preset", "gat,student", "--teacher-path", "first", "--teacher-cache-dir", "before"];
    let said = place.run(&[&before[..], &both].concat());
    assert!(said.contains("complete"), "{said}");
    let cached = ["--teacher-cache", "disk", "--teacher-cache-dir", "before"];
    assert_eq!(losses(&place, "cached", &[&both[..], &cached].concat()), expected);
    let summary = place.json("cached/summary.json");
    assert_eq!(summary["teacher"]["total"]["cache_miss_rows"], 0, "{}", summary["teacher"]);

    let planned = |more: &[&str]| {
        let plan = ["memory", "plan", "--preset", "gat,student", "--teacher-path", "first"];
        let text = place.run(&[&plan[..], more].concat());
        let line = text.lines().find(|line| line.contains("teacher's weights")).map(str::to_owned);
        line.unwrap_or_else(|| panic!("no weights in {text}"))
    };
    alone(&place, "wide", &["--hidden", "64", "--heads", "4", "--max-epochs", "1"]);
    assert_ne!(planned(&[]), planned(&["--more-teachers", "wide"]), "further teachers' weights take memory, too");
}

#[test]
fn teachers_that_have_no_mean_are_refused() {
    let place = Workplace::new();
    alone(&place, "first", &[]);
    alone(&place, "rich", &["--features", "rich"]);
    let autoencoder = ["autoencoder", "--preset", "vgae,student", "--use-kd", "false", "--run-dir", "vgae"];
    place.run(&[&autoencoder[..], &["--max-epochs", "1"]].concat());
    let student = ["classifier", "--preset", "gat,student", "--teacher-path", "first", "--more-teachers"];
    for (more, expected) in [
        (&["nowhere"][..], "nowhere"),
        (&["vgae"], "--more-teachers vgae: this is a vgae, but the teacher of a gat must be a gat; name a gat"),
        (&["rich"], "reads rich features, the student window features"),
        (&["first", "--kd-hint-weight", "1"], "several teachers have no hidden layer in common"),
    ] {
        let said = place.refused(&[&student[..], more].concat());
        assert!(said.contains(expected), "{more:?}: {said}");
    }
    let other = ["autoencoder", "--preset", "vgae,student", "--teacher-path", "vgae", "--more-teachers", "vgae"];
    let said = place.refused(&other);
    assert!(said.contains("only the class probabilities of classifiers are averaged"), "{said}");
}

/// A run is resumed with the same teachers, and refused with others.
#[test]
fn other_teachers_are_another_training() {
    let place = Workplace::new();
    alone(&place, "first", &["--seed", "1"]);
    alone(&place, "second", &["--seed", "2"]);
    losses(&place, "student", &["--more-teachers", "second"]);
    let again = [
        "classifier",
        "--preset",
        "gat,student",
        "--max-epochs",
        "2",
        "--teacher-path",
        "first",
        "--run-dir",
        "student",
    ];
    let said = place.refused(&[&again[..], &["--resume"]].concat());
    assert!(said.contains("the teacher (it was"), "{said}");
    place.run(&[&again[..], &["--resume", "--more-teachers", "second"]].concat());
}

/// A sweep trains the teachers, caches their targets once, and gives all of them to the student.
#[test]
fn a_sweep_hands_several_teachers_to_a_student() {
    let place = Workplace::new();
    let step = |name: &str, more: &str| {
        format!(
            "[[step]]\nname = \"{name}\"\ncommand = \"normal\"\npreset = \"gat,student\"\n\
             set = {{ hidden = [8], heads = 2, max_epochs = 1{more}\n"
        )
    };
    let teacher = |name: &str, seed: u32| step(name, &format!(", use_kd = false, seed = {seed} }}"));
    let from = "from = { teacher_path = \"one\", more_teachers = \"two,three\" }\n";
    let student = step("student", " }") + from;
    let text = format!(
        "metric = \"val_task_loss\"\n{}{}{}{student}",
        teacher("one", 1),
        teacher("two", 2),
        teacher("three", 3)
    );
    std::fs::write(place.path("taught.toml"), text).unwrap();
    place.run(&["sweep", "taught.toml"]);
    let folders = |step: &str| -> Vec<String> {
        let tasks = std::fs::read_dir(place.path("sweeps/taught/tasks")).unwrap();
        let names = tasks.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with(step)).map(|name| format!("sweeps/taught/tasks/{name}/run")).collect()
    };
    let only = |step: &str| folders(step).pop().unwrap_or_else(|| panic!("no task of {step}"));
    let config = place.json(&format!("{}/config.json", only("student-")));
    let taught = config["config"]["distillation"]["more_teachers"].as_str().unwrap().to_owned();
    let weights = |step: &str| format!("{}/best.safetensors", only(step));
    let named: Vec<&str> = taught.split(',').collect();
    assert_eq!(named.len(), 2, "{taught}");
    assert!(named[0].ends_with(&weights("two-")) && named[1].ends_with(&weights("three-")), "{taught}");
    let summary = place.json(&format!("{}/summary.json", only("student-")));
    assert_eq!(
        summary["teacher"]["total"]["cache_miss_rows"], 0,
        "the targets were cached before: {}",
        summary["teacher"]
    );
}
