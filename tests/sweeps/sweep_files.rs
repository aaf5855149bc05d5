//! Sweep files: every shipped one expands, errors name their place, digests are stable.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use kdgat::config::Config;
use kdgat::sweep::plan::{Plan, SHIPPED, Surroundings, SweepFile, TaskKind, expand, find, override_field};
use support::cli::Workplace;
use support::starter;

fn plan_of(text: &str, changes: &[&str]) -> Result<Plan, String> {
    let mut file = SweepFile::parse("test.toml", text).map_err(|error| error.to_string())?;
    for change in changes {
        override_field(&mut file, change).map_err(|error| error.to_string())?;
    }
    let folder = tempfile::tempdir().unwrap();
    let surroundings = Surroundings { working_folder: folder.path().to_owned(), variables: Vec::new() };
    expand(&file, "test", "test.toml", &surroundings).map_err(|error| error.to_string())
}

fn shipped(name: &str, changes: &[&str]) -> Plan {
    plan_of(&find(Path::new(name)).unwrap().text, changes).unwrap()
}

fn count(plan: &Plan, kind: TaskKind) -> usize {
    plan.tasks.iter().filter(|task| task.kind == kind).count()
}

#[test]
fn the_program_carries_every_sweep_of_the_folder() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("presets/sweeps");
    let paths: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let names: BTreeSet<String> =
        paths.iter().map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    assert_eq!(names, SHIPPED.iter().map(|(name, _)| (*name).to_owned()).collect());
    for path in paths {
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(SHIPPED.iter().any(|(_, shipped)| *shipped == text), "{} is out of date", path.display());
    }
}

#[test]
fn every_shipped_sweep_passes_a_dry_run() {
    let workplace = Workplace::new();
    for (name, _) in SHIPPED {
        let output = starter::output(workplace.command(&["sweep", name, "--dry-run"]).env_remove("KDGAT_DATA"));
        let said = support::cli::said(&output);
        assert!(output.status.success(), "kdgat sweep {name} --dry-run:\n{said}");
        // `kdgat train` builds the store of its dataset itself.
        let builds = said.contains("data build") || said.contains("kdgat train");
        assert!(said.contains("trials") && builds, "{said}");
        assert!(!workplace.path().join("sweeps").exists(), "a dry run of {name} wrote something");
    }
    let said = workplace.success(&["sweep", "list"]);
    assert!(SHIPPED.iter().all(|(name, _)| said.contains(name)), "{said}");
}

#[test]
fn a_sweep_file_may_call_the_classifier_normal() {
    let committee = find(Path::new("committee")).unwrap().text;
    let words = |command: &str| format!("command = \"{command}\"");
    let [classifier, normal] = ["classifier", "normal"]
        .map(|name| plan_of(&committee.replace(&words("classifier"), &words(name)), &[]).unwrap());
    assert_eq!(count(&classifier, TaskKind::Classifier), 6);
    let ids = |plan: &Plan| plan.tasks.iter().map(|task| task.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&classifier), ids(&normal));
}

/// A student of several steps waits for all of them, and its targets are cached once for all students.
#[test]
fn a_step_takes_several_teachers_from_other_steps() {
    let plan = shipped("ensemble", &[]);
    assert_eq!(
        [TaskKind::Store, TaskKind::Targets, TaskKind::Classifier].map(|kind| count(&plan, kind)),
        [1, 1, 5 + 15 + 15]
    );
    let students: Vec<_> = plan.tasks.iter().filter(|task| task.step == "student").collect();
    for task in students.iter().copied().chain(plan.tasks.iter().filter(|task| task.kind == TaskKind::Targets)) {
        let fields: Vec<&str> = task.inputs.iter().map(|input| input.field.as_str()).collect();
        let taught = |wanted: &str| fields.iter().filter(|field| **field == wanted).count();
        assert_eq!((taught("teacher_path"), taught("more_teachers")), (1, 4), "{}", task.id);
        assert!(task.config.distillation.more_teachers.is_none(), "a path that is known once the teachers are trained");
    }
    let members: BTreeSet<&str> = students[0].inputs.iter().map(|input| input.task.as_str()).collect();
    assert_eq!(members.len(), 5, "five seeds are five teachers: {members:?}");
    let committee = shipped("committee", &[]);
    assert_eq!([TaskKind::Targets, TaskKind::Classifier].map(|kind| count(&committee, kind)), [1, 5 + 1]);
    let seeds: BTreeSet<u64> = committee.tasks.iter().map(|task| task.config.training.seed).collect();
    assert_eq!(seeds.len(), 6, "the student has a seed of its own: {seeds:?}");
}

