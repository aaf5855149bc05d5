//! What a message is: who sends it, how often, and how signals become bytes.

use super::random::Stream;
use super::vehicle::{Signal, State};
use crate::frame::PAYLOAD_BYTES;

/// A control unit; all its messages run on one clock, and it falls silent as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlUnit {
    Engine,
    Transmission,
    Brakes,
    Steering,
    Body,
    Cluster,
    Airbag,
    Climate,
    Tester,
}

/// When a message is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sending {
    /// Every so many milliseconds.
    Periodic { milliseconds: u32 },
    /// Three times in a row when something happens, on average every so many seconds. Messages with the same
    /// cause follow each other by their `delay_milliseconds`.
    Sporadic { seconds: u32, cause: u8, delay_milliseconds: u32 },
}

/// How the last byte protects the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksum {
    None,
    /// Exclusive or of the bytes before.
    Xor,
    /// Sum of the bytes before and of the ID's.
    Sum,
    /// CRC-8 of SAE J1850 over the bytes before, begun with the ID.
    Crc8,
}

/// A signal in a message: `raw = value · scale + offset`, big-endian, at `byte`.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    pub(super) byte: usize,
    pub(super) wide: bool,
    signal: Signal,
    scale: f64,
    offset: f64,
    /// Standard deviation of the sensor's noise, in raw units.
    noise: f64,
}

/// A message.
#[derive(Debug, Clone, Copy)]
pub struct Message {
    pub can_id: u32,
    pub sending: Sending,
    pub length: u8,
    pub sender: ControlUnit,
    pub(super) fields: &'static [Field],
    /// Bytes that no field covers.
    constant: [u8; PAYLOAD_BYTES],
    /// The byte whose lower half counts the messages.
    pub(super) counter: Option<usize>,
    pub(super) checksum: Checksum,
}

impl Message {
    /// The payload number `index` of a drive, as its sender makes it of the car's `state`.
    pub fn encode(&self, state: &State, index: u64, noise: Stream) -> [u8; PAYLOAD_BYTES] {
        let mut payload = self.constant;
        for (position, field) in self.fields.iter().enumerate() {
            let error = if field.noise > 0.0 { field.noise * noise.bell(index * 8 + position as u64) } else { 0.0 };
            let raw = state.signal(field.signal) * field.scale + field.offset + error;
            // A cast to a whole number saturates, as a sensor does.
            if field.wide {
                payload[field.byte..field.byte + 2].copy_from_slice(&(raw as u16).to_be_bytes());
            } else {
                payload[field.byte] = raw as u8;
            }
        }
        self.seal(&mut payload, index);
        payload
    }

    /// Sets counter and checksum to what a receiver expects of message number `index`.
    pub fn seal(&self, payload: &mut [u8; PAYLOAD_BYTES], index: u64) {
        if let Some(byte) = self.counter {
            payload[byte] = payload[byte] & 0xF0 | (index & 0x0F) as u8;
        }
        let last = usize::from(self.length) - 1;
        let (body, id) = (&payload[..last], self.can_id);
        let checksum = match self.checksum {
            Checksum::None => return,
            Checksum::Xor => body.iter().fold(0, |sum, byte| sum ^ byte),
            Checksum::Sum => {
                body.iter().fold((id & 0xFF) as u8 + (id >> 8) as u8 % 8, |sum, byte| sum.wrapping_add(*byte))
            }
            Checksum::Crc8 => crc8(id, body),
        };
        payload[last] = checksum;
    }

    /// The period in milliseconds, `None` for a sporadic message.
    pub fn period_milliseconds(&self) -> Option<u32> {
        match self.sending {
            Sending::Periodic { milliseconds } => Some(milliseconds),
            Sending::Sporadic { .. } => None,
        }
    }
}

/// CRC-8 of SAE J1850 (polynomial 0x1D, begun with 0xFF, inverted at the end).
fn crc8(can_id: u32, body: &[u8]) -> u8 {
    let id = [(can_id >> 8) as u8, can_id as u8];
    !id.iter().chain(body).fold(0xFF, |crc: u8, byte| {
        (0..8).fold(crc ^ byte, |crc, _| if crc & 0x80 == 0 { crc << 1 } else { crc << 1 ^ 0x1D })
    })
}

/// A message of constant bytes and `fields`.
pub(super) const fn message(
    can_id: u32,
    sending: Sending,
    sender: ControlUnit,
    length: u8,
    fields: &'static [Field],
) -> Message {
    let constant = [0; PAYLOAD_BYTES];
    Message { can_id, sending, length, sender, fields, constant, counter: None, checksum: Checksum::None }
}

/// A signal in one byte.
pub(super) const fn b(byte: usize, signal: Signal, scale: f64, offset: f64, noise: f64) -> Field {
    Field { byte, wide: false, signal, scale, offset, noise }
}

/// A signal in two bytes, the higher first.
pub(super) const fn w(byte: usize, signal: Signal, scale: f64, offset: f64, noise: f64) -> Field {
    Field { byte, wide: true, signal, scale, offset, noise }
}

impl Message {
    pub(super) const fn constant(mut self, byte: usize, value: u8) -> Message {
        self.constant[byte] = value;
        self
    }

    pub(super) const fn counter(mut self, byte: usize) -> Message {
        self.counter = Some(byte);
        self
    }

    pub(super) const fn checksum(mut self, checksum: Checksum) -> Message {
        self.checksum = checksum;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc8_is_that_of_sae_j1850() {
        // The standard's check value: CRC of "123456789", here with the first two digits as ID.
        assert_eq!(crc8(0x3132, b"3456789"), 0x4B);
    }
}
