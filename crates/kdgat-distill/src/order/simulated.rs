//! A simulated device with streams, a recycling allocator and a logical clock, which detects every use out of order.
//!
//! Work takes a random time. Each stream runs its work in order and in parallel with the other streams unless an event orders
//! them. Like the caching allocator, a pool hands freed memory to the next allocation on the same stream at once. At the end,
//! every access is checked against all others to the same address.

use std::collections::HashMap;
use std::ops::Range;

use super::{Order, Rule, Rules, Stream, Streams};
use crate::visit::{self, Machine, Output, Part};

/// The content of an address: a part of the weights, the targets of a batch, or the student's own values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Weights(Part),
    Targets(usize),
    Student(usize),
}

#[derive(Debug, Clone, Copy)]
struct Access {
    address: usize,
    start: u64,
    end: u64,
    content: Content,
    write: bool,
}

/// The simulated device. Times are in ticks of its clock.
struct Simulated {
    random: u64,
    /// The slow stream, whose work takes twenty times as long: delay injection.
    slow: Option<Stream>,
    /// Set when the teacher computes on the student's stream.
    shared: bool,
    clocks: HashMap<Stream, u64>,
    pools: HashMap<Stream, Vec<usize>>,
    addresses: usize,
    accesses: Vec<Access>,
    /// Address of each batch's targets, allocated by the forward that writes them.
    targets: HashMap<usize, usize>,
}

impl Simulated {
    fn new(seed: u64, slow: Option<Stream>, shared: bool) -> Self {
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Self {
            random,
            slow,
            shared,
            clocks: HashMap::new(),
            pools: HashMap::new(),
            addresses: 0,
            accesses: Vec::new(),
            targets: HashMap::new(),
        }
    }

    fn physical(&self, stream: Stream) -> Stream {
        if self.shared && stream == Stream::Teacher { Stream::Student } else { stream }
    }

    fn take(&mut self, home: Stream) -> usize {
        let home = self.physical(home);
        self.pools.entry(home).or_default().pop().unwrap_or_else(|| {
            self.addresses += 1;
            self.addresses
        })
    }

    fn give(&mut self, home: Stream, address: usize) {
        let home = self.physical(home);
        self.pools.entry(home).or_default().push(address);
    }

    fn work(&mut self, stream: Stream, accesses: &[(usize, Content, bool)]) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let slow = self.slow == Some(stream);
        let duration = (1 + self.random % 100) * if slow { 20 } else { 1 };
        let stream = self.physical(stream);
        let clock = self.clocks.entry(stream).or_default();
        let (start, end) = (*clock, *clock + duration);
        *clock = end;
        for &(address, content, write) in accesses {
            self.accesses.push(Access { address, start, end, content, write });
        }
    }

    /// Describes the first use out of order.
    fn violation(&self) -> Option<String> {
        for access in &self.accesses {
            let others = self.accesses.iter().filter(|other| other.address == access.address);
            let overlaps = |other: &&Access| other.start < access.end && access.start < other.end;
            for other in others.clone().filter(overlaps) {
                if access.write && !std::ptr::eq(access, other) {
                    return Some(format!("{access:?} overlaps {other:?}"));
                }
            }
            if !access.write {
                let last_write =
                    others.filter(|other| other.write && other.end <= access.start).max_by_key(|other| other.end);
                if last_write.map(|write| write.content) != Some(access.content) {
                    return Some(format!("{access:?} finds {last_write:?}"));
                }
            }
        }
        None
    }
}

impl Streams for Simulated {
    type Event = u64;
    type Error = std::convert::Infallible;

    fn record(&mut self, stream: Stream) -> Result<u64, Self::Error> {
        let stream = self.physical(stream);
        Ok(*self.clocks.entry(stream).or_default())
    }

    fn finish(&mut self, _stream: Stream) -> Result<(), Self::Error> {
        Ok(())
    }

    fn wait(&mut self, stream: Stream, event: &u64) -> Result<(), Self::Error> {
        let stream = self.physical(stream);
        let clock = self.clocks.entry(stream).or_default();
        *clock = (*clock).max(*event);
        Ok(())
    }
}

impl Machine for Simulated {
    type Slot = usize;

    fn allocate(&mut self, _bytes: usize) -> Result<usize, Self::Error> {
        Ok(self.take(Stream::Student))
    }

    fn copy(&mut self, part: Part, slot: &mut usize) -> Result<(), Self::Error> {
        self.work(Stream::Copy, &[(*slot, Content::Weights(part), true)]);
        Ok(())
    }

