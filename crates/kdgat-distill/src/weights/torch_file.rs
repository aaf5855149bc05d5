//! Reads PyTorch's files: state dicts (`.pt`, `.pth`, `.bin`) and Lightning's checkpoints (`.ckpt`).

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read;
use std::rc::Rc;

use tch::{Kind, TchError, Tensor};
use zip::{CompressionMethod, ZipArchive};

use super::pickle::{self, Pickle, StoredTensor, Value};

/// Prefixes that wrappers add to every name: Lightning modules, `torch.compile`, data parallelism.
const WRAPPERS: [&str; 3] = ["model.", "_orig_mod.", "module."];
/// Limit in bytes for the pickle that describes the tensors: some hundred bytes for each.
const MOST_PICKLE_BYTES: usize = 64 << 20;
/// Limit for the tensors' total size as a multiple of the file's size (tensors may share or repeat bytes), plus `SMALL_BYTES`.
const MOST_SHARING: u64 = 16;
const SMALL_BYTES: u64 = 1 << 20;
/// Keys under which checkpoints have the state dict.
const STATE_DICTS: [&str; 3] = ["state_dict", "model_state_dict", "model"];

/// Passes each tensor of the file's state dict to `take`, ascending by name, without a wrapper's prefix. A storage stays in memory
/// until the last tensor that shares it.
pub(super) fn for_each(file: File, take: &mut dyn FnMut(&str, Tensor) -> Result<(), TchError>) -> Result<(), TchError> {
    let file_bytes = file.metadata()?.len();
    let mut archive = ZipArchive::new(file).map_err(|error| match error {
        zip::result::ZipError::InvalidArchive(_) => TchError::FileFormat(
            "it is not a zip archive, which PyTorch has written since version 1.6; save it again with a later version"
                .to_string(),
        ),
        other => TchError::Zip(other),
    })?;
    let root = archive
        .file_names()
        .find_map(|name| name.strip_suffix("data.pkl").map(str::to_string))
        .ok_or_else(|| TchError::FileFormat("it has no data.pkl: it was not written by torch.save".to_string()))?;
    let order = member(&mut archive, &format!("{root}byteorder")).unwrap_or_else(|_| b"little".to_vec());
    if order != b"little" {
        let found: String = String::from_utf8_lossy(&order).chars().take(20).collect();
        return Err(TchError::FileFormat(format!("its byte order is '{found}', expected 'little'")));
    }
    let pickle = member(&mut archive, &format!("{root}data.pkl"))?;
    if pickle.len() > MOST_PICKLE_BYTES {
        let text = format!(
            "its data.pkl has {} bytes, more than {MOST_PICKLE_BYTES}; save the model's state dict alone",
            pickle.len()
        );
        return Err(TchError::FileFormat(text));
    }
    let tensors = without_wrappers(state_dict(&pickle::read(&pickle).map_err(TchError::FileFormat)?));
    drop(pickle);
    if tensors.is_empty() {
        return Err(TchError::FileFormat("it holds no state dict with tensors".to_string()));
    }
    expect_proportionate(&tensors, file_bytes)?;
    let mut uses: HashMap<Rc<str>, usize> = HashMap::new();
    for stored in tensors.values() {
        *uses.entry(Rc::clone(&stored.storage_key)).or_default() += 1;
    }
    let mut storages: HashMap<Rc<str>, Tensor> = HashMap::new();
    for (name, stored) in &tensors {
        let key = &stored.storage_key;
        let storage = match storages.remove(key) {
            Some(storage) => storage,
            None => {
                let bytes = member(&mut archive, &format!("{root}data/{key}"))?;
                storage_tensor(&bytes, &stored.storage_kind)?
            }
        };
        let tensor = storage.f_as_strided(&stored.size, &stored.stride, stored.offset)?;
        if let Some(left) = uses.get_mut(key) {
            *left -= 1;
            if *left > 0 {
                storages.insert(Rc::clone(key), storage);
            }
        }
        take(name, tensor)?;
    }
    Ok(())
}

