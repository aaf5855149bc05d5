//! Memory by component and its limits: counts of the host's counting allocator and of the GPU's allocator.

use kdgat_torch::allocator::Phase;
use kdgat_torch::device;
use tch::Device;

use crate::memory::{Meter, ProcessMemory, gpu_used_bytes, physical_bytes};

/// Memory as the panel shows it, in bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// Tensors in host memory.
    pub host: Host,
    /// `None` on a CPU.
    pub gpu: Option<Gpu>,
    /// Plan that batches were sized by.
    pub plan: Option<MemoryPlan>,
}

/// Limit and expected memory that batches were sized by, on the device that computes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryPlan {
    /// Limit of the tensors.
    pub limit_bytes: u64,
    /// Expected peak at the largest batch.
    pub expected_bytes: u64,
}

/// Tensors in host memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Host {
    /// Components that are or were in use, in the allocator's order.
    pub components: Vec<Component>,
    /// In use now.
    pub now_bytes: u64,
    /// Peak since the panel opened.
    pub peak_bytes: u64,
    /// Cached for later tensors.
    pub kept_bytes: u64,
    /// Resident memory of the process, mapped files included.
    pub process_bytes: u64,
    /// Limit of tensors; without one, the machine's memory.
    pub limit_bytes: u64,
}

/// Tensors of one purpose.
#[derive(Clone, Debug, PartialEq)]
pub struct Component {
    /// Name of the phase.
    pub name: &'static str,
    /// Index in the allocator's order, which determines the colour.
    pub place: usize,
    /// In use now.
    pub now_bytes: u64,
    /// In use at the host's peak.
    pub peak_bytes: u64,
}

/// A GPU's memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gpu {
    /// In use by tensors and CUDA graphs now.
    pub now_bytes: u64,
    /// Their peak since the panel opened.
    pub peak_bytes: u64,
    /// Reserved from the driver: tensors and cached memory.
    pub reserved_bytes: u64,
    /// In use on the card, by all processes.
    pub used_bytes: u64,
    /// Memory of the card.
    pub total_bytes: u64,
}

impl Memory {
    /// Reads everything. Does not synchronise with the GPU.
    pub fn read(&mut self, of: Device) {
        self.read_host();
        if of.is_cuda()
            && let Ok(memory) = device::device_memory(of)
        {
            let peak_bytes = self.gpu.as_ref().map_or(0, |gpu| gpu.peak_bytes).max(memory.peak_occupied_bytes());
            self.gpu = Some(Gpu {
                now_bytes: memory.occupied_bytes(),
                peak_bytes,
                reserved_bytes: u64::try_from(memory.reserved).unwrap_or(0),
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
        // The allocator's peak restarts with every epoch, the panel's does not.
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

    /// Takes over a reading made on a copy, but keeps the plan and a higher peak recorded in the meantime.
    pub fn take_reading(&mut self, read: Self) {
        let (host, plan) = (std::mem::take(&mut self.host), self.plan.take());
        *self = read;
        self.plan = plan;
        if host.peak_bytes > self.host.peak_bytes {
            self.host = host;
        }
    }

    /// Limit of the GPU's tensors: that of the plan, otherwise the card's memory.
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