#[test]
fn what_trials_share_is_one_task() {
    let plan = shipped("kd-alpha-temperature", &[]);
    assert_eq!(plan.trials.len(), 4 * 4 * 3);
    assert_eq!(count(&plan, TaskKind::Store), 1);
    assert_eq!(count(&plan, TaskKind::Targets), 1);
    assert_eq!(count(&plan, TaskKind::Classifier), 1 + plan.trials.len(), "the teacher is one task");
    // The views of a graph are the same for all seeds, but with another share of hidden IDs they are others.
    let shared = |changes: &[&str]| -> Vec<(usize, f64)> {
        let plan = shipped("kd-alpha-temperature", changes);
        let targets = plan.tasks.into_iter().filter(|task| task.kind == TaskKind::Targets);
        targets.map(|task| (task.config.distillation.kd_views, task.config.model.unknown_drop)).collect()
    };
    assert_eq!(shared(&["student.seed=1,2"]), [(4, 0.3)]);
    assert_eq!(shared(&["student.unknown_drop=0.2,0.4"]), [(4, 0.2), (4, 0.4)]);
    assert_eq!(
        shared(&["student.kd_views=0", "student.unknown_drop=0.2,0.4"]),
        [(0, Config::default().model.unknown_drop)]
    );
    let plan = shipped("all-datasets", &[]);
    assert_eq!(plan.trials.len(), 6 * 3);
    assert_eq!(count(&plan, TaskKind::Store), 6);
    assert_eq!(count(&plan, TaskKind::Targets), 6 * 3 * 2, "each teacher has its own targets");
    // The inputs of a task come before it.
    for (at, task) in plan.tasks.iter().enumerate() {
        assert!(task.needs.iter().all(|need| plan.tasks[..at].iter().any(|other| other.id == *need)), "{}", task.label);
    }
}

#[test]
fn values_are_replaced_from_the_command_line() {
    let plan = shipped(
        "kd-alpha-temperature",
        &["kd_alpha=0.2,0.6", "student.kd_temperature=3", "student.seed=1,2", "max_epochs=7"],
    );
    assert_eq!(plan.trials.len(), 2 * 2);
    let trained: Vec<_> = plan.tasks.iter().filter(|task| task.kind == TaskKind::Classifier).collect();
    assert!(trained.iter().all(|task| task.config.training.max_epochs == 7));
    assert!(trained[1..].iter().all(|task| task.config.distillation.kd_temperature == 3.0));
    let plan = shipped("all-datasets", &["data=sim", "seed=5"]);
    assert_eq!((plan.trials.len(), plan.trials[0].labels.join(" ")), (1, "sim 5".to_owned()));
    let plan = shipped("curriculum-ablation", &["stride=1000"]);
    assert_eq!(count(&plan, TaskKind::Store), 1, "trained and judged on other windows");
    let plan = shipped("offload-policies", &["hidden=8,8,4;16,8,4", "lr=0.001,0.002"]);
    assert_eq!(plan.trials.len(), 7 * 2 * 2);
}

const SMALL: &str = "metric = \"val_loss\"\nseeds = [1, 2]\n[[step]]\nname = \"student\"\ncommand = \"autoencoder\"\n\
                     preset = \"vgae,student\"\n[[axis]]\nfield = \"lr\"\nvalues = [0.001, 0.002]\n";

