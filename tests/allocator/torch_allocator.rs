//! The host allocator: exact counts, limits, reuse, phases and injected failures. Its state is global, so
//! the tests run one at a time.

use std::sync::MutexGuard;
use support::process::alone;

use kdgat::distill::{Residency, Teacher, TeacherOptions, Weights};
use kdgat::torch::allocator::{self, Buffers, Failures, Limits, Phase};
use kdgat::torch::philox::philox;
use kdgat::torch::recover;
use support::distill::{Perceptron, batch, shape};
use tch::{Device, Kind, TchError, Tensor};

const MIB: u64 = 1 << 20;

/// Runs one test at a time, from a known state.
fn turn() -> MutexGuard<'static, ()> {
    let guard = alone();
    allocator::install().unwrap();
    allocator::inject_failures(Failures::Never);
    allocator::set_limits(Limits { limit_bytes: None, keep_bytes: None });
    allocator::release_cached();
    allocator::reset_peak();
    guard
}

fn bytes(count: u64) -> Result<Tensor, TchError> {
    Tensor::f_empty([count as i64], (Kind::Uint8, Device::Cpu))
}

#[test]
fn counts_are_exact() {
    let _turn = turn();
    let before = allocator::stats();
    let sizes = [1, 63, 64, 65, 4_000, 5_000, 100_000, MIB, 3 * MIB + 17, 50 * MIB];
    let tensors: Vec<Tensor> = sizes.iter().map(|&size| bytes(size).unwrap()).collect();
    let held = allocator::stats();
    assert_eq!(held.current - before.current, sizes.iter().sum::<u64>());
    assert_eq!(held.peak, held.current);
    assert_eq!(held.allocations - before.allocations, sizes.len() as u64);
    assert!(held.in_use - before.in_use >= sizes.iter().sum::<u64>());
    assert!(tensors.iter().all(|tensor| (tensor.data_ptr() as usize).is_multiple_of(64)), "64-byte alignment");
    drop(tensors);
    let after = allocator::stats();
    assert_eq!((after.current, after.in_use), (before.current, before.in_use));
    assert_eq!(after.peak, held.peak);
    allocator::reset_peak();
    assert_eq!(allocator::stats().peak, before.current);
}

#[test]
fn empty_tensors_cost_nothing() {
    let _turn = turn();
    let before = allocator::stats();
    let empty = bytes(0).unwrap();
    assert_eq!(allocator::stats().current, before.current);
    assert_eq!(empty.numel(), 0);
}

#[test]
fn a_limit_fails_an_allocation_and_nothing_else() {
    let _turn = turn();
    let limit = allocator::stats().in_use + 20 * MIB;
    allocator::set_limit(Some(limit));
    let held = bytes(12 * MIB).unwrap();
    let error = bytes(12 * MIB).unwrap_err();
    assert!(error.to_string().contains("kdgat: host memory limit of"), "{error}");
    assert!(allocator::is_out_of_memory(&error));
    assert!(!allocator::is_out_of_memory(&TchError::Torch("shape mismatch".into())));
    drop(held);
    let _held = bytes(12 * MIB).unwrap();
    // Cached memory is freed to make room, because no cached block has this size.
    let _small = bytes(5 * MIB).unwrap();
    assert!(allocator::stats().peak_reserved <= limit);
    assert_eq!(allocator::stats().limit, limit);
}

#[test]
fn an_operation_that_fails_returns_its_memory() {
    let _turn = turn();
    let held = bytes(8 * MIB).unwrap();
    let before = allocator::stats();
    allocator::set_limit(Some(before.in_use + 4 * MIB));
    let error = held.f_add(&held).unwrap_err();
    assert!(allocator::is_out_of_memory(&error), "{error}");
    // tch panics here, although the method is fallible.
    let error = recover(|| held.f_add_scalar(1)).unwrap_err();
    assert!(allocator::is_out_of_memory(&error), "{error}");
    // The error of that operation is not attributed to the next one.
    assert!(held.f_narrow(0, 0, 10).is_ok());
    assert_eq!(allocator::stats().current, before.current);
}

#[test]
fn freed_blocks_serve_again() {
    let _turn = turn();
    drop(bytes(40 * MIB).unwrap());
    let before = allocator::stats();
    assert!(before.kept >= 40 * MIB);
    let tensor = bytes(35 * MIB).unwrap();
    let after = allocator::stats();
    assert_eq!(after.reused, before.reused + 1);
    assert_eq!(after.reserved(), before.reserved());
    let _much_smaller = bytes(8 * MIB).unwrap();
    assert_eq!(allocator::stats().reused, after.reused, "a block is not wasted on much less");
    drop(tensor);
    allocator::release_cached();
    assert_eq!(allocator::stats().kept, 0);
}

