//! Batches equal a slow, simple assembly of the same graphs.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Add;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use kdgat::can::Dataset;
use kdgat::graph::assemble::Assembler;
use kdgat::graph::edge_list::{self, EdgeList, EdgeListFile, from_edge_list};
use kdgat::graph::padding::SizeClass;
use kdgat::graph::{
    AssembleOptions, Batch, BuildOptions, EDGE_FEATURES, NODE_FEATURES, Store, StoreError, UnknownDrop, Vocabulary,
    assemble, open_or_build, shuffled_batches,
};
use proptest::prelude::*;
use support::graph::{AnyGraph, Draw, any_graph, options, store, write_dataset};
use support::real_data::candata;
use tch::{Kind, Tensor};

fn integers(tensor: &Tensor) -> Vec<i64> {
    Vec::try_from(tensor.to_kind(Kind::Int64).view([-1])).unwrap()
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    assert_eq!(tensor.kind(), Kind::Float);
    Vec::try_from(tensor.contiguous().view([-1])).unwrap()
}

/// Asserts that a batch equals the reference assembly of the same graphs with sets and maps.
fn assert_equals_reference(batch: &Batch, graphs: &[AnyGraph], index_of: &dyn Fn(u32) -> i64) {
    let size = batch.vocabulary_size;
    let ids: Vec<u32> = graphs.iter().flat_map(|graph| graph.ids.clone()).collect();
    let indices: Vec<i64> = ids.iter().map(|&id| index_of(id)).collect();
    let nodes = ids.len() as i64;
    let mut edges: BTreeMap<(i64, i64), Vec<f32>> = BTreeMap::new();
    let mut successors = BTreeSet::new();
    let (mut node_pointers, mut graph_of_node) = (vec![0], Vec::new());
    for (position, graph) in graphs.iter().enumerate() {
        let base = *node_pointers.last().unwrap();
        for (edge, features) in graph.edges.iter().zip(graph.edge_features.chunks(EDGE_FEATURES)) {
            let (target, source) = (base + i64::from(edge.0), base + i64::from(edge.1));
            successors.insert(source * size + indices[target as usize]);
            if source != target {
                edges.insert((target, source), features.to_vec());
            }
        }
        graph_of_node.resize(graph_of_node.len() + graph.ids.len(), position as i64);
        node_pointers.push(graph_of_node.len() as i64);
    }
    for node in 0..nodes {
        let incoming: Vec<&Vec<f32>> = edges.iter().filter(|(edge, _)| edge.0 == node).map(|(_, row)| row).collect();
        let mean = |feature: usize| {
            let sum: f32 = incoming.iter().map(|row| row[feature]).sum();
            if incoming.is_empty() { 0.0 } else { sum / incoming.len() as f32 }
        };
        let row = (0..EDGE_FEATURES).map(mean).collect();
        edges.insert((node, node), row);
    }
    let row_begin = |node: i64| edges.keys().filter(|edge| edge.0 < node).count() as i64;
    let column_begin = |node: i64| edges.keys().filter(|edge| edge.1 < node).count() as i64;
    let mut transposed: Vec<i64> = (0..edges.len() as i64).collect();
    let sources: Vec<i64> = edges.keys().map(|edge| edge.1).collect();
    transposed.sort_by_key(|&edge| sources[edge as usize]);

    assert_eq!(*batch.can_ids, ids, "CAN IDs");
    assert_eq!(integers(&batch.id_index), indices, "vocabulary indices");
    assert_eq!(
        floats(&batch.continuous),
        graphs.iter().flat_map(|graph| graph.node_features.clone()).collect::<Vec<_>>()
    );
    assert_eq!(batch.continuous.size(), [nodes, NODE_FEATURES as i64]);
    let adjacency = &batch.adjacency;
    assert_eq!(integers(&adjacency.row_pointers), (0..=nodes).map(row_begin).collect::<Vec<_>>(), "row pointers");
    assert_eq!(integers(&adjacency.sources), sources, "sources");
    assert_eq!(integers(&adjacency.targets), edges.keys().map(|edge| edge.0).collect::<Vec<_>>(), "targets");
    assert_eq!(integers(&adjacency.column_pointers), (0..=nodes).map(column_begin).collect::<Vec<_>>(), "columns");
    assert_eq!(integers(&adjacency.transposed), transposed, "transposed");
    if let Some(attributes) = &batch.edge_attributes {
        assert_eq!(attributes.size(), [edges.len() as i64, EDGE_FEATURES as i64]);
        assert_eq!(floats(attributes), edges.values().flatten().copied().collect::<Vec<_>>(), "edge attributes");
    }
    assert_eq!(integers(&batch.successors), successors.into_iter().collect::<Vec<_>>(), "successors");
    assert_eq!(integers(&batch.node_pointers), node_pointers, "node pointers");
    assert_eq!(integers(&batch.graph_of_node), graph_of_node, "graph of node");
    assert_eq!(integers(&batch.labels), graphs.iter().map(|graph| i64::from(graph.attack)).collect::<Vec<_>>());
    for tensor in [&adjacency.row_pointers, &adjacency.sources, &adjacency.targets, &adjacency.transposed] {
        assert_eq!(tensor.kind(), Kind::Int);
    }
}

