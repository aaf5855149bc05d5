//! The loss of a network that classifies the nodes of one large graph: labels of the nodes that have one, and a teacher's outputs for all
//! (GLNN, Zhang et al. 2022), and the consistency of its outputs under dropout (GRAND, Feng et al. 2020).

use tch::{Kind, Reduction, Tensor};

use super::{Student, TeacherLink, absent, parts, target};
use crate::losses::{self, LogitLoss};
use crate::{TargetName, TargetRows};
use kdgat_graph::Batch;
use kdgat_nn::fused::step_seed;
use kdgat_nn::layers::Mode;
use kdgat_nn::node_gnn_config::Norm;
use kdgat_nn::{ModelError, NodeGnn};
use kdgat_torch::autocast::widened;
use kdgat_train::objective::{Losses, Objective, ObjectiveError, Part, TargetSource};
use kdgat_train::options::Monitor;

/// Label of a seed whose class must not be used.
pub const IGNORED_LABEL: i64 = -100;

/// A node classifier in training, with or without a teacher.
pub struct NodeObjective {
    /// The student.
    pub model: NodeGnn,
    /// The connection to the teacher.
    pub teacher: TeacherLink,
    /// The comparison of logits; `None` without a teacher.
    pub distillation: Option<LogitLoss>,
    /// The consistency loss, if there is one.
    pub consistency: Option<Consistency>,
    /// Share of the training seeds that have a label, above 0. The label losses of an epoch's batches, weighted by their seeds, then
    /// add up to the mean over all labelled nodes, however the nodes are divided into batches.
    pub labelled_share: f64,
    /// True if each step reads the whole graph, of whose nodes each of several processes computes the rows of some.
    pub reads_whole: bool,
}

/// The comparison of a network's outputs under different dropout masks, with and without labels.
#[derive(Debug, Clone, Copy)]
pub struct Consistency {
    /// Weight of [`losses::consistency`] beside the other losses.
    pub weight: f64,
    /// Number of masks, 2 or more.
    pub views: usize,
    /// Temperature of the sharpened mean.
    pub temperature: f64,
}

/// Names of the parts of the loss; the last only with a consistency loss.
const WITH_CONSISTENCY: &[&str] = &["task_loss", "kd_loss", "accuracy", "teacher_agreement", "consistency_loss"];
/// Position of the accuracy among the parts.
const ACCURACY: usize = 2;

impl NodeObjective {
    /// Logits of the seeds, `[num_seeds, classes]`.
    fn outputs(&self, batch: &Batch, mode: Mode) -> Result<Tensor, ObjectiveError> {
        Ok(widened(&self.model.forward(batch, mode)?)?)
    }

    /// The losses of one view, without consistency.
    fn losses(
        &self,
        outputs: &Tensor,
        taught: Option<&Tensor>,
        batch: &Batch,
        mode: Mode,
    ) -> Result<Losses, ObjectiveError> {
        let labelled = match mode {
            Mode::Training => batch.num_graphs() as f64 * self.labelled_share,
            Mode::Evaluation => batch.num_graphs() as f64,
        };
        let task = label_loss(outputs, &batch.labels, labelled)?;
        let accuracy = accuracy(outputs, &batch.labels, labelled)?;
        let (Some(distillation), Some(taught)) = (&self.distillation, taught) else {
            let (total, kd, agreement) = (task.shallow_clone(), absent(&task), absent(&task));
            return Ok(Losses { total, parts: vec![task, kd, accuracy, agreement] });
        };
        let kd = distillation.of(outputs, taught, &batch.labels, None)?;
        let agree = outputs.f_argmax(-1, false)?.f_eq_tensor(&taught.f_argmax(-1, false)?)?;
        let agreement = agree.f_to_kind(Kind::Float)?.f_mean(Kind::Float)?;
        let total = self.teacher.total(&kd, &task, mode)?;
        Ok(Losses { total, parts: vec![task, kd, accuracy, agreement] })
    }
}

/// The mean of the losses of the views, each part by itself; of one view, its losses.
fn mean(mut views: Vec<Losses>) -> Result<Losses, ObjectiveError> {
    if views.len() == 1 {
        return Ok(views.swap_remove(0));
    }
    let mean_of = |tensors: Vec<&Tensor>| Tensor::f_stack(&tensors, 0)?.f_mean(Kind::Float);
    let num_parts = views.first().map_or(0, |losses| losses.parts.len());
    let parts = (0..num_parts).map(|part| mean_of(views.iter().map(|losses| &losses.parts[part]).collect()));
    Ok(Losses {
        total: mean_of(views.iter().map(|losses| &losses.total).collect())?,
        parts: parts.collect::<Result<_, _>>()?,
    })
}

fn logits(targets: &TargetRows) -> Result<Tensor, ObjectiveError> {
    Ok(target(targets, TargetName::Logits)?.gathered()?)
}