#[test]
fn what_is_kept_is_bounded() {
    let _turn = turn();
    allocator::set_limits(Limits { limit_bytes: None, keep_bytes: Some(30 * MIB) });
    drop([20, 12, 25, 9].map(|size| bytes(size * MIB).unwrap()));
    assert!(allocator::stats().kept <= 30 * MIB);
    allocator::set_limits(Limits { limit_bytes: None, keep_bytes: None });
    // Sizes that never match: the allocator caches at most the largest need plus a quarter, or 128 MiB.
    for size in 10..60 {
        drop(bytes(size * 3 * MIB).unwrap());
    }
    assert!(allocator::stats().reserved() <= 200 * MIB, "{:?}", allocator::stats());
}

/// Address of a tensor's memory.
fn place(tensor: &Tensor) -> usize {
    tensor.data_ptr() as usize
}

#[test]
fn buffers_are_counted_once_and_used_in_turn() {
    let _turn = turn();
    let before = allocator::stats();
    let buffers = {
        let _phase = allocator::enter_phase(Phase::Data);
        Buffers::new(3, 4 * MIB as usize).unwrap()
    };
    assert_eq!((buffers.count(), buffers.bytes()), (3, 4 * MIB as usize));
    let held = allocator::stats();
    assert_eq!((held.current - before.current, Phase::Data.of(&held.phases)), (12 * MIB, 12 * MIB));
    let fill = |value: i64| {
        let _buffer = buffers.enter();
        [(); 3].map(|()| Tensor::f_full([MIB as i64 / 8], value, (Kind::Int64, Device::Cpu)).unwrap())
    };
    let (mut batches, mut places) = (Vec::new(), Vec::new());
    for number in 0..9 {
        // Two batches live while the next one is made.
        if batches.len() == 3 {
            drop(batches.remove(0));
        }
        batches.push(fill(number));
        places.push(place(&batches[batches.len() - 1][0]));
        assert_eq!(allocator::stats().current, held.current, "batch {number}");
        assert!(batches.iter().flatten().all(|tensor| place(tensor).is_multiple_of(64)));
    }
    assert!(places[0] != places[1] && places[1] != places[2] && places[0] != places[2]);
    assert!((3..9).all(|number| places[number] == places[number - 3]), "{places:?}");
    for (batch, number) in batches.iter().zip(6..) {
        assert!(
            batch
                .iter()
                .all(|tensor| tensor.min().int64_value(&[]) == number && tensor.max().int64_value(&[]) == number)
        );
    }
    // One tensor of a batch is enough to keep its buffer.
    let kept = batches.remove(0).into_iter().nth(1).unwrap();
    assert!(allocator::attribute(&kept, Phase::Cache).unwrap());
    assert_eq!(allocator::stats().phases, held.phases);
    let further = fill(10);
    assert_eq!(allocator::stats().current - held.current, 3 * MIB, "no buffer is free");
    drop((further, batches));
    drop(buffers);
    assert_eq!(allocator::stats().current - before.current, 12 * MIB, "a tensor is in one of them");
    assert_eq!(kept.sum(Kind::Int64).int64_value(&[]), 6 * MIB as i64 / 8);
    drop(kept);
    let after = allocator::stats();
    assert_eq!((after.current, after.in_use, after.phases), (before.current, before.in_use, before.phases));
}

#[test]
fn tensors_beyond_a_buffer_have_memory_of_their_own() {
    let _turn = turn();
    let before = allocator::stats().current;
    let buffers = Buffers::new(1, MIB as usize).unwrap();
    let tensors = {
        let _buffer = buffers.enter();
        // A failure is injected in a buffer as elsewhere.
        allocator::inject_failures(Failures::Nth(1));
        assert!(allocator::is_out_of_memory(&bytes(100).unwrap_err()));
        [bytes(MIB / 2).unwrap(), bytes(MIB).unwrap(), bytes(MIB / 4).unwrap()]
    };
    let outside = bytes(100).unwrap();
    assert_eq!(allocator::stats().current - before, 2 * MIB + 100);
    // Each other thread has none.
    let of_thread = std::thread::scope(|scope| {
        let _buffer = buffers.enter();
        scope.spawn(|| bytes(1000).unwrap()).join().unwrap()
    });
    assert_eq!(allocator::stats().current - before, 2 * MIB + 1100);
    drop((tensors, outside, of_thread, buffers));
    assert_eq!(allocator::stats().current, before);
    let limit = allocator::stats().in_use + 3 * MIB;
    allocator::set_limit(Some(limit));
    assert!(allocator::is_out_of_memory(&Buffers::new(4, MIB as usize).unwrap_err()));
    assert_eq!(allocator::stats().current, before, "those that there was memory for are released");
    allocator::set_limit(None);
}

