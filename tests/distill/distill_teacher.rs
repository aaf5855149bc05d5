//! The teacher's thread: the same results for every residency, and a clean end in every case.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use support::process::{assert_passed, only_test};

use kdgat::distill::accelerator::{Accelerator, AcceleratorError, Cpu, HostBlock, MemoryState};
use kdgat::distill::order::Stream;
use kdgat::distill::shuttle::{Shuttle, VisitKind};
use kdgat::distill::{Residency, StoreShape, Targets, Teacher, TeacherError, TeacherOptions, Weights};
use kdgat::graph::Batch;
use kdgat::torch::device::StreamGuard;
use support::distill::{Behaviour, Perceptron, batch, bits};
use tch::{Device, Tensor};

fn options(residency: Residency) -> TeacherOptions {
    TeacherOptions { residency, ..TeacherOptions::new(Device::Cpu) }
}

fn bursts(count: u64) -> Vec<Vec<Batch>> {
    let make = |burst| (0..3u64).map(|number| batch(&[burst * 9 + number * 3, burst * 9 + 1, 7])).collect();
    (0..count).map(make).collect()
}

fn all_targets(model: Box<Perceptron>, weights: Weights, residency: Residency, slots: usize) -> Vec<Targets> {
    let options = TeacherOptions { layer_slots: slots, ..options(residency) };
    let mut teacher = Teacher::start(model, weights, &options, &StoreShape::default()).unwrap();
    let mut targets = Vec::new();
    for burst in bursts(3) {
        let count = burst.len();
        teacher.submit(burst);
        for _ in 0..count {
            targets.push(teacher.targets().unwrap());
        }
    }
    let summary = teacher.finish().unwrap();
    assert_eq!((summary.batches, summary.visits, summary.forwards), (9, 3, 9));
    targets
}

#[test]
fn residencies_give_the_same_bits() {
    tch::set_num_threads(1);
    for model in [Perceptron::classifier as fn() -> Box<Perceptron>, || Perceptron::vgae(Behaviour::Proper)] {
        let run = |residency, slots| {
            let model = model();
            let weights = model.weights(3);
            all_targets(model, weights, residency, slots).iter().map(bits).collect::<Vec<_>>()
        };
        let resident = run(Residency::Resident, 2);
        assert_eq!(resident.len(), 9);
        assert_eq!(run(Residency::Forward, 2), resident, "forward");
        for slots in 1..=6 {
            assert_eq!(run(Residency::Layer, slots), resident, "layer with {slots} slots");
        }
    }
}

/// Between layers, only as many batches wait as fit into the saved memory, so `layer` never takes more than `forward`. For the other
/// batches, the layers are copied to the device again.
#[test]
fn a_long_burst_goes_through_the_layers_in_parts() {
    tch::set_num_threads(1);
    let run = |residency| {
        let model = Perceptron::wide(8, 6);
        let weights = model.weights(4);
        let mut teacher = Teacher::start(model, weights, &options(residency), &StoreShape::default()).unwrap();
        let burst: Vec<Batch> = (0..16).map(|number| batch(&[number, number + 1, 40 - number])).collect();
        teacher.submit(burst);
        let targets: Vec<_> = (0..16).map(|_| bits(&teacher.targets().unwrap())).collect();
        (targets, teacher.finish().unwrap())
    };
    let (expected, _) = run(Residency::Resident);
    let (targets, summary) = run(Residency::Layer);
    assert_eq!(targets, expected);
    assert_eq!((summary.batches, summary.visits, summary.forwards), (16, 1, 16));
    let rounds = summary.copied_bytes as f64 / summary.total.teacher_bytes as f64;
    assert!(rounds.fract() == 0.0 && (2.0..16.0).contains(&rounds), "the layers were copied {rounds} times");
}

