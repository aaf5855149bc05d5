//! Evidence of the known-ID list, added to the classifier's logits: see [`foreign_ids`](kdgat_graph::foreign_ids).

use kdgat_graph::Vocabulary;
use kdgat_nn::gat::CLASSES;

use super::{ALONG_COLUMNS, Element, Network, Operators, Places, Reduction, Value};

impl Network<'_> {
    /// Evidence to add to the logits, `[graphs, CLASSES]`: `evidence` for the attack class of graphs with an unknown ID, else 0.
    pub(super) fn evidence_of_foreign_ids(&mut self, evidence: f32) -> Value {
        let sends = self.sending_nodes();
        let operators = &mut self.operators;
        let unknown = operators.builder.integers(&[i64::from(Vocabulary::UNKNOWN)]);
        let is_foreign = operators.apply("Equal", &[&self.id, &unknown], &[]);
        let is_foreign = as_column(operators, &is_foreign);
        let counts = operators.apply("Mul", &[&is_foreign, &sends], &[]);
        let of_classes = operators.builder.floats("foreign_ids.evidence", &[1, CLASSES], &[0.0, evidence]);
        let of_nodes = operators.apply("Mul", &[&counts, &of_classes], &[]);
        operators.scattered(Reduction::Max(0.0), &self.graphs, CLASSES, &of_nodes)
    }

    /// Mask of the nodes with a frame in the window, `[nodes, 1]`: 1, or 0 for an ID that only the last edge leads to. A sending node
    /// has an edge to another node, or the window ends with consecutive frames of it; then the feature `shows_last_sender` is
    /// above 0, while it is 0 for a node without a frame.
    fn sending_nodes(&mut self) -> Value {
        let operators = &mut self.operators;
        let Places { index: target, count } = &self.edges.target;
        let is_loop = operators.apply("Equal", &[&self.edges.source, target], &[]);
        let leads_on = operators.apply("Not", &[&is_loop], &[]);
        let leads_on = as_column(operators, &leads_on);
        let sources = Places { index: self.edges.source.clone(), count: count.clone() };
        let leads_on = operators.scattered(Reduction::Max(0.0), &sources, 1, &leads_on);
        let column = operators.builder.integers(&[self.config.input.features().shows_last_sender() as i64]);
        let feature = operators.apply("Gather", &[&self.continuous, &column], &[ALONG_COLUMNS]);
        let none = operators.builder.number(0.0);
        let is_there = operators.apply("Greater", &[&feature, &none], &[]);
        let is_there = operators.cast(&is_there, Element::Float);
        operators.apply("Max", &[&leads_on, &is_there], &[])
    }
}

/// 1 where it is so and else 0, `[nodes, 1]`.
fn as_column(operators: &mut Operators<'_>, is_so: &Value) -> Value {
    let numbers = operators.cast(is_so, Element::Float);
    operators.with_axis(&numbers, 1)
}
