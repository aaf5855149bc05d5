//! Rooted trees from graphs of points: the largest component of each graph, its shortest spanning tree, and a root.

use std::collections::HashMap;

use super::graph_set::{Edges, GraphSet};
use super::schema::Feature;
use super::space_set::SpaceSet;

/// Features that are added to those of the nodes.
pub(super) const FEATURES: [&str; 2] = ["children", "ln_root_distance"];

/// A graph of points.
pub(super) struct Points<'a> {
    pub positions: &'a [[f64; 3]],
    /// Source and target of each edge; directions do not matter.
    pub edges: &'a [(u32, u32)],
}

/// A rooted tree of some of the nodes of a graph.
#[derive(Debug, PartialEq)]
pub(super) struct Rooted {
    /// The nodes of the graph, the root first and parents before their children.
    pub nodes: Vec<u32>,
    /// For each of `nodes`, its parent's position among them; `None` for the root.
    pub parents: Vec<Option<u32>>,
    /// Edges of the largest component that are not in the tree, those of both directions counted once.
    pub left_out: usize,
}

/// A root that is not in the largest component.
#[derive(Debug, PartialEq)]
pub(super) struct OutsideRoot {
    /// Nodes of the root's component, and of the largest.
    pub nodes: [usize; 2],
}

impl Points<'_> {
    /// The tree below `root`, or below the node with the most edges, the first of several.
    ///
    /// # Errors
    /// A root outside of the largest component.
    pub fn rooted(&self, root: Option<u32>) -> Result<Rooted, OutsideRoot> {
        let mut edges: Vec<(u32, u32)> = self
            .edges
            .iter()
            .map(|&(one, other)| (one.min(other), one.max(other)))
            .filter(|edge| edge.0 != edge.1)
            .collect();
        edges.sort_unstable();
        edges.dedup();
        let count = self.positions.len();
        let squared = |&(one, other): &(u32, u32)| {
            let (one, other) = (self.positions[one as usize], self.positions[other as usize]);
            (0..3).map(|axis| (one[axis] - other[axis]).powi(2)).sum::<f64>()
        };
        // The shortest edges first that join two parts (Kruskal 1956); of equal ones the first.
        let mut order: Vec<(f64, (u32, u32))> = edges.iter().map(|edge| (squared(edge), *edge)).collect();
        order.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        let mut parts = Parts((0..count as u32).collect());
        let mut near: Vec<Vec<u32>> = vec![Vec::new(); count];
        for (_, (one, other)) in order {
            if parts.join(one, other) {
                near[one as usize].push(other);
                near[other as usize].push(one);
            }
        }
        let of: Vec<u32> = (0..count as u32).map(|node| parts.of(node)).collect();
        let mut sizes: HashMap<u32, usize> = HashMap::new();
        of.iter().for_each(|&part| *sizes.entry(part).or_default() += 1);
        // The first of the largest.
        let largest =
            of.iter().fold(of[0], |largest, part| if sizes[part] > sizes[&largest] { *part } else { largest });
        let mut degrees = vec![0usize; count];
        edges.iter().for_each(|&(one, other)| {
            degrees[one as usize] += 1;
            degrees[other as usize] += 1;
        });
        let inside = |&node: &u32| of[node as usize] == largest;
        let root = match root {
            Some(root) if !inside(&root) => {
                return Err(OutsideRoot { nodes: [sizes[&of[root as usize]], sizes[&largest]] });
            }
            Some(root) => root,
            None => (0..count as u32)
                .filter(inside)
                .reduce(|best, node| if degrees[node as usize] > degrees[best as usize] { node } else { best })
                .unwrap_or(0),
        };
        let (mut nodes, mut parents, mut at) = (vec![root], vec![None], 0);
        let mut came_from = vec![u32::MAX; count];
        while let Some(&node) = nodes.get(at) {
            near[node as usize].sort_unstable();
            let parent = came_from[node as usize];
            for &child in near[node as usize].iter().filter(|&&child| child != parent) {
                came_from[child as usize] = node;
                nodes.push(child);
                parents.push(Some(at as u32));
            }
            at += 1;
        }
        let of_component = edges.iter().filter(|edge| inside(&edge.0)).count();
        Ok(Rooted { left_out: of_component + 1 - nodes.len(), nodes, parents })
    }
}