/// Reads a file of the archive. `torch.save` does not compress: a compressed one could have any length and is refused.
fn member(archive: &mut ZipArchive<File>, name: &str) -> Result<Vec<u8>, TchError> {
    let mut member = archive.by_name(name)?;
    if member.compression() != CompressionMethod::Stored {
        let text = format!("its {name} is compressed, which torch.save never does; save it again with torch.save");
        return Err(TchError::FileFormat(text));
    }
    let mut bytes = Vec::new();
    member.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Tensors by name. If two have the same name, the later one counts, as in Python.
type Stored = BTreeMap<String, Rc<StoredTensor>>;

/// The tensors of the dictionary itself, or of the nested one in a checkpoint.
fn state_dict(pickle: &Pickle) -> Stored {
    let nested = STATE_DICTS.iter().filter_map(|key| pickle.entry(&pickle.root, key));
    let pairs = nested.filter_map(|value| pickle.pairs(value)).next();
    let pairs = pairs.or_else(|| pickle.pairs(&pickle.root)).unwrap_or_default();
    // By shared names first: a text that occurs many times is copied once.
    let tensors: BTreeMap<&str, &Rc<StoredTensor>> = pairs
        .iter()
        .filter_map(|pair| match pair {
            (Value::Text(name), Value::Tensor(tensor)) => Some((&**name, tensor)),
            _ => None,
        })
        .collect();
    tensors.into_iter().map(|(name, tensor)| (name.to_owned(), Rc::clone(tensor))).collect()
}

/// Strips a wrapper's prefix. A wrapping module may contain more (a teacher, metrics): only the model's tensors remain.
fn without_wrappers(mut tensors: Stored) -> Stored {
    while let Some(prefix) = WRAPPERS.iter().find(|prefix| tensors.keys().any(|name| name.starts_with(**prefix))) {
        let wrapped = |(name, tensor): (String, _)| Some((name.strip_prefix(prefix)?.to_string(), tensor));
        tensors = tensors.into_iter().filter_map(wrapped).collect();
    }
    tensors
}

/// Checks the tensors' total size: tensors are views, which may share or repeat elements and could exceed the file many times over.
fn expect_proportionate(tensors: &Stored, file_bytes: u64) -> Result<(), TchError> {
    let most = file_bytes.saturating_mul(MOST_SHARING).saturating_add(SMALL_BYTES);
    let mut sum = 0u64;
    for (name, stored) in tensors {
        let width = kind_of(&stored.storage_kind)?.elt_size_in_bytes() as u64;
        let bytes = stored.size.iter().try_fold(width, |product, &size| product.checked_mul(u64::try_from(size).ok()?));
        let total = bytes.and_then(|bytes| sum.checked_add(bytes)).filter(|sum| *sum <= most);
        sum = total.ok_or_else(|| {
            TchError::FileFormat(format!(
                "its tensors up to '{name}', of shape {:?}, have more than {most} bytes in a file of {file_bytes}",
                stored.size
            ))
        })?;
    }
    Ok(())
}

fn storage_tensor(bytes: &[u8], storage_kind: &str) -> Result<Tensor, TchError> {
    let kind = kind_of(storage_kind)?;
    let count = bytes.len() / kind.elt_size_in_bytes();
    Tensor::f_from_data_size(&bytes[..count * kind.elt_size_in_bytes()], &[count as i64], kind)
}

fn kind_of(storage_kind: &str) -> Result<Kind, TchError> {
    Ok(match storage_kind {
        "FloatStorage" => Kind::Float,
        "DoubleStorage" => Kind::Double,
        "HalfStorage" => Kind::Half,
        "BFloat16Storage" => Kind::BFloat16,
        "LongStorage" => Kind::Int64,
        "IntStorage" => Kind::Int,
        "ShortStorage" => Kind::Int16,
        "CharStorage" => Kind::Int8,
        "ByteStorage" => Kind::Uint8,
        "BoolStorage" => Kind::Bool,
        other => return Err(TchError::FileFormat(format!("tensors of storage '{other}' cannot be read"))),
    })
}