#[test]
fn forward_and_layer_leave_nothing_on_the_device_between_visits() {
    let mut peaks = Vec::new();
    for residency in [Residency::Layer, Residency::Forward, Residency::Resident] {
        let model = Perceptron::wide(64, 6);
        let weights = model.weights(1);
        let bytes = weights.bytes();
        let mut teacher = Teacher::start(model, weights, &options(residency), &StoreShape::default()).unwrap();
        for burst in bursts(3) {
            let count = burst.len();
            teacher.submit(burst);
            for _ in 0..count {
                teacher.targets().unwrap();
            }
            // Another burst waits for the end of the visit.
            teacher.submit(vec![batch(&[1])]);
            teacher.targets().unwrap();
        }
        while teacher.report().device_bytes_teacher != 0 && residency != Residency::Resident {
            std::thread::yield_now();
        }
        let report = teacher.report();
        let summary = teacher.finish().unwrap();
        if residency == Residency::Resident {
            assert!(report.device_bytes_teacher > 0);
            assert_eq!((summary.copies, summary.total.copy_ms), (0, 0.0), "the host's memory is the device's");
        } else {
            assert_eq!(report.device_bytes_teacher, 0, "{residency}");
            assert!(summary.total.copy_ms > 0.0 && summary.total.copy_exposed_ms <= summary.total.copy_ms + 1e-9);
            // Six visits; each copies all layers once.
            assert_eq!(summary.copied_bytes, 6 * summary.total.teacher_bytes, "{residency}");
        }
        assert!(summary.total.teacher_forward_ms > 0.0 && summary.total.student_wait_ms > 0.0);
        assert!(summary.total.teacher_bytes < bytes + 256 * 20);
        peaks.push(summary.peak_device_bytes_teacher);
    }
    assert!(peaks[0] < peaks[1] && peaks[1] == peaks[2], "layer holds less than the whole: {peaks:?}");
}

/// CPU device whose system refuses to lock pages, and whose copies read host memory until they are waited for.
#[derive(Default)]
struct Refusing {
    cpu: Cpu,
    under_way: Arc<AtomicBool>,
}

impl Accelerator for Refusing {
    type Event = <Cpu as Accelerator>::Event;

    fn device(&self) -> Device {
        self.cpu.device()
    }

    fn is_host(&self) -> bool {
        false
    }

    fn host_block(&mut self, bytes: usize) -> Result<HostBlock, AcceleratorError> {
        let block = self.cpu.host_block(bytes)?;
        Ok(HostBlock { not_page_locked: Some("injected: no pages left to lock".to_owned()), ..block })
    }

    fn allocate(&mut self, bytes: usize) -> Result<Tensor, AcceleratorError> {
        self.cpu.allocate(bytes)
    }

    fn copy(&mut self, from: &Tensor, to: &mut Tensor) -> Result<(), AcceleratorError> {
        self.under_way.store(true, Ordering::SeqCst);
        self.cpu.copy(from, to)
    }

    fn finish_copies(&mut self) -> Result<(), AcceleratorError> {
        self.under_way.store(false, Ordering::SeqCst);
        Ok(())
    }

    fn enter_thread(&mut self) -> Result<StreamGuard, AcceleratorError> {
        self.cpu.enter_thread()
    }

    fn record(&mut self, stream: Stream) -> Result<Self::Event, AcceleratorError> {
        self.cpu.record(stream)
    }

    fn wait(&mut self, stream: Stream, event: &Self::Event) -> Result<(), AcceleratorError> {
        self.cpu.wait(stream, event)
    }

    fn elapsed_ms(&self, from: &Self::Event, to: &Self::Event) -> Option<f64> {
        self.cpu.elapsed_ms(from, to)
    }

    fn student_takes(events: &[Self::Event], targets: &Targets) -> Result<(), AcceleratorError> {
        Cpu::student_takes(events, targets)
    }

    fn memory(&self) -> MemoryState {
        self.cpu.memory()
    }
}

/// CPU device with a clock that advances with every event. Like CUDA, it measures the milliseconds between two events in f32.
#[derive(Default)]
struct Clocked {
    cpu: Cpu,
    now_ms: Arc<Mutex<f64>>,
}

impl Accelerator for Clocked {
    type Event = f64;

