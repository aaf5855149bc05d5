//! Rich features of windows equal a slow, simple implementation of the definitions in docs/data.md.

use std::collections::{BTreeMap, BTreeSet};

use kdgat::can::Frame;
use kdgat::graph::columns::Columns;
use kdgat::graph::features::FeatureExtractor;
use kdgat::graph::window::Windows;
use kdgat::graph::{EDGE_FEATURES, FeatureSet, GraphView, RICH_NODE_FEATURES};
use proptest::prelude::*;

fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

fn central_moment(values: &[f64], power: i32) -> f64 {
    let center = mean(values);
    mean(&values.iter().map(|value| (value - center).powi(power)).collect::<Vec<_>>())
}

fn entropy(bytes: &[u8]) -> f64 {
    let share = |byte: u8| bytes.iter().filter(|&&other| other == byte).count() as f64 / bytes.len() as f64;
    let distinct: BTreeSet<u8> = bytes.iter().copied().collect();
    distinct.into_iter().map(|byte| -share(byte) * share(byte).log2()).sum()
}

fn gap(one: &Frame, next: &Frame) -> f64 {
    (next.timestamp - one.timestamp).clamp(-1000.0, 1000.0)
}

/// Features of the node `id`, in the order of docs/data.md.
fn node(frames: &[Frame], id: u32) -> Vec<f64> {
    let window = &frames[..frames.len() - 1];
    let pairs: BTreeSet<(u32, u32)> = frames.windows(2).map(|pair| (pair[0].can_id, pair[1].can_id)).collect();
    let own: Vec<(usize, &Frame)> = window.iter().enumerate().filter(|(_, frame)| frame.can_id == id).collect();
    let bytes: Vec<Vec<f64>> =
        (0..8).map(|byte| own.iter().map(|(_, frame)| f64::from(frame.payload[byte])).collect()).collect();
    let mut features: Vec<f64> = bytes.iter().map(|values| mean(values) / 255.0).collect();
    features.extend(bytes.iter().map(|values| central_moment(values, 2).sqrt() / 255.0));
    features.extend(bytes.iter().map(|values| {
        let most = values.iter().copied().fold(0.0, f64::max);
        (most - values.iter().copied().fold(most, f64::min)) / 255.0
    }));
    features.push(own.len() as f64);
    let payload = |frame: &Frame| frame.payload[..usize::from(frame.payload_length).min(8)].to_vec();
    features.push(mean(&own.iter().map(|(_, frame)| entropy(&payload(frame))).collect::<Vec<_>>()));
    let standardised = |values: &Vec<f64>, power: i32, normal: f64| match central_moment(values, 2) {
        0.0 => 0.0,
        variance => central_moment(values, power) / variance.powf(f64::from(power) / 2.0) - normal,
    };
    features.push(mean(&bytes.iter().map(|values| standardised(values, 3, 0.0)).collect::<Vec<_>>()));
    features.push(mean(&bytes.iter().map(|values| standardised(values, 4, 3.0)).collect::<Vec<_>>()));

    let joined = |a: u32, b: u32| a != b && (pairs.contains(&(a, b)) || pairs.contains(&(b, a)));
    let ids: BTreeSet<u32> = frames.iter().map(|frame| frame.can_id).collect();
    let neighbours: Vec<u32> = ids.iter().copied().filter(|&other| joined(id, other)).collect();
    let (mut closed, mut open) = (0.0, 0.0);
    for (position, &one) in neighbours.iter().enumerate() {
        for &other in &neighbours[position + 1..] {
            *(if joined(one, other) { &mut closed } else { &mut open }) += 1.0;
        }
    }
    features.push(if closed + open == 0.0 { 0.0 } else { closed / (closed + open) });
    let in_first_half = |(position, _): &(usize, &Frame)| f64::from(*position < window.len() / 2);
    features.push(mean(&own.iter().map(in_first_half).collect::<Vec<_>>()));
    let changed: Vec<f64> = own
        .windows(2)
        .flat_map(|pair| (0..8).map(|byte| f64::from(pair[0].1.payload[byte] != pair[1].1.payload[byte])))
        .collect();
    features.push(mean(&changed));
    let gaps: Vec<f64> = own.windows(2).map(|pair| gap(pair[0].1, pair[1].1)).collect();
    features.extend([mean(&gaps), central_moment(&gaps, 2).sqrt()]);
    features.push(pairs.iter().filter(|pair| pair.1 == id).count() as f64);
    features.push(pairs.iter().filter(|pair| pair.0 == id).count() as f64);
    features
}

/// Features of each edge, by (target ID, source ID).
fn edges(frames: &[Frame]) -> BTreeMap<(u32, u32), Vec<f64>> {
    let pairs: Vec<(u32, u32)> = frames.windows(2).map(|pair| (pair[0].can_id, pair[1].can_id)).collect();
    let features = |(source, target): (u32, u32)| {
        let occurrences: Vec<&[Frame]> =
            frames.windows(2).filter(|pair| (pair[0].can_id, pair[1].can_id) == (source, target)).collect();
        let of =
            |value: &dyn Fn(&[Frame]) -> f64| mean(&occurrences.iter().map(|pair| value(pair)).collect::<Vec<_>>());
        let mut features = vec![of(&|pair| gap(&pair[0], &pair[1]))];
        let difference = |pair: &[Frame], byte: usize| f64::from(pair[0].payload[byte].abs_diff(pair[1].payload[byte]));
        features.extend((0..8).map(|byte| of(&|pair| difference(pair, byte) / 255.0)));
        features.push(f64::from(pairs.contains(&(target, source))));
        features.push(occurrences.len() as f64 / pairs.len() as f64);
        features
    };
    pairs.iter().map(|&(source, target)| ((target, source), features((source, target)))).collect()
}

