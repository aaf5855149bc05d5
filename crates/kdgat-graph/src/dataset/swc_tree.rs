//! One file of the SWC format (Cannon et al. 1998): a tree of points in space, one a line: `id type x y z radius parent`.

use std::collections::HashMap;

use super::error::{DatasetError, Origin, Place};

/// Columns of a line.
const COLUMNS: usize = 7;
const EXPECTED_LINE: &str = "id, type, x, y, z, radius and parent";
/// Most points of a file, before it is resampled.
const MOST_LINES: usize = 1 << 24;
/// The parent of a root.
const NO_PARENT: i64 = -1;

/// A tree whose root is node 0. Nodes are numbered in the order of their lines or, if a parent follows its child there, by depth.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SwcTree {
    /// Type of each point, as in the file.
    pub types: Vec<String>,
    pub positions: Vec<[f64; 3]>,
    pub radii: Vec<f32>,
    /// The node that each node hangs on; `None` for the root.
    pub parents: Vec<Option<u32>>,
    /// Number of nodes that hang on each node.
    pub children: Vec<u32>,
    /// Length of the edges from the root to each node.
    pub root_distances: Vec<f64>,
}

impl SwcTree {
    /// Reads a file's text.
    ///
    /// # Errors
    /// A line that does not fit, a node whose parent is not there, two roots, none, or a circle; with the line.
    pub fn parse(file: &str, text: &str) -> Result<Self, DatasetError> {
        let mut points = Points::default();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') {
                points.add(line, Origin::line(file, number))?;
            }
        }
        points.finish(file)
    }

    /// Number of nodes.
    pub fn num_nodes(&self) -> usize {
        self.parents.len()
    }
}

/// The lines so far.
#[derive(Default)]
struct Points<'a> {
    /// The node of each number in the file.
    nodes: HashMap<i64, u32>,
    types: Vec<String>,
    positions: Vec<[f64; 3]>,
    radii: Vec<f32>,
    parents: Vec<i64>,
    origins: Vec<Origin<'a>>,
}

impl<'a> Points<'a> {
    fn add(&mut self, line: &str, origin: Origin<'a>) -> Result<(), DatasetError> {
        let fields: Vec<&str> = line.split([' ', '\t', ',']).filter(|field| !field.is_empty()).collect();
        if fields.len() < COLUMNS {
            return Err(origin.error(format!("{} values", fields.len()), EXPECTED_LINE));
        }
        let id = integer(fields[0], "id", origin)?;
        let [x, y, z, radius] =
            [2, 3, 4, 5].map(|column| number(fields[column], ["x", "y", "z", "radius"][column - 2], origin));
        let radius = radius?;
        if radius < 0.0 {
            return Err(origin.error(format!("radius {radius}"), "a radius of at least 0"));
        }
        if self.origins.len() == MOST_LINES {
            return Err(origin.error(format!("more than {MOST_LINES} points"), "a tree of fewer points: divide it"));
        }
        let node = self.origins.len() as u32;
        if let Some(other) = self.nodes.insert(id, node) {
            let found = format!("id {id} again (before: {})", self.origins[other as usize].text());
            return Err(origin.error(found, "each id once"));
        }
        self.parents.push(integer(fields[6], "parent", origin)?);
        self.types.push(fields[1].to_owned());
        self.positions.push([x?, y?, z?]);
        self.radii.push(radius as f32);
        self.origins.push(origin);
        Ok(())
    }

    fn finish(self, file: &str) -> Result<SwcTree, DatasetError> {
        let mut parents = Vec::with_capacity(self.parents.len());
        let mut root: Option<Origin> = None;
        for (&parent, &origin) in self.parents.iter().zip(&self.origins) {
            let node = self.nodes.get(&parent).copied();
            if node.is_none() && parent != NO_PARENT {
                return Err(origin.error(
                    format!("parent {parent}, which no line has as id"),
                    "the id of a point, or -1 for the root",
                ));
            }
            if let (None, Some(first)) = (node, root) {
                let found = format!("a second root (parent -1; the first is at {})", first.text());
                return Err(origin.error(found, "one root: a file with several trees has to be divided or joined"));
            }
            if node.is_none() {
                root = Some(origin);
            }
            parents.push(node);
        }
        if parents.is_empty() {
            return Err(Origin { file, place: Place::File }.error("no point", format!("lines of {EXPECTED_LINE}")));
        }
        let mut children = vec![0; parents.len()];
        parents.iter().flatten().for_each(|&parent| children[parent as usize] += 1);
        let Self { types, positions, radii, origins, .. } = self;
        let root_distances = root_distances(&parents, &positions).map_err(|node| {
            origins[node].error("a circle: the point is its own ancestor", "parents that lead to the root (-1)")
        })?;
        Ok(SwcTree { types, positions, radii, parents, children, root_distances }.parents_first())
    }
}

