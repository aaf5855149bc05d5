//! Bonds, the data's edges between nodes in space, and the paths of two and three of them: angles and dihedrals, which are made from the bonds or
//! listed by the data with parameters.

use kdgat_graph::{Batch, NodeScaling, OfPaths, PathKind};
use serde::{Deserialize, Serialize};
use tch::{Kind, TchError, Tensor};

use crate::ModelError;
use crate::space::Pairs;
use crate::space::pairs::pointers;

/// Smallest square that a length is divided by: an angle at two nodes in one place, or a dihedral along a line, has the cosine 0.
const SMALLEST_SQUARE: f64 = 1e-12;

/// Parameters of the paths that the data list, as a network reads them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PathParameters {
    /// Their names.
    pub names: Vec<String>,
    /// Their scaling, from the training graphs.
    pub scaling: NodeScaling,
}

impl PathParameters {
    pub(super) fn check(&self, kind: PathKind) -> Result<(), ModelError> {
        let expected = "must have a finite mean and a positive deviation for each parameter";
        match self.scaling.problem_of_width(self.names.len()) {
            Some(found) => Err(ModelError::Architecture { field: kind.name(), found, expected }),
            None => Ok(()),
        }
    }
}

/// The edges of a batch's data, without self-loops, and the paths along them.
#[derive(Debug)]
pub struct Bonds {
    /// The bonds, each a line of its own: node `targets[b]` receives from `sources[b]`.
    pub pairs: Pairs,
    /// `[bonds]`, i64: position of each bond among the edges of the batch.
    pub edges: Tensor,
    /// `[bonds, 3]`: from the receiving to the sending node.
    pub vectors: Tensor,
    /// Angles and dihedrals, if paths were asked for.
    pub paths: Option<[BondPaths; 2]>,
}

/// Paths along bonds, by the node that receives their messages; the paths of a bond that leads both ways are listed from either end.
///
/// An angle i–j–k is received by j. A dihedral i–j–k–l is received by j, and by k as l–k–j–i. Its nodes are different.
#[derive(Debug)]
pub struct BondPaths {
    /// `[paths]`, i64: the receiving node, ascending.
    pub receivers: Tensor,
    /// `[num_nodes + 1]`, i64: node `n` receives the paths `pointers[n]..pointers[n + 1]`.
    pub pointers: Tensor,
    /// `[paths]`, i64: first and last node.
    pub ends: [Tensor; 2],
    /// `[paths, 1 + parameters]`: cosine of the angle at j, or of the dihedral angle between the planes of i, j, k and of j, k, l; and the scaled
    /// parameters of paths that the data list.
    pub attributes: Tensor,
}

impl Bonds {
    /// The bonds of a batch whose nodes are at `positions`, `[num_nodes, 3]`. Unless `paths` is `None`, with the paths along them: those that the
    /// data list with these parameters, the others made from the bonds.
    ///
    /// # Errors
    /// Data that do not list such paths, and those of libtorch.
    pub fn of(batch: &Batch, positions: &Tensor, paths: Option<&OfPaths<PathParameters>>) -> Result<Self, ModelError> {
        let adjacency = &batch.adjacency;
        let edges = adjacency.sources.f_ne_tensor(&adjacency.targets)?.f_nonzero()?.f_squeeze_dim(1)?;
        let ends = [&adjacency.targets, &adjacency.sources];
        let [targets, sources] = ends.map(|end| at(end, &edges)?.f_to_kind(Kind::Int64));
        let (targets, sources) = (targets?, sources?);
        let vectors = at(positions, &sources)?.f_sub(&at(positions, &targets)?)?;
        let pairs = Pairs::directed([targets, sources], batch.num_nodes())?;
        let paths = paths.map(|listed| all_paths(listed, (batch, positions), (&pairs, &vectors))).transpose()?;
        Ok(Self { pairs, edges, vectors, paths })
    }
}

