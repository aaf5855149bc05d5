//! Graphs in space: the positions of a batch's nodes, and the pairs of nodes that are near each other.
//!
//! A network in space reads these pairs instead of stored edges. The loader makes them graph by graph from the positions in the store, so
//! that one store serves every cutoff. In a periodic cell every image within the cutoff makes a pair: there may be several pairs of the
//! same two nodes, and pairs of a node with its own images. Angles and dihedrals that the data list are read from the store.

mod buffers;
mod cell;
mod search;

use tch::{TchError, Tensor};

use super::Displacement;
use super::sub_batch::{Runs, counts_to_pointers};

pub(crate) use buffers::SpaceBuffers;
pub use buffers::{PairCount, PairCounter};
pub(crate) use cell::Cell;
pub(crate) use search::{NoPairs, PairSearch};

/// Options of the positions, and of the pairs of nodes that a loader makes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpaceOptions {
    /// Largest distance of a pair, in the data's unit of length, positive; `None` for positions without pairs.
    pub cutoff: Option<f64>,
    /// Displacements of the nodes; only for training with a teacher.
    pub displacement: Option<Displacement>,
    /// True for the angles and dihedrals that the data list, too.
    pub paths: bool,
}

impl SpaceOptions {
    /// Positions without pairs.
    pub const POSITIONS: Self = Self { cutoff: None, displacement: None, paths: false };

    /// Pairs up to this distance.
    ///
    /// # Errors
    /// A cutoff that is no positive, finite distance.
    pub fn new(cutoff: f64) -> Result<Self, String> {
        // Distances are compared by their squares.
        match cutoff > 0.0 && (cutoff * cutoff).is_normal() {
            true => Ok(Self { cutoff: Some(cutoff), ..Self::POSITIONS }),
            false => Err(format!("cutoff {cutoff}: expected a positive, finite distance")),
        }
    }
}

/// Positions of a batch's nodes, and the ordered pairs of nodes within the cutoff.
///
/// The vector of a pair is `positions[source] + shift - positions[target]`; its length is at most the cutoff, and above 0.
#[derive(Debug)]
pub struct Space {
    /// `[num_nodes, 3]`, f32: positions, in the data's unit of length.
    pub positions: Tensor,
    /// `[num_nodes]`, i64: number of each node's kind (atomic number for elements; 0 where unknown).
    pub kinds: Tensor,
    /// `[num_pairs]`, i64: receiving node of each pair, ascending.
    pub targets: Tensor,
    /// `[num_pairs]`, i64: sending node of each pair, ascending within a target.
    pub sources: Tensor,
    /// `[num_nodes + 1]`, i32: pairs of target `i` are `row_pointers[i]..row_pointers[i + 1]`.
    pub row_pointers: Tensor,
    /// `[num_pairs, 3]`, f32: added to the source's position for the image that is meant; `None` without periodic cells.
    pub shifts: Option<Tensor>,
    /// `[num_nodes, 3]`, f32: targets of the negative gradient of the energy by positions; `None` without such targets.
    pub forces: Option<Tensor>,
    /// `[num_nodes]`, bool: true for the nodes of displaced graphs, for whose positions the batch's targets are not; `None` without any.
    pub displaced: Option<Tensor>,
    /// Listed angles and dihedrals, if the loader was asked for them and the data list them.
    pub paths: [Option<ListedPaths>; 2],
}

/// Listed paths of one kind, each from either end.
#[derive(Debug)]
pub struct ListedPaths {
    /// `[paths, 3 or 4]`, i64: nodes of each path; ascending by the second, then by the others from the first on.
    pub nodes: Tensor,
    /// `[paths, parameters]`, f32: parameters of each path.
    pub parameters: Tensor,
    /// `[num_nodes + 1]`, i32: the second node of paths `row_pointers[i]..row_pointers[i + 1]` is `i`.
    pub row_pointers: Tensor,
}

impl ListedPaths {
    fn try_map<E>(&self, tensor: &mut impl FnMut(&Tensor) -> Result<Tensor, E>) -> Result<Self, E> {
        Ok(Self {
            nodes: tensor(&self.nodes)?,
            parameters: tensor(&self.parameters)?,
            row_pointers: tensor(&self.row_pointers)?,
        })
    }

