//! Test graphs in space that a report draws with a model's errors: the worst one, and the one in the middle.

use serde::{Deserialize, Serialize};

/// Most nodes of a graph that is drawn.
const MOST_NODES: usize = 200;
/// Largest distance of two atoms with a bond, in sums of their covalent radii.
const LONGEST_BOND: f64 = 1.25;
/// Units of lengths in which covalent radii are known.
const ANGSTROM: [&str; 3] = ["å", "a", "angstrom"];

/// Rank of a graph by its error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rank {
    /// The largest error.
    Worst,
    /// The one in the middle: as many graphs have larger as have smaller errors.
    Median,
}

/// A test graph with a model's errors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DrawnGraph {
    /// Rank among the test graphs: by the root mean square of the errors of its forces, or without forces by the error of its value.
    pub rank: Rank,
    /// Number of the graph in the dataset, from 0.
    pub graph: u64,
    /// Names of the kinds of its nodes: symbols of elements.
    pub kinds: Vec<String>,
    /// Positions of its nodes.
    pub positions: Vec<[f32; 3]>,
    /// Pairs of nodes with a bond.
    pub bonds: Vec<[usize; 2]>,
    /// Length of the error of the force on each node; empty without forces.
    pub force_errors: Vec<f32>,
    /// Predicted minus true value.
    pub error: f64,
    /// Name of that value.
    pub target: String,
    /// Unit of the value, if it is known.
    pub energy_unit: Option<String>,
    /// Unit of positions, if it is known.
    pub length_unit: Option<String>,
}

impl DrawnGraph {
    /// True if each node has a kind and, if any has, an error of its force, and bonds are of nodes that there are: a file may say otherwise.
    pub fn is_whole(&self) -> bool {
        let nodes = self.positions.len();
        self.kinds.len() == nodes
            && [0, nodes].contains(&self.force_errors.len())
            && self.bonds.iter().flatten().all(|&node| node < nodes)
    }

    /// Adds the bonds of atoms: pairs at most 1.25 sums of covalent radii apart (Cordero et al. 2008), in Å or, as in XYZ files, without a named
    /// unit. In other units, and of nodes that are no atoms of organic molecules, there are none.
    pub fn with_bonds(mut self) -> Self {
        let is_angstrom =
            |unit: &String| ANGSTROM.contains(&unit.trim().to_lowercase().trim_end_matches('s')) || unit == "Å";
        if !self.length_unit.as_ref().is_none_or(is_angstrom) {
            return self;
        }
        let radii: Vec<Option<f64>> = self.kinds.iter().map(|kind| covalent_radius(kind)).collect();
        for one in 0..self.positions.len() {
            for other in one + 1..self.positions.len() {
                let squared: f64 =
                    (0..3).map(|axis| f64::from(self.positions[one][axis] - self.positions[other][axis]).powi(2)).sum();
                let (Some(own), Some(others)) = (radii[one], radii[other]) else { continue };
                let reach = LONGEST_BOND * (own + others);
                if squared <= reach * reach {
                    self.bonds.push([one, other]);
                }
            }
        }
        self
    }
}

/// Covalent radius of an element of organic molecules, in Å.
fn covalent_radius(symbol: &str) -> Option<f64> {
    Some(match symbol {
        "H" => 0.31,
        "B" => 0.84,
        "C" => 0.76,
        "N" => 0.71,
        "O" => 0.66,
        "F" => 0.57,
        "Si" => 1.11,
        "P" => 1.07,
        "S" => 1.05,
        "Cl" => 1.02,
        "Se" | "Br" => 1.20,
        "I" => 1.39,
        _ => return None,
    })
}

/// Indices of the graph with the largest error and of the one in the middle, of those with a finite error that are small enough to be drawn; fewer if
/// they are the same.
pub fn ranked(errors: &[f64], nodes: &[usize]) -> Vec<(Rank, usize)> {
    let mut order: Vec<usize> = (0..errors.len()).filter(|&graph| errors[graph].is_finite()).collect();
    order.sort_by(|&one, &other| errors[other].total_cmp(&errors[one]).then(one.cmp(&other)));
    order.retain(|&graph| nodes[graph] <= MOST_NODES);
    let Some(&worst) = order.first() else { return Vec::new() };
    let median = order[order.len() / 2];
    let both = [(Rank::Worst, worst), (Rank::Median, median)];
    both.into_iter().take(if median == worst { 1 } else { 2 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_and_the_middle_are_chosen() {
        let errors = [0.3, 0.1, f64::NAN, 0.9, 0.2, 0.4];
        assert_eq!(ranked(&errors, &[9; 6]), [(Rank::Worst, 3), (Rank::Median, 0)]);
        assert_eq!(ranked(&errors, &[9, 9, 9, 5000, 9, 9]), [(Rank::Worst, 5), (Rank::Median, 4)]);
        assert_eq!(ranked(&[1.0], &[3]), [(Rank::Worst, 0)]);
        assert!(ranked(&[], &[]).is_empty());
    }

    #[test]
    fn bonds_follow_from_distances_in_angstrom_alone() {
        let graph = |unit: Option<&str>| DrawnGraph {
            rank: Rank::Worst,
            graph: 0,
            kinds: ["O", "H", "H"].map(String::from).to_vec(),
            positions: vec![[0.0, 0.0, 0.0], [0.96, 0.0, 0.0], [-0.24, 0.93, 0.0]],
            bonds: Vec::new(),
            force_errors: Vec::new(),
            error: 0.0,
            target: "energy".to_owned(),
            energy_unit: None,
            length_unit: unit.map(str::to_owned),
        };
        for unit in [Some("Å"), Some("angstrom"), Some("Angstroms"), None] {
            assert_eq!(graph(unit).with_bonds().bonds, [[0, 1], [0, 2]], "{unit:?}");
        }
        assert!(graph(Some("nm")).with_bonds().bonds.is_empty());
        let kinds = ["red", "blue", "H"].map(String::from).to_vec();
        assert!(DrawnGraph { kinds, ..graph(None) }.with_bonds().bonds.is_empty());
    }
}
