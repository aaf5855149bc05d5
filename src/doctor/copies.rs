//! Measures copy rates between memories, and the overlap of copies with computation.

use std::time::{Duration, Instant};

use serde::Serialize;
use tch::{Device, Kind, Tensor};

use crate::torch::device::{self, DeviceError, Event, PinnedBlock, Stream, StreamGuard};

/// Size of a measured copy, in bytes: large enough to hide fixed costs.
const BYTES: usize = 256 << 20;
const REPETITIONS: usize = 5;

/// Copy measurements of one GPU.
#[derive(Debug, Serialize)]
pub struct DeviceCopies {
    /// From page-locked host memory to the device; `None` if pages cannot be locked.
    pub page_locked_bytes_per_second: Option<f64>,
    /// From ordinary host memory to the device.
    pub pageable_bytes_per_second: f64,
    /// Overlap of copy and computation; `None` if pages cannot be locked.
    pub overlap: Option<Overlap>,
}

/// Times of a copy and a computation, each alone and both concurrently.
#[derive(Debug, Serialize)]
pub struct Overlap {
    pub copy_ms: f64,
    pub computation_ms: f64,
    pub both_ms: f64,
    /// Share of the copy's time hidden by the computation, 0 to 1.
    pub hidden_share: f64,
}

/// Host copy rate with all threads, in bytes of the source per second.
pub fn host_bytes_per_second() -> Result<f64, DeviceError> {
    let source = Tensor::f_ones([BYTES as i64], (Kind::Uint8, Device::Cpu))?;
    let mut target = source.f_zeros_like()?;
    let time = median(|| {
        let start = Instant::now();
        device::copy(&mut target, &source, false)?;
        Ok(start.elapsed())
    })?;
    Ok(BYTES as f64 / time.as_secs_f64())
}

/// Measures copies to a GPU with `free_bytes` of free memory.
pub fn measure(cuda: Device, free_bytes: u64) -> Result<DeviceCopies, DeviceError> {
    let bytes = BYTES.min(free_bytes as usize / 4).max(1 << 20);
    let mut target = Tensor::f_zeros([bytes as i64], (Kind::Uint8, cuda))?;
    let pageable = block(PinnedBlock::ordinary(bytes)?)?;
    let pageable_time = median(|| blocking_copy(&mut target, &pageable))?;
    let rate = |time: Duration| bytes as f64 / time.as_secs_f64().max(1e-9);
    let page_locked = match PinnedBlock::new(bytes, cuda) {
        Ok(locked) => Some(block(locked)?),
        Err(DeviceError::PinningRefused { .. }) => None,
        Err(error) => return Err(error),
    };
    let Some(page_locked) = page_locked else {
        return Ok(DeviceCopies {
            page_locked_bytes_per_second: None,
            pageable_bytes_per_second: rate(pageable_time),
            overlap: None,
        });
    };
    let stream = Stream::from_pool(cuda, false)?;
    let copy_time = median(|| timed_copy(&mut target, &page_locked, &stream))?;
    Ok(DeviceCopies {
        page_locked_bytes_per_second: Some(rate(copy_time)),
        pageable_bytes_per_second: rate(pageable_time),
        overlap: Some(overlap(&mut target, &page_locked, &stream, copy_time)?),
    })
}

fn block(mut block: PinnedBlock) -> Result<Tensor, DeviceError> {
    // Pages that were never written may all map to one page of zeros.
    if let Some(bytes) = block.bytes_mut() {
        bytes.fill(1);
    }
    block.tensor(0, &[block.len() as i64], Kind::Uint8)
}

fn blocking_copy(target: &mut Tensor, source: &Tensor) -> Result<Duration, DeviceError> {
    let start = Instant::now();
    device::copy(target, source, false)?;
    device::synchronize(target.device())?;
    Ok(start.elapsed())
}

fn queue_copy(target: &mut Tensor, source: &Tensor, stream: &Stream) -> Result<(), DeviceError> {
    let _current = StreamGuard::enter(stream)?;
    Ok(device::copy(target, source, true)?)
}

fn timed_copy(target: &mut Tensor, source: &Tensor, stream: &Stream) -> Result<Duration, DeviceError> {
    let (mut start, mut end) = (Event::new(target.device(), true)?, Event::new(target.device(), true)?);
    start.record(stream)?;
    queue_copy(target, source, stream)?;
    end.record(stream)?;
    end.synchronize()?;
    end.elapsed(&start)
}

/// Measures the copy concurrently with matrix products that take about twice as long.
fn overlap(target: &mut Tensor, source: &Tensor, stream: &Stream, copy: Duration) -> Result<Overlap, DeviceError> {
    let cuda = target.device();
    let matrix = Tensor::f_ones([2048, 2048], (Kind::Float, cuda))?;
    let mut product = matrix.f_zeros_like()?;
    let mut compute = |products: usize| -> Result<(), DeviceError> {
        for _ in 0..products {
            product = matrix.f_matmul(&matrix)?;
        }
        Ok(())
    };
    let mut timed = |products: usize, copies: bool| -> Result<Duration, DeviceError> {
        device::synchronize(cuda)?;
        let start = Instant::now();
        if copies {
            queue_copy(target, source, stream)?;
        }
        compute(products)?;
        device::synchronize(cuda)?;
        Ok(start.elapsed())
    };
    timed(8, false)?;
    let one = timed(8, false)?.as_secs_f64() / 8.0;
    let products = (2.0 * copy.as_secs_f64() / one.max(1e-9)).ceil().clamp(1.0, 10_000.0) as usize;
    let computation = median(|| timed(products, false))?;
    let both = median(|| timed(products, true))?;
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    let (copy_ms, computation_ms, both_ms) = (milliseconds(copy), milliseconds(computation), milliseconds(both));
    let hidden_share = ((copy_ms + computation_ms - both_ms) / copy_ms.max(1e-9)).clamp(0.0, 1.0);
    Ok(Overlap { copy_ms, computation_ms, both_ms, hidden_share })
}

/// Median of [`REPETITIONS`] measurements after one warm-up.
fn median(mut measure: impl FnMut() -> Result<Duration, DeviceError>) -> Result<Duration, DeviceError> {
    measure()?;
    let mut times = (0..REPETITIONS).map(|_| measure()).collect::<Result<Vec<_>, _>>()?;
    times.sort_unstable();
    Ok(times[times.len() / 2])
}
