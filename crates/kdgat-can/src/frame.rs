//! One CAN frame, as every log format delivers it and every later step sees it.

/// Bytes of payload that features are computed from; longer CAN FD payloads keep their first eight.
pub const PAYLOAD_BYTES: usize = 8;

/// A frame on the bus.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Frame {
    /// Seconds, on the clock of the log it was read from.
    pub timestamp: f64,
    /// Arbitration ID: 11 bits, or 29 bits in an extended frame.
    pub can_id: u32,
    /// The first eight payload bytes; bytes that the frame does not have are zero.
    pub payload: [u8; PAYLOAD_BYTES],
    /// Bytes of payload that the frame had (0 to 8, up to 64 in CAN FD).
    pub payload_length: u8,
    /// Whether the log labels the frame as part of an attack.
    pub attack: bool,
}
