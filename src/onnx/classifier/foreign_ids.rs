//! Evidence of the known-ID list, added to the classifier's logits: see [`foreign_ids`](crate::graph::foreign_ids).

use super::super::builder::{Content, Value};
use super::super::message::element;
use super::Network;
use crate::graph::Vocabulary;
use crate::nn::gat::CLASSES;

impl Network<'_> {
    /// Evidence to add to the logits, `[graphs, CLASSES]`: `evidence` for the attack class of graphs with an unknown ID, else 0.
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

    /// Mask of the nodes with a frame in the window, `[nodes, 1]`: 1, or 0 for an ID that only the last edge leads to. A sending node
    /// has an edge to another node, or the window ends with consecutive frames of it; then the feature `shows_last_sender` is
    /// above 0, while it is 0 for a node without a frame.
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
