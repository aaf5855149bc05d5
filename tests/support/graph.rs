//! Frames, datasets and graphs for the tests of module `graph`.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use kdgat::can::{Dataset, Frame};
use kdgat::graph::{
    AssembleOptions, BuildOptions, Columns, EDGE_FEATURES, Event, NODE_FEATURES, Progress, Store, open_or_build,
};
use proptest::prelude::*;

/// Random numbers for reproducible traffic.
pub struct Draw(pub u64);

impl Draw {
    pub fn next(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Traffic of `ids` IDs; the frames in `attacks` are attack frames with other IDs.
pub fn traffic(count: usize, ids: u64, seed: u64, attacks: std::ops::Range<usize>) -> Vec<Frame> {
    let mut draw = Draw(seed);
    let mut frame = |position: usize| {
        let attack = attacks.contains(&position);
        let base = if attack { 0x700 } else { 0x100 };
        let payload = std::array::from_fn(|_| draw.next(256) as u8);
        let can_id = base + (draw.next(ids) * 3) as u32;
        Frame { timestamp: 1000.0 + position as f64 * 0.000_5, can_id, payload, payload_length: 8, attack }
    };
    (0..count).map(&mut frame).collect()
}

/// Writes `folder/name` of a dataset in the format of the can-train-and-test collection.
pub fn write_log(root: &Path, folder: &str, name: &str, frames: &[Frame]) {
    let mut text = String::from("timestamp,arbitration_id,data_field,attack\n");
    for frame in frames {
        write!(text, "{:.6},{:03X},", frame.timestamp, frame.can_id).unwrap();
        for byte in &frame.payload[..usize::from(frame.payload_length)] {
            write!(text, "{byte:02X}").unwrap();
        }
        writeln!(text, ",{}", u8::from(frame.attack)).unwrap();
    }
    fs::create_dir_all(root.join(folder)).unwrap();
    fs::write(root.join(folder).join(name), text).unwrap();
}

/// Writes two training files without and one with attacks, and two test files.
pub fn write_dataset(root: &Path, frames_a_file: usize) -> Dataset {
    let third = frames_a_file / 3;
    write_log(root, "train_01_attack_free", "drive-1.csv", &traffic(frames_a_file, 12, 1, 0..0));
    write_log(root, "train_01_attack_free", "drive-2.csv", &traffic(frames_a_file + 37, 14, 2, 0..0));
    write_log(root, "train_02_with_attacks", "fuzzing.csv", &traffic(frames_a_file, 12, 3, third..2 * third));
    write_log(root, "test_01_known", "fuzzing.csv", &traffic(frames_a_file, 12, 4, third..2 * third));
    write_log(root, "test_02_unknown", "other.csv", &traffic(third, 20, 5, 0..0));
    Dataset::open(root).unwrap()
}

/// One graph: nodes with ascending IDs, edges ordered by target and source, arbitrary features.
#[derive(Debug, Clone)]
pub struct AnyGraph {
    pub ids: Vec<u32>,
    pub attack_free: Vec<u8>,
    pub node_features: Vec<f32>,
    /// Pairs (target, source), ascending.
    pub edges: Vec<(u16, u16)>,
    pub edge_features: Vec<f32>,
    pub attack: bool,
}

pub fn any_graph() -> impl Strategy<Value = AnyGraph> {
    let ids = prop::collection::btree_set(prop_oneof![3 => 0u32..40, 1 => 0u32..(1 << 29)], 1..20);
    ids.prop_flat_map(|ids| {
        let nodes = ids.len();
        let edges = prop::collection::btree_set((0..nodes as u16, 0..nodes as u16), 0..=(3 * nodes).min(nodes * nodes));
        let flags = prop::collection::vec(0u8..2, nodes);
        (
            Just(ids),
            flags,
            prop::collection::vec(-1.0f32..1.0, nodes * NODE_FEATURES),
            edges,
            any::<bool>(),
            any::<u32>(),
        )
    })
    .prop_map(|(ids, attack_free, node_features, edges, attack, seed)| {
        let mut draw = Draw(u64::from(seed));
        let edge_features = (0..edges.len() * EDGE_FEATURES).map(|_| draw.next(1000) as f32 / 8.0).collect();
        let (ids, edges) = (ids.into_iter().collect(), edges.into_iter().collect());
        AnyGraph { ids, attack_free, node_features, edges, edge_features, attack }
    })
}

pub fn columns_of(graphs: &[AnyGraph]) -> Columns {
    let mut columns = Columns::default();
    for (index, graph) in graphs.iter().enumerate() {
        columns.can_ids.extend(&graph.ids);
        columns.attack_free.extend(&graph.attack_free);
        columns.node_features.extend(&graph.node_features);
        columns.sources.extend(graph.edges.iter().map(|edge| edge.1));
        columns.targets.extend(graph.edges.iter().map(|edge| edge.0));
        let row_begin = |node: usize| graph.edges.partition_point(|edge| usize::from(edge.0) < node) as u16;
        columns.row_pointers.extend((0..=graph.ids.len()).map(row_begin));
        columns.edge_features.extend(&graph.edge_features);
        columns.finish_graph(graph.attack, index as u32 % 7, index as u64 * 100, index as f64 * 0.5);
    }
    columns
}

/// Progress calls of a build.
#[derive(Default)]
pub struct Heard(Mutex<Vec<String>>);

impl Progress for Heard {
    fn report(&self, event: &Event<'_>) {
        let name = match event {
            Event::Frames { .. } => return,
            Event::Rebuilding { reason } => format!("rebuilding: {reason}"),
            Event::Started { .. } => "started".to_string(),
            other => format!("{other:?}"),
        };
        self.0.lock().unwrap().push(name);
    }
}

impl Heard {
    pub fn count(&self, prefix: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|name| name.starts_with(prefix)).count()
    }
}

pub struct Fixture {
    _folder: tempfile::TempDir,
    pub dataset: Dataset,
    pub stores: PathBuf,
}

pub fn fixture(frames_a_file: usize) -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let dataset = write_dataset(&folder.path().join("car"), frames_a_file);
    let stores = folder.path().join("stores");
    Fixture { _folder: folder, dataset, stores }
}

pub fn small() -> BuildOptions {
    BuildOptions { window: 20, stride: 20, shard_bytes: 20_000, threads: 2, ..BuildOptions::default() }
}

/// File names in a folder.
pub fn contents_names(folder: &Path) -> Vec<String> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Store built once for all tests.
pub fn store() -> Arc<Store> {
    static STORE: OnceLock<(tempfile::TempDir, Arc<Store>)> = OnceLock::new();
    let build = || {
        let folder = tempfile::tempdir().unwrap();
        let dataset = write_dataset(&folder.path().join("car"), 3000);
        let options = BuildOptions { window: 20, stride: 20, shard_bytes: 20_000, ..BuildOptions::default() };
        let store = open_or_build(&dataset, &options, &folder.path().join("stores"), &()).unwrap();
        (folder, Arc::new(store))
    };
    Arc::clone(&STORE.get_or_init(build).1)
}

pub fn options(store: &Store) -> AssembleOptions {
    let vocabulary = Arc::new(store.vocabulary().clone());
    AssembleOptions {
        vocabulary,
        unknown_drop: None,
        edge_attributes: true,
        hashed_ids: false,
        profile: None,
        short_profiles: false,
        space: None,
    }
}
