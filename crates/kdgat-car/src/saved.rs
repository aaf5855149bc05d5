//! A calibration in the format that the C code saves and loads: `kdgat_saved.c` describes it.

use kdgat_graph::CarProfile;
use kdgat_graph::profile::IdProfile;

use crate::window::repeating_bytes;
use crate::{CarError, Precision};

const MAGIC: u32 = 0x4347_444b;
const VERSION: u32 = 4;
/// The default of `KDGAT_CALIBRATION_IDS`.
const MOST_IDS: usize = 256;

/// The scale, threshold and profile of a car that a model was calibrated for.
#[derive(Debug, Clone)]
pub struct CarCalibration<'a> {
    /// Content digest of the model's weights (hex).
    pub weights_digest: &'a str,
    /// Precision of the exported weights.
    pub precision: Precision,
    /// Median and spread of the values of attack-free windows.
    pub median: f64,
    /// See `median`.
    pub spread: f64,
    /// Windows with more deviations are attacks.
    pub threshold: f64,
    /// The car's profile (models of the profile set only).
    pub profile: Option<&'a CarProfile>,
    /// The car's IDs, ascending, and the evidence of another one (classifiers with a list of known IDs only).
    pub ids: Option<(&'a [u32], f64)>,
    /// Mean and rows of the Cholesky factor of the usual errors (autoencoders only).
    pub errors: Option<(&'a [f64], &'a [Vec<f64>])>,
}

impl CarCalibration<'_> {
    /// The bytes that `kdgat-car --load` and `kdgat_load` read.
    ///
    /// # Errors
    /// The car has more IDs than the C code has room for.
    pub fn bytes(&self) -> Result<Vec<u8>, CarError> {
        let digest = u64::from_str_radix(self.weights_digest.get(..16).unwrap_or("0"), 16).unwrap_or(0);
        let values = match (&self.ids, &self.errors) {
            (Some(_), _) => MOST_IDS,
            (None, Some((mean, _))) => mean.len(),
            (None, None) => 0,
        };
        let mut bytes = Vec::new();
        bytes.extend(MAGIC.to_le_bytes());
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(digest.to_le_bytes());
        bytes.extend(u32::from(self.precision == Precision::Int8).to_le_bytes());
        bytes.extend((values as u32).to_le_bytes());
        [self.median, self.spread, self.threshold].iter().for_each(|value| bytes.extend(value.to_le_bytes()));
        if let Some(profile) = self.profile {
            expect_room(profile.ids().len(), "profile")?;
            bytes.extend(u32::from(profile.counts_bytes()).to_le_bytes());
            bytes.extend(profile.new_id_surprise().to_le_bytes());
            bytes.extend((profile.ids().len() as u32).to_le_bytes());
            profile.ids().iter().for_each(|id| put_id(&mut bytes, id));
            let each = put_id_bytes();
            bytes.resize(bytes.len() + (MOST_IDS - profile.ids().len()) * each, 0);
        }
        if let Some((ids, evidence)) = self.ids {
            expect_room(ids.len(), "list of known IDs")?;
            bytes.extend(evidence.to_le_bytes());
            bytes.extend((ids.len() as u32).to_le_bytes());
            ids.iter().for_each(|id| bytes.extend(id.to_le_bytes()));
            bytes.resize(bytes.len() + 4 * (MOST_IDS - ids.len()), 0);
        }
        if let Some((mean, factor)) = self.errors {
            mean.iter().chain(factor.iter().flatten()).for_each(|value| bytes.extend(value.to_le_bytes()));
        }
        bytes.extend(crc32(&bytes).to_le_bytes());
        Ok(bytes)
    }
}

fn expect_room(ids: usize, what: &str) -> Result<(), CarError> {
    if ids <= MOST_IDS {
        return Ok(());
    }
    Err(CarError::Unsupported(format!(
        "the calibration's {what} has {ids} IDs, and the C code has room for {MOST_IDS}; calibrate on traffic without attacks, or in \
         the car with kdgat-car --calibrate and a larger KDGAT_CALIBRATION_IDS"
    )))
}

/// Bytes of one ID of a profile.
const fn put_id_bytes() -> usize {
    46 + 34 * kdgat_can::frame::PAYLOAD_BYTES
}

fn put_id(bytes: &mut Vec<u8>, id: &IdProfile) {
    bytes.extend(id.can_id.to_le_bytes());
    let gaps = [
        id.gap_low_seconds,
        id.gap_median_seconds,
        id.gap_mean_seconds,
        id.gap_high_seconds,
        id.known_seconds(),
        id.longest_silence_seconds,
    ];
    let shares = [id.repeats, id.returns, id.changed_bytes];
    let values = std::iter::once(id.gaps as f32).chain(gaps).chain(shares);
    values.for_each(|value| bytes.extend(value.to_le_bytes()));
    bytes.extend(id.bytes.iter().map(|byte| byte.change_high));
    bytes.extend(id.bytes.iter().map(|byte| byte.change_most));
    bytes.extend([id.longest_standstill, repeating_bytes(id)]);
    // Bit v % 8 of byte v / 8, as in words of 64 bits in little-endian order.
    id.bytes.iter().for_each(|byte| bytes.extend(byte.seen.iter().flat_map(|word| word.to_le_bytes())));
}

/// CRC-32 (IEEE 802.3).
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), |crc, _| step(crc)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_usual_one() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }
}
