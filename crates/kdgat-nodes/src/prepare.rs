//! Turns the list of edges of a source into a [`NodeGraph`]: edges sorted by target without self-loops and repetitions,
//! the largest component, renumbered, and the classes that nodes have.
//!
//! Each step takes time linear in nodes and edges (components: times the inverse Ackermann function). Sorting needs
//! memory for two copies of the directed edges, four bytes each; all other steps work in place.

use crate::class_numbers::ClassNumbers;
use crate::node_graph::{NO_LABEL, NodeGraph, NodeTask, Section};
use crate::sections::content_digest;
use crate::sources::{EdgeList, GraphOptions, RawFeatures, RawGraph, SourceNotes};

/// Number of a node that is not kept.
const REMOVED: u32 = u32::MAX;

/// Sorts the edges, and reduces the graph to its largest component if `options` ask for it.
pub fn prepare(raw: RawGraph, options: &GraphOptions) -> (NodeGraph, SourceNotes) {
    let RawGraph { name, edges, features, mut labels, mut split, class_names, ignored_columns, mut remarks } = raw;
    let mut node_hashes = features.node_hashes();
    let mut features = features.features;
    // Of the whole source, so that no option of reading changes a node's class.
    let present = ClassNumbers::of(&labels);
    labels.iter_mut().for_each(|label| *label = present.renumbered(*label));
    let had_names = class_names.is_some();
    let class_names = present.names(class_names);
    remarks.extend(present.remark(class_names.as_deref()).filter(|_| !had_names));
    let source_nodes = labels.len();
    let listed_edges = edges.sources.len() as u64;
    let (outgoing, removed_self_loops) = outgoing_edges(edges, source_nodes, options.undirected);
    let mut rows = transposed(outgoing);
    remove_repetitions(&mut rows);
    let directions = if options.undirected { 2 } else { 1 };
    let removed_duplicates = listed_edges - removed_self_loops - rows.nodes.len() as u64 / directions;
    let kept = if options.largest_component { largest_component(&rows) } else { None };
    if let Some(kept) = &kept {
        keep_edges(&mut rows, kept);
        keep_features(&mut features, kept);
        keep_rows(&mut labels, 1, kept);
        keep_rows(&mut node_hashes, 1, kept);
        split.iter_mut().for_each(|split| keep_rows(split, 1, kept));
    }
    let notes = SourceNotes {
        source_nodes: source_nodes as u64,
        listed_edges,
        removed_self_loops,
        removed_duplicates,
        nodes_outside_component: (source_nodes - labels.len()) as u64,
        nodes_without_label: labels.iter().filter(|&&label| label == NO_LABEL).count() as u64,
        ignored_columns,
        class_names,
        remarks,
    };
    let mut graph = NodeGraph {
        name,
        digest: String::new(),
        row_pointers: rows.pointers.into(),
        sources: rows.nodes.into(),
        features: features.into(),
        labels: labels.into(),
        task: NodeTask { classes: present.count() },
        given_split: split.map(Section::from),
        node_hashes: node_hashes.into(),
        original: kept.map(|kept| kept.into_iter().map(u64::from).collect::<Vec<_>>().into()),
    };
    graph.digest = content_digest(&graph);
    (graph, notes)
}

/// Lists of nodes: that of node `i` is `nodes[pointers[i]..pointers[i + 1]]`.
struct Rows {
    /// `[num_nodes + 1]`.
    pointers: Vec<u64>,
    nodes: Vec<u32>,
}

impl Rows {
    /// Counting sort: puts the second node of each pair into the list of the first. Pairs of the same first node keep
    /// their order. `each_pair` must give the same pairs both times.
    fn grouped(num_nodes: usize, each_pair: impl Fn(&mut dyn FnMut(u32, u32))) -> Self {
        let mut pointers = vec![0u64; num_nodes + 1];
        each_pair(&mut |first, _| pointers[first as usize + 1] += 1);
        (0..num_nodes).for_each(|node| pointers[node + 1] += pointers[node]);
        let mut nodes = vec![0; pointers[num_nodes] as usize];
        each_pair(&mut |first, second| {
            let next = &mut pointers[first as usize];
            nodes[*next as usize] = second;
            *next += 1;
        });
        // Each pointer is now at the end of its list, where the next one begins.
        pointers.copy_within(..num_nodes, 1);
        pointers[0] = 0;
        Self { pointers, nodes }
    }

    fn num_nodes(&self) -> usize {
        self.pointers.len() - 1
    }

    fn of(&self, node: usize) -> &[u32] {
        &self.nodes[self.pointers[node] as usize..self.pointers[node + 1] as usize]
    }
}

