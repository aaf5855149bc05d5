//! `kdgat memory`: overlays are what the table recommends, and a plan says what would fit.

mod support;

use std::path::Path;

use kdgat::memory::plan;
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