#[test]
fn digests_change_with_what_matters_and_with_nothing_else() {
    let ids = |changes: &[&str]| {
        plan_of(SMALL, changes).unwrap().trials.into_iter().map(|trial| trial.id).collect::<Vec<_>>()
    };
    let first = ids(&[]);
    assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), 4);
    assert_eq!(first, ids(&[]));
    // Pinned: a sweep can be resumed as long as the preset's values and the fields are the same. A change of either gives other
    // trials, and another digest here.
    assert_eq!(first[0], "5ed96e425a4c");
    assert_eq!(first, ids(&["threads=3"]), "where a trial runs is no part of it");
    assert!(ids(&["kd_alpha=0.5"]).iter().all(|id| !first.contains(id)));
    let more = ids(&["lr=0.001,0.002,0.004"]);
    assert!(first.iter().all(|id| more.contains(id)), "another value changed the trials that were there");
}

#[test]
fn mistakes_are_said_with_their_place() {
    let wrong = |text: &str| plan_of(text, &[]).unwrap_err();
    let said = wrong(&SMALL.replace("seeds", "sedes"));
    assert!(said.contains("test.toml:2") && said.contains("sedes"), "{said}");
    let said = wrong(&SMALL.replace("\"autoencoder\"", "\"autoencode\""));
    assert!(said.contains("test.toml:5") && said.contains("autoencoder"), "{said}");
    let said = wrong(&SMALL.replace("field = \"lr\"", "field = \"lrr\""));
    assert!(said.contains("the nearest is `lr`"), "{said}");
    let said = wrong(&SMALL.replace("vgae,student", "vgae,studnet"));
    assert!(said.contains("step `student`") && said.contains("student"), "{said}");
    let said =
        wrong(&SMALL.replace("field = \"lr\"\nvalues = [0.001, 0.002]", "field = \"kd_temperature\"\nvalues = [1, 2]"));
    assert!(said.contains("kd-temperature would be ignored") && said.contains("kd_temperature=1"), "{said}");
    let said = wrong(&SMALL.replace("[[axis]]", "[step.from]\nteacher_path = \"teacher\"\n[[axis]]"));
    assert!(said.contains("no step before it"), "{said}");
    let said = wrong(&format!("measure = \"studnet\"\n{SMALL}"));
    assert!(said.contains("the nearest is `student`"), "{said}");
    let said = wrong(&SMALL.replace("val_loss", "val_los"));
    assert!(said.contains("step `student` has no metric `val_los`; the nearest is `val_loss`"), "{said}");
    let said = wrong(&SMALL.replace("field = \"lr\"", "field = \"lr\"\nname = \"metric\""));
    assert!(said.contains("axis `metric` has the name of a column of sweep.csv"), "{said}");
    let said = wrong(&SMALL.replace("[[axis]]", "[step.set]\nrun_dir = \"here\"\n[[axis]]"));
    assert!(said.contains("step `student` sets `run_dir`, which the sweep sets itself"), "{said}");
    let said = plan_of(SMALL, &["lrr=1"]).unwrap_err();
    assert!(said.contains("--set lrr=1") && said.contains("`lr`"), "{said}");
    let said = plan_of(SMALL, &["lr=fast"]).unwrap_err();
    assert!(said.contains("lr=fast") && said.contains("not a valid value for lr"), "{said}");

    for (section, name) in [
        ("[resources]\nthreads = 0", "[resources] threads = 0"),
        ("[resources]\ntrials_per_gpu = 0", "[resources] trials_per_gpu = 0"),
        ("[resources]\nmemory_per_trial = \"0B\"", "[resources] memory_per_trial = 0"),
        ("[slurm]\ncpus = 0\ntime = \"whenever\"", "[slurm] cpus = 0"),
        ("[slurm]\nmemory_margin = nan", "[slurm] memory_margin = NaN"),
        ("[early_stopping]\nrule = \"asha\"\nreduction = 1", "[early_stopping] reduction = 1"),
    ] {
        let said = wrong(&format!("{SMALL}{section}\n"));
        assert!(said.contains(name), "{section}: {said}");
    }

    let workplace = Workplace::new();
    assert!(workplace.refused(&["sweep", "student-size"]).contains("student-sizes"));
    assert!(workplace.refused(&["sweep", "status", "nowhere"]).contains("no sweep has been started"));
    // A missing dataset is reported before the first task, and no folder is left.
    let said = workplace.refused(&["sweep", "kd-alpha-temperature", "--set", "data=no/such/car"]);
    assert!(said.contains("no/such/car"), "{said}");
    assert!(!workplace.path().join("sweeps").exists());
    // So are a missing teacher that no step trains, and a missing GPU.
    let said = workplace.refused(&["sweep", "offload-policies"]);
    assert!(said.contains("no teacher small/vgae in teachers") && said.contains("vgae,teacher --data"), "{said}");
    let said = workplace.refused(&["sweep", "curriculum-ablation"]);
    assert!(said.contains("no teacher small/vgae in teachers"), "{said}");
    let no_gpu = ["sweep", "kd-alpha-temperature", "--set", "device=cuda:99"];
    assert!(workplace.refused(&no_gpu).contains("step `teacher` with device = \"cuda:99\": "));
    assert!(!workplace.path().join("sweeps").exists());
    // The error of a combination has its reason once.
    let said = workplace.refused(&["sweep", "kd-alpha-temperature", "--dry-run", "--set", "student.kd_alpha=3"]);
    assert_eq!(said.matches("out of range").count(), 1, "{said}");
}

