//! One CAN frame, the same type for every log format and every later step.

/// Payload bytes that features are computed from; of longer CAN FD payloads only the first eight are used.
pub const PAYLOAD_BYTES: usize = 8;

/// A frame on the bus.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Frame {
    /// Time in seconds, on the log's clock.
    pub timestamp: f64,
    /// Arbitration ID: 11 bits, or 29 bits in an extended frame.
    pub can_id: u32,
    /// The first eight payload bytes, padded with zeros.
    pub payload: [u8; PAYLOAD_BYTES],
    /// Payload length of the frame on the bus, in bytes (0 to 8, up to 64 in CAN FD).
    pub payload_length: u8,
    /// True if the log labels the frame as part of an attack.
    pub attack: bool,
}
