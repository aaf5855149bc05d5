//! Seed of the current training step. Together with a layer's name it determines that layer's dropout mask, on any
//! number of threads and in a recomputation.

use std::cell::Cell;

use tch::{Kind, TchError, Tensor};

use kdgat_base::random;

thread_local! {
    static STEP: Cell<Option<u64>> = const { Cell::new(None) };
    static BEFORE: Cell<RowsBefore> = const { Cell::new(RowsBefore { nodes: 0, graphs: 0, targets: 0 }) };
}

/// Rows of the step's whole batch before the first row of the part that is computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RowsBefore {
    /// Nodes before the first one.
    pub nodes: u64,
    /// Graphs before the first one.
    pub graphs: u64,
    /// Rows with targets before the first one.
    pub targets: u64,
}

/// Begins a step on this thread. The epoch loop calls it before each step.
pub fn set(seed: u64) {
    STEP.with(|step| step.set(Some(seed)));
    set_rows_before(RowsBefore::default());
}

/// Begins a part of a step's batch on this thread: its rows get the masks and the noise that they have in the whole batch.
pub fn set_rows_before(rows: RowsBefore) {
    BEFORE.with(|before| before.set(rows));
}

/// Runs `forward`, whose layers read rows of which `nodes` are before the first.
pub fn with_nodes_before<T>(nodes: u64, forward: impl FnOnce() -> T) -> T {
    let before = BEFORE.with(Cell::get);
    set_rows_before(RowsBefore { nodes, ..before });
    let result = forward();
    set_rows_before(before);
    result
}

/// Rows of the whole batch before the first one that `layer` reads in the current part.
pub fn rows_before(layer: LayerId) -> u64 {
    let RowsBefore { nodes, graphs, targets } = BEFORE.with(Cell::get);
    match layer.rows {
        LayerRows::Nodes => nodes,
        LayerRows::Graphs => graphs,
        LayerRows::Targets => targets,
    }
}

/// Runs `forward` with masks of its own in the current step; those of view 0 are the step's.
pub fn in_view<T>(view: u64, forward: impl FnOnce() -> T) -> T {
    let step = STEP.with(Cell::get);
    let seed = step.map(|seed| if view == 0 { seed } else { random::mix(seed ^ random::mix(view)) });
    STEP.with(|step| step.set(seed));
    let result = forward();
    STEP.with(|seed| seed.set(step));
    result
}

/// Seed of a layer's mask in the current step. If no step was begun, it comes from torch's generator.
pub fn of_layer(layer: LayerId) -> Result<u64, TchError> {
    let step = match STEP.with(Cell::get) {
        Some(seed) => seed,
        None => {
            let drawn = Tensor::f_randint(i64::MAX, [1], (Kind::Int64, tch::Device::Cpu))?;
            drawn.f_int64_value(&[0])? as u64
        }
    };
    Ok(random::mix(step ^ layer.name))
}

/// Identifies a layer by its name, so that its mask does not depend on what is computed before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerId {
    name: u64,
    rows: LayerRows,
}

/// The rows that a layer reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LayerRows {
    /// One per node.
    Nodes,
    /// One per graph.
    Graphs,
    /// One per node with targets.
    Targets,
}

impl LayerId {
    /// Identifies the layer with this name, which reads a row per node.
    pub fn new(name: &str) -> Self {
        Self { name: random::seed_of_name(0, name), rows: LayerRows::Nodes }
    }

    /// The same layer, reading a row per graph.
    pub fn of_graphs(self) -> Self {
        Self { rows: LayerRows::Graphs, ..self }
    }

    /// The same layer, reading a row per node with targets.
    pub fn of_targets(self) -> Self {
        Self { rows: LayerRows::Targets, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_function_of_step_and_layer() {
        let seed = |step, name| {
            set(step);
            of_layer(LayerId::new(name)).unwrap()
        };
        assert_eq!(seed(1, "a"), seed(1, "a"));
        assert_ne!(seed(1, "a"), seed(2, "a"));
        assert_ne!(seed(1, "a"), seed(1, "b"));
    }

    #[test]
    fn rows_before_a_part_end_with_the_step() {
        let layer = LayerId::new("a");
        let layers = [layer, layer.of_graphs(), layer.of_targets()];
        set(1);
        set_rows_before(RowsBefore { nodes: 30, graphs: 4, targets: 9 });
        assert_eq!(layers.map(rows_before), [30, 4, 9]);
        set(2);
        assert_eq!(layers.map(rows_before), [0; 3]);
    }

    #[test]
    fn a_view_has_its_own_seeds_and_leaves_the_step_as_it_was() {
        let layer = LayerId::new("a");
        set(1);
        let step = of_layer(layer).unwrap();
        let views: Vec<u64> = (0..3).map(|view| in_view(view, || of_layer(layer).unwrap())).collect();
        assert_eq!(views[0], step);
        assert!(views[1] != step && views[2] != step && views[1] != views[2]);
        assert_eq!(of_layer(layer).unwrap(), step);
    }
}