impl SwcTree {
    /// The same tree with every parent before its children, the root first.
    fn parents_first(self) -> Self {
        if self.parents.iter().zip(0..).all(|(parent, node)| parent.map_or(node == 0, |parent| parent < node)) {
            return self;
        }
        let depths = self.depths();
        let mut order: Vec<u32> = (0..self.num_nodes() as u32).collect();
        order.sort_by_key(|&node| depths[node as usize]);
        self.chosen(&order)
    }

    /// Number of edges from the root to each node.
    fn depths(&self) -> Vec<u32> {
        let mut children: Vec<Vec<u32>> = vec![Vec::new(); self.num_nodes()];
        let mut reached = Vec::with_capacity(self.num_nodes());
        for (node, parent) in (0..).zip(&self.parents) {
            match parent {
                Some(parent) => children[*parent as usize].push(node),
                None => reached.push(node),
            }
        }
        let mut depths = vec![0; self.num_nodes()];
        let mut at = 0;
        while let Some(&node) = reached.get(at) {
            for &child in &children[node as usize] {
                depths[child as usize] = depths[node as usize] + 1;
                reached.push(child);
            }
            at += 1;
        }
        depths
    }

    /// Keeps every `each`-th of the nodes between the root, branch points and tips, counted from the last of these towards the root. Distances
    /// from the root stay those along all points.
    pub fn resampled(self, each: usize) -> Self {
        let mut order = Vec::new();
        // Nodes left out since the last one that is kept; parents come first.
        let mut left_out = vec![0; self.num_nodes()];
        for (node, parent) in self.parents.iter().enumerate() {
            left_out[node] = parent.map_or(0, |parent| left_out[parent as usize] + 1);
            if parent.is_none() || self.children[node] != 1 || left_out[node] == each {
                order.push(node as u32);
                left_out[node] = 0;
            }
        }
        self.chosen(&order)
    }

    /// These nodes in this order, each on its nearest ancestor among them. The root is one of them, and a node that is left out has one child.
    fn chosen(&self, order: &[u32]) -> Self {
        const LEFT_OUT: u32 = u32::MAX;
        let mut numbers = vec![LEFT_OUT; self.num_nodes()];
        (0..).zip(order).for_each(|(number, &node)| numbers[node as usize] = number);
        let parent_of = |&node: &u32| {
            let mut parent = self.parents[node as usize];
            while let Some(left_out) = parent.filter(|&parent| numbers[parent as usize] == LEFT_OUT) {
                parent = self.parents[left_out as usize];
            }
            parent.map(|parent| numbers[parent as usize])
        };
        let of = |node: &u32| *node as usize;
        Self {
            types: order.iter().map(|node| self.types[of(node)].clone()).collect(),
            positions: order.iter().map(|node| self.positions[of(node)]).collect(),
            radii: order.iter().map(|node| self.radii[of(node)]).collect(),
            parents: order.iter().map(parent_of).collect(),
            children: order.iter().map(|node| self.children[of(node)]).collect(),
            root_distances: order.iter().map(|node| self.root_distances[of(node)]).collect(),
        }
    }
}

/// Length of the way from the root to each node; the first node on a circle if there is one.
fn root_distances(parents: &[Option<u32>], positions: &[[f64; 3]]) -> Result<Vec<f64>, usize> {
    let mut distances: Vec<Option<f64>> = parents.iter().map(|parent| parent.is_none().then_some(0.0)).collect();
    let mut way = Vec::new();
    for start in 0..parents.len() {
        let mut node = start;
        // Nodes whose distance is known end the way; more nodes than there are cannot be on it.
        while let (None, Some(parent)) = (distances[node], parents[node]) {
            way.push(node);
            if way.len() > parents.len() {
                return Err(start);
            }
            node = parent as usize;
        }
        let mut distance = distances[node].unwrap_or(0.0);
        let mut before = node;
        for node in way.drain(..).rev() {
            let squares = positions[node].iter().zip(&positions[before]).map(|(one, other)| (one - other).powi(2));
            distance += squares.sum::<f64>().sqrt();
            distances[node] = Some(distance);
            before = node;
        }
    }
    Ok(distances.into_iter().flatten().collect())
}

