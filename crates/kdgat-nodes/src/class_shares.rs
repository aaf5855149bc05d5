//! Correction of class probabilities for the shares that the classes have among all nodes.
//!
//! Twenty labelled nodes of each class say nothing about the frequencies of the classes, and a teacher that learned from them takes all
//! classes for equally frequent. The real shares π can be found without a further label ("label shift"): from the mean `q` of the teacher's
//! probabilities over the nodes whose class is not known, and its confusions `C` on validation nodes,
//!
//! ```text
//! q[i] = Σⱼ C[i, j]·π[j],   C[i, j] = mean probability of class i over the validation nodes of class j
//! ```
//!
//! (Lipton, Wang & Smola 2018, "Detecting and Correcting for Label Shift with Black Box Predictors"), solved by expectation maximisation, so
//! that no share falls below zero. Then `p'(c | x) ∝ p(c | x)·π[c]/ρ[c]`, where ρ are the shares of the training nodes. All `p` are
//! `p₀^(1/T)`, scaled to a sum of 1, with the temperature `T` that makes the validation labels most likely (Guo et al. 2017): a teacher
//! that is too sure would be corrected too little, and one that is not sure enough too far.

use std::sync::Arc;

/// Steps of expectation maximisation. Ten times as many change no share of cora, citeseer and amazon computers by 0.001.
const SHARE_STEPS: usize = 2000;
/// Smallest and largest temperature that is tried.
const TEMPERATURES: (f64, f64) = (0.05, 20.0);
/// Temperatures that are tried, in equal ratios (5 % apart).
const TEMPERATURE_STEPS: usize = 124;
/// Smallest probability whose logarithm is taken.
const LEAST_PROBABILITY: f64 = 1e-30;

/// The labels that a correction reads.
#[derive(Debug, Clone)]
pub struct ShareCorrection {
    /// `[num_nodes]`: the class of each validation node; negative for all other nodes.
    pub validation: Arc<Vec<i64>>,
    /// `[num_nodes]`: the class of each labelled training node; negative for all other nodes.
    pub training: Arc<Vec<i64>>,
    /// `[num_nodes]`: false for nodes that training must not know; `None` if it may know all.
    pub visible: Option<Arc<Vec<bool>>>,
}

/// The shares of the classes among the nodes whose class is not known, and the temperature of the probabilities.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassShares {
    /// π, `[classes]`; the sum is 1.
    pub shares: Vec<f64>,
    /// π/ρ, `[classes]`; 1 for a class that is not corrected.
    pub factors: Vec<f64>,
    /// T.
    pub temperature: f64,
}

impl ShareCorrection {
    /// A description that differs for other targets of the same teacher.
    pub fn describe(&self) -> String {
        let mut labels = blake3::Hasher::new();
        self.validation.iter().chain(self.training.iter()).for_each(|label| {
            labels.update(&label.to_le_bytes());
        });
        format!("corrected for class shares, labels {}", &labels.finalize().to_hex()[..12])
    }