    fn device(&self) -> Device {
        self.cpu.device()
    }
    fn is_host(&self) -> bool {
        false
    }
    fn host_block(&mut self, bytes: usize) -> Result<HostBlock, AcceleratorError> {
        self.cpu.host_block(bytes)
    }
    fn allocate(&mut self, bytes: usize) -> Result<Tensor, AcceleratorError> {
        self.cpu.allocate(bytes)
    }
    fn copy(&mut self, from: &Tensor, to: &mut Tensor) -> Result<(), AcceleratorError> {
        self.cpu.copy(from, to)
    }
    fn finish_copies(&mut self) -> Result<(), AcceleratorError> {
        Ok(())
    }
    fn enter_thread(&mut self) -> Result<StreamGuard, AcceleratorError> {
        self.cpu.enter_thread()
    }
    fn record(&mut self, _: Stream) -> Result<f64, AcceleratorError> {
        let mut now_ms = self.now_ms.lock().unwrap();
        *now_ms += 0.25;
        Ok(*now_ms)
    }
    fn wait(&mut self, _: Stream, _: &f64) -> Result<(), AcceleratorError> {
        Ok(())
    }
    fn elapsed_ms(&self, from: &f64, to: &f64) -> Option<f64> {
        Some(f64::from((to - from) as f32))
    }
    fn student_takes(_: &[f64], _: &Targets) -> Result<(), AcceleratorError> {
        Ok(())
    }
    fn memory(&self) -> MemoryState {
        self.cpu.memory()
    }
}

/// After ten hours, f32 milliseconds since the start would be rounded to four.
#[test]
fn times_of_a_long_run_are_exact() {
    let _no_grad = tch::no_grad_guard();
    let model = Perceptron::classifier();
    let (weights, clocked) = (model.weights(3), Clocked::default());
    let now_ms = Arc::clone(&clocked.now_ms);
    let mut shuttle = Shuttle::new(clocked, model, weights, None).unwrap();
    shuttle.start_clock().unwrap();
    let mut visit = || {
        *now_ms.lock().unwrap() += 18_000.0;
        let (begin_ms, mut spans) = (*now_ms.lock().unwrap(), Vec::new());
        shuttle.visit(VisitKind::Forward, vec![batch(&[1])], &mut |_, _, _| Ok(())).unwrap();
        shuttle.take_timings(Some(&mut spans));
        (begin_ms, spans.into_iter().map(|span| span.start).collect::<Vec<_>>())
    };
    let (first_ms, first) = visit();
    assert!(first.len() > 1);
    let milliseconds = |from: &Instant, to: &Instant| to.duration_since(*from).as_secs_f64() * 1e3;
    for _ in 0..2_000 {
        let (begin_ms, starts) = visit();
        let drift = milliseconds(&first[0], &starts[0]) - (begin_ms - first_ms);
        assert!(drift.abs() < 0.5, "{drift} ms after {begin_ms} ms");
        for (start, of_first) in starts.iter().zip(&first) {
            let off = milliseconds(&starts[0], start) - milliseconds(&first[0], of_first);
            assert!(off.abs() < 1e-3, "{off} ms after {begin_ms} ms");
        }
    }
}

#[test]
fn refused_page_locking_is_said_and_changes_no_number() {
    let run = |refused: bool| {
        let model = Perceptron::classifier();
        let (weights, options) = (model.weights(3), options(Residency::Forward));
        let mut teacher = match refused {
            true => Teacher::start_on(Refusing::default(), model, weights, &options, &StoreShape::default()).unwrap(),
            false => Teacher::start(model, weights, &options, &StoreShape::default()).unwrap(),
        };
        teacher.submit(vec![batch(&[1, 2, 3]), batch(&[4])]);
        let targets = [bits(&teacher.targets().unwrap()), bits(&teacher.targets().unwrap())];
        let said = teacher.decisions().join("\n");
        assert_eq!(said.contains("ordinary memory (injected: no pages left to lock)"), refused, "{said}");
        teacher.finish().unwrap();
        targets
    };
    assert_eq!(run(true), run(false));
}