    fn forward(&mut self, part: Part, slot: &usize, batch: usize) -> Result<(), Self::Error> {
        let address = match self.targets.get(&batch) {
            Some(&address) => address,
            None => self.take(Stream::Teacher),
        };
        self.targets.insert(batch, address);
        self.work(Stream::Teacher, &[(*slot, Content::Weights(part), false), (address, Content::Targets(batch), true)]);
        Ok(())
    }

    fn has_room(&self, _waiting: Range<usize>) -> bool {
        true
    }

    fn free(&mut self, slot: usize) {
        self.give(Stream::Student, slot);
    }
}

/// The teacher's residency in a simulated training loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    /// The weights stay on the device; only the targets' events order the student after the teacher.
    Resident,
    Forward,
    Layer {
        slots: usize,
    },
}

/// A student's step: allocates activations, reads the targets, and frees both.
fn student_step<R: Rules>(
    device: &mut Simulated,
    order: &mut Order<u64, R>,
    (batch, output): (usize, Output),
) -> Result<(), std::convert::Infallible> {
    let activations = device.take(Stream::Student);
    device.work(Stream::Student, &[(activations, Content::Student(batch), true)]);
    let targets = device.targets.remove(&batch).expect("a forward wrote them");
    order.run(device, Stream::Student, (&[output.0], &[]), |device| {
        let reads = [(activations, Content::Student(batch), false), (targets, Content::Targets(batch), false)];
        device.work(Stream::Student, &reads);
        Ok(())
    })?;
    order.release(device, output.0)?;
    device.give(Stream::Teacher, targets);
    device.give(Stream::Student, activations);
    Ok(())
}

fn train<R: Rules>(rules: R, flow: Flow, seed: u64, slow: Option<Stream>, shared: bool) -> Option<String> {
    let mut device = Simulated::new(seed, slow, shared);
    let mut order = Order::new(rules);
    let mut held = None;
    for visit in 0..6 {
        let batches: Vec<usize> = (visit * 3..visit * 3 + 3).collect();
        let outputs = match flow {
            Flow::Resident | Flow::Forward => {
                let weights = held.take().unwrap_or_else(|| visit::load(&mut device, &mut order, 1).unwrap());
                let run = |batch: &usize| visit::forward(&mut device, &mut order, &weights, *batch).unwrap();
                let outputs: Vec<Output> = batches.iter().map(run).collect();
                if flow == Flow::Resident && visit < 5 {
                    held = Some(weights);
                } else {
                    visit::let_go(&mut device, &mut order, weights).unwrap();
                }
                outputs
            }
            Flow::Layer { slots } => {
                // The ring numbers batches from 0; the targets of the previous visit have all been used.
                visit::through_layers(&mut device, &mut order, 5, &vec![1; slots], 0..batches.len()).unwrap()
            }
        };
        let by_layer = matches!(flow, Flow::Layer { .. });
        let numbers = if by_layer { (0..outputs.len()).collect() } else { batches };
        for step in numbers.into_iter().zip(outputs) {
            student_step(&mut device, &mut order, step).unwrap();
        }
    }
    assert_eq!(order.live_buffers(), 0, "buffers were not released");
    device.violation()
}

const FLOWS: [Flow; 5] =
    [Flow::Resident, Flow::Forward, Flow::Layer { slots: 1 }, Flow::Layer { slots: 2 }, Flow::Layer { slots: 3 }];
const SLOW: [Option<Stream>; 4] = [None, Some(Stream::Student), Some(Stream::Teacher), Some(Stream::Copy)];

fn first_violation<R: Rules + Copy>(rules: R) -> Option<String> {
    for flow in FLOWS {
        for slow in SLOW {
            for (seed, shared) in (0..20).flat_map(|seed| [(seed, false), (seed, true)]) {
                if let Some(found) = train(rules, flow, seed, slow, shared) {
                    return Some(format!("{flow:?}, slow {slow:?}, seed {seed}, shared {shared}: {found}"));
                }
            }
        }
    }
    None
}

#[derive(Clone, Copy)]
struct AllBut(Rule);

impl Rules for AllBut {
    fn keeps(&self, rule: Rule) -> bool {
        rule != self.0
    }
}

#[test]
fn all_rules_keep_every_use_in_order() {
    assert_eq!(first_violation(super::AllRules), None);
}

#[test]
fn each_rule_is_needed() {
    for rule in [Rule::WriteAfterRead, Rule::ReadAfterWrite, Rule::UseAfterForward, Rule::ReturnToLastUser] {
        assert!(first_violation(AllBut(rule)).is_some(), "leaving out {rule:?} went unnoticed");
    }
}
