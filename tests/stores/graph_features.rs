//! Graphs of windows equal a slow, simple implementation of their definition.

use std::collections::{BTreeMap, BTreeSet};

use kdgat::can::Frame;
use kdgat::graph::columns::Columns;
use kdgat::graph::features::FeatureExtractor;
use kdgat::graph::window::Windows;
use kdgat::graph::{EDGE_FEATURES, GraphView, NODE_FEATURES};
use proptest::prelude::*;
use proptest::strategy::ValueTree;

/// A graph computed step by step from the definition.
struct Reference {
    ids: Vec<u32>,
    node_features: Vec<[f64; NODE_FEATURES]>,
    /// Features of each edge, by (target ID, source ID).
    edges: BTreeMap<(u32, u32), [f64; EDGE_FEATURES]>,
    attack_free: Vec<bool>,
    attack: bool,
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn reference(frames: &[Frame]) -> Reference {
    let (window, _) = frames.split_at(frames.len() - 1);
    let length = window.len() as f64;
    let pairs: Vec<(u32, u32)> = frames.windows(2).map(|pair| (pair[0].can_id, pair[1].can_id)).collect();
    let ids: BTreeSet<u32> = frames.iter().map(|frame| frame.can_id).collect();
    let own = |id: u32| window.iter().enumerate().filter(move |(_, frame)| frame.can_id == id);
    let counts: BTreeMap<u32, f64> = ids.iter().map(|&id| (id, own(id).count() as f64)).collect();
    let fewest = counts.values().copied().fold(f64::INFINITY, f64::min);
    let most = counts.values().copied().fold(0.0, f64::max);
    let degree = |id: u32| pairs.iter().map(|&(s, t)| f64::from(s == id) + f64::from(t == id)).sum::<f64>();

    let mut node_features = Vec::new();
    for &id in &ids {
        let mut features = [0.0; NODE_FEATURES];
        if own(id).next().is_some() {
            for (byte, feature) in features[..8].iter_mut().enumerate() {
                let values: Vec<f64> = own(id).map(|(_, frame)| f64::from(frame.payload[byte]) / 255.0).collect();
                *feature = mean(&values);
            }
            features[8] = if most > fewest { (counts[&id] - fewest) / (most - fewest) } else { counts[&id] };
            features[9] = own(id).next_back().unwrap().0 as f64 / (length - 1.0);
        }
        node_features.push(features);
    }

    let mut edges = BTreeMap::new();
    for &(source, target) in &pairs {
        let occurs = |pair: &(u32, u32)| *pair == (source, target);
        let positions: Vec<f64> = (0..pairs.len()).filter(|&at| occurs(&pairs[at])).map(|at| at as f64).collect();
        let gaps: Vec<f64> = positions.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let (mut gap_mean, mut deviation, mut regularity) = (0.0, 0.0, 0.0);
        if !gaps.is_empty() {
            gap_mean = mean(&gaps);
            deviation = mean(&gaps.iter().map(|gap| (gap - gap_mean).powi(2)).collect::<Vec<_>>()).sqrt();
            regularity = 1.0 / (1.0 + deviation);
        }
        let (first, last) = (positions[0], positions[positions.len() - 1]);
        let reverse = pairs.contains(&(target, source));
        let features = [
            positions.len() as f64,
            positions.len() as f64 / length,
            gap_mean,
            deviation,
            regularity,
            first / length,
            last / length,
            (last - first) / length,
            f64::from(reverse),
            degree(source) * degree(target),
            degree(source) / degree(target),
        ];
        edges.insert((target, source), features);
    }
    let attack_free = ids.iter().map(|&id| own(id).any(|(_, frame)| !frame.attack)).collect();
    let attack = window.iter().any(|frame| frame.attack);
    Reference { ids: ids.into_iter().collect(), node_features, edges, attack_free, attack }
}

fn assert_close(what: &str, found: &[f32], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    for (position, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(found) - expected).abs();
        assert!(error <= 1e-6 * expected.abs().max(1.0), "{what}, feature {position}: {found}, expected {expected}");
    }
}

fn assert_equals_reference(graph: &GraphView<'_>, frames: &[Frame]) {
    let expected = reference(frames);
    assert_eq!(graph.can_ids, expected.ids, "node IDs");
    assert_eq!(graph.attack, expected.attack, "label");
    assert_eq!(graph.start_time, frames[0].timestamp, "start time");
    let attack_free: Vec<bool> = graph.attack_free.iter().map(|&flag| flag == 1).collect();
    assert_eq!(attack_free, expected.attack_free, "attack-free flags");
    for (node, features) in graph.node_features.chunks(NODE_FEATURES).enumerate() {
        assert_close(&format!("node {node}"), features, &expected.node_features[node]);
    }
    let named = |node: &u16| graph.can_ids[*node as usize];
    let edges: Vec<(u32, u32)> = graph.targets.iter().map(named).zip(graph.sources.iter().map(named)).collect();
    assert_eq!(edges, expected.edges.keys().copied().collect::<Vec<_>>(), "edges by target, then source");
    for (features, (edge, wanted)) in graph.edge_features.chunks(EDGE_FEATURES).zip(&expected.edges) {
        assert_close(&format!("edge (target, source) {edge:x?}"), features, wanted);
    }
    assert_eq!(graph.row_pointers.len(), expected.ids.len() + 1, "row pointers");
    for (target, row) in graph.row_pointers.windows(2).enumerate() {
        let count = expected.edges.keys().filter(|edge| edge.0 == expected.ids[target]).count();
        assert_eq!(usize::from(row[1] - row[0]), count, "edges to node {target}");
    }
}

