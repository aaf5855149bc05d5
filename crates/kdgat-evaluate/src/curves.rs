//! `curves.csv`: the ROC and precision-recall curves of an evaluation.

use super::ranking::CurvePoint;
use super::tables::number;

/// File beside `metrics.json`.
pub const CURVES: &str = "curves.csv";

const HEADER: [&str; 6] = ["model", "folder", "calibration", "false_positive_rate", "true_positive_rate", "precision"];

/// The curve of one model on one test folder.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Name of the test folder.
    pub folder: String,
    /// `none`, or the traffic that calibrated the scores.
    pub calibration: String,
    /// The points, from the ROC and precision-recall curves together.
    pub points: Vec<CurvePoint>,
}

/// Content of `curves.csv`, one row per point; recall is the true-positive rate.
pub fn csv<'a>(curves: impl IntoIterator<Item = (&'a str, &'a [Curve])>) -> Result<Vec<u8>, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(HEADER)?;
    for (model, curves) in curves {
        for curve in curves {
            for point in &curve.points {
                let rates = [point.false_positive_rate, point.true_positive_rate, point.precision].map(number);
                let [false_positive_rate, true_positive_rate, precision] = &rates;
                writer.write_record([
                    model,
                    &curve.folder,
                    &curve.calibration,
                    false_positive_rate,
                    true_positive_rate,
                    precision,
                ])?;
            }
        }
    }
    writer.into_inner().map_err(|error| error.into_error().into())
}
