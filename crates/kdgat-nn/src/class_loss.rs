//! Losses of a classifier against labels.

use kdgat_graph::padding::Mask;
use tch::{Device, Kind, Reduction, Tensor};

use super::{ModelError, masked};

/// Lower bound of 1 − p in the focal loss, below the resolution of f32 for a certain prediction.
const SMALLEST_DOUBT: f64 = 1e-12;

/// Task loss of a classifier.
#[derive(Debug)]
pub enum ClassLoss {
    /// Cross entropy.
    CrossEntropy,
    /// Cross entropy with a weight per class: Σ w·CE / Σ w over the batch.
    Weighted(ClassWeights),
    /// Focal loss (1 − p)^γ · CE, where p is the probability of the label: easy graphs count little (Lin et al. 2017).
    Focal {
        /// The exponent γ.
        gamma: f64,
    },
}

/// Weight of each class.
#[derive(Debug)]
pub struct ClassWeights {
    /// Weights, `[classes]`.
    by_class: Tensor,
    /// Mean weight over all validation graphs.
    validation_mean: f64,
}

impl ClassLoss {
    /// Creates weights by which all classes count equally: training graphs / (classes · training graphs of the class).
    /// A class without training graphs has weight 0.
    pub fn balanced(
        training_by_class: &[usize],
        validation_by_class: &[usize],
        device: Device,
    ) -> Result<Self, ModelError> {
        let (total, classes) = (training_by_class.iter().sum::<usize>() as f32, training_by_class.len() as f32);
        let weight = |&graphs: &usize| if graphs == 0 { 0.0 } else { total / (classes * graphs as f32) };
        let weights: Vec<f32> = training_by_class.iter().map(weight).collect();
        let weighed =
            weights.iter().zip(validation_by_class).map(|(&weight, &graphs)| f64::from(weight) * graphs as f64);
        let validation_mean = weighed.sum::<f64>() / validation_by_class.iter().sum::<usize>().max(1) as f64;
        let by_class = Tensor::f_from_slice(&weights)?.f_to_device(device)?;
        Ok(Self::Weighted(ClassWeights { by_class, validation_mean }))
    }

    /// Mean loss of a batch of validation graphs. The means of all batches, each times its share of the graphs, add up
    /// to the mean over all validation graphs, whatever the batch size. `real`: the mask of a padded batch's graphs.
    pub fn of_validation(&self, logits: &Tensor, labels: &Tensor, real: Option<&Mask>) -> Result<Tensor, ModelError> {
        let Self::Weighted(ClassWeights { by_class, validation_mean }) = self else {
            return self.of(logits, labels, real);
        };
        // If no validation graph has a weight, the sum is 0 as well.
        let mean_weight = if *validation_mean > 0.0 { *validation_mean } else { 1.0 };
        let of = |reduction| cross_entropy(&logits.f_to_kind(Kind::Float)?, labels, Some(by_class), reduction);
        Ok(match real {
            None => of(Reduction::Sum)?.f_div_scalar(labels.size()[0] as f64 * mean_weight)?,
            Some(_) => masked::mean_of_rows(&of(Reduction::None)?, real)?.f_div_scalar(mean_weight)?,
        })
    }

    /// Like [`ClassLoss::of`], for graphs that are part of a batch with the labels `whole`: the means of all parts,
    /// each times its share of the graphs, add up to the mean of the batch.
    pub fn of_part(&self, logits: &Tensor, labels: &Tensor, whole: Option<&Tensor>) -> Result<Tensor, ModelError> {
        let loss = self.of(logits, labels, None)?;
        match (self, whole) {
            (Self::Weighted(ClassWeights { by_class, .. }), Some(whole)) if whole.size() != labels.size() => {
                let mean_weight = |labels: &Tensor| by_class.f_index_select(0, labels)?.f_mean(None);
                Ok(loss.f_mul(&mean_weight(labels)?)?.f_div(&mean_weight(whole)?)?)
            }
            _ => Ok(loss),
        }
    }

    /// Sum of the weights of the labels `[num_graphs]`; 0 for a loss without weights.
    pub fn weight_of(&self, labels: &Tensor) -> Result<f64, ModelError> {
        match self {
            Self::Weighted(ClassWeights { by_class, .. }) => {
                Ok(by_class.f_index_select(0, labels)?.f_sum(Kind::Double)?.f_double_value(&[])?)
            }
            Self::CrossEntropy | Self::Focal { .. } => Ok(0.0),
        }
    }