#[test]
fn the_name_of_a_job_is_one_word() {
    let workplace = Workplace::new();
    let text = SMALL.replace("\n[[axis]]", "\nset = { use_kd = false }\n[[axis]]");
    std::fs::write(workplace.path().join("my sweep.toml"), text).unwrap();
    let said = workplace.success(&["sweep", "my sweep.toml", "--dry-run", "--executor", "slurm"]);
    assert!(said.contains("\n#SBATCH --job-name=kdgat-my_sweep-student\n"), "{said}");
}

#[test]
fn the_name_of_a_folder_is_no_command_of_a_job() {
    let workplace = Workplace::new();
    let text = SMALL.replace("\n[[axis]]", "\nset = { use_kd = false }\n[[axis]]");
    std::fs::write(workplace.path().join("small.toml"), text).unwrap();
    let evil = "a\ntouch owned\n";
    for executor in ["slurm", "ray"] {
        for more in [&["--dry-run"][..], &[]] {
            let arguments = [&["sweep", "small.toml", "--executor", executor, "--output", evil], more].concat();
            let said = workplace.refused(&arguments);
            assert!(said.contains("control character") && said.contains("--output"), "{said}");
        }
    }
    assert!(!workplace.path().join(evil).exists() && !workplace.path().join("owned").exists());
    let arguments = ["sweep", "small.toml", "--executor", "slurm", "--output", "50%j", "--dry-run"];
    let said = workplace.success(&arguments);
    assert!(said.contains("/50%%j/slurm/student-%A_%a.log\n"), "{said}");
    assert!(said.lines().any(|line| line.contains(" sweep work ") && line.contains("/50%j ")), "{said}");
}

#[test]
fn no_shipped_sweep_selects_on_the_test_folders() {
    for (name, _) in SHIPPED {
        let plan = shipped(name, &[]);
        assert_eq!(plan.caveat(), None, "{name}");
    }
    // A single trial is not a selection; the best of several is.
    assert!(shipped("pipeline", &["lr=0.001,0.002"]).caveat().unwrap().contains("selected on the test folders"));
    let workplace = Workplace::new();
    let text = find(Path::new("student-sizes")).unwrap().text.replace("validation_roc_auc", "test_01_known_attack/f1");
    std::fs::write(workplace.path().join("tested.toml"), text).unwrap();
    let said = workplace.success(&["sweep", "tested.toml", "--dry-run"]);
    assert!(said.contains("the best trial will be selected on the test folders, so an optimistic estimate"), "{said}");
    assert!(said.contains("`metric = \"validation_roc_auc\"` selects on validation data"), "{said}");
}
