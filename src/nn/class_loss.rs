//! Losses of a classifier against labels.

use tch::{Device, Kind, Reduction, Tensor};

use super::ModelError;

/// What a classifier's task loss is.
#[derive(Debug)]
pub enum ClassLoss {
    /// Cross entropy.
    CrossEntropy,
    /// Cross entropy in which each class counts by its weight, `[classes]`: Σ w·CE / Σ w over the batch.
    Weighted(Tensor),
    /// (1 − p)^γ · CE, p being the probability of the label: what is easy counts little (Lin et al. 2017).
    Focal { gamma: f64 },
}

impl ClassLoss {
    /// Weights that make all classes count the same: graphs / (classes · graphs of the class). A class without
    /// graphs has weight 0.
    pub fn balanced(graphs_by_class: &[usize], device: Device) -> Result<Self, ModelError> {
        let (total, classes) = (graphs_by_class.iter().sum::<usize>() as f32, graphs_by_class.len() as f32);
        let weight = |&graphs: &usize| if graphs == 0 { 0.0 } else { total / (classes * graphs as f32) };
        let weights: Vec<f32> = graphs_by_class.iter().map(weight).collect();
        Ok(Self::Weighted(Tensor::f_from_slice(&weights)?.f_to_device(device)?))
    }

    /// As [`ClassLoss::of`], for graphs that are part of a batch with the labels `whole`: the means of all parts, each
    /// times its share of the graphs, add up to the mean of the whole.
    pub fn of_part(&self, logits: &Tensor, labels: &Tensor, whole: Option<&Tensor>) -> Result<Tensor, ModelError> {
        let loss = self.of(logits, labels)?;
        match (self, whole) {
            (Self::Weighted(weights), Some(whole)) if whole.size() != labels.size() => {
                let mean_weight = |labels: &Tensor| weights.f_index_select(0, labels)?.f_mean(None);
                Ok(loss.f_mul(&mean_weight(labels)?)?.f_div(&mean_weight(whole)?)?)
            }
            _ => Ok(loss),
        }
    }

    /// Mean over graphs: logits `[num_graphs, classes]`, labels `[num_graphs]`.
    pub fn of(&self, logits: &Tensor, labels: &Tensor) -> Result<Tensor, ModelError> {
        let logits = logits.f_to_kind(Kind::Float)?;
        let cross_entropy = |weights: Option<&Tensor>, reduction| {
            let (ignored_label, smoothing) = (-100, 0.0);
            logits.f_cross_entropy_loss(labels, weights, reduction, ignored_label, smoothing)
        };
        Ok(match self {
            Self::CrossEntropy => cross_entropy(None, Reduction::Mean)?,
            Self::Weighted(weights) => cross_entropy(Some(weights), Reduction::Mean)?,
            Self::Focal { gamma } => {
                let surprise = cross_entropy(None, Reduction::None)?;
                // 1 − exp(−CE) without cancellation where CE is small.
                let doubt = surprise.f_neg()?.f_expm1()?.f_neg()?;
                doubt.f_pow_tensor_scalar(*gamma)?.f_mul(&surprise)?.f_mean(None)?
            }
        })
    }
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
        let found = loss.of(&Tensor::from_slice2(&LOGITS), &Tensor::from_slice(&LABELS)).unwrap().double_value(&[]);
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
        assert_loss(&ClassLoss::balanced(&[30, 10], Device::Cpu).unwrap(), expected);

        for gamma in [0.0, 2.0, 0.5] {
            let terms = probabilities.iter().zip(&entropies).map(|(p, entropy)| (1.0 - p).powf(gamma) * entropy);
            assert_loss(&ClassLoss::Focal { gamma }, terms.sum::<f64>() / 4.0);
        }
    }

    #[test]
    fn a_class_without_graphs_weighs_nothing() {
        let ClassLoss::Weighted(weights) = ClassLoss::balanced(&[5, 0], Device::Cpu).unwrap() else { panic!() };
        assert_eq!(Vec::<f32>::try_from(&weights).unwrap(), [0.5, 0.0]);
    }
}