    /// Like [`ClassLoss::of_part`], for a batch whose labels have this mean weight.
    pub fn of_share(&self, logits: &Tensor, labels: &Tensor, mean_weight: f64) -> Result<Tensor, ModelError> {
        let Self::Weighted(ClassWeights { by_class, .. }) = self else { return self.of(logits, labels, None) };
        let sum = cross_entropy(&logits.f_to_kind(Kind::Float)?, labels, Some(by_class), Reduction::Sum)?;
        Ok(sum.f_div_scalar(labels.size()[0] as f64 * mean_weight)?)
    }

    /// Mean loss over graphs, for logits `[num_graphs, classes]` and labels `[num_graphs]`; over the real graphs if the
    /// batch is padded.
    pub fn of(&self, logits: &Tensor, labels: &Tensor, real: Option<&Mask>) -> Result<Tensor, ModelError> {
        let logits = &logits.f_to_kind(Kind::Float)?;
        Ok(match (self, real) {
            (Self::CrossEntropy, _) => masked::cross_entropy(logits, labels, real)?,
            (Self::Weighted(ClassWeights { by_class, .. }), None) => {
                cross_entropy(logits, labels, Some(by_class), Reduction::Mean)?
            }
            (Self::Weighted(ClassWeights { by_class, .. }), Some(_)) => {
                let weighted = cross_entropy(logits, labels, Some(by_class), Reduction::None)?;
                let weights = by_class.f_index_select(0, labels)?;
                masked::mean_of_rows(&weighted, real)?.f_div(&masked::mean_of_rows(&weights, real)?)?
            }
            (Self::Focal { gamma }, _) => {
                let surprise = cross_entropy(logits, labels, None, Reduction::None)?;
                masked::mean_of_rows(&focal(&surprise, *gamma)?, real)?
            }
        })
    }
}

/// The focal loss of each graph, from its cross entropy; `[num_graphs]` both.
fn focal(surprise: &Tensor, gamma: f64) -> Result<Tensor, ModelError> {
    // 1 − exp(−CE) without cancellation for small CE.
    let doubt = surprise.f_neg()?.f_expm1()?.f_neg()?;
    // For CE = 0 and γ < 1, the derivative of doubt^γ is infinite, and its product with CE is NaN.
    let doubt = doubt.f_clamp_min(SMALLEST_DOUBT)?;
    Ok(doubt.f_pow_tensor_scalar(gamma)?.f_mul(surprise)?)
}

