//! The division of a graph's nodes into training, validation and test sets, and the nodes hidden in training.
//!
//! In the transductive setting a model sees all nodes and edges in training, but not the test nodes' labels. In the production setting
//! (Zhang et al. 2022, "Graph-less Neural Networks") a share of the test nodes is hidden with all its edges and only appears when the
//! model is evaluated.

use kdgat_base::random::{self, Purpose};

use crate::error::NodesError;
use crate::node_graph::{GivenSet, NO_LABEL, NodeGraph};
use crate::node_hash::digest_of_sets;

/// Division of the labelled nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Division {
    /// The split of the source.
    Given,
    /// This many training and validation nodes of each class; the rest is for testing.
    PerClass {
        /// Training nodes of each class.
        training: usize,
        /// Validation nodes of each class.
        validation: usize,
    },
    /// Shares of the labelled nodes; the rest is for testing.
    Random {
        /// Share of the training nodes, 0 to 1.
        training: f64,
        /// Share of the validation nodes, 0 to 1.
        validation: f64,
    },
}

/// Options of a division.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SplitOptions {
    /// Division of the labelled nodes.
    pub division: Division,
    /// Share of the test nodes that are hidden with their edges in training, 0 to 1.
    pub hidden: f64,
    /// Seed of random choices.
    pub seed: u64,
}

/// A division of nodes. All lists ascend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSplit {
    /// Nodes whose labels a model learns from.
    pub training: Vec<u32>,
    /// Nodes that epochs are compared on.
    pub validation: Vec<u32>,
    /// Test nodes that are visible, without their labels, in training.
    pub test: Vec<u32>,
    /// Test nodes that are hidden in training.
    pub hidden: Vec<u32>,
    /// Description of the division, without its seed.
    pub division: String,
    /// Description of the division.
    pub origin: String,
}

impl NodeSplit {
    /// Divides the nodes of a graph.
    ///
    /// # Errors
    /// A class with too few nodes, a missing split of the source, or a set that would be empty.
    pub fn of(graph: &NodeGraph, options: &SplitOptions) -> Result<Self, NodesError> {
        let labelled: Vec<u32> =
            (0..graph.num_nodes() as u32).filter(|&node| graph.labels[node as usize] != NO_LABEL).collect();
        let seed = options.seed;
        let (sets, division) = match options.division {
            Division::Given => (given(graph)?, "the split of the dataset".to_owned()),
            Division::PerClass { training, validation } => (
                per_class(graph, &labelled, [training, validation], seed)?,
                format!("{training} training and {validation} validation nodes of each class"),
            ),
            Division::Random { training, validation } => (
                by_shares(labelled, [training, validation], seed),
                format!("{:.0} % training and {:.0} % validation nodes", 100.0 * training, 100.0 * validation),
            ),
        };
        let [training, validation, test] = sets;
        for (nodes, name) in [(&training, "training"), (&validation, "validation"), (&test, "test")] {
            if nodes.is_empty() {
                let text = format!("{}: there is no {name} node ({division}); choose another --node-split", graph.name);
                return Err(NodesError::options(text));
            }
        }
        let (test, hidden) = hide(test, options.hidden, seed);
        let division = match hidden.len() {
            0 => division,
            count => format!("{division}, {count} of the test nodes hidden in training"),
        };
        let is_drawn = options.division != Division::Given || !hidden.is_empty();
        let origin = if is_drawn { format!("{division}, seed {seed}") } else { division.clone() };
        Ok(Self { training, validation, test, hidden, division, origin })
    }

    /// For each node, true if it is visible in training; `None` if all are.
    pub fn visible(&self, num_nodes: usize) -> Option<Vec<bool>> {
        if self.hidden.is_empty() {
            return None;
        }
        let mut visible = vec![true; num_nodes];
        self.hidden.iter().for_each(|&node| visible[node as usize] = false);
        Some(visible)
    }

