//! Checkpoints: a model with everything needed to use it, or a training run with everything needed to resume it.
//!
//! Both are safetensors files with one metadata entry, `kdgat`: a JSON object with a digest of the tensors, which detects
//! damaged files.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kdgat_base::files;
use kdgat_nn::ModelError;
use kdgat_nn::weights::{self, StateDict};
use kdgat_torch::mapped;
use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, TensorView};
use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::checkpoint_kind::{Content, Kind};

const METADATA_KEY: &str = "kdgat";
const FORMAT_VERSION: u32 = 1;
/// Header limit of safetensors itself.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Error of a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] files::FileError),
    /// The file is not a checkpoint.
    #[error("{path}: is not a checkpoint of kdgat ({reason}); {}", wanted.advice(), path = path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Reason why it is not one.
        reason: &'static str,
        /// The expected kind.
        wanted: Kind,
    },
    /// The checkpoint is intact, but of another kind than expected.
    #[error("{path}: is {found}; {}", wanted.advice(), path = path.display())]
    OtherKind {
        /// The file.
        path: PathBuf,
        /// Its kind.
        found: Kind,
        /// The expected kind.
        wanted: Kind,
    },
    /// The content of the checkpoint has changed since it was written.
    #[error("{path}: is damaged: {reason}; {}", kind.remedy(), path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The mismatch.
        reason: String,
        /// The expected kind.
        kind: Kind,
    },
    /// The checkpoint has another format version.
    #[error(
        "{path}: has format version {found}, but this program reads version {expected}; use the version of kdgat that wrote it, \
         or train again",
        path = path.display(),
        expected = FORMAT_VERSION
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its format version.
        found: u32,
    },
    /// The content cannot be stored in a checkpoint.
    #[error("{path}: cannot write the checkpoint: {reason}; please report this bug", path = path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Reason, with the name of the tensor if there is one.
        reason: String,
    },
    /// The tensors cannot be used.
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl CheckpointError {
    /// True if the user's files or settings caused it (exit code 2), false for the machine or the program (exit code 1).
    pub fn is_input(&self) -> bool {
        match self {
            Self::File(error) => error.is_input(),
            Self::Model(ModelError::Torch(_)) | Self::Content { .. } => false,
            _ => true,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Metadata<T> {
    format_version: u32,
    /// Digest of all tensors and their names.
    digest: String,
    #[serde(flatten)]
    content: T,
}

/// Writes `tensors` and `content` to one file, atomically.
pub fn write<T: Serialize>(path: &Path, tensors: &StateDict, content: &T) -> Result<(), CheckpointError> {
    let digest = weights::digest(tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)))?;
    let metadata = Metadata { format_version: FORMAT_VERSION, digest, content };
    let unfit = |reason: String| CheckpointError::Content { path: path.to_owned(), reason };
    let text = serde_json::to_string(&metadata).map_err(|error| unfit(error.to_string()))?;

    let mut bytes = BTreeMap::new();
    for (name, tensor) in tensors {
        bytes.insert(name, (weights::dtype_of(tensor.kind()), shape(tensor), weights::bytes(tensor)?));
    }
    let mut views = Vec::with_capacity(bytes.len());
    for (name, (dtype, shape, bytes)) in &bytes {
        let dtype = dtype.ok_or_else(|| unfit(format!("tensor '{name}' has an element type that cannot be stored")))?;
        let view = TensorView::new(dtype, shape.clone(), bytes).map_err(|error| unfit(error.to_string()))?;
        views.push((name.as_str(), view));
    }
    let metadata = HashMap::from([(METADATA_KEY.to_owned(), text)]);
    // Tensors of the host are written in place: the file is as large as the model and its optimiser's state.
    let mut unfit_reason = None;
    let written = files::write_atomically_to(path, |place| {
        safetensors::serialize_to_file(views, Some(metadata), place).map_err(|error| match error {
            SafeTensorError::IoError(error) => error,
            other => {
                unfit_reason = Some(other.to_string());
                std::io::Error::other("the content does not fit the format")
            }
        })
    });
    match unfit_reason {
        Some(reason) => Err(unfit(reason)),
        None => Ok(written.map_err(files::failed("write the checkpoint", path))?),
    }
}

/// Reads a file written by [`write`].
///
/// # Errors
/// If the file is missing, of another kind or version, or damaged; each error says what to do.
pub fn read<T: Content>(path: &Path) -> Result<(StateDict, T), CheckpointError> {
    let file = std::fs::read(path).map_err(files::failed("read the checkpoint", path))?;
    parse(path, &file, weights::from_view)
}

/// Reads a file like [`read`]; its tensors are the file's bytes in the system's cache of files where they are aligned. Nobody may write to them.
///
/// # Errors
/// Those of [`read`].
pub fn map<T: Content>(path: &Path) -> Result<(StateDict, T), CheckpointError> {
    let map = std::fs::File::open(path).and_then(|file| mapped::map(&file));
    let map = Arc::new(map.map_err(files::failed("read the checkpoint", path))?);
    parse(path, &map, |view| {
        let start = view.data().as_ptr() as usize - map.as_ptr() as usize;
        let shape: Vec<i64> = view.shape().iter().map(|&length| length as i64).collect();
        let over = match view.dtype() {
            Dtype::F32 => mapped::tensor_over::<f32>(&map, start..start + view.data().len(), &shape).ok(),
            _ => None,
        };
        over.map_or_else(|| weights::from_view(view), Ok)
    })
}

/// The tensors, made by `tensor`, and the content of a file with these bytes.
fn parse<T: Content>(
    path: &Path,
    file: &[u8],
    tensor: impl Fn(&TensorView<'_>) -> Result<Tensor, ModelError>,
) -> Result<(StateDict, T), CheckpointError> {
    let metadata = metadata::<T>(path, file)?;
    let parsed = safetensors::SafeTensors::deserialize(file).map_err(|error| damaged::<T>(path, error.to_string()))?;
    let mut tensors = StateDict::new();
    for (name, view) in parsed.tensors() {
        tensors.insert(name, tensor(&view)?);
    }
    let digest = weights::digest(tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)))?;
    if digest != metadata.digest {
        let found = format!("its tensors have digest {digest}, expected {}", metadata.digest);
        return Err(damaged::<T>(path, found));
    }
    Ok((tensors, metadata.content))
}

