//! `windows.json`: notable windows of each model's test as graphs with attention weights, for drawing.

use serde::{Deserialize, Serialize};

use super::EvaluateError;
use super::scores::{Dissected, Scorer};
use kdgat_graph::{self, Store};

/// File beside `metrics.json`.
pub const WINDOWS: &str = "windows.json";
const FORMAT_VERSION: u32 = 1;

/// Reason for showing a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The attack with the highest score.
    ClearestAttack,
    /// The attack with the lowest score, if it is not above the threshold.
    MissedAttack,
    /// The attack-free window with the highest score, if it is above the threshold.
    FalseAlarm,
    /// The attack-free window with the highest score, if there was no false alarm.
    NearestToAlarm,
    /// The attack-free window with the median score.
    Usual,
}

/// A window as a graph.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// The reason for showing it.
    pub why: Why,
    /// Name of the test folder.
    pub folder: String,
    /// Name of the file in the folder.
    pub file: String,
    /// Position of its first frame in the file.
    pub first_frame: u64,
    /// True if a frame of the window belongs to an attack.
    pub attack: bool,
    /// The model's score.
    pub score: f64,
    /// The threshold that the score is compared with.
    pub threshold: f64,
    /// The window's CAN IDs.
    pub nodes: Vec<Node>,
    /// The pairs of CAN IDs that followed each other.
    pub edges: Vec<Edge>,
}

/// A CAN ID in the window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// The ID in hexadecimal.
    pub id: String,
    /// Contribution to the score: see [`Dissected`].
    pub contribution: f32,
}

/// A pair of IDs that followed each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Edge {
    /// Position of the source in the window's nodes; `target` likewise.
    pub source: usize,
    /// Position of the target in the window's nodes.
    pub target: usize,
    /// Attention averaged over layers and heads.
    pub attention: f32,
}

/// The windows of one model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelWindows {
    /// Name of the model.
    pub model: String,
    /// The windows shown, at most one per reason.
    pub windows: Vec<Window>,
}

/// The content of `windows.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WindowsFile {
    /// Version of the file's layout.
    pub format_version: u32,
    /// The models, each with its windows.
    pub models: Vec<ModelWindows>,
}

impl WindowsFile {
    /// Creates the content, in the current format version.
    pub fn new(models: Vec<ModelWindows>) -> Self {
        Self { format_version: FORMAT_VERSION, models }
    }

    /// True if this program can read the format version.
    pub fn is_readable(&self) -> bool {
        self.format_version == FORMAT_VERSION
    }
}

/// Chooses notable windows by score: positions and reasons.
pub fn choose(scores: &[f64], labels: &[bool], threshold: f64) -> Vec<(usize, Why)> {
    let of = |attack: bool| {
        let mut found: Vec<usize> = (0..scores.len()).filter(|&window| labels[window] == attack).collect();
        // The sort is stable, so equal scores keep the order of the test and the choice is deterministic.
        found.sort_by(|&a, &b| scores[a].total_cmp(&scores[b]));
        found
    };
    let (attacks, normals) = (of(true), of(false));
    let mut chosen = Vec::new();
    chosen.extend(attacks.last().map(|&window| (window, Why::ClearestAttack)));
    let missed = attacks.first().filter(|&&window| scores[window] <= threshold);
    chosen.extend(missed.map(|&window| (window, Why::MissedAttack)));
    chosen.extend(
        normals
            .last()
            .map(|&window| (window, if scores[window] > threshold { Why::FalseAlarm } else { Why::NearestToAlarm })),
    );
    let usual = normals.get(normals.len() / 2).filter(|window| normals.last() != Some(window));
    chosen.extend(usual.map(|&window| (window, Why::Usual)));
    chosen
}

/// Describes a graph of the store as the model reads it.
pub fn describe(scorer: &Scorer, store: &Store, graph: u64, why: Why, threshold: f64) -> Result<Window, EvaluateError> {
    let view = store.try_graph(graph)?;
    let batch = kdgat_graph::assemble::assemble(store, &[graph], &scorer.assemble_options())?;
    let Dissected { raw, by_node, edges } = scorer.dissect(&batch)?;
    let node = |(id, contribution): (&u32, f32)| Node { id: format!("{id:03X}"), contribution };
    let edge = |(source, target, attention): (usize, usize, f32)| Edge { source, target, attention };
    let entry = store.log_of(graph);
    Ok(Window {
        why,
        folder: entry.folder.clone(),
        file: entry.name.clone(),
        first_frame: view.first_frame,
        attack: view.attack,
        score: scorer.kind().score(raw),
        threshold,
        nodes: batch.can_ids.iter().zip(by_node).map(node).collect(),
        edges: edges.into_iter().map(edge).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_telling_windows_are_the_extremes_and_the_usual() {
        let scores = [0.1, 0.9, 0.2, 0.95, 0.3, 0.05, 0.6];
        let labels = [false, true, false, true, false, true, false];
        let chosen = choose(&scores, &labels, 0.5);
        assert_eq!(chosen, [(3, Why::ClearestAttack), (5, Why::MissedAttack), (6, Why::FalseAlarm), (4, Why::Usual)]);
        let chosen = choose(&scores, &labels, 0.7);
        assert_eq!(chosen[2], (6, Why::NearestToAlarm));
        assert_eq!(choose(&[0.2], &[false], 0.5), [(0, Why::NearestToAlarm)]);
        assert_eq!(choose(&[0.9], &[true], 0.5), [(0, Why::ClearestAttack)]);
    }
}
