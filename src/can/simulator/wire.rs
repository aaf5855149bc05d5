//! How long a frame occupies the bus: its bits, with the stuff bits that its content causes (ISO 11898-1).

use crate::can::frame::PAYLOAD_BYTES;

/// Bits a second of a usual powertrain bus.
pub const BIT_RATE: u64 = 500_000;
/// One bit.
pub const BIT_NANOSECONDS: u64 = 1_000_000_000 / BIT_RATE;
/// CRC delimiter, acknowledge slot and delimiter, end of frame, and the gap before the next frame.
const BITS_AFTER_CRC: u32 = 1 + 1 + 1 + 7 + 3;

/// Bits of a classic data frame with an 11-bit ID, from its start to where the next may begin.
///
/// The first `length` bytes of `payload` are sent.
pub fn frame_bits(can_id: u32, payload: &[u8; PAYLOAD_BYTES], length: u8) -> u32 {
    // Start of frame (0), 11 bits ID, three bits 0 (no remote frame, standard format, reserved), 4 bits length.
    let header = u128::from(can_id & 0x7FF) << 7 | u128::from(length & 0xF);
    let data = payload.iter().take(usize::from(length)).fold(header, |bits, byte| bits << 8 | u128::from(*byte));
    let count = 19 + 8 * u32::from(length);
    let stuffed = data << 15 | u128::from(crc15(data, count));
    count + 15 + stuff_bits(stuffed, count + 15) + BITS_AFTER_CRC
}

/// CAN's checksum of the last `count` bits of `bits`, highest first.
fn crc15(bits: u128, count: u32) -> u16 {
    (0..count).rev().fold(0, |crc: u16, position| {
        let next = (bits >> position & 1) as u16 ^ (crc >> 14);
        let shifted = crc << 1 & 0x7FFF;
        if next == 1 { shifted ^ 0x4599 } else { shifted }
    })
}

/// A bit of the other value goes in after each five equal ones, and counts for what follows.
fn stuff_bits(bits: u128, count: u32) -> u32 {
    let (mut last, mut run, mut stuffed) = (2, 0, 0);
    for position in (0..count).rev() {
        let bit = bits >> position & 1;
        run = if bit == last { run + 1 } else { 1 };
        last = bit;
        if run == 5 {
            stuffed += 1;
            last = 1 - bit;
            run = 1;
        }
    }
    stuffed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stuff_bits_follow_five_equal_bits() {
        assert_eq!(stuff_bits(0b00000, 5), 1);
        assert_eq!(stuff_bits(0b0000, 4), 0);
        // 00000(1)1111(0): the stuff bit counts as the first of the next five.
        assert_eq!(stuff_bits(0b0_0000_1111, 9), 2);
        assert_eq!(stuff_bits(0b0101_0101, 8), 0);
    }

    #[test]
    fn checksum_of_an_empty_frame() {
        // Dividing x^15 · 1 by the generator leaves the generator without its leading term.
        assert_eq!(crc15(1, 1), 0x4599);
        assert_eq!(crc15(0, 30), 0);
    }

    #[test]
    fn frames_are_between_the_shortest_and_the_longest() {
        for can_id in 0..0x800 {
            for length in 0..=8u8 {
                let bits = frame_bits(can_id, &[0; 8], length);
                let plain = 47 + 8 * u32::from(length);
                let most = plain + (34 + 8 * u32::from(length) - 1) / 4;
                assert!((plain..=most).contains(&bits), "ID {can_id:X}, {length} bytes: {bits}");
            }
        }
    }
}