/// IDs, continuous features, sources, targets, edge features, node pointers, labels.
type EdgeListArrays = (Vec<u32>, Vec<f32>, Vec<i64>, Vec<i64>, Vec<f32>, Vec<i64>, Vec<i64>);

/// Arrays of an edge list with shuffled edges.
fn edge_list_of(graphs: &[AnyGraph], seed: u64) -> EdgeListArrays {
    let ids: Vec<u32> = graphs.iter().flat_map(|graph| graph.ids.clone()).collect();
    let continuous = graphs.iter().flat_map(|graph| graph.node_features.clone()).collect();
    let mut edges = Vec::new();
    let mut pointers = vec![0];
    for graph in graphs {
        let base = *pointers.last().unwrap();
        for (edge, features) in graph.edges.iter().zip(graph.edge_features.chunks(EDGE_FEATURES)) {
            edges.push((base + i64::from(edge.1), base + i64::from(edge.0), features.to_vec()));
        }
        pointers.push(base + graph.ids.len() as i64);
    }
    let mut draw = Draw(seed);
    for last in (1..edges.len()).rev() {
        edges.swap(last, draw.next(last as u64 + 1) as usize);
    }
    let labels = graphs.iter().map(|graph| i64::from(graph.attack)).collect();
    let sources = edges.iter().map(|edge| edge.0).collect();
    let targets = edges.iter().map(|edge| edge.1).collect();
    let features = edges.into_iter().flat_map(|edge| edge.2).collect();
    (ids, continuous, sources, targets, features, pointers, labels)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn edge_lists_equal_the_reference(
        mut graphs in prop::collection::vec(any_graph(), 1..8),
        seed in any::<u64>(),
    ) {
        // Unordered and repeated vocabulary indices, as with UNKNOWN.
        let mut draw = Draw(seed);
        graphs.iter_mut().flat_map(|graph| &mut graph.ids).for_each(|id| *id = draw.next(25) as u32);
        let (ids, continuous, sources, targets, features, pointers, labels) = edge_list_of(&graphs, seed);
        let batch = from_edge_list(&EdgeList {
            id_index: &ids,
            continuous: &continuous,
            sources: &sources,
            targets: &targets,
            edge_attributes: Some(&features),
            node_pointers: &pointers,
            labels: &labels,
            vocabulary_size: 25,
        }).unwrap();
        assert_equals_reference(&batch, &graphs, &|id| i64::from(id));
        prop_assert!(batch.edge_attributes.is_some());
    }
}

fn graph_of(store: &Store, graph: u64) -> AnyGraph {
    let view = store.graph(graph);
    AnyGraph {
        ids: view.can_ids.to_vec(),
        attack_free: view.attack_free.to_vec(),
        node_features: view.node_features.to_vec(),
        edges: view.targets.iter().copied().zip(view.sources.iter().copied()).collect(),
        edge_features: view.edge_features.to_vec(),
        attack: view.attack,
    }
}