    /// The shares and the temperature that `probabilities`, `[num_nodes, classes]`, lead to. Nothing is corrected for a class without a
    /// training node or without a validation node, or if the class of all nodes is known.
    pub fn estimate(&self, probabilities: &[f32], classes: usize) -> ClassShares {
        let temperature = self.best_temperature(probabilities, classes);
        let (mut of_training, mut of_validation) = (vec![0.0f64; classes], vec![0.0f64; classes]);
        let (mut confusions, mut predicted) = (vec![0.0f64; classes * classes], vec![0.0f64; classes]);
        let labels = self.validation.iter().zip(self.training.iter());
        for (node, (row, (&validation, &training))) in
            probabilities.chunks_exact(classes.max(1)).zip(labels).enumerate()
        {
            if self.visible.as_ref().is_some_and(|visible| !visible[node]) {
                continue;
            }
            if training >= 0 {
                of_training[training as usize] += 1.0;
                continue;
            }
            let sums = if validation >= 0 {
                of_validation[validation as usize] += 1.0;
                &mut confusions[validation as usize * classes..][..classes]
            } else {
                &mut predicted
            };
            let row = tempered(row, temperature);
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
        confusions.chunks_exact_mut(classes.max(1)).for_each(|row| {
            scale_to_one(row);
        });
        scale_to_one(&mut of_training);
        let is_known = scale_to_one(&mut predicted);
        let has_labels = |class: usize| is_known && of_training[class] > 0.0 && of_validation[class] > 0.0;
        let shares = shares_behind(&predicted, &confusions);
        let factors =
            (0..classes).map(|class| if has_labels(class) { shares[class] / of_training[class] } else { 1.0 });
        ClassShares { factors: factors.collect(), shares, temperature }
    }

    /// T: the temperature with which the validation labels are most likely.
    fn best_temperature(&self, probabilities: &[f32], classes: usize) -> f64 {
        let rows: Vec<(Vec<f64>, usize)> = probabilities
            .chunks_exact(classes.max(1))
            .zip(self.validation.iter())
            .filter(|(_, label)| **label >= 0)
            .map(|(row, &label)| (logarithms(row), label as usize))
            .collect();
        let surprise = |temperature: f64| -> f64 {
            rows.iter().map(|(row, label)| log_sum_exp(row, temperature) - row[*label] / temperature).sum()
        };
        let (least, most) = TEMPERATURES;
        let tried = (0..TEMPERATURE_STEPS)
            .map(|step| least * (most / least).powf(step as f64 / (TEMPERATURE_STEPS - 1) as f64))
            .map(|temperature| (temperature, surprise(temperature)));
        let best = tried.min_by(|(_, one), (_, other)| one.total_cmp(other));
        best.filter(|_| !rows.is_empty()).map_or(1.0, |(temperature, _)| temperature)
    }
}

impl ClassShares {
    /// Corrects `probabilities`, `[num_nodes, classes]`, in place.
    pub fn correct(&self, probabilities: &mut [f32]) {
        for row in probabilities.chunks_exact_mut(self.factors.len().max(1)) {
            let mut corrected = tempered(row, self.temperature);
            corrected.iter_mut().zip(&self.factors).for_each(|(value, factor)| *value *= factor);
            scale_to_one(&mut corrected);
            row.iter_mut().zip(corrected).for_each(|(value, corrected)| *value = corrected as f32);
        }
    }
}

/// π from the mean probabilities `q`, `[classes]`, and the confusions by class of the nodes, `Cᵀ`, `[classes, classes]`: expectation
/// maximisation, from equal shares. The share of a class without a validation node is 0.
fn shares_behind(predicted: &[f64], confusions: &[f64]) -> Vec<f64> {
    let classes = predicted.len();
    let mut shares = vec![1.0 / classes.max(1) as f64; classes];
    for _ in 0..SHARE_STEPS {
        let mut expected = vec![0.0; classes];
        for (row, share) in confusions.chunks_exact(classes.max(1)).zip(&shares) {
            expected.iter_mut().zip(row).for_each(|(sum, confusion)| *sum += share * confusion);
        }
        // A class that no validation node is put into tells nothing about the shares.
        let scales: Vec<f64> = predicted
            .iter()
            .zip(&expected)
            .map(|(seen, expected)| if *expected > 0.0 { seen / expected } else { 0.0 })
            .collect();
        for (row, share) in confusions.chunks_exact(classes.max(1)).zip(&mut shares) {
            *share *= row.iter().zip(&scales).map(|(confusion, scale)| confusion * scale).sum::<f64>();
        }
        scale_to_one(&mut shares);
    }
    shares
}

/// Divides values by their sum. False, and nothing is done, if it is 0.
fn scale_to_one(values: &mut [f64]) -> bool {
    let sum: f64 = values.iter().sum();
    if sum > 0.0 {
        values.iter_mut().for_each(|value| *value /= sum);
    }
    sum > 0.0
}

/// Logarithms of probabilities; that of 0 is finite.
fn logarithms(row: &[f32]) -> Vec<f64> {
    row.iter().map(|&value| f64::from(value).max(LEAST_PROBABILITY).ln()).collect()
}

/// ln Σ exp(value / temperature).
fn log_sum_exp(row: &[f64], temperature: f64) -> f64 {
    let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max) / temperature;
    largest + row.iter().map(|value| (value / temperature - largest).exp()).sum::<f64>().ln()
}