    /// The paths of some graphs, which never leave a graph.
    fn select(&self, nodes: &Runs) -> Result<Self, TchError> {
        let paths = nodes.rows(&self.row_pointers)?;
        let take = |tensor: &Tensor| tensor.f_index_select(0, &paths.index(tensor)?);
        let shift = nodes.shift_by_run(&paths, &self.nodes)?.f_unsqueeze(1)?;
        Ok(Self {
            nodes: take(&self.nodes)?.f_sub(&shift)?,
            parameters: take(&self.parameters)?,
            row_pointers: counts_to_pointers(&self.row_pointers, nodes)?,
        })
    }
}

/// Applies a function to the paths of both kinds.
fn each_kind<E>(
    paths: &[Option<ListedPaths>; 2],
    mut of: impl FnMut(&ListedPaths) -> Result<ListedPaths, E>,
) -> Result<[Option<ListedPaths>; 2], E> {
    let [angles, dihedrals] = paths;
    Ok([angles.as_ref().map(&mut of).transpose()?, dihedrals.as_ref().map(&mut of).transpose()?])
}

impl Space {
    /// Number of pairs.
    pub fn num_pairs(&self) -> i64 {
        self.sources.size()[0]
    }

    pub(super) fn try_map<E>(&self, tensor: &mut impl FnMut(&Tensor) -> Result<Tensor, E>) -> Result<Self, E> {
        Ok(Self {
            positions: tensor(&self.positions)?,
            kinds: tensor(&self.kinds)?,
            targets: tensor(&self.targets)?,
            sources: tensor(&self.sources)?,
            row_pointers: tensor(&self.row_pointers)?,
            shifts: self.shifts.as_ref().map(&mut *tensor).transpose()?,
            forces: self.forces.as_ref().map(&mut *tensor).transpose()?,
            displaced: self.displaced.as_ref().map(&mut *tensor).transpose()?,
            paths: each_kind(&self.paths, |paths| paths.try_map(tensor))?,
        })
    }

