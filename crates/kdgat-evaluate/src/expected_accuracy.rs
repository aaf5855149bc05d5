//! Accuracy to expect where no label is known, from validation nodes of another mixture of classes.

use std::sync::Arc;

use kdgat_nodes::ShareCorrection;

use crate::graphs::argmax;

/// Accuracy to expect of a classifier on nodes whose class is not known: its accuracy on the validation nodes of each class, weighted by the
/// shares of the classes among the unknown ones, estimated as in [`kdgat_nodes::class_shares`]. With validation nodes of equal number for
/// each class, their plain accuracy is that of another mixture.
///
/// `validation` has the class probabilities of the validation nodes, `labels` their classes, and `unknown` the probabilities of the others.
/// Not a number if there are none.
pub fn expected_accuracy(validation: &[Vec<f64>], labels: &[usize], unknown: &[Vec<f64>]) -> f64 {
    let Some(classes) = unknown.first().map(Vec::len) else { return f64::NAN };
    let num_nodes = labels.len() + unknown.len();
    let mut known = vec![-1; num_nodes];
    known.iter_mut().zip(labels).for_each(|(known, &label)| *known = label as i64);
    let correction =
        ShareCorrection { validation: Arc::new(known), training: Arc::new(vec![-1; num_nodes]), visible: None };
    let probabilities: Vec<f32> = validation.iter().chain(unknown).flatten().map(|&value| value as f32).collect();
    let shares = correction.estimate(&probabilities, classes).shares;
    let (mut right, mut all) = (vec![0.0f64; classes], vec![0.0f64; classes]);
    for (row, &label) in validation.iter().zip(labels) {
        all[label] += 1.0;
        right[label] += f64::from(u8::from(argmax(row) == label));
    }
    (0..classes).filter(|&class| all[class] > 0.0).map(|class| shares[class] * right[class] / all[class]).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten nodes of `class`, `right` of which the classifier recognises.
    fn nodes_of(class: usize, right: usize) -> Vec<Vec<f64>> {
        let row = |at| if (at < right) == (class == 0) { vec![0.9, 0.1] } else { vec![0.1, 0.9] };
        (0..10).map(row).collect()
    }

    #[test]
    fn expected_accuracy_is_that_of_the_mixture_of_the_unknown_nodes() {
        let [of_0, of_1] = [nodes_of(0, 9), nodes_of(1, 6)];
        let validation = [of_0.clone(), of_1.clone()].concat();
        let labels: Vec<usize> = (0..20).map(|node| node / 10).collect();
        assert!((expected_accuracy(&validation, &labels, &validation) - 0.75).abs() < 1e-3);
        let mostly_0 = [of_0.clone(), of_0.clone(), of_0, of_1].concat();
        let found = expected_accuracy(&validation, &labels, &mostly_0);
        assert!((found - (0.75 * 0.9 + 0.25 * 0.6)).abs() < 1e-3, "{found}");
        assert!(expected_accuracy(&validation, &labels, &[]).is_nan());
    }
}
