//! The teacher on a GPU: bitwise equal results, no memory left between visits, and for every ordering rule a race that it
//! prevents. Without a GPU these tests print a line and pass.

use std::sync::MutexGuard;
use support::process::alone;

use kdgat::distill::accelerator::{Accelerator, AcceleratorError, Cuda, HostBlock, MemoryState};
use kdgat::distill::order::{AllRules, Rule, Rules, Stream};
use kdgat::distill::shuttle::{Shuttle, VisitKind};
use kdgat::distill::{
    CacheMode, FrozenModel, LayerSpec, LayerState, ModelError, Residency, TargetLayout, Targets, Teacher,
    TeacherOptions, WeightViews,
};
use kdgat::graph::Batch;
use kdgat::torch::device::{
    self, Recording, RecordingPool, StreamGuard, captured_bytes, cuda_device_count, cuda_sleep, device_memory,
    empty_cache, reset_device_peak, synchronize,
};
use support::distill::{Behaviour, Perceptron, batch, bits, burst, cache_options, shape};
use tch::{Device, Kind, Tensor};

/// Cycles of the GPU's clock, about half a second.
const LONG: i64 = 800_000_000;

/// Reserves the GPU for one test at a time, because the tests measure its memory.
fn gpu() -> Option<(Device, MutexGuard<'static, ()>)> {
    kdgat::torch::load_cuda();
    match cuda_device_count() {
        Ok(count) if count > 0 => Some((Device::Cuda(0), alone())),
        found => {
            println!("skipped: no GPU ({found:?})");
            None
        }
    }
}

fn run(options: &TeacherOptions) -> Vec<Targets> {
    let model = Perceptron::wide(256, 6);
    let weights = model.weights(3);
    let mut teacher = Teacher::start(model, weights, options, &shape(40)).unwrap();
    let batches: Vec<Vec<u64>> = (0..4).map(|number| (number * 10..number * 10 + 10).collect()).collect();
    let mut targets = burst(&mut teacher, &batches).unwrap();
    targets.extend(burst(&mut teacher, &batches).unwrap());
    synchronize(options.device).unwrap();
    targets
}

#[test]
fn every_residency_and_the_cache_give_the_same_bits_on_a_gpu() {
    let Some((device, _gpu)) = gpu() else { return };
    let expected: Vec<_> = run(&TeacherOptions::new(device)).iter().map(bits).collect();
    for residency in [Residency::Resident, Residency::Forward, Residency::Layer, Residency::Auto] {
        for mode in [CacheMode::Off, CacheMode::Ram] {
            let options = TeacherOptions { device, residency, ..cache_options(mode, None) };
            let found: Vec<_> = run(&options).iter().map(bits).collect();
            assert_eq!(found, expected, "{residency}, {mode:?}");
        }
    }
}

#[test]
fn nothing_is_left_between_visits_and_peaks_are_ordered() {
    let Some((device, _gpu)) = gpu() else { return };
    // cuBLAS allocates a workspace at its first product, which must not count as leftover weights.
    drop(run(&TeacherOptions::new(device)));
    let mut peaks = Vec::new();
    for residency in [Residency::Layer, Residency::Forward, Residency::Resident] {
        synchronize(device).unwrap();
        let before = device_memory(device).unwrap().allocated;
        reset_device_peak(device).unwrap();
        let model = Perceptron::wide(2048, 8);
        let weights = model.weights(3);
        let bytes = weights.bytes() as i64;
        let options = TeacherOptions { residency, ..TeacherOptions::new(device) };
        let mut teacher = Teacher::start(model, weights, &options, &shape(0)).unwrap();
        for _ in 0..3 {
            drop(burst(&mut teacher, &[vec![1, 2], vec![3]]).unwrap());
            while residency != Residency::Resident && teacher.report().device_bytes_teacher > 0 {
                std::thread::yield_now();
            }
            let left = device_memory(device).unwrap().allocated - before;
            if residency == Residency::Resident {
                assert!(left >= bytes * 9 / 10, "{left} of {bytes}");
            } else {
                assert_eq!(left, 0, "{residency}");
            }
            // The student's step allocates as much as the teacher.
            drop(Tensor::zeros([bytes], (Kind::Uint8, device)));
        }
        peaks.push((device_memory(device).unwrap().peak_allocated - before, bytes));
        teacher.finish().unwrap();
    }
    let [(layer, _), (forward, _), (resident, bytes)] = peaks[..] else { unreachable!() };
    assert!(layer <= forward && forward < resident, "{peaks:?}");
    assert!(resident - forward > bytes * 8 / 10, "lower by about the teacher's size: {peaks:?}");
}