    /// The nodes of some graphs, and their pairs, which never leave a graph.
    pub(super) fn select(&self, nodes: &Runs) -> Result<Self, TchError> {
        let pairs = nodes.rows(&self.row_pointers)?;
        let take = |tensor: &Tensor, runs: &Runs| tensor.f_index_select(0, &runs.index(tensor)?);
        let moved = |tensor: &Tensor| take(tensor, &pairs)?.f_sub(&nodes.shift_by_run(&pairs, tensor)?);
        Ok(Self {
            positions: take(&self.positions, nodes)?,
            kinds: take(&self.kinds, nodes)?,
            targets: moved(&self.targets)?,
            sources: moved(&self.sources)?,
            row_pointers: counts_to_pointers(&self.row_pointers, nodes)?,
            shifts: self.shifts.as_ref().map(|shifts| take(shifts, &pairs)).transpose()?,
            forces: self.forces.as_ref().map(|forces| take(forces, nodes)).transpose()?,
            displaced: self.displaced.as_ref().map(|displaced| take(displaced, nodes)).transpose()?,
            paths: each_kind(&self.paths, |paths| paths.select(nodes))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tch::Kind;

    use super::*;
    use crate::store::open_or_build_graphs;
    use crate::{AssembleOptions, Batch, BatchBudget, GraphSize, Store, Vocabulary, assemble, graph_sizes};

    /// A water molecule, a cell of caesium chloride, and an atom alone in a cell smaller than the cutoff.
    const FRAMES: &str = "3\nProperties=species:S:1:pos:R:3:forces:R:3 energy=-1.5\n\
                          O 0 0 0 1 0 0\nH 1 0 0 -1 0.5 0\nH 0 1 0 0 -0.5 0\n\
                          2\nProperties=species:S:1:pos:R:3:forces:R:3 energy=-2.5 Lattice=\"2 0 0 0 2 0 0 0 2\"\n\
                          Cs 0 0 0 0 0 0\nCl 1 1 1 0 0 0\n\
                          1\nProperties=species:S:1:pos:R:3:forces:R:3 energy=-3.5 Lattice=\"1.5 0 0 0 9 0 0 0 9\" pbc=\"T F F\"\n\
                          H 0 0 0 0 0 0\n";

    fn store_of(files: &[(&str, &str)]) -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        std::fs::create_dir(&data).unwrap();
        files.iter().for_each(|(name, text)| std::fs::write(data.join(name), text).unwrap());
        let store = open_or_build_graphs(&data, &folder.path().join("stores"), &()).unwrap();
        store.verify().unwrap();
        (folder, store)
    }

    fn batch(store: &Store, graphs: &[u64], cutoff: f64) -> Batch {
        let space = Some(SpaceOptions::new(cutoff).unwrap());
        let options = AssembleOptions { space, ..AssembleOptions::new(Arc::new(Vocabulary::from_ids([]))) };
        assemble(store, graphs, &options).unwrap()
    }

    fn integers(tensor: &Tensor) -> Vec<i64> {
        Vec::try_from(tensor.to_kind(Kind::Int64)).unwrap()
    }

    fn floats(tensor: &Tensor) -> Vec<f32> {
        Vec::try_from(tensor.flatten(0, -1)).unwrap()
    }

    #[test]
    fn batches_have_the_positions_and_all_pairs_of_their_graphs() {
        let (_folder, store) = store_of(&[("a.xyz", FRAMES)]);
        let schema = store.schema().and_then(|schema| schema.expect_positions().ok()).unwrap();
        assert!(schema.forces && schema.periodic);
        let all = batch(&store, &[1, 0, 2], 1.8);
        let space = all.space.as_ref().unwrap();
        assert_eq!(integers(&space.kinds), [55, 17, 8, 1, 1, 1]);
        assert_eq!(floats(&space.positions)[..9], [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
        assert_eq!(floats(space.forces.as_ref().unwrap())[6..12], [1.0, 0.0, 0.0, -1.0, 0.5, 0.0]);
        // Eight images of the other ion at √3; in water all pairs, the hydrogens at √2; two images of the atom itself.
        assert_eq!(integers(&space.row_pointers), [0, 8, 16, 18, 20, 22, 24]);
        let expected = [[1; 8].as_slice(), &[0; 8], &[3, 4, 2, 4, 2, 3], &[5, 5]].concat();
        assert_eq!(integers(&space.sources), expected);
        let pairs = space.num_pairs();
        let vectors = space.positions.index_select(0, &space.sources) + space.shifts.as_ref().unwrap()
            - space.positions.index_select(0, &space.targets);
        let lengths = floats(&vectors.square().sum_dim_intlist(&[1_i64][..], false, Kind::Float).sqrt());
        let expected: Vec<f32> = [3.0_f32.sqrt(); 16]
            .into_iter()
            .chain([1.0, 1.0, 1.0, 2.0_f32.sqrt(), 1.0, 2.0_f32.sqrt(), 1.5, 1.5])
            .collect();
        assert_eq!((pairs as usize, lengths.len()), (expected.len(), expected.len()));
        assert!(lengths.iter().zip(&expected).all(|(found, expected)| (found - expected).abs() < 1e-6), "{lengths:?}");
        // A part of a batch is the batch of its graphs, as recovery from out-of-memory needs it; so is a copy.
        for graphs in [&[1_usize, 2][..], &[2], &[2, 0], &[]] {
            let keys: Vec<u64> = graphs.iter().map(|&graph| [1, 0, 2][graph]).collect();
            let (found, expected) = (all.select_graphs(graphs).unwrap().copied().unwrap(), batch(&store, &keys, 1.8));
            let (found, expected) = (found.space.unwrap(), expected.space.unwrap());
            for (found, expected) in tensors(&found).into_iter().zip(tensors(&expected)) {
                assert_eq!((found.size(), found.kind()), (expected.size(), expected.kind()));
                assert!(found.equal(expected), "{graphs:?}: {found:?}, expected {expected:?}");
            }
        }
        let class = crate::padding::SizeClass::of(&all);
        assert!(all.padded(class).unwrap_err().to_string().contains("positions of nodes cannot be padded"));
    }

    fn tensors(space: &Space) -> Vec<&Tensor> {
        let Space { positions, kinds, targets, sources, row_pointers, shifts, forces, displaced, paths: _ } = space;
        assert!(displaced.is_none());
        let forces = forces.as_ref().unwrap();
        vec![positions, kinds, targets, sources, row_pointers, shifts.as_ref().unwrap(), forces]
    }

    #[test]
    fn pairs_are_counted_without_tensors_and_limit_batches() {
        let (_folder, store) = store_of(&[("a.xyz", FRAMES)]);
        let sizes = graph_sizes(&store, Some(1.8)).unwrap();
        let size = |nodes, edges| GraphSize { nodes, edges };
        assert_eq!(sizes, [size(3, 6), size(2, 16), size(1, 2)]);
        let budget = BatchBudget::new(None, Some(18), &store, Some(1.8)).unwrap();
        assert_eq!(budget.cut(&[0, 1, 2], 9), [vec![0], vec![1, 2]]);
        assert_eq!(budget.describe(), "18 pairs of near nodes");
        let count = PairCounter::default().count(0, &store.graph(0), 1.1).unwrap();
        assert_eq!(count, PairCount { pairs: 4, most: 2, alone: 0 });
        let error = PairCounter::default().count(1, &store.graph(1), 1e4).unwrap_err();
        assert!(
            error.is_input() && error.to_string().starts_with("graph 1 has millions of periodic images"),
            "{error}"
        );
        for cutoff in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-300] {
            assert!(SpaceOptions::new(cutoff).is_err_and(|text| text.contains("a positive, finite distance")));
        }
    }

    #[test]
    fn a_graph_of_more_pairs_than_edges_are_made_is_read() {
        // 300 atoms within the cutoff of each other: 89,700 pairs.
        let atoms: String = (0..300)
            .map(|atom| format!("H {} {} 0\n", f64::from(atom % 20) * 0.01, f64::from(atom / 20) * 0.01))
            .collect();
        let (_folder, store) = store_of(&[("a.xyz", &format!("300\nenergy=1.5\n{atoms}"))]);
        assert_eq!(store.manifest().totals.edges, 0, "the default cutoff makes no edges then");
        assert_eq!(batch(&store, &[0], 5.0).space.unwrap().num_pairs(), 300 * 299);
    }

    #[test]
    fn graphs_without_positions_are_refused() {
        let files = [
            ("graphs.csv", "graph_id,y\na,0.5\nb,1.5\n"),
            ("nodes.csv", "graph_id,node_id,x\na,1,0\nb,1,1\n"),
            ("edges.csv", "graph_id,source,target\n"),
        ];
        let (_folder, store) = store_of(&files);
        let options = AssembleOptions {
            space: Some(SpaceOptions::new(1.0).unwrap()),
            ..AssembleOptions::new(Arc::new(Vocabulary::from_ids([])))
        };
        let error = assemble(&store, &[1], &options).unwrap_err();
        assert!(error.is_input() && error.to_string().contains("graph 1 has no positions of its nodes"), "{error}");
        assert!(store.schema().unwrap().expect_positions().is_err_and(|text| text.contains("pos_x")));
    }

    #[test]
    fn tables_of_positions_need_no_edges_and_keep_forces_and_kinds() {
        let graphs = "graph_id,y\na,0.5\nb,1.25\n";
        // Rows are in another order than graphs.
        let nodes = "graph_id,node_id,c_element,pos_x,pos_y,pos_z,f_x,f_y,f_z\n\
                     b,1,O,0,0,0,7,8,9\na,1,C,0,0,0,1,2,3\na,2,H,1.1,0,0,4,5,6\n";
        let (_folder, store) = store_of(&[("graphs.csv", graphs), ("nodes.csv", nodes)]);
        let space = batch(&store, &[0, 1], 1.5).space.unwrap();
        assert_eq!(integers(&space.kinds), [6, 1, 8]);
        assert_eq!(floats(space.forces.as_ref().unwrap()), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
        assert_eq!((integers(&space.targets), integers(&space.sources)), (vec![0, 1], vec![1, 0]));
        assert!(space.shifts.is_none());
        assert_eq!(store.manifest().totals.edges, 0);
        // Two nodes in one place: other networks may use them, networks in space may not.
        let overlapping = nodes.replace("1.1,0,0", "0,0,0");
        let (_folder, store) = store_of(&[("graphs.csv", graphs), ("nodes.csv", &overlapping)]);
        let error = store.schema().unwrap().expect_positions().err().unwrap_or_default();
        assert!(error.starts_with("nodes.csv, line 4: nodes 1 and 2 of graph a in one place"), "{error}");
        // The hash of a graph has its forces.
        let (_folder, other) = store_of(&[("graphs.csv", graphs), ("nodes.csv", &nodes.replace("4,5,6", "4,5,6.5"))]);
        let (_folder, store) = store_of(&[("graphs.csv", graphs), ("nodes.csv", nodes)]);
        let hashes = |store: &Store| [0, 1].map(|graph| store.graph_hash(graph).unwrap());
        assert!(hashes(&store)[0] != hashes(&other)[0] && hashes(&store)[1] == hashes(&other)[1]);
    }
}
