//! Frame and attack counts of real traffic, compared with the manifest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kdgat::can::{Dataset, ReadReport, Role, open_log};
use support::real_data::candata;

const MANIFEST: &str = include_str!("../data/candata/MANIFEST.csv");

#[test]
fn real_traffic_has_the_frames_that_its_manifest_says() {
    let mut folders = BTreeMap::new();
    let mut rows = 0;
    for row in MANIFEST.lines().skip(1) {
        rows += 1;
        let fields: Vec<&str> = row.split(',').collect();
        let [name, frames, attack_frames, ..] = fields[..] else { panic!("MANIFEST.csv has the row {row:?}") };
        let (dataset, file) = name.split_once('/').unwrap();
        let Some(folder) = folders.entry(dataset).or_insert_with(|| candata(dataset)) else { continue };
        let report = read(&as_downloaded(&folder.join(file)));
        assert_eq!(report.frames, frames.parse::<u64>().unwrap(), "frames of {name}");
        assert_eq!(report.attack_frames, attack_frames.parse::<u64>().unwrap(), "attack frames of {name}");
        assert_eq!((report.rejected_rows(), report.rows), (0, report.frames), "{name}");
        // The publisher rebased the times: set_03 and set_04 step back a little near injected frames, hcrl_sa never does.
        assert!(report.largest_backward_step_seconds < 0.000_3, "{name} steps back");
        assert!(dataset != "hcrl_sa" || report.backward_timestamps == 0, "{name} steps back");
    }
    assert!(rows > 0, "the manifest lists no file");
}

/// Path of a log, compressed or not.
fn as_downloaded(path: &Path) -> PathBuf {
    if path.exists() { path.to_owned() } else { path.with_extension("") }
}

#[test]
fn real_datasets_open() {
    let Some(folder) = candata("hcrl_sa") else { return };
    let dataset = Dataset::open(&folder).unwrap();
    assert_eq!(dataset.name, "hcrl_sa");
    let count = |role| dataset.files_of(role).count();
    assert_eq!([Role::TrainAttackFree, Role::TrainWithAttacks, Role::Test].map(count), [2, 2, 7]);
    assert!(dataset.files.is_sorted_by_key(|file| (file.folder.clone(), file.path.clone())));
}

fn read(path: &Path) -> ReadReport {
    let mut log = open_log(path, None).unwrap();
    let mut frames = Vec::new();
    while log.read_block(10_000, &mut frames).unwrap() > 0 {}
    log.report().clone()
}
