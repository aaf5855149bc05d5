//! The order of work on several streams, enforced by events and not by blocking the host.
//!
//! Four rules, for each piece of device memory:
//! 1. *write after read*: a copy into memory waits for all earlier readers, those of the memory's previous owner included;
//! 2. *read after write*: a forward waits for the copy of the weights that it reads;
//! 3. *use after forward*: the student's stream waits for the forward before it reads the targets;
//! 4. *return to the last user*: before memory goes back to the pool of its home stream, that stream waits for the last users of
//!    the memory, because the pool reuses memory in the order of its own stream only.
//!
//! [`Order`] computes the events to wait for; it knows no device. The tests run it, with the visits of [`crate::shuttle`], against
//! a simulated device with a logical clock: once with all rules, and once without each of them.

use std::collections::HashMap;

#[cfg(test)]
mod simulated;

/// A queue of work on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    /// The student's compute stream. Weights and slots are allocated from its pool, so that the student can use the memory that
    /// the teacher frees.
    Student,
    /// The teacher's compute stream: the student's stream, or a separate one.
    Teacher,
    /// The stream of weight copies to the device.
    Copy,
}

/// A device's streams. An event marks a point in a stream; waiting for it blocks a stream, never the host.
pub trait Streams {
    /// An event: a point in a stream.
    type Event: Clone;
    /// The device's error.
    type Error;

    /// Records an event at the current end of `stream`.
    fn record(&mut self, stream: Stream) -> Result<Self::Event, Self::Error>;

    /// Makes later work on `stream` start only after `event`.
    fn wait(&mut self, stream: Stream, event: &Self::Event) -> Result<(), Self::Error>;

    /// Blocks the host until `stream` is done: for work after which no event could be recorded.
    fn finish(&mut self, stream: Stream) -> Result<(), Self::Error>;
}

/// Identifies a piece of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Buffer(u64);

/// One of the four rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// A write waits for earlier readers, those of the previous owner of recycled memory included.
    WriteAfterRead,
    /// The teacher's forward waits for the copy of its weights.
    ReadAfterWrite,
    /// The student waits for the teacher's forward.
    UseAfterForward,
    /// The home stream waits for the last users of memory before it goes back to the pool.
    ReturnToLastUser,
}

/// The rules that [`Order`] applies: all of them, except in tests that each one is needed.
pub trait Rules {
    /// True if `rule` is applied.
    fn keeps(&self, rule: Rule) -> bool;
}

/// Applies every rule.
#[derive(Debug, Clone, Copy, Default)]
pub struct AllRules;

impl Rules for AllRules {
    fn keeps(&self, _rule: Rule) -> bool {
        true
    }
}

#[derive(Debug)]
struct Access<E> {
    stream: Stream,
    event: E,
}

#[derive(Debug)]
struct State<E> {
    home: Stream,
    last_write: Option<Access<E>>,
    /// Reads since the last write; at most one per stream, since a stream is in order with itself.
    reads: Vec<Access<E>>,
}

/// The last uses of each piece of device memory, from which the events that new work waits for follow.
#[derive(Debug)]
pub struct Order<E, R = AllRules> {
    rules: R,
    buffers: HashMap<Buffer, State<E>>,
    next: u64,
}

impl<E: Clone, R: Rules> Order<E, R> {
    /// Creates an order without any memory.
    pub fn new(rules: R) -> Self {
        Self { rules, buffers: HashMap::new(), next: 0 }
    }

    /// Registers memory allocated from the pool of `home`. `event` was recorded on `home` after the allocation: earlier work on
    /// `home` may still use the memory.
    pub fn allocated(&mut self, home: Stream, event: E) -> Buffer {
        let buffer = Buffer(self.next);
        self.next += 1;
        let reads = vec![Access { stream: home, event }];
        self.buffers.insert(buffer, State { home, last_write: None, reads });
        buffer
    }

    /// Queues `work` on `stream` after all work that it must wait for, and records it as the last use of its buffers.
    pub fn run<S, T>(
        &mut self,
        streams: &mut S,
        stream: Stream,
        (reads, writes): (&[Buffer], &[Buffer]),
        work: impl FnOnce(&mut S) -> Result<T, S::Error>,
    ) -> Result<T, S::Error>
    where
        S: Streams<Event = E> + ?Sized,
    {
        for event in self.before(stream, reads, writes) {
            streams.wait(stream, &event)?;
        }
        let result = work(streams);
        // Recorded even if the work failed half-way: the part that it queued may still be running.
        let event = match streams.record(stream) {
            Ok(event) => event,
            // Nothing can wait for this work, so it must be done before its memory is released.
            Err(error) => {
                streams.finish(stream)?;
                return Err(error);
            }
        };
        self.after(stream, reads, writes, &event);
        result
    }

    /// The events that work on `stream` must wait for if it reads and writes these buffers.
    pub fn before(&self, stream: Stream, reads: &[Buffer], writes: &[Buffer]) -> Vec<E> {
        let read_rule = if stream == Stream::Student { Rule::UseAfterForward } else { Rule::ReadAfterWrite };
        let mut events = Vec::new();
        for state in reads.iter().filter_map(|buffer| self.buffers.get(buffer)) {
            let writer = state.last_write.iter().filter(|_| self.rules.keeps(read_rule));
            events.extend(on_other_streams(writer, stream));
        }
        for state in writes.iter().filter_map(|buffer| self.buffers.get(buffer)) {
            let users = state.last_write.iter().chain(&state.reads);
            events.extend(on_other_streams(users.filter(|_| self.rules.keeps(Rule::WriteAfterRead)), stream));
        }
        events
    }

    fn after(&mut self, stream: Stream, reads: &[Buffer], writes: &[Buffer], event: &E) {
        let access = || Access { stream, event: event.clone() };
        for buffer in reads {
            if let Some(state) = self.buffers.get_mut(buffer) {
                state.reads.retain(|read| read.stream != stream);
                state.reads.push(access());
            }
        }
        for buffer in writes {
            if let Some(state) = self.buffers.get_mut(buffer) {
                state.last_write = Some(access());
                state.reads.clear();
            }
        }
    }

    /// Makes the home stream wait for the last users of `buffer`. Its memory may be dropped afterwards.
    pub fn release<S>(&mut self, streams: &mut S, buffer: Buffer) -> Result<(), S::Error>
    where
        S: Streams<Event = E> + ?Sized,
    {
        let Some(state) = self.buffers.remove(&buffer) else { return Ok(()) };
        if self.rules.keeps(Rule::ReturnToLastUser) {
            let users = state.last_write.iter().chain(&state.reads);
            for event in on_other_streams(users, state.home) {
                streams.wait(state.home, &event)?;
            }
        }
        Ok(())
    }

    /// Removes a buffer without waiting: the caller orders its later uses.
    pub fn forget(&mut self, buffer: Buffer) {
        self.buffers.remove(&buffer);
    }

    /// Number of buffers that were neither released nor forgotten.
    pub fn live_buffers(&self) -> usize {
        self.buffers.len()
    }
}

fn on_other_streams<'a, E: Clone + 'a>(
    accesses: impl Iterator<Item = &'a Access<E>>,
    stream: Stream,
) -> impl Iterator<Item = E> {
    accesses.filter(move |access| access.stream != stream).map(|access| access.event.clone())
}
