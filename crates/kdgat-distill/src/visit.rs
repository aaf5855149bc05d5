//! A visit of the teacher's weights to the device: copies, forwards and the release of the memory, in order.
//!
//! Each flow is written once for a [`Machine`]: the shuttle's real device, or the simulated device of the tests.

use std::ops::Range;

use super::order::{Buffer, Order, Rules, Stream, Streams};

/// The part of the weights that one copy moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// All layers, contiguous as in the host block.
    All,
    /// One layer, by its number.
    Layer(usize),
}

/// The device that carries out a visit.
pub trait Machine: Streams {
    /// Device memory for weights.
    type Slot;

    /// Allocates `bytes` bytes from the pool of the student's stream.
    fn allocate(&mut self, bytes: usize) -> Result<Self::Slot, Self::Error>;

    /// Queues the copy of `part` to `slot` on [`Stream::Copy`].
    fn copy(&mut self, part: Part, slot: &mut Self::Slot) -> Result<(), Self::Error>;

    /// Queues the forward of batch number `batch` of this visit through `part` on [`Stream::Teacher`].
    fn forward(&mut self, part: Part, slot: &Self::Slot, batch: usize) -> Result<(), Self::Error>;

    /// True if another batch may wait between two layers in addition to the `waiting` ones.
    fn has_room(&self, waiting: Range<usize>) -> bool;

    /// Drops memory. Its home stream already waits for the last users.
    fn free(&mut self, slot: Self::Slot);
}

/// Weights on the device.
#[derive(Debug)]
pub struct Held<S> {
    buffer: Buffer,
    slot: S,
}

/// The memory of one batch's targets: the forward writes it, the student reads it.
#[derive(Debug, Clone, Copy)]
pub struct Output(pub(super) Buffer);

/// Copies the whole model to the device; `bytes` is its size.
pub fn load<M: Machine, R: Rules>(
    machine: &mut M,
    order: &mut Order<M::Event, R>,
    bytes: usize,
) -> Result<Held<M::Slot>, M::Error> {
    let mut held = allocate(machine, order, bytes)?;
    match copy(machine, order, Part::All, &mut held) {
        Ok(()) => Ok(held),
        Err(error) => {
            let_go(machine, order, held)?;
            Err(error)
        }
    }
}

/// Queues the forward of one batch through weights that are on the device or whose copy is queued.
pub fn forward<M: Machine, R: Rules>(
    machine: &mut M,
    order: &mut Order<M::Event, R>,
    held: &Held<M::Slot>,
    batch: usize,
) -> Result<Output, M::Error> {
    let output = new_output(machine, order)?;
    run_forward(machine, order, Part::All, held, batch, output)?;
    Ok(output)
}

/// Releases the weights' memory. Nothing is copied back: the host has the frozen weights.
pub fn let_go<M: Machine, R: Rules>(
    machine: &mut M,
    order: &mut Order<M::Event, R>,
    held: Held<M::Slot>,
) -> Result<(), M::Error> {
    let waited = order.release(machine, held.buffer);
    machine.free(held.slot);
    waited
}

/// Sizes in bytes of a ring's slots, for layers of these sizes in bytes: slot `i` serves the layers `i`, `i + slots`, and so on, and
/// has room for the largest of them.
///
/// The ring has `wanted` slots, or fewer if that many would take as much memory as all layers together: then `forward` would do
/// the same in less time.
pub fn ring_slots(layers: &[usize], wanted: usize) -> Vec<usize> {
    let all: usize = layers.iter().sum();
    let largest = |slot: usize, slots: usize| layers[slot..].iter().step_by(slots).copied().max().unwrap_or(0);
    let of = |slots: usize| (0..slots).map(|slot| largest(slot, slots)).collect::<Vec<usize>>();
    let spares = |ring: &Vec<usize>| ring.iter().sum::<usize>() < all;
    (1..=wanted.clamp(1, layers.len())).rev().map(of).find(spares).unwrap_or_else(|| of(1))
}

