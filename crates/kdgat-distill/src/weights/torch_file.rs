//! Reads PyTorch's files: state dicts (`.pt`, `.pth`, `.bin`) and Lightning's checkpoints (`.ckpt`).

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufReader, Read};
use std::rc::Rc;

use kdgat_base::archive::{self, ArchiveError};
use tch::{Device, Kind, TchError, Tensor};
use zip::{CompressionMethod, ZipArchive};

use super::pickle::{self, Pickle, StoredTensor, Value};

/// Prefixes that wrappers add to every name: Lightning modules, `torch.compile`, data parallelism.
const WRAPPERS: [&str; 3] = ["model.", "_orig_mod.", "module."];
/// Limit in bytes for the pickle that describes the tensors: some hundred bytes for each.
const MOST_PICKLE_BYTES: u64 = 64 << 20;
/// Limit in bytes for the text that names the byte order.
const MOST_ORDER_BYTES: u64 = 64;
/// Limit for the tensors' total size as a multiple of the file's size (tensors may share or repeat bytes), plus `SMALL_BYTES`.
const MOST_SHARING: u64 = 16;
const SMALL_BYTES: u64 = 1 << 20;
/// Keys under which checkpoints have the state dict.
const STATE_DICTS: [&str; 3] = ["state_dict", "model_state_dict", "model"];