/// Angles and dihedrals of bonds with these vectors; those of which the parameters are known are listed by the batch, whose nodes are at these
/// positions.
fn all_paths(
    listed: &OfPaths<PathParameters>,
    (batch, positions): (&Batch, &Tensor),
    (bonds, vectors): (&Pairs, &Tensor),
) -> Result<[BondPaths; 2], ModelError> {
    let of = |kind| listed.of(kind).map(|parameters| listed_paths((batch, positions), kind, parameters)).transpose();
    Ok(match (of(PathKind::Angles)?, of(PathKind::Dihedrals)?) {
        (Some(angles), Some(dihedrals)) => [angles, dihedrals],
        (listed_angles, listed_dihedrals) => {
            let (angles, sides) = angles(bonds, vectors)?;
            let dihedrals = listed_dihedrals.map_or_else(|| dihedrals(bonds, vectors, &angles, &sides), Ok)?;
            [listed_angles.unwrap_or(angles), dihedrals]
        }
    })
}

/// The paths of a kind that a batch lists.
fn listed_paths(
    (batch, positions): (&Batch, &Tensor),
    kind: PathKind,
    parameters: &PathParameters,
) -> Result<BondPaths, ModelError> {
    let own = parameters.names.len() as i64;
    let paths = batch.space.as_ref().and_then(|space| space.paths[kind as usize].as_ref());
    let Some(paths) = paths.filter(|paths| paths.parameters.size()[1] == own) else {
        let of_data = paths.map_or("no table".to_owned(), |paths| paths.parameters.size()[1].to_string());
        return Err(ModelError::Architecture {
            field: kind.name(),
            found: format!("{own} parameters in the model, {of_data} in the data"),
            expected: "the data that the model was trained on, or data with the same table",
        });
    };
    let node = |place: i64| paths.nodes.f_select(1, place)?.f_contiguous();
    let last = kind.nodes() as i64 - 1;
    let [first, second, third, end] = [node(0)?, node(1)?, node(2)?, node(last)?];
    let vector = |to: &Tensor, from: &Tensor| at(positions, to)?.f_sub(&at(positions, from)?);
    let sides = [vector(&first, &second)?, vector(&third, &second)?];
    let cosines = match kind {
        PathKind::Angles => cosines(&sides[0], &sides[1])?,
        PathKind::Dihedrals => dihedral_cosines(&sides, &vector(&end, &third)?)?,
    };
    let attributes = match own {
        0 => cosines,
        _ => Tensor::f_cat(&[cosines, parameters.scaling.apply(&paths.parameters)?], 1)?,
    };
    let pointers = paths.row_pointers.f_to_kind(Kind::Int64)?;
    Ok(BondPaths { receivers: second, pointers, ends: [first, end], attributes })
}

/// Angles of bonds with these vectors, with the vectors from j to i and from j to k of each.
fn angles(bonds: &Pairs, vectors: &Tensor) -> Result<(BondPaths, [Tensor; 2]), TchError> {
    // Two bonds i→j and k→j.
    let [first, second] = with_each_bond(bonds, &bonds.targets)?;
    let [first, second] = kept(&first.f_ne_tensor(&second)?, [&first, &second])?;
    let ends = [at(&bonds.sources, &first)?, at(&bonds.sources, &second)?];
    let sides = [at(vectors, &first)?, at(vectors, &second)?];
    let nodes = bonds.num_nodes();
    let angles = BondPaths::new(at(&bonds.targets, &first)?, ends, cosines(&sides[0], &sides[1])?, nodes)?;
    Ok((angles, sides))
}

/// Dihedrals, each an angle i–j–k with a bond l→k. `sides`: the vectors from j to i and from j to k of each angle.
fn dihedrals(bonds: &Pairs, vectors: &Tensor, angles: &BondPaths, sides: &[Tensor; 2]) -> Result<BondPaths, TchError> {
    let [angle, third] = with_each_bond(bonds, &angles.ends[1])?;
    let last = at(&bonds.sources, &third)?;
    let is_none_of = |nodes: &Tensor| last.f_ne_tensor(&at(nodes, &angle)?);
    let is_new = is_none_of(&angles.receivers)?.f_logical_and(&is_none_of(&angles.ends[0])?)?;
    let [angle, third] = kept(&is_new, [&angle, &third])?;
    let ends = [at(&angles.ends[0], &angle)?, at(&bonds.sources, &third)?];
    let cosines = dihedral_cosines(&[at(&sides[0], &angle)?, at(&sides[1], &angle)?], &at(vectors, &third)?)?;
    BondPaths::new(at(&angles.receivers, &angle)?, ends, cosines, bonds.num_nodes())
}

