//! Checkpoints: a model with what it takes to use it, and a training run with what it takes to go on.
//!
//! Both are safetensors files with one metadata entry, `kdgat`, a JSON object that holds a digest of the tensors: a
//! damaged file is told from a good one.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::{Path, PathBuf};

use safetensors::tensor::TensorView;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tch::Tensor;

use crate::files;
use crate::nn::ModelError;
use crate::nn::weights::{self, StateDict};

const METADATA_KEY: &str = "kdgat";
const FORMAT_VERSION: u32 = 1;
/// The limit that safetensors itself sets.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// What can go wrong with a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file system refused.
    #[error("{path}: cannot {action}: {source}", path = path.display())]
    File { path: PathBuf, action: &'static str, source: std::io::Error },
    /// The file is no checkpoint of kdgat, or not a whole one.
    #[error("{path}: {reason}; delete it and start the run anew, or resume from another checkpoint", path = path.display())]
    Damaged { path: PathBuf, reason: String },
    /// The file comes from another version of the format.
    #[error("{path}: is format version {found}, this program reads version {expected}", path = path.display(), expected = FORMAT_VERSION)]
    Version { path: PathBuf, found: u32 },
    /// Its tensors cannot be used.
    #[error(transparent)]
    Model(#[from] ModelError),
}

#[derive(Serialize, Deserialize)]
struct Metadata<T> {
    format_version: u32,
    /// Of all tensors, by name.
    digest: String,
    #[serde(flatten)]
    content: T,
}

/// Writes `tensors` and `content` as one file, whole or not at all.
pub fn write<T: Serialize>(path: &Path, tensors: &StateDict, content: &T) -> Result<(), CheckpointError> {
    let digest = weights::digest(tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)))?;
    let metadata = Metadata { format_version: FORMAT_VERSION, digest, content };
    let damaged = |reason: String| CheckpointError::Damaged { path: path.to_owned(), reason };
    let text = serde_json::to_string(&metadata).map_err(|error| damaged(error.to_string()))?;

    let mut bytes = BTreeMap::new();
    for (name, tensor) in tensors {
        bytes.insert(name, (weights::dtype_of(tensor.kind()), shape(tensor), weights::bytes(tensor)?));
    }
    let mut views = Vec::with_capacity(bytes.len());
    for (name, (dtype, shape, bytes)) in &bytes {
        let dtype = dtype.ok_or_else(|| damaged(format!("tensor '{name}' has a kind that is not stored")))?;
        let view = TensorView::new(dtype, shape.clone(), bytes).map_err(|error| damaged(error.to_string()))?;
        views.push((name.as_str(), view));
    }
    let metadata = HashMap::from([(METADATA_KEY.to_owned(), text)]);
    let file = safetensors::serialize(views, Some(metadata)).map_err(|error| damaged(error.to_string()))?;
    files::write_atomically(path, &file).map_err(|source| CheckpointError::File {
        path: path.to_owned(),
        action: "write the checkpoint",
        source,
    })
}

/// Reads what [`write`] wrote.
///
/// # Errors
/// If the file is missing, of another version, or not what was written.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<(StateDict, T), CheckpointError> {
    let damaged = |reason: String| CheckpointError::Damaged { path: path.to_owned(), reason };
    let file = std::fs::read(path).map_err(|source| CheckpointError::File {
        path: path.to_owned(),
        action: "read the checkpoint",
        source,
    })?;
    let (_, header) = safetensors::SafeTensors::read_metadata(&file).map_err(|error| damaged(error.to_string()))?;
    let text = header.metadata().as_ref().and_then(|entries| entries.get(METADATA_KEY));
    let text = text.ok_or_else(|| damaged("was not written by kdgat (no 'kdgat' metadata)".into()))?;
    let json: serde_json::Value = serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
    let found = json["format_version"].as_u64().unwrap_or(0) as u32;
    if found != FORMAT_VERSION {
        return Err(CheckpointError::Version { path: path.to_owned(), found });
    }
    let metadata: Metadata<T> = serde_json::from_value(json).map_err(|error| damaged(error.to_string()))?;

    let parsed = safetensors::SafeTensors::deserialize(&file).map_err(|error| damaged(error.to_string()))?;
    let mut tensors = StateDict::new();
    for (name, view) in parsed.tensors() {
        tensors.insert(name, weights::from_view(&view)?);
    }
    let digest = weights::digest(tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)))?;
    if digest != metadata.digest {
        return Err(damaged(format!("its tensors have digest {digest}, {} was written", metadata.digest)));
    }
    Ok((tensors, metadata.content))
}

/// Whether a file is one that [`write`] makes, judged by its header alone.
pub fn is_checkpoint(path: &Path) -> bool {
    let header = || -> Option<String> {
        let mut file = std::fs::File::open(path).ok()?;
        let mut length = [0; 8];
        file.read_exact(&mut length).ok()?;
        let mut header = Vec::new();
        file.take(u64::from_le_bytes(length).min(MAX_HEADER_BYTES)).read_to_end(&mut header).ok()?;
        let header: serde_json::Value = serde_json::from_slice(&header).ok()?;
        Some(header["__metadata__"][METADATA_KEY].as_str()?.to_owned())
    };
    header().is_some()
}

fn shape(tensor: &Tensor) -> Vec<usize> {
    tensor.size().iter().map(|&length| length as usize).collect()
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Content {
        epoch: u64,
    }

    fn sample() -> StateDict {
        StateDict::from([
            ("a.weight".to_owned(), Tensor::arange(6, (Kind::Float, tch::Device::Cpu)).view([2, 3])),
            ("count".to_owned(), Tensor::from(7i64)),
        ])
    }

    #[test]
    fn a_checkpoint_comes_back_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.safetensors");
        write(&path, &sample(), &Content { epoch: 3 }).unwrap();
        let (tensors, content) = read::<Content>(&path).unwrap();
        assert_eq!(content, Content { epoch: 3 });
        assert_eq!(tensors, sample());
    }

    #[test]
    fn a_changed_byte_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.safetensors");
        write(&path, &sample(), &Content { epoch: 3 }).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let text = read::<Content>(&path).unwrap_err().to_string();
        assert!(text.contains("state.safetensors") && text.contains("digest"), "{text}");
    }

    #[test]
    fn a_truncated_file_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.safetensors");
        write(&path, &sample(), &Content { epoch: 3 }).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        for length in [0, 7, 20, bytes.len() - 1] {
            std::fs::write(&path, &bytes[..length]).unwrap();
            let error = read::<Content>(&path).unwrap_err();
            assert!(matches!(error, CheckpointError::Damaged { .. }), "{length} bytes: {error}");
        }
    }
}