/// The targets of the edges of each source, and the number of self-loops, which are removed. With `undirected`, the
/// reverse of each edge as well.
fn outgoing_edges(edges: EdgeList, num_nodes: usize, undirected: bool) -> (Rows, u64) {
    let loops = edges.iter().filter(|(source, target)| source == target).count() as u64;
    let rows = Rows::grouped(num_nodes, |pair| {
        for (source, target) in edges.iter().filter(|(source, target)| source != target) {
            pair(source, target);
            if undirected {
                pair(target, source);
            }
        }
    });
    (rows, loops)
}

/// The sources of the edges of each target, ascending, from the targets of each source.
fn transposed(outgoing: Rows) -> Rows {
    Rows::grouped(outgoing.num_nodes(), |pair| {
        for source in 0..outgoing.num_nodes() {
            // Nodes are numbered in 32 bits.
            outgoing.of(source).iter().for_each(|&target| pair(target, source as u32));
        }
    })
}

/// Removes all but the first of equal neighbours in each list, whose nodes ascend.
fn remove_repetitions(rows: &mut Rows) {
    let (mut kept, mut begin) = (0, 0);
    for node in 0..rows.num_nodes() {
        let end = rows.pointers[node + 1] as usize;
        let first = kept;
        for at in begin..end {
            let neighbour = rows.nodes[at];
            if kept == first || rows.nodes[kept - 1] != neighbour {
                rows.nodes[kept] = neighbour;
                kept += 1;
            }
        }
        begin = end;
        rows.pointers[node + 1] = kept as u64;
    }
    rows.nodes.truncate(kept);
    rows.nodes.shrink_to_fit();
}

/// The nodes of the largest weakly connected component, ascending; of several, the one with the smallest node. `None`
/// if the graph is connected. Uses union by size with path halving (Tarjan & van Leeuwen 1984).
fn largest_component(rows: &Rows) -> Option<Vec<u32>> {
    let num_nodes = rows.num_nodes();
    let mut parents: Vec<u32> = (0..num_nodes as u32).collect();
    let mut sizes = vec![1u32; num_nodes];
    for target in 0..num_nodes {
        for &source in rows.of(target) {
            let (first, second) = (root_of(&mut parents, target as u32), root_of(&mut parents, source));
            if first != second {
                let larger_is_first = sizes[first as usize] >= sizes[second as usize];
                let (root, child) = if larger_is_first { (first, second) } else { (second, first) };
                parents[child as usize] = root;
                sizes[root as usize] += sizes[child as usize];
            }
        }
    }
    let (mut largest, mut size) = (0, 0);
    for node in 0..num_nodes as u32 {
        let root = root_of(&mut parents, node);
        if sizes[root as usize] > size {
            (largest, size) = (root, sizes[root as usize]);
        }
    }
    if size as usize == num_nodes {
        return None;
    }
    let mut kept = Vec::with_capacity(size as usize);
    kept.extend((0..num_nodes as u32).filter(|&node| root_of(&mut parents, node) == largest));
    Some(kept)
}

/// The root of a node's tree. Halves the path to it.
fn root_of(parents: &mut [u32], mut node: u32) -> u32 {
    while parents[node as usize] != node {
        let grandparent = parents[parents[node as usize] as usize];
        parents[node as usize] = grandparent;
        node = grandparent;
    }
    node
}

/// Removes the lists of all other nodes, and renumbers the nodes in the kept ones. No edge leads to a removed node.
fn keep_edges(rows: &mut Rows, kept: &[u32]) {
    let mut numbers = vec![REMOVED; rows.num_nodes()];
    kept.iter().zip(0..).for_each(|(&node, number)| numbers[node as usize] = number);
    let mut pointers = Vec::with_capacity(kept.len() + 1);
    pointers.push(0);
    let mut end = 0;
    for &node in kept {
        for at in rows.pointers[node as usize] as usize..rows.pointers[node as usize + 1] as usize {
            rows.nodes[end] = numbers[rows.nodes[at] as usize];
            end += 1;
        }
        pointers.push(end as u64);
    }
    rows.pointers = pointers;
    rows.nodes.truncate(end);
    rows.nodes.shrink_to_fit();
}