#[test]
fn buffers_serve_many_threads() {
    let _turn = turn();
    let before = allocator::stats();
    let buffers = Buffers::new(5, 64 << 10).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let buffers = &buffers;
            scope.spawn(move || {
                let mut batches = Vec::new();
                for step in 0..2000 {
                    let [size, victim, ..] = philox(thread, step);
                    let value = (thread << 32 | step) as i64;
                    let _buffer = buffers.enter();
                    let numbers = i64::from(size % 6000);
                    batches.push((value, Tensor::f_full([numbers], value, (Kind::Int64, Device::Cpu)).unwrap()));
                    if batches.len() == 3 {
                        let (value, tensor) = batches.swap_remove(victim as usize % 3);
                        assert_eq!(tensor.sum(Kind::Int64).int64_value(&[]), value.wrapping_mul(tensor.numel() as i64));
                    }
                }
            });
        }
    });
    drop(buffers);
    let after = allocator::stats();
    assert_eq!((after.current, after.in_use), (before.current, before.in_use));
}

#[test]
fn phases_add_up() {
    let _turn = turn();
    let data = {
        let _phase = allocator::enter_phase(Phase::Data);
        bytes(3 * MIB).unwrap()
    };
    let activations = {
        let _phase = allocator::enter_phase(Phase::Activations);
        let inner = {
            let _phase = allocator::enter_phase(Phase::Gradients);
            bytes(MIB).unwrap()
        };
        (inner, bytes(5 * MIB).unwrap())
    };
    let held = allocator::stats();
    assert_eq!(Phase::Data.of(&held.phases), 3 * MIB);
    assert_eq!(Phase::Gradients.of(&held.phases), MIB);
    assert_eq!(Phase::Activations.of(&held.phases), 5 * MIB);
    drop(activations);
    let after = allocator::stats();
    assert_eq!(Phase::Activations.of(&after.phases), 0);
    assert_eq!(Phase::Activations.of(&after.phases_at_peak), 5 * MIB);
    assert_eq!(after.phases_at_peak.iter().sum::<u64>(), after.peak);
    assert_eq!(after.phases.iter().sum::<u64>(), after.current);
    assert!(allocator::attribute(&data, Phase::Cache).unwrap());
    assert_eq!(Phase::Cache.of(&allocator::stats().phases), 3 * MIB);
    drop(data);
    assert_eq!(Phase::Cache.of(&allocator::stats().phases), 0);
}

