//! Records in memory: packed into blocks as they come, so that graphs that are never asked for take no room.

const BLOCK_BYTES: usize = 16 << 20;

#[derive(Debug)]
pub(super) struct Memory {
    /// Block, offset and length of each graph's record; a length of zero means none.
    places: Vec<(u32, u32, u32)>,
    blocks: Vec<Vec<u8>>,
}

impl Memory {
    pub fn new(graphs: usize) -> Self {
        Self { places: vec![(0, 0, 0); graphs], blocks: Vec::new() }
    }

    pub fn get(&self, graph: usize) -> Option<&[u8]> {
        let (block, offset, length) = *self.places.get(graph)?;
        (length > 0).then(|| &self.blocks[block as usize][offset as usize..][..length as usize])
    }

    /// Keeps a record; a second one for the same graph takes the first one's place.
    pub fn put(&mut self, graph: usize, record: &[u8]) {
        let (block, offset, length) = self.places[graph];
        if length as usize == record.len() {
            self.blocks[block as usize][offset as usize..][..record.len()].copy_from_slice(record);
            return;
        }
        let room = |block: &&mut Vec<u8>| block.capacity() - block.len() >= record.len();
        if self.blocks.last_mut().filter(room).is_none() {
            self.blocks.push(Vec::with_capacity(BLOCK_BYTES.max(record.len())));
        }
        let block = self.blocks.len() - 1;
        let offset = self.blocks[block].len();
        self.blocks[block].extend_from_slice(record);
        self.places[graph] = (block as u32, offset as u32, record.len() as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_any_size_come_back() {
        let mut memory = Memory::new(4);
        let large = vec![7; BLOCK_BYTES + 5];
        memory.put(2, b"two");
        memory.put(0, &large);
        memory.put(1, b"one");
        memory.put(2, b"owt");
        assert_eq!(memory.get(2), Some(b"owt".as_slice()));
        assert_eq!(memory.get(0), Some(large.as_slice()));
        assert_eq!(memory.get(1), Some(b"one".as_slice()));
        assert_eq!((memory.get(3), memory.get(9)), (None, None));
    }
}
