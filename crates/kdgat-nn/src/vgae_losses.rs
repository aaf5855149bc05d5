//! Training loss and score of a VGAE: the task loss, and the difficulty of a graph.

use kdgat_graph::Batch;
use kdgat_graph::padding::Mask;
use kdgat_torch::autocast::widened;
use tch::Tensor;

use super::ModelError;
use super::attention::Backend;
use super::fused::distillation::Taught;
use super::fused::{self, score, vgae_loss};
use super::layers::pool_layers;
use super::masked;
use super::vgae::VgaeOutput;

/// The task loss and its terms, each a scalar.
#[derive(Debug)]
pub struct VgaeLoss {
    /// Mean squared error of the continuous features.
    pub reconstruction: Tensor,
    /// Cross entropy of the ID.
    pub id: Tensor,
    /// Binary cross entropy of the successor set.
    pub successors: Tensor,
    /// Kullback–Leibler divergence of the latent from the standard normal, mean over nodes and columns.
    pub kl: Tensor,
    /// Task loss, `reconstruction + 0.1·id + 0.05·successors + 0.01·kl`.
    pub total: Tensor,
}

/// Weights of the terms of the task loss.
pub(super) const PART_WEIGHTS: [f64; 4] = [1.0, 0.1, 0.05, 0.01];

/// The task loss of a forward pass.
pub fn task_loss(output: &VgaeOutput, batch: &Batch) -> Result<VgaeLoss, ModelError> {
    if !is_one_pass(output, batch) {
        return composed_task_loss(output, batch);
    }
    Ok(vgae_loss::task_loss(&outputs(output), target(output, batch)?, PART_WEIGHTS)?.into())
}

/// The task loss, the training loss of a distilled student, and the distance of the reconstructions, computed in one
/// pass (see [`vgae_loss::distilled_loss`]).
pub fn distilled_loss(
    output: &VgaeOutput,
    batch: &Batch,
    taught: &Taught,
) -> Result<(VgaeLoss, [Tensor; 2]), ModelError> {
    let target = target(output, batch)?;
    let (task, distilled) = vgae_loss::distilled_loss(&outputs(output), target, PART_WEIGHTS, taught)?;
    Ok((task.into(), distilled))
}

/// True if the losses of these outputs can be computed in one pass.
pub fn is_one_pass(output: &VgaeOutput, batch: &Batch) -> bool {
    let VgaeOutput { reconstruction, continuous, id_logits, successor_logits, mean, log_variance, .. } = output;
    let tensors = [reconstruction, id_logits, successor_logits, mean, log_variance, continuous];
    batch.real.is_none() && fused::applies(output.kernel, &tensors)
}

fn outputs(output: &VgaeOutput) -> vgae_loss::Outputs<'_> {
    let VgaeOutput { reconstruction, id_logits, successor_logits, mean, log_variance, .. } = output;
    vgae_loss::Outputs { reconstruction, id_logits, successor_logits, mean, log_variance }
}

fn target(output: &VgaeOutput, batch: &Batch) -> Result<vgae_loss::Target, ModelError> {
    Ok(vgae_loss::Target {
        continuous: output.continuous.f_contiguous()?,
        id_index: batch.id_index.f_contiguous()?,
        successors: batch.successors.f_contiguous()?,
    })
}

impl From<[Tensor; 5]> for VgaeLoss {
    fn from([reconstruction, id, successors, kl, total]: [Tensor; 5]) -> Self {
        Self { reconstruction, id, successors, kl, total }
    }
}

fn composed_task_loss(output: &VgaeOutput, batch: &Batch) -> Result<VgaeLoss, ModelError> {
    let real = batch.real.as_ref().map(|real| &real.nodes);
    let reconstruction = masked::squared_distance(&widened(&output.reconstruction)?, &output.continuous, real)?;
    let id = masked::cross_entropy(&widened(&output.id_logits)?, &batch.id_index, real)?;
    let successors = successor_loss(&widened(&output.successor_logits)?, batch, real)?;
    let kl = divergence([&output.mean, &output.log_variance], real)?;
    let [_, of_id, of_successors, of_kl] = PART_WEIGHTS;
    let total = reconstruction
        .f_add(&id.f_mul_scalar(of_id)?)?
        .f_add(&successors.f_mul_scalar(of_successors)?)?
        .f_add(&kl.f_mul_scalar(of_kl)?)?;
    Ok(VgaeLoss { reconstruction, id, successors, kl, total })
}

