//! `kdgat memory`: the overlays equal the table's recommendations, and a plan says what would fit.

use std::path::Path;

use kdgat::stage::GPU_GIGABYTES;
use support::cli::Workplace;

#[test]
fn overlays_hold_what_the_table_recommends() {
    // In a process of its own: what tests beside it allocate would be measured, too.
    let printed = Workplace::new().success(&["memory", "table", "--overlays"]);
    let overlays = printed.split("# presets/").skip(1).map(|overlay| overlay.split_once('\n').unwrap());
    let overlays: Vec<(&str, &str)> = overlays.map(|(name, text)| (name, text.trim_end())).collect();
    assert_eq!(overlays.len(), GPU_GIGABYTES.len(), "{printed}");
    let mut sizes = Vec::new();
    for (name, printed) in overlays {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("presets").join(name);
        let text = std::fs::read_to_string(path).unwrap();
        assert_eq!(
            text.trim_end(),
            printed,
            "{name} (left) is not what `kdgat memory table --overlays` prints (right)"
        );
        let size = text.lines().find_map(|line| line.strip_prefix("batch_size = ")).unwrap();
        sizes.push(size.parse::<usize>().unwrap());
    }
    assert!(sizes.is_sorted(), "more memory never means smaller batches: {sizes:?}");
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
    assert!(ample.contains("within this memory: --batch-size 4096\n") && ample.contains("activations"), "{ample}");
    let scarce = plan("2GiB");
    assert!(
        scarce.contains("--gradient-checkpointing true") && scarce.contains("--accumulate-grad-batches"),
        "{scarce}"
    );
    // The settings are ranked by what they save.
    let (_, levers) = scarce.split_once("what would need less").unwrap();
    let saved = levers.lines().filter_map(|line| line.split_once("saves ")?.1.split(' ').next()?.parse::<f64>().ok());
    let saved: Vec<f64> = saved.collect();
    assert!(saved.len() >= 4 && saved.is_sorted_by(|one, next| one >= next), "{saved:?}: {scarce}");
    let hopeless = plan("1MiB");
    assert!(hopeless.contains("not even one graph"), "{hopeless}");
    let on_gpu =
        ["memory", "plan", "--preset", "gat,teacher", "--gpu-memory-limit", "8GB", "--graphs", "1000", "--nodes", "20"];
    let on_gpu = workplace.success(&on_gpu);
    assert!(on_gpu.contains("CUDA context") && !on_gpu.contains("loader queue"), "{on_gpu}");
    assert!(on_gpu.contains("measured on the CPU"), "{on_gpu}");
}

/// Networks that read positions have a plan without data, too; forces take memory.
#[test]
fn a_plan_knows_networks_of_positions() {
    let workplace = Workplace::new();
    let activations = |preset: &str, more: &[&str]| {
        let size = ["--graphs", "1000", "--nodes", "12", "--edges", "100", "--batch-size", "20", "--hidden", "16"];
        let plan = ["memory", "plan", "--preset", preset, "--use-kd", "false", "--memory-limit", "8GiB"];
        let said = workplace.success(&[&plan[..], &size, more].concat());
        assert!(said.contains("within this memory: --batch-size 20"), "{said}");
        mebibytes(&said, "activations")
    };
    for preset in ["schnet,student", "painn,student"] {
        let (with, without) = (activations(preset, &[]), activations(preset, &["--force-weight", "0"]));
        assert!(with > 1.5 * without, "{preset}: {with} MiB with forces, {without} without");
    }
    assert!(activations("sgmp,student", &[]) > 0.0);
    // With the teacher of its presets, of other representations.
    for preset in ["irreps,teacher", "irreps,student", "mlp,student"] {
        let size = ["--graphs", "100", "--nodes", "6", "--edges", "20", "--batch-size", "4", "--memory-limit", "8GiB"];
        let said = workplace.success(&[&["memory", "plan", "--preset", preset], &size[..]].concat());
        let teacher = [("irreps,student", "\nteacher: irreps of 3 layers"), ("mlp,student", "\nteacher: gin of")];
        let teacher = teacher.iter().find(|(student, _)| *student == preset);
        assert!(teacher.is_none_or(|(_, teacher)| said.contains(teacher)), "{preset}: {said}");
    }
}