/// p^(1/T), scaled to a sum of 1.
fn tempered(row: &[f32], temperature: f64) -> Vec<f64> {
    let row = logarithms(row);
    let total = log_sum_exp(&row, temperature);
    row.iter().map(|value| (value / temperature - total).exp()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Nodes of two classes, of which a teacher is sure to 0.8 and right in four of five cases. Labelled ones are half of each class.
    fn nodes(of_class_0: usize, of_class_1: usize) -> (Vec<f32>, ShareCorrection) {
        let (mut probabilities, mut validation, mut training) = (Vec::new(), Vec::new(), Vec::new());
        let mut add = |class: i64, count: usize, is: [bool; 2]| {
            for index in 0..count {
                let said = if index % 5 == 0 { 1 - class } else { class };
                probabilities.extend(if said == 0 { [0.8f32, 0.2] } else { [0.2, 0.8] });
                validation.push(if is[0] { class } else { -100 });
                training.push(if is[1] { class } else { -100 });
            }
        };
        for class in [0, 1] {
            add(class, 30, [true, false]);
            add(class, 20, [false, true]);
        }
        add(0, of_class_0, [false, false]);
        add(1, of_class_1, [false, false]);
        (
            probabilities,
            ShareCorrection { validation: Arc::new(validation), training: Arc::new(training), visible: None },
        )
    }

    #[test]
    fn shares_are_those_of_the_nodes_without_a_label() {
        let (probabilities, correction) = nodes(900, 100);
        let found = correction.estimate(&probabilities, 2);
        assert!((found.shares[0] - 0.9).abs() < 1e-3, "{found:?}");
        assert!((found.factors[0] - 1.8).abs() < 2e-3 && (found.factors[1] - 0.2).abs() < 2e-3, "{found:?}");
        // It is right as often as it says.
        assert!((found.temperature - 1.0).abs() < 0.03, "{found:?}");
    }

    #[test]
    fn correction_follows_bayes() {
        let (mut probabilities, _) = nodes(0, 5);
        ClassShares { shares: vec![0.9, 0.1], factors: vec![1.8, 0.2], temperature: 1.0 }.correct(&mut probabilities);
        for row in probabilities.chunks_exact(2) {
            let expected =
                if row[0] > 0.9 { 0.8 * 0.9 / (0.8 * 0.9 + 0.2 * 0.1) } else { 0.2 * 0.9 / (0.2 * 0.9 + 0.8 * 0.1) };
            assert!((row[0] - expected).abs() < 1e-6, "{row:?}");
            assert!((row[0] + row[1] - 1.0).abs() < 1e-6);
        }
    }

    #[test]
    fn a_teacher_that_is_too_sure_has_a_temperature_above_one() {
        let (mut probabilities, correction) = nodes(50, 50);
        ClassShares { shares: vec![0.5, 0.5], factors: vec![1.0, 1.0], temperature: 0.25 }.correct(&mut probabilities);
        let found = correction.estimate(&probabilities, 2);
        assert!((found.temperature / 4.0 - 1.0).abs() < 0.03, "{found:?}");
    }

    #[test]
    fn a_class_without_validation_nodes_is_not_corrected() {
        let (probabilities, correction) = nodes(70, 30);
        let validation = correction.validation.iter().map(|&label| if label == 1 { -100 } else { label }).collect();
        let found = ShareCorrection { validation: Arc::new(validation), ..correction }.estimate(&probabilities, 2);
        assert_eq!((found.factors[1], found.shares[1]), (1.0, 0.0), "{found:?}");
    }

    #[test]
    fn hidden_nodes_are_not_counted() {
        let (probabilities, correction) = nodes(900, 100);
        let is_visible = (0..probabilities.len() / 2).map(|node| node < 1000).collect();
        let found = ShareCorrection { visible: Some(Arc::new(is_visible)), ..correction }.estimate(&probabilities, 2);
        assert!((found.shares[0] - 1.0).abs() < 1e-3, "{found:?}");
    }

    proptest! {
        /// The shares of any mixture are found again, and the result of a correction is a probability.
        #[test]
        fn mixtures_are_found_again(of_class_0 in 1usize..40, of_class_1 in 1usize..40) {
            let (mut probabilities, correction) = nodes(5 * of_class_0, 5 * of_class_1);
            let found = correction.estimate(&probabilities, 2);
            let share = of_class_0 as f64 / (of_class_0 + of_class_1) as f64;
            prop_assert!((found.shares[0] - share).abs() < 1e-3, "{found:?} instead of {share}");
            found.correct(&mut probabilities);
            for row in probabilities.chunks_exact(2) {
                prop_assert!(row[0] >= 0.0 && row[1] >= 0.0 && (row[0] + row[1] - 1.0).abs() < 1e-5);
            }
        }
    }
}
