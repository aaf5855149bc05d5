//! How a teacher is run.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tch::Device;

/// Where the teacher's weights are between its visits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Residency {
    /// They stay on the device.
    Resident,
    /// They are on the device only around a visit (`--offload-teacher`).
    Forward,
    /// A few layers are on the device at a time, during a visit.
    Layer,
    /// The planner chooses from measured numbers.
    Auto,
}

impl Residency {
    /// The name as users type it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Resident => "resident",
            Self::Forward => "forward",
            Self::Layer => "layer",
            Self::Auto => "auto",
        }
    }
}

impl std::fmt::Display for Residency {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl FromStr for Residency {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Resident, Self::Forward, Self::Layer, Self::Auto]
            .into_iter()
            .find(|residency| residency.as_str() == text)
            .ok_or_else(|| format!("unknown residency '{text}' (known: resident, forward, layer, auto)"))
    }
}

/// How a teacher is run.
#[derive(Debug, Clone)]
pub struct TeacherOptions {
    /// Where its forward runs, and where targets are given.
    pub device: Device,
    /// Where its weights are between visits.
    pub residency: Residency,
    /// Layers on the device at once under `layer`; at least 1.
    pub layer_slots: usize,
    /// On a GPU, whether a resident teacher computes on a stream of its own, beside the student's step. Its activations
    /// then add to the student's peak.
    pub overlap: bool,
}

impl TeacherOptions {
    /// A teacher that stays on `device`.
    pub fn new(device: Device) -> Self {
        Self { device, residency: Residency::Resident, layer_slots: 2, overlap: false }
    }
}
