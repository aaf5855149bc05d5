//! `card.md`: a summary of a teacher for its users.

use std::fmt::Write;

use crate::planner::format_bytes;
use crate::weights::Weights;

use super::TeacherConfig;

/// Writes the card of a teacher, in Markdown.
pub(super) fn card(config: &TeacherConfig, weights: &Weights) -> String {
    let parameters: usize = weights.iter().map(|(_, tensor)| tensor.numel()).sum();
    let mut text = format!("# {} teacher for {}\n\n", config.model.to_uppercase(), config.dataset.name);
    let rows = [
        ("values in its weights", parameters.to_string()),
        ("size", format_bytes(weights.bytes())),
        ("CAN IDs in its vocabulary", config.vocabulary.len().to_string()),
        ("digest of its weights", config.weights_digest.clone()),
        ("digest of its dataset", config.dataset.digest.clone()),
        ("made by kdgat", config.created_by_version.clone()),
    ];
    table(&mut text, "about", rows.into_iter());
    table(&mut text, "architecture", config.architecture.iter().map(|(key, value)| (key.as_str(), value.to_string())));
    table(
        &mut text,
        "measured in training",
        config.metrics.iter().map(|(key, value)| (key.as_str(), value.to_string())),
    );
    text
}

fn table<'a>(text: &mut String, title: &str, rows: impl Iterator<Item = (&'a str, String)>) {
    let rows: Vec<_> = rows.filter(|(_, value)| !value.is_empty()).collect();
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(text, "| {title} | |\n|---|---|");
    for (name, value) in rows {
        let _ = writeln!(text, "| {name} | {} |", value.replace('|', r"\|"));
    }
    text.push('\n');
}