/// Cosines of dihedral angles, `[paths, 1]`, of the vectors from j to i and from j to k, and of those from k to l.
fn dihedral_cosines([to_first, to_third]: &[Tensor; 2], to_last: &Tensor) -> Result<Tensor, TchError> {
    let axis = 1;
    // Turned around: the convention has the vector from i to j.
    let normal = to_first.f_cross(to_third, axis)?.f_neg()?;
    cosines(&normal, &to_third.f_cross(to_last, axis)?)
}

/// Each position in `nodes` with each bond that its node receives.
fn with_each_bond(bonds: &Pairs, nodes: &Tensor) -> Result<[Tensor; 2], TchError> {
    let numbers = |count: i64| Tensor::f_arange(count, (Kind::Int64, nodes.device()));
    let first = at(&bonds.target_pointers, nodes)?;
    let counts = at(&bonds.target_pointers, &nodes.f_add_scalar(1)?)?.f_sub(&first)?;
    let positions = numbers(nodes.size()[0])?.f_repeat_interleave_self_tensor(&counts, 0, None)?;
    // The first bond of each node, less the number of entries before it.
    let shift = first.f_sub(&counts.f_cumsum(0, Kind::Int64)?)?.f_add(&counts)?;
    let bond = numbers(positions.size()[0])?.f_add(&at(&shift, &positions)?)?;
    Ok([positions, bond])
}

/// Entries of both lists where the mask is true.
fn kept(mask: &Tensor, [one, other]: [&Tensor; 2]) -> Result<[Tensor; 2], TchError> {
    let places = mask.f_nonzero()?.f_squeeze_dim(1)?;
    Ok([at(one, &places)?, at(other, &places)?])
}

fn at(values: &Tensor, places: &Tensor) -> Result<Tensor, TchError> {
    values.f_index_select(0, places)
}

/// Cosines of the angles between vectors, `[rows, 3]` twice → `[rows, 1]`.
fn cosines(one: &Tensor, other: &Tensor) -> Result<Tensor, TchError> {
    let dot = |one: &Tensor, other: &Tensor| one.f_mul(other)?.f_sum_dim_intlist([1i64].as_slice(), true, Kind::Float);
    let squares = dot(one, one)?.f_mul(&dot(other, other)?)?;
    dot(one, other)?.f_div(&squares.f_clamp_min(SMALLEST_SQUARE)?.f_sqrt()?)
}

impl BondPaths {
    fn new(receivers: Tensor, ends: [Tensor; 2], attributes: Tensor, nodes: i64) -> Result<Self, TchError> {
        Ok(Self { pointers: pointers(&receivers, nodes)?, receivers, ends, attributes })
    }

    /// The paths of some nodes in a row at a time, at most `most` paths unless one node receives more; receivers are counted from the first of
    /// these nodes. A node's paths stay together, so that its sums do not depend on the nodes beside it.
    ///
    /// # Errors
    /// Those of libtorch.
    pub fn pieces(&self, most: i64) -> Result<Vec<Self>, TchError> {
        let pointers = Vec::<i64>::try_from(&self.pointers)?;
        let nodes = pointers.len() - 1;
        let (mut pieces, mut begin) = (Vec::new(), 0);
        while begin < nodes || pieces.is_empty() {
            let fits = |&node: &usize| pointers[node + 1] - pointers[begin] <= most;
            let end = (begin..nodes).take_while(fits).last().map_or(nodes.min(begin + 1), |node| node + 1);
            let (first, count) = (pointers[begin], pointers[end] - pointers[begin]);
            let of = |tensor: &Tensor| tensor.f_narrow(0, first, count);
            pieces.push(Self {
                receivers: of(&self.receivers)?.f_sub_scalar(begin as i64)?,
                pointers: self.pointers.f_narrow(0, begin as i64, (end - begin) as i64 + 1)?.f_sub_scalar(first)?,
                ends: [of(&self.ends[0])?, of(&self.ends[1])?],
                attributes: of(&self.attributes)?,
            });
            begin = end.max(begin + 1);
        }
        Ok(pieces)
    }

