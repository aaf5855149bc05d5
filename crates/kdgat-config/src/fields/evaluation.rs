//! Fields of the section `[evaluation]`.

use crate::rules::*;
use crate::table::config_section;
use crate::values::*;

config_section! {
/// Evaluation of trained models.
#[readers(Evaluate)]
evaluation: EvaluationConfig {
    /// Decision threshold: windows with a higher score are classified as attacks. fpr:RATE: the score that this share of attack-free
    /// validation windows exceeds; youden: the score with the largest true-positive minus false-positive rate; or a number.
    #[same_losses = true]
    #[rules(THRESHOLD_OF_FUSION)]
    threshold: Threshold = Threshold::FalsePositiveRate(0.001);
}}