#[test]
fn threads_count_together_and_keep_the_limit() {
    let _turn = turn();
    let before = allocator::stats();
    let limit = before.in_use + 64 * MIB;
    allocator::set_limit(Some(limit));
    let refused: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6)
            .map(|thread| {
                scope.spawn(move || {
                    let _phase = allocator::enter_phase(Phase::ALL[thread % Phase::ALL.len()]);
                    let mut held: Vec<Tensor> = Vec::new();
                    let mut refused = 0;
                    for step in 0..3_000 {
                        let [size, victim, shift, _] = philox(thread as u64, step);
                        match bytes(u64::from(size) >> (8 + shift % 20)) {
                            Ok(tensor) => held.push(tensor),
                            Err(error) if allocator::is_out_of_memory(&error) => refused += 1,
                            Err(error) => panic!("{error}"),
                        }
                        if held.len() > 12 {
                            let _ = held.swap_remove(victim as usize % held.len());
                        }
                    }
                    refused
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let after = allocator::stats();
    assert!(refused > 0, "the limit was never reached");
    assert_eq!((after.current, after.in_use), (before.current, before.in_use));
    assert_eq!(after.phases.iter().sum::<u64>(), after.current);
    assert!(after.peak_reserved <= limit, "{} > {limit}", after.peak_reserved);
}

#[test]
fn failures_are_injected_where_asked_for() {
    let _turn = turn();
    allocator::inject_failures(Failures::Nth(3));
    let outcomes: Vec<bool> = (0..5).map(|_| bytes(100).is_ok()).collect();
    assert_eq!(outcomes, [true, true, false, true, true]);
    let draw = |seed| {
        allocator::inject_failures(Failures::Random { seed, probability: 0.25 });
        (0..1_000).map(|_| bytes(100).is_ok()).collect::<Vec<bool>>()
    };
    let (first, again, other) = (draw(1), draw(1), draw(2));
    allocator::inject_failures(Failures::Never);
    assert_eq!(first, again);
    assert_ne!(first, other);
    let failed = first.iter().filter(|ok| !**ok).count();
    assert!((200..300).contains(&failed), "{failed} of 1000 failed instead of 250");
}

/// If any allocation of a training step fails, the step ends with that error, and everything is freed.
#[test]
fn every_allocation_of_a_step_can_fail() {
    let _turn = turn();
    let weight = Tensor::ones([64, 64], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let input = Tensor::ones([512, 64], (Kind::Float, Device::Cpu));
    let step = || -> Result<(), TchError> {
        let hidden = input.f_matmul(&weight)?.f_relu()?;
        kdgat::torch::autograd::backward_from(&[&hidden.f_matmul(&weight)?.f_mean(Kind::Float)?], &[None], false)?;
        kdgat::torch::grad::clear_grad(&weight)
    };
    step().unwrap();
    let before = allocator::stats();
    let mut failures = 0;
    for n in 1.. {
        allocator::inject_failures(Failures::Nth(n));
        let outcome = step();
        allocator::inject_failures(Failures::Never);
        kdgat::torch::grad::clear_grad(&weight).unwrap();
        assert_eq!(allocator::stats().current, before.current, "after a failure of allocation {n}");
        match outcome {
            Ok(()) => break,
            Err(error) => assert!(allocator::is_out_of_memory(&error), "allocation {n}: {error}"),
        }
        failures += 1;
    }
    assert!(failures >= 5, "only {failures} allocations were seen");
}

/// Covers a teacher with weights from a file, from reading the file to its first targets.
#[test]
fn a_teachers_weights_lie_once_in_host_memory_while_they_are_packed() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    for name in ["weights.safetensors", "weights.pt"] {
        let path = folder.path().join(name);
        let (layers, width) = (12, 256);
        if name.ends_with(".pt") {
            write_as_pytorch(&Perceptron::wide(width, layers).weights(3), &path);
        } else {
            Perceptron::wide(width, layers).weights(3).write_safetensors(&path).unwrap();
        }
        let before = allocator::stats().current;
        allocator::reset_peak();
        let weights = Weights::read(&path).unwrap();
        let (bytes, read) = (weights.bytes(), allocator::stats().peak - before);
        let options = TeacherOptions { residency: Residency::Resident, ..TeacherOptions::new(Device::Cpu) };
        let mut teacher = Teacher::start(Perceptron::wide(width, layers), weights, &options, &shape(4)).unwrap();
        let packed = allocator::stats().peak - before;
        teacher.submit(vec![batch(&[1])]);
        teacher.targets().unwrap();
        teacher.finish().unwrap();
        // The largest tensor is a twelfth of the weights.
        println!("{name}: {bytes} bytes, at most {read} while reading and {packed} until packed");
        assert!(bytes > 2 * MIB && packed >= bytes, "{name}: {packed} for {bytes}");
        assert!(read < bytes + bytes / 8, "{name}: {read} while {bytes} were read");
        assert!(packed < bytes + bytes / 8, "{name}: {packed} while {bytes} were packed");
    }
}

/// Writes an archive in the form of `torch.save`.
fn write_as_pytorch(weights: &Weights, path: &std::path::Path) {
    use std::io::Write;
    let text = |text: &str| [b"X".as_slice(), &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
    let integer = |number: i64| [b"J".as_slice(), &(number as i32).to_le_bytes()].concat();
    let tuple = |numbers: &[i64]| {
        [b"(".to_vec(), numbers.iter().flat_map(|&number| integer(number)).collect(), b"t".to_vec()].concat()
    };
    let mut archive = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    let mut pickle = b"\x80\x02}".to_vec();
    for (number, (name, tensor)) in weights.iter().enumerate() {
        let kind = if tensor.kind() == Kind::Float { "FloatStorage" } else { "LongStorage" };
        let bytes: Vec<u8> = match tensor.kind() {
            Kind::Float => {
                Vec::<f32>::try_from(tensor.flatten(0, -1)).unwrap().iter().flat_map(|v| v.to_le_bytes()).collect()
            }
            _ => Vec::<i64>::try_from(tensor.flatten(0, -1)).unwrap().iter().flat_map(|v| v.to_le_bytes()).collect(),
        };
        archive.start_file(format!("archive/data/{number}"), stored).unwrap();
        archive.write_all(&bytes).unwrap();
        pickle.extend(text(name));
        pickle.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        pickle.extend(
            [text("storage"), format!("ctorch\n{kind}\n").into_bytes(), text(&number.to_string()), text("cpu")]
                .concat(),
        );
        pickle.extend([integer(tensor.numel() as i64), b"tQ".to_vec(), integer(0), tuple(&tensor.size())].concat());
        pickle.extend([tuple(&tensor.stride()), b"tRs".to_vec()].concat());
    }
    pickle.push(b'.');
    archive.start_file("archive/data.pkl", stored).unwrap();
    archive.write_all(&pickle).unwrap();
    archive.finish().unwrap();
}
