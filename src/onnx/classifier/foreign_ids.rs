//! What the list of known IDs says beside the classifier: see [`foreign_ids`](crate::graph::foreign_ids).

use super::super::builder::{Content, Value};
use super::super::message::element;
use super::Network;
use crate::graph::Vocabulary;
use crate::nn::gat::CLASSES;

impl Network<'_> {
    /// `[graphs, CLASSES]`: 0, and `evidence` for the class attack of each graph with an unknown ID.
    pub(super) fn evidence_of_foreign_ids(&mut self, evidence: f32) -> Value {
        let unknown = self.builder.integers(&[i64::from(Vocabulary::UNKNOWN)]);
        let is_foreign = self.builder.apply("Equal", &[&self.id, &unknown], &[]);
        let is_foreign = self.as_floats(&is_foreign);
        let is_foreign = self.with_axis(&is_foreign, 1);
        let sends = self.sending_nodes();
        let counts = self.builder.apply("Mul", &[&is_foreign, &sends], &[]);
        let of_classes = self.builder.floats("foreign_ids.evidence", &[1, CLASSES], &[0.0, evidence]);
        let of_nodes = self.builder.apply("Mul", &[&counts, &of_classes], &[]);
        let (graph, graphs) = (self.graph.clone(), self.num_graphs.clone());
        self.scattered("max", (&graphs, CLASSES, 0.0), &graph, &of_nodes)
    }

    /// `[nodes, 1]`: 1 for IDs that the window has a frame of, 0 for one that only its last edge leads to. The former have an
    /// edge to another node, or the window ends with a row of their frames; then a feature says so, which the latter has not.
    fn sending_nodes(&mut self) -> Value {
        let is_loop = self.builder.apply("Equal", &[&self.source, &self.target], &[]);
        let leads_on = self.builder.apply("Not", &[&is_loop], &[]);
        let leads_on = self.as_floats(&leads_on);
        let leads_on = self.with_axis(&leads_on, 1);
        let (source, nodes) = (self.source.clone(), self.num_nodes.clone());
        let leads_on = self.scattered("max", (&nodes, 1, 0.0), &source, &leads_on);
        let column = self.builder.integers(&[self.config.input.features().shows_last_sender() as i64]);
        let feature = self.builder.apply("Gather", &[&self.continuous, &column], &[("axis", Content::Integer(1))]);
        let none = self.builder.floats("foreign_ids.none", &[1, 1], &[0.0]);
        let is_there = self.builder.apply("Greater", &[&feature, &none], &[]);
        let is_there = self.as_floats(&is_there);
        self.builder.apply("Max", &[&leads_on, &is_there], &[])
    }

    fn as_floats(&mut self, is_so: &Value) -> Value {
        self.builder.apply("Cast", &[is_so], &[("to", Content::Integer(i64::from(element::FLOAT)))])
    }
}
