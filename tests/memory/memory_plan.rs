//! `kdgat memory`: the overlays equal the table's recommendations, and a plan says what would fit.

use std::path::Path;

use kdgat::memory_plan::plan;
use support::cli::Workplace;

#[test]
fn overlays_hold_what_the_table_recommends() {
    let rows = plan::table().unwrap();
    assert_eq!(rows.len(), plan::GPU_GIGABYTES.len());
    for row in &rows {
        let name = format!("presets/gpu-{}gb.toml", row.gigabytes);
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(&name)).unwrap();
        assert_eq!(text, row.overlay(), "{name} (left) is not what `kdgat memory table --overlays` prints (right)");
    }
    assert!(rows.is_sorted_by_key(|row| row.batch_size), "more memory never means smaller batches");
}

#[test]
fn a_plan_names_components_and_what_would_help() {
    let workplace = Workplace::new();
    let plan = |limit: &str| {
        let size = ["--graphs", "100000", "--nodes", "60", "--edges", "160"];
        let arguments = [&["memory", "plan", "--preset", "vgae,teacher", "--memory-limit", limit], &size[..]].concat();
        workplace.success(&arguments)
    };
    let ample = plan("200GiB");
    assert!(ample.contains("--batch-size 4096") && ample.contains("activations"), "{ample}");
    assert!(!ample.contains("do not fit"), "{ample}");
    let scarce = plan("2GiB");
    assert!(
        scarce.contains("--gradient-checkpointing true") && scarce.contains("--accumulate-grad-batches"),
        "{scarce}"
    );
    let size = ["--graphs", "1000", "--nodes", "60", "--edges", "160", "--memory-limit", "8GiB"];
    let mixed = &["memory", "plan", "--preset", "gat,student", "--precision", "bf16-mixed"];
    let mixed = workplace.success(&[&mixed[..], &size[..]].concat());
    assert!(mixed.contains("--precision bf16-mixed"), "{mixed}");
    let hopeless = plan("1MiB");
    assert!(hopeless.contains("not even one graph"), "{hopeless}");
}

/// A plan works for more graphs than the memory has bytes.
#[test]
fn a_plan_takes_the_same_memory_for_any_number_of_graphs() {
    let workplace = Workplace::new();
    let plan = |graphs: &str| {
        let size = ["--graphs", graphs, "--nodes", "60", "--edges", "160", "--batch-size", "1000000000"];
        let settings = ["memory", "plan", "--preset", "gat,student", "--use-kd", "false", "--memory-limit", "8GiB"];
        workplace.success(&[&settings[..], &["--optimize-batch-size", "false"], &size[..]].concat())
    };
    let usual = plan("4000000");
    for graphs in ["10000000000000", "18446744073709551615"] {
        let recommended = |plan: &str| plan.lines().next().unwrap().to_owned();
        assert_eq!(recommended(&plan(graphs)), recommended(&usual));
    }
}

const SIZE: &[&str] = &["--graphs", "5000", "--nodes", "30", "--edges", "80", "--memory-limit", "8GiB"];

/// Size of a component, from the end of its line in the table.
fn component<'a>(plan: &'a str, name: &str) -> &'a str {
    let line = plan.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in:\n{plan}"));
    line[name.len()..].trim_end().rsplit("  ").next().unwrap().trim()
}

fn mebibytes(plan: &str, name: &str) -> f64 {
    component(plan, name).trim_end_matches(" MiB").parse().unwrap()
}

#[test]
fn a_plan_for_a_size_reads_what_a_training_would() {
    let workplace = Workplace::new();
    let plan = |more: &[&str]| {
        workplace.success(&[&["memory", "plan", "--preset", "gat,student", "--use-kd"], more, SIZE].concat())
    };
    let alone = plan(&["false"]);
    let edges = plan(&["false", "--conv", "gatv2"]);
    for name in ["batch data", "activations"] {
        assert!(mebibytes(&edges, name) > 1.2 * mebibytes(&alone, name), "{name}: {edges}\n{alone}");
    }
    let waiting = plan(&["false", "--num-workers", "3", "--prefetch-batches", "1"]);
    let each = mebibytes(&alone, "batch data");
    assert!((mebibytes(&waiting, "loader queue") - 3.0 * each).abs() < 0.2, "one a worker at least: {waiting}");
    assert!(alone.contains("teacher none, targets off"), "{alone}");
    let taught = plan(&["true"]);
    assert!(taught.contains("teacher resident, targets ram"), "{taught}");
    let hinted = plan(&["true", "--kd-hint-weight", "1"]);
    assert!(mebibytes(&hinted, "cache of targets") > 100.0 * mebibytes(&taught, "cache of targets"), "{hinted}");
    assert!(mebibytes(&hinted, "hints") > 1.0, "{hinted}");
    let in_one_view = plan(&["true", "--kd-hint-weight", "1", "--kd-views", "0"]);
    let ratio = mebibytes(&hinted, "cache of targets") / mebibytes(&in_one_view, "cache of targets");
    assert!((ratio - 4.0).abs() < 0.01, "targets of each of the four views: {hinted}");
}

/// Includes targets of training and validation graphs, and of hidden layers if they are distilled.
#[test]
fn a_plan_keeps_the_targets_that_the_training_keeps() {
    let workplace = Workplace::new();
    workplace.success(&["autoencoder", "--preset", "vgae,teacher", "--max-epochs", "1"]);
    let student = ["--preset", "vgae,student"];
    for weight in ["0", "1"] {
        let hints = ["--kd-hint-weight", weight];
        let plan = workplace.success(&[&["memory", "plan"], &student[..], &hints].concat());
        let run = ["--max-epochs", "1", "--teacher-cache", "ram"];
        let said = workplace.success(&[&["autoencoder"], &student[..], &hints, &run].concat());
        let (_, kept) = said.split_once("teacher cache: targets of ").unwrap();
        // "157 graphs take 0.9 MB in f32"
        let mut words = kept.split(' ').skip(3);
        let number: f64 = words.next().unwrap().parse().unwrap();
        let kept = number * if words.next() == Some("kB") { 1e-3 } else { 1.0 };
        let planned = mebibytes(&plan, "cache of targets") * 1.048_576;
        // Both are rounded to a tenth.
        assert!((planned - kept).abs() < 0.11, "{planned} MB planned, {kept} MB kept:\n{plan}\n{said}");
    }
}