/// Kullback–Leibler divergence of the latent from the standard normal, from its mean and log variance, `[num_nodes, latent]` each: mean over
/// nodes and columns.
pub(super) fn divergence(moments: [&Tensor; 2], real: Option<&Mask>) -> Result<Tensor, ModelError> {
    let [mean, log_variance] = [widened(moments[0])?, widened(moments[1])?];
    let terms = log_variance.f_add_scalar(1.0)?.f_sub(&mean.f_square()?)?.f_sub(&log_variance.f_exp()?)?;
    Ok(masked::mean(&terms, real)?.f_mul_scalar(-0.5)?)
}

/// Binary cross entropy against the multi-hot successor set, without creating that `[num_nodes, vocabulary_size]`
/// tensor: (Σ softplus(logit) − Σ logits at the ones) / number of elements.
fn successor_loss(logits: &Tensor, batch: &Batch, real: Option<&Mask>) -> Result<Tensor, ModelError> {
    let ones = |logits: &Tensor| logits.f_flatten(0, -1)?.f_index_select(0, &batch.successors)?.f_sum(None);
    let Some(real) = real else {
        return Ok(logits.f_softplus()?.f_sum(None)?.f_sub(&ones(logits)?)?.f_div_scalar(logits.numel() as f64)?);
    };
    // Padding pairs belong to a padding node: its logits are set to 0 here.
    let ones = ones(&logits.f_mul(&real.rows.f_unsqueeze(1)?)?)?.f_div(&real.count)?;
    let columns = logits.size()[1] as f64;
    Ok(masked::mean(&logits.f_softplus()?, Some(real))?.f_sub(&ones.f_div_scalar(columns)?)?)
}

/// Difficulty of each graph, `[num_graphs]`: reconstruction error + 0.1·cross entropy of the ID, means over its nodes.
pub fn difficulty(output: &VgaeOutput, batch: &Batch) -> Result<Difficulty, ModelError> {
    let errors = node_errors([&output.reconstruction, &output.continuous], &output.id_logits, batch, output.kernel)?;
    graph_difficulty(&errors, batch, output.kernel)
}

/// Contribution of each node to its graph's difficulty, `[num_nodes]` each.
#[derive(Debug)]
pub struct NodeErrors {
    /// Mean squared error of the node's continuous features.
    pub reconstruction: Tensor,
    /// Cross entropy of the node's ID.
    pub id: Tensor,
}

pub(super) fn node_errors(
    [reconstruction, continuous]: [&Tensor; 2],
    id_logits: &Tensor,
    batch: &Batch,
    kernel: Backend,
) -> Result<NodeErrors, ModelError> {
    let without_gradient = !reconstruction.requires_grad() && !id_logits.requires_grad();
    if without_gradient && fused::applies(kernel, &[reconstruction, id_logits, continuous]) {
        let [reconstruction, id] = score::node_errors(reconstruction, continuous, id_logits, &batch.id_index)?;
        return Ok(NodeErrors { reconstruction, id });
    }
    let squared = reconstruction.f_sub(continuous)?.f_square()?;
    let log_probabilities = id_logits.f_log_softmax(-1, id_logits.kind())?;
    let id = log_probabilities.f_gather(1, &batch.id_index.f_unsqueeze(1)?, false)?.f_squeeze_dim(1)?.f_neg()?;
    Ok(NodeErrors { reconstruction: squared.f_mean_dim([1i64].as_slice(), false, squared.kind())?, id })
}

pub(super) fn graph_difficulty(errors: &NodeErrors, batch: &Batch, kernel: Backend) -> Result<Difficulty, ModelError> {
    let columns = [errors.reconstruction.f_unsqueeze(1)?, errors.id.f_unsqueeze(1)?];
    let means = pool_layers(&columns.each_ref(), batch, kernel)?;
    let (reconstruction, id) = (means.f_select(1, 0)?, means.f_select(1, 1)?);
    let total = reconstruction.f_add(&id.f_mul_scalar(0.1)?)?;
    Ok(Difficulty { reconstruction, id, total })
}

/// Difficulty of each graph and its two terms, `[num_graphs]` each.
#[derive(Debug)]
pub struct Difficulty {
    /// Mean squared error of the continuous features.
    pub reconstruction: Tensor,
    /// Cross entropy of the IDs.
    pub id: Tensor,
    /// `reconstruction + 0.1·id`.
    pub total: Tensor,
}
