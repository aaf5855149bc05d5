//! The CPU as a device: all work is done when its call returns, so events are points in time.
//!
//! `forward` copies the weights, as on a GPU, into memory of its own and drops the copy, so that memory figures and tests on the
//! CPU reflect what happens on a GPU.

use std::time::Instant;

use kdgat_torch::allocator;
use kdgat_torch::device::{self, StreamGuard};
use tch::{Device, Kind, Tensor};

use super::{Accelerator, AcceleratorError, HostBlock, MemoryState};
use crate::order::Stream;
use crate::targets::Targets;

/// The host's processor.
#[derive(Debug, Default)]
pub struct Cpu;

impl Accelerator for Cpu {
    type Event = Instant;

    fn device(&self) -> Device {
        Device::Cpu
    }

    fn is_host(&self) -> bool {
        true
    }

    fn host_block(&mut self, bytes: usize) -> Result<HostBlock, AcceleratorError> {
        Ok(HostBlock { tensor: self.allocate(bytes)?, not_page_locked: None, counted: None })
    }

    fn allocate(&mut self, bytes: usize) -> Result<Tensor, AcceleratorError> {
        Ok(Tensor::f_empty([bytes as i64], (Kind::Uint8, Device::Cpu))?)
    }

    fn copy(&mut self, from: &Tensor, to: &mut Tensor) -> Result<(), AcceleratorError> {
        Ok(device::copy(to, from, false)?)
    }

    fn finish_copies(&mut self) -> Result<(), AcceleratorError> {
        Ok(())
    }

    fn enter_thread(&mut self) -> Result<StreamGuard, AcceleratorError> {
        Ok(StreamGuard::enter(&device::Stream::current(Device::Cpu)?)?)
    }

    fn record(&mut self, _stream: Stream) -> Result<Instant, AcceleratorError> {
        Ok(Instant::now())
    }

    fn wait(&mut self, _stream: Stream, _event: &Instant) -> Result<(), AcceleratorError> {
        Ok(())
    }

    fn elapsed_ms(&self, from: &Instant, to: &Instant) -> Option<f64> {
        Some(to.saturating_duration_since(*from).as_secs_f64() * 1e3)
    }

    fn student_takes(_events: &[Instant], _targets: &Targets) -> Result<(), AcceleratorError> {
        Ok(())
    }

    fn memory(&self) -> MemoryState {
        let available = available_bytes();
        if !allocator::is_installed() {
            return MemoryState { free_bytes: available, ..MemoryState::default() };
        }
        let stats = allocator::stats();
        // Memory cached by the allocator is free for the teacher, too.
        let below_limit = stats.limit.saturating_sub(stats.in_use);
        let free_bytes = available.map_or(below_limit, |available| below_limit.min(available + stats.kept));
        MemoryState {
            free_bytes: Some(free_bytes),
            free_at_peak_bytes: Some((free_bytes + stats.current).saturating_sub(stats.peak)),
            allocated_bytes: Some(stats.current),
            peak_bytes: Some(stats.peak),
        }
    }
}

fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib * 1024)
}