/// Sets of nodes, each named by one of them.
struct Parts(Vec<u32>);

impl Parts {
    fn of(&mut self, node: u32) -> u32 {
        let mut node = node;
        while self.0[node as usize] != node {
            // Halves the way for the next time.
            self.0[node as usize] = self.0[self.0[node as usize] as usize];
            node = self.0[node as usize];
        }
        node
    }

    /// Joins the sets of two nodes; false if they are one already.
    fn join(&mut self, one: u32, other: u32) -> bool {
        let (one, other) = (self.of(one), self.of(other));
        self.0[one.max(other) as usize] = one.min(other);
        one != other
    }
}

impl Rooted {
    /// Number of children of each node, and ln(1 + length of the way from the root).
    pub fn features(&self, positions: &[[f64; 3]]) -> Vec<[f32; 2]> {
        let mut features = vec![[0.0f32; 2]; self.nodes.len()];
        let mut distances = vec![0.0f64; self.nodes.len()];
        for (node, parent) in self.parents.iter().enumerate() {
            let Some(parent) = parent.map(|parent| parent as usize) else { continue };
            let [one, other] = [node, parent].map(|at| positions[self.nodes[at] as usize]);
            let length = (0..3).map(|axis| (one[axis] - other[axis]).powi(2)).sum::<f64>().sqrt();
            distances[node] = distances[parent] + length;
            features[parent][0] += 1.0;
            features[node][1] = distances[node].ln_1p() as f32;
        }
        features
    }

    /// Appends the tree's edges, from parents to children and back, to those of other graphs. `features` has a row of each edge of the graph, by
    /// source and target, of which an edge's reverse has the same if it has none of its own.
    pub fn append(&self, features: &HashMap<(u32, u32), &[f32]>, to: &mut Edges) {
        let mut pairs = Vec::with_capacity(2 * self.nodes.len());
        for (node, parent) in (0u32..).zip(&self.parents) {
            parent.iter().for_each(|&parent| pairs.extend([(node, parent), (parent, node)]));
        }
        pairs.sort_unstable();
        for (target, source) in pairs {
            let [from, into] = [source, target].map(|node| self.nodes[node as usize]);
            let row = features.get(&(from, into)).or_else(|| features.get(&(into, from)));
            to.values.extend_from_slice(row.copied().unwrap_or(&[]));
            to.sources.push(source);
            to.targets.push(target);
        }
        to.pointers.push(to.sources.len() as u64);
    }
}

