//! Copies of many small host tensors to a GPU as one: gathered in page-locked memory, copied asynchronously on a side stream.
//!
//! ```text
//! host:         gather into block 0 | gather into block 1 | ...        (waits only for the copy out of a block that comes round again)
//! copy stream:                        copy 0              | copy 1
//! compute:      ... steps that were queued before ...       | wait for copy 0, use it
//! ```
//!
//! The device memory comes from the copy stream's pool and is recorded as used by the computing stream, so that a copy never
//! waits for steps that are still queued.

use tch::{Device, Kind, TchError, Tensor};

use super::{DeviceError, Event, PinnedBlock, Stream, StreamGuard, copy, record_stream};

/// Copies that may be under way at once.
const BLOCKS: usize = 4;
/// Every tensor begins at a multiple of this: what the allocator gives a tensor of its own.
const ALIGNMENT_BYTES: usize = 256;

/// Copies groups of host tensors to one device.
#[derive(Debug)]
pub struct Uploader {
    device: Device,
    /// `None` where the device is the CPU.
    copies: Option<CopyStream>,
}

#[derive(Debug)]
struct CopyStream {
    stream: Stream,
    blocks: Vec<Block>,
    next: usize,
    /// The reason why page-locking was refused: copies then wait.
    not_page_locked: Option<String>,
}

#[derive(Debug)]
struct Block {
    memory: PinnedBlock,
    /// The end of the last copy out of it.
    copied: Event,
}

/// The place of one tensor in a block.
struct Place {
    offset: usize,
    bytes: usize,
}

impl Uploader {
    /// For tensors that the calling thread's current stream of `device` will read.
    ///
    /// # Errors
    /// Where `device` is a GPU that is not there.
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

    /// The device that tensors are copied to.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The driver's reason for refusing page-locked memory: copies work all the same, but the host waits for them.
    pub fn not_page_locked(&self) -> Option<&str> {
        self.copies.as_ref()?.not_page_locked.as_deref()
    }

    /// Copies of `tensors` (in host memory) on the device, in their order; on a CPU, other handles to the same tensors.
    ///
    /// The calling thread's current stream waits for the copy, the host does not.
    ///
    /// # Errors
    /// When memory runs out on the device or the host; nothing is left behind then, and the same call may be repeated.
    pub fn upload(&mut self, tensors: &[&Tensor]) -> Result<Vec<Tensor>, DeviceError> {
        let device = self.device;
        match &mut self.copies {
            None => Ok(tensors.iter().map(|tensor| tensor.shallow_clone()).collect()),
            Some(copies) => copies.upload(device, tensors),
        }
    }
}

impl CopyStream {
    fn upload(&mut self, device: Device, tensors: &[&Tensor]) -> Result<Vec<Tensor>, DeviceError> {
        let mut length = 0;
        let mut places = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            let bytes = tensor.numel() * tensor.kind().elt_size_in_bytes();
            places.push(Place { offset: length, bytes });
            length += bytes.next_multiple_of(ALIGNMENT_BYTES);
        }
        let reader = Stream::current(device)?;
        let stream = self.stream;
        let block = self.block(device, length)?;
        for (tensor, place) in tensors.iter().zip(&places) {
            let mut target = block.memory.tensor(place.offset, &tensor.size(), tensor.kind())?;
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
        let views = tensors.iter().zip(&places).map(|(tensor, place)| view(&memory, place, tensor));
        Ok(views.collect::<Result<_, TchError>>()?)
    }

    /// A block of at least `length` bytes that no copy reads any more.
    fn block(&mut self, device: Device, length: usize) -> Result<&mut Block, DeviceError> {
        let index = self.next % BLOCKS;
        self.next += 1;
        if index == self.blocks.len() {
            let memory = self.memory(device, length)?;
            self.blocks.push(Block { memory, copied: Event::new(device, false)? });
        } else {
            self.blocks[index].copied.synchronize()?;
            if self.blocks[index].memory.len() < length {
                // Larger than needed now, so that growing ends soon: registering memory takes milliseconds.
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
    /// Copies out of the blocks may still be under way.
    fn drop(&mut self) {
        if let Err(error) = self.stream.synchronize() {
            tracing::error!("waiting for the last copies of batches to the device: {error}");
        }
    }
}

fn view(memory: &Tensor, place: &Place, like: &Tensor) -> Result<Tensor, TchError> {
    let bytes = memory.f_narrow(0, place.offset as i64, place.bytes as i64)?;
    bytes.f_view_dtype(like.kind())?.f_view(like.size().as_slice())
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
    fn a_gpu_that_is_not_there_is_an_error() {
        if super::super::cuda_device_count().is_ok() {
            println!("skipped: there is a GPU");
            return;
        }
        let error = Uploader::new(Device::Cuda(0)).unwrap_err();
        assert!(error.to_string().contains("no CUDA"), "{error}");
    }
}