/// A model that hashes IDs gets the IDs themselves, with dropped ones replaced by any other ID; its targets use the vocabulary.
#[test]
fn hashed_inputs_are_ids_and_any_other_where_dropped() {
    let store = store();
    let graphs: Vec<u64> = (0..store.num_graphs()).collect();
    let plain = AssembleOptions { hashed_ids: true, ..options(&store) };
    let batch = assemble(&store, &graphs, &plain).unwrap();
    let ids: Vec<i64> = batch.can_ids.iter().map(|&id| i64::from(id)).collect();
    assert_eq!(integers(&batch.id_input), ids);
    let of_vocabulary = assemble(&store, &graphs, &options(&store)).unwrap();
    assert_eq!(integers(&batch.id_index), integers(&of_vocabulary.id_index));
    assert_eq!(integers(&batch.successors), integers(&of_vocabulary.successors));
    let drop = UnknownDrop { probability: 0.3, seed: 7, epoch: 2, views: 0 };
    let input = |options: &AssembleOptions| {
        let options = AssembleOptions { unknown_drop: Some(drop), ..options.clone() };
        integers(&assemble(&store, &graphs, &options).unwrap().id_input)
    };
    let (hashed, indices) = (input(&plain), input(&options(&store)));
    let dropped: Vec<usize> = (0..ids.len()).filter(|&node| hashed[node] != ids[node]).collect();
    let share = dropped.len() as f64 / ids.len() as f64;
    assert!((share - 0.3).abs() < 0.05, "{share} of the IDs are dropped");
    assert!(dropped.iter().all(|&node| indices[node] == 0), "with a vocabulary the same nodes become UNKNOWN");
    assert!(dropped.iter().all(|&node| (0..1 << 29).contains(&hashed[node])));
    let distinct: std::collections::HashSet<i64> = dropped.iter().map(|&node| hashed[node]).collect();
    assert_eq!(distinct.len(), dropped.len(), "each has an ID of its own");
}

/// The epochs take the views in turn, and each view of a graph has a number of its own.
#[test]
fn views_of_graphs_come_again() {
    let store = store();
    let graphs: Vec<u64> = vec![5, 2, 9];
    let batch = |epoch: u64, views: u64| {
        let unknown_drop = Some(UnknownDrop { probability: 0.3, seed: 7, epoch, views });
        assemble(&store, &graphs, &AssembleOptions { unknown_drop, ..options(&store) }).unwrap()
    };
    let [first, second, third] = [0, 1, 2].map(|epoch| batch(epoch, 2));
    assert_eq!(integers(&first.id_input), integers(&third.id_input));
    assert_ne!(integers(&first.id_input), integers(&second.id_input));
    assert_eq!(*first.graph_index, graphs);
    assert_eq!(*second.graph_index, graphs.iter().map(|graph| store.num_graphs() + graph).collect::<Vec<u64>>());
    assert_eq!(*third.graph_index, graphs);
    // The views are those of the first epochs without views.
    assert_eq!(integers(&second.id_input), integers(&batch(1, 0).id_input));
    assert_eq!(*batch(1, 0).graph_index, graphs);
}