fn integer(text: &str, name: &str, origin: Origin) -> Result<i64, DatasetError> {
    // Some programs write all columns with a decimal point.
    let whole = || {
        text.parse::<f64>().ok().filter(|value| value.fract() == 0.0 && value.abs() < 1e15).map(|value| value as i64)
    };
    text.parse().ok().or_else(whole).ok_or_else(|| origin.error(format!("{name} '{text}'"), "a whole number"))
}

fn number(text: &str, name: &str, origin: Origin) -> Result<f64, DatasetError> {
    let value = text.parse::<f64>().ok().filter(|value| (*value as f32).is_finite());
    value.ok_or_else(|| origin.error(format!("{name} '{text}'"), "a finite number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_knows_its_parents_children_and_ways() {
        let text = "# a cell\n 1 1 0 0 0 2.5 -1\n\n2 3 3 4 0 1 1 # further columns are not read\n4 3 3 4 2 0 2\n3,3,0,0,7,1,1\n";
        let tree = SwcTree::parse("a.swc", text).unwrap();
        assert_eq!(tree.parents, [None, Some(0), Some(1), Some(0)]);
        assert_eq!((tree.children, tree.root_distances), (vec![2, 1, 0, 0], vec![0.0, 5.0, 7.0, 7.0]));
        assert_eq!((&tree.types[..2], &tree.radii[..2]), (&["1".to_owned(), "3".to_owned()][..], &[2.5, 1.0][..]));
        // The parent may follow its child: the root is the first node all the same.
        let tree = SwcTree::parse("a.swc", "3 3 0 0 2 1 2\n2 3 0 0 1 1 1\n1 1 0 0 0 4 -1\n").unwrap();
        assert_eq!((tree.parents, tree.radii[0]), (vec![None, Some(0), Some(1)], 4.0));
        assert_eq!((tree.root_distances, tree.children), (vec![0.0, 1.0, 2.0], vec![1, 1, 0]));
    }

    #[test]
    fn resampling_keeps_root_branches_and_tips() {
        // A stem of five points that forks into a tip and a branch of four.
        let parents = [-1, 1, 2, 3, 4, 5, 5, 7, 8, 9];
        let line = |(id, parent): (usize, i64)| format!("{id} 3 {id} 0 0 1 {parent}\n");
        let text: String = (1..).zip(parents).map(line).collect();
        let tree = SwcTree::parse("a.swc", &text).unwrap();
        let kept = |each: usize| {
            let SwcTree { positions, parents, .. } = tree.clone().resampled(each);
            (positions.iter().map(|place| place[0] as u32).collect::<Vec<_>>(), parents)
        };
        assert_eq!(kept(1).0, (1..=10).collect::<Vec<_>>());
        let (points, parents) = kept(2);
        assert_eq!(points, [1, 3, 5, 6, 8, 10]);
        assert_eq!(parents, [None, Some(0), Some(1), Some(2), Some(2), Some(4)]);
        let (points, parents) = kept(100);
        assert_eq!((points, parents), (vec![1, 5, 6, 10], vec![None, Some(0), Some(1), Some(1)]));
        let resampled = tree.clone().resampled(100);
        assert_eq!((resampled.children, resampled.root_distances), (vec![1, 2, 0, 0], vec![0.0, 4.0, 5.0, 9.0]));
    }

    #[test]
    fn what_is_no_tree_is_named_with_its_line() {
        for (text, expected) in [
            ("1 1 0 0 0 1 -1\n2 3 0 0 1 1 3\n3 3 0 0 2 1 2\n", "a.swc, line 2: a circle"),
            ("1 1 0 0 0 1 1\n", "a.swc, line 1: a circle"),
            (
                "1 1 0 0 0 1 -1\n2 1 0 0 1 1 -1\n",
                "a.swc, line 2: a second root (parent -1; the first is at a.swc, line 1)",
            ),
            ("1 1 0 0 0 1 -1\n2 1 0 0 1 1 7\n", "a.swc, line 2: parent 7, which no line has as id"),
            ("1 1 0 NaN 0 1 -1\n", "a.swc, line 1: y 'NaN', expected a finite number"),
            ("1 1 0 0 0 -1 -1\n", "a.swc, line 1: radius -1, expected a radius of at least 0"),
            ("1 1 0 0 0 1 -1\n1 1 0 0 0 1 1\n", "a.swc, line 2: id 1 again (before: a.swc, line 1)"),
            ("1 1 0 0 0 1\n", "a.swc, line 1: 6 values, expected id, type, x, y, z, radius and parent"),
            ("a 1 0 0 0 1 -1\n", "a.swc, line 1: id 'a', expected a whole number"),
            ("# nothing\n", "a.swc: no point"),
        ] {
            let error = SwcTree::parse("a.swc", text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
