//! The store of a dataset of graphs that are no CAN windows.

use std::path::Path;

use super::Store;
use super::manifest::{FORMAT_VERSION, FileEntry, Manifest, SourceState, Totals};
use super::options::BuildOptions;
use super::place::{Place, UnfinishedFolder, sync_folder};
use super::progress::{Event, Progress};
use super::shard;
use crate::columns::Columns;
use crate::dataset::{self, GraphSet, MOST_NARROW_EDGES, Source, graph_hashes};
use crate::split::FileSplit;
use crate::{FeatureSet, Level, PathKind, Split, StoreError, Vocabulary};

/// Version of the readers and of the layout: raised whenever the same source gives another store.
const READER_VERSION: u32 = 7;
/// Largest degree with a column of its own, for graphs whose nodes have no feature; larger degrees share the last column.
const MOST_DEGREES: usize = 64;

/// Opens the store of a dataset of graphs under `stores_dir`; reads the dataset and builds the store if there is none of the same files.
///
/// # Errors
/// When the dataset cannot be read, the disk is full or read-only, or the store is damaged.
pub fn open_or_build_graphs<'a>(
    source: impl Into<Source<'a>>,
    stores_dir: &Path,
    progress: &dyn Progress,
) -> Result<Store, StoreError> {
    let source = source.into();
    let digest = source.digest()?;
    let stem = source.data.file_stem().map_or("graphs".into(), |name| name.to_string_lossy());
    let key = blake3::hash(format!("{READER_VERSION} {digest}").as_bytes()).to_hex();
    let place = Place::new(stores_dir, format!("{stem}-{}", &key[..12]));
    if place.folder.exists() {
        return Store::open(&place.folder);
    }
    let _lock = place.lock(progress)?;
    if place.folder.exists() {
        return Store::open(&place.folder);
    }
    place.remove_leftovers()?;
    let set = source.read()?;
    set.notes.iter().for_each(|text| progress.report(&Event::Note { text }));
    let building = UnfinishedFolder::new(place.building());
    if building.path.exists() {
        std::fs::remove_dir_all(&building.path).map_err(StoreError::io("remove", &building.path))?;
    }
    std::fs::create_dir_all(&building.path).map_err(StoreError::io("create", &building.path))?;
    let hashes = graph_hashes(&set);
    let manifest = write(with_node_features(set), &hashes, digest, &building.path)?;
    sync_folder(&building.path)?;
    place.replace_with(building)?;
    let bytes = manifest.shards.iter().map(|shard| shard.bytes).sum();
    progress.report(&Event::Finished { folder: &place.folder, graphs: manifest.totals.graphs, bytes });
    Store::open(&place.folder)
}

/// The set, with one-hot degrees as node features if its nodes have none (as in Xu et al. 2019).
fn with_node_features(mut set: GraphSet) -> GraphSet {
    if !set.schema.node_features.is_empty() {
        return set;
    }
    let mut degrees = vec![0usize; set.node_pointers.last().map_or(0, |&end| end as usize)];
    for graph in 0..set.num_graphs() {
        let first = set.node_pointers[graph] as usize;
        for edge in set.edge_pointers[graph] as usize..set.edge_pointers[graph + 1] as usize {
            degrees[first + set.targets[edge] as usize] += 1;
        }
    }
    let most = degrees.iter().copied().max().unwrap_or(0).min(MOST_DEGREES);
    let mut one_hot = vec![0.0; degrees.len() * (most + 1)];
    for (node, &degree) in degrees.iter().enumerate() {
        one_hot[node * (most + 1) + degree.min(most)] = 1.0;
    }
    set.node_features = one_hot;
    let values = (0..=most).map(|degree| degree.to_string()).collect();
    set.schema.node_features = vec![dataset::Feature { name: "degree".to_owned(), values: Some(values) }];
    set
}

