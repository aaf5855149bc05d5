//! Stores with rich features: their statistics, stores that are refused on opening, and real datasets.

use std::fs;

use kdgat::can::Dataset;
use kdgat::graph::{
    BuildOptions, EDGE_FEATURES, FeatureSet, RICH_NODE_FEATURES, Split, Store, StoreError, Vocabulary, open_or_build,
};
use support::graph::write_dataset;
use support::real_data::candata;

fn rich() -> BuildOptions {
    BuildOptions { window: 20, stride: 20, features: FeatureSet::Rich, shard_bytes: 60_000, ..BuildOptions::default() }
}

/// Mean and population standard deviation, feature by feature.
fn statistics(rows: &[Vec<f64>]) -> Vec<(f64, f64)> {
    let count = rows.len() as f64;
    let mean = |feature: usize| rows.iter().map(|row| row[feature]).sum::<f64>() / count;
    let deviation = |feature: usize| {
        let center = mean(feature);
        (rows.iter().map(|row| (row[feature] - center).powi(2)).sum::<f64>() / count).sqrt()
    };
    (0..rows[0].len()).map(|feature| (mean(feature), deviation(feature))).collect()
}

fn assert_statistics(what: &str, found: impl Iterator<Item = (f64, f64)>, expected: &[(f64, f64)]) {
    for (feature, (found, expected)) in found.zip(expected).enumerate() {
        // A feature that never changes has deviation 1.
        let deviation = if expected.1 < 1e-12 { 1.0 } else { expected.1 };
        let close = |found: f64, expected: f64| (found - expected).abs() <= 1e-6 * expected.abs().max(1e-3);
        assert!(close(found.0, expected.0) && close(found.1, deviation), "{what} {feature}: {found:?}, {expected:?}");
    }
}

fn assert_scaling_of_benign_training_graphs(store: &Store) {
    let (mut nodes, mut edges) = (Vec::new(), Vec::new());
    let row = |row: &[f32]| row.iter().map(|&value| f64::from(value)).collect::<Vec<f64>>();
    for graph in store.select(Split::Train, Some(false)) {
        let view = store.graph(graph);
        nodes.extend(view.node_features.chunks(RICH_NODE_FEATURES).map(row));
        edges.extend(view.edge_features.chunks(EDGE_FEATURES).map(row));
    }
    let scaling = store.manifest().scaling.as_ref().expect("a scaling");
    let pairs = scaling.nodes.mean.iter().zip(&scaling.nodes.deviation);
    assert_statistics("node feature", pairs.map(|(&a, &b)| (f64::from(a), f64::from(b))), &statistics(&nodes));
    let pairs = scaling.edges.mean.iter().zip(&scaling.edges.deviation);
    assert_statistics("edge feature", pairs.map(|(&a, &b)| (a, b)), &statistics(&edges));
}

#[test]
fn the_scaling_is_that_of_benign_training_graphs() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("car");
    write_dataset(&root, 3000);
    // A test log is a copy of a training log: its graphs leave training and do not count for the scaling.
    fs::copy(root.join("train_01_attack_free/drive-2.csv"), root.join("test_01_known/copy.csv")).unwrap();
    let dataset = Dataset::open(&root).unwrap();
    let store = open_or_build(&dataset, &rich(), &folder.path().join("stores"), &()).unwrap();
    assert!(store.manifest().duplicates.num_dropped() > 50);
    assert_eq!(store.features(), FeatureSet::Rich);
    assert_scaling_of_benign_training_graphs(&store);
    store.verify().unwrap();
    // The two feature sets give two stores with the same graphs.
    let plain = BuildOptions { features: FeatureSet::Window, ..rich() };
    let plain = open_or_build(&dataset, &plain, &folder.path().join("stores"), &()).unwrap();
    assert_ne!(plain.path(), store.path());
    let (rich, window) = (store.manifest(), plain.manifest());
    assert_eq!((&rich.totals, &rich.vocabulary), (&window.totals, &window.vocabulary));
    assert!(window.scaling.is_none());
}

#[test]
fn a_changed_scaling_is_damage() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = write_dataset(&folder.path().join("car"), 1000);
    let store = open_or_build(&dataset, &rich(), &folder.path().join("stores"), &()).unwrap();
    let path = store.path().join("store.json");
    let text = fs::read_to_string(&path).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    for change in ["value", "missing", "features"] {
        let mut changed = json.clone();
        match change {
            "value" => changed["scaling"]["nodes"]["mean"][24] = serde_json::json!(3.5),
            "missing" => drop(changed.as_object_mut().unwrap().remove("scaling")),
            _ => changed["features"] = serde_json::json!("window"),
        }
        fs::write(&path, changed.to_string()).unwrap();
        let error = Store::open(store.path()).unwrap_err();
        assert!(matches!(error, StoreError::Manifest { .. }), "{change}: {error}");
    }
    fs::write(&path, text).unwrap();
    Store::open(store.path()).unwrap();
}

/// Both datasets with both feature sets.
#[test]
fn real_datasets_build_with_both_sets() {
    for name in ["hcrl_sa", "set_04"] {
        let Some(path) = candata(name) else { continue };
        let dataset = Dataset::open(&path).unwrap();
        let stores = tempfile::tempdir().unwrap();
        let [window, rich] = [FeatureSet::Window, FeatureSet::Rich].map(|features| {
            let options = BuildOptions { features, ..BuildOptions::default() };
            open_or_build(&dataset, &options, stores.path(), &()).unwrap()
        });
        assert_eq!(window.manifest().totals, rich.manifest().totals);
        let finite = |graph: u64| {
            let view = rich.graph(graph);
            view.node_features.iter().chain(view.edge_features).all(|value| value.is_finite())
        };
        assert!((0..rich.num_graphs()).all(finite), "{name}: a feature that is no number");
        assert_ne!(rich.vocabulary(), &Vocabulary::from_ids([]));
        assert_scaling_of_benign_training_graphs(&rich);
        println!("{name}: {} graphs", rich.num_graphs());
    }
}