/// Frames with few or many IDs, standard and extended, and occasional attack frames.
fn arbitrary_frames(longest: usize) -> impl Strategy<Value = Vec<Frame>> {
    let id = prop_oneof![8 => 0u32..6, 4 => 0u32..2048, 1 => 0u32..(1 << 29), 2 => 2040u32..2056];
    let frame = (id, any::<[u8; 8]>(), prop::bool::weighted(0.1), 0.0..0.01f64);
    prop::collection::vec(frame, 0..longest).prop_map(|rows| {
        let mut timestamp = 1_600_000_000.0;
        let mut frames = Vec::with_capacity(rows.len());
        for (can_id, payload, attack, step) in rows {
            timestamp += step;
            frames.push(Frame { timestamp, can_id, payload, payload_length: 8, attack });
        }
        frames
    })
}

fn graphs_of(frames: &[Frame], window: usize, stride: usize, block: usize) -> Columns {
    let mut columns = Columns::default();
    let mut extractor = FeatureExtractor::new(window);
    let mut windows = Windows::new(window, stride);
    for block in frames.chunks(block) {
        let append = |first_frame: u64, frames: &[Frame]| {
            extractor.append_graph(frames, 3, first_frame, &mut columns);
            Ok::<(), ()>(())
        };
        windows.push(block, append).unwrap();
    }
    columns
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn graphs_equal_the_reference_for_any_block_size(
        frames in arbitrary_frames(400),
        window in 2usize..60,
        stride in 1usize..90,
        block in 1usize..150,
    ) {
        let columns = graphs_of(&frames, window, stride, block);
        let starts: Vec<usize> = (0..frames.len()).step_by(stride).filter(|start| start + window < frames.len()).collect();
        prop_assert_eq!(columns.num_graphs(), starts.len());
        for (index, start) in starts.into_iter().enumerate() {
            let graph = columns.graph(index);
            prop_assert_eq!((graph.file, graph.first_frame), (3, start as u64));
            assert_equals_reference(&graph, &frames[start..=start + window]);
        }
    }
}

#[test]
fn default_windows_equal_the_reference() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for _ in 0..10 {
        let frames = arbitrary_frames(700).new_tree(&mut runner).unwrap().current();
        let columns = graphs_of(&frames, 100, 100, 64);
        for index in 0..columns.num_graphs() {
            assert_equals_reference(&columns.graph(index), &frames[index * 100..=index * 100 + 100]);
        }
    }
}

#[test]
fn one_id_alone_has_a_self_loop_and_its_raw_count() {
    let frame = |position: usize| Frame {
        timestamp: position as f64,
        can_id: 0x123,
        payload: [255, 0, 51, 0, 0, 0, 0, 0],
        payload_length: 3,
        attack: position == 10,
    };
    let frames: Vec<Frame> = (0..11).map(frame).collect();
    let columns = graphs_of(&frames, 10, 10, 100);
    let graph = columns.graph(0);
    assert!(!graph.attack, "the frame after the window does not decide its label");
    assert_eq!((graph.sources, graph.targets, graph.row_pointers), (&[0u16][..], &[0u16][..], &[0u16, 1][..]));
    assert_eq!(graph.node_features, [1.0, 0.0, 0.2, 0.0, 0.0, 0.0, 0.0, 0.0, 10.0, 1.0]);
    assert_eq!(graph.edge_features, [10.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.9, 0.9, 1.0, 400.0, 1.0]);
}

/// Minimum speed for builds of 200 million frames; prints the speed (`--nocapture`).
#[test]
fn windows_and_features_are_fast() {
    let mut state = 1u64;
    let mut frames = Vec::new();
    for position in 0..1_000_000u64 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let can_id = (0x100 + (state >> 33) % 30 * 17) as u32;
        let timestamp = position as f64 * 5e-4;
        frames.push(Frame { timestamp, can_id, payload: state.to_le_bytes(), payload_length: 8, attack: false });
    }
    let mut columns = Columns::default();
    let mut extractor = FeatureExtractor::new(100);
    let mut windows = Windows::new(100, 100);
    let start = std::time::Instant::now();
    let mut graphs = 0;
    for block in frames.chunks(16_384) {
        columns.clear();
        let append = |first_frame: u64, frames: &[Frame]| {
            extractor.append_graph(frames, 0, first_frame, &mut columns);
            graphs += 1;
            Ok::<(), ()>(())
        };
        windows.push(block, append).unwrap();
    }
    let rate = frames.len() as f64 / start.elapsed().as_secs_f64();
    println!(
        "{graphs} graphs, {:.1} million frames a second, {} edges in the last block",
        rate / 1e6,
        columns.sources.len()
    );
    assert_eq!(graphs, 9_999);
    if !cfg!(debug_assertions) {
        assert!(rate > 3e5, "only {rate:.0} frames a second");
    }
}
