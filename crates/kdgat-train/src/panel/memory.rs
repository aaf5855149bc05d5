//! What memory is in use, by component, against its limits: readings of the counting allocator and of the GPU's.

use kdgat_torch::allocator::Phase;
use kdgat_torch::device;
use tch::Device;

use crate::memory::{Meter, ProcessMemory, gpu_used_bytes, physical_bytes};

/// Memory as the panel shows it. Bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    pub host: Host,
    /// None on a CPU.
    pub gpu: Option<Gpu>,
    /// What batches were sized by.
    pub plan: Option<MemoryPlan>,
}

/// The limit and the expectation that batches were sized by, of the device that is trained on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryPlan {
    pub limit_bytes: u64,
    /// At the largest batch.
    pub expected_bytes: u64,
}

/// Tensors in host memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Host {
    /// Purposes that take something, in the allocator's order.
    pub components: Vec<Component>,
    pub now_bytes: u64,
    /// The most since the panel opened.
    pub peak_bytes: u64,
    /// Kept for later tensors.
    pub kept_bytes: u64,
    /// Of the whole process, mapped files included.
    pub process_bytes: u64,
    /// Of tensors; without one the machine's memory.
    pub limit_bytes: u64,
}

/// Tensors of one purpose.
#[derive(Clone, Debug, PartialEq)]
pub struct Component {
    pub name: &'static str,
    /// The place in the allocator's order, by which it is coloured.
    pub place: usize,
    pub now_bytes: u64,
    /// At the moment of the host's peak.
    pub peak_bytes: u64,
}

/// A GPU's memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gpu {
    pub now_bytes: u64,
    /// The most since the panel opened.
    pub peak_bytes: u64,
    /// Taken from the driver: tensors and what is kept for later ones.
    pub reserved_bytes: u64,
    /// Of the card, by all processes.
    pub used_bytes: u64,
    pub total_bytes: u64,
}

impl Memory {
    /// Reads everything anew. Waits for no work of the GPU.
    pub fn read(&mut self, of: Device) {
        self.read_host();
        if of.is_cuda()
            && let Ok(memory) = device::device_memory(of)
        {
            let bytes = |count: i64| u64::try_from(count).unwrap_or(0);
            let peak_bytes = self.gpu.as_ref().map_or(0, |gpu| gpu.peak_bytes).max(bytes(memory.peak_allocated));
            self.gpu = Some(Gpu {
                now_bytes: bytes(memory.allocated),
                peak_bytes,
                reserved_bytes: bytes(memory.reserved),
                used_bytes: gpu_used_bytes(of).unwrap_or(memory.total_bytes.saturating_sub(memory.free_bytes)),
                total_bytes: memory.total_bytes,
            });
        }
    }

    /// Reads the host's counts: a few numbers.
    pub fn read_host(&mut self) {
        let reading = Meter::new(Device::Cpu).read();
        let host = &mut self.host;
        host.now_bytes = reading.current_bytes;
        host.kept_bytes = reading.host.kept;
        host.process_bytes = ProcessMemory::now().resident_bytes;
        host.limit_bytes = if reading.host.limit == u64::MAX { physical_bytes() } else { reading.host.limit };
        // The allocator's peak begins anew with every epoch; the panel's does not.
        let higher = reading.peak_bytes >= host.peak_bytes;
        if higher {
            host.peak_bytes = reading.peak_bytes;
        }
        let component = |(place, phase): (usize, &Phase)| {
            let before = host.components.iter().find(|component| component.place == place);
            let peak = if higher {
                reading.phase_bytes_at_peak(*phase)
            } else {
                before.map_or(0, |component| component.peak_bytes)
            };
            Component { name: phase.name(), place, now_bytes: reading.phase_bytes(*phase), peak_bytes: peak }
        };
        let components = Phase::ALL.iter().enumerate().map(component);
        host.components = components.filter(|component| component.now_bytes + component.peak_bytes > 0).collect();
    }

    /// Takes over what was read elsewhere, and keeps a higher peak and the plan that were noted meanwhile.
    pub fn take_reading(&mut self, read: Self) {
        let (host, plan) = (std::mem::take(&mut self.host), self.plan.take());
        *self = read;
        self.plan = plan;
        if host.peak_bytes > self.host.peak_bytes {
            self.host = host;
        }
    }

    /// The limit of the GPU's tensors: what was planned with, else the card.
    pub fn gpu_limit(&self) -> u64 {
        let card = self.gpu.as_ref().map_or(0, |gpu| gpu.total_bytes);
        self.plan.as_ref().map_or(card, |plan| plan.limit_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_never_falls() {
        let mut memory = Memory::default();
        memory.host.peak_bytes = u64::MAX;
        memory.host.components.push(Component { name: "other", place: 0, now_bytes: 0, peak_bytes: 7 });
        memory.read(Device::Cpu);
        assert_eq!(memory.host.peak_bytes, u64::MAX);
        assert!(memory.host.components.iter().any(|component| component.place == 0 && component.peak_bytes == 7));
        assert!(memory.host.process_bytes > 0);
        assert_eq!(memory.gpu, None);
    }
}
