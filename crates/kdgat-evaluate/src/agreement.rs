//! Agreement of validation and test: whether the model that is best on validation is best on a test.

use super::judge::NOT_CALIBRATED;
use super::tables::ModelReport;

/// Models below which a rank correlation says nothing.
const FEWEST_MODELS: usize = 5;

/// Spearman's rank correlation: Pearson's of the ranks, equal values having their mean rank (Spearman 1904). `None` if one of the two
/// does not vary.
pub fn rank_correlation(pairs: &[(f64, f64)]) -> Option<f64> {
    let one = ranks(&pairs.iter().map(|pair| pair.0).collect::<Vec<_>>());
    let other = ranks(&pairs.iter().map(|pair| pair.1).collect::<Vec<_>>());
    // The mean of the ranks of n values is (n + 1) / 2.
    let middle = (pairs.len() + 1) as f64 / 2.0;
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - middle) * (b - middle)).sum::<f64>();
    let variances = product(&one, &one) * product(&other, &other);
    (variances > 0.0).then(|| product(&one, &other) / variances.sqrt())
}

/// Rank of each value, from 1; equal values have their mean rank.
fn ranks(values: &[f64]) -> Vec<f64> {
    let below = |value: f64| values.iter().filter(|other| **other < value).count();
    let equal = |value: f64| values.iter().filter(|other| **other == value).count();
    values.iter().map(|&value| below(value) as f64 + (equal(value) + 1) as f64 / 2.0).collect()
}

/// A line for each test folder with the rank correlation of the models' ROC AUC on validation and on it; empty for fewer than five models.
pub fn text(models: &[ModelReport]) -> String {
    let mut folders: Vec<&str> = Vec::new();
    for row in models.iter().flat_map(|model| &model.rows).filter(|row| row.file.is_none()) {
        if !folders.contains(&row.folder.as_str()) {
            folders.push(&row.folder);
        }
    }
    let line = |folder: &str| {
        let pair = |model: &ModelReport| {
            let is_of_folder = |row: &&super::tables::Row| {
                row.file.is_none() && row.folder == folder && row.calibration == NOT_CALIBRATED
            };
            let row = model.rows.iter().find(is_of_folder)?;
            let (validation, test) = (model.validation_roc_auc, row.values[7]);
            (validation.is_finite() && test.is_finite() && model.kind != "rule").then_some((validation, test))
        };
        let pairs: Vec<(f64, f64)> = models.iter().filter_map(pair).collect();
        let value = match rank_correlation(&pairs) {
            _ if pairs.len() < FEWEST_MODELS => return None,
            Some(correlation) => format!("{correlation:.2}"),
            None => "undefined, all models are equal".to_owned(),
        };
        Some(format!("  {folder}: {value} ({} models)\n", pairs.len()))
    };
    let lines: String = folders.into_iter().filter_map(line).collect();
    if lines.is_empty() {
        return lines;
    }
    format!(
        "\nrank correlation of the ROC AUC on validation with that on each test folder (1: validation predicts the test)\n{lines}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_count_not_values() {
        let of = |test: [f64; 4]| rank_correlation(&[0.1, 0.2, 0.7, 0.9].into_iter().zip(test).collect::<Vec<_>>());
        assert_eq!(of([1.0, 2.0, 3.0, 1e9]), Some(1.0));
        assert_eq!(of([4.0, 3.0, 2.0, -1e9]), Some(-1.0));
        assert_eq!(of([5.0; 4]), None);
        // By hand: ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: 4.5 / sqrt(5 · 4.5).
        let tied = of([0.0, 3.0, 3.0, 8.0]).unwrap();
        assert!((tied - 4.5 / (5.0f64 * 4.5).sqrt()).abs() < 1e-12);
        assert_eq!(rank_correlation(&[]), None);
    }
}
