//! Seed of the current training step. Together with a layer's name it determines that layer's dropout mask, on any
//! number of threads and in a recomputation.

use std::cell::Cell;

use tch::{Kind, TchError, Tensor};

use kdgat_base::random;

thread_local! {
    static STEP: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Begins a step on this thread. The epoch loop calls it before each step.
pub fn set(seed: u64) {
    STEP.with(|step| step.set(Some(seed)));
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
    Ok(random::mix(step ^ layer.0))
}

/// Identifies a layer by its name, so that its mask does not depend on what is computed before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerId(u64);

impl LayerId {
    /// Identifies the layer with this name.
    pub fn new(name: &str) -> Self {
        Self(random::seed_of_name(0, name))
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
