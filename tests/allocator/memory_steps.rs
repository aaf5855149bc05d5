//! Steps in parts and with gradient checkpointing: the gradients of the whole step, with less memory.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, MutexGuard};
use support::process::alone;

use kdgat::can::Dataset;
use kdgat::distill::objective::{GatObjective, Student, TeacherLink, VgaeObjective};
use kdgat::graph::padding::SizeClass;
use kdgat::graph::{AssembleOptions, Batch, BuildOptions, assemble, open_or_build};
use kdgat::memory::{Meter, MicroBatch};
use kdgat::nn::attention::Backend;
use kdgat::nn::fused::step_seed::{self, LayerId};
use kdgat::nn::layers::Mode;
use kdgat::nn::{ClassLoss, FreshParameters, Gat, GatConfig, Scope, Vgae, VgaeConfig};
use kdgat::torch::allocator;
use kdgat::train::console::Console;
use kdgat::train::objective::{Backward, Losses, Objective, ObjectiveError, Part, TargetSource};
use kdgat::train::step::{StepBatch, StepOptions, StepRunner};
use kdgat::train::trainable::Trainable;
use tch::{Device, TchError, Tensor};

const OPTIONS: StepOptions = StepOptions { seed: 5, scale: 1.0, accumulates: false };

fn turn() -> MutexGuard<'static, ()> {
    let guard = alone();
    allocator::install().unwrap();
    tch::set_num_threads(1);
    guard
}

fn batch(graphs: u64) -> Batch {
    let folder = tempfile::tempdir().unwrap();
    let dataset = Dataset::open(support::cli::small_dataset()).unwrap();
    let store = open_or_build(&dataset, &BuildOptions::default(), folder.path(), &()).unwrap();
    let options = AssembleOptions {
        vocabulary: Arc::new(store.vocabulary().clone()),
        unknown_drop: None,
        edge_attributes: false,
        hashed_ids: false,
        profile: None,
        short_profiles: false,
        space: None,
    };
    assemble(&store, &(0..graphs).collect::<Vec<_>>(), &options).unwrap()
}

fn vgae(batch: &Batch, dropout: f64) -> (VgaeObjective, Trainable) {
    let config = VgaeConfig {
        hidden: vec![480, 240, 48],
        latent: 48,
        heads: 4,
        embedding: 32,
        vocabulary_size: batch.vocabulary_size,
        dropout,
        edge_scaling: None,
        input: Default::default(),
    };
    let mut parameters = FreshParameters::new(1, Device::Cpu);
    let model = Vgae::new(Scope::root(&mut parameters), &config, Backend::Auto).unwrap();
    let objective = VgaeObjective { model, teacher: TeacherLink::none(), distillation: None };
    (objective, Trainable::new(parameters.into_tensors(), Device::Cpu).unwrap())
}

fn gat(batch: &Batch, task: ClassLoss) -> (GatObjective, Trainable) {
    let config = GatConfig {
        hidden: 48,
        layers: 3,
        heads: 8,
        embedding: 16,
        fc_layers: 2,
        vocabulary_size: batch.vocabulary_size,
        dropout: 0.0,
        edge_scaling: None,
        input: Default::default(),
    };
    let mut parameters = FreshParameters::new(1, Device::Cpu);
    let model = Gat::new(Scope::root(&mut parameters), &config, Backend::Auto).unwrap();
    let (teacher, distillation, mean_label_weight) = (TeacherLink::none(), None, None);
    let objective = GatObjective { model, task, teacher, distillation, labels: None, mean_label_weight };
    (objective, Trainable::new(parameters.into_tensors(), Device::Cpu).unwrap())
}

/// Gradients, losses and running statistics of one step, and its peak memory.
fn step(
    objective: &mut dyn Objective,
    trainable: &mut Trainable,
    batch: &Batch,
    parts_of: Option<usize>,
) -> (Tensor, Tensor, u64) {
    let mut runner = StepRunner::new(trainable, Device::Cpu, None).unwrap();
    if let Some(graphs) = parts_of {
        runner.begin_with(MicroBatch::at_most(graphs));
    }
    objective.source_mut().announce(std::slice::from_ref(batch)).unwrap();
    objective.receive(batch).unwrap();
    let meter = Meter::new(Device::Cpu);
    meter.reset_peak();
    let before = meter.read().current_bytes;
    let mut console = Console::new(None).unwrap();
    let losses = runner.gradients(objective, trainable, batch, OPTIONS, &mut console).unwrap();
    let peak = meter.read().peak_bytes - before;
    let gradients = trainable.gradients.copy();
    trainable.zero_gradients().unwrap();
    (gradients, losses, peak)
}

fn difference(found: &Tensor, expected: &Tensor) -> f64 {
    let scale = expected.nan_to_num(0.0, None, None).abs().max().double_value(&[]).max(1e-12);
    (found - expected).nan_to_num(0.0, None, None).abs().max().double_value(&[]) / scale
}

