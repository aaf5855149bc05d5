//! Positions of the nodes of a dataset, and what belongs to them: kinds, forces, periodic cells.

use super::elements;
use super::graph_hash::first_bytes;
use super::schema::{Kinds, numbered};
use crate::PathList;
use crate::space::{Cell, NoPairs, PairSearch};

/// Smallest distance of two nodes, in the data's unit of length: nearer ones are the same node twice, or lengths are in another unit.
const SMALLEST_DISTANCE: f64 = 1e-4;
/// Largest coordinate that is stored as it is. A store has 32 bits for it, which are then exact to a ten-thousandth.
const LARGEST_COORDINATE: f64 = 512.0;
/// Largest distance of a node from the middle of its graph.
const LARGEST_EXTENT: f64 = 65_536.0;

/// Positions of all nodes, one graph after the other, and what belongs to them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SpaceSet {
    /// `[num_nodes, 3]`: positions. Those of a graph far from the origin are moved there as a whole.
    pub positions: Vec<f32>,
    /// `[num_nodes]`: number of each node's kind.
    pub kinds: Vec<u16>,
    /// `[num_nodes, 3]`: forces; empty without any.
    pub forces: Vec<f32>,
    /// `[num_graphs, 9]`: vectors of the periodic axes, then zeros; empty if no graph has a cell.
    pub cells: Vec<f64>,
    /// Listed angles and dihedrals; without any pointers beyond the first of a kind that is not listed.
    pub paths: [PathList; 2],
}

/// Collects positions graph by graph.
#[derive(Default)]
pub(super) struct SpaceMaker {
    positions: Vec<f32>,
    cells: Vec<f64>,
    is_periodic: bool,
    hashes: Vec<u64>,
    search: PairSearch,
}

/// Positions that no network in space can use.
pub(super) struct Misfit {
    /// A node that is to blame, numbered within its graph.
    pub node: Option<usize>,
    pub found: String,
    pub expected: String,
}

impl SpaceMaker {
    /// Adds a graph. With a [`Misfit`] it is added all the same.
    pub fn add(&mut self, positions: &[[f64; 3]], cell: Option<&Cell>, graph: &str) -> Option<Misfit> {
        self.hashes.push(hash_of(positions, cell));
        self.is_periodic |= cell.is_some();
        self.cells.extend(cell.map_or([0.0; 9], Cell::numbers));
        let placed = placed(positions, cell);
        // As they are stored: nodes that are apart in the source may meet far from the origin.
        let stored: Vec<[f64; 3]> = placed.iter().map(|place| place.map(|value| f64::from(value as f32))).collect();
        let mut misfit = self.overlap(&stored, cell, graph);
        let extent = placed.iter().flatten().fold(0.0_f64, |extent, value| extent.max(value.abs()));
        if extent > LARGEST_EXTENT {
            misfit.get_or_insert_with(|| Misfit {
                node: None,
                found: format!("graph {graph} has nodes {extent:.0} from its middle"),
                expected: format!("at most {LARGEST_EXTENT}: write lengths in a larger unit, such as Å"),
            });
        }
        self.positions.extend(placed.iter().flatten().map(|&value| value as f32));
        misfit
    }

    /// The first two nodes in one place.
    fn overlap(&mut self, positions: &[[f64; 3]], cell: Option<&Cell>, graph: &str) -> Option<Misfit> {
        let mut misfit = None;
        let done = self.search.each_pair(positions, cell, SMALLEST_DISTANCE, |pair| {
            let (one, other) = (pair.target.min(pair.source) + 1, pair.target.max(pair.source) + 1);
            misfit.get_or_insert_with(|| Misfit {
                node: Some(pair.target.max(pair.source) as usize),
                found: match one == other {
                    true => format!("node {one} of graph {graph} in one place with its own image"),
                    false => format!(
                        "nodes {one} and {other} of graph {graph} in one place (distance {:.1e})",
                        pair.squared.sqrt()
                    ),
                },
                expected: format!(
                    "nodes at least {SMALLEST_DISTANCE} apart: remove one of them, or write lengths in a smaller unit, such as Å"
                ),
            });
            // One is enough.
            Err(NoPairs::TooMany)
        });
        if let (Err(reason @ (NoPairs::TooManyImages | NoPairs::FarAtom)), None) = (done, &misfit) {
            let (found, expected) = reason.text(SMALLEST_DISTANCE);
            return Some(Misfit { node: None, found: format!("graph {graph} has {found}"), expected: expected.into() });
        }
        misfit
    }

    /// True if a graph has a cell.
    pub fn is_periodic(&self) -> bool {
        self.is_periodic
    }

    /// The positions with these kinds and forces of all nodes, and the hash of each graph's positions.
    pub fn finish(self, kinds: Vec<u16>, forces: Vec<f32>) -> (SpaceSet, Vec<u64>) {
        let cells = if self.is_periodic { self.cells } else { Vec::new() };
        (SpaceSet { positions: self.positions, kinds, forces, cells, paths: Default::default() }, self.hashes)
    }
}