fn write(set: GraphSet, hashes: &[u64], source_digest: String, folder: &Path) -> Result<Manifest, StoreError> {
    let widths = [set.schema.node_columns(), set.schema.edge_columns(), set.schema.targets.len()];
    let [Ok(nodes), Ok(edges), Ok(targets)] = widths.map(u16::try_from) else {
        let [nodes, edges, targets] = widths;
        let value = format!("{nodes} node features, {edges} edge features, {targets} targets");
        return Err(StoreError::Parameter { name: "schema", value, expected: "at most 65535 columns of each" });
    };
    let (targets, node_targets) = match set.schema.level {
        Level::Graph => (targets, 0),
        Level::Node => (0, targets),
    };
    let (exact_targets, space) = (!set.target_rests.is_empty(), set.schema.space_columns());
    let wide_edges = (0..set.num_graphs()).any(|graph| set.num_edges(graph) > MOST_NARROW_EDGES);
    let features = FeatureSet::Columns { nodes, edges, targets, node_targets, exact_targets, wide_edges, space };
    let options = BuildOptions { features, ..BuildOptions::default() };
    let mut shards = Vec::new();
    let mut columns = Columns::new(features);
    for (graph, &hash) in hashes.iter().enumerate() {
        append(&mut columns, &set, graph);
        columns.graph_hashes.push(hash);
        if columns.bytes() >= options.shard_bytes || graph + 1 == set.num_graphs() {
            let path = folder.join(format!("shard-{:05}.safetensors", shards.len()));
            let (mut entry, file) = shard::write(&path, &columns)?;
            file.sync_all().map_err(StoreError::io("sync", &path))?;
            entry.first_graph = graph as u64 + 1 - entry.graphs;
            shards.push(entry);
            columns.clear();
        }
    }
    let mut manifest = Manifest {
        format_version: FORMAT_VERSION,
        dataset: set.name.clone(),
        features,
        options,
        digest: String::new(),
        totals: Totals {
            files: 1,
            graphs: set.num_graphs() as u64,
            nodes: shards.iter().map(|shard| shard.nodes).sum(),
            edges: shards.iter().map(|shard| shard.edges).sum(),
            ..Totals::default()
        },
        vocabulary: Vocabulary::from_ids([]),
        duplicates: Default::default(),
        scaling: None,
        profile: None,
        traceless: Vec::new(),
        given_splits: set.splits.as_ref().map(|splits| splits.iter().map(letter_of).collect()),
        files: vec![entry_of(&set, source_digest)],
        schema: Some(set.schema),
        shards,
    };
    manifest.digest = manifest.computed_digest();
    manifest.write(folder)?;
    Ok(manifest)
}

/// The manifest's letter of a set.
fn letter_of(split: &Split) -> char {
    match split {
        Split::Train => 't',
        Split::Validation => 'v',
        Split::Test => 'x',
    }
}

/// The whole dataset as the one source of the store. Its graphs are assigned to sets by a run, not by the store.
fn entry_of(set: &GraphSet, source_digest: String) -> FileEntry {
    FileEntry {
        folder: String::new(),
        name: set.name.clone(),
        role: kdgat_can::Role::TrainAttackFree,
        source: SourceState { bytes: 0, modified_nanoseconds: 0, blake3: source_digest, labels_blake3: None },
        report: Default::default(),
        ids: 0,
        first_graph: 0,
        graphs: set.num_graphs() as u64,
        attack_graphs: 0,
        split: FileSplit::default(),
        synthetic: None,
    }
}

fn append(columns: &mut Columns, set: &GraphSet, graph: usize) {
    let nodes = set.node_pointers[graph] as usize..set.node_pointers[graph + 1] as usize;
    let edges = set.edge_pointers[graph] as usize..set.edge_pointers[graph + 1] as usize;
    let (width, edge_width) = (columns.features.node_features(), columns.features.edge_features());
    columns.can_ids.extend(0..nodes.len() as u32);
    columns.attack_free.resize(columns.can_ids.len(), 1);
    columns.node_features.extend_from_slice(&set.node_features[nodes.start * width..nodes.end * width]);
    // Graphs have at most 65535 nodes: `dataset::read` has checked that.
    columns.sources.extend(set.sources[edges.clone()].iter().map(|&node| node as u16));
    columns.targets.extend(set.targets[edges.clone()].iter().map(|&node| node as u16));
    let features = &set.edge_features[edges.start * edge_width..edges.end * edge_width];
    columns.edge_features.extend_from_slice(features);
    let mut rows = vec![0u32; nodes.len() + 1];
    set.targets[edges].iter().for_each(|&target| rows[target as usize + 1] += 1);
    for node in 1..rows.len() {
        rows[node] += rows[node - 1];
    }
    match columns.features.has_wide_rows() {
        true => columns.wide_row_pointers.extend_from_slice(&rows),
        // No graph has more edges than 16 bits count.
        false => columns.row_pointers.extend(rows.iter().map(|&row| row as u16)),
    }
    columns.graph_targets.extend_from_slice(set.targets_of(graph));
    columns.target_rests.extend_from_slice(set.rests_of(graph));
    let targets = columns.features.node_targets();
    columns.node_targets.extend_from_slice(&set.node_targets[nodes.start * targets..nodes.end * targets]);
    if let Some(space) = &set.space {
        let vectors = nodes.start * 3..nodes.end * 3;
        columns.positions.extend_from_slice(&space.positions[vectors.clone()]);
        columns.kinds.extend_from_slice(&space.kinds[nodes]);
        if !space.forces.is_empty() {
            columns.forces.extend_from_slice(&space.forces[vectors]);
        }
        if !space.cells.is_empty() {
            columns.cells.extend_from_slice(&space.cells[graph * 9..(graph + 1) * 9]);
        }
        columns.push_paths(PathKind::ALL.map(|kind| set.paths_of(kind, graph).unwrap_or_default()));
    }
    columns.finish_graph(false, 0, graph as u64, 0.0);
}
