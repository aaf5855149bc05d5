//! Streams, events, page-locked memory and device statistics: complete on the CPU, clear errors without a GPU, and
//! the real functions on a GPU.

use std::sync::MutexGuard;
use std::time::Duration;
use support::process::alone;

use kdgat::torch::autocast::Autocast;
use kdgat::torch::device::{
    DeviceError, Event, PinnedBlock, Recording, RecordingPool, Stream, StreamGuard, Uploader, allocator_settings, copy,
    cuda_device_count, cuda_sleep, device_memory, empty_cache, record_stream, reset_device_peak,
    set_allocator_settings, synchronize,
};
use kdgat::torch::{CudaLibrary, load_cuda};
use tch::{Device, Kind, Tensor};

const GPU: Device = Device::Cuda(0);

/// Reserves the GPU for a test, because tests measure its memory; prints why not if there is none.
fn gpu(test: &str) -> Option<MutexGuard<'static, ()>> {
    load_cuda();
    let available = cuda_device_count();
    if let Err(error) = &available {
        println!("{test}: skipped: {error}");
    }
    available.is_ok().then(alone)
}

#[test]
fn loading_cuda_says_what_was_found() {
    let found = load_cuda();
    println!("{found}");
    assert_eq!(found, load_cuda());
    if let CudaLibrary::Failed { reason } = &found {
        assert!(!reason.is_empty());
    }
}

#[test]
fn without_a_gpu_everything_is_an_error() {
    if gpu("errors without a GPU").is_some() {
        return;
    }
    let errors: Vec<DeviceError> = vec![
        cuda_device_count().unwrap_err(),
        Stream::from_pool(GPU, false).unwrap_err(),
        Stream::current(GPU).unwrap_err(),
        Event::new(GPU, true).unwrap_err(),
        synchronize(GPU).unwrap_err(),
        device_memory(GPU).unwrap_err(),
        reset_device_peak(GPU).unwrap_err(),
        empty_cache(GPU).unwrap_err(),
        cuda_sleep(1).unwrap_err(),
        PinnedBlock::new(100, GPU).unwrap_err(),
        RecordingPool::new(GPU).unwrap_err(),
    ];
    for error in errors {
        assert!(error.to_string().contains("no CUDA"), "{error}");
    }
    assert!(matches!(PinnedBlock::new(100, GPU), Err(DeviceError::PinningRefused { bytes: 100, .. })));
    assert!(matches!(Stream::from_pool(Device::Mps, false), Err(DeviceError::Unsupported { .. })));
    assert!(matches!(RecordingPool::new(Device::Cpu), Err(DeviceError::Unsupported { .. })));
}

#[test]
fn the_cpu_has_streams_and_events() {
    let stream = Stream::from_pool(Device::Cpu, true).unwrap();
    assert!(stream.is_idle().unwrap() && stream.native_handle().unwrap().is_null());
    let _guard = StreamGuard::enter(&stream).unwrap();
    let (mut start, mut end) = (Event::new(Device::Cpu, true).unwrap(), Event::new(Device::Cpu, true).unwrap());
    assert!(end.elapsed(&start).is_err(), "nothing is recorded yet");
    start.record(&stream).unwrap();
    std::thread::sleep(Duration::from_millis(3));
    end.record(&stream).unwrap();
    end.wait(&stream).unwrap();
    end.synchronize().unwrap();
    assert!(end.is_done().unwrap());
    assert!(end.elapsed(&start).unwrap() >= Duration::from_millis(3));
    record_stream(&Tensor::from(1.0), &stream).unwrap();
    synchronize(Device::Cpu).unwrap();
}

#[test]
fn a_block_has_the_size_asked_for_and_outlives_its_handle() {
    let mut block = PinnedBlock::new(1_000, Device::Cpu).unwrap();
    assert_eq!((block.len(), block.is_page_locked()), (1_000, false));
    for (index, byte) in block.bytes_mut().unwrap().iter_mut().enumerate() {
        *byte = (index % 4 == 0) as u8;
    }
    let view = block.tensor(8, &[10, 2], Kind::Int).unwrap();
    assert!(block.bytes_mut().is_none(), "a view shares the memory");
    let same = block.tensor(8, &[20], Kind::Int).unwrap();
    let _ = view.get(0).fill_(7);
    drop(block);
    assert_eq!(same.int64_value(&[1]), 7);
    assert_eq!(same.int64_value(&[2]), 1);
    drop(view);
    assert_eq!(same.sum(Kind::Int64).int64_value(&[]), 7 * 2 + 18);
}

#[test]
fn a_view_stays_inside_its_block() {
    let block = PinnedBlock::ordinary(100).unwrap();
    for (offset, size) in [(0, 26), (4, 25), (2, 1), (usize::MAX, 1)] {
        let error = block.tensor(offset, &[size], Kind::Float).unwrap_err();
        assert!(matches!(error, DeviceError::View { length: 100, .. }), "{error}");
    }
    assert!(block.tensor(0, &[i64::MAX, i64::MAX], Kind::Float).is_err());
    assert_eq!(block.tensor(100, &[0], Kind::Float).unwrap().numel(), 0);
    assert!(PinnedBlock::ordinary(0).unwrap().is_empty());
    assert!(matches!(PinnedBlock::ordinary(usize::MAX / 2), Err(DeviceError::Mapping { .. })));
}

#[test]
fn copies_convert_and_are_not_recorded() {
    let source = Tensor::from_slice(&[1.0_f64, 2.5]).set_requires_grad(true);
    let mut target = Tensor::zeros([2], (Kind::Float, Device::Cpu));
    copy(&mut target, &source, true).unwrap();
    assert_eq!(target, Tensor::from_slice(&[1.0_f32, 2.5]));
    assert!(!target.requires_grad());
    assert!(copy(&mut target, &Tensor::zeros([3], (Kind::Float, Device::Cpu)), false).is_err());
}

