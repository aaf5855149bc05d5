//! Batched host-to-device copies: many small tensors are gathered in page-locked memory and copied asynchronously on a
//! side stream.
//!
//! ```text
//! host:         gather into block 0 | gather into block 1 | ...        (waits only before a block is reused)
//! copy stream:                        copy 0              | copy 1
//! compute:      ... previously queued steps ...       | wait for copy 0, use it
//! ```
//!
//! The device memory comes from the copy stream's pool and is recorded as used by the compute stream, so that a copy
//! never waits for queued steps.

use tch::{Device, Kind, Tensor};

use super::packing::Packing;
use super::{DeviceError, Event, PinnedBlock, Stream, StreamGuard, copy, record_stream};

/// Maximum number of concurrent copies.
const BLOCKS: usize = 4;

/// Copies groups of host tensors to one device.
#[derive(Debug)]
pub struct Uploader {
    device: Device,
    /// `None` if the device is the CPU.
    copies: Option<CopyStream>,
}

#[derive(Debug)]
struct CopyStream {
    stream: Stream,
    blocks: Vec<Block>,
    next: usize,
    /// The reason if page-locking was refused; copies then block the host.
    not_page_locked: Option<String>,
}

#[derive(Debug)]
struct Block {
    memory: PinnedBlock,
    /// The end of the last copy from this block.
    copied: Event,
}

impl Uploader {
    /// An uploader of tensors for the calling thread's current stream of `device`.
    ///
    /// # Errors
    /// If `device` is a GPU that does not exist.
    pub fn new(device: Device) -> Result<Self, DeviceError> {
        let copies = match device {
            Device::Cpu => None,
            device => Some(CopyStream {
                stream: Stream::from_pool(device, false)?,
                blocks: Vec::new(),
                next: 0,
                not_page_locked: None,
            }),
        };
        Ok(Self { device, copies })
    }

    /// The target device of the copies.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The driver's reason for refusing page-locked memory, if it did: copies still work, but block the host.
    pub fn not_page_locked(&self) -> Option<&str> {
        self.copies.as_ref()?.not_page_locked.as_deref()
    }

    /// Copies `tensors` (in host memory) to the device, in order; on the CPU, returns other handles to the same
    /// tensors.
    ///
    /// The calling thread's current stream waits for the copy; the host does not.
    ///
    /// # Errors
    /// If device or host memory runs out. Nothing is leaked, and the call may be repeated.
    pub fn upload(&mut self, tensors: &[&Tensor]) -> Result<Vec<Tensor>, DeviceError> {
        Ok(self.upload_packed(tensors)?.0)
    }

    /// The same, with the allocation that the copies are [packed](Packing) into; `None` on the CPU.
    ///
    /// # Errors
    /// Those of [`Self::upload`].
    pub fn upload_packed(&mut self, tensors: &[&Tensor]) -> Result<(Vec<Tensor>, Option<Tensor>), DeviceError> {
        let device = self.device;
        match &mut self.copies {
            None => Ok((tensors.iter().map(|tensor| tensor.shallow_clone()).collect(), None)),
            Some(copies) => copies.upload(device, tensors),
        }
    }
}

impl CopyStream {
    fn upload(&mut self, device: Device, tensors: &[&Tensor]) -> Result<(Vec<Tensor>, Option<Tensor>), DeviceError> {
        let mut packing = Packing::default();
        tensors.iter().for_each(|tensor| packing.add(&tensor.size(), tensor.kind()));
        let length = packing.bytes();
        let reader = Stream::current(device)?;
        let stream = self.stream;
        let block = self.block(device, length)?;
        for (tensor, offset) in tensors.iter().zip(packing.offsets_bytes()) {
            let mut target = block.memory.tensor(offset, &tensor.size(), tensor.kind())?;
            copy(&mut target, tensor, false)?;
        }
        let memory = {
            let _copy_stream = StreamGuard::enter(&stream)?;
            let source = block.memory.tensor(0, &[length as i64], Kind::Uint8)?;
            let mut memory = Tensor::f_empty([length as i64], (Kind::Uint8, device))?;
            copy(&mut memory, &source, true)?;
            block.copied.record(&stream)?;
            memory
        };
        block.copied.wait(&reader)?;
        record_stream(&memory, &reader)?;
        Ok((packing.tensors(&memory)?, Some(memory)))
    }

    /// A block of at least `length` bytes that no copy is reading.
    fn block(&mut self, device: Device, length: usize) -> Result<&mut Block, DeviceError> {
        let index = self.next % BLOCKS;
        self.next += 1;
        if index == self.blocks.len() {
            let memory = self.memory(device, length)?;
            self.blocks.push(Block { memory, copied: Event::new(device, false)? });
        } else {
            self.blocks[index].copied.synchronize()?;
            if self.blocks[index].memory.len() < length {
                // A quarter larger than needed, so that growing ends soon: page-locking takes milliseconds.
                self.blocks[index].memory = self.memory(device, length + length / 4)?;
            }
        }
        Ok(&mut self.blocks[index])
    }

    fn memory(&mut self, device: Device, length: usize) -> Result<PinnedBlock, DeviceError> {
        match PinnedBlock::new(length, device) {
            Err(DeviceError::PinningRefused { reason, .. }) => {
                self.not_page_locked = Some(reason);
                PinnedBlock::ordinary(length)
            }
            outcome => outcome,
        }
    }
}

impl Drop for CopyStream {
    /// Waits for running copies from the blocks. If that fails, a copy may still read them, so they stay.
    fn drop(&mut self) {
        if let Err(error) = self.stream.synchronize() {
            tracing::error!("cannot wait for the last copies of batches to the device: {error}");
            std::mem::forget(std::mem::take(&mut self.blocks));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_a_cpu_tensors_are_handed_on() {
        let mut uploader = Uploader::new(Device::Cpu).unwrap();
        let tensor = Tensor::from_slice(&[1_i64, 2, 3]);
        let uploaded = uploader.upload(&[&tensor]).unwrap();
        assert_eq!(uploaded[0].data_ptr(), tensor.data_ptr());
        assert_eq!(uploader.not_page_locked(), None);
    }

    #[test]
    fn the_next_tensors_are_gathered_while_a_copy_runs() {
        let stream = Stream::from_pool(Device::Cpu, false).unwrap();
        let mut copies = CopyStream { stream, blocks: Vec::new(), next: 0, not_page_locked: None };
        let mut start_of_block = |length: usize| {
            let block = copies.block(Device::Cpu, length).unwrap();
            assert!(block.memory.len() >= length);
            block.memory.tensor(0, &[1], Kind::Uint8).unwrap().data_ptr()
        };
        let starts: Vec<_> = (0..BLOCKS).map(|_| start_of_block(100)).collect();
        assert!(starts.len() > 1 && !starts[1..].contains(&starts[0]), "the first copy would have to be over");
        assert!(starts.iter().all(|start| start_of_block(50) == *start), "blocks are used in turn");
        start_of_block(200);
    }

    #[test]
    fn a_gpu_that_is_not_there_is_an_error() {
        if super::super::cuda_device_count().is_ok() {
            println!("skipped: there is a GPU");
            return;
        }
        let error = Uploader::new(Device::Cuda(0)).unwrap_err();
        assert!(error.to_string().contains("no CUDA"), "{error}");
    }
}
