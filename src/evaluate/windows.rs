//! `windows.json`: the most telling windows of each model's test, as graphs with attention weights, to be drawn.

use serde::{Deserialize, Serialize};

use super::EvaluateError;
use super::scores::{Dissected, Scorer};
use crate::graph::{self, Store};

/// File beside `metrics.json`.
pub const WINDOWS: &str = "windows.json";
const FORMAT_VERSION: u32 = 1;

/// Why a window is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The attack that looks most like one.
    ClearestAttack,
    /// The attack below the threshold that looks least like one.
    MissedAttack,
    /// The window without an attack, above the threshold, that looks most like one.
    FalseAlarm,
    /// Where nothing was a false alarm: what came nearest to one.
    NearestToAlarm,
    /// A window without an attack with the median score.
    Usual,
}

/// A window as a graph.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Window {
    pub why: Why,
    pub folder: String,
    pub file: String,
    /// Position of its first frame in the file.
    pub first_frame: u64,
    pub attack: bool,
    pub score: f64,
    pub threshold: f64,
    pub nodes: Vec<Node>,
    pub edges: Vec<Edge>,
}

/// A CAN ID of the window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Hexadecimal.
    pub id: String,
    /// What it adds to the score: see [`Dissected`].
    pub contribution: f32,
}

/// An ID that was followed by another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Edge {
    /// Positions in the window's nodes.
    pub source: usize,
    pub target: usize,
    /// Mean attention over layers and heads.
    pub attention: f32,
}

/// The windows of one model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelWindows {
    pub model: String,
    pub windows: Vec<Window>,
}

/// The content of `windows.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WindowsFile {
    pub format_version: u32,
    pub models: Vec<ModelWindows>,
}

impl WindowsFile {
    pub fn new(models: Vec<ModelWindows>) -> Self {
        Self { format_version: FORMAT_VERSION, models }
    }

    /// Whether this program can read it.
    pub fn is_readable(&self) -> bool {
        self.format_version == FORMAT_VERSION
    }
}

/// The telling ones among windows with these scores: positions and reasons.
pub fn choose(scores: &[f64], labels: &[bool], threshold: f64) -> Vec<(usize, Why)> {
    let of = |attack: bool| {
        let mut found: Vec<usize> = (0..scores.len()).filter(|&window| labels[window] == attack).collect();
        // Equals stay in the order of the test, so that the choice is one.
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

/// A graph of the store as this model reads it.
pub fn describe(scorer: &Scorer, store: &Store, graph: u64, why: Why, threshold: f64) -> Result<Window, EvaluateError> {
    let view = store.try_graph(graph)?;
    let batch = graph::assemble::assemble(store, &[graph], &scorer.assemble_options())?;
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
