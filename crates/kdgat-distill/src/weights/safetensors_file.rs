//! Reads safetensors files one tensor at a time.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::Arc;

use kdgat_torch::{mapped, view};
use memmap2::Mmap;
use safetensors::tensor::{Dtype, Metadata};
use tch::{Device, Kind, TchError, Tensor};

/// Bytes of the header's length, with which a file begins.
const LENGTH_BYTES: u64 = 8;
/// The format's limit for the header, in bytes.
const MOST_HEADER_BYTES: u64 = 100_000_000;

/// Passes each tensor of the file to `take`, ascending by name. Only one is in memory at a time; with `maps`, a tensor is the file's bytes if
/// they are aligned to its elements.
pub(super) fn for_each(
    file: &mut File,
    maps: bool,
    take: &mut dyn FnMut(&str, Tensor) -> Result<(), TchError>,
) -> Result<(), TchError> {
    let (metadata, start) = header(file)?;
    let map = if maps { Some(Arc::new(mapped::map(file)?)) } else { None };
    let mut names = metadata.offset_keys();
    names.sort_unstable();
    for name in names {
        let info = metadata.info(&name).ok_or_else(|| damaged(format!("tensor '{name}' is not in its header")))?;
        let kind = kind_of(info.dtype);
        let kind =
            kind.ok_or_else(|| damaged(format!("tensor '{name}' has type {:?}, which is not supported", info.dtype)))?;
        let (begin, end) = info.data_offsets;
        let shape = info.shape.iter().map(|&size| i64::try_from(size).ok()).collect::<Option<Vec<i64>>>();
        let elements = info.shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
        let bytes = elements.and_then(|elements| elements.checked_mul(kind.elt_size_in_bytes()));
        let (Some(shape), true) = (shape, bytes == Some(end - begin)) else {
            let text =
                format!("tensor '{name}' of shape {:?} and type {:?} has {} bytes", info.shape, kind, end - begin);
            return Err(damaged(text));
        };
        let place = start as usize + begin..start as usize + end;
        if let Some(tensor) = map.as_ref().and_then(|map| over(map, place, &shape, kind)) {
            take(&name, tensor)?;
            continue;
        }
        let mut bytes = Tensor::f_empty([(end - begin) as i64], (Kind::Uint8, Device::Cpu))?;
        file.seek(SeekFrom::Start(start + begin as u64))?;
        file.read_exact(view::write("the bytes of a tensor", &mut bytes)?)?;
        take(&name, bytes.f_view_dtype(kind)?.f_view(shape.as_slice())?)?;
    }
    Ok(())
}

/// A tensor over bytes of the map; `None` for elements that are not aligned there, or of a type that maps do not have.
fn over(map: &Arc<Mmap>, place: Range<usize>, shape: &[i64], kind: Kind) -> Option<Tensor> {
    match kind {
        Kind::Float => mapped::tensor_over::<f32>(map, place, shape).ok(),
        Kind::Int64 => mapped::tensor_over::<i64>(map, place, shape).ok(),
        _ => None,
    }
}

/// Reads the header and the offset of the first tensor. Checks that the tensors are contiguous up to the end of the file.
fn header(file: &mut File) -> Result<(Metadata, u64), TchError> {
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(0))?;
    let mut word = [0; LENGTH_BYTES as usize];
    if length < LENGTH_BYTES {
        return Err(damaged(format!("it has {length} bytes, which is too short for a safetensors file")));
    }
    file.read_exact(&mut word)?;
    let header_bytes = u64::from_le_bytes(word);
    let start = LENGTH_BYTES.saturating_add(header_bytes);
    if header_bytes > MOST_HEADER_BYTES || start > length {
        return Err(damaged(format!("its header has {header_bytes} bytes, the file {length}")));
    }
    let mut text = vec![0; header_bytes as usize];
    file.read_exact(&mut text)?;
    let metadata: Metadata =
        serde_json::from_slice(&text).map_err(|error| damaged(format!("its header cannot be read: {error}")))?;
    let mut next = 0;
    for name in metadata.offset_keys() {
        let (begin, end) = metadata.info(&name).map(|info| info.data_offsets).unwrap_or_default();
        if begin != next || end < begin {
            return Err(damaged(format!("tensor '{name}' is at bytes {begin} to {end}, expected a start at {next}")));
        }
        next = end;
    }
    if start.checked_add(next as u64) != Some(length) {
        return Err(damaged(format!("its tensors take {next} bytes after byte {start}, the file has {length}")));
    }
    Ok((metadata, start))
}

fn damaged(text: String) -> TchError {
    TchError::FileFormat(text)
}

fn kind_of(dtype: Dtype) -> Option<Kind> {
    Some(match dtype {
        Dtype::BOOL => Kind::Bool,
        Dtype::U8 => Kind::Uint8,
        Dtype::I8 => Kind::Int8,
        Dtype::I16 => Kind::Int16,
        Dtype::I32 => Kind::Int,
        Dtype::I64 => Kind::Int64,
        Dtype::BF16 => Kind::BFloat16,
        Dtype::F16 => Kind::Half,
        Dtype::F32 => Kind::Float,
        Dtype::F64 => Kind::Double,
        _ => return None,
    })
}
