//! Messages of the bus: sender, timing, and the encoding of signals as bytes.

use super::random::Stream;
use super::vehicle::{Signal, State};
use crate::frame::PAYLOAD_BYTES;

/// A control unit; all its messages share one clock, and some attacks silence them together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlUnit {
    /// Engine control.
    Engine,
    /// Transmission control.
    Transmission,
    /// Brakes and wheel sensors.
    Brakes,
    /// Power steering.
    Steering,
    /// Body electronics: lights, turn signals, wipers.
    Body,
    /// Instrument cluster.
    Cluster,
    /// Airbag control.
    Airbag,
    /// Climate control.
    Climate,
    /// Diagnostic tester.
    Tester,
}

/// Timing of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sending {
    /// Sent at a fixed period.
    Periodic {
        /// Period in milliseconds.
        milliseconds: u32,
    },
    /// Sent in a burst of three frames at random events. Messages with the same cause follow the event by their
    /// `delay_milliseconds`.
    Sporadic {
        /// Mean time between events, in seconds.
        seconds: u32,
        /// Number of the event.
        cause: u8,
        /// Delay after the event, in milliseconds.
        delay_milliseconds: u32,
    },
}

/// Checksum in a message's last byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksum {
    /// None: the last byte is data.
    None,
    /// Exclusive or of the bytes before it.
    Xor,
    /// Sum of the bytes before it and of the ID's bytes.
    Sum,
    /// CRC-8 of SAE J1850 over the ID and the bytes before it.
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

/// A message that a control unit sends.
#[derive(Debug, Clone, Copy)]
pub struct Message {
    /// Arbitration ID, 11 bits.
    pub can_id: u32,
    /// Timing.
    pub sending: Sending,
    /// Payload length in bytes.
    pub length: u8,
    /// Control unit that sends it.
    pub sender: ControlUnit,
    pub(super) fields: &'static [Field],
    /// Values of the bytes that no field covers.
    constant: [u8; PAYLOAD_BYTES],
    /// Byte whose lower half counts the messages.
    pub(super) counter: Option<usize>,
    pub(super) checksum: Checksum,
}

impl Message {
    /// The payload of this message number `index` in a drive, computed from the car's `state` with sensor noise.
    pub fn encode(&self, state: &State, index: u64, noise: Stream) -> [u8; PAYLOAD_BYTES] {
        let mut payload = self.constant;
        for (position, field) in self.fields.iter().enumerate() {
            let value = state.signal(field.signal);
            let rests = state.is_parked() && value == 0.0;
            let error =
                if field.noise > 0.0 && !rests { field.noise * noise.bell(index * 8 + position as u64) } else { 0.0 };
            let raw = value * field.scale + field.offset + error;
            // The cast to an integer saturates, as a sensor does.
            if field.wide {
                payload[field.byte..field.byte + 2].copy_from_slice(&(raw as u16).to_be_bytes());
            } else {
                payload[field.byte] = raw as u8;
            }
        }
        self.seal(&mut payload, index);
        payload
    }

    /// Sets counter and checksum to the values that a receiver expects in message number `index`.
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

    /// Period in milliseconds, `None` for a sporadic message.
    pub fn period_milliseconds(&self) -> Option<u32> {
        match self.sending {
            Sending::Periodic { milliseconds } => Some(milliseconds),
            Sending::Sporadic { .. } => None,
        }
    }
}

/// CRC-8 of SAE J1850 over ID and body (polynomial 0x1D, initial value 0xFF, inverted at the end).
fn crc8(can_id: u32, body: &[u8]) -> u8 {
    let id = [(can_id >> 8) as u8, can_id as u8];
    !id.iter().chain(body).fold(0xFF, |crc: u8, byte| {
        (0..8).fold(crc ^ byte, |crc, _| if crc & 0x80 == 0 { crc << 1 } else { crc << 1 ^ 0x1D })
    })
}

/// A message with `fields` whose other bytes are zero, without counter or checksum.
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

/// A signal in one byte: value · scale + offset, with noise of this standard deviation.
pub(super) const fn b(byte: usize, signal: Signal, scale: f64, offset: f64, noise: f64) -> Field {
    Field { byte, wide: false, signal, scale, offset, noise }
}

/// A signal in two bytes, the high byte first.
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