/// Sizes that no memory has are refused, not made.
#[test]
fn a_plan_for_graphs_of_any_size_ends() {
    let workplace = Workplace::new();
    let plan = ["memory", "plan", "--preset", "gat,student", "--use-kd", "false", "--graphs", "5", "--edges", "10"];
    for nodes in ["18446744073709551615", "1000000000000"] {
        let said = workplace.refused(&[&plan[..], &["--nodes", nodes]].concat());
        assert!(said.contains("at most 16777216 nodes and edges together"), "{said}");
    }
    workplace.success(&[&plan[..], &["--nodes", "100000"]].concat());
}

/// The expected peak is that of the training that is planned: its activations are computed again if more graphs fit by it. A plan for a GPU that is
/// not here reads data, too, and one without a cache lists none.
#[test]
fn a_plan_on_data_is_that_of_the_training() {
    let workplace = Workplace::with_teacher();
    let plan = |more: &[&str]| workplace.success(&[&["memory", "plan", "--preset", "vgae,teacher"], more].concat());
    let fixed = ["--batch-size", "64", "--optimize-batch-size", "false", "--memory-limit"];
    let ample = plan(&[&fixed[..], &["4GiB"]].concat());
    let peak = mebibytes(&ample, "  batches of 64 graphs");
    let scarce = plan(&[&fixed[..], &[&format!("{:.1}MiB", 0.97 * peak)]].concat());
    assert!(scarce.contains("activations computed again"), "{scarce}");
    let expected = |plan: &str| mebibytes(plan, "  expected peak of tensors");
    assert!(expected(&scarce) < 0.97 * expected(&ample), "{scarce}\n{ample}");
    let absent = plan(&["--device", "cuda:63", "--gpu-memory-limit", "8GB"]);
    assert!(absent.contains("measured on the CPU with the operations of a GPU"), "{absent}");
    let student = ["memory", "plan", "--preset", "vgae,student", "--use-teacher-cache", "false"];
    let uncached = workplace.success(&student);
    assert!(uncached.contains("\nteacher:") && !uncached.contains("cached targets"), "{uncached}");
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
    // Of more batches than wait for the training.
    let usual = plan("100000000000");
    for graphs in ["10000000000000", "18446744073709551615"] {
        // "within this memory: --batch-size 1000000000, 34874 graphs at a time, ..."
        let fitting = |plan: &str| plan.lines().last().unwrap().split(", ").nth(1).unwrap().to_owned();
        assert_eq!(fitting(&plan(graphs)), fitting(&usual));
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
    assert!(!alone.contains("\nteacher:") && !alone.contains("cache of targets"), "{alone}");
    let taught = plan(&["true"]);
    assert!(taught.contains("\nteacher: gat of 2 layers"), "{taught}");
    let hinted = plan(&["true", "--kd-hint-weight", "1"]);
    let on_disk = |plan: &str| mebibytes(plan, "  cached targets, with --teacher-cache disk");
    assert!(on_disk(&hinted) > 100.0 * on_disk(&taught), "{hinted}");
    // In memory, a cache takes a mebibyte at least.
    assert!((mebibytes(&hinted, "cache of targets") - on_disk(&hinted)).abs() < 1.0, "{hinted}");
    let of_step = |plan: &str| mebibytes(plan, "activations") + mebibytes(plan, "targets");
    assert!(of_step(&hinted) > 1.3 * of_step(&taught), "{hinted}");
    let in_one_view = plan(&["true", "--kd-hint-weight", "1", "--kd-views", "0"]);
    let ratio = mebibytes(&hinted, "cache of targets") / mebibytes(&in_one_view, "cache of targets");
    assert!((ratio - 4.0).abs() < 0.1, "targets of each of the four views: {hinted}");
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
        // In blocks of a MiB.
        let planned = mebibytes(&plan, "cache of targets");
        assert_eq!(planned, (kept / 1.048_576).ceil(), "{planned} MiB planned, {kept} MB kept:\n{plan}\n{said}");
    }
}
