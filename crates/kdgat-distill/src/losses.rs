//! Distillation losses: `total = α·KD + (1−α)·task`. The teacher's outputs carry no gradient.
//!
//! The formulas stand here once, on scalar tensors. [`super::vgae_terms`] computes the terms of a VGAE's loss, by torch's operations
//! or by fused passes that take their gradients from [`VgaeWeights::derivatives`].

use tch::{Kind, Reduction, TchError, Tensor};

use kdgat_graph::padding::Mask;
use kdgat_nn::fused::distillation::Derivatives;
use kdgat_nn::{ModelError, masked};
use kdgat_torch::autocast::widened;

pub use super::vgae_terms::{Projection, VgaeKd, VgaeTaught, vgae};

/// Mixes distillation and task (Hinton et al. 2015): α·KD + (1−α)·task.
pub fn total(kd: &Tensor, task: &Tensor, alpha: f64) -> Result<Tensor, TchError> {
    kd.f_mul_scalar(alpha)?.f_add(&task.f_mul_scalar(1.0 - alpha)?)
}

/// Weights of a VGAE's distillation (Frenken et al. 2025).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VgaeWeights {
    /// α: weight of the distillation in the total loss.
    pub alpha: f64,
    /// w_z: weight of the distance between latents.
    pub latent: f64,
    /// w_x: weight of the distance between reconstructions.
    pub reconstruction: f64,
}

impl VgaeWeights {
    /// KD = w_z·MSE(P·z_student, μ_teacher) + w_x·MSE(x̂_student, x̂_teacher); the second term alone if latents are not compared.
    pub fn kd(self, latent: Option<&Tensor>, reconstruction: &Tensor) -> Result<Tensor, TchError> {
        let reconstruction = reconstruction.f_mul_scalar(self.reconstruction)?;
        latent.map_or(Ok(reconstruction.shallow_clone()), |latent| {
            latent.f_mul_scalar(self.latent)?.f_add(&reconstruction)
        })
    }

    /// Derivatives of the [`total`] by the task and by the two terms of [`Self::kd`].
    pub fn derivatives(self) -> Derivatives {
        let Self { alpha, latent, reconstruction } = self;
        Derivatives { task: 1.0 - alpha, latent: alpha * latent, reconstruction: alpha * reconstruction }
    }
}

/// Weights of the two terms of decoupled distillation that its authors chose for most of their experiments.
const DKD_TARGET_WEIGHT: f64 = 1.0;
const DKD_OTHERS_WEIGHT: f64 = 8.0;

/// Loss between a student's logits and its teacher's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LogitLoss {
    /// [`soft_labels`]
    SoftLabels {
        /// T: both distributions are softmax(logits / T).
        temperature: f64,
    },
    /// [`decoupled`]
    Decoupled {
        /// T: both distributions are softmax(logits / T).
        temperature: f64,
    },
    /// [`logit_distance`]
    Distance,
}