/// What a replay needs is reserved and belongs to no tensor, but a teacher cannot have it.
#[test]
fn memory_of_cuda_graphs_is_not_free() {
    let Some((device, _gpu)) = gpu() else { return };
    let values = Tensor::ones([1 << 20], (Kind::Float, device));
    let work = || values.f_exp()?.f_neg().map(drop);
    // The GPU loads a kernel at its first use.
    work().unwrap();
    let (accelerator, pool) = (Cuda::new(device).unwrap(), RecordingPool::new(device).unwrap());
    let free_bytes = || {
        empty_cache(device).unwrap();
        accelerator.memory().free_bytes.unwrap()
    };
    let before = free_bytes();
    let (recording, ()) = Recording::of(pool, work).unwrap();
    let captured = captured_bytes();
    assert!(captured >= 2 << 22, "{captured} bytes for two tensors of 4 MiB");
    let during = free_bytes();
    assert!(during + captured <= before, "{during} bytes free of {before}, {captured} captured");
    drop(recording);
    assert_eq!(captured_bytes(), 0);
    assert!(free_bytes() > during, "the memory of a freed graph is free");
}

/// GPU whose copies start late.
struct SlowCopies(Cuda);

impl Accelerator for SlowCopies {
    type Event = <Cuda as Accelerator>::Event;

    fn device(&self) -> Device {
        self.0.device()
    }
    fn is_host(&self) -> bool {
        false
    }
    fn host_block(&mut self, bytes: usize) -> Result<HostBlock, AcceleratorError> {
        self.0.host_block(bytes)
    }
    fn allocate(&mut self, bytes: usize) -> Result<Tensor, AcceleratorError> {
        self.0.allocate(bytes)
    }
    fn copy(&mut self, from: &Tensor, to: &mut Tensor) -> Result<(), AcceleratorError> {
        let copies = StreamGuard::enter(self.0.stream(Stream::Copy))?;
        cuda_sleep(LONG)?;
        drop(copies);
        self.0.copy(from, to)
    }
    fn finish_copies(&mut self) -> Result<(), AcceleratorError> {
        self.0.finish_copies()
    }
    fn enter_thread(&mut self) -> Result<StreamGuard, AcceleratorError> {
        self.0.enter_thread()
    }
    fn record(&mut self, stream: Stream) -> Result<Self::Event, AcceleratorError> {
        self.0.record(stream)
    }
    fn wait(&mut self, stream: Stream, event: &Self::Event) -> Result<(), AcceleratorError> {
        self.0.wait(stream, event)
    }
    fn elapsed_ms(&self, from: &Self::Event, to: &Self::Event) -> Option<f64> {
        self.0.elapsed_ms(from, to)
    }
    fn student_takes(events: &[Self::Event], targets: &Targets) -> Result<(), AcceleratorError> {
        Cuda::student_takes(events, targets)
    }
    fn memory(&self) -> MemoryState {
        self.0.memory()
    }
}

/// Teacher whose layers start late.
struct SlowLayers(Box<Perceptron>);

impl FrozenModel for SlowLayers {
    fn target_layout(&self) -> TargetLayout {
        self.0.target_layout()
    }
    fn layers(&self) -> Vec<LayerSpec> {
        self.0.layers()
    }
    fn forward_layer(
        &self,
        layer: usize,
        weights: &WeightViews,
        batch: &Batch,
        state: LayerState,
    ) -> Result<LayerState, ModelError> {
        if batch.continuous.device() != Device::Cpu {
            cuda_sleep(LONG / 4).map_err(|error| ModelError::Other(error.to_string()))?;
        }
        self.0.forward_layer(layer, weights, batch, state)
    }
}

#[derive(Clone, Copy)]
struct AllBut(Rule);

impl Rules for AllBut {
    fn keeps(&self, rule: Rule) -> bool {
        rule != self.0
    }
}