/// Runs the first of `batches` through a model of `layers` layers on a ring of `slots`, given by their bytes (see [`ring_slots`]):
/// as many batches as the machine has room for between two layers, at least one. Returns one output for each of them.
///
/// Each layer is copied once and serves all these batches; the next layers are copied while one computes.
pub fn through_layers<M: Machine, R: Rules>(
    machine: &mut M,
    order: &mut Order<M::Event, R>,
    layers: usize,
    slots: &[usize],
    batches: Range<usize>,
) -> Result<Vec<Output>, M::Error> {
    let mut ring = Vec::with_capacity(slots.len());
    let outcome = run_ring(machine, order, &mut ring, (layers, slots), batches);
    for held in ring {
        let_go(machine, order, held)?;
    }
    outcome
}

fn run_ring<M: Machine, R: Rules>(
    machine: &mut M,
    order: &mut Order<M::Event, R>,
    ring: &mut Vec<Held<M::Slot>>,
    (layers, slots): (usize, &[usize]),
    batches: Range<usize>,
) -> Result<Vec<Output>, M::Error> {
    for (layer, &bytes) in slots.iter().enumerate() {
        ring.push(allocate(machine, order, bytes)?);
        copy(machine, order, Part::Layer(layer), &mut ring[layer])?;
    }
    let slots = slots.len();
    let first = batches.start;
    let mut outputs = Vec::new();
    for layer in 0..layers {
        let slot = layer % slots;
        if layer == 0 {
            for batch in batches.clone() {
                if batch > first && !machine.has_room(first..batch) {
                    break;
                }
                let output = new_output(machine, order)?;
                run_forward(machine, order, Part::Layer(layer), &ring[slot], batch, output)?;
                outputs.push(output);
            }
        } else {
            for (batch, output) in (first..).zip(&outputs) {
                run_forward(machine, order, Part::Layer(layer), &ring[slot], batch, *output)?;
            }
        }
        // Reuse the slot that was just read for the next layer that is not yet on its way.
        if layer + slots < layers {
            copy(machine, order, Part::Layer(layer + slots), &mut ring[slot])?;
        }
    }
    Ok(outputs)
}

fn allocate<M: Machine, R: Rules>(
    machine: &mut M,
    order: &mut Order<M::Event, R>,
    bytes: usize,
) -> Result<Held<M::Slot>, M::Error> {
    let slot = machine.allocate(bytes)?;
    let event = machine.record(Stream::Student)?;
    Ok(Held { buffer: order.allocated(Stream::Student, event), slot })
}

fn copy<M: Machine, R: Rules>(
    machine: &mut M,
    order: &mut Order<M::Event, R>,
    part: Part,
    held: &mut Held<M::Slot>,
) -> Result<(), M::Error> {
    let Held { buffer, slot } = held;
    order.run(machine, Stream::Copy, (&[], &[*buffer]), |machine| machine.copy(part, slot))
}

fn new_output<M: Machine, R: Rules>(machine: &mut M, order: &mut Order<M::Event, R>) -> Result<Output, M::Error> {
    let event = machine.record(Stream::Teacher)?;
    Ok(Output(order.allocated(Stream::Teacher, event)))
}

fn run_forward<M: Machine, R: Rules>(
    machine: &mut M,
    order: &mut Order<M::Event, R>,
    part: Part,
    held: &Held<M::Slot>,
    batch: usize,
    output: Output,
) -> Result<(), M::Error> {
    order.run(machine, Stream::Teacher, (&[held.buffer], &[output.0]), |machine| {
        machine.forward(part, &held.slot, batch)
    })
}

#[cfg(test)]
mod tests {
    use super::ring_slots;

    #[test]
    fn a_slot_has_room_for_each_of_its_layers() {
        assert_eq!(ring_slots(&[1, 2, 9, 3, 1], 2), [9, 3]);
        assert_eq!(ring_slots(&[4, 4, 4, 4], 3), [4, 4, 4]);
        assert_eq!(ring_slots(&[1, 2, 9, 3, 1], 1), [9]);
    }

    #[test]
    fn a_ring_that_would_spare_nothing_has_fewer_slots() {
        assert_eq!(ring_slots(&[4, 4, 4, 4], 4), [4, 4, 4]);
        assert_eq!(ring_slots(&[4, 4, 4, 4], 100), [4, 4, 4]);
        assert_eq!(ring_slots(&[5, 1], 2), [5]);
        assert_eq!(ring_slots(&[5], 2), [5], "a single layer is the whole model");
    }
}
