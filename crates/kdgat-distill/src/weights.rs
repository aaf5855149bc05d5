//! Named weights in host memory and the digest of their content.

mod pickle;
mod safetensors_file;
mod torch_file;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use tch::{Device, Kind, TchError, Tensor};

use kdgat_base::files::Partial;
use kdgat_torch::view;

/// A model's weights by name, in host memory, with the digest of their content.
///
/// The digest covers names, kinds, shapes and bytes, in ascending order of names. It does not depend on the file format, and changes
/// with each step of training.
#[derive(Debug)]
pub struct Weights {
    tensors: BTreeMap<String, Tensor>,
    digest: String,
    source: Option<PathBuf>,
    /// The source, opened once: it reads the same bytes even if another process replaces the file at that path.
    file: Option<File>,
}

impl Weights {
    /// Copies tensors that are elsewhere into host memory and computes the digest.
    pub fn from_tensors(tensors: impl IntoIterator<Item = (String, Tensor)>) -> Result<Self, WeightsError> {
        let mut host = BTreeMap::new();
        for (name, tensor) in tensors {
            let tensor = host_tensor(&name, &tensor)?;
            if host.insert(name.clone(), tensor).is_some() {
                return Err(WeightsError::Twice { name });
            }
        }
        let mut digest = Digest::default();
        for (name, tensor) in &host {
            digest.add(name, tensor)?;
        }
        Ok(Self { tensors: host, digest: digest.finish(), source: None, file: None })
    }

    /// Reads a weight file: safetensors, or a file of PyTorch (`.pt`, `.pth`, `.bin`) or Lightning (`.ckpt`).
    ///
    /// A checkpoint gives only its model's state dict, without the prefix `model.`. No code in the file is run.
    pub fn read(path: &Path) -> Result<Self, WeightsError> {
        Self::read_by(path, WeightFile::for_each)
    }

    /// Reads a weight file like [`Weights::read`], whose tensors are its bytes in the system's cache of files if it is a safetensors file: for
    /// weights that are packed soon, so that several processes do not each have a copy. Nobody may write to these tensors.
    pub fn mapped(path: &Path) -> Result<Self, WeightsError> {
        Self::read_by(path, WeightFile::for_each_mapped)
    }

    fn read_by(
        path: &Path,
        for_each: impl Fn(&WeightFile, &mut TakeTensor<'_>) -> Result<String, WeightsError>,
    ) -> Result<Self, WeightsError> {
        let file = WeightFile::open(path)?;
        let mut tensors = BTreeMap::new();
        let digest = for_each(&file, &mut |name, tensor| {
            tensors.insert(name.to_owned(), tensor);
            Ok(())
        })?;
        Ok(Self { tensors, digest, source: Some(path.to_path_buf()), file: Some(file.file) })
    }

    /// Writes a safetensors file atomically: to a temporary file in the same folder, synced, then renamed.
    pub fn write_safetensors(&self, path: &Path) -> Result<(), WeightsError> {
        let unwritable = |source| WeightsError::Unwritable { path: path.to_path_buf(), source };
        let tensors: Vec<(&str, &Tensor)> = self.iter().collect();
        let written = Partial::beside(path).map_err(TchError::from).and_then(|partial| {
            Tensor::write_safetensors(&tensors, partial.path())?;
            Ok(partial.persist(path)?)
        });
        written.map_err(unwritable)
    }

    /// Names the file that these weights can be read from again, so that they need not stay in memory.
    pub fn with_source(mut self, path: &Path) -> Self {
        self.source = Some(path.to_path_buf());
        // If it cannot be opened any more, the weights stay in memory until they are packed.
        self.file = File::open(path).ok();
        self
    }

    /// Drops the tensors and returns the open file that has them; returns the weights if there is no such file.
    pub(super) fn into_file(mut self) -> Result<WeightFile, Self> {
        match (&self.source, self.file.take()) {
            (Some(path), Some(file)) => Ok(WeightFile { path: path.clone(), file }),
            _ => Err(self),
        }
    }

    /// The file that the weights can be read from again.
    pub fn source(&self) -> Option<&Path> {
        self.source.as_deref()
    }

    /// BLAKE3 digest of the content, in hexadecimal.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Iterates over names and tensors, ascending by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// The weight called `name`.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// Bytes of all tensors together.
    pub fn bytes(&self) -> u64 {
        self.tensors.values().map(|tensor| tensor_bytes(tensor) as u64).sum()
    }

    pub(super) fn into_tensors(self) -> BTreeMap<String, Tensor> {
        self.tensors
    }
}

/// Takes a tensor of a file, by its name.
pub(super) type TakeTensor<'a> = dyn FnMut(&str, Tensor) -> Result<(), WeightsError> + 'a;

/// An open weight file.
#[derive(Debug)]
pub(super) struct WeightFile {
    path: PathBuf,
    file: File,
}

impl WeightFile {
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let unreadable =
            |source: std::io::Error| WeightsError::Unreadable { path: path.to_path_buf(), source: source.into() };
        Ok(Self { path: path.to_path_buf(), file: File::open(path).map_err(unreadable)? })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Passes each tensor to `take`, ascending by name, and returns the digest of all. The file's tensors are never in memory
    /// together, unless `take` holds on to them or they share a storage.
    pub fn for_each(&self, take: &mut TakeTensor<'_>) -> Result<String, WeightsError> {
        self.each(take, false)
    }

    /// Like [`WeightFile::for_each`]; tensors of a safetensors file are its bytes in the system's cache of files.
    fn for_each_mapped(&self, take: &mut TakeTensor<'_>) -> Result<String, WeightsError> {
        self.each(take, true)
    }

