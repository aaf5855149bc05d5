//! Numbers the nodes of a batch in order of first appearance.
//!
//! A table has one number for each node of the graph, and each lookup is one access to memory. If the graph is much larger than a
//! batch, a hash table of the batch's nodes is faster, because it stays in the caches, and smaller. Neither is cleared between
//! batches: numbers are stored relative to a base that grows, so those of earlier batches are out of range.

use kdgat_base::random::GOLDEN;

/// Largest graph for which a table is used whatever the batches.
const SMALL_GRAPH: usize = 1 << 21;
/// Batches with at least this share of a larger graph's nodes use a table. Measured: a batch of 600,000 nodes is faster with a table
/// if the graph has 16 million nodes, and with a hash table if it has 64 million.
const TABLE_SHARE: usize = 64;
/// Nodes that are numbered between two checks of the hash table's size.
const STRIDE: usize = 4096;

/// Numbers nodes; keeps its memory from batch to batch.
#[derive(Debug)]
pub struct Relabel {
    num_nodes: usize,
    numbers: Numbers,
    /// Number 0 of this batch as it is stored. Never 0, which stands for no number.
    base: u32,
    /// Nodes numbered in this batch.
    count: usize,
}

#[derive(Debug)]
enum Numbers {
    /// `[num_nodes]`: base + number of each node.
    Table(Vec<u32>),
    Hash(HashTable),
}

impl Relabel {
    /// Numbers nodes of a graph of `num_nodes` nodes.
    pub fn new(num_nodes: usize) -> Self {
        let numbers = match num_nodes <= SMALL_GRAPH {
            true => Numbers::Table(vec![0; num_nodes]),
            false => Numbers::Hash(HashTable::default()),
        };
        Self { num_nodes, numbers, base: 1, count: 0 }
    }

    /// Begins a new batch.
    pub fn start(&mut self) {
        if matches!(self.numbers, Numbers::Hash(_)) && self.count >= self.num_nodes / TABLE_SHARE {
            self.numbers = Numbers::Table(vec![0; self.num_nodes]);
        }
        // Room for the numbers of another batch, of at most 2^31 nodes.
        match self.base.checked_add(self.count as u32).filter(|base| *base < 1 << 31) {
            Some(base) => self.base = base,
            None => {
                self.base = 1;
                match &mut self.numbers {
                    Numbers::Table(table) => table.fill(0),
                    Numbers::Hash(table) => table.slots.fill(0),
                }
            }
        }
        self.count = 0;
    }

    /// Appends the number of each node of `found` to `numbers`; new nodes get the next numbers and are appended to `nodes`,
    /// the nodes of this batch by number.
    pub fn number(&mut self, found: &[u32], nodes: &mut Vec<u32>, numbers: &mut Vec<u32>) {
        debug_assert_eq!(nodes.len(), self.count);
        let first = numbers.len();
        numbers.resize(first + found.len(), 0);
        // Each node is written behind the last new one, and stays there if it is new.
        nodes.resize(self.count + found.len(), 0);
        let numbers = &mut numbers[first..];
        match &mut self.numbers {
            Numbers::Table(table) => self.count = number_by_table(table, self.base, self.count, found, nodes, numbers),
            Numbers::Hash(table) => {
                for (found, numbers) in found.chunks(STRIDE).zip(numbers.chunks_mut(STRIDE)) {
                    table.make_room(self.base, &nodes[..self.count], found.len());
                    self.count = table.number(self.base, self.count, found, nodes, numbers);
                }
            }
        }
        nodes.truncate(self.count);
    }

    /// Number of a node in this batch.
    pub fn get(&self, node: u32) -> Option<u32> {
        let stored = match &self.numbers {
            Numbers::Table(table) => *table.get(node as usize)?,
            Numbers::Hash(table) => table.stored(node, self.base, self.count)?,
        };
        Some(stored.wrapping_sub(self.base)).filter(|number| (*number as usize) < self.count)
    }
}

/// Without branches on the data: whether a node is new is unpredictable.
fn number_by_table(
    table: &mut [u32],
    base: u32,
    mut count: usize,
    found: &[u32],
    nodes: &mut [u32],
    numbers: &mut [u32],
) -> usize {
    for (&node, number) in found.iter().zip(numbers) {
        let stored = &mut table[node as usize];
        let known = stored.wrapping_sub(base);
        let is_new = known as usize >= count;
        *number = if is_new { count as u32 } else { known };
        *stored = base.wrapping_add(*number);
        nodes[count] = node;
        count += usize::from(is_new);
    }
    count
}

/// Open addressing with linear probing. A slot holds a node (upper half) and base + number; a slot of an earlier batch is free.
#[derive(Debug, Default)]
struct HashTable {
    slots: Vec<u64>,
    /// 64 minus the logarithm of the number of slots.
    shift: u32,
}

impl HashTable {
    fn slot_of(&self, node: u32) -> usize {
        (u64::from(node).wrapping_mul(GOLDEN) >> self.shift) as usize
    }