/// Passes each tensor of the file's state dict to `take`, ascending by name, without a wrapper's prefix. A storage stays in memory
/// until the last tensor that shares it.
pub(super) fn for_each(file: File, take: &mut dyn FnMut(&str, Tensor) -> Result<(), TchError>) -> Result<(), TchError> {
    let file_bytes = file.metadata()?.len();
    let mut archive = archive::open(file).map_err(|error| match error {
        ArchiveError::Io(source) => source.into(),
        ArchiveError::Unreadable(_) => TchError::FileFormat(
            "it is not a zip archive, which PyTorch has written since version 1.6; save it again with a later version"
                .to_string(),
        ),
        ArchiveError::Impossible(text) => TchError::FileFormat(format!("{text}; torch.save writes no such file")),
    })?;
    let root = archive
        .file_names()
        .find_map(|name| name.strip_suffix("data.pkl").map(str::to_string))
        .ok_or_else(|| TchError::FileFormat("it has no data.pkl: it was not written by torch.save".to_string()))?;
    let order = member(&mut archive, &format!("{root}byteorder"), MOST_ORDER_BYTES);
    let order = order.unwrap_or_else(|_| b"little".to_vec());
    if order != b"little" {
        let found: String = String::from_utf8_lossy(&order).chars().take(20).collect();
        return Err(TchError::FileFormat(format!("its byte order is '{found}', expected 'little'")));
    }
    let pickle = member(&mut archive, &format!("{root}data.pkl"), MOST_PICKLE_BYTES)?;
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
    // Members are apart from each other, so all storages together have at most the file's size.
    let mut storages: HashMap<Rc<str>, Tensor> = HashMap::new();
    for (name, stored) in &tensors {
        let key = &stored.storage_key;
        let storage = match storages.remove(key) {
            Some(storage) => storage,
            None => {
                let bytes = member(&mut archive, &format!("{root}data/{key}"), file_bytes)?;
                storage_tensor(&bytes, &stored.storage_kind)?
            }
        };
        let view = storage.f_as_strided(&stored.size, &stored.stride, stored.offset)?;
        // A view would keep its whole storage in memory.
        let tensor = if view.numel() < storage.numel() { copied(&view)? } else { view };
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

/// The elements of a view in memory of their own.
fn copied(view: &Tensor) -> Result<Tensor, TchError> {
    let mut own = Tensor::f_empty(view.size(), (view.kind(), Device::Cpu))?;
    own.f_copy_(view)?;
    Ok(own)
}

/// Reads a file of the archive, of at most `most_bytes`. `torch.save` does not compress: a compressed one could have any length and is
/// refused.
fn member(archive: &mut ZipArchive<BufReader<File>>, name: &str, most_bytes: u64) -> Result<Vec<u8>, TchError> {
    let mut member = archive.by_name(name)?;
    if member.compression() != CompressionMethod::Stored {
        let text = format!("its {name} is compressed, which torch.save never does; save it again with torch.save");
        return Err(TchError::FileFormat(text));
    }
    // The bytes that are read of a stored member.
    if member.compressed_size() > most_bytes {
        let text = format!(
            "its {name} has {} bytes, more than {most_bytes}; save the model's state dict alone",
            member.compressed_size()
        );
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use zip::write::{SimpleFileOptions, ZipWriter};

    use super::*;

    /// A tensor of a file: its name, the key and the size of its storage, its offset there, and its length.
    struct View(&'static str, &'static str, usize, usize, usize);

    /// An archive in the form of `torch.save`, with these tensors and with storages of zeros, ones, ….
    fn saved(views: &[View], storages: &[(&str, usize)]) -> Vec<u8> {
        let text = |text: &str| [b"X".as_slice(), &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
        let integer = |number: usize| [b"J".as_slice(), &(number as i32).to_le_bytes()].concat();
        let mut pickle = b"\x80\x02}".to_vec();
        for View(name, key, numel, offset, length) in views {
            pickle.extend([text(name), b"ctorch._utils\n_rebuild_tensor_v2\n((".to_vec()].concat());
            pickle.extend([text("storage"), b"ctorch\nFloatStorage\n".to_vec(), text(key), text("cpu")].concat());
            pickle
                .extend([integer(*numel), b"tQ".to_vec(), integer(*offset), b"(".to_vec(), integer(*length)].concat());
            pickle.extend([b"t(".to_vec(), integer(1), b"ttRs".to_vec()].concat());
        }
        pickle.push(b'.');
        let mut archive = ZipWriter::new(std::io::Cursor::new(Vec::new()));
        let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        archive.start_file("a/data.pkl", stored).unwrap();
        archive.write_all(&pickle).unwrap();
        for (number, (key, numel)) in storages.iter().enumerate() {
            archive.start_file(format!("a/data/{key}"), stored).unwrap();
            archive.write_all(&(number as f32).to_le_bytes().repeat(*numel)).unwrap();
        }
        archive.finish().unwrap().into_inner()
    }

    fn read(bytes: &[u8]) -> Result<Vec<(String, Tensor)>, String> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        let mut tensors = Vec::new();
        let mut take = |name: &str, tensor: Tensor| {
            tensors.push((name.to_owned(), tensor));
            Ok(())
        };
        for_each(file, &mut take).map_err(|error| error.to_string())?;
        Ok(tensors)
    }

    #[test]
    fn storages_that_are_one_member_of_the_file_are_refused() {
        let views = [View("a", "0", 1000, 0, 1), View("b", "1", 1000, 0, 1)];
        let mut bytes = saved(&views, &[("0", 1000), ("1", 1000)]);
        assert_eq!(read(&bytes).unwrap().len(), 2);
        // The directory's entry of the second storage points to the first one.
        let entries: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at..].starts_with(b"PK\x01\x02")).collect();
        let place: [u8; 4] = bytes[entries[1] + 42..entries[1] + 46].try_into().unwrap();
        bytes[entries[2] + 42..entries[2] + 46].copy_from_slice(&place);
        let error = read(&bytes).unwrap_err();
        assert!(error.contains("its members a/data/") && error.contains("torch.save writes no such file"), "{error}");
    }

    #[test]
    fn small_views_do_not_keep_their_storage() {
        let views = [View("first", "0", 1000, 0, 10), View("last", "0", 1000, 990, 10), View("whole", "1", 6, 0, 6)];
        let found = read(&saved(&views, &[("0", 1000), ("1", 6)])).unwrap();
        let [first, last, whole] = &found[..] else { panic!("{found:?}") };
        // Of one storage, they would be 990 numbers of 4 bytes apart.
        let place = |tensor: &Tensor| tensor.data_ptr() as isize;
        assert_ne!(place(&last.1) - place(&first.1), 990 * 4);
        assert_eq!((first.1.size(), last.1.size()), (vec![10], vec![10]));
        assert_eq!(Vec::<f32>::try_from(&whole.1).unwrap(), [1.0; 6]);
    }

    #[test]
    fn a_large_description_is_refused_by_its_size() {
        let mut bytes = saved(&[View("a", "0", 1, 0, 1)], &[("0", 1)]);
        let entry = (0..bytes.len()).find(|&at| bytes[at..].starts_with(b"PK\x01\x02")).unwrap();
        bytes[entry + 20..entry + 24].copy_from_slice(&(200u32 << 20).to_le_bytes());
        let error = read(&bytes).unwrap_err();
        assert!(error.contains("its member a/data.pkl claims 209715200 bytes"), "{error}");
    }
}