#[test]
fn recomputing_gives_the_same_gradients_with_less_memory() {
    let _turn = turn();
    let batch = batch(64);
    let (mut objective, mut trainable) = vgae(&batch, 0.15);
    let running = |trainable: &Trainable| {
        let named = trainable.tensors().iter().filter(|named| named.name.contains("running"));
        named.map(|named| named.tensor.copy()).collect::<Vec<_>>()
    };
    let (kept, kept_losses, kept_peak) = step(&mut objective, &mut trainable, &batch, None);
    let after_kept = running(&trainable);
    let (mut objective, mut trainable) = vgae(&batch, 0.15);
    objective.set_checkpointing(true);
    let (recomputed, losses, peak) = step(&mut objective, &mut trainable, &batch, None);
    println!(
        "VGAE teacher: {kept_peak} bytes kept, {peak} recomputed ({:.0} % less)",
        100.0 - 100.0 * peak as f64 / kept_peak as f64
    );
    assert!(difference(&recomputed, &kept) < 1e-6, "gradients differ by {:e}", difference(&recomputed, &kept));
    assert!(difference(&losses, &kept_losses) < 1e-9);
    for (left, right) in running(&trainable).iter().zip(&after_kept) {
        assert_eq!(left, right, "running statistics");
    }
    assert!(peak as f64 <= 0.65 * kept_peak as f64, "{peak} of {kept_peak}");

    let (mut objective, mut trainable) = gat(&batch, ClassLoss::CrossEntropy);
    let (kept, _, kept_peak) = step(&mut objective, &mut trainable, &batch, None);
    objective.set_checkpointing(true);
    let (recomputed, _, peak) = step(&mut objective, &mut trainable, &batch, None);
    println!(
        "GAT teacher: {kept_peak} bytes kept, {peak} recomputed ({:.0} % less)",
        100.0 - 100.0 * peak as f64 / kept_peak as f64
    );
    assert!(difference(&recomputed, &kept) < 1e-6);
    assert!(peak as f64 <= 0.65 * kept_peak as f64, "{peak} of {kept_peak}");
}

#[test]
fn parts_add_up_to_the_whole_batch() {
    let _turn = turn();
    let batch = batch(23);
    let tasks = || {
        [
            ClassLoss::CrossEntropy,
            ClassLoss::balanced(&[3, 2], &[1, 1], Device::Cpu).unwrap(),
            ClassLoss::Focal { gamma: 2.0 },
        ]
    };
    for task in tasks() {
        let name = format!("{task:?}");
        let (mut objective, mut trainable) = gat(&batch, task);
        let (whole, whole_losses, whole_peak) = step(&mut objective, &mut trainable, &batch, None);
        for graphs in [12, 5, 1] {
            let (parts, losses, peak) = step(&mut objective, &mut trainable, &batch, Some(graphs));
            assert!(difference(&parts, &whole) < 1e-5, "{name}, {graphs}: {:e}", difference(&parts, &whole));
            assert!(difference(&losses.narrow(0, 0, 2), &whole_losses.narrow(0, 0, 2)) < 1e-5, "{name}, {graphs}");
            assert!(peak < whole_peak, "{name}, {graphs}: {peak} of {whole_peak}");
        }
    }
}

/// Objective with a hook that runs before each loss.
struct Before<F>(GatObjective, F);

impl<F: FnMut() -> Result<(), ObjectiveError>> Objective for Before<F> {
    fn parts(&self) -> &'static [&'static str] {
        self.0.parts()
    }

    fn source(&self) -> &dyn TargetSource {
        self.0.source()
    }

    fn source_mut(&mut self) -> &mut dyn TargetSource {
        self.0.source_mut()
    }

    fn start_batch(&mut self, batch: &Batch) {
        self.0.start_batch(batch);
    }

    fn loss(&mut self, batch: &Batch, part: &Part, mode: Mode) -> Result<Losses, ObjectiveError> {
        (self.1)()?;
        self.0.loss(batch, part, mode)
    }

    fn training_loss(&mut self, batch: &Batch, part: &Part, backward: Backward) -> Result<Losses, ObjectiveError> {
        (self.1)()?;
        self.0.training_loss(batch, part, backward)
    }

    fn rows(&self, part: &Part) -> f64 {
        self.0.rows(part)
    }
}

#[test]
fn each_part_draws_masks_and_noise_of_its_own() {
    let _turn = turn();
    let batch = batch(23);
    let (objective, mut trainable) = gat(&batch, ClassLoss::CrossEntropy);
    let drawn = RefCell::new(Vec::new());
    let mut objective = Before(objective, || {
        // The seed of a layer's masks.
        drawn.borrow_mut().push(step_seed::of_layer(LayerId::new("latent")).unwrap());
        Ok(())
    });
    let mut seeds = |parts_of: Option<usize>| {
        drop(step(&mut objective, &mut trainable, &batch, parts_of));
        drawn.take()
    };
    let parts = seeds(Some(5));
    assert_eq!(parts.len(), 5);
    assert_eq!(parts.iter().collect::<std::collections::BTreeSet<_>>().len(), 5, "two parts draw the same: {parts:?}");
    assert_eq!(seeds(Some(5)), parts, "the same step draws the same again");
    assert_eq!(seeds(None).len(), 1);
}