/// The trees of a dataset whose nodes have positions, with their features; the root of each graph is the given node or that with the most edges.
/// Nodes outside of them are left out.
///
/// # Errors
/// The first graph whose root is outside of its largest component.
pub(super) fn rooted(set: GraphSet, roots: &[Option<u32>]) -> Result<GraphSet, (usize, OutsideRoot)> {
    let Some(mut space) = set.space.clone() else { return Ok(set) };
    let (width, edge_width) = (set.schema.node_columns(), set.schema.edge_columns());
    let mut chosen: Vec<usize> = Vec::new();
    let (mut node_pointers, mut node_features, mut node_ids) = (vec![0], Vec::new(), Vec::new());
    let features = set.schema.edge_features.clone();
    let mut edges = Edges { features, left_out: set.left_out, are_listed: true, ..Edges::none(0) };
    let (mut cut, mut cut_from) = (0, 0);
    for (graph, &root) in roots.iter().enumerate() {
        let nodes = set.node_pointers[graph] as usize..set.node_pointers[graph + 1] as usize;
        let of_graph = set.edge_pointers[graph] as usize..set.edge_pointers[graph + 1] as usize;
        let positions: Vec<[f64; 3]> = space.positions[3 * nodes.start..3 * nodes.end]
            .chunks_exact(3)
            .map(|place| [0, 1, 2].map(|axis| f64::from(place[axis])))
            .collect();
        let pairs: Vec<(u32, u32)> =
            set.sources[of_graph.clone()].iter().copied().zip(set.targets[of_graph.clone()].iter().copied()).collect();
        let tree = Points { positions: &positions, edges: &pairs }.rooted(root).map_err(|outside| (graph, outside))?;
        let row = |edge: usize| &set.edge_features[edge * edge_width..(edge + 1) * edge_width];
        tree.append(&pairs.into_iter().zip(of_graph.map(row)).collect(), &mut edges);
        for (&node, of_tree) in tree.nodes.iter().zip(tree.features(&positions)) {
            let node = nodes.start + node as usize;
            node_features.extend_from_slice(&set.node_features[node * width..(node + 1) * width]);
            node_features.extend(of_tree);
            chosen.push(node);
        }
        if let Some(ids) = set.node_ids.get(graph) {
            node_ids.push(tree.nodes.iter().map(|&node| ids[node as usize].clone()).collect());
        }
        node_pointers.push(chosen.len() as u64);
        cut += nodes.len() - tree.nodes.len() + tree.left_out;
        cut_from += usize::from(nodes.len() > tree.nodes.len() || tree.left_out > 0);
    }
    fn kept<T: Copy>(values: &[T], width: usize, chosen: &[usize]) -> Vec<T> {
        if values.is_empty() {
            return Vec::new();
        }
        chosen.iter().flat_map(|node| &values[node * width..(node + 1) * width]).copied().collect()
    }
    space = SpaceSet {
        positions: kept(&space.positions, 3, &chosen),
        kinds: kept(&space.kinds, 1, &chosen),
        forces: kept(&space.forces, 3, &chosen),
        cells: space.cells,
        // Tables of paths beside trees are refused.
        paths: space.paths,
    };
    let mut schema = set.schema.clone();
    schema.node_features.extend(FEATURES.map(|name| Feature { name: name.to_owned(), values: None }));
    if let Some(space) = &mut schema.space {
        space.rooted = true;
    }
    let mut notes = set.notes.clone();
    if cut > 0 {
        notes.push(format!(
            "{cut_from} graphs are no trees: {cut} of their nodes and edges are outside of the largest component or its shortest spanning tree, \
             and left out"
        ));
    }
    let node_targets = kept(&set.node_targets, set.schema.targets.len(), &chosen);
    let Edges { values, pointers, sources, targets, left_out, .. } = edges;
    Ok(GraphSet {
        schema,
        notes,
        node_ids,
        node_pointers,
        node_features,
        edge_pointers: pointers,
        sources,
        targets,
        edge_features: values,
        node_targets,
        left_out,
        space: Some(space),
        lists_edges: true,
        ..set
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Points on a line.
    fn line(places: &[f64]) -> Vec<[f64; 3]> {
        places.iter().map(|&x| [x, 0.0, 0.0]).collect()
    }

    #[test]
    fn the_shortest_tree_of_the_largest_component_is_rooted() {
        // A square with a diagonal and a tail; and a component of two.
        let positions =
            [&line(&[0.0, 1.0])[..], &[[1.0, 1.0, 0.0], [0.0, 1.5, 0.0], [2.0, 1.0, 0.0]], &line(&[9.0, 9.5])].concat();
        let edges = [(1, 0), (1, 2), (2, 1), (2, 3), (3, 0), (0, 2), (2, 4), (6, 5)];
        let points = Points { positions: &positions, edges: &edges };
        // Node 2 has four edges; that from 3 to 0 and the diagonal are longest.
        let found = points.rooted(None).unwrap();
        assert_eq!(found.nodes, [2, 1, 3, 4, 0]);
        assert_eq!((&found.parents[..], found.left_out), (&[None, Some(0), Some(0), Some(0), Some(1)][..], 2));
        let features = found.features(&positions);
        assert_eq!(features.iter().map(|row| row[0]).collect::<Vec<_>>(), [3.0, 1.0, 0.0, 0.0, 0.0]);
        assert!((f64::from(features[4][1]) - 3f64.ln()).abs() < 1e-6);
        assert_eq!(points.rooted(Some(0)).unwrap().nodes, [0, 1, 2, 3, 4]);
        assert_eq!(points.rooted(Some(5)), Err(OutsideRoot { nodes: [2, 5] }));
        // Of components of one size the first; of nodes of one degree the first; of equal lengths the first.
        let positions = line(&[0.0, 1.0, 2.0, 5.0, 6.0, 7.0]);
        let edges = [(4, 3), (4, 5), (0, 1), (1, 2), (0, 2)];
        let found = Points { positions: &positions, edges: &edges }.rooted(None).unwrap();
        assert_eq!(found.nodes, [0, 1, 2]);
        assert_eq!(found.parents, [None, Some(0), Some(1)]);
    }
}