impl LogitLoss {
    /// Computes the loss from logits `[num_graphs, classes]` and labels `[num_graphs]`; of a padded batch, from its real graphs.
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

/// Consistency of a network under dropout (Feng et al. 2020, "Graph Random Neural Networks for Semi-Supervised Learning on Graphs", GRAND):
/// the squared distance of each view's class probabilities from their sharpened mean, summed over classes, mean over views and nodes.
///
/// ```text
/// p̄ = mean of the views' p,   p' = p̄^(1/T) / Σ p̄^(1/T),   loss = mean of Σ (p − p')²
/// ```
///
/// Logits are `[num_nodes, classes]`, one tensor for each view. p' carries no gradient.
pub fn consistency(views: &[Tensor], temperature: f64) -> Result<Tensor, ModelError> {
    let probabilities = views.iter().map(|logits| logits.f_softmax(-1, Kind::Float)).collect::<Result<Vec<_>, _>>()?;
    let probabilities = Tensor::f_stack(&probabilities, 0)?;
    let mean = probabilities.f_detach()?.f_mean_dim([0i64].as_slice(), false, Kind::Float)?;
    let sharpened = mean.f_log()?.f_div_scalar(temperature)?.f_softmax(-1, Kind::Float)?;
    let distance = probabilities.f_sub(&sharpened)?.f_square()?;
    Ok(distance.f_sum_dim_intlist([-1i64].as_slice(), false, Kind::Float)?.f_mean(Kind::Float)?)
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

/// Lists for labels `[num_graphs, 1]` the classes that are not the label, ascending: `[num_graphs, classes - 1]`.
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

/// Most rows of a batch that a loss compares in pairs.
const MOST_PAIRED_ROWS: i64 = 1024;

/// Loss between a student's embeddings of graphs and its teacher's, `[num_graphs, columns]` each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum EmbeddingLoss {
    /// 1 − cos(student, teacher), mean over graphs.
    Cosine,
    /// Mean squared difference, over graphs and columns.
    Distance,
    /// [`contrastive`]
    Contrastive {
        /// τ: cosines are divided by it.
        temperature: f64,
    },
    /// [`relational`]
    Relational,
}

impl EmbeddingLoss {
    /// Computes the loss of a batch.
    pub fn of(self, student: &Tensor, teacher: &Tensor) -> Result<Tensor, ModelError> {
        let student = &widened(student)?;
        Ok(match self {
            Self::Cosine => {
                let cosines = unit_rows(student)?.f_mul(&unit_rows(teacher)?)?;
                let cosines = cosines.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Float)?;
                cosines.f_mean(Kind::Float)?.f_neg()?.f_add_scalar(1.0)?
            }
            Self::Distance => masked::squared_distance(student, teacher, None)?,
            Self::Contrastive { temperature } => contrastive(student, teacher, temperature)?,
            Self::Relational => relational(student, teacher)?,
        })
    }
}

/// Contrastive distillation (G-CRD, Joshi et al. 2022): the cross entropy of finding each graph's teacher row among those of the batch,
/// by softmax(cos(student_i, teacher_j) / τ) over j; over the first 1,024 graphs of a larger batch.
pub fn contrastive(student: &Tensor, teacher: &Tensor, temperature: f64) -> Result<Tensor, ModelError> {
    let [student, teacher] = [first_rows(student)?, first_rows(teacher)?];
    let cosines = unit_rows(&student)?.f_matmul(&unit_rows(&teacher)?.f_transpose(0, 1)?)?;
    let own = Tensor::f_arange(cosines.size()[0], (Kind::Int64, cosines.device()))?;
    let (ignored_label, smoothing) = (-100, 0.0);
    let logits = cosines.f_div_scalar(temperature)?;
    Ok(logits.f_cross_entropy_loss(&own, None::<&Tensor>, Reduction::Mean, ignored_label, smoothing)?)
}

/// Relational distillation (Park et al. 2019; Tung & Mori 2019): mean squared difference between the cosines of all pairs of graphs, by
/// the student's rows and by the teacher's; over the first 1,024 graphs of a larger batch.
pub fn relational(student: &Tensor, teacher: &Tensor) -> Result<Tensor, ModelError> {
    let cosines = |rows: &Tensor| -> Result<Tensor, TchError> {
        let rows = unit_rows(&first_rows(rows)?)?;
        rows.f_matmul(&rows.f_transpose(0, 1)?)
    };
    Ok(cosines(student)?.f_mse_loss(&cosines(teacher)?, Reduction::Mean)?)
}

fn first_rows(rows: &Tensor) -> Result<Tensor, TchError> {
    rows.f_narrow(0, 0, rows.size()[0].min(MOST_PAIRED_ROWS))
}