fn keep_features(features: &mut RawFeatures, kept: &[u32]) {
    match features {
        RawFeatures::Dense { columns, values } => keep_rows(values, *columns, kept),
        RawFeatures::Half { columns, values } => keep_rows(values, *columns, kept),
        RawFeatures::Sparse(sparse) => {
            let mut pointers = Vec::with_capacity(kept.len() + 1);
            pointers.push(0);
            let mut end = 0;
            for &node in kept {
                let row = sparse.row_pointers[node as usize] as usize..sparse.row_pointers[node as usize + 1] as usize;
                let length = row.len();
                sparse.column_index.copy_within(row.clone(), end);
                sparse.values.copy_within(row, end);
                end += length;
                pointers.push(end as u64);
            }
            sparse.row_pointers = pointers;
            sparse.column_index.truncate(end);
            sparse.values.truncate(end);
            sparse.column_index.shrink_to_fit();
            sparse.values.shrink_to_fit();
        }
    }
}

/// Moves the rows of the kept nodes, which ascend, to the front, and removes the others.
fn keep_rows<T: Copy>(values: &mut Vec<T>, columns: usize, kept: &[u32]) {
    for (row, &node) in kept.iter().enumerate() {
        let begin = node as usize * columns;
        values.copy_within(begin..begin + columns, row * columns);
    }
    values.truncate(kept.len() * columns);
    values.shrink_to_fit();
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::node_hash::RowHash;
    use crate::sources::{HashedRows, SparseFeatures};

    fn hashed(features: RawFeatures, nodes: usize) -> HashedRows {
        HashedRows { features, hashes: vec![RowHash::default(); nodes], names: None }
    }

    fn edge_list(edges: &[(u32, u32)]) -> EdgeList {
        let (sources, targets) = edges.iter().copied().unzip();
        EdgeList { sources, targets }
    }

    /// A graph whose only feature is the number of the node, as is its label.
    fn numbered(num_nodes: u32, edges: &[(u32, u32)]) -> RawGraph {
        RawGraph {
            name: "numbered".to_owned(),
            edges: edge_list(edges),
            features: hashed(
                RawFeatures::Dense { columns: 1, values: (0..num_nodes).map(|node| node as f32).collect() },
                num_nodes as usize,
            ),
            labels: (0..num_nodes as i32).collect(),
            split: Some((0..num_nodes).map(|node| (node % 4) as u8).collect()),
            class_names: None,
            ignored_columns: Vec::new(),
            remarks: Vec::new(),
        }
    }

    fn edges_of(graph: &NodeGraph) -> Vec<(u32, u32)> {
        let of = |target| graph.neighbours(target).iter().map(move |&source| (source, target));
        (0..graph.num_nodes() as u32).flat_map(of).collect()
    }

    #[test]
    fn edges_are_sorted_by_target_and_source() {
        let edges = [(3, 1), (0, 1), (2, 2), (0, 1), (1, 0), (2, 1)];
        let options = GraphOptions { undirected: false, largest_component: false, ..GraphOptions::default() };
        let (graph, notes) = prepare(numbered(4, &edges), &options);
        assert_eq!(edges_of(&graph), [(1, 0), (0, 1), (2, 1), (3, 1)]);
        assert_eq!((notes.listed_edges, notes.removed_self_loops, notes.removed_duplicates), (6, 1, 1));
        assert!(graph.original.is_none());
        assert_eq!(graph.task.classes, 4);
        let (graph, notes) = prepare(numbered(4, &edges), &GraphOptions { undirected: true, ..options });
        assert_eq!(edges_of(&graph), [(1, 0), (0, 1), (2, 1), (3, 1), (1, 2), (1, 3)]);
        // An edge in both directions is one undirected edge.
        assert_eq!((notes.removed_self_loops, notes.removed_duplicates), (1, 2));
    }

    #[test]
    fn the_largest_component_ignores_directions_and_keeps_the_numbers_of_the_source() {
        let edges = [(5, 1), (3, 1), (3, 6), (0, 2), (2, 4), (4, 0)];
        let options = GraphOptions { undirected: false, ..GraphOptions::default() };
        let (graph, notes) = prepare(numbered(7, &edges), &options);
        assert_eq!(graph.original.as_deref().unwrap(), [1, 3, 5, 6]);
        assert_eq!(&graph.labels[..], [1, 3, 5, 6]);
        assert_eq!(graph.given_split.as_deref().unwrap(), [1, 3, 1, 2]);
        assert_eq!(edges_of(&graph), [(1, 0), (2, 0), (1, 3)]);
        assert_eq!(notes.nodes_outside_component, 3);
        assert_eq!(graph.original_number(2), 5);
        // Of two components of equal size, the one with node 0.
        let (graph, _) = prepare(numbered(4, &[(2, 3), (1, 0)]), &options);
        assert_eq!(graph.original.as_deref().unwrap(), [0, 1]);
        let (graph, _) = prepare(numbered(3, &[]), &options);
        assert_eq!((graph.num_nodes(), graph.num_edges()), (1, 0));
    }

    #[test]
    fn sparse_rows_move_with_their_nodes() {
        let features = RawFeatures::Sparse(SparseFeatures {
            columns: 3,
            row_pointers: vec![0, 2, 2, 3, 5],
            column_index: vec![0, 1, 2, 0, 2],
            values: vec![1.0, 2.0, 3.0, 4.0, 5.0],
        });
        let raw = RawGraph { features: hashed(features, 4), ..numbered(4, &[(3, 1), (1, 2)]) };
        let (graph, _) = prepare(raw, &GraphOptions::default());
        let crate::Features::Sparse { columns: 3, row_pointers, column_index, values } = graph.features else {
            panic!("not sparse")
        };
        assert_eq!(&row_pointers[..], [0, 0, 1, 3]);
        assert_eq!(&column_index[..], [2, 0, 2]);
        assert_eq!(&values[..], [3.0, 4.0, 5.0]);
    }

    #[test]
    fn digests_tell_graphs_apart_and_ignore_names() {
        let options = GraphOptions::default();
        let digest = |raw| prepare(raw, &options).0.digest;
        let edges = [(0, 1), (1, 2)];
        let first = digest(numbered(3, &edges));
        assert_eq!(first, digest(RawGraph { name: "other".to_owned(), ..numbered(3, &[(2, 1), (1, 0), (0, 1)]) }));
        let mut others = BTreeSet::from([first]);
        let features = RawFeatures::Dense { columns: 1, values: vec![0.0, 1.0, -2.0] };
        for raw in [
            numbered(3, &[(0, 1), (0, 2)]),
            RawGraph { labels: vec![0, 1, -1], ..numbered(3, &edges) },
            RawGraph { split: None, ..numbered(3, &edges) },
            RawGraph { features: hashed(features, 3), ..numbered(3, &edges) },
        ] {
            assert!(others.insert(digest(raw)));
        }
    }

    /// Components by repeated spreading of the smallest number.
    fn component_of_each(num_nodes: u32, edges: &[(u32, u32)]) -> Vec<u32> {
        let mut component: Vec<u32> = (0..num_nodes).collect();
        loop {
            let before = component.clone();
            for &(source, target) in edges {
                let smallest = component[source as usize].min(component[target as usize]);
                component[source as usize] = smallest;
                component[target as usize] = smallest;
            }
            if component == before {
                return component;
            }
        }
    }

    proptest! {
        #[test]
        fn every_edge_is_kept_once_or_counted(
            (num_nodes, edges) in (1u32..24).prop_flat_map(|nodes| {
                (Just(nodes), prop::collection::vec((0..nodes, 0..nodes), 0..60))
            }),
            undirected: bool,
            component: bool,
        ) {
            let options = GraphOptions { undirected, largest_component: component, ..GraphOptions::default() };
            let (graph, notes) = prepare(numbered(num_nodes, &edges), &options);
            let mut expected: BTreeSet<(u32, u32)> = BTreeSet::new();
            for &(source, target) in edges.iter().filter(|(source, target)| source != target) {
                expected.insert((target, source));
                if undirected {
                    expected.insert((source, target));
                }
            }
            let distinct = expected.len() as u64 / if undirected { 2 } else { 1 };
            prop_assert_eq!(distinct + notes.removed_self_loops + notes.removed_duplicates, edges.len() as u64);
            let components = component_of_each(num_nodes, &edges);
            let size = |component: u32| components.iter().filter(|found| **found == component).count();
            let largest = (0..num_nodes).rev().max_by_key(|&component| size(component)).unwrap();
            let is_kept = |node: u32| !component || components[node as usize] == largest;
            let kept: Vec<u32> = (0..num_nodes).filter(|&node| is_kept(node)).collect();
            let numbers: Vec<u32> = (0..graph.num_nodes() as u32).map(|node| graph.original_number(node) as u32).collect();
            prop_assert_eq!(&numbers, &kept);
            prop_assert_eq!(graph.original.is_some(), kept.len() < num_nodes as usize);
            let of_source = |&node: &u32| numbers[node as usize];
            let found: Vec<(u32, u32)> =
                edges_of(&graph).iter().map(|(source, target)| (of_source(target), of_source(source))).collect();
            let expected: Vec<(u32, u32)> = expected.into_iter().filter(|&(target, _)| is_kept(target)).collect();
            prop_assert_eq!(found, expected);
            prop_assert_eq!(&graph.labels[..], numbers.iter().map(|&node| node as i32).collect::<Vec<_>>());
        }
    }
}
