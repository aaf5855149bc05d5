//! Pairs of nodes within the cutoff, by either end, and the lines between them.
//!
//! A pair and its reverse have one distance, and opposite directions: they are the two ways along one line. What depends on the distance is
//! computed once for each line. In a periodic cell, where several images of a node may be near, each pair is a line of its own.

use kdgat_graph::Space;
use tch::{Kind, TchError, Tensor};

/// The ordered pairs of a batch's nodes within the cutoff, listed by the receiving and by the sending node; indices are i64.
#[derive(Debug)]
pub struct Pairs {
    /// `[num_pairs]`: receiving node of each pair, ascending.
    pub targets: Tensor,
    /// `[num_pairs]`: sending node of each pair.
    pub sources: Tensor,
    /// `[num_nodes + 1]`: pairs of target `i` are `target_pointers[i]..target_pointers[i + 1]`.
    pub target_pointers: Tensor,
    /// `[num_nodes + 1]`: pairs of source `j` are entries `source_pointers[j]..source_pointers[j + 1]` of `by_source`.
    pub source_pointers: Tensor,
    /// `[num_pairs]`: numbers of the pairs in order of their sources.
    pub by_source: Tensor,
    /// `[num_pairs]`: the line of each pair.
    pub lines: Tensor,
    /// `[num_pairs]`, f32: 1 for the first pair of a line, whose direction is the line's, -1 for the second.
    pub signs: Tensor,
    /// `[num_lines]`: the first pair of each line, ascending.
    pub firsts: Tensor,
    /// `[num_lines]`: the second pair of each line; `None` if each pair is a line of its own.
    pub seconds: Option<Tensor>,
}

impl Pairs {
    /// Lists the pairs of a batch.
    ///
    /// # Errors
    /// Those of libtorch.
    pub fn of(space: &Space) -> Result<Self, TchError> {
        let (device, nodes, count) = (space.sources.device(), space.positions.size()[0], space.num_pairs());
        let (stable, axis, descending) = (true, 0, false);
        let (ascending, by_source) = space.sources.f_sort_stable(stable, axis, descending)?;
        let numbers = Tensor::f_arange(nodes + 1, (Kind::Int64, device))?;
        let (as_i32, right) = (false, false);
        let source_pointers = numbers.f_searchsorted(&ascending, as_i32, right, "left", None::<&Tensor>)?;
        let all = Tensor::f_arange(count, (Kind::Int64, device))?;
        let mut pairs = Self {
            targets: space.targets.shallow_clone(),
            sources: space.sources.shallow_clone(),
            target_pointers: space.row_pointers.f_to_kind(Kind::Int64)?,
            source_pointers,
            by_source,
            lines: all.shallow_clone(),
            signs: Tensor::f_ones([count], (Kind::Float, device))?,
            firsts: all.shallow_clone(),
            seconds: None,
        };
        if space.shifts.is_none() && pairs.is_symmetric()? {
            pairs.join(&all)?;
        }
        Ok(pairs)
    }

    /// True if pair `by_source[p]` is the reverse of pair `p`: pairs are in order of target and source, `by_source` in that of source and target.
    fn is_symmetric(&self) -> Result<bool, TchError> {
        let [sources, targets] = [&self.sources, &self.targets].map(|nodes| nodes.f_index_select(0, &self.by_source));
        Ok(targets?.f_equal(&self.sources)? && sources?.f_equal(&self.targets)?)
    }

    /// Makes one line of each pair and its reverse.
    fn join(&mut self, all: &Tensor) -> Result<(), TchError> {
        let is_first = all.f_lt_tensor(&self.by_source)?;
        let firsts = is_first.f_nonzero()?.f_squeeze_dim(1)?;
        // The number of first pairs before each one, then handed to its reverse.
        let of_first = is_first.f_to_kind(Kind::Int64)?.f_cumsum(0, Kind::Int64)?.f_sub_scalar(1)?;
        self.lines = of_first.f_where_self(&is_first, &of_first.f_index_select(0, &self.by_source)?)?;
        self.signs = is_first.f_to_kind(Kind::Float)?.f_mul_scalar(2.0)?.f_sub_scalar(1.0)?;
        self.seconds = Some(self.by_source.f_index_select(0, &firsts)?);
        self.firsts = firsts;
        Ok(())
    }

    /// Number of lines.
    pub fn num_lines(&self) -> i64 {
        self.firsts.size()[0]
    }

    /// Another handle to the same tensors.
    pub fn shallow_clone(&self) -> Self {
        let of = Tensor::shallow_clone;
        Self {
            targets: of(&self.targets),
            sources: of(&self.sources),
            target_pointers: of(&self.target_pointers),
            source_pointers: of(&self.source_pointers),
            by_source: of(&self.by_source),
            lines: of(&self.lines),
            signs: of(&self.signs),
            firsts: of(&self.firsts),
            seconds: self.seconds.as_ref().map(of),
        }
    }
}

/// Vectors of the lines, from the targets to the sources of their first pairs: `[num_lines, 3]`.
///
/// # Errors
/// Those of libtorch.
pub fn vectors(space: &Space, pairs: &Pairs) -> Result<Tensor, TchError> {
    let of = |nodes: &Tensor| space.positions.f_index_select(0, &nodes.f_index_select(0, &pairs.firsts)?);
    let vectors = of(&pairs.sources)?.f_sub(&of(&pairs.targets)?)?;
    match &space.shifts {
        // Then each pair is a line.
        Some(shifts) => vectors.f_add(shifts),
        None => Ok(vectors),
    }
}