/// Rows divided by their lengths.
fn unit_rows(rows: &Tensor) -> Result<Tensor, TchError> {
    let (smallest, columns) = (1e-8, [1i64]);
    rows.f_div(&rows.f_norm_scalaropt_dim(2.0, columns, true)?.f_clamp_min(smallest)?)
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

    /// Two views of two nodes, as the paper writes the loss: probabilities, their mean, and its powers, renormalised.
    #[test]
    fn consistency_is_the_distance_from_the_sharpened_mean() {
        let views = [logits(2, 3, 1), logits(2, 3, 2)];
        let temperature = 0.4;
        let mut expected = 0.0;
        for node in 0..2 {
            let probabilities = views.each_ref().map(|view| softmax(&view[node], 1.0));
            let powers: Vec<f64> = (0..3)
                .map(|class| (probabilities.iter().map(|p| p[class]).sum::<f64>() / 2.0).powf(1.0 / temperature))
                .collect();
            let sum: f64 = powers.iter().sum();
            for p in &probabilities {
                expected += p.iter().zip(&powers).map(|(p, power)| (p - power / sum).powi(2)).sum::<f64>() / 4.0;
            }
        }
        let tensors =
            views.each_ref().map(|view| Tensor::from_slice2(view).to_kind(Kind::Float).set_requires_grad(true));
        let loss = consistency(&tensors, temperature).unwrap();
        assert!((loss.double_value(&[]) - expected).abs() < 1e-6, "{loss:?} against {expected}");
        loss.backward();
        assert!(tensors.iter().all(|view| view.grad().abs().sum(Kind::Float).double_value(&[]) > 0.0));
        // Equal views whose probabilities are sharp already have nothing to learn.
        let sharp = Tensor::from_slice(&[60.0f32, 0.0, -60.0]).view([1, 3]);
        let loss = consistency(&[sharp.shallow_clone(), sharp], temperature).unwrap();
        assert!(loss.double_value(&[]) < 1e-12);
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
    fn derivatives_are_those_of_the_total() {
        let weights = VgaeWeights { alpha: 0.7, latent: 0.5, reconstruction: 0.3 };
        let terms = [1.5, 2.0, 0.25].map(|value| Tensor::from(value).set_requires_grad(true));
        let [task, latent, reconstruction] = &terms;
        total(&weights.kd(Some(latent), reconstruction).unwrap(), task, weights.alpha).unwrap().backward();
        let Derivatives { task, latent, reconstruction } = weights.derivatives();
        for (term, derivative) in terms.iter().zip([task, latent, reconstruction]) {
            let gradient = term.grad().double_value(&[]);
            assert!((gradient - derivative).abs() < 1e-12, "{gradient} instead of {derivative}");
        }
    }

    #[test]
    fn padded_graphs_do_not_change_a_loss() {
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

    #[test]
    fn losses_of_embeddings_equal_their_formulas() {
        let [student, teacher] = [logits(5, 4, 8), logits(5, 4, 9)];
        let dot = |one: &[f64], other: &[f64]| one.iter().zip(other).map(|(a, b)| a * b).sum::<f64>();
        let cos = |one: &[f64], other: &[f64]| dot(one, other) / (dot(one, one) * dot(other, other)).sqrt();
        let graphs = || 0..5usize;
        let pairs = || graphs().flat_map(|one| graphs().map(move |other| (one, other)));
        let entropy = |graph: usize| {
            let all = graphs().map(|other| (cos(&student[graph], &teacher[other]) / 0.5).exp()).sum::<f64>();
            all.ln() - cos(&student[graph], &teacher[graph]) / 0.5
        };
        let difference = |(one, other): (usize, usize)| {
            (cos(&student[one], &student[other]) - cos(&teacher[one], &teacher[other])).powi(2)
        };
        let expected = [
            (
                EmbeddingLoss::Cosine,
                graphs().map(|graph| 1.0 - cos(&student[graph], &teacher[graph])).sum::<f64>() / 5.0,
            ),
            (EmbeddingLoss::Contrastive { temperature: 0.5 }, graphs().map(entropy).sum::<f64>() / 5.0),
            (EmbeddingLoss::Relational, pairs().map(difference).sum::<f64>() / 25.0),
        ];
        let [student, teacher] = [&student, &teacher].map(|rows| Tensor::from_slice2(rows).to_kind(Kind::Float));
        for (loss, expected) in expected {
            let found = loss.of(&student, &teacher).unwrap().double_value(&[]);
            assert!((found - expected).abs() < 1e-5, "{loss:?}: {found} instead of {expected}");
        }
        for loss in [EmbeddingLoss::Cosine, EmbeddingLoss::Distance, EmbeddingLoss::Relational] {
            assert!(loss.of(&teacher, &teacher).unwrap().double_value(&[]).abs() < 1e-6, "{loss:?}");
        }
    }
}
