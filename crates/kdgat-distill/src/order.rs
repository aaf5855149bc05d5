//! The order of work on several streams, kept by events and not by waiting.
//!
//! Four rules, for every piece of device memory:
//! 1. *write after read*: a copy into memory waits for whoever read it last, also for its previous owner;
//! 2. *read after write*: a forward waits for the copy of the weights that it reads;
//! 3. *use after forward*: the student's stream waits for the forward before it reads targets;
//! 4. *return to the last user*: before memory goes back to the pool of its home stream, that stream waits for
//!    whoever used it last, because the pool hands it out again in the order of that stream alone.
//!
//! [`Order`] decides which events have to be waited for; it knows no device. The tests run it, with the visits of
//! [`crate::shuttle`], against a simulated device with a logical clock, once with all rules and once without
//! each of them.

use std::collections::HashMap;

#[cfg(test)]
mod simulated;

/// A queue of work on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Where the student computes. Weights and slots are allocated from its pool, so that what the teacher lets go
    /// of is the student's to use.
    Student,
    /// Where the teacher computes: the student's stream, or one beside it.
    Teacher,
    /// Where weights are copied to the device.
    Copy,
}

/// A device's streams. An event marks a point in a stream; waiting makes a stream wait, never the host.
pub trait Streams {
    /// A point in a stream.
    type Event: Clone;
    /// Why the device refused.
    type Error;

    /// Marks the present end of `stream`.
    fn record(&mut self, stream: Stream) -> Result<Self::Event, Self::Error>;

    /// Lets what is queued on `stream` from now on start only after `event`.
    fn wait(&mut self, stream: Stream, event: &Self::Event) -> Result<(), Self::Error>;

    /// Lets the host wait for `stream`, where no event could be recorded that others would wait for.
    fn finish(&mut self, stream: Stream) -> Result<(), Self::Error>;
}

/// A piece of device memory, as the order knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Buffer(u64);

/// One of the four rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// A write waits for earlier readers, the previous owner of recycled memory among them.
    WriteAfterRead,
    /// The teacher's forward waits for the copy.
    ReadAfterWrite,
    /// The student waits for the forward.
    UseAfterForward,
    /// The home stream waits for the last user before it gets memory back.
    ReturnToLastUser,
}

/// Which rules are kept: all of them, but in tests that prove each to be needed.
pub trait Rules {
    /// Whether `rule` is kept.
    fn keeps(&self, rule: Rule) -> bool;
}

/// Every rule is kept.
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
    /// Since the last write; at most one a stream, since a stream is in order with itself.
    reads: Vec<Access<E>>,
}

/// Who used which memory last, and so what new work has to wait for.
#[derive(Debug)]
pub struct Order<E, R = AllRules> {
    rules: R,
    buffers: HashMap<Buffer, State<E>>,
    next: u64,
}

impl<E: Clone, R: Rules> Order<E, R> {
    /// No memory yet.
    pub fn new(rules: R) -> Self {
        Self { rules, buffers: HashMap::new(), next: 0 }
    }

    /// Memory that was taken from the pool of `home`, where `event` was recorded after that: earlier work on `home`
    /// may still be using it.
    pub fn allocated(&mut self, home: Stream, event: E) -> Buffer {
        let buffer = Buffer(self.next);
        self.next += 1;
        let reads = vec![Access { stream: home, event }];
        self.buffers.insert(buffer, State { home, last_write: None, reads });
        buffer
    }

    /// Queues `work` on `stream` after everything that it has to wait for, and notes it as the last use.
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
        // Noted even when the work failed half-way: what it has queued may still be running.
        let event = match streams.record(stream) {
            Ok(event) => event,
            // Nobody could wait for the work: it has to be over before its memory is let go.
            Err(error) => {
                streams.finish(stream)?;
                return Err(error);
            }
        };
        self.after(stream, reads, writes, &event);
        result
    }

    /// What work on `stream` that reads and writes these buffers has to wait for.
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

    /// Makes the home stream wait for the last users of `buffer`; after that its memory may be dropped.
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

    /// Takes a buffer off the books whose order others keep from now on.
    pub fn forget(&mut self, buffer: Buffer) {
        self.buffers.remove(&buffer);
    }

    /// Buffers that were neither released nor forgotten.
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
