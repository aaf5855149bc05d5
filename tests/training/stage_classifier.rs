//! `kdgat classifier` and `kdgat curriculum`, as a user runs them.

use std::process::Stdio;

use kdgat::exit;
use support::stage::Workplace;
use support::starter;
use support::stops::{ended_by, wait_for};

const QUICK: [&str; 4] = ["--max-epochs", "2", "--lr", "0.003"];
/// Widths small enough to train quickly.
const SMALL_VGAE: [&str; 4] = ["--hidden", "16,8", "--latent", "8"];

fn with<'a>(first: &[&'a str], rest: &[&'a str]) -> Vec<&'a str> {
    first.iter().chain(rest).copied().collect()
}

fn small_gat_teacher(place: &Workplace, more: &[&str]) {
    let teacher = ["classifier", "--preset", "gat,teacher", "--hidden", "8", "--layers", "2", "--heads", "2"];
    place.run(&with(&with(&teacher, &QUICK), more));
}

fn small_vgae_teacher(place: &Workplace, more: &[&str]) {
    let teacher = with(&["autoencoder", "--preset", "vgae,teacher"], &SMALL_VGAE);
    place.run(&with(&with(&teacher, &QUICK), more));
}

#[test]
fn a_student_learns_from_the_registered_teacher_by_each_loss() {
    let place = Workplace::new();
    let refusal = place.refused(&["classifier", "--preset", "gat,student"]);
    assert!(refusal.contains("kdgat classifier --preset gat,teacher --data"), "{refusal}");
    small_gat_teacher(&place, &[]);
    assert_eq!(place.json("teachers/tiny/gat/config.json")["model"], "gat");
    let alone = "runs/tiny/gat_teacher_normal/1";
    let losses = place.metric(alone, "train_loss");
    assert!(losses[1] < losses[0], "the loss does not fall: {losses:?}");
    assert!(place.metric(alone, "kd_loss").iter().all(|loss| loss.is_nan()), "a distillation loss without a teacher");
    let wrong: f64 =
        ["false_positive_share", "false_negative_share"].map(|name| place.metric(alone, name)[1]).iter().sum();
    assert!((place.metric(alone, "accuracy")[1] + wrong - 1.0).abs() < 1e-5);

    let mut seen = Vec::new();
    for (number, loss) in ["kl", "dkd", "mse"].into_iter().enumerate() {
        place.run(&with(&["classifier", "--preset", "gat,student", "--kd-loss", loss], &QUICK));
        let run = format!("runs/tiny/gat_student_normal_kd/{}", number + 1);
        let (task, kd, total) =
            (place.metric(&run, "task_loss"), place.metric(&run, "kd_loss"), place.metric(&run, "train_loss"));
        assert!((0.7 * kd[0] + 0.3 * task[0] - total[0]).abs() < 1e-5, "{loss}: {kd:?} {task:?} {total:?}");
        assert!(place.metric(&run, "teacher_agreement")[1] > 0.5);
        seen.push(kd[0]);
    }
    let hinted = ["classifier", "--preset", "gat,student", "--kd-loss", "kl", "--kd-hint-weight", "3"];
    place.run(&with(&hinted, &QUICK));
    let run = "runs/tiny/gat_student_normal_kd/4";
    let (kd, hint) = (place.metric(run, "kd_loss"), place.metric(run, "hint_kd"));
    let (task, total) = (place.metric(run, "task_loss"), place.metric(run, "train_loss"));
    assert!((0.7 * kd[0] + 0.3 * task[0] - total[0]).abs() < 1e-5 && hint[1] < hint[0], "{kd:?} {hint:?} {total:?}");
    // With two classes `dkd` equals `kl`; `mse` on the logits differs.
    assert!((seen[0] - seen[1]).abs() < 1e-5 && (seen[0] - seen[2]).abs() > 1e-3, "{seen:?}");
}

#[test]
fn task_losses_differ() {
    let place = Workplace::new();
    let losses = ["ce", "weighted", "focal"].map(|loss| {
        let run = format!("run-{loss}");
        place.run(&with(
            &["classifier", "--preset", "gat,student", "--use-kd", "false", "--task-loss", loss, "--run-dir", &run],
            &["--max-epochs", "1"],
        ));
        place.metric(&run, "val_task_loss")[0]
    });
    assert!(losses[2] < losses[0] && losses[0] != losses[1], "{losses:?}");
}

#[test]
fn the_curriculum_chooses_as_it_says() {
    let place = Workplace::new();
    let student = ["curriculum", "--preset", "gat,student", "--use-kd", "false", "--max-epochs", "4"];
    let refusal = place.refused(&student);
    assert!(refusal.contains("kdgat autoencoder --preset vgae,teacher --data"), "{refusal}");
    small_vgae_teacher(&place, &[]);
    let ratios = ["--curriculum-start-ratio", "0.5", "--curriculum-end-ratio", "1.5"];
    for kind in ["difficulty", "static", "random"] {
        place.run(&with(&with(&student, &ratios), &["--curriculum", kind, "--run-dir", kind]));
        let ratios = place.metric(kind, "curriculum_ratio");
        for (epoch, ratio) in ratios.iter().enumerate() {
            let wanted = 0.5 + epoch as f64 / 4.0;
            assert!((ratio - wanted).abs() < 0.01, "{kind}: ratio {ratio} at epoch {epoch}, {wanted} wanted");
        }
    }
    assert_eq!(place.metric("difficulty", "curriculum_percentile"), [50.0, 61.25, 72.5, 83.75]);
    assert!(place.metric("random", "curriculum_percentile")[0].is_nan());
    assert!(place.metric("random", "curriculum_difficulty")[0].is_nan(), "nothing is scored for a random choice");
    let mean_difficulty = |kind| place.metric(kind, "curriculum_difficulty")[0];
    assert!(mean_difficulty("static") > mean_difficulty("difficulty"), "the hardest are not the hardest");

    place.run(&with(&student, &["--curriculum", "none", "--run-dir", "all"]));
    let normals = place.metric("all", "curriculum_normals");
    assert!(normals.iter().all(|&count| count == normals[0]) && normals[0] > 100.0, "{normals:?}");
    // The scores are cached once, by the digests of data and model.
    let kept: Vec<_> = std::fs::read_dir(place.path("stores/difficulty")).unwrap().collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
}

#[test]
fn scores_are_the_same_twice_and_a_run_can_name_its_model() {
    let place = Workplace::new();
    small_vgae_teacher(&place, &[]);
    let first = place.run(&["curriculum", "--score-only", "--difficulty-chunk", "64"]);
    assert_eq!(first, place.run(&["curriculum", "--score-only", "--difficulty-chunk", "64"]));
    // The reader of the table may exit early, as with `| head -2`.
    let mut child =
        starter::shared(place.command(&["curriculum", "--score-only"])).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
    // The model is named by its folder or its file.
    for model in ["runs/tiny/vgae_teacher_autoencoder/1", "runs/tiny/vgae_teacher_autoencoder/1/best.safetensors"] {
        let named = ["curriculum", "--score-only", "--difficulty-chunk", "64", "--difficulty-model", model];
        place.run(&with(&named, &["--scores", "s.csv"]));
        assert_eq!(first, std::fs::read_to_string(place.path("s.csv")).unwrap(), "{model}");
    }

    let refusal = place.refused(&["curriculum", "--score-only", "--difficulty-model", "runs"]);
    assert!(refusal.contains("runs/weights.safetensors do not exist; name a weight file, or a run's"), "{refusal}");

    let mut reader = csv::Reader::from_reader(first.as_bytes());
    let rows: Vec<csv::StringRecord> = reader.records().collect::<Result<_, _>>().unwrap();
    let graphs: Vec<u64> = rows.iter().map(|row| row[0].parse().unwrap()).collect();
    assert_eq!(graphs, (0..graphs.len() as u64).collect::<Vec<_>>());
    for split in ["train", "validation", "test"] {
        assert!(rows.iter().any(|row| &row[5] == split), "no graph of {split}");
    }
    small_gat_teacher(&place, &[]);
    let refusal =
        place.refused(&["curriculum", "--score-only", "--difficulty-model", "teachers/tiny/gat/weights.safetensors"]);
    assert!(refusal.contains("is a gat") && refusal.contains("--difficulty-model"), "{refusal}");
}

#[test]
fn gatv2_trains_teaches_and_scores() {
    let place = Workplace::new();
    small_vgae_teacher(&place, &["--conv", "gatv2"]);
    let scaling = &place.json("teachers/tiny/vgae/config.json")["architecture"]["edge_scaling"];
    assert_eq!(scaling["deviation"].as_array().map(Vec::len), Some(11), "{scaling}");
    let student = with(&["autoencoder", "--preset", "vgae,student", "--use-kd"], &SMALL_VGAE);
    for conv in ["gat", "gatv2"] {
        place.run(&with(&with(&student, &QUICK), &["--conv", conv, "--run-dir", conv]));
        let losses = place.metric(conv, "kd_loss");
        assert!(losses[1] < losses[0], "{conv}: {losses:?}");
    }
    small_gat_teacher(&place, &["--conv", "gatv2"]);
    place.run(&with(&["curriculum", "--preset", "gat,student", "--run-dir", "student"], &QUICK));
    assert!(place.metric("student", "kd_loss")[0] > 0.0);
    place.run(&["teachers", "verify"]);
}

#[test]
fn an_interrupted_curriculum_goes_on_with_its_scores_until_new_ones_are_due() {
    let place = Workplace::new();
    small_vgae_teacher(&place, &[]);
    let curriculum = ["curriculum", "--preset", "gat,student", "--use-kd", "false", "--max-epochs", "20"];
    // Few enough normal graphs that the choice matters.
    let ratios = ["--curriculum-start-ratio", "0.5", "--curriculum-end-ratio", "1.5"];
    let curriculum = with(&with(&curriculum, &ratios), &["--difficulty-cache-update", "5"]);
    place.run(&with(&curriculum, &["--run-dir", "whole"]));

    let interrupted = with(&curriculum, &["--run-dir", "parts"]);
    let child = starter::shared(place.command(&interrupted)).stderr(Stdio::null()).spawn().unwrap();
    let epochs = || std::fs::read_to_string(place.path("parts/metrics.csv")).map_or(0, |text| text.lines().count());
    wait_for("a third epoch", || epochs() >= 4);
    let output = ended_by(child, rustix::process::Signal::INT);
    assert_eq!(output.status.code(), Some(exit::INTERRUPTED.into()), "an interrupted run is not done");
    // Another VGAE replaces the teacher; only the next scoring, after epoch 5, 10 or 15, uses it.
    let next_scoring = (epochs() - 1) / 5 * 5 + 5;
    assert!(next_scoring < 20, "the run was too fast to be interrupted");
    small_vgae_teacher(&place, &["--seed", "7"]);
    place.run(&with(&interrupted, &["--resume"]));
    for column in ["train_loss", "val_loss", "curriculum_difficulty"] {
        let (parts, whole) = (place.metric("parts", column), place.metric("whole", column));
        assert_eq!(parts.len(), 20);
        assert_eq!(parts[..next_scoring], whole[..next_scoring], "{column}");
        assert!(parts[next_scoring..].iter().zip(&whole[next_scoring..]).all(|(new, old)| new != old), "{column}");
    }
}