#[test]
fn batches_of_a_store_equal_the_reference() {
    let store = store();
    // From several shards and files, unordered, one of them twice; attack IDs are unknown.
    let picked: Vec<u64> = (0..store.num_graphs()).step_by(7).chain([3, 3, 1]).collect();
    let graphs: Vec<AnyGraph> = picked.iter().map(|&graph| graph_of(&store, graph)).collect();
    let options = options(&store);
    let batch = assemble(&store, &picked, &options).unwrap();
    assert_eq!(*batch.graph_index, picked);
    assert_eq!(batch.vocabulary_size, options.vocabulary.len() as i64);
    let index_of = |id| i64::from(options.vocabulary.index_of(id));
    assert!(graphs.iter().flat_map(|graph| &graph.ids).filter(|&&id| index_of(id) == 0).count() > 10, "unknown IDs");
    assert_equals_reference(&batch, &graphs, &index_of);
    assert_eq!(integers(&batch.id_input), integers(&batch.id_index));
    let sizes = |picked: &[u64], vocabulary: &Vocabulary| {
        let each = picked.iter().map(|&graph| SizeClass::of_graph(&store.graph(graph), vocabulary).unwrap());
        each.fold(SizeClass::default(), SizeClass::add)
    };
    assert_eq!(batch.size_class(), sizes(&picked, &options.vocabulary));

    // With the vocabulary of another model, and without old content of the reused buffers.
    let mut assembler = Assembler::default();
    let other = Arc::new(Vocabulary::from_ids([0x103, 0x700, 0x703]));
    let other_options = AssembleOptions {
        vocabulary: Arc::clone(&other),
        unknown_drop: None,
        edge_attributes: false,
        hashed_ids: false,
        profile: None,
        short_profiles: false,
        space: None,
    };
    assembler.assemble(&store, &picked, &options).unwrap();
    let batch = assembler.assemble(&store, &picked[..20], &other_options).unwrap();
    assert!(batch.edge_attributes.is_none());
    assert_equals_reference(&batch, &graphs[..20], &|id| i64::from(other.index_of(id)));
    assert_eq!(batch.size_class(), sizes(&picked[..20], &other));

    let none = assemble(&store, &[], &options).unwrap();
    assert_eq!((none.num_graphs(), none.num_nodes(), none.adjacency.num_edges()), (0, 0, 0));
    let error = assemble(&store, &[store.num_graphs()], &options).unwrap_err();
    assert!(matches!(error, StoreError::NoSuchGraph { .. }), "{error}");
}

/// Consecutive graphs in one shard are not copied, graphs of several shards are; the batches are the same.
#[test]
fn graphs_side_by_side_are_read_in_place() {
    let store = store();
    let options = options(&store);
    let index_of = |id| i64::from(options.vocabulary.index_of(id));
    let (mut in_place, mut across) = (0, 0);
    for first in 0..store.num_graphs() - 8 {
        let picked: Vec<u64> = (first..first + 8).collect();
        let graphs: Vec<AnyGraph> = picked.iter().map(|&graph| graph_of(&store, graph)).collect();
        assert_equals_reference(&assemble(&store, &picked, &options).unwrap(), &graphs, &index_of);
        match store.node_features_in_place(&picked).unwrap() {
            Some(tensor) => {
                in_place += 1;
                let begins = store.graph(first).node_features.as_ptr();
                assert_eq!(tensor.data_ptr().cast_const().cast(), begins, "a copy of graph {first}");
            }
            None => across += 1,
        }
    }
    assert!(in_place > 10 && across > 10, "{in_place} in place, {across} across shards");
    for apart in [vec![], vec![0, 2], vec![1, 0], vec![2, 2], vec![store.num_graphs(), store.num_graphs() + 1]] {
        assert!(store.node_features_in_place(&apart).unwrap().is_none(), "{apart:?}");
    }
}

/// A batch keeps the file with its features mapped.
#[test]
fn a_batch_outlives_its_store() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = write_dataset(&folder.path().join("car"), 500);
    let store = open_or_build(&dataset, &BuildOptions::default(), &folder.path().join("stores"), &()).unwrap();
    let batch = assemble(&store, &[0, 1], &options(&store)).unwrap();
    let expected = [store.graph(0).node_features, store.graph(1).node_features].concat();
    assert!(store.node_features_in_place(&[0, 1]).unwrap().is_some());
    drop(store);
    folder.close().unwrap();
    assert_eq!(floats(&batch.continuous), expected);
}

