//! Operands of the loss: a VGAE's outputs and targets as slices, divided into blocks of nodes.

use kdgat_torch::rows;
use kdgat_torch::view;
use tch::{TchError, Tensor};

use super::super::distances::Compared;
use super::{Blocks, OUTPUTS, Target, expect_elements, expect_ids, shape};

/// Sizes of the outputs.
struct Sizes {
    nodes: usize,
    features: usize,
    ids: usize,
    successors: usize,
    latent: usize,
}

impl Sizes {
    fn of(outputs: &[Tensor], target: &Target) -> Result<Self, TchError> {
        let [reconstruction, id_logits, successor_logits, mean, log_variance] = outputs else {
            return Err(TchError::Shape(format!("a model has {} outputs instead of {OUTPUTS}", outputs.len())));
        };
        let [nodes, features] = shape("reconstruction", reconstruction)?;
        let [_, ids] = shape("ID logits", id_logits)?;
        let [_, successors] = shape("successor logits", successor_logits)?;
        let [_, latent] = shape("mean", mean)?;
        expect_elements("continuous features", &target.continuous, nodes * features)?;
        expect_elements("ID indices", &target.id_index, nodes)?;
        expect_elements("ID logits", id_logits, nodes * ids)?;
        expect_elements("successor logits", successor_logits, nodes * successors)?;
        expect_elements("mean", mean, nodes * latent)?;
        expect_elements("log variance", log_variance, nodes * latent)?;
        Ok(Self { nodes, features, ids, successors, latent })
    }

    /// Number of columns of each output.
    fn widths(&self) -> [usize; OUTPUTS] {
        [self.features, self.ids, self.successors, self.latent, self.latent]
    }
}

/// Outputs and targets.
pub(super) struct Slices<'a> {
    sizes: Sizes,
    pub(super) blocks: Blocks,
    outputs: [&'a [f32]; OUTPUTS],
    continuous: &'a [f32],
    id_index: &'a [i64],
    ones: &'a [i64],
    /// The reconstruction and the teacher's.
    pub(super) taught: Option<Compared<'a>>,
}

impl<'a> Slices<'a> {
    /// Wraps a model's outputs, its targets, and a teacher's reconstruction if there is one.
    pub(super) fn new(
        outputs: &'a [Tensor],
        target: &'a Target,
        taught: Option<&'a rows::Rows>,
    ) -> Result<Self, TchError> {
        let sizes = Sizes::of(outputs, target)?;
        let read = |index: usize| view::read::<f32>("an output of the model", &outputs[index]);
        let compared = |taught| Compared::new(&outputs[0], taught, [sizes.features; 2]);
        let slices = Self {
            blocks: Blocks::new(sizes.nodes, sizes.widths().iter().sum(), 1),
            outputs: [read(0)?, read(1)?, read(2)?, read(3)?, read(4)?],
            continuous: view::read("continuous features", &target.continuous)?,
            id_index: view::read("ID indices", &target.id_index)?,
            ones: view::read("successors", &target.successors)?,
            taught: taught.map(compared).transpose()?,
            sizes,
        };
        expect_ids(slices.id_index, slices.sizes.ids)?;
        let elements = slices.outputs[2].len() as i64;
        if slices.ones.first().is_some_and(|&first| first < 0)
            || slices.ones.last().is_some_and(|&last| last >= elements)
        {
            return Err(TchError::Shape(format!("a successor is outside of the {elements} successor logits")));
        }
        Ok(slices)
    }

    /// Number of columns of each output.
    pub(super) fn widths(&self) -> [usize; OUTPUTS] {
        self.sizes.widths()
    }

    /// Divisors of the sums of reconstruction, ID, successors and KL.
    pub(super) fn counts(&self) -> [f64; 4] {
        let [reconstruction, _, successor_logits, mean, _] = self.outputs;
        [reconstruction.len(), self.sizes.nodes, successor_logits.len(), mean.len()].map(|count| count as f64)
    }

    /// The outputs and targets of a block.
    pub(super) fn rows(&self, block: usize) -> Rows<'a> {
        let Sizes { features, ids, .. } = self.sizes;
        let (ones, first_logit) = self.ones(block);
        let widths = self.widths();
        let part = |output: usize| &self.outputs[output][self.blocks.elements(block, widths[output])];
        Rows {
            reconstruction: part(0),
            continuous: &self.continuous[self.blocks.elements(block, features)],
            id_logits: part(1),
            id_index: &self.id_index[self.blocks.rows(block)],
            ids,
            successor_logits: part(2),
            ones,
            first_logit,
            mean: part(3),
            log_variance: part(4),
        }
    }

    /// The block's ones, and the position of the block's first successor logit.
    fn ones(&self, block: usize) -> (&'a [i64], usize) {
        let elements = self.blocks.elements(block, self.sizes.successors);
        let start = self.ones.partition_point(|&one| one < elements.start as i64);
        let end = self.ones.partition_point(|&one| one < elements.end as i64);
        (&self.ones[start..end], elements.start)
    }
}

/// Outputs and targets of a block.
pub(super) struct Rows<'a> {
    pub(super) reconstruction: &'a [f32],
    pub(super) continuous: &'a [f32],
    pub(super) id_logits: &'a [f32],
    pub(super) id_index: &'a [i64],
    /// Number of columns of the ID logits.
    pub(super) ids: usize,
    pub(super) successor_logits: &'a [f32],
    /// Positions of the ones among all successor logits.
    pub(super) ones: &'a [i64],
    /// Position of the block's first successor logit.
    pub(super) first_logit: usize,
    pub(super) mean: &'a [f32],
    pub(super) log_variance: &'a [f32],
}