    /// Digest of the test nodes, and of which of them are hidden: of their identifiers, labels and features in the source. Models with the same
    /// digest were shown none of these labels. Neither the order of the nodes nor the options of reading change it.
    ///
    /// # Errors
    /// Any error of the system, when pages of the graph's file are released.
    pub fn test_digest(&self, graph: &NodeGraph) -> Result<String, NodesError> {
        let file = graph.node_hashes.place().map(|place| place.path.to_path_buf()).unwrap_or_default();
        digest_of_sets(graph, &[&self.test, &self.hidden]).map_err(NodesError::io("release pages of", &file))
    }
}

fn given(graph: &NodeGraph) -> Result<[Vec<u32>; 3], NodesError> {
    let Some(sets) = &graph.given_split else {
        let text = format!("{}: the dataset has no split of its own; use --node-split per-class or random", graph.name);
        return Err(NodesError::options(text));
    };
    let of = |set: GivenSet| {
        let nodes = (0..graph.num_nodes() as u32).filter(|&node| sets[node as usize] == set as u8);
        nodes.filter(|&node| graph.labels[node as usize] != NO_LABEL).collect::<Vec<u32>>()
    };
    Ok([of(GivenSet::Training), of(GivenSet::Validation), of(GivenSet::Test)])
}

fn per_class(
    graph: &NodeGraph,
    labelled: &[u32],
    [training, validation]: [usize; 2],
    seed: u64,
) -> Result<[Vec<u32>; 3], NodesError> {
    let mut classes = vec![Vec::new(); graph.task.classes];
    labelled.iter().for_each(|&node| classes[graph.labels[node as usize] as usize].push(node));
    let mut sets = [Vec::new(), Vec::new(), Vec::new()];
    for (class, nodes) in classes.iter_mut().enumerate().filter(|(_, nodes)| !nodes.is_empty()) {
        if nodes.len() <= training + validation {
            return Err(NodesError::options(format!(
                "{}: class {class} has {} nodes, too few for {training} training nodes, {validation} validation nodes and a test node; lower \
                 --labels-per-class or --validation-per-class, or use --node-split random",
                graph.name,
                nodes.len()
            )));
        }
        random::shuffle(nodes, seed, Purpose::Split, class as u64);
        let (first, rest) = nodes.split_at(training);
        let (second, third) = rest.split_at(validation);
        for (set, nodes) in sets.iter_mut().zip([first, second, third]) {
            set.extend_from_slice(nodes);
        }
    }
    sets.iter_mut().for_each(|set| set.sort_unstable());
    Ok(sets)
}

fn by_shares(mut labelled: Vec<u32>, [training, validation]: [f64; 2], seed: u64) -> [Vec<u32>; 3] {
    random::shuffle(&mut labelled, seed, Purpose::Split, u64::MAX);
    let count = labelled.len();
    let end = |share: f64| ((count as f64 * share).round() as usize).min(count);
    let (first, second) = (end(training), end(training + validation));
    let mut sets = [labelled[..first].to_vec(), labelled[first..second].to_vec(), labelled[second..].to_vec()];
    sets.iter_mut().for_each(|set| set.sort_unstable());
    sets
}

