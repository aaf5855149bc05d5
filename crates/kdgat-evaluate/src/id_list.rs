//! The list of known IDs that supplies evidence beside a classifier: see [`foreign_ids`](kdgat_graph::foreign_ids).
//!
//! A car outside the training data has other IDs. A few seconds of its attack-free traffic contain nearly all of them.
//! Cross-validation estimates how complete that list is: each part of the traffic is checked against the list of the other parts.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::profile::parts;
use kdgat_graph::foreign_ids::{has_foreign, smoothed_share};
use kdgat_graph::{Batch, ForeignIds, Vocabulary};
use kdgat_nn::ModelError;

/// A classifier's output for a window without the ID list, and the window's IDs, to which another car's list can be applied.
#[derive(Debug, Clone, PartialEq)]
pub struct Unlisted {
    /// Log odds of an attack.
    pub raw: f32,
    /// The window's CAN IDs.
    pub can_ids: Vec<u32>,
}

/// The list that a classifier was trained with.
#[derive(Debug, Clone)]
pub struct IdList {
    known: Arc<Vocabulary>,
    counted: ForeignIds,
    evidence: f32,
}

impl IdList {
    /// Creates the list from a model's vocabulary and its foreign-ID shares.
    pub fn new(known: Arc<Vocabulary>, counted: ForeignIds) -> Self {
        Self { known, counted, evidence: counted.evidence() as f32 }
    }

    /// Shares of windows with a foreign ID in the model's own data.
    pub fn counted(&self) -> ForeignIds {
        self.counted
    }

    /// Evidence added to the log odds of each graph of a batch, in nats.
    pub fn of_graphs(&self, batch: &Batch) -> Result<Vec<f32>, ModelError> {
        Ok(ids_of_graphs(batch)?.iter().map(|can_ids| self.of_window(can_ids)).collect())
    }

    /// Evidence added to the log odds of a window with these IDs, in nats.
    pub fn of_window(&self, can_ids: &[u32]) -> f32 {
        if has_foreign(&self.known, can_ids) { self.evidence } else { 0.0 }
    }

    /// Borrows the list with the evidence of a foreign ID.
    pub fn listed(&self) -> Listed<'_> {
        Listed { known: &self.known, evidence: self.evidence }
    }
}

/// A list of known IDs (the model's or a car's) and the evidence of an ID outside it.
#[derive(Debug, Clone, Copy)]
pub struct Listed<'a> {
    known: &'a Vocabulary,
    evidence: f32,
}

impl Listed<'_> {
    /// Evidence of each node of a batch of one graph: its foreign nodes share the window's evidence equally.
    pub fn of_nodes(self, batch: &Batch) -> Result<Vec<f32>, ModelError> {
        let nodes = batch.can_ids.iter().zip(batch.sending_nodes()?);
        let is_foreign: Vec<bool> =
            nodes.map(|(&id, sends)| sends && self.known.index_of(id) == Vocabulary::UNKNOWN).collect();
        let foreign = is_foreign.iter().filter(|is_foreign| **is_foreign).count();
        let share = self.evidence / foreign.max(1) as f32;
        Ok(is_foreign.into_iter().map(|is_foreign| if is_foreign { share } else { 0.0 }).collect())
    }
}

/// IDs with at least one frame in each window of a batch, graph by graph.
pub fn ids_of_graphs(batch: &Batch) -> Result<Vec<Vec<u32>>, ModelError> {
    let sends = batch.sending_nodes()?;
    let sending = |node: usize| sends[node].then_some(batch.can_ids[node]);
    let of_graph = |ends: &[i64]| (ends[0] as usize..ends[1] as usize).filter_map(sending).collect();
    Ok(Vec::<i64>::try_from(&batch.node_pointers)?.windows(2).map(of_graph).collect())
}

/// Known IDs of a car that is not in the training data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CarIds {
    known: Vocabulary,
    /// Number of attack-free windows with an ID that the other parts of the traffic lack.
    pub foreign_windows: u64,
    /// Added to the log odds of windows with a foreign ID, in nats.
    evidence: f64,
}