fn damaged<T: Content>(path: &Path, reason: String) -> CheckpointError {
    CheckpointError::Damaged { path: path.to_owned(), reason, kind: T::KIND }
}

/// The metadata of a file with these bytes.
fn metadata<T: Content>(path: &Path, file: &[u8]) -> Result<Metadata<T>, CheckpointError> {
    let damaged = |reason: String| damaged::<T>(path, reason);
    let foreign = |reason| CheckpointError::Foreign { path: path.to_owned(), reason, wanted: T::KIND };
    // A file named *.safetensors counts as damaged; under any other name it never was a safetensors file.
    let is_named_so = path.extension().is_some_and(|extension| extension == "safetensors");
    let (_, header) = safetensors::SafeTensors::read_metadata(file).map_err(|error| match is_named_so {
        true => damaged(error.to_string()),
        false => foreign("it is not a safetensors file"),
    })?;
    let text = header.metadata().as_ref().and_then(|entries| entries.get(METADATA_KEY));
    let text = text.ok_or_else(|| foreign("a safetensors file without the metadata 'kdgat'"))?;
    let json: serde_json::Value = serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
    let found = json["format_version"].as_u64().unwrap_or(0) as u32;
    if found != FORMAT_VERSION {
        return Err(CheckpointError::Version { path: path.to_owned(), found });
    }
    let found = Kind::of(&json);
    if found != T::KIND {
        return Err(CheckpointError::OtherKind { path: path.to_owned(), found, wanted: T::KIND });
    }
    serde_json::from_value(json).map_err(|error| damaged(error.to_string()))
}

/// True if the header says that [`write`] wrote the file. Reads only the header.
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
    use super::*;
    use crate::state::Position;
    use kdgat_nn::ModelDescription;

    /// Position after `epoch` epochs.
    fn position(epoch: u64) -> Position {
        Position { epoch, ..Position::default() }
    }

    fn sample() -> StateDict {
        StateDict::from([
            ("a.weight".to_owned(), Tensor::arange(6, (tch::Kind::Float, tch::Device::Cpu)).view([2, 3])),
            ("count".to_owned(), Tensor::from(7i64)),
        ])
    }

    #[test]
    fn a_checkpoint_reads_back_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.safetensors");
        write(&path, &sample(), &position(3)).unwrap();
        let (tensors, content) = read::<Position>(&path).unwrap();
        assert_eq!(content, position(3));
        assert_eq!(tensors, sample());
    }

    #[test]
    fn a_changed_byte_is_detected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.safetensors");
        write(&path, &sample(), &position(3)).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let text = read::<Position>(&path).unwrap_err().to_string();
        assert!(text.contains("state.safetensors") && text.contains("digest"), "{text}");
    }

    #[test]
    fn a_truncated_file_is_detected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.safetensors");
        write(&path, &sample(), &position(3)).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        for length in [0, 7, 20, bytes.len() - 1] {
            std::fs::write(&path, &bytes[..length]).unwrap();
            let error = read::<Position>(&path).unwrap_err();
            assert!(matches!(error, CheckpointError::Damaged { .. }), "{length} bytes: {error}");
        }
    }

    #[test]
    fn advice_fits_what_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        write(&path("state.safetensors"), &sample(), &position(3)).unwrap();
        let said = |text: String, words: &[&str]| {
            assert!(words.iter().all(|word| text.contains(word)), "{words:?} are not all in: {text}");
            assert!(!text.contains("delete it"), "{text}");
        };

        // Another kind, intact.
        let error = read::<ModelDescription>(&path("state.safetensors")).unwrap_err();
        assert!(
            matches!(error, CheckpointError::OtherKind { found: Kind::RunState, .. }) && error.is_input(),
            "{error}"
        );
        said(error.to_string(), &["state.safetensors: is the state of a training run", "name a vgae or gat"]);

        // Not a checkpoint.
        std::fs::write(path("metrics.csv"), "epoch,train_loss\n0,0.5\n").unwrap();
        let error = read::<ModelDescription>(&path("metrics.csv")).unwrap_err();
        assert!(matches!(error, CheckpointError::Foreign { .. }), "{error}");
        said(error.to_string(), &["metrics.csv: is not a checkpoint of kdgat", "best.safetensors"]);
        let view = TensorView::new(safetensors::Dtype::U8, vec![1], &[7]).unwrap();
        std::fs::write(path("other.safetensors"), safetensors::serialize([("x", view)], None).unwrap()).unwrap();
        let error = read::<ModelDescription>(&path("other.safetensors")).unwrap_err();
        said(error.to_string(), &["other.safetensors: is not a checkpoint of kdgat", "without the metadata"]);

        // Damaged: a model, and the state of a run.
        std::fs::write(path("best.safetensors"), "half of a he").unwrap();
        said(
            read::<ModelDescription>(&path("best.safetensors")).unwrap_err().to_string(),
            &["damaged", "train it again"],
        );
        said(read::<Position>(&path("best.safetensors")).unwrap_err().to_string(), &["damaged", "without --resume"]);
    }
}