/// Divides test nodes into visible and hidden ones.
fn hide(mut test: Vec<u32>, share: f64, seed: u64) -> (Vec<u32>, Vec<u32>) {
    let count = (test.len() as f64 * share).round() as usize;
    if count == 0 {
        return (test, Vec::new());
    }
    random::shuffle(&mut test, seed, Purpose::Split, u64::MAX - 1);
    let mut hidden = test.split_off(test.len() - count.min(test.len()));
    test.sort_unstable();
    hidden.sort_unstable();
    (test, hidden)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::node_graph::{Features, NodeTask};

    fn graph(labels: Vec<i32>, given: Option<Vec<u8>>) -> NodeGraph {
        let nodes = labels.len();
        NodeGraph {
            name: "made".to_owned(),
            digest: String::new(),
            row_pointers: vec![0; nodes + 1].into(),
            sources: Vec::new().into(),
            features: Features::Dense { columns: 0, values: Vec::new().into() },
            task: NodeTask { classes: labels.iter().max().map_or(0, |&label| label as usize + 1) },
            labels: labels.into(),
            given_split: given.map(Into::into),
            node_hashes: (0..nodes as u64).collect::<Vec<_>>().into(),
            original: None,
        }
    }

    fn options(division: Division, hidden: f64, seed: u64) -> SplitOptions {
        SplitOptions { division, hidden, seed }
    }

    proptest! {
        /// Every labelled node is in exactly one set, classes have their shares, and only the seed matters.
        #[test]
        fn sets_partition_the_labelled_nodes(
            labels in prop::collection::vec(-1i32..3, 60..200), seed in 0u64..100, hidden in 0.0f64..1.0,
        ) {
            let made = graph(labels.clone(), None);
            let divisions =
                [Division::PerClass { training: 3, validation: 4 }, Division::Random { training: 0.3, validation: 0.3 }];
            for division in divisions {
                let Ok(split) = NodeSplit::of(&made, &options(division, hidden, seed)) else { continue };
                prop_assert_eq!(&split, &NodeSplit::of(&made, &options(division, hidden, seed)).unwrap());
                let mut all = [&split.training[..], &split.validation, &split.test, &split.hidden].concat();
                all.sort_unstable();
                let labelled: Vec<u32> = (0..labels.len() as u32).filter(|&node| labels[node as usize] >= 0).collect();
                prop_assert_eq!(all, labelled);
                if let Division::PerClass { .. } = division {
                    for class in 0..3 {
                        let of = |set: &[u32]| set.iter().filter(|&&node| labels[node as usize] == class).count();
                        prop_assert_eq!((of(&split.training), of(&split.validation)), (3, 4));
                    }
                }
                let tested = split.test.len() + split.hidden.len();
                prop_assert_eq!(split.hidden.len(), (tested as f64 * hidden).round() as usize);
            }
        }
    }

    #[test]
    fn another_seed_gives_another_split_and_another_digest() {
        let made = graph((0..90).map(|node| node % 3).collect(), None);
        let of = |seed| {
            NodeSplit::of(&made, &options(Division::PerClass { training: 5, validation: 5 }, 0.2, seed)).unwrap()
        };
        let digest = |split: &NodeSplit, graph: &NodeGraph| split.test_digest(graph).unwrap();
        assert_ne!(digest(&of(1), &made), digest(&of(2), &made));
        let all_visible = options(Division::PerClass { training: 5, validation: 5 }, 0.0, 1);
        let all_visible = NodeSplit::of(&made, &all_visible).unwrap();
        assert_ne!(
            digest(&all_visible, &made),
            digest(&of(1), &made),
            "a teacher that has seen the hidden nodes is another one"
        );
        let reversed = NodeGraph {
            node_hashes: made.node_hashes.iter().rev().copied().collect::<Vec<_>>().into(),
            ..made.clone()
        };
        assert_ne!(digest(&of(1), &made), digest(&of(1), &reversed), "other nodes at the same positions");
        let visible = of(1).visible(90).unwrap();
        assert_eq!(visible.iter().filter(|&&one| !one).count(), 12, "a fifth of 60 test nodes");
    }

    #[test]
    fn a_class_that_is_too_small_and_a_missing_split_are_named() {
        let made = graph(vec![0, 0, 0, 0, 0, 1, 1], None);
        let refused = |division| NodeSplit::of(&made, &options(division, 0.0, 1)).unwrap_err().to_string();
        let text = refused(Division::PerClass { training: 1, validation: 1 });
        assert!(text.starts_with("made: class 1 has 2 nodes, too few for 1 training nodes"), "{text}");
        assert!(refused(Division::Given).contains("has no split of its own"));
        assert!(refused(Division::Random { training: 0.5, validation: 0.5 }).contains("there is no test node"));
        let given = graph(vec![0, 1, 0, -1], Some(vec![1, 2, 3, 1]));
        let split = NodeSplit::of(&given, &options(Division::Given, 0.0, 1)).unwrap();
        assert_eq!((split.training, split.validation, split.test), (vec![0], vec![1], vec![2]));
    }
}
