//! Records in memory: packed into blocks as they come, so that graphs that are never asked for take no room.
//!
//! The blocks are tensors, so that they are counted and kept below the limit like all else.

use tch::{Device, Kind, TchError, Tensor};

use crate::torch::allocator::{self, Phase};
use crate::torch::view;

const BLOCK_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Memory {
    /// Block, offset and length of each graph's record; a length of zero means none.
    places: Vec<(u32, u32, u32)>,
    blocks: Vec<Block>,
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
        Self { places: vec![(0, 0, 0); graphs], blocks: Vec::new() }
    }

    /// The records of `graphs`, as far as they are there.
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

    /// Keeps a record; a second one for the same graph takes the first one's place.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn put(&mut self, graph: usize, record: &[u8]) -> Result<(), TchError> {
        let (block, offset, length) = self.places[graph];
        if length as usize == record.len() && length > 0 {
            return self.blocks[block as usize].write(offset as usize, record);
        }
        if self.blocks.last().is_none_or(|block| block.capacity - block.used < record.len()) {
            self.blocks.push(Block::new(BLOCK_BYTES.max(record.len()))?);
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
        memory.put(2, b"owt").unwrap();
        let found = memory.records(&[2, 0, 1, 3, 9]).unwrap();
        let expected = [Some(b"owt".as_slice()), Some(large.as_slice()), Some(b"one".as_slice()), None, None];
        assert!(found == expected, "other records came back than were kept");
    }
}