#[test]
fn unknown_drop_depends_on_seed_epoch_and_place_only() {
    let store = store();
    let graphs: Vec<u64> = (0..store.num_graphs()).collect();
    let inputs = |graphs: &[u64], probability: f64, seed: u64, epoch: u64| {
        let drop = UnknownDrop { probability, seed, epoch, views: 0 };
        let batch = assemble(&store, graphs, &AssembleOptions { unknown_drop: Some(drop), ..options(&store) }).unwrap();
        let (index, input) = (integers(&batch.id_index), integers(&batch.id_input));
        assert!(index.iter().zip(&input).all(|(index, input)| input == index || *input == 0));
        let dropped = index.iter().zip(&input).filter(|(index, input)| index != input).count();
        let known = index.iter().filter(|&&index| index != 0).count();
        (input, dropped as f64 / known as f64)
    };
    let (all, share) = inputs(&graphs, 0.1, 1, 2);
    assert!((share - 0.1).abs() < 0.02, "share of dropped IDs is {share}");
    assert_ne!(all, inputs(&graphs, 0.1, 2, 2).0, "seed");
    assert_ne!(all, inputs(&graphs, 0.1, 1, 3).0, "epoch");
    assert_eq!(inputs(&graphs, 0.0, 1, 2).1, 0.0);
    assert_eq!(inputs(&graphs, 1.0, 1, 2).1, 1.0);
    let parts: Vec<i64> = graphs.chunks(37).flat_map(|part| inputs(part, 0.1, 1, 2).0).collect();
    assert_eq!(all, parts, "the batch that a graph is in must not matter");
}

#[test]
fn edge_lists_that_do_not_fit_are_refused() {
    let fit = EdgeList {
        id_index: &[1, 2],
        continuous: &[0.0; 20],
        sources: &[0, 1],
        targets: &[1, 1],
        edge_attributes: None,
        node_pointers: &[0, 2],
        labels: &[1],
        vocabulary_size: 3,
    };
    assert_eq!(from_edge_list(&fit).unwrap().adjacency.num_edges(), 3);
    for (list, part) in [
        (EdgeList { continuous: &[0.0; 19], ..fit }, "continuous has 19 values, expected 20"),
        (EdgeList { targets: &[1], ..fit }, "targets has 1"),
        (EdgeList { targets: &[1, 2], ..fit }, "leads to node 2 of 2"),
        (EdgeList { sources: &[0, -1], ..fit }, "leaves the graph"),
        (EdgeList { node_pointers: &[0, 1], ..fit }, "do not ascend"),
        (EdgeList { vocabulary_size: 2, ..fit }, "index 2 of a node is not below 2"),
        (EdgeList { edge_attributes: Some(&[0.0; 11]), ..fit }, "edge_attributes has 11"),
    ] {
        let message = from_edge_list(&list).unwrap_err().to_string();
        assert!(message.contains(part), "{part} is not in: {message}");
    }
}

/// Files of reference values are read graph by graph.
#[test]
fn reference_files_are_read() {
    for (name, graphs) in [("batch", 8), ("edge_batch", 3)] {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/parity/{name}.safetensors"));
        let file = EdgeListFile::open(&path).unwrap();
        assert_eq!(file.num_graphs(), graphs, "{name}");
        let picked: Vec<usize> = (0..graphs.min(40)).collect();
        let batch = file.batch(&picked, 40).unwrap();
        let views = picked.iter().map(|&graph| file.columns().graph(graph));
        let graphs: Vec<AnyGraph> = views
            .map(|view| AnyGraph {
                ids: view.can_ids.to_vec(),
                attack_free: view.attack_free.to_vec(),
                node_features: view.node_features.to_vec(),
                edges: view.targets.iter().copied().zip(view.sources.iter().copied()).collect(),
                edge_features: view.edge_features.to_vec(),
                attack: view.attack,
            })
            .collect();
        assert_equals_reference(&batch, &graphs, &|id| i64::from(id));
        assert!(batch.edge_attributes.is_some(), "{name}");
    }
    let error = EdgeListFile::open(&PathBuf::from("/nowhere/graphs.safetensors")).unwrap_err();
    assert!(error.to_string().contains("/nowhere/graphs.safetensors"), "{error}");
}

