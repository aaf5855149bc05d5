//! Frame and attack counts of real traffic, against the list that comes with it.

mod can_support;

use std::fs;

use kdgat::can::{Dataset, ReadReport, Role, open_log};

#[test]
fn real_traffic_has_the_frames_that_its_manifest_says() {
    let Some(collection) = can_support::shared("candata") else { return };
    let manifest = fs::read_to_string(collection.join("MANIFEST.csv")).unwrap();
    let mut files = 0;
    for row in manifest.lines().skip(1) {
        let fields: Vec<&str> = row.split(',').collect();
        let [name, frames, attack_frames, ..] = fields[..] else { panic!("MANIFEST.csv has the row {row:?}") };
        let report = read(&collection.join(name));
        assert_eq!(report.frames, frames.parse::<u64>().unwrap(), "frames of {name}");
        assert_eq!(report.attack_frames, attack_frames.parse::<u64>().unwrap(), "attack frames of {name}");
        assert_eq!((report.rejected_rows(), report.rows), (0, report.frames), "{name}");
        // Rebased upstream: set_04 steps back a little near injected frames, hcrl_sa never does.
        assert!(report.largest_backward_step_seconds < 0.000_3, "{name} steps back");
        assert!(name.starts_with("set_04") || report.backward_timestamps == 0, "{name} steps back");
        files += 1;
    }
    assert!(files > 0, "the manifest lists no file");
}

#[test]
fn real_datasets_open() {
    let Some(collection) = can_support::shared("candata") else { return };
    let dataset = Dataset::open(&collection.join("hcrl_sa")).unwrap();
    assert_eq!(dataset.name, "hcrl_sa");
    let count = |role| dataset.files_of(role).count();
    assert_eq!([Role::TrainAttackFree, Role::TrainWithAttacks, Role::Test].map(count), [2, 2, 7]);
    assert!(dataset.files.is_sorted_by_key(|file| (file.folder.clone(), file.path.clone())));
}

fn read(path: &std::path::Path) -> ReadReport {
    let mut log = open_log(path, None).unwrap();
    let mut frames = Vec::new();
    while log.read_block(10_000, &mut frames).unwrap() > 0 {}
    log.report().clone()
}
