//! Edges by receiving node, as the product of representations reads them.

use tch::{Kind, TchError, Tensor};

use crate::space::Pairs;

/// Entries of an array by the row that they belong to; indices are i64.
#[derive(Debug)]
pub struct Entries {
    /// `[rows + 1]`: row `r` has the entries `pointers[r]..pointers[r + 1]` of `order`.
    pub pointers: Tensor,
    /// `[edges]`: numbers of edges.
    pub order: Tensor,
}

impl Entries {
    fn shallow_clone(&self) -> Self {
        Self { pointers: self.pointers.shallow_clone(), order: self.order.shallow_clone() }
    }

    /// Those of `copies` copies of the rows, one after the other, of edges of which each is there `copies` times in turn.
    fn repeated(&self, copies: i64) -> Result<Self, TchError> {
        let (rows, edges) = (self.pointers.size()[0] - 1, self.order.size()[0]);
        let starts = self.pointers.f_narrow(0, 0, rows)?;
        let (mut pointers, mut order) = (Vec::new(), Vec::new());
        for copy in 0..copies {
            pointers.push(starts.f_add_scalar(copy * edges)?);
            order.push(self.order.f_mul_scalar(copies)?.f_add_scalar(copy)?);
        }
        pointers.push(Tensor::f_full([1], copies * edges, (Kind::Int64, self.order.device()))?);
        Ok(Self { pointers: Tensor::f_cat(&pointers, 0)?, order: Tensor::f_cat(&order, 0)? })
    }
}

/// Directed edges, sorted by receiving node. Several may share a line, which has their radial features and harmonics.
#[derive(Debug)]
pub struct Edges {
    /// `[nodes + 1]`: node `i` receives over the edges `pointers[i]..pointers[i + 1]`.
    pub pointers: Tensor,
    /// `[edges]`: receiving node of each edge, ascending.
    pub targets: Tensor,
    /// `[edges]`: row of the sending node.
    pub sources: Tensor,
    /// `[edges]`: line of each edge.
    pub lines: Tensor,
    /// `[edges]`, f32: 1 for an edge along its line's direction, -1 against it.
    pub signs: Tensor,
    /// Edges by row of the sending nodes.
    pub by_source: Entries,
    /// Edges by line.
    pub by_line: Entries,
}

impl Edges {
    /// The pairs of near nodes.
    ///
    /// # Errors
    /// Those of libtorch.
    pub fn of_pairs(pairs: &Pairs) -> Result<Self, TchError> {
        let (lines, options) = (pairs.num_lines(), (Kind::Int64, pairs.lines.device()));
        let [order, step] = match &pairs.seconds {
            Some(seconds) => [Tensor::f_stack(&[&pairs.firsts, seconds], 1)?.f_reshape([-1])?, Tensor::from(2_i64)],
            None => [pairs.firsts.shallow_clone(), Tensor::from(1_i64)],
        };
        let pointers = Tensor::f_arange(lines + 1, options)?.f_mul_scalar(step.int64_value(&[]))?;
        Ok(Self {
            pointers: pairs.target_pointers.shallow_clone(),
            targets: pairs.targets.shallow_clone(),
            sources: pairs.sources.shallow_clone(),
            lines: pairs.lines.shallow_clone(),
            signs: pairs.signs.shallow_clone(),
            by_source: Entries {
                pointers: pairs.source_pointers.shallow_clone(),
                order: pairs.by_source.shallow_clone(),
            },
            by_line: Entries { pointers, order },
        })
    }

    /// Number of edges.
    pub fn count(&self) -> i64 {
        self.sources.size()[0]
    }

    /// Number of receiving nodes.
    pub fn num_nodes(&self) -> i64 {
        self.pointers.size()[0] - 1
    }

    /// Another handle to the same tensors.
    pub fn shallow_clone(&self) -> Self {
        let of = Tensor::shallow_clone;
        Self {
            pointers: of(&self.pointers),
            targets: of(&self.targets),
            sources: of(&self.sources),
            lines: of(&self.lines),
            signs: of(&self.signs),
            by_source: self.by_source.shallow_clone(),
            by_line: self.by_line.shallow_clone(),
        }
    }

    /// Each edge `copies` times, its copy `c` over the rows `c` times their number further on: for tables of sending nodes and of lines that
    /// stand one below the other.
    pub(super) fn repeated(&self, copies: i64) -> Result<Self, TchError> {
        let shifted = |rows: &Tensor, entries: &Entries| -> Result<Tensor, TchError> {
            let rows_of_a_copy = entries.pointers.size()[0] - 1;
            let shifts = Tensor::f_arange(copies, (Kind::Int64, rows.device()))?.f_mul_scalar(rows_of_a_copy)?;
            rows.f_unsqueeze(1)?.f_add(&shifts)?.f_reshape([-1])
        };
        let repeats = |values: &Tensor| values.f_repeat_interleave_self_int(copies, 0, None);
        Ok(Self {
            pointers: self.pointers.f_mul_scalar(copies)?,
            targets: repeats(&self.targets)?,
            sources: shifted(&self.sources, &self.by_source)?,
            lines: shifted(&self.lines, &self.by_line)?,
            signs: repeats(&self.signs)?,
            by_source: self.by_source.repeated(copies)?,
            by_line: self.by_line.repeated(copies)?,
        })
    }
}