    fn each(&self, take: &mut TakeTensor<'_>, maps: bool) -> Result<String, WeightsError> {
        let mut digest = Digest::default();
        let mut refused = None;
        let mut each = |name: &str, tensor: Tensor| {
            let taken = host_tensor(name, &tensor).and_then(|tensor| {
                digest.add(name, &tensor)?;
                take(name, tensor)
            });
            taken.map_err(|error| {
                refused = Some(error);
                TchError::FileFormat("a tensor was refused".to_owned())
            })
        };
        let mut file = self.file.try_clone().map_err(|source| self.unreadable(source.into()))?;
        let extension = self.path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
        let read = match extension.as_str() {
            "safetensors" => safetensors_file::for_each(&mut file, maps, &mut each),
            "pt" | "pth" | "bin" | "ckpt" => torch_file::for_each(file, &mut each),
            _ => return Err(WeightsError::UnknownFormat { path: self.path.clone() }),
        };
        match (read, refused) {
            (_, Some(error)) => Err(error),
            (Err(source), None) => Err(self.unreadable(source)),
            (Ok(()), None) => Ok(digest.finish()),
        }
    }

    fn unreadable(&self, source: TchError) -> WeightsError {
        WeightsError::Unreadable { path: self.path.clone(), source }
    }
}

/// Bytes of a tensor's elements.
pub(super) fn tensor_bytes(tensor: &Tensor) -> usize {
    tensor.numel() * tensor.kind().elt_size_in_bytes()
}

/// Copies a tensor to host memory unless it is there, contiguous.
fn host_tensor(name: &str, tensor: &Tensor) -> Result<Tensor, WeightsError> {
    if !tensor.defined() || tensor.is_sparse() {
        return Err(WeightsError::Unusable { name: name.to_owned(), found: format!("{tensor:?}") });
    }
    Ok(tensor.detach().f_to_device(Device::Cpu)?.f_contiguous()?)
}

/// The digest of tensors, which must be added in ascending order of names.
#[derive(Default)]
struct Digest(blake3::Hasher);

impl Digest {
    fn add(&mut self, name: &str, tensor: &Tensor) -> Result<(), TchError> {
        // The name is prefixed with its length and the shape with its rank, so that different weights never hash the same bytes.
        self.0.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
        self.0.update(kind_name(tensor.kind()).as_bytes());
        self.0.update(&(tensor.dim() as u64).to_le_bytes());
        for size in tensor.size() {
            self.0.update(&size.to_le_bytes());
        }
        self.0.update(&view::raw(tensor)?);
        Ok(())
    }

    fn finish(&self) -> String {
        self.0.finalize().to_hex().to_string()
    }
}

/// Names of fixed width, which do not depend on how a crate prints kinds.
fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Float => "f32 ",
        Kind::Double => "f64 ",
        Kind::Half => "f16 ",
        Kind::BFloat16 => "bf16",
        Kind::Int64 => "i64 ",
        Kind::Int => "i32 ",
        Kind::Int16 => "i16 ",
        Kind::Int8 => "i8  ",
        Kind::Uint8 => "u8  ",
        Kind::Bool => "bool",
        _ => "else",
    }
}

/// An error of reading or writing weights.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// The file is missing or cannot be read as weights.
    #[error("cannot read weights from {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of libtorch or of the format's reader.
        source: TchError,
    },
    /// The file cannot be written.
    #[error("cannot write weights to {}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: TchError,
    },
    /// The file's extension is unknown.
    #[error(
        "cannot tell the format of {} by its name; expected .safetensors, .pt, .pth, .bin or .ckpt",
        path.display()
    )]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// A tensor that is undefined or sparse.
    #[error("weight '{name}' is {found}; expected a dense tensor")]
    Unusable {
        /// Name of the tensor.
        name: String,
        /// Description of the tensor.
        found: String,
    },
    /// Two tensors have the same name.
    #[error("weight '{name}' occurs twice")]
    Twice {
        /// Name of the tensors.
        name: String,
    },
    /// libtorch failed, for example out of memory.
    #[error("cannot copy the weights to host memory")]
    Torch(#[from] TchError),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(scale: f64) -> Weights {
        let tensors = [
            ("b".to_string(), Tensor::from(3i64)),
            ("a".to_string(), Tensor::ones([2, 3], (Kind::Float, Device::Cpu)) * scale),
        ];
        Weights::from_tensors(tensors).unwrap()
    }

    #[test]
    fn digest_is_of_content_not_of_order_or_layout() {
        let transposed = Tensor::ones([3, 2], (Kind::Float, Device::Cpu)).transpose(0, 1);
        let other_order =
            Weights::from_tensors([("a".to_string(), transposed), ("b".to_string(), Tensor::from(3i64))]).unwrap();
        assert_eq!(weights(1.0).digest(), other_order.digest());
        assert_ne!(weights(1.0).digest(), weights(1.0 + 1e-6).digest());
        let renamed = [("a2".to_string(), Tensor::from(1f32))];
        let named = [("a".to_string(), Tensor::from(1f32))];
        assert_ne!(Weights::from_tensors(renamed).unwrap().digest(), Weights::from_tensors(named).unwrap().digest());
    }

    #[test]
    fn missing_file_is_named() {
        let error = Weights::read(Path::new("no/such/weights.safetensors")).unwrap_err();
        assert!(error.to_string().contains("no/such/weights.safetensors"), "{error}");
    }
}