/// Sum of the labelled seeds' cross-entropies, divided by `labelled`: `[num_seeds, classes]`, `[num_seeds]` → a scalar.
fn label_loss(outputs: &Tensor, labels: &Tensor, labelled: f64) -> Result<Tensor, ModelError> {
    let smoothing = 0.0;
    let sum = outputs.f_cross_entropy_loss(labels, None::<&Tensor>, Reduction::Sum, IGNORED_LABEL, smoothing)?;
    Ok(sum.f_div_scalar(labelled)?)
}

/// Number of labelled seeds that are classified rightly, divided by `labelled`.
fn accuracy(outputs: &Tensor, labels: &Tensor, labelled: f64) -> Result<Tensor, ModelError> {
    let right = outputs.f_argmax(-1, false)?.f_eq_tensor(labels)?;
    Ok(right.f_sum(Kind::Float)?.f_div_scalar(labelled)?)
}

impl Objective for NodeObjective {
    fn parts(&self) -> &'static [&'static str] {
        parts(WITH_CONSISTENCY, self.consistency.is_some())
    }

    fn metric(&self) -> Option<Monitor> {
        Some(Monitor::Part { index: ACCURACY, highest_is_best: true })
    }

    fn source(&self) -> &dyn TargetSource {
        &self.teacher
    }

    fn source_mut(&mut self) -> &mut dyn TargetSource {
        &mut self.teacher
    }

    fn loss(&mut self, batch: &Batch, part: &Part, mode: Mode) -> Result<Losses, ObjectiveError> {
        let compared = self.consistency.filter(|_| mode == Mode::Training);
        let views = compared.map_or(1, |consistency| consistency.views as u64);
        let outputs = (0..views)
            .map(|view| step_seed::in_view(view, || self.outputs(batch, mode)))
            .collect::<Result<Vec<_>, _>>()?;
        let taught = self.teacher.targets_of(part)?.map(|targets| logits(&targets)).transpose()?;
        let of_views = outputs.iter().map(|outputs| self.losses(outputs, taught.as_ref(), batch, mode));
        let mut losses = mean(of_views.collect::<Result<_, _>>()?)?;
        if let Some(Consistency { weight, temperature, .. }) = compared {
            let consistency = losses::consistency(&outputs, temperature)?;
            losses.total = losses.total.f_add(&consistency.f_mul_scalar(weight)?)?;
            losses.parts.push(consistency);
        } else if self.consistency.is_some() {
            losses.parts.push(absent(&losses.total));
        }
        Ok(losses)
    }

    fn rows(&self, part: &Part) -> f64 {
        // All terms are sums over seeds, divided by a multiple of the number of seeds.
        part.graphs.len() as f64
    }

    fn exchanges_rows(&self) -> bool {
        self.reads_whole
    }

    fn division_obstacle(&self) -> Option<&'static str> {
        let config = self.model.config();
        let draws = [config.dropout, config.input_dropout, config.attention_dropout].iter().any(|&share| share > 0.0);
        match config.message_layers() {
            0 => None,
            // Each node is there once, in one of the processes.
            _ if self.reads_whole => None,
            _ if draws => Some(
                "neighbours that several seeds share have one dropout mask in one process (use --dropout 0, --input-dropout 0 and \
                 --attention-dropout 0, or an mlp)",
            ),
            _ if config.norm == Norm::Batch => Some(
                "neighbours that several seeds share count once in the batch norm of one process (use --norm layer or none, or an mlp)",
            ),
            _ => None,
        }
    }
}

impl Student for NodeObjective {
    fn teacher(&self) -> &TeacherLink {
        &self.teacher
    }

    fn teacher_mut(&mut self) -> &mut TeacherLink {
        &mut self.teacher
    }

    fn capture_obstacle(&self) -> Option<&'static str> {
        Some("batches of nodes of one large graph are not padded")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The losses of two halves, one of them without labels, add up to the mean over the labelled nodes.
    #[test]
    fn label_losses_of_parts_add_up() {
        let outputs = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 1.0, 0.5, 0.5, -1.0, 1.0]).view([4, 2]);
        let labels = Tensor::from_slice(&[0i64, 0, IGNORED_LABEL, IGNORED_LABEL]);
        let whole = label_loss(&outputs, &labels, 4.0 * 0.5).unwrap().double_value(&[]);
        let expected = ((1.0 + (-2.0f64).exp()).ln() + (1.0 + 1f64.exp()).ln()) / 2.0;
        assert!((whole - expected).abs() < 1e-6, "{whole} against {expected}");
        let half = |start| {
            let of = |tensor: &Tensor| tensor.narrow(0, start, 2);
            label_loss(&of(&outputs), &of(&labels), 2.0 * 0.5).unwrap().double_value(&[])
        };
        assert!((0.5 * half(0) + 0.5 * half(2) - whole).abs() < 1e-6);
        assert_eq!(half(2), 0.0);
        assert_eq!(accuracy(&outputs, &labels, 2.0).unwrap().double_value(&[]), 0.5);
    }
}
