//! Records in memory: appended to blocks as they arrive, so that graphs that are never requested take no memory.
//!
//! The blocks are tensors, so that the allocator counts them and applies its limit to them.

use std::sync::{Arc, OnceLock};

use tch::{Device, Kind, TchError, Tensor};

use kdgat_torch::allocator::{self, Phase};
use kdgat_torch::rows::{Blocks, Place};
use kdgat_torch::view;

const BLOCK_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Memory {
    /// Block, offset and length of each graph's record; a length of zero means none.
    places: Vec<(u32, u32, u32)>,
    blocks: Vec<Block>,
    /// The blocks as batches read them: made at the first read, reset when a block is added.
    shared: OnceLock<Arc<Blocks>>,
}

#[derive(Debug)]
struct Block {
    /// `[capacity]`, u8.
    bytes: Tensor,
    capacity: usize,
    used: usize,
}

impl Memory {
    pub fn new(graphs: usize) -> Self {
        Self { places: vec![(0, 0, 0); graphs], blocks: Vec::new(), shared: OnceLock::new() }
    }

    /// The records of `graphs`; `None` for a missing one.
    pub fn records(&self, graphs: &[u64]) -> Result<Vec<Option<&[u8]>>, TchError> {
        let blocks = self.blocks.iter().map(|block| view::read::<u8>("cached targets", &block.bytes));
        let blocks = blocks.collect::<Result<Vec<_>, _>>()?;
        let record = |graph: &u64| match self.places.get(*graph as usize) {
            Some(&(block, offset, length)) if length > 0 => {
                blocks.get(block as usize)?.get(offset as usize..)?.get(..length as usize)
            }
            _ => None,
        };
        Ok(graphs.iter().map(record).collect())
    }

    /// Block and offset of the records of `graphs` in [`Memory::shared`]. `None` if one is missing.
    pub fn places(&self, graphs: &[u64]) -> Option<Vec<Place>> {
        let place = |graph: &u64| match self.places.get(*graph as usize) {
            Some(&(block, offset, length)) if length > 0 => Some((block, offset)),
            _ => None,
        };
        graphs.iter().map(place).collect()
    }

    /// The blocks, which a batch may hold as long as it needs: cached records are never moved or overwritten.
    pub fn shared(&self) -> Result<&Arc<Blocks>, TchError> {
        if let Some(blocks) = self.shared.get() {
            return Ok(blocks);
        }
        let handles = self.blocks.iter().map(|block| block.bytes.shallow_clone()).collect();
        let blocks = Arc::new(Blocks::new(handles)?);
        Ok(self.shared.get_or_init(|| blocks))
    }

    /// Caches a record unless the graph already has one, which may be in use.
    ///
    /// # Errors
    /// Fails when out of memory.
    pub fn put(&mut self, graph: usize, record: &[u8]) -> Result<(), TchError> {
        if self.places[graph].2 > 0 {
            return Ok(());
        }
        if self.blocks.last().is_none_or(|block| block.capacity - block.used < record.len()) {
            self.blocks.push(Block::new(BLOCK_BYTES.max(record.len()))?);
            self.shared = OnceLock::new();
        }
        let number = self.blocks.len() - 1;
        let block = &mut self.blocks[number];
        let offset = block.used;
        block.write(offset, record)?;
        block.used += record.len();
        self.places[graph] = (number as u32, offset as u32, record.len() as u32);
        Ok(())
    }
}

impl Block {
    fn new(capacity: usize) -> Result<Self, TchError> {
        let _phase = allocator::enter_phase(Phase::Cache);
        let bytes = Tensor::f_empty([capacity as i64], (Kind::Uint8, Device::Cpu))?;
        Ok(Self { bytes, capacity, used: 0 })
    }

    fn write(&mut self, offset: usize, record: &[u8]) -> Result<(), TchError> {
        let bytes: &mut [u8] = view::write("cached targets", &mut self.bytes)?;
        bytes[offset..][..record.len()].copy_from_slice(record);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_any_size_come_back() {
        let mut memory = Memory::new(4);
        let large = vec![7; BLOCK_BYTES + 5];
        memory.put(2, b"two").unwrap();
        memory.put(0, &large).unwrap();
        memory.put(1, b"one").unwrap();
        // The first record stays: a batch may be reading it.
        memory.put(2, b"owt").unwrap();
        let found = memory.records(&[2, 0, 1, 3, 9]).unwrap();
        let expected = [Some(b"two".as_slice()), Some(large.as_slice()), Some(b"one".as_slice()), None, None];
        assert!(found == expected, "other records were read than were cached");
    }
}
