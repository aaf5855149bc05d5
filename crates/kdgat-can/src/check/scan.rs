//! Scan of one log: counts, a digest of its frames, and a sample of its benign traffic.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use super::EmptyPayloads;
use crate::formats::{Format, ReadOptions, open_log_with};
use crate::frame::Frame;
use crate::report::ReadReport;

/// Length of the stretches of benign traffic that logs are compared by, in frames.
pub const STRETCH_FRAMES: usize = 20;
/// One in this many stretches is sampled, by its fingerprint, so that all logs sample the same stretches.
const STRETCH_SAMPLE: u64 = 32;
/// One in this many different payloads is kept, by its hash, to estimate their number.
const PAYLOAD_SAMPLE: u64 = 16;
/// Frames read at a time.
const BLOCK_FRAMES: usize = 16_384;

/// Frames of an ID, by label.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Frames labelled attack-free.
    pub benign: u64,
    /// Frames labelled as an attack.
    pub attack: u64,
}

/// Result of reading one log.
#[derive(Debug, Default)]
pub struct Scan {
    /// Error that stopped reading.
    pub error: Option<String>,
    /// A notice when all frames count as attack-free although the log may have labels.
    pub label_notice: Option<String>,
    /// Format of the log, `None` if it could not be opened.
    pub format: Option<Format>,
    /// Counts of its rows.
    pub report: ReadReport,
    /// Frames of each ID.
    pub ids: HashMap<u32, Counts>,
    /// Smallest and largest timestamp in seconds.
    pub times: Option<(f64, f64)>,
    /// Frames without payload.
    pub empty: EmptyPayloads,
    /// BLAKE3 digest of all frames, independent of format and compression; `None` if the log was not read to its end or is empty.
    pub digest: Option<Vec<u8>>,
    /// Fingerprints of the sampled stretches of benign frames.
    pub stretches: Vec<u64>,
    /// Hashes of the sampled payloads of benign frames, with their IDs.
    pub payloads: HashSet<u64>,
}

impl Scan {
    /// Estimated number of different payloads of benign frames, counted for each ID.
    pub fn distinct_payloads(&self) -> u64 {
        PAYLOAD_SAMPLE * self.payloads.len() as u64
    }

    /// Reads the log at `path`.
    pub fn of(path: &Path, format: Option<Format>, options: &ReadOptions) -> Self {
        let mut scan = Self::default();
        let mut log = match open_log_with(path, format, options) {
            Ok(log) => log,
            Err(error) => return Self { error: Some(error.to_string()), ..scan },
        };
        scan.format = Some(log.format());
        scan.label_notice = log.label_notice().map(str::to_owned);
        let mut frames = Vec::with_capacity(BLOCK_FRAMES);
        let mut digest = blake3::Hasher::new();
        let mut bytes = Vec::new();
        let mut stretch = Stretch::default();
        loop {
            match log.read_block(BLOCK_FRAMES, &mut frames) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => {
                    scan.error = Some(error.to_string());
                    break;
                }
            }
            bytes.clear();
            for frame in &frames {
                scan.add(frame, &mut stretch);
                append_bytes(frame, &mut bytes);
            }
            digest.update(&bytes);
        }
        scan.report = log.report().clone();
        if scan.error.is_none() && scan.report.frames > 0 {
            scan.digest = Some(digest.finalize().as_bytes().to_vec());
        }
        scan
    }

    fn add(&mut self, frame: &Frame, stretch: &mut Stretch) {
        let counts = self.ids.entry(frame.can_id).or_default();
        let empty = u64::from(frame.payload_length == 0);
        if frame.attack {
            counts.attack += 1;
            self.empty.attack_frames += empty;
            stretch.end();
        } else {
            counts.benign += 1;
            self.empty.benign_frames += empty;
            let hash = hash_of(frame);
            if hash.is_multiple_of(PAYLOAD_SAMPLE) {
                self.payloads.insert(hash);
            }
            let fingerprint = stretch.add(frame);
            self.stretches.extend(fingerprint.filter(|fingerprint| fingerprint % STRETCH_SAMPLE == 0));
        }
        let time = frame.timestamp;
        self.times = Some(self.times.map_or((time, time), |(first, last)| (first.min(time), last.max(time))));
    }
}

/// Appends a frame's bytes for the digest, with its absolute timestamp: a log with shifted times is not a copy.
fn append_bytes(frame: &Frame, bytes: &mut Vec<u8>) {
    bytes.extend(frame.timestamp.to_bits().to_le_bytes());
    bytes.extend(frame.can_id.to_le_bytes());
    bytes.extend(frame.payload);
    bytes.extend([frame.payload_length, u8::from(frame.attack)]);
}

/// Rolling polynomial hash of the IDs and payloads of the last benign frames, without their times.
#[derive(Default)]
struct Stretch {
    last: [u64; STRETCH_FRAMES],
    /// Benign frames since the last attack frame.
    count: usize,
    sum: u64,
}

const BASE: u64 = 0x9e37_79b9_7f4a_7c15 | 1;

impl Stretch {
    fn end(&mut self) {
        (self.count, self.sum) = (0, 0);
    }

    fn add(&mut self, frame: &Frame) -> Option<u64> {
        let value = hash_of(frame);
        let place = self.count % STRETCH_FRAMES;
        if self.count >= STRETCH_FRAMES {
            self.sum =
                self.sum.wrapping_sub(self.last[place].wrapping_mul(BASE.wrapping_pow(STRETCH_FRAMES as u32 - 1)));
        }
        self.last[place] = value;
        self.sum = self.sum.wrapping_mul(BASE).wrapping_add(value);
        self.count += 1;
        (self.count >= STRETCH_FRAMES).then(|| mix(self.sum))
    }
}

/// Hash of a frame's ID and payload.
fn hash_of(frame: &Frame) -> u64 {
    mix(u64::from_le_bytes(frame.payload) ^ mix(u64::from(frame.can_id) + 1))
}

/// The finaliser of SplitMix64.
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(can_id: u32) -> Frame {
        Frame { timestamp: 0.0, can_id, payload: [1; 8], payload_length: 8, attack: false }
    }

    #[test]
    fn a_stretch_has_the_same_fingerprint_wherever_it_is() {
        let traffic: Vec<Frame> = (0..60).map(|step| frame(step * step % 37)).collect();
        let after = |begin: usize| {
            let mut stretch = Stretch::default();
            traffic[begin..50].iter().map(|frame| stretch.add(frame)).last().unwrap()
        };
        assert!(after(0).is_some());
        assert!((1..=30).all(|begin| after(begin) == after(0)));
        assert_eq!(after(31), None, "19 frames are no stretch");
    }
}