impl CarIds {
    /// Builds the list from the car's attack-free windows and returns it with the evidence of each window, judged by the list of the
    /// other parts of the traffic at least `gap` windows away. The share of attacks with a foreign ID comes from the model's own
    /// data (`counted`).
    pub fn of(windows: &[&[u32]], counted: ForeignIds, gap: usize) -> (Self, Vec<f64>) {
        let list = |windows: &mut dyn Iterator<Item = &&[u32]>| {
            let ids: BTreeSet<u32> = windows.flat_map(|can_ids| can_ids.iter().copied()).collect();
            Vocabulary::from_ids(ids)
        };
        let mut is_foreign = Vec::with_capacity(windows.len());
        for part in parts(windows.len(), gap) {
            let others = list(&mut part.others(windows));
            is_foreign.extend(windows[part.own].iter().map(|can_ids| has_foreign(&others, can_ids)));
        }
        let foreign = is_foreign.iter().filter(|is_foreign| **is_foreign).count() as u64;
        let of_normals = smoothed_share(foreign, windows.len() as u64);
        let evidence = ForeignIds { of_normals, ..counted }.evidence();
        let of_windows = is_foreign.into_iter().map(|is_foreign| if is_foreign { evidence } else { 0.0 }).collect();
        (Self { known: list(&mut windows.iter()), foreign_windows: foreign, evidence }, of_windows)
    }

    /// Evidence added to the log odds of a window with these IDs, in nats.
    pub fn of_window(&self, can_ids: &[u32]) -> f64 {
        if has_foreign(&self.known, can_ids) { self.evidence } else { 0.0 }
    }

    /// The car's IDs.
    pub fn known(&self) -> &Vocabulary {
        &self.known
    }

    /// Evidence of a foreign ID, in nats.
    pub fn evidence(&self) -> f64 {
        self.evidence
    }

    /// Borrows the list with the evidence of a foreign ID, in single precision.
    pub fn listed(&self) -> Listed<'_> {
        Listed { known: &self.known, evidence: self.evidence as f32 }
    }

    /// The same list with zero evidence.
    pub fn silenced(self) -> Self {
        Self { evidence: 0.0, ..self }
    }

    /// True if the evidence is finite and not negative (the file may have been edited by hand).
    pub fn is_sound(&self) -> bool {
        self.evidence.is_finite() && self.evidence >= 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTED: ForeignIds = ForeignIds { of_attacks: 0.9, of_normals: 0.001 };

    #[test]
    fn a_car_has_a_list_of_its_own() {
        let window: &[u32] = &[0x10, 0x20, 0x30];
        let (ids, of_windows) = CarIds::of(&[window; 99], COUNTED, 1);
        assert_eq!(of_windows, [0.0; 99]);
        assert_eq!(ids.of_window(&[0x10, 0x30]), 0.0);
        let evidence = ids.of_window(&[0x10, 0x30, 0x31]);
        assert!((evidence - (0.9f64 / (0.5 / 100.0)).ln()).abs() < 1e-12, "{evidence}: none of 99 windows");
    }

    #[test]
    fn traffic_that_keeps_bringing_new_ids_makes_the_list_silent() {
        let windows: Vec<Vec<u32>> = (0..100).map(|window| vec![0x10, 0x100 + window]).collect();
        let windows: Vec<&[u32]> = windows.iter().map(Vec::as_slice).collect();
        let (ids, of_windows) = CarIds::of(&windows, COUNTED, 1);
        assert_eq!((ids.of_window(&[0x7ff]), of_windows), (0.0, vec![0.0; 100]));
        // One window in a hundred has an ID of its own: its evidence is that of any foreign ID.
        let mut windows = vec![&[0x10u32][..]; 100];
        windows[42] = &[0x10, 0x20];
        let (ids, of_windows) = CarIds::of(&windows, COUNTED, 1);
        let evidence = (0.9f64 / (1.5 / 101.0)).ln();
        assert!((ids.of_window(&[0x7ff]) - evidence).abs() < 1e-12 && of_windows[42] == ids.of_window(&[0x7ff]));
        assert_eq!((ids.of_window(&[0x20]), ids.foreign_windows), (0.0, 1), "now it is known");
    }

    #[test]
    fn no_windows_have_no_list() {
        let (ids, of_windows) = CarIds::of(&[], COUNTED, 1);
        assert!(of_windows.is_empty() && ids.is_sound());
    }
}
