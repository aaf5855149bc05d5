//! Label propagation (Zhou et al. 2004, "Learning with Local and Global Consistency"): labels spread over the edges, without features and
//! without training. The simplest baseline for nodes of one graph.

use kdgat_nodes::NodeGraph;

/// Share of a node's value that comes from its neighbours, α.
const FROM_NEIGHBOURS: f32 = 0.9;
/// Steps of propagation; further ones change nothing that counts.
const STEPS: usize = 50;

/// Scores of each class for all nodes, `[num_nodes, classes]`: F ← α·S·F + (1 − α)·Y with S = D^-½·A·D^-½, where Y has the classes of the
/// nodes in `labelled`.
pub fn propagated(graph: &NodeGraph, labelled: &[u32]) -> Vec<f32> {
    let classes = graph.task.classes;
    let mut known = vec![0.0f32; graph.num_nodes() * classes];
    for &node in labelled {
        known[node as usize * classes + graph.labels[node as usize] as usize] = 1.0;
    }
    let scale: Vec<f32> =
        (0..graph.num_nodes() as u32).map(|node| 1.0 / (graph.neighbours(node).len().max(1) as f32).sqrt()).collect();
    let (mut scores, mut next) = (known.clone(), vec![0.0f32; known.len()]);
    for _ in 0..STEPS {
        for (node, row) in (0u32..).zip(next.chunks_exact_mut(classes)) {
            row.fill(0.0);
            for &source in graph.neighbours(node) {
                let weight = FROM_NEIGHBOURS * scale[node as usize] * scale[source as usize];
                let source = &scores[source as usize * classes..][..classes];
                row.iter_mut().zip(source).for_each(|(sum, value)| *sum += weight * value);
            }
            let own = &known[node as usize * classes..][..classes];
            row.iter_mut().zip(own).for_each(|(sum, value)| *sum += (1.0 - FROM_NEIGHBOURS) * value);
        }
        std::mem::swap(&mut scores, &mut next);
    }
    scores
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_take_the_class_of_the_nearer_label() {
        let mut graph = NodeGraph::ring(8, 0, 2);
        graph.labels = vec![0, 0, 0, 0, 1, 1, 1, 1].into();
        let scores = propagated(&graph, &[1, 5]);
        let class = |node: usize| usize::from(scores[2 * node + 1] > scores[2 * node]);
        assert_eq!((0..8).map(class).collect::<Vec<_>>()[..3], [0, 0, 0]);
        assert_eq!([4, 5, 6].map(class), [1, 1, 1]);
        assert!((scores[2 * 3] - scores[2 * 3 + 1]).abs() < 1e-6, "node 3 is between both labels");
    }
}
