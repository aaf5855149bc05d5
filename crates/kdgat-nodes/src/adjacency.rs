//! The edges of a block as tensors.

use std::sync::Arc;

use kdgat_graph::Adjacency;
use kdgat_node_store::Block;
use kdgat_torch::view;
use tch::{Device, Kind, TchError, Tensor};

/// The edges of a block as tensors, with the order by source.
///
/// # Errors
/// Those of libtorch, out of memory included.
pub fn adjacency_of(block: &Block) -> Result<Adjacency, TchError> {
    let edges = block.num_edges();
    let (mut targets, mut transposed) = (empty(edges)?, empty(edges)?);
    let mut columns = Tensor::f_zeros([block.num_sources() as i64 + 1], (Kind::Int, Device::Cpu))?;
    block.write_targets(view::write::<i32>("targets", &mut targets)?);
    block.write_columns(
        view::write::<i32>("column_pointers", &mut columns)?,
        view::write::<i32>("transposed", &mut transposed)?,
    );
    Ok(Adjacency {
        row_pointers: Tensor::f_from_slice(block.row_pointers())?,
        sources: Tensor::f_from_slice(block.all_sources())?,
        targets,
        column_pointers: columns,
        transposed,
        components: Arc::default(),
    })
}

fn empty(length: usize) -> Result<Tensor, TchError> {
    Tensor::f_empty([length as i64], (Kind::Int, Device::Cpu))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn integers(tensor: &Tensor) -> Vec<i32> {
        Vec::<i32>::try_from(tensor).unwrap()
    }

    /// Checks that all tensors of an adjacency describe the same edges.
    pub(crate) fn check(adjacency: &Adjacency) {
        let (rows, sources, targets) =
            (integers(&adjacency.row_pointers), integers(&adjacency.sources), integers(&adjacency.targets));
        let (columns, transposed) = (integers(&adjacency.column_pointers), integers(&adjacency.transposed));
        assert_eq!((rows[0], rows[rows.len() - 1]), (0, sources.len() as i32));
        assert!(adjacency.num_targets() <= adjacency.num_sources());
        for (target, ends) in rows.windows(2).enumerate() {
            let row = ends[0] as usize..ends[1] as usize;
            assert!(targets[row.clone()].iter().all(|&found| found == target as i32));
            assert_eq!(sources[row].iter().filter(|&&source| source == target as i32).count(), 1, "self-loops");
        }
        assert_eq!((columns[0], columns[columns.len() - 1]), (0, sources.len() as i32));
        let mut seen = vec![false; sources.len()];
        for (source, ends) in columns.windows(2).enumerate() {
            let edges = &transposed[ends[0] as usize..ends[1] as usize];
            assert!(edges.is_sorted_by(|one, next| one < next), "edges of a source ascend");
            for &edge in edges {
                assert_eq!(sources[edge as usize], source as i32);
                assert!(!std::mem::replace(&mut seen[edge as usize], true));
            }
        }
        assert!(seen.into_iter().all(|seen| seen));
    }

    #[test]
    fn a_block_without_rows_has_empty_tensors() {
        let adjacency = adjacency_of(&Block::default()).unwrap();
        assert_eq!((adjacency.num_targets(), adjacency.num_sources(), adjacency.num_edges()), (0, 0, 0));
    }
}