/// A file written for other programs gives the same batch as the store, and is the same file each time.
#[test]
fn graphs_written_for_other_programs_are_the_stores() {
    let store = store();
    let folder = tempfile::tempdir().unwrap();
    let [path, again] = ["graphs.safetensors", "again.safetensors"].map(|name| folder.path().join(name));
    let picked: Vec<u64> = (0..store.num_graphs()).filter(|graph| graph % 3 != 1).rev().collect();
    edge_list::write(&store, &picked, &path).unwrap();
    edge_list::write(&store, &picked, &again).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(&again).unwrap());
    let file = EdgeListFile::open(&path).unwrap();
    assert_eq!(file.num_graphs(), picked.len());
    let positions: Vec<usize> = (0..picked.len()).collect();
    let found = file.batch(&positions, store.vocabulary().len() as i64).unwrap();
    let expected = assemble(&store, &picked, &AssembleOptions { edge_attributes: false, ..options(&store) }).unwrap();
    assert_eq!(found.id_input, expected.id_input);
    assert_eq!(found.continuous, expected.continuous);
    assert_eq!(found.adjacency.sources, expected.adjacency.sources);
    assert_eq!(found.adjacency.targets, expected.adjacency.targets);
    assert_eq!(found.node_pointers, expected.node_pointers);
    assert_eq!(found.successors, expected.successors);
    assert_eq!(found.labels, expected.labels);
    assert!(picked.iter().any(|&graph| store.graph(graph).attack), "no graph with an attack was written");
    let error = edge_list::write(&store, &[store.num_graphs()], &path).unwrap_err();
    assert!(error.to_string().contains(&store.num_graphs().to_string()), "{error}");
    let error = edge_list::write(&store, &picked, &folder.path().join("nowhere/graphs.safetensors")).unwrap_err();
    assert!(error.to_string().contains("cannot be written"), "{error}");
}

/// Prints the time to assemble a batch of 512 graphs of real traffic (`--nocapture`).
#[test]
fn assembling_is_fast() {
    let Some(data) = candata("hcrl_sa") else { return };
    let stores = tempfile::tempdir().unwrap();
    let dataset = Dataset::open(&data).unwrap();
    let store = open_or_build(&dataset, &BuildOptions::default(), stores.path(), &()).unwrap();
    let graphs = store.select(kdgat::graph::Split::Train, Some(false));
    let shuffled = shuffled_batches(&graphs, 512, 1, 1);
    let in_order: Vec<Vec<u64>> = graphs.chunks(512).map(<[u64]>::to_vec).collect();
    for (order, batches, edge_attributes) in
        [("shuffled", &shuffled, false), ("in order", &in_order, false), ("shuffled", &shuffled, true)]
    {
        let options = AssembleOptions { edge_attributes, ..options(&store) };
        let mut assembler = Assembler::default();
        let mut seconds = Vec::new();
        let mut size = (0, 0);
        for graphs in batches.iter().cycle().take(60) {
            let start = Instant::now();
            let batch = assembler.assemble(&store, graphs, &options).unwrap();
            seconds.push(start.elapsed().as_secs_f64());
            size = (size.0.max(batch.num_nodes()), size.1.max(batch.adjacency.num_edges()));
        }
        seconds.sort_by(f64::total_cmp);
        let median = seconds[seconds.len() / 2] * 1e3;
        let best = seconds[0] * 1e3;
        println!(
            "512 graphs {order}, up to {size:?} nodes and edges, attributes {edge_attributes}: {median:.2} ms, best {best:.2} ms"
        );
        assert!(median < 100.0, "{median} ms a batch");
    }
}

/// A missing or full GPU gives a recoverable error in every way of moving a batch to it.
#[test]
fn a_batch_that_cannot_go_to_a_gpu_is_an_error() {
    if kdgat::torch::device::cuda_device_count().is_ok_and(|count| count > 0) {
        println!("skipped: there is a GPU");
        return;
    }
    let store = store();
    let batch = assemble(&store, &[0, 2], &options(&store)).unwrap();
    assert!(batch.to_device(tch::Device::Cuda(0)).is_err());
    assert!(batch.adjacency.to_device(tch::Device::Cuda(0)).is_err());
    assert!(kdgat::torch::device::Uploader::new(tch::Device::Cuda(0)).is_err());
    let mut uploader = kdgat::torch::device::Uploader::new(tch::Device::Cpu).unwrap();
    let uploaded = batch.upload(&mut uploader).unwrap();
    assert_eq!(uploaded.continuous.data_ptr(), batch.continuous.data_ptr(), "on the host there is nothing to copy");
    assert_eq!(integers(&uploaded.successors), integers(&batch.successors));
    assert_eq!(integers(&uploaded.adjacency.transposed), integers(&batch.adjacency.transposed));
}