fn assert_close(what: &str, found: &[f32], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    for (position, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(found) - expected).abs();
        assert!(error <= 2e-6 * expected.abs().max(1.0), "{what}, feature {position}: {found}, expected {expected}");
    }
}

fn assert_equals_reference(graph: &GraphView<'_>, frames: &[Frame]) {
    for (id, features) in graph.can_ids.iter().zip(graph.node_features.chunks(RICH_NODE_FEATURES)) {
        assert_close(&format!("node {id:x}"), features, &node(frames, *id));
    }
    let named = |node: &u16| graph.can_ids[*node as usize];
    let found = graph.targets.iter().map(named).zip(graph.sources.iter().map(named));
    let expected = edges(frames);
    assert_eq!(found.collect::<Vec<_>>(), expected.keys().copied().collect::<Vec<_>>(), "edges by target, then source");
    for (features, (edge, wanted)) in graph.edge_features.chunks(EDGE_FEATURES).zip(&expected) {
        assert_close(&format!("edge (target, source) {edge:x?}"), features, wanted);
    }
}

fn graphs_of(features: FeatureSet, frames: &[Frame], window: usize, stride: usize) -> Columns {
    let mut columns = Columns::new(features);
    let mut extractor = FeatureExtractor::new(window);
    let append = |first_frame: u64, frames: &[Frame]| {
        extractor.append_graph(frames, 3, first_frame, &mut columns);
        Ok::<(), ()>(())
    };
    Windows::new(window, stride).push(frames, append).unwrap();
    columns
}

/// Frames with few or many IDs, payloads of any length with few or many values, and times that stand still, step back and jump.
fn arbitrary_frames(longest: usize) -> impl Strategy<Value = Vec<Frame>> {
    let id = prop_oneof![8 => 0u32..6, 4 => 0u32..2048, 1 => 0u32..(1 << 29)];
    let byte = prop_oneof![Just(0u8), Just(255u8), 0u8..4, any::<u8>()];
    let step = prop_oneof![10 => 0.0..0.01f64, 2 => Just(0.0), 1 => -1.0..0.0f64, 1 => Just(1e7)];
    let frame = (id, prop::array::uniform8(byte), 0u8..=8, step);
    prop::collection::vec(frame, 0..longest).prop_map(|rows| {
        let mut timestamp = 1_600_000_000.0;
        let mut frames = Vec::with_capacity(rows.len());
        for (can_id, mut payload, payload_length, step) in rows {
            timestamp += step;
            payload[usize::from(payload_length)..].fill(0);
            frames.push(Frame { timestamp, can_id, payload, payload_length, attack: false });
        }
        frames
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn graphs_equal_the_reference(frames in arbitrary_frames(300), window in 2usize..60, stride in 1usize..90) {
        let columns = graphs_of(FeatureSet::Rich, &frames, window, stride);
        let plain = graphs_of(FeatureSet::Window, &frames, window, stride);
        for index in 0..columns.num_graphs() {
            let (graph, of_window_set) = (columns.graph(index), plain.graph(index));
            assert_equals_reference(&graph, &frames[graph.first_frame as usize..][..=window]);
            prop_assert_eq!(graph.can_ids, of_window_set.can_ids);
            prop_assert_eq!(graph.sources, of_window_set.sources);
            prop_assert_eq!(graph.row_pointers, of_window_set.row_pointers);
            prop_assert_eq!(graph.attack_free, of_window_set.attack_free);
        }
    }

    /// Many neighbours per node: the program counts triangles differently from the simple way.
    #[test]
    fn dense_graphs_equal_the_reference(ids in prop::collection::vec(0u32..12, 120..300)) {
        let frame = |(position, &can_id): (usize, &u32)| {
            let payload = [position as u8; 8];
            Frame { timestamp: position as f64 * 1e-3, can_id, payload, payload_length: 8, attack: false }
        };
        let frames: Vec<Frame> = ids.iter().enumerate().map(frame).collect();
        let window = frames.len() - 1;
        assert_equals_reference(&graphs_of(FeatureSet::Rich, &frames, window, 1).graph(0), &frames);
    }
}

#[test]
fn a_single_frame_and_a_node_that_is_only_a_target_have_zeros_where_nothing_can_be_said() {
    let frame = |position: usize, can_id: u32| Frame {
        timestamp: position as f64,
        can_id,
        payload: [255, 0, 0, 0, 0, 0, 0, 0],
        payload_length: 2,
        attack: false,
    };
    let columns = graphs_of(FeatureSet::Rich, &[frame(0, 1), frame(1, 1), frame(2, 2), frame(3, 3)], 3, 1);
    let rows: Vec<&[f32]> = columns.node_features.chunks(RICH_NODE_FEATURES).collect();
    // Mean of bytes; 1 frame with 2 different bytes, in the second half; one neighbour on each side, not connected to each other.
    let mut expected = [0.0; RICH_NODE_FEATURES];
    (expected[0], expected[24], expected[25]) = (1.0, 1.0, 1.0);
    (expected[33], expected[34]) = (1.0, 1.0);
    assert_eq!(rows[1], expected);
    let mut expected = [0.0; RICH_NODE_FEATURES];
    expected[33] = 1.0;
    assert_eq!(rows[2], expected, "only a target");
}
