//! Filling the block of host memory with the weights: a block of this process, or one that processes of this machine have in common.

use kdgat_torch::allocator::{Outside, Phase};
use kdgat_train::memory::{Meter, retry_on_oom};
use kdgat_train::processes::{CommonBlock, Processes};

use super::block::{self, Layer};
use crate::accelerator::{Accelerator, HostBlock};
use crate::teacher::TeacherError;
use crate::weights::{WeightFile, Weights};

/// Bytes of all layers.
pub(super) fn total_bytes(layers: &[Layer]) -> usize {
    layers.last().map_or(0, |layer| layer.offset + layer.bytes)
}

/// Weights to pack.
enum Source {
    /// A file, which is read again, so that its tensors are not in memory together with the block, and the digest that it had.
    File(WeightFile, String),
    /// Weights that no file has.
    Tensors(Weights),
}

impl Source {
    /// Drops the tensors if a file has them.
    fn of(weights: Weights) -> Self {
        let digest = weights.digest().to_owned();
        weights.into_file().map_or_else(Self::Tensors, |file| Self::File(file, digest))
    }

    /// Packs the weights into the block that `allocate` gives.
    fn pack(
        self,
        layers: &[Layer],
        meter: Meter,
        mut allocate: impl FnMut() -> Result<HostBlock, TeacherError>,
    ) -> Result<HostBlock, TeacherError> {
        match self {
            Self::File(file, expected) => retry_on_oom(meter, || {
                let host = allocate()?;
                let found = block::pack_file(layers, &file, &host.tensor)?;
                match found == expected {
                    true => Ok(host),
                    false => Err(TeacherError::Changed {
                        path: file.path().to_path_buf(),
                        found,
                        expected: expected.clone(),
                    }),
                }
            }),
            Self::Tensors(weights) => {
                let host = retry_on_oom(meter, allocate)?;
                block::pack(layers, weights, &host.tensor)?;
                Ok(host)
            }
        }
    }
}

/// Packs weights into a block of host memory: one that the processes of this machine have in common, which one of them fills, or one of this
/// process. Returns it with the number of processes that have it.
pub(super) fn packed<A: Accelerator>(
    accelerator: &mut A,
    layers: &[Layer],
    weights: Weights,
    processes: Option<&Processes>,
) -> Result<(HostBlock, usize), TeacherError> {
    let (bytes, meter) = (total_bytes(layers), Meter::new(accelerator.device()));
    let (mut source, mut filled) = (Some(Source::of(weights)), None);
    let common = processes.map(|processes| {
        processes.common_block(bytes as u64, |block| {
            if let Some(source) = source.take() {
                filled = Some(source.pack(layers, meter, || mapped(accelerator, block, bytes))?);
            }
            Ok::<_, TeacherError>(())
        })
    });
    let packed = match (common.transpose()?.flatten(), filled, source) {
        (Some(block), host, _) => {
            let host = host.map_or_else(|| mapped(accelerator, &block, bytes), Ok)?;
            let part = bytes.div_ceil(block.processes.max(1));
            // Where host memory is counted, this process's part of it is.
            let counted = accelerator.is_host().then(|| Outside::count(part, Phase::Teacher)).transpose()?;
            (HostBlock { counted, ..host }, block.processes)
        }
        (None, _, Some(source)) => (source.pack(layers, meter, || Ok(accelerator.host_block(bytes)?))?, 1),
        // A process that fills a block has it.
        (None, _, None) => return Err(TeacherError::Parked),
    };
    // What held the tensors on their way is not needed again.
    meter.release_kept();
    Ok(packed)
}

/// Maps a block in common.
fn mapped<A: Accelerator>(accelerator: &mut A, block: &CommonBlock, bytes: usize) -> Result<HostBlock, TeacherError> {
    Ok(accelerator.common_block(block, bytes)?)
}

/// Packs the weights of a file into a block of this process and returns their digest.
pub(super) fn packed_again<A: Accelerator>(
    accelerator: &mut A,
    layers: &[Layer],
    file: &WeightFile,
) -> Result<(HostBlock, String), TeacherError> {
    let host = accelerator.host_block(total_bytes(layers))?;
    let digest = block::pack_file(layers, file, &host.tensor)?;
    Ok((host, digest))
}
