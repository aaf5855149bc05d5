//! Settings with which a training needs less memory, and what each of them saves: measured, or computed from what was measured.

use super::measured::{Networks, Queues};
use super::memory_plan::Planned;
use super::sizing::CACHED_TARGETS;
use super::{StageError, training};
use crate::config::{Config, Precision, Residency};
use crate::memory::budget::{BATCH_DATA, GRADIENTS, LOADER_QUEUE, MemoryBudget, OPTIMIZER_STATES, TEACHER_WEIGHTS};
use crate::nn::{Architecture, GnnKind, PretrainingConfig};

/// Share of the peak that a setting must save to be named.
const WORTH_NAMING: f64 = 0.01;

/// A setting, and the peak of the batches of a training with it.
#[derive(Debug, Clone)]
pub struct Lever {
    pub name: &'static str,
    pub flags: String,
    pub bytes: f64,
}

/// Changes of a training whose memory is measured again.
#[derive(Debug, Clone, Copy, Default)]
pub struct Variant {
    /// True to recompute activations in the backward pass.
    pub recomputes: bool,
    /// True for activations in bf16.
    half: bool,
    /// True for layers of half the width.
    narrower: bool,
    /// True to have the teacher's weights on the device during a visit only.
    offloads_teacher: bool,
}

impl Variant {
    /// The variant that recomputes activations and changes nothing else.
    pub const RECOMPUTING: Self = Self { recomputes: true, half: false, narrower: false, offloads_teacher: false };

    /// The configuration and the networks with these changes.
    pub fn of(&self, config: &Config, networks: &Networks) -> (Config, Networks) {
        let (mut config, mut networks) = (config.clone(), networks.clone());
        if self.half {
            config.training.precision = Precision::BrainFloat;
        }
        if self.offloads_teacher {
            config.distillation.offload_teacher = true;
        }
        if let Some((student, _)) = self.narrower.then(|| narrower(&networks.student)).flatten() {
            networks.student = student;
        }
        (config, networks)
    }
}

/// The network with half of the columns, and the flags that set them; `None` for one whose columns are too few.
fn narrower(architecture: &Architecture) -> Option<(Architecture, String)> {
    // The columns of representations are counted one by one.
    if matches!(architecture, Architecture::Graph(config) if config.kind == GnnKind::Irreps) {
        return None;
    }
    let mut changed = architecture.clone();
    let half = |columns: &mut i64| {
        *columns /= 2;
        *columns > 0
    };
    let (possible, flags) = match &mut changed {
        Architecture::Vgae(config) => {
            let possible = config.hidden.iter_mut().chain([&mut config.latent]).all(half);
            let widths: Vec<String> = config.hidden.iter().map(i64::to_string).collect();
            (possible, format!("--hidden {} --latent {}", widths.join(","), config.latent))
        }
        Architecture::Gat(config) => (half(&mut config.hidden), format!("--hidden {}", config.hidden)),
        Architecture::Graph(config) | Architecture::Pretraining(PretrainingConfig { network: config, .. }) => {
            (half(&mut config.hidden), format!("--hidden {}", config.hidden))
        }
        Architecture::GraphVgae(config) => {
            (half(&mut config.encoder.hidden), format!("--hidden {}", config.encoder.hidden))
        }
        Architecture::Nodes(config) => (half(&mut config.hidden), format!("--hidden {}", config.hidden)),
    };
    possible.then_some((changed, flags))
}

impl Lever {
    /// The settings that need less memory than `budget` at batches of `wanted` graphs, those that save most first.
    ///
    /// `recomputing` is the budget with activations that are recomputed, of a network that can.
    ///
    /// # Errors
    /// A step that cannot be measured.
    pub fn all(
        planned: &Planned,
        budget: &MemoryBudget,
        recomputing: Option<&MemoryBudget>,
        wanted: usize,
    ) -> Result<Vec<Self>, StageError> {
        let peak = |budget: &MemoryBudget, graphs: usize| budget.peak_bytes(planned.worst.shape(graphs));
        let measured = |variant: Variant| Ok::<_, StageError>(peak(&planned.budget(&variant)?, wanted));
        let (config, student) = (&planned.config, &planned.networks.student);
        let mut levers = Vec::new();
        let mut add = |name, flags: String, bytes| levers.push(Self { name, flags, bytes });
        if wanted > 1 {
            let smaller = wanted.div_ceil(2);
            // Gradients of the batches so far are kept beside those of the current one.
            let gradients = budget.components.iter().find(|component| component.name == GRADIENTS);
            let kept = match config.training.accumulate_grad_batches {
                1 => gradients.map_or(0.0, |component| component.bytes.fixed),
                _ => 0.0,
            };
            let accumulated = 2 * config.training.accumulate_grad_batches;
            let flags = format!("--batch-size {smaller} --accumulate-grad-batches {accumulated}");
            add("half of the batch, accumulated", flags, peak(budget, smaller) + kept);
        }
        if let Some(recomputing) = recomputing {
            let flags = match config.memory.gradient_checkpointing {
                true => "--gradient-checkpointing true, the default, where more graphs fit by it",
                false => "--gradient-checkpointing true",
            };
            add("activations computed again", flags.into(), peak(recomputing, wanted));
        }
        if config.training.precision == Precision::Single {
            let variant = Variant { half: true, ..Variant::default() };
            add("mixed precision", "--precision bf16-mixed".into(), measured(variant)?);
        }
        // Weights that a training begins with have one width.
        if let Some((_, flags)) = narrower(student).filter(|_| config.training.init_from.is_none()) {
            add("half of the width", flags, measured(Variant { narrower: true, ..Variant::default() })?);
        }
        let has = |name: &str| budget.components.iter().any(|component| component.name == name);
        let without = |name: &str| {
            let mut budget = budget.clone();
            budget.components.retain(|component| component.name != name);
            budget
        };
        let Queues { burst, waiting } = planned.queues(config);
        if !planned.networks.teachers.is_empty() {
            if burst > 1 {
                add("fewer batches a visit", "--teacher-burst 1".into(), peak(&budget.with_burst(burst, 1), wanted));
            }
            if has(TEACHER_WEIGHTS) && config.distillation.residency() == Residency::Resident {
                let variant = Variant { offloads_teacher: true, ..Variant::default() };
                add("weights of the teacher off the device", "--offload-teacher".into(), measured(variant)?);
            }
            if planned.caches_in_memory() {
                add("targets on disk", "--teacher-cache disk".into(), peak(&without(CACHED_TARGETS), wanted));
            }
        }
        if has(LOADER_QUEUE) && config.training.prefetch_batches > 1 && has(BATCH_DATA) {
            let mut shorter = budget.clone();
            let queue = shorter.components.iter_mut().filter(|component| component.name == LOADER_QUEUE);
            let least = training::loader_workers(config, planned.is_on_gpu()).min(waiting);
            queue.for_each(|component| component.bytes = component.bytes.times(least as f64 / waiting.max(1) as f64));
            add("a shorter queue", "--prefetch-batches 1".into(), peak(&shorter, wanted));
        }
        if has(OPTIMIZER_STATES) && planned.is_on_gpu() && !config.memory.offload_optimizer {
            add("Adam's states in host memory", "--offload-optimizer".into(), peak(&without(OPTIMIZER_STATES), wanted));
        }
        let most = (1.0 - WORTH_NAMING) * peak(budget, wanted);
        levers.retain(|lever| lever.bytes < most);
        levers.sort_by(|one, other| one.bytes.total_cmp(&other.bytes));
        Ok(levers)
    }
}