/// The host's block of weights must not be freed during a copy: not at the end, nor after a panic, nor when it is released.
#[test]
fn copies_are_waited_for_before_the_weights_are_let_go() {
    for behaviour in [Behaviour::Proper, Behaviour::PanicOn(0), Behaviour::PanicOn(1), Behaviour::FailOn(0)] {
        for residency in [Residency::Resident, Residency::Forward, Residency::Layer] {
            let model = Perceptron::vgae(behaviour);
            let weights = model.weights(3);
            let accelerator = Refusing::default();
            let under_way = Arc::clone(&accelerator.under_way);
            let mut teacher =
                Teacher::start_on(accelerator, model, weights, &options(residency), &StoreShape::default()).unwrap();
            teacher.submit(vec![batch(&[1]), batch(&[2])]);
            let copied = teacher.targets().is_err() || under_way.load(Ordering::SeqCst);
            drop(teacher);
            assert!(copied && !under_way.load(Ordering::SeqCst), "{residency}");
        }
    }
}

fn start(behaviour: Behaviour, residency: Residency) -> Teacher {
    let model = Perceptron::vgae(behaviour);
    let weights = model.weights(3);
    Teacher::start(model, weights, &options(residency), &StoreShape::default()).unwrap()
}

#[test]
fn a_panic_in_the_forward_arrives_with_its_message_and_ends_the_thread() {
    for residency in [Residency::Resident, Residency::Forward, Residency::Layer] {
        let mut teacher = start(Behaviour::PanicOn(2), residency);
        teacher.submit(vec![batch(&[1]), batch(&[2]), batch(&[3])]);
        let outcomes: Vec<_> = (0..3).map(|_| teacher.targets()).collect();
        let error = outcomes.into_iter().find_map(Result::err).unwrap();
        assert!(matches!(&error, TeacherError::Panicked { message } if message.contains("forward broke")), "{error:?}");
        // Later calls return the cause, and submitting to a dead thread does not block.
        for _ in 0..20 {
            teacher.submit(vec![batch(&[1])]);
        }
        let later = teacher.targets().unwrap_err().to_string();
        assert!(later.contains("stopped earlier") && later.contains("forward broke"), "{later}");
        let end = teacher.finish().unwrap_err().to_string();
        assert!(end.contains("forward broke"), "{end}");
    }
}

#[test]
fn an_error_in_the_forward_arrives_even_if_nobody_asks_for_targets() {
    let mut teacher = start(Behaviour::FailOn(1), Residency::Forward);
    teacher.submit(vec![batch(&[1])]);
    let error = teacher.targets().unwrap_err();
    assert_eq!(error.to_string(), "the fake teacher gave up");
    let mut teacher = start(Behaviour::FailOn(1), Residency::Forward);
    teacher.submit(vec![batch(&[1])]);
    assert_eq!(teacher.finish().unwrap_err().to_string(), "the fake teacher gave up");
}

#[test]
fn weights_of_another_architecture_are_refused_before_the_thread_starts() {
    let weights = Perceptron::classifier().weights(1);
    let deeper = Perceptron::wide(32, 5);
    let error = Teacher::start(deeper, weights, &options(Residency::Forward), &StoreShape::default()).err().unwrap();
    let text = error.to_string();
    assert!(matches!(error, TeacherError::MissingTensor { .. }) && text.contains("layers.4.weight"), "{text}");
    assert!(text.contains("layer 4"), "{text}");
}

#[test]
fn a_shape_that_was_not_declared_is_an_error() {
    let model = Perceptron::wide(32, 3);
    let weights = Perceptron::classifier().weights(1);
    let mut teacher = Teacher::start(model, weights, &options(Residency::Forward), &StoreShape::default()).unwrap();
    teacher.submit(vec![batch(&[1])]);
    // The classifier's weights in a model of other widths: the error has libtorch's message about the sizes, although tch panics.
    let error = teacher.targets().unwrap_err();
    let TeacherError::Torch(cause) = &error else { panic!("{error}") };
    assert!(cause.to_string().contains("start (0) + length (4) exceeds dimension size (2)"), "{cause}");
}

#[test]
fn targets_without_a_burst_are_an_error_and_not_a_hang() {
    let mut teacher = start(Behaviour::Proper, Residency::Resident);
    assert!(matches!(teacher.targets().unwrap_err(), TeacherError::NothingSubmitted));
    teacher.submit(vec![batch(&[1])]);
    teacher.targets().unwrap();
    assert!(matches!(teacher.targets().unwrap_err(), TeacherError::NothingSubmitted));
    assert_eq!(teacher.finish().unwrap().batches, 1);
}

