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
        let ends = [&space.targets, &space.sources].map(Tensor::shallow_clone);
        let mut pairs = Self::directed(ends, space.positions.size()[0])?;
        if space.shifts.is_none() && pairs.is_symmetric()? {
            pairs.join()?;
        }
        Ok(pairs)
    }

    /// The pairs of these targets, ascending, and sources, `[num_pairs]` each, i64; each a line of its own.
    ///
    /// # Errors
    /// Those of libtorch.
    pub fn directed([targets, sources]: [Tensor; 2], num_nodes: i64) -> Result<Self, TchError> {
        let (device, count) = (sources.device(), sources.size()[0]);
        let (stable, axis, descending) = (true, 0, false);
        let (ascending, by_source) = sources.f_sort_stable(stable, axis, descending)?;
        let all = Tensor::f_arange(count, (Kind::Int64, device))?;
        Ok(Self {
            target_pointers: pointers(&targets, num_nodes)?,
            source_pointers: pointers(&ascending, num_nodes)?,
            targets,
            sources,
            by_source,
            lines: all.shallow_clone(),
            signs: Tensor::f_ones([count], (Kind::Float, device))?,
            firsts: all,
            seconds: None,
        })
    }

    /// True if pair `by_source[p]` is the reverse of pair `p`: pairs are in order of target and source, `by_source` in that of source and target.
    fn is_symmetric(&self) -> Result<bool, TchError> {
        let [sources, targets] = [&self.sources, &self.targets].map(|nodes| nodes.f_index_select(0, &self.by_source));
        Ok(targets?.f_equal(&self.sources)? && sources?.f_equal(&self.targets)?)
    }

    /// Makes one line of each pair and its reverse.
    fn join(&mut self) -> Result<(), TchError> {
        let is_first = self.lines.f_lt_tensor(&self.by_source)?;
        let firsts = is_first.f_nonzero()?.f_squeeze_dim(1)?;
        // The number of first pairs before each one, then handed to its reverse.
        let of_first = is_first.f_to_kind(Kind::Int64)?.f_cumsum(0, Kind::Int64)?.f_sub_scalar(1)?;
        self.lines = of_first.f_where_self(&is_first, &of_first.f_index_select(0, &self.by_source)?)?;
        self.signs = is_first.f_to_kind(Kind::Float)?.f_mul_scalar(2.0)?.f_sub_scalar(1.0)?;
        self.seconds = Some(self.by_source.f_index_select(0, &firsts)?);
        self.firsts = firsts;
        Ok(())
    }

    /// Number of nodes.
    pub fn num_nodes(&self) -> i64 {
        self.target_pointers.size()[0] - 1
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

/// The number of entries before those of each node, `[num_nodes + 1]`, i64, in a list of ascending nodes.
///
/// # Errors
/// Those of libtorch.
pub fn pointers(ascending: &Tensor, num_nodes: i64) -> Result<Tensor, TchError> {
    let numbers = Tensor::f_arange(num_nodes + 1, (Kind::Int64, ascending.device()))?;
    let (as_i32, right) = (false, false);
    numbers.f_searchsorted(ascending, as_i32, right, "left", None::<&Tensor>)
}

/// Lengths of vectors, `[rows, 3]` → `[rows, 1]`.
///
/// # Errors
/// Those of libtorch.
pub fn lengths(vectors: &Tensor) -> Result<Tensor, TchError> {
    vectors.f_square()?.f_sum_dim_intlist([1i64].as_slice(), true, Kind::Float)?.f_sqrt()
}

/// Vectors of the lines, from the targets to the sources of their first pairs, of nodes at these positions: `[num_lines, 3]`.
///
/// # Errors
/// Those of libtorch.
pub fn vectors(space: &Space, positions: &Tensor, pairs: &Pairs) -> Result<Tensor, TchError> {
    let of = |nodes: &Tensor| positions.f_index_select(0, &nodes.f_index_select(0, &pairs.firsts)?);
    let vectors = of(&pairs.sources)?.f_sub(&of(&pairs.targets)?)?;
    match &space.shifts {
        // Then each pair is a line.
        Some(shifts) => vectors.f_add(shifts),
        None => Ok(vectors),
    }
}