/// Makes one visit and returns the targets as the student's stream sees them while it overwrites all memory that it gets.
fn visit<A: Accelerator, R: Rules>(
    accelerator: A,
    model: Box<dyn FrozenModel>,
    rules: R,
    kind: VisitKind,
) -> Vec<Vec<u32>> {
    let _no_grad = tch::no_grad_guard();
    let weights = Perceptron::wide(512, 5).weights(3);
    let device = accelerator.device();
    let mut shuttle = Shuttle::with_rules(accelerator, model, weights, (rules, None)).unwrap();
    let bytes = shuttle.bytes() as i64;
    let mut seen = Vec::new();
    let mut ready = Vec::new();
    {
        let _teacher = shuttle.accelerator().enter_thread().unwrap();
        let batches = vec![batch(&[1, 2, 3]), batch(&[4])];
        shuttle
            .visit(kind, batches, &mut |_, _, targets| {
                ready.push(targets);
                Ok(())
            })
            .unwrap();
    }
    // From here on, new tensors of the student's stream are NaN, wherever their memory comes from.
    let slots = shuttle.ring_slots(2).into_iter().map(|bytes| bytes as i64);
    let corrupters: Vec<Tensor> = std::iter::once(bytes)
        .chain(slots)
        .map(|bytes| Tensor::full([bytes / 4], f64::NAN, (Kind::Float, device)))
        .collect();
    for targets in ready {
        A::student_takes(&targets.events, &targets.targets).unwrap();
        for (_, tensor) in targets.targets.tensors {
            seen.push(tensor + 0.0);
        }
    }
    synchronize(device).unwrap();
    drop(corrupters);
    let bits = |tensor: &Tensor| {
        let values: Vec<f32> = Vec::try_from(tensor.flatten(0, -1)).unwrap();
        values.into_iter().map(f32::to_bits).collect()
    };
    seen.iter().map(bits).collect()
}

#[test]
fn races_are_lost_only_when_a_rule_is_left_out() {
    let Some((device, _gpu)) = gpu() else { return };
    let plain = || Perceptron::wide(512, 5);
    let expected = visit(Cuda::new(device).unwrap(), plain(), AllRules, VisitKind::Forward);
    // Fills memory with NaN, so that reads that are too early become visible.
    drop(Tensor::full([64 << 20], f64::NAN, (Kind::Float, device)));
    let overlapping = || Cuda::with_own_stream(device).unwrap();
    let slow_copies = || SlowCopies(overlapping());
    let slow_layers = || Box::new(SlowLayers(plain()));
    let ring = VisitKind::Layer { slots: 2 };
    for kind in [VisitKind::Forward, VisitKind::Resident, ring] {
        assert_eq!(visit(slow_copies(), plain(), AllRules, kind), expected, "slow copies, {kind:?}");
        assert_eq!(visit(overlapping(), slow_layers(), AllRules, kind), expected, "slow layers, {kind:?}");
    }
    let without = |rule| visit(slow_copies(), plain(), AllBut(rule), VisitKind::Forward);
    assert_ne!(without(Rule::ReadAfterWrite), expected, "a forward that does not wait for its weights");
    let without = |rule, kind| visit(overlapping(), slow_layers(), AllBut(rule), kind);
    assert_ne!(without(Rule::WriteAfterRead, ring), expected, "a slot that is overwritten while it is read");
    assert_ne!(without(Rule::UseAfterForward, VisitKind::Resident), expected, "targets that are read too early");
    assert_ne!(without(Rule::ReturnToLastUser, VisitKind::Forward), expected, "weights that are let go too early");
}

#[test]
fn batches_may_lie_on_the_device() {
    let Some((device, _gpu)) = gpu() else { return };
    let model = Perceptron::vgae(Behaviour::Proper);
    let weights = model.weights(3);
    let mut teacher = Teacher::start(model, weights, &TeacherOptions::new(device), &shape(0)).unwrap();
    teacher.submit(vec![batch(&[1]).to_device(device).unwrap()]);
    assert!(teacher.targets().is_ok());
}

#[test]
fn the_default_stream_stays_current_on_the_training_thread() {
    let Some((device, _gpu)) = gpu() else { return };
    let before = device::Stream::current(device).unwrap();
    drop(run(&TeacherOptions::new(device)));
    assert_eq!(device::Stream::current(device).unwrap(), before);
}