fn cross_entropy(
    logits: &Tensor,
    labels: &Tensor,
    weights: Option<&Tensor>,
    reduction: Reduction,
) -> Result<Tensor, ModelError> {
    let (ignored_label, smoothing) = (-100, 0.0);
    Ok(logits.f_cross_entropy_loss(labels, weights, reduction, ignored_label, smoothing)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [[f32; 2]; 4] = [[2.0, -1.0], [0.3, 0.1], [-3.0, 1.5], [0.0, 4.0]];
    const LABELS: [i64; 4] = [0, 1, 1, 0];

    /// Probability of each graph's label.
    fn probabilities() -> Vec<f64> {
        let softmax = |row: &[f32; 2], label: i64| {
            let exponentials = row.map(|logit| f64::from(logit).exp());
            exponentials[label as usize] / exponentials.iter().sum::<f64>()
        };
        LOGITS.iter().zip(LABELS).map(|(row, label)| softmax(row, label)).collect()
    }

    fn assert_loss(loss: &ClassLoss, expected: f64) {
        let found =
            loss.of(&Tensor::from_slice2(&LOGITS), &Tensor::from_slice(&LABELS), None).unwrap().double_value(&[]);
        assert!((found - expected).abs() < 1e-6, "{loss:?}: {found} instead of {expected}");
    }

    #[test]
    fn losses_equal_their_formulas() {
        let probabilities = probabilities();
        let entropies: Vec<f64> = probabilities.iter().map(|p| -p.ln()).collect();
        assert_loss(&ClassLoss::CrossEntropy, entropies.iter().sum::<f64>() / 4.0);

        // 30 normal graphs, 10 attacks: weights 40 / (2 · 30) and 40 / (2 · 10).
        let weights = [2.0 / 3.0, 2.0];
        let by_label = |index: usize| weights[LABELS[index] as usize];
        let weighted: f64 = (0..4).map(|index| by_label(index) * entropies[index]).sum();
        let expected = weighted / (0..4).map(by_label).sum::<f64>();
        assert_loss(&ClassLoss::balanced(&[30, 10], &[2, 2], Device::Cpu).unwrap(), expected);

        for gamma in [0.0, 2.0, 0.5] {
            let terms = probabilities.iter().zip(&entropies).map(|(p, entropy)| (1.0 - p).powf(gamma) * entropy);
            assert_loss(&ClassLoss::Focal { gamma }, terms.sum::<f64>() / 4.0);
        }
    }

    #[test]
    fn padding_graphs_do_not_count() {
        let real = Mask::of(3, 4, Device::Cpu).unwrap();
        let (logits, labels) = (Tensor::from_slice2(&LOGITS), Tensor::from_slice(&LABELS));
        let weighted = ClassLoss::balanced(&[30, 10], &[2, 2], Device::Cpu).unwrap();
        for loss in [ClassLoss::CrossEntropy, weighted, ClassLoss::Focal { gamma: 2.0 }] {
            let expected = loss.of(&logits.narrow(0, 0, 3), &labels.narrow(0, 0, 3), None).unwrap().double_value(&[]);
            let found = loss.of(&logits, &labels, Some(&real)).unwrap().double_value(&[]);
            assert!((found - expected).abs() < 1e-6, "{loss:?}: {found} instead of {expected}");
        }
    }

    #[test]
    fn a_sure_prediction_has_a_gradient() {
        for gamma in [0.0, 0.5, 1.0, 2.0] {
            let logits = Tensor::from_slice2(&[[60.0_f32, -60.0], [0.5, 0.2]]).set_requires_grad(true);
            let loss = ClassLoss::Focal { gamma }.of(&logits, &Tensor::from_slice(&[0_i64, 1]), None).unwrap();
            loss.backward();
            let gradient: Vec<f32> = Vec::try_from(logits.grad().flatten(0, 1)).unwrap();
            assert!(gradient.iter().all(|value| value.is_finite()), "gamma {gamma}: {gradient:?}");
            assert!(gradient[..2].iter().all(|value| value.abs() < 1e-6) && gradient[3] < -0.1, "{gradient:?}");
        }
    }

    #[test]
    fn a_class_without_graphs_weighs_nothing() {
        let loss = ClassLoss::balanced(&[5, 0], &[0, 4], Device::Cpu).unwrap();
        let ClassLoss::Weighted(weights) = &loss else { panic!() };
        assert_eq!(Vec::<f32>::try_from(&weights.by_class).unwrap(), [0.5, 0.0]);
        let logits = Tensor::from_slice2(&LOGITS);
        assert_eq!(loss.of_validation(&logits, &Tensor::from_slice(&[1_i64; 4]), None).unwrap().double_value(&[]), 0.0);
    }

    #[test]
    fn validation_does_not_depend_on_its_batches() {
        let (logits, labels) = (Tensor::from_slice2(&LOGITS), Tensor::from_slice(&LABELS));
        let loss = ClassLoss::balanced(&[30, 10], &[2, 2], Device::Cpu).unwrap();
        let whole = loss.of(&logits, &labels, None).unwrap().double_value(&[]);
        for graphs in [1, 2, 3, 4] {
            let part = |start: i64| {
                let count = graphs.min(4 - start);
                let part = loss.of_validation(&logits.narrow(0, start, count), &labels.narrow(0, start, count), None);
                part.unwrap().double_value(&[]) * count as f64 / 4.0
            };
            let sum: f64 = (0..4).step_by(graphs as usize).map(part).sum();
            assert!((sum - whole).abs() < 1e-6, "{graphs} a batch: {sum} instead of {whole}");
        }
        // Nor on padding.
        let padded = |tensor: &Tensor| Tensor::cat(&[tensor, &tensor.narrow(0, 0, 3)], 0);
        let real = Mask::of(4, 7, Device::Cpu).unwrap();
        let found = loss.of_validation(&padded(&logits), &padded(&labels), Some(&real)).unwrap().double_value(&[]);
        assert!((found - whole).abs() < 1e-6, "{found} instead of {whole}");
    }
}