    /// Another handle to the same tensors.
    pub fn shallow_clone(&self) -> Self {
        let of = Tensor::shallow_clone;
        Self {
            receivers: of(&self.receivers),
            pointers: of(&self.pointers),
            ends: self.ends.each_ref().map(of),
            attributes: of(&self.attributes),
        }
    }

    /// Number of paths.
    pub fn count(&self) -> i64 {
        self.receivers.size()[0]
    }
}

#[cfg(test)]
mod tests {
    use kdgat_graph::edge_list::{EdgeList, from_edge_list};
    use proptest::prelude::*;
    use tch::Device;

    use super::*;

    /// A graph with the bonds of a list in one direction each.
    fn batch(nodes: usize, bonds: &[(usize, usize)]) -> Batch {
        let list = EdgeList {
            id_index: &vec![0; nodes],
            continuous: &vec![0.0; 10 * nodes],
            sources: &bonds.iter().map(|&(source, _)| source as i64).collect::<Vec<_>>(),
            targets: &bonds.iter().map(|&(_, target)| target as i64).collect::<Vec<_>>(),
            edge_attributes: None,
            node_pointers: &[0, nodes as i64],
            labels: &[0],
            vocabulary_size: 1,
        };
        from_edge_list(&list).unwrap()
    }

    /// Receiving node, first node, last node and cosine of each path.
    fn listed(paths: &BondPaths) -> Vec<([i64; 3], f64)> {
        let integers = |tensor: &Tensor| Vec::<i64>::try_from(tensor).unwrap();
        let [receivers, first, last] = [&paths.receivers, &paths.ends[0], &paths.ends[1]].map(integers);
        let cosines = Vec::<f64>::try_from(paths.attributes.to_kind(Kind::Double).view(-1)).unwrap();
        (0..receivers.len()).map(|at| ([receivers[at], first[at], last[at]], cosines[at])).collect()
    }

    fn difference(to: [f64; 3], from: [f64; 3]) -> [f64; 3] {
        [0, 1, 2].map(|axis| to[axis] - from[axis])
    }

    fn dot(one: [f64; 3], other: [f64; 3]) -> f64 {
        (0..3).map(|axis| one[axis] * other[axis]).sum()
    }

    fn cross(one: [f64; 3], other: [f64; 3]) -> [f64; 3] {
        [0, 1, 2].map(|axis| {
            let (next, last) = ((axis + 1) % 3, (axis + 2) % 3);
            one[next] * other[last] - one[last] * other[next]
        })
    }

    /// `None` for vectors so short, or planes so nearly lines, that 32 bits do not tell.
    fn cosine(one: [f64; 3], other: [f64; 3]) -> Option<f64> {
        let squares = dot(one, one) * dot(other, other);
        (squares > 1e-4).then(|| dot(one, other) / squares.sqrt())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        /// The definition: nested loops over all nodes.
        #[test]
        fn paths_are_those_of_the_definition(
            places in prop::collection::vec([-2.0f64..2.0, -2.0..2.0, -2.0..2.0], 1..7),
            bonds in prop::collection::btree_set((0usize..7, 0usize..7), 0..24),
        ) {
            let nodes = places.len();
            let bonds: Vec<_> = bonds.into_iter().filter(|&(one, other)| one < nodes && other < nodes).collect();
            let leads = |from: usize, to: usize| from != to && bonds.contains(&(from, to));
            let flat: Vec<f32> = places.iter().flatten().map(|&value| value as f32).collect();
            let positions = Tensor::from_slice(&flat).view([-1, 3]);
            let found = Bonds::of(&batch(nodes, &bonds), &positions, Some(&OfPaths::default())).unwrap();
            let (mut angles, mut dihedrals) = (Vec::new(), Vec::new());
            for j in 0..nodes {
                for i in (0..nodes).filter(|&i| leads(i, j)) {
                    for k in (0..nodes).filter(|&k| k != i && leads(k, j)) {
                        let sides = [difference(places[i], places[j]), difference(places[k], places[j])];
                        angles.push(([j, i, k].map(|node| node as i64), cosine(sides[0], sides[1])));
                        for l in (0..nodes).filter(|&l| l != i && l != j && leads(l, k)) {
                            let steps = [difference(places[j], places[i]), sides[1], difference(places[l], places[k])];
                            let normals = [cross(steps[0], steps[1]), cross(steps[1], steps[2])];
                            dihedrals.push(([j, i, l].map(|node| node as i64), cosine(normals[0], normals[1])));
                        }
                    }
                }
            }
            let [found_angles, found_dihedrals] = &found.paths.unwrap();
            for (paths, expected) in [(found_angles, angles), (found_dihedrals, dihedrals)] {
                let listed = listed(paths);
                prop_assert_eq!(paths.count() as usize, expected.len());
                prop_assert_eq!(paths.pointers.int64_value(&[nodes as i64]) as usize, expected.len());
                for ((path, found), (expected_path, expected)) in listed.iter().zip(&expected) {
                    prop_assert_eq!(path, expected_path);
                    let is_near = expected.is_none_or(|expected| (found - expected).abs() < 1e-3);
                    prop_assert!(is_near, "{:?}: {}, expected {:?}", path, found, expected);
                }
            }
        }
    }

