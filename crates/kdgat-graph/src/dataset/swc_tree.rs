//! One file of the SWC format (Cannon et al. 1998): a tree of points in space, one a line: `id type x y z radius parent`.

use std::collections::HashMap;

use super::error::{DatasetError, Origin, Place};
use super::graph_set::MOST_NODES;

/// Columns of a line.
const COLUMNS: usize = 7;
const EXPECTED_LINE: &str = "id, type, x, y, z, radius and parent";
/// The parent of a root.
const NO_PARENT: i64 = -1;

/// A tree whose nodes are numbered in the order of their lines.
#[derive(Debug, PartialEq)]
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
        if self.origins.len() == MOST_NODES {
            return Err(origin.error(format!("more than {MOST_NODES} points"), "a tree of fewer points: resample it"));
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
        Ok(SwcTree { types, positions, radii, parents, children, root_distances })
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
        // The parent may follow its child.
        assert_eq!(SwcTree::parse("a.swc", "2 3 0 0 1 1 1\n1 1 0 0 0 1 -1\n").unwrap().parents, [Some(1), None]);
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