    /// Keeps more than half of the slots free with `more` nodes.
    fn make_room(&mut self, base: u32, nodes: &[u32], more: usize) {
        let needed = (2 * (nodes.len() + more) + 1).next_power_of_two();
        if needed <= self.slots.len() {
            return;
        }
        self.slots.clear();
        self.slots.resize(2 * needed, 0);
        self.shift = 64 - self.slots.len().trailing_zeros();
        for (number, &node) in nodes.iter().enumerate() {
            let at = self.find(node, base, number);
            self.slots[at] = u64::from(node) << 32 | u64::from(base + number as u32);
        }
    }

    /// The slot of a node, or the free one for it.
    fn find(&self, node: u32, base: u32, count: usize) -> usize {
        let mut at = self.slot_of(node);
        loop {
            let slot = self.slots[at];
            let free = (slot as u32).wrapping_sub(base) as usize >= count;
            if free || (slot >> 32) as u32 == node {
                return at;
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    fn stored(&self, node: u32, base: u32, count: usize) -> Option<u32> {
        (!self.slots.is_empty()).then(|| self.slots[self.find(node, base, count)] as u32)
    }

    fn number(&mut self, base: u32, mut count: usize, found: &[u32], nodes: &mut [u32], numbers: &mut [u32]) -> usize {
        for (&node, number) in found.iter().zip(numbers) {
            let at = self.find(node, base, count);
            let known = (self.slots[at] as u32).wrapping_sub(base);
            let is_new = known as usize >= count;
            *number = if is_new { count as u32 } else { known };
            self.slots[at] = u64::from(node) << 32 | u64::from(base + *number);
            nodes[count] = node;
            count += usize::from(is_new);
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use proptest::prelude::*;

    /// Numbers of the nodes in order of first appearance, by a map.
    fn expected(found: &[u32]) -> (Vec<u32>, Vec<u32>) {
        let (mut map, mut nodes) = (HashMap::new(), Vec::new());
        let numbers = found.iter().map(|&node| {
            *map.entry(node).or_insert_with(|| {
                nodes.push(node);
                nodes.len() as u32 - 1
            })
        });
        let numbers = numbers.collect();
        (numbers, nodes)
    }

    fn with_hash_table() -> Relabel {
        let relabel = Relabel::new(u32::MAX as usize);
        assert!(matches!(relabel.numbers, Numbers::Hash(_)));
        relabel
    }

    fn check(relabel: &mut Relabel, found: &[u32], cut: usize) {
        relabel.start();
        let (mut nodes, mut numbers) = (Vec::new(), Vec::new());
        let cut = cut.min(found.len());
        relabel.number(&found[..cut], &mut nodes, &mut numbers);
        relabel.number(&found[cut..], &mut nodes, &mut numbers);
        let (expected_numbers, expected_nodes) = expected(found);
        assert_eq!(numbers, expected_numbers);
        assert_eq!(nodes, expected_nodes);
        for node in 0..1000 {
            let number = expected_nodes.iter().position(|&found| found == node);
            assert_eq!(relabel.get(node), number.map(|number| number as u32), "node {node}");
        }
    }

    proptest! {
        #[test]
        fn numbers_are_those_of_first_appearance(
            batches in prop::collection::vec((prop::collection::vec(0u32..1000, 0..3000), 0usize..3000), 1..6),
        ) {
            for mut relabel in [Relabel::new(1000), with_hash_table()] {
                for (found, cut) in &batches {
                    check(&mut relabel, found, *cut);
                }
            }
        }
    }

    #[test]
    fn numbers_of_earlier_batches_are_forgotten_when_the_base_starts_again() {
        for mut relabel in [Relabel::new(1000), with_hash_table()] {
            relabel.base = (1 << 31) - 2;
            for batch in 0..3u32 {
                let found: Vec<u32> = (0..5).map(|node| node + 2 * batch).collect();
                check(&mut relabel, &found, 2);
            }
            assert!(relabel.base < 100);
        }
    }

    #[test]
    fn a_hash_table_grows_within_a_batch() {
        let found: Vec<u32> = (0..100_000u32).map(|node| node.wrapping_mul(2_654_435_761)).collect();
        let mut relabel = with_hash_table();
        check(&mut relabel, &found, 17);
        check(&mut relabel, &found, 99_000);
        check(&mut relabel, &[u32::MAX, 7, u32::MAX - 1, u32::MAX], 2);
        assert!(matches!(relabel.numbers, Numbers::Hash(_)));
    }

    #[test]
    fn a_batch_with_much_of_a_large_graph_changes_to_a_table() {
        let mut relabel = Relabel::new(SMALL_GRAPH + 1);
        for share in [1000, TABLE_SHARE, 1000, 1000] {
            let found: Vec<u32> = (0..1 + (SMALL_GRAPH / share) as u32).map(|node| node * share as u32).collect();
            check(&mut relabel, &found, 17);
        }
        assert!(matches!(relabel.numbers, Numbers::Table(_)));
    }
}