#[test]
fn mixed_precision_ends_with_its_guard() {
    let matrix = Tensor::ones([4, 4], (Kind::Float, Device::Cpu));
    let product = || matrix.matmul(&matrix).kind();
    {
        let _mixed = Autocast::enter(Device::Cpu, Kind::BFloat16).unwrap();
        assert_eq!(product(), Kind::BFloat16);
    }
    assert_eq!(product(), Kind::Float);
    let panicked = std::panic::catch_unwind(|| {
        let _mixed = Autocast::enter(Device::Cpu, Kind::BFloat16).unwrap();
        panic!("inside");
    });
    assert!(panicked.is_err());
    assert_eq!(product(), Kind::Float);
}

#[test]
fn wrong_allocator_settings_are_errors() {
    let error = set_allocator_settings("expandable_segments:maybe").unwrap_err().to_string();
    assert!(error.contains("expandable_segments") && error.contains("maybe"), "{error}");
    let settings = "garbage_collection_threshold:0.5";
    set_allocator_settings(settings).unwrap();
    assert_eq!(allocator_settings().unwrap(), settings);
}

#[test]
fn copies_overlap_and_events_keep_their_order() {
    let Some(_gpu) = gpu("order on a GPU") else { return };
    let block = PinnedBlock::new(4 << 20, GPU).unwrap();
    assert!(block.is_page_locked());
    let host = block.tensor(0, &[1 << 20], Kind::Float).unwrap();
    let _ = host.shallow_clone().fill_(1.0);
    let side = Stream::from_pool(GPU, false).unwrap();
    let mut device = Tensor::zeros([1 << 20], (Kind::Float, GPU));
    synchronize(GPU).unwrap();
    let mut copied = Event::new(GPU, true).unwrap();
    {
        let _guard = StreamGuard::enter(&side).unwrap();
        // Delays the copy: reading without waiting for the event gives zeros.
        cuda_sleep(200_000_000).unwrap();
        copy(&mut device, &host, true).unwrap();
        copied.record(&side).unwrap();
    }
    assert!(!copied.is_done().unwrap(), "the copy was waited for");
    let current = Stream::current(GPU).unwrap();
    assert_ne!(current, side);
    copied.wait(&current).unwrap();
    record_stream(&device, &current).unwrap();
    assert_eq!(device.sum(Kind::Double).double_value(&[]), f64::from(1 << 20));
    assert!(copied.is_done().unwrap() && side.is_idle().unwrap());
}

/// Neither the copy of a batch nor the next use of its page-locked memory waits for queued steps.
#[test]
fn uploads_do_not_wait_for_queued_work() {
    let Some(_gpu) = gpu("uploads to a GPU") else { return };
    let mut uploader = Uploader::new(GPU).unwrap();
    let values = Tensor::arange(1 << 10, (Kind::Float, Device::Cpu));
    // More uploads than page-locked blocks, and than those that another upload has to wait for.
    let mut uploads = || (0..8).map(|_| uploader.upload(&[&values]).unwrap().remove(0)).collect::<Vec<_>>();
    drop(uploads());
    synchronize(GPU).unwrap();
    cuda_sleep(200_000_000).unwrap();
    let uploaded = uploads();
    assert!(!Stream::current(GPU).unwrap().is_idle().unwrap(), "an upload waited for queued work");
    for tensor in uploaded {
        assert_eq!(tensor.to_device(Device::Cpu), values);
    }
}

#[test]
fn device_memory_is_counted() {
    let Some(_gpu) = gpu("memory of a GPU") else { return };
    let before = device_memory(GPU).unwrap();
    let tensor = Tensor::zeros([64 << 20], (Kind::Uint8, GPU));
    let held = device_memory(GPU).unwrap();
    assert_eq!(held.requested - before.requested, 64 << 20);
    assert!(held.allocated > before.allocated && held.free_bytes <= held.total_bytes);
    drop(tensor);
    empty_cache(GPU).unwrap();
    let after = device_memory(GPU).unwrap();
    assert_eq!(after.requested, before.requested);
    assert!(after.peak_requested >= held.requested);
    reset_device_peak(GPU).unwrap();
    assert_eq!(device_memory(GPU).unwrap().peak_requested, after.requested);
}

/// Nothing that a replay uses is freed before it ends, even after a panic.
#[test]
fn a_recording_is_kept_until_its_last_replay_is_done() {
    let Some(_gpu) = gpu("recordings on a GPU") else { return };
    let sum = Tensor::zeros([1 << 10], (Kind::Float, GPU));
    for panics in [false, true] {
        // libtorch refuses a pool whose recordings have all been freed.
        let pool = RecordingPool::new(GPU).unwrap();
        let add = || sum.shallow_clone().f_add_scalar_(1.0).map(|_| ());
        let (mut recording, ()) = Recording::of(pool, add).unwrap();
        let replayed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            // Keeps the replay waiting.
            cuda_sleep(200_000_000).unwrap();
            recording.replay().unwrap();
            assert!(!Stream::current(GPU).unwrap().is_idle().unwrap(), "the replay was waited for");
            assert!(!panics, "a panic while a replay runs");
        }));
        assert_eq!(replayed.is_err(), panics);
        assert!(Stream::current(GPU).unwrap().is_idle().unwrap(), "freed while a replay runs");
    }
    assert_eq!(sum.sum(Kind::Double).double_value(&[]), 2.0 * f64::from(1 << 10));
}
