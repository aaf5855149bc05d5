//! Distillation losses.
//!
//! total = α·KD + (1−α)·task. A teacher's outputs carry no gradient.

use tch::{Kind, Reduction, TchError, Tensor};

use kdgat_graph::Batch;
use kdgat_graph::padding::Mask;
use kdgat_nn::attention::Backend;
use kdgat_nn::fused;
use kdgat_nn::fused::distillation::{self, Taught};
use kdgat_nn::layers::Linear;
use kdgat_nn::parameters::Scope;
use kdgat_nn::vgae::{VgaeLoss, distilled_loss, is_one_pass, task_loss};
use kdgat_nn::{ModelError, VgaeOutput, masked};
use kdgat_torch::autocast::widened;
use kdgat_torch::rows::Rows;

/// Weights of the distillation of a VGAE.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VgaeWeights {
    /// α: share of the distillation in the total loss.
    pub alpha: f64,
    /// Weight of the distance between latents.
    pub latent: f64,
    /// Weight of the distance between reconstructions.
    pub reconstruction: f64,
}

impl VgaeWeights {
    fn of_pass(self) -> distillation::Weights {
        let Self { alpha, latent, reconstruction } = self;
        distillation::Weights { alpha, latent, reconstruction }
    }
}

/// The loss of a VGAE that learns from a teacher, and its parts, each a scalar.
#[derive(Debug)]
pub struct VgaeKd {
    /// MSE(P·z_student, μ_teacher)
    pub latent: Tensor,
    /// MSE(x̂_student, x̂_teacher)
    pub reconstruction: Tensor,
    /// The weighted sum of both.
    pub kd: Tensor,
    /// α·KD + (1−α)·task
    pub total: Tensor,
}

/// P: maps the student's latent to the teacher's columns; the identity when they agree.
#[derive(Debug)]
pub struct Projection(Option<Linear>);

impl Projection {
    /// A learned linear map where the sizes differ. It is trained with the student but is not part of it.
    pub fn new(mut scope: Scope, student_latent: i64, teacher_latent: i64) -> Result<Self, ModelError> {
        if student_latent == teacher_latent {
            return Ok(Self(None));
        }
        Linear::new(scope.sub("projection"), student_latent, teacher_latent).map(|linear| Self(Some(linear)))
    }

    /// Weight and bias; none for the identity.
    pub fn parameters(&self) -> Option<[&Tensor; 2]> {
        self.0.as_ref().map(Linear::parameters)
    }

    /// `[num_nodes, student_latent]` → `[num_nodes, teacher_latent]`.
    pub fn forward(&self, latent: &Tensor, kernel: Backend) -> Result<Tensor, ModelError> {
        match &self.0 {
            Some(linear) => linear.forward(latent, kernel),
            None => Ok(latent.shallow_clone()),
        }
    }
}

/// The loss of a VGAE that learns: its task, and its projected z and its reconstruction towards the teacher's μ
/// `[num_nodes, teacher_latent]` and reconstruction `[num_nodes, NODE_FEATURES]`.
pub fn vgae(
    projection: &Projection,
    output: &VgaeOutput,
    batch: &Batch,
    taught: [&Rows; 2],
    weights: VgaeWeights,
) -> Result<(VgaeLoss, VgaeKd), ModelError> {
    let latent = (&output.latent, output.kernel);
    let is_whole = batch.real.is_none();
    let ((), comparison) = LatentComparison::beside(projection, latent, (taught, is_whole), weights, |_| ())?;
    comparison.losses(output, batch)
}

/// A student's latent beside its teacher's: the first half of [`vgae`].
pub struct LatentComparison<'a> {
    projection: &'a Projection,
    taught: [&'a Rows; 2],
    weights: VgaeWeights,
    /// Where it is a fused pass.
    fused: Option<Taught>,
}

