//! The loss of pre-training: what a [pretext](kdgat_nn::pretraining) asks of the nodes of graphs. There is no teacher.

use kdgat_graph::Batch;
use kdgat_nn::layers::Mode;
use kdgat_nn::pretraining::masked::masked_count;
use kdgat_nn::{Draw, Pretext, Pretraining, masked};
use kdgat_train::objective::{Losses, Objective, ObjectiveError, Part, TargetSource};
use tch::{Device, Tensor};

use super::{Student, TeacherLink, absent};

/// Names of the parts of the loss of masked features.
pub const OF_MASKED: &[&str] = &["task_loss", "features", "categories"];
/// Names of the parts of the loss of GT-SSL; `ordered` is the share of children and parents in the right order.
pub const OF_TREES: &[&str] = &["task_loss", "order", "distance", "growth", "ordered"];

/// A graph network in pre-training.
pub struct PretrainingObjective {
    /// The network.
    pub model: Pretraining,
    /// A connection to nothing.
    teacher: TeacherLink,
    /// The nodes or pairs that the current epoch draws.
    draw: Draw,
    /// `[num_graphs + 1]`: number of rows of the loss before each graph of the batch received last.
    rows_before: Vec<u64>,
}

impl PretrainingObjective {
    /// A network in pre-training; `seed` is the run's.
    pub fn new(model: Pretraining, seed: u64) -> Self {
        Self { model, teacher: TeacherLink::none(), draw: Draw { seed, epoch: 0 }, rows_before: vec![0] }
    }

    /// Features that were hidden: mean over the masked nodes.
    fn masked(&self, batch: &Batch, mode: Mode, share: f64, draw: Draw) -> Result<Losses, ObjectiveError> {
        let errors = self.model.masked_errors(batch, mode, share, draw)?;
        let mean = |rows: &Option<Tensor>| rows.as_ref().map(|rows| masked::mean_of_rows(rows, None)).transpose();
        let [features, categories] = [mean(&errors.features)?, mean(&errors.categories)?];
        let total = match (&features, &categories) {
            (Some(one), Some(other)) => one.f_add(other)?,
            (Some(one), None) | (None, Some(one)) => one.shallow_clone(),
            (None, None) => return Err("the nodes have no features to mask".into()),
        };
        let or_absent = |part: Option<Tensor>| part.unwrap_or_else(|| absent(&total));
        let parts = vec![total.shallow_clone(), or_absent(features), or_absent(categories)];
        Ok(Losses { total, parts })
    }

    /// Order, distance and growth of trees: sums divided by the number of nodes, so that those of a batch's parts add up.
    fn trees(&self, batch: &Batch, mode: Mode, draw: Draw) -> Result<Losses, ObjectiveError> {
        let terms = self.model.tree_terms(batch, mode, draw)?;
        let nodes = batch.num_nodes();
        let (order, distance) = (terms.order.sum_per(nodes)?, terms.distance.sum_per(nodes)?);
        let growth = terms.growth_distance.sum_per(nodes)?.f_add(&terms.growth_angle.sum_per(nodes)?)?;
        let total = order.f_add(&distance)?.f_add(&growth)?;
        let pairs = terms.is_ordered.size()[0].max(1);
        let ordered = terms.is_ordered.f_sum(tch::Kind::Float)?.f_div_scalar(pairs as f64)?;
        Ok(Losses { parts: vec![total.shallow_clone(), order, distance, growth, ordered], total })
    }
}

impl Objective for PretrainingObjective {
    fn parts(&self) -> &'static [&'static str] {
        match self.model.config().pretext {
            Pretext::Masked { .. } => OF_MASKED,
            Pretext::GtSsl { .. } => OF_TREES,
        }
    }

    fn start_epoch(&mut self, epoch: u64) {
        self.draw.epoch = epoch;
    }

    fn source(&self) -> &dyn TargetSource {
        &self.teacher
    }

    fn source_mut(&mut self) -> &mut dyn TargetSource {
        &mut self.teacher
    }

    fn receive(&mut self, batch: &Batch) -> Result<(), ObjectiveError> {
        let pointers: Vec<i64> = Vec::try_from(&batch.node_pointers.f_to_device(Device::Cpu)?)?;
        let pretext = self.model.config().pretext;
        let mut before = 0;
        self.rows_before = vec![0];
        for ends in pointers.windows(2) {
            let nodes = (ends[1] - ends[0]) as u64;
            before += match pretext {
                Pretext::Masked { share } => masked_count(nodes, share),
                Pretext::GtSsl { .. } => nodes,
            };
            self.rows_before.push(before);
        }
        self.teacher.receive()
    }

    fn loss(&mut self, batch: &Batch, _: &Part, mode: Mode) -> Result<Losses, ObjectiveError> {
        let draw = if mode == Mode::Training { self.draw } else { Draw::FIXED };
        match self.model.config().pretext {
            Pretext::Masked { share } => self.masked(batch, mode, share, draw),
            Pretext::GtSsl { .. } => self.trees(batch, mode, draw),
        }
    }

    fn rows(&self, part: &Part) -> f64 {
        let before = |graph: usize| self.rows_before.get(graph).map_or(0.0, |&rows| rows as f64);
        before(part.graphs.end) - before(part.graphs.start)
    }

    fn weight(&self, _: &Batch) -> f64 {
        self.rows_before.last().map_or(0.0, |&rows| rows as f64)
    }
}

impl Student for PretrainingObjective {
    fn teacher(&self) -> &TeacherLink {
        &self.teacher
    }

    fn teacher_mut(&mut self) -> &mut TeacherLink {
        &mut self.teacher
    }

    fn capture_obstacle(&self) -> Option<&'static str> {
        Some("pre-training draws masked nodes and pairs on the host in every step")
    }
}
