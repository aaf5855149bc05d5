//! Reads PyTorch's files: state dicts (`.pt`, `.pth`) and Lightning's checkpoints (`.ckpt`).

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::rc::Rc;

use tch::{Kind, TchError, Tensor};
use zip::ZipArchive;

use super::pickle::{self, StoredTensor, Value};

/// Prefixes that wrappers put before every name: Lightning modules, `torch.compile`, data parallelism.
const WRAPPERS: [&str; 3] = ["model.", "_orig_mod.", "module."];
/// Where checkpoints keep the state dict.
const STATE_DICTS: [&str; 3] = ["state_dict", "model_state_dict", "model"];

/// The named tensors of a state dict, wherever in the file it is, without a wrapper's prefix.
pub(super) fn read(path: &Path) -> Result<Vec<(String, Tensor)>, TchError> {
    let mut archive = ZipArchive::new(File::open(path)?).map_err(|error| match error {
        zip::result::ZipError::InvalidArchive(_) => TchError::FileFormat(
            "it is not a zip archive, which PyTorch has written since version 1.6; save it anew with a later version"
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
        let found = String::from_utf8_lossy(&order).into_owned();
        return Err(TchError::FileFormat(format!("its byte order is '{found}', expected 'little'")));
    }
    let value = pickle::read(&member(&mut archive, &format!("{root}data.pkl"))?).map_err(TchError::FileFormat)?;
    let mut storages = HashMap::new();
    let mut tensors = Vec::new();
    for (name, stored) in without_wrappers(state_dict(&value)) {
        let storage = match storages.get(&stored.storage_key) {
            Some(storage) => Tensor::shallow_clone(storage),
            None => {
                let bytes = member(&mut archive, &format!("{root}data/{}", stored.storage_key))?;
                let storage = storage_tensor(&bytes, &stored.storage_kind)?;
                storages.insert(Rc::clone(&stored.storage_key), storage.shallow_clone());
                storage
            }
        };
        tensors.push((name, storage.f_as_strided(&stored.size, &stored.stride, stored.offset)?));
    }
    if tensors.is_empty() {
        return Err(TchError::FileFormat("it holds no state dict with tensors".to_string()));
    }
    Ok(tensors)
}

fn member(archive: &mut ZipArchive<File>, name: &str) -> Result<Vec<u8>, TchError> {
    let mut bytes = Vec::new();
    archive.by_name(name)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The tensors of the dictionary itself or of the one that a checkpoint keeps it in.
fn state_dict(value: &Value) -> Vec<(String, Rc<StoredTensor>)> {
    let nested = STATE_DICTS.iter().find_map(|key| value.entry(key).filter(|value| matches!(value, Value::Dict(_))));
    let Value::Dict(entries) = nested.unwrap_or_else(|| value.clone()) else { return Vec::new() };
    let entries = entries.borrow();
    let tensors = entries.iter().filter_map(|entry| match entry {
        (Value::Text(name), Value::Tensor(tensor)) => Some((name.to_string(), Rc::clone(tensor))),
        _ => None,
    });
    tensors.collect()
}

/// Strips a wrapper's prefix. A module that wraps a model may hold more (a teacher, metrics): only the model is kept.
fn without_wrappers(mut tensors: Vec<(String, Rc<StoredTensor>)>) -> Vec<(String, Rc<StoredTensor>)> {
    while let Some(prefix) = WRAPPERS.iter().find(|prefix| tensors.iter().any(|(name, _)| name.starts_with(**prefix))) {
        let wrapped = |(name, tensor): (String, _)| Some((name.strip_prefix(prefix)?.to_string(), tensor));
        tensors = tensors.into_iter().filter_map(wrapped).collect();
    }
    tensors
}

fn storage_tensor(bytes: &[u8], storage_kind: &str) -> Result<Tensor, TchError> {
    let kind = match storage_kind.trim_start_matches("torch.") {
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
    };
    Tensor::f_from_data_size(bytes, &[(bytes.len() / kind.elt_size_in_bytes()) as i64], kind)
}
