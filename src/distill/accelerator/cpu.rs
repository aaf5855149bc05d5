//! The CPU as a device: everything is done when its call returns, so events are points in time.
//!
//! `forward` really copies the weights into memory of its own and drops it, so that what is counted and tested here
//! is what happens on a GPU.

use std::time::Instant;

use tch::{Device, Kind, Tensor};

use super::{Accelerator, AcceleratorError, HostBlock, MemoryState};
use crate::distill::order::Stream;
use crate::distill::targets::Targets;

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
        Ok(HostBlock { tensor: self.allocate(bytes)?, not_page_locked: None, owner: None })
    }

    fn allocate(&mut self, bytes: usize) -> Result<Tensor, AcceleratorError> {
        Ok(Tensor::f_empty([bytes as i64], (Kind::Uint8, Device::Cpu))?)
    }

    fn copy(&mut self, from: &Tensor, to: &mut Tensor) -> Result<(), AcceleratorError> {
        Ok(to.f_copy_(from)?)
    }

    fn enter_thread(&mut self) -> Result<(), AcceleratorError> {
        Ok(())
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
        MemoryState { free_bytes: available_bytes(), ..MemoryState::default() }
    }
}

fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib * 1024)
}