/// Batch norm normalises one part at a time: losses are close to those of the whole batch; running means are equal, updated once.
#[test]
fn batch_norm_in_parts_moves_its_statistics_once() {
    let _turn = turn();
    let batch = batch(32);
    let statistics = |graphs: Option<usize>| {
        let (mut objective, mut trainable) = vgae(&batch, 0.0);
        let (_, losses, _) = step(&mut objective, &mut trainable, &batch, graphs);
        let first = |suffix: &str| {
            let named = trainable.tensors().iter().find(|named| named.name == format!("encoder_bns.0.{suffix}"));
            named.unwrap().tensor.copy()
        };
        (first("running_mean"), first("num_batches_tracked"), losses.double_value(&[0]))
    };
    let (mean, counted, loss) = statistics(None);
    let (mean_in_parts, counted_in_parts, loss_in_parts) = statistics(Some(16));
    assert!(
        difference(&mean_in_parts, &mean) < 1e-5,
        "running means differ by {:e}",
        difference(&mean_in_parts, &mean)
    );
    assert_eq!(counted, counted_in_parts);
    assert!((loss - loss_in_parts).abs() < 0.05 * loss, "{loss} and {loss_in_parts}");
}

#[test]
fn memory_that_runs_out_ends_recording() {
    let _turn = turn();
    let batch = batch(23);
    let filled_up = batch.padded(SizeClass::of(&batch)).unwrap();
    let (objective, mut trainable) = gat(&batch, ClassLoss::CrossEntropy);
    let (calls, failing) = (Cell::new(0), Cell::new(0));
    let mut objective = Before(objective, || {
        calls.set(calls.get() + 1);
        if calls.get() == failing.get() { Err(TchError::Torch("CUDA out of memory".into()).into()) } else { Ok(()) }
    });
    let mut runner = StepRunner::new(&trainable, Device::Cpu, None).unwrap();
    let mut console = Console::new(None).unwrap();
    let mut take_step = || {
        objective.source_mut().announce(std::slice::from_ref(&batch)).unwrap();
        objective.receive(&batch).unwrap();
        let step = StepBatch { batch: &batch, filled_up: Some(&filled_up) };
        let losses = runner.gradients(&mut objective, &mut trainable, step, OPTIONS, &mut console).unwrap();
        let gradients = trainable.gradients.copy();
        trainable.zero_gradients().unwrap();
        (losses, gradients, runner.recorded_sizes(), runner.can_record())
    };
    let (first, expected, ..) = take_step();
    let (.., sizes, can_record) = take_step();
    assert!(sizes == 1 && can_record, "met twice: recorded");
    failing.set(calls.get() + 1);
    for _ in 0..3 {
        let (losses, gradients, sizes, can_record) = take_step();
        assert!(sizes == 0 && !can_record, "{sizes} recorded after memory ran out");
        assert!(difference(&losses, &first) < 1e-6 && difference(&gradients, &expected) < 1e-5);
    }
}

#[test]
fn memory_that_runs_out_in_validation_leaves_the_training_size_alone() {
    let _turn = turn();
    let batch = batch(23);
    let (objective, trainable) = gat(&batch, ClassLoss::CrossEntropy);
    let (failures, calls) = (Cell::new(0), Cell::new(0));
    let mut objective = Before(objective, || {
        calls.set(calls.get() + 1);
        if calls.get() > failures.get() { Ok(()) } else { Err(TchError::Torch("CUDA out of memory".into()).into()) }
    });
    objective.source_mut().announce(std::slice::from_ref(&batch)).unwrap();
    objective.receive(&batch).unwrap();
    let mut runner = StepRunner::new(&trainable, Device::Cpu, None).unwrap();
    let mut console = Console::new(None).unwrap();
    // The loss, and the number of loss computations.
    let mut validated = |failing: u64| {
        failures.set(failing);
        calls.set(0);
        let losses = runner.validation(&mut objective, &batch, &mut console).unwrap();
        assert_eq!(runner.micro_batch(), &MicroBatch::default(), "training goes on with whole batches");
        (losses.double_value(&[0]), calls.get())
    };
    let (whole, _) = validated(0);
    for _ in 0..8 {
        assert_eq!(validated(1), (whole, 2), "one failure a batch is no reason for parts");
    }
    let (in_parts, asked) = validated(3);
    assert_eq!(asked, 3 + 2, "two halves");
    assert!((in_parts - whole).abs() < 1e-5 * whole, "{in_parts} in parts, {whole} at once");
}