    #[test]
    fn pieces_keep_the_paths_of_a_node_together() {
        let star: Vec<_> = (1..5).flat_map(|leaf| [(0, leaf), (leaf, 0)]).chain([(4, 5), (5, 4)]).collect();
        let positions = Tensor::arange(18, (Kind::Float, Device::Cpu)).sin().view([6, 3]);
        let [angles, _] = Bonds::of(&batch(6, &star), &positions, Some(&OfPaths::default())).unwrap().paths.unwrap();
        assert_eq!(Vec::<i64>::try_from(&angles.pointers).unwrap(), [0, 12, 12, 12, 12, 14, 14]);
        for (most, expected) in [(1, vec![1, 3, 1, 1]), (12, vec![4, 2]), (14, vec![6]), (100, vec![6])] {
            let pieces = angles.pieces(most).unwrap();
            let nodes: Vec<i64> = pieces.iter().map(|piece| piece.pointers.size()[0] - 1).collect();
            assert_eq!(nodes, expected, "{most}");
            assert_eq!(pieces.iter().map(BondPaths::count).sum::<i64>(), 14);
            let last = pieces.last().unwrap();
            let in_piece = last.pointers.size()[0] - 1;
            assert!(last.receivers.numel() == 0 || last.receivers.max().int64_value(&[]) < in_piece);
        }
        let none =
            Bonds::of(&batch(2, &[]), &positions.narrow(0, 0, 2), Some(&OfPaths::default())).unwrap().paths.unwrap();
        assert_eq!(none[0].pieces(5).unwrap().len(), 1);
    }

    /// Four atoms in a plane: on one side of the bond in the middle the cosine is 1, across it -1.
    #[test]
    fn a_dihedral_of_atoms_on_one_side_has_the_cosine_1() {
        let both_ways =
            |bonds: &[(usize, usize)]| bonds.iter().flat_map(|&(a, b)| [(a, b), (b, a)]).collect::<Vec<_>>();
        let chain = batch(4, &both_ways(&[(0, 1), (1, 2), (2, 3)]));
        for (side, expected) in [(1.0_f32, 1.0), (-1.0, -1.0)] {
            let positions =
                Tensor::from_slice(&[0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, side, 0.0]).view([4, 3]);
            let bonds = Bonds::of(&chain, &positions, Some(&OfPaths::default())).unwrap();
            let [angles, dihedrals] = &bonds.paths.unwrap();
            assert_eq!(
                listed(angles).iter().map(|(path, _)| *path).collect::<Vec<_>>(),
                [[1, 0, 2], [1, 2, 0], [2, 1, 3], [2, 3, 1]]
            );
            assert!(listed(angles).iter().all(|(_, cosine)| cosine.abs() < 1e-6));
            assert_eq!(listed(dihedrals), [([1, 0, 3], expected), ([2, 3, 0], expected)]);
        }
        let none =
            Bonds::of(&batch(2, &[]), &Tensor::zeros([2, 3], (Kind::Float, Device::Cpu)), Some(&OfPaths::default()))
                .unwrap();
        assert!(none.paths.unwrap().iter().all(|paths| paths.count() == 0) && none.pairs.num_lines() == 0);
    }
}