/// The positions as they are stored: those of a graph far from the origin moved by whole cells, and so that their middle is the origin.
fn placed(positions: &[[f64; 3]], cell: Option<&Cell>) -> Vec<[f64; 3]> {
    if positions.iter().flatten().all(|value| value.abs() <= LARGEST_COORDINATE) {
        return positions.to_vec();
    }
    let wrapped: Vec<[f64; 3]> =
        positions.iter().map(|&position| cell.map_or(position, |cell| cell.wrapped(position))).collect();
    let middle =
        [0, 1, 2].map(|axis| wrapped.iter().map(|position| position[axis]).sum::<f64>() / wrapped.len() as f64);
    wrapped.into_iter().map(|position| [0, 1, 2].map(|axis| position[axis] - middle[axis])).collect()
}

/// Hash of the positions of a graph's nodes and of its cell.
fn hash_of(positions: &[[f64; 3]], cell: Option<&Cell>) -> u64 {
    let mut hash = blake3::Hasher::new();
    hash.update(bytemuck::cast_slice(positions));
    cell.into_iter().flat_map(Cell::vectors).for_each(|vector| {
        hash.update(bytemuck::bytes_of(vector));
    });
    first_bytes(&hash)
}

/// The kinds that texts name: elements if all of them are symbols or atomic numbers. `of_nodes` has the position of each node's text.
pub(super) fn kinds_of(texts: &[String], of_nodes: impl Iterator<Item = u32>) -> (Kinds, Vec<u16>) {
    let number = |text: &String| {
        // A column of numbers may have them with a decimal point.
        let whole = || text.parse::<f64>().ok().filter(|value| value.fract() == 0.0 && (0.0..=999.0).contains(value));
        let of_number = || whole().map(|value| value as u16).filter(|&number| elements::symbol_of(number).is_some());
        elements::atomic_number(text).filter(|_| elements::symbol(text) == Some(text.as_str())).or_else(of_number)
    };
    let elements: Option<Vec<u16>> = texts.iter().map(number).collect();
    let (kinds, numbers) = match elements {
        Some(numbers) => (Kinds::Elements, numbers),
        None => {
            let (names, numbers) = numbered(texts);
            // A categorical column has far fewer values than 65,535.
            (Kinds::Named(names), numbers.into_iter().map(|number| number as u16 + 1).collect())
        }
    };
    (kinds, of_nodes.map(|text| numbers[text as usize]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(positions: &[[f64; 3]], cell: Option<&Cell>) -> (SpaceMaker, Option<String>) {
        let mut maker = SpaceMaker::default();
        let misfit = maker.add(positions, cell, "g");
        (maker, misfit.map(|misfit| format!("{:?}: {}, expected {}", misfit.node, misfit.found, misfit.expected)))
    }

    #[test]
    fn nodes_in_one_place_are_found_and_near_ones_are_not() {
        let place = |x: f64| [x, 0.0, 0.0];
        assert_eq!(added(&[place(0.0), place(2e-4)], None).1, None);
        let found = added(&[place(0.0), place(1.0), place(0.99995)], None).1.unwrap_or_default();
        assert!(found.starts_with("Some(2): nodes 2 and 3 of graph g in one place (distance 5.0e-5)"), "{found}");
        let cell = Cell::new(&[place(3.0)]).unwrap();
        let found = added(&[place(-1.0), place(2.0)], Some(&cell)).1.unwrap_or_default();
        assert!(found.contains("nodes 1 and 2 of graph g in one place (distance 0.0e0)"), "{found}");
        let tiny = Cell::new(&[place(1e-5)]).unwrap();
        let found = added(&[place(0.0)], Some(&tiny)).1.unwrap_or_default();
        assert!(found.starts_with("Some(0): node 1 of graph g in one place with its own image"), "{found}");
    }

    #[test]
    fn graphs_far_from_the_origin_are_moved_there_and_keep_their_distances() {
        let (maker, misfit) = added(&[[1e7, 0.0, 0.125], [1e7 + 1.0, 0.0, 0.0]], None);
        assert_eq!(misfit, None);
        assert_eq!(maker.positions, [-0.5, 0.0, 0.0625, 0.5, 0.0, -0.0625]);
        // An atom that has left its cell comes back by whole cells.
        let cell = Cell::new(&[[4.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 4.0]]).unwrap();
        let (maker, _) = added(&[[4001.0, 0.5, 0.0], [3.0, 0.5, -8.0]], Some(&cell));
        assert_eq!(maker.positions, [-1.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
        let (_, misfit) = added(&[[0.0; 3], [1e6, 0.0, 0.0]], None);
        assert!(misfit.is_some_and(|text| text.contains("graph g has nodes 500000 from its middle")));
    }

    #[test]
    fn kinds_are_elements_only_if_all_are() {
        let of = |texts: &[&str], nodes: &[u32]| {
            kinds_of(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>(), nodes.iter().copied())
        };
        assert_eq!(of(&["H", "C", "8"], &[2, 0, 0, 1]), (Kinds::Elements, vec![8, 1, 1, 6]));
        let names = vec!["C".to_owned(), "C1".to_owned()];
        assert_eq!(of(&["C1", "C"], &[0, 1]), (Kinds::Named(names), vec![2, 1]));
        assert_eq!(of(&["u", "v"], &[1, 0]).1, [2, 1], "no uranium");
        assert_eq!(of(&["0", "1"], &[0, 1]).1, [1, 2]);
    }
}