#[test]
fn the_loop_may_submit_the_next_burst_before_it_takes_the_present_one() {
    tch::set_num_threads(1);
    let expected: Vec<_> = (0..8).map(start_and_take).collect();
    let mut teacher = start(Behaviour::Proper, Residency::Resident);
    let mut found = Vec::new();
    teacher.submit(vec![batch(&[0]), batch(&[1])]);
    for burst in 1..4u64 {
        teacher.submit(vec![batch(&[burst * 2]), batch(&[burst * 2 + 1])]);
        found.extend((0..2).map(|_| bits(&teacher.targets().unwrap())));
    }
    found.extend((0..2).map(|_| bits(&teacher.targets().unwrap())));
    assert_eq!(found, expected);
}

fn start_and_take(graph: u64) -> Vec<(kdgat::distill::TargetName, Vec<i64>, Vec<u32>)> {
    let mut teacher = start(Behaviour::Proper, Residency::Forward);
    teacher.submit(vec![batch(&[graph])]);
    bits(&teacher.targets().unwrap())
}

#[test]
fn gradients_are_recorded_on_the_training_thread_all_the_while() {
    let mut teacher = start(Behaviour::Proper, Residency::Resident);
    teacher.submit(vec![batch(&[1, 2])]);
    let targets = teacher.targets().unwrap();
    let weight = tch::Tensor::ones([4], (tch::Kind::Float, Device::Cpu)).set_requires_grad(true);
    let latent = targets.get(kdgat::distill::TargetName::Latent).unwrap();
    assert!(!latent.requires_grad());
    assert!((latent * &weight).requires_grad());
}

#[test]
fn auto_says_on_a_cpu_that_resident_costs_nothing() {
    let mut teacher = start(Behaviour::Proper, Residency::Auto);
    teacher.submit(vec![batch(&[1, 2])]);
    teacher.targets().unwrap();
    assert_eq!(teacher.report().teacher_mode, "resident");
    let summary = teacher.finish().unwrap();
    assert!(summary.decisions.iter().any(|line| line.contains("resident costs nothing")), "{summary:?}");
}

fn status(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_matches(|character: char| !character.is_ascii_digit()).parse().unwrap()
}

/// Run by [`a_thousand_starts_and_stops_leak_nothing`] in a separate process, where no other test starts threads.
#[test]
fn child_with_a_thousand_cycles() {
    if std::env::var_os("KDGAT_TEST_CYCLES").is_none() {
        return;
    }
    tch::set_num_threads(1);
    let cycle = |number: u64| {
        let residency = [Residency::Resident, Residency::Forward, Residency::Layer][number as usize % 3];
        let behaviour = if number % 10 == 9 { Behaviour::FailOn(2) } else { Behaviour::Proper };
        let mut teacher = start(behaviour, residency);
        teacher.submit(vec![batch(&[1, 2]), batch(&[3])]);
        let first = teacher.targets();
        assert!(first.is_ok() || number % 10 == 9);
        // Some are finished, some dropped with pending work, some dropped after an error.
        match number % 4 {
            0 => drop(teacher.targets()),
            1 => drop(teacher.finish()),
            _ => drop(teacher),
        }
    };
    (0..200).for_each(cycle);
    let (threads, resident_kib) = (status("Threads:"), status("VmRSS:"));
    (0..1000).for_each(cycle);
    assert_eq!(status("Threads:"), threads, "threads are left");
    let grown = status("VmRSS:").saturating_sub(resident_kib);
    assert!(grown < 8 * 1024, "memory grew by {grown} KiB in 1,000 cycles");
}

#[test]
fn a_thousand_starts_and_stops_leak_nothing() {
    let output = only_test(module_path!(), "child_with_a_thousand_cycles")
        .arg("--test-threads=1")
        .env("KDGAT_TEST_CYCLES", "1")
        .output()
        .unwrap();
    assert_passed(&output);
}
