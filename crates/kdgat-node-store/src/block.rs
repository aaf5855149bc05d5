//! The edges of one layer by target.

use super::NodeStoreError;

/// A layer with more edges than tensors of 32-bit indices can hold.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("{edges} edges in one layer, at most {} are possible: use fewer nodes at a time", i32::MAX)]
pub struct TooManyEdges {
    /// Number of edges, self-loops included.
    pub edges: usize,
}

impl From<TooManyEdges> for NodeStoreError {
    fn from(error: TooManyEdges) -> Self {
        Self::Options(error.to_string())
    }
}

/// Edges of one layer, whose targets are the first of its sources. Reuses its memory.
///
/// Each target has exactly one self-loop. Sources of a target ascend by their numbers in the graph, the self-loop among them.
#[derive(Debug, Default)]
pub struct Block {
    /// Edges of target `i` are `row_pointers[i]..row_pointers[i + 1]`; empty before the first row.
    row_pointers: Vec<i32>,
    /// Row of the source of each edge.
    sources: Vec<i32>,
    num_sources: usize,
}

impl Block {
    /// Removes all edges.
    pub fn clear(&mut self) {
        self.row_pointers.clear();
        self.row_pointers.push(0);
        self.sources.clear();
        self.num_sources = 0;
    }

    /// Number of targets.
    pub fn num_targets(&self) -> usize {
        self.row_pointers.len().saturating_sub(1)
    }

    /// Number of sources, the targets included.
    pub fn num_sources(&self) -> usize {
        self.num_sources
    }

    /// Number of edges, one self-loop for each target included.
    pub fn num_edges(&self) -> usize {
        self.sources.len()
    }

    /// `[num_targets + 1]`: edges of target `i` are `row_pointers()[i]..row_pointers()[i + 1]`.
    pub fn row_pointers(&self) -> &[i32] {
        if self.row_pointers.is_empty() { &[0] } else { &self.row_pointers }
    }

    /// `[num_edges]`: row of the source of each edge, one target after another.
    pub fn all_sources(&self) -> &[i32] {
        &self.sources
    }

    /// Rows of the sources of a target, in the order of their numbers in the graph.
    ///
    /// # Panics
    /// If there is no such target.
    pub fn sources(&self, target: usize) -> &[i32] {
        &self.sources[self.row_pointers[target] as usize..self.row_pointers[target + 1] as usize]
    }

    /// Sets the number of sources, after the last row.
    pub fn set_num_sources(&mut self, count: usize) {
        self.num_sources = count;
    }

    /// Appends one row for each of `targets`, the nodes that follow the targets so far. The neighbours of all rows stand one
    /// after another in `neighbours`, with their rows among the sources in `numbers`; `lengths` counts them for each target.
    ///
    /// # Errors
    /// More than 2^31 edges.
    pub fn push_rows(
        &mut self,
        targets: &[u32],
        lengths: &[u32],
        neighbours: &[u32],
        numbers: &[u32],
    ) -> Result<(), TooManyEdges> {
        let begin = self.sources.len();
        let end = begin + neighbours.len() + targets.len();
        if end > i32::MAX as usize {
            return Err(TooManyEdges { edges: end });
        }
        self.sources.resize(end, 0);
        self.row_pointers.reserve(targets.len());
        let (mut free, mut at) = (begin, 0);
        for (&node, &length) in targets.iter().zip(lengths) {
            let row = at..at + length as usize;
            let sources = &mut self.sources[free..=free + length as usize];
            // Without branches on the data: the self-loop's place is unpredictable.
            let mut below = 0;
            for (place, (&neighbour, &number)) in neighbours[row.clone()].iter().zip(&numbers[row]).enumerate() {
                sources[place + usize::from(neighbour > node)] = number as i32;
                below += usize::from(neighbour < node);
            }
            // The number of this target: fits, as it has at least one edge.
            sources[below] = self.row_pointers.len() as i32 - 1;
            (free, at) = (free + length as usize + 1, at + length as usize);
            self.row_pointers.push(free as i32);
        }
        Ok(())
    }

    /// Writes the target of each edge, `[num_edges]`.
    ///
    /// # Panics
    /// If `targets` is shorter.
    pub fn write_targets(&self, targets: &mut [i32]) {
        for (target, ends) in self.row_pointers.windows(2).enumerate() {
            targets[ends[0] as usize..ends[1] as usize].fill(target as i32);
        }
    }

    /// Sorts the edges by source: writes the first edge of each source, `[num_sources + 1]`, which are zeros before, and the edges in
    /// that order, `[num_edges]`.
    ///
    /// # Panics
    /// If one of them is shorter.
    pub fn write_columns(&self, pointers: &mut [i32], transposed: &mut [i32]) {
        // Counts the edges, sums the counts, and places the edges from the last one on, so that each source's pointer ends at its first edge.
        for &source in &self.sources {
            pointers[source as usize] += 1;
        }
        let mut end = 0;
        for pointer in &mut *pointers {
            end += *pointer;
            *pointer = end;
        }
        for (edge, &source) in self.sources.iter().enumerate().rev() {
            let pointer = &mut pointers[source as usize];
            *pointer -= 1;
            transposed[*pointer as usize] = edge as i32;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Checks that each row has one self-loop, and that the order by source is that of the same edges.
    pub(crate) fn check(block: &Block) {
        let (rows, sources) = (block.row_pointers(), block.all_sources());
        let (mut targets, mut transposed) = (vec![0; sources.len()], vec![0; sources.len()]);
        let mut columns = vec![0; block.num_sources() + 1];
        block.write_targets(&mut targets);
        block.write_columns(&mut columns, &mut transposed);
        assert_eq!((rows[0], rows[rows.len() - 1]), (0, sources.len() as i32));
        assert!(block.num_targets() <= block.num_sources());
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

    proptest! {
        #[test]
        fn rows_ascend_with_one_self_loop_and_the_transpose_is_consistent(
            rows in prop::collection::vec(prop::collection::btree_set(0u32..30, 0..12), 0..30),
        ) {
            // Node `n` has row `29 - n`, so the order of rows and that of nodes differ.
            let targets: Vec<u32> = (0..rows.len() as u32).map(|row| 29 - row).collect();
            let rows: Vec<Vec<u32>> = rows.iter().zip(&targets)
                .map(|(row, target)| row.iter().copied().filter(|node| node != target).collect()).collect();
            let lengths: Vec<u32> = rows.iter().map(|row| row.len() as u32).collect();
            let neighbours = rows.concat();
            let numbers: Vec<u32> = neighbours.iter().map(|node| 29 - node).collect();
            let mut block = Block::default();
            block.clear();
            let cut = rows.len() / 3;
            let at = rows[..cut].iter().map(Vec::len).sum::<usize>();
            block.push_rows(&targets[..cut], &lengths[..cut], &neighbours[..at], &numbers[..at]).unwrap();
            block.push_rows(&targets[cut..], &lengths[cut..], &neighbours[at..], &numbers[at..]).unwrap();
            block.set_num_sources(30);
            for (target, row) in rows.iter().enumerate() {
                let mut expected = row.clone();
                expected.push(29 - target as u32);
                expected.sort_unstable();
                let found: Vec<u32> = block.sources(target).iter().map(|&row| 29 - row as u32).collect();
                prop_assert_eq!(found, expected);
            }
            check(&block);
        }
    }

    #[test]
    fn a_block_without_rows_has_no_edges() {
        let block = Block::default();
        assert_eq!((block.num_targets(), block.num_sources(), block.num_edges()), (0, 0, 0));
        assert_eq!(block.row_pointers(), [0]);
    }
}
