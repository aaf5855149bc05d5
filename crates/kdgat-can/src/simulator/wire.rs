//! Bus time of a frame: its bits, including stuff bits (ISO 11898-1).

use crate::frame::PAYLOAD_BYTES;

/// Bits per second of a typical powertrain bus.
pub const BIT_RATE: u64 = 500_000;
/// Duration of one bit in nanoseconds.
pub const BIT_NANOSECONDS: u64 = 1_000_000_000 / BIT_RATE;
/// CRC delimiter, acknowledge slot and delimiter, end of frame, and the gap before the next frame.
const BITS_AFTER_CRC: u32 = 1 + 1 + 1 + 7 + 3;

/// Bits of a classic data frame with an 11-bit ID, from its start to the earliest start of the next frame.
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

/// CAN's 15-bit checksum of the last `count` bits of `bits`, most significant first.
fn crc15(bits: u128, count: u32) -> u16 {
    let whole = count / 8 * 8;
    let begun = (whole..count).rev().fold(0, |crc, position| crc15_step(crc, (bits >> position & 1) as u16));
    (0..whole / 8).rev().fold(begun, |crc, byte| {
        let index = (crc >> 7) as u8 ^ (bits >> (8 * byte)) as u8;
        crc << 8 & 0x7FFF ^ CRC15_OF_BYTE[index as usize]
    })
}

const fn crc15_step(crc: u16, bit: u16) -> u16 {
    let shifted = crc << 1 & 0x7FFF;
    if crc >> 14 != bit { shifted ^ 0x4599 } else { shifted }
}

/// Eight checksum steps at once.
const CRC15_OF_BYTE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut step) = ((byte as u16) << 7, 0);
        while step < 8 {
            crc = crc15_step(crc, 0);
            step += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// Number of stuff bits for the last `count` bits of `bits`: after five equal bits one of the opposite value is inserted,
/// which counts as the first of the next run.
fn stuff_bits(bits: u128, count: u32) -> u32 {
    let whole = count / 8 * 8;
    let begun = (whole..count).rev().fold(Stuffing::BEGIN, |now, position| now.step((bits >> position & 1) as u8));
    let state = (0..whole / 8).rev().fold(begun, |now, byte| {
        let next = STUFFING_OF_BYTE[now.state as usize][(bits >> (8 * byte)) as u8 as usize];
        Stuffing { state: next.state, stuffed: now.stuffed + next.stuffed }
    });
    u32::from(state.stuffed)
}

/// State of bit stuffing: `state` is 0 before the first bit, 1 to 4 after that many zeros, 5 to 8 after one to four ones;
/// `stuffed` counts the inserted bits.
#[derive(Clone, Copy)]
struct Stuffing {
    state: u8,
    stuffed: u8,
}

impl Stuffing {
    const BEGIN: Stuffing = Stuffing { state: 0, stuffed: 0 };

    const fn step(self, bit: u8) -> Stuffing {
        let first = 1 + 4 * bit;
        if self.state == first + 3 {
            // The fifth equal bit is followed by a stuff bit of the other value: a run of one.
            Stuffing { state: 5 - 4 * bit, stuffed: self.stuffed + 1 }
        } else if first <= self.state && self.state < first + 3 {
            Stuffing { state: self.state + 1, stuffed: self.stuffed }
        } else {
            Stuffing { state: first, stuffed: self.stuffed }
        }
    }
}

/// Effect of eight bits on each state.
static STUFFING_OF_BYTE: [[Stuffing; 256]; 9] = {
    let mut table = [[Stuffing::BEGIN; 256]; 9];
    let mut state = 0;
    while state < 9 {
        let mut byte = 0;
        while byte < 256 {
            let (mut now, mut position) = (Stuffing { state: state as u8, stuffed: 0 }, 8);
            while position > 0 {
                position -= 1;
                now = now.step((byte >> position & 1) as u8);
            }
            table[state][byte] = now;
            byte += 1;
        }
        state += 1;
    }
    table
};

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
    fn bytes_at_once_give_what_bits_one_by_one_give() {
        for index in 0..2000u64 {
            let random = |part| crate::simulator::random::Stream::new(index).bits(part);
            let count = 1 + (random(2) % 119) as u32;
            // Every second input has long runs, which need stuff bits.
            let noise = u128::from(random(0)) << 64 | u128::from(random(1));
            let bits = if index % 2 == 0 { noise } else { noise & noise >> 1 & noise >> 2 };
            let bits = bits & ((1u128 << count) - 1);
            let (mut crc, mut last, mut run, mut stuffed) = (0, 2, 0, 0);
            for position in (0..count).rev() {
                let bit = bits >> position & 1;
                crc = crc15_step(crc, bit as u16);
                run = if bit == last { run + 1 } else { 1 };
                last = bit;
                if run == 5 {
                    (stuffed, last, run) = (stuffed + 1, 1 - bit, 1);
                }
            }
            assert_eq!((crc15(bits, count), stuff_bits(bits, count)), (crc, stuffed), "{count} bits {bits:b}");
        }
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
