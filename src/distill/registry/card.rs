//! The card of a teacher: how it was made, for people.

use std::fmt::Write;

use crate::distill::weights::Weights;
use crate::nn::ModelDescription;

/// What a run knows of a teacher beside the model itself.
#[derive(Debug, Clone)]
pub struct CardFacts {
    /// The command that trains such a teacher.
    pub command: String,
    /// Epochs that were trained.
    pub epochs: u64,
    /// Trained values.
    pub num_parameters: i64,
    /// Seed of the run.
    pub seed: u64,
    /// Final numbers, name and value.
    pub metrics: Vec<(String, f64)>,
}

/// The card as Markdown.
pub fn render(description: &ModelDescription, weights: &Weights, facts: &CardFacts) -> String {
    let mut text = format!(
        "# Teacher: {} for {}\n\n\
         | | |\n|---|---|\n\
         | made with | `{}` |\n\
         | architecture | `{}` |\n\
         | parameters | {} |\n\
         | vocabulary | {} IDs and UNKNOWN |\n\
         | window | {} frames |\n\
         | data | {}, digest `{}` |\n\
         | training | {} epochs, seed {}; weights of epoch {} |\n\
         | weights | {} bytes, digest `{}` |\n\
         | kdgat | {} |\n",
        description.architecture.model_name(),
        description.dataset.name,
        facts.command,
        description.architecture.to_json(),
        facts.num_parameters,
        description.vocabulary.ids().len(),
        description.window,
        description.dataset.name,
        description.dataset.digest,
        facts.epochs,
        facts.seed,
        description.epoch + 1,
        weights.bytes(),
        weights.digest(),
        description.created_by_version,
    );
    text.push_str("\n| at its best epoch | |\n|---|---|\n");
    for (name, value) in &facts.metrics {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "| {name} | {value:.6} |");
    }
    text
}