impl<'a> LatentComparison<'a> {
    /// Compares z while `rest` runs on this thread: by the others, where its loops leave them idle. `rest` may take the losses, and
    /// their gradients; what their values lack by then is told by [`Self::lacking`] afterwards. `is_whole`: no rows only fill
    /// the batch up; where some do, nothing is fused.
    pub fn beside<R>(
        projection: &'a Projection,
        (latent, kernel): (&Tensor, Backend),
        (taught, is_whole): ([&'a Rows; 2], bool),
        weights: VgaeWeights,
        rest: impl FnOnce(&Self) -> R,
    ) -> Result<(R, Self), ModelError> {
        let mut tensors = vec![latent];
        for rows in taught {
            // Rows that lie apart are f32 on the host.
            if let Rows::Whole(tensor) = rows {
                tensors.push(tensor);
            }
        }
        let mut comparison = Self { projection, taught, weights, fused: None };
        if !is_whole || !fused::applies(kernel, &tensors) {
            return Ok((rest(&comparison), comparison));
        }
        let [latent_rows, reconstruction] = taught;
        let targets =
            distillation::Targets { latent: latent_rows.contiguous()?, reconstruction: reconstruction.contiguous()? };
        let (rest, fused) =
            distillation::beside(latent, projection.parameters(), targets, weights.of_pass(), |fused| {
                comparison.fused = Some(fused.shallow_clone()?);
                Ok::<_, TchError>(rest(&comparison))
            })?;
        comparison.fused = Some(fused);
        Ok((rest?, comparison))
    }

    /// The loss of the task and that of the student, of what was decoded.
    pub fn losses(&self, output: &VgaeOutput, batch: &Batch) -> Result<(VgaeLoss, VgaeKd), ModelError> {
        if let Some(taught) = self.fused.as_ref().filter(|_| is_one_pass(output, batch)) {
            let (task, [total, kd, latent, reconstruction]) = distilled_loss(output, batch, taught)?;
            return Ok((task, VgaeKd { latent, reconstruction, kd, total }));
        }
        let task = task_loss(output, batch)?;
        let kd = self.composed(output, batch.real.as_ref().map(|real| &real.nodes), &task.total)?;
        Ok((task, kd))
    }

    fn composed(&self, output: &VgaeOutput, real: Option<&Mask>, task: &Tensor) -> Result<VgaeKd, ModelError> {
        let Self { projection, taught: [mean, reconstruction], weights, .. } = self;
        let latent = match &self.fused {
            Some(taught) => taught.latent.shallow_clone(),
            None => {
                let projected = widened(&projection.forward(&output.latent, Backend::Composed)?)?;
                masked::squared_distance(&projected, &widened(&mean.gathered()?)?, real)?
            }
        };
        let wanted = widened(&reconstruction.gathered()?)?;
        let reconstruction = masked::squared_distance(&widened(&output.reconstruction)?, &wanted, real)?;
        let kd = latent.f_mul_scalar(weights.latent)?.f_add(&reconstruction.f_mul_scalar(weights.reconstruction)?)?;
        let total = total(&kd, task, weights.alpha)?;
        Ok(VgaeKd { latent, reconstruction, kd, total })
    }

    /// What the values of total, KD and its part for the latent lack where they were taken while the comparison went on.
    pub fn lacking(&self) -> Result<Option<[f64; 3]>, ModelError> {
        let Some(taught) = &self.fused else { return Ok(None) };
        let latent = taught.latent.f_double_value(&[])?;
        let kd = self.weights.latent * latent;
        Ok(Some([self.weights.alpha * kd, kd, latent]))
    }
}

/// α·KD + (1−α)·task.
pub fn total(kd: &Tensor, task: &Tensor, alpha: f64) -> Result<Tensor, ModelError> {
    Ok(kd.f_mul_scalar(alpha)?.f_add(&task.f_mul_scalar(1.0 - alpha)?)?)
}

/// Weights of the two parts of decoupled distillation, as its authors chose them for most of their experiments.
const DKD_TARGET_WEIGHT: f64 = 1.0;
const DKD_OTHERS_WEIGHT: f64 = 8.0;

/// How a student's logits are compared with a teacher's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LogitLoss {
    /// [`soft_labels`]
    SoftLabels { temperature: f64 },
    /// [`decoupled`]
    Decoupled { temperature: f64 },
    /// [`logit_distance`]
    Distance,
}

impl LogitLoss {
    /// Of logits `[num_graphs, classes]` and labels `[num_graphs]`; where the batch is filled up, of its real graphs.
    pub fn of(
        self,
        student: &Tensor,
        teacher: &Tensor,
        labels: &Tensor,
        real: Option<&Mask>,
    ) -> Result<Tensor, ModelError> {
        let (student, teacher) = (&widened(student)?, &widened(teacher)?);
        match self {
            Self::SoftLabels { temperature } => soft_labels(student, teacher, temperature, real),
            Self::Decoupled { temperature } => decoupled(student, teacher, (labels, real), temperature),
            Self::Distance => logit_distance(student, teacher, real),
        }
    }
}

/// Soft-label distillation (Hinton et al. 2015): T²·KL(softmax(teacher/T) ‖ softmax(student/T)), mean over graphs.
/// Logits are `[num_graphs, classes]`.
pub fn soft_labels(
    student: &Tensor,
    teacher: &Tensor,
    temperature: f64,
    real: Option<&Mask>,
) -> Result<Tensor, ModelError> {
    let kind = student.kind();
    let student = student.f_div_scalar(temperature)?.f_log_softmax(-1, kind)?;
    let teacher = teacher.f_div_scalar(temperature)?.f_log_softmax(-1, kind)?;
    divergence(&student, &teacher, temperature, real)
}

/// Decoupled distillation (Zhao et al. 2022): TCKD + 8·NCKD, mean over graphs, times T².
///
/// TCKD is the divergence of (p, 1 − p), p being the probability of the label; NCKD the divergence of the distributions
/// over the other classes alone. Between two classes there is nothing to distribute: NCKD is 0, and the whole equals
/// [`soft_labels`].
pub fn decoupled(
    student: &Tensor,
    teacher: &Tensor,
    (labels, real): (&Tensor, Option<&Mask>),
    temperature: f64,
) -> Result<Tensor, ModelError> {
    let (student, teacher) = (student.f_div_scalar(temperature)?, teacher.f_div_scalar(temperature)?);
    let label = labels.f_unsqueeze(1)?;
    let others = other_classes(&label, student.size()[1])?;
    let target = divergence(
        &label_and_rest(&student, &label, &others)?,
        &label_and_rest(&teacher, &label, &others)?,
        temperature,
        real,
    )?;
    let among_others = |logits: &Tensor| logits.f_gather(1, &others, false)?.f_log_softmax(-1, logits.kind());
    let rest = divergence(&among_others(&student)?, &among_others(&teacher)?, temperature, real)?;
    Ok(target.f_mul_scalar(DKD_TARGET_WEIGHT)?.f_add(&rest.f_mul_scalar(DKD_OTHERS_WEIGHT)?)?)
}

/// Mean squared difference of logits (Kim et al. 2021), over graphs and classes.
pub fn logit_distance(student: &Tensor, teacher: &Tensor, real: Option<&Mask>) -> Result<Tensor, ModelError> {
    Ok(masked::squared_distance(student, teacher, real)?)
}

/// T²·KL(teacher ‖ student) of log probabilities `[num_graphs, classes]`, mean over graphs.
fn divergence(student: &Tensor, teacher: &Tensor, temperature: f64, real: Option<&Mask>) -> Result<Tensor, ModelError> {
    let log_target = true;
    if real.is_some() {
        let by_class = student.f_kl_div(teacher, Reduction::None, log_target)?;
        let of_graphs = by_class.f_sum_dim_intlist([1i64].as_slice(), false, by_class.f_kind()?)?;
        return Ok(masked::mean_of_rows(&of_graphs, real)?.f_mul_scalar(temperature * temperature)?);
    }
    let graphs = student.size()[0].max(1) as f64;
    let divergence = student.f_kl_div(teacher, Reduction::Sum, log_target)?;
    Ok(divergence.f_mul_scalar(temperature * temperature / graphs)?)
}

/// For labels `[num_graphs, 1]`, the classes that are not the label, ascending: `[num_graphs, classes - 1]`.
fn other_classes(label: &Tensor, classes: i64) -> Result<Tensor, ModelError> {
    let position = Tensor::f_arange(classes - 1, (Kind::Int64, label.device()))?.f_unsqueeze(0)?;
    // From the label on, every position stands for the class after it.
    Ok(position.f_add(&position.f_ge_tensor(label)?)?)
}

/// Log probabilities of the label and of all other classes together, `[num_graphs, 2]`.
fn label_and_rest(logits: &Tensor, label: &Tensor, others: &Tensor) -> Result<Tensor, ModelError> {
    let log_probabilities = logits.f_log_softmax(-1, logits.kind())?;
    let rest = log_probabilities.f_gather(1, others, false)?.f_logsumexp([1i64].as_slice(), true)?;
    Ok(Tensor::f_cat(&[log_probabilities.f_gather(1, label, false)?, rest], 1)?)
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    /// Rows of `graphs` × `classes` logits that look random.
    fn logits(graphs: usize, classes: usize, salt: u64) -> Vec<Vec<f64>> {
        let value =
            |index: u64| 6.0 * kdgat_base::random::unit(salt, kdgat_base::random::Purpose::Step, 0, index) - 3.0;
        let row = |graph: usize| (0..classes).map(|class| value((graph * classes + class) as u64)).collect();
        (0..graphs).map(row).collect()
    }

    fn softmax(row: &[f64], temperature: f64) -> Vec<f64> {
        let exponentials: Vec<f64> = row.iter().map(|logit| (logit / temperature).exp()).collect();
        let sum: f64 = exponentials.iter().sum();
        exponentials.iter().map(|value| value / sum).collect()
    }

    fn kl(teacher: &[f64], student: &[f64]) -> f64 {
        teacher.iter().zip(student).map(|(t, s)| t * (t / s).ln()).sum()
    }

    /// TCKD and NCKD of a graph, as the paper writes them: probabilities first, then renormalised.
    fn decoupled_parts(student: &[f64], teacher: &[f64], label: usize, temperature: f64) -> (f64, f64) {
        let (student, teacher) = (softmax(student, temperature), softmax(teacher, temperature));
        let binary = |p: &[f64]| [p[label], 1.0 - p[label]];
        let others = |p: &[f64]| -> Vec<f64> {
            let rest = (0..p.len()).filter(|&class| class != label);
            rest.map(|class| p[class] / (1.0 - p[label])).collect()
        };
        (kl(&binary(&teacher), &binary(&student)), kl(&others(&teacher), &others(&student)))
    }

    fn assert_loss(what: &str, loss: LogitLoss, classes: usize, expected: impl Fn(&[f64], &[f64], usize) -> f64) {
        let (student, teacher) = (logits(7, classes, 1), logits(7, classes, 2));
        let labels: Vec<i64> = (0..7).map(|graph| (graph % classes) as i64).collect();
        let tensor = |rows: &[Vec<f64>]| Tensor::from_slice2(rows);
        let found = loss.of(&tensor(&student), &tensor(&teacher), &Tensor::from_slice(&labels), None).unwrap();
        let terms = (0..7).map(|graph| expected(&student[graph], &teacher[graph], labels[graph] as usize));
        let expected = terms.sum::<f64>() / 7.0;
        let found = found.double_value(&[]);
        assert!((found - expected).abs() < 1e-9, "{what}, {classes} classes: {found} instead of {expected}");
    }

    #[test]
    fn losses_equal_their_formulas() {
        for classes in [2, 3, 6] {
            let temperature = 4.0;
            assert_loss("kl", LogitLoss::SoftLabels { temperature }, classes, |student, teacher, _| {
                16.0 * kl(&softmax(teacher, 4.0), &softmax(student, 4.0))
            });
            assert_loss("dkd", LogitLoss::Decoupled { temperature }, classes, |student, teacher, label| {
                let (target, others) = decoupled_parts(student, teacher, label, 4.0);
                16.0 * (target + 8.0 * others)
            });
            assert_loss("mse", LogitLoss::Distance, classes, |student, teacher, _| {
                let squares = student.iter().zip(teacher).map(|(s, t)| (s - t) * (s - t));
                squares.sum::<f64>() / student.len() as f64
            });
        }
    }

    #[test]
    fn graphs_that_fill_a_batch_up_count_for_nothing() {
        let [student, teacher] = [6, 7].map(|salt| Tensor::from_slice2(&logits(5, 3, salt)));
        let labels = Tensor::from_slice(&[0i64, 2, 1, 0, 0]);
        let real = Mask::of(3, 5, Device::Cpu).unwrap();
        let temperature = 2.0;
        for loss in [LogitLoss::SoftLabels { temperature }, LogitLoss::Decoupled { temperature }, LogitLoss::Distance] {
            let first = |tensor: &Tensor| tensor.narrow(0, 0, 3);
            let expected = loss.of(&first(&student), &first(&teacher), &first(&labels), None).unwrap();
            let found = loss.of(&student, &teacher, &labels, Some(&real)).unwrap();
            assert!((found - &expected).abs().double_value(&[]) < 1e-6, "{loss:?} instead of {expected}");
        }
    }

    #[test]
    fn decoupling_two_classes_changes_nothing() {
        let [student, teacher] = [logits(5, 2, 3), logits(5, 2, 4)].map(|rows| Tensor::from_slice2(&rows));
        let labels = Tensor::from_slice(&[0i64, 1, 1, 0, 1]);
        let decoupled = decoupled(&student, &teacher, (&labels, None), 2.0).unwrap().double_value(&[]);
        let whole = soft_labels(&student, &teacher, 2.0, None).unwrap().double_value(&[]);
        assert!((decoupled - whole).abs() < 1e-12, "{decoupled} and {whole}");
    }

    #[test]
    fn an_equal_student_has_nothing_to_learn() {
        let both = Tensor::from_slice2(&logits(4, 3, 5));
        let labels = Tensor::zeros([4], (Kind::Int64, Device::Cpu));
        let temperature = 3.0;
        for loss in [LogitLoss::SoftLabels { temperature }, LogitLoss::Decoupled { temperature }, LogitLoss::Distance] {
            assert!(loss.of(&both, &both, &labels, None).unwrap().double_value(&[]).abs() < 1e-12, "{loss:?}");
        }
    }
}
