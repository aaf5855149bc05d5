//! The trained model that an export writes as C.

use kdgat_nn::ModelDescription;
use kdgat_nn::weights::StateDict;

use crate::Precision;

/// A trained model with everything that its detector in the car needs.
#[derive(Debug)]
pub struct CarModel<'a> {
    /// Name of the run, for comments and the README.
    pub name: String,
    /// Architecture, vocabulary, statistics of foreign IDs, window.
    pub description: &'a ModelDescription,
    /// Weights on the CPU, under their names in the checkpoint.
    pub state: &'a StateDict,
    /// Content digest of the weights (hex).
    pub weights_digest: String,
    /// Frames from one window to the next.
    pub stride: usize,
    /// Precision of the weight matrices.
    pub precision: Precision,
    /// Windows with a higher score are called attacks.
    pub threshold: f64,
    /// Method that chose the threshold, such as `fpr:0.01`.
    pub threshold_method: String,
    /// Least score that a calibration of a model of the profile set may call an attack, if known: its threshold on another car is at
    /// least as far from usual.
    pub least_score: Option<f64>,
    /// Share of attack-free windows that a calibration may call attacks.
    pub calibration_rate: f64,
    /// An autoencoder that judges together with this classifier.
    pub partner: Option<CarPartner<'a>>,
}

/// The autoencoder of a pair, with the scales on which both models' scores are standardised.
#[derive(Debug)]
pub struct CarPartner<'a> {
    /// Name of the run, for comments and the README.
    pub name: String,
    /// Its architecture and origin.
    pub description: &'a ModelDescription,
    /// Weights on the CPU, under their names in the checkpoint.
    pub state: &'a StateDict,
    /// Content digest of the weights (hex).
    pub weights_digest: String,
    /// Usual log odds of the classifier.
    pub classifier_scale: UsualScale,
    /// Usual logarithm of the autoencoder's difficulty.
    pub autoencoder_scale: UsualScale,
}

/// Median and spread of usual scores on an unbounded scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UsualScale {
    /// Median.
    pub median: f64,
    /// Spread, by which a score less the median is divided.
    pub spread: f64,
}
