//! Arrays in NumPy's `.npy` format, versions 1 to 3: their description and their elements.

use std::io::{self, Read};

use half::f16;

use crate::npz::Mismatch;

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Largest description of an array. NumPy itself refuses to read one of more than 10,000 bytes.
const LONGEST_DESCRIPTION: usize = 1 << 16;

/// Type of an array's elements; all are little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    Bool,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F16,
    F32,
    F64,
}

/// Description of an array.
pub struct Header {
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its dimensions; none for a single number.
    pub shape: Vec<usize>,
}

/// The text that describes an array, and the bytes up to its elements.
pub fn description(member: &mut impl Read) -> io::Result<(String, usize)> {
    let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    let mut start = [0; 8];
    member.read_exact(&mut start)?;
    if &start[..6] != MAGIC {
        return Err(invalid("it does not begin as an .npy file".to_owned()));
    }
    let mut length = [0; 4];
    let length_bytes = match start[6] {
        1 => 2,
        2 | 3 => 4,
        version => return Err(invalid(format!("version {version} of the .npy format, expected 1, 2 or 3"))),
    };
    member.read_exact(&mut length[..length_bytes])?;
    let length = u32::from_le_bytes(length) as usize;
    if length > LONGEST_DESCRIPTION {
        return Err(invalid(format!("a description of {length} bytes")));
    }
    let mut text = vec![0; length];
    member.read_exact(&mut text)?;
    let text = String::from_utf8(text).map_err(|_| invalid("a description that is no text".to_owned()))?;
    Ok((text, start.len() + length_bytes + length))
}

impl Header {
    /// Parses a description such as `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }`.
    pub fn parse(text: &str) -> Result<Self, Mismatch> {
        let broken = || Mismatch::new(format!("description {text:?}"), "descr, fortran_order and shape");
        let field = |name: &str| {
            let rest = text.split_once(&format!("'{name}':")).ok_or_else(broken)?.1;
            Ok::<&str, Mismatch>(rest.trim_start())
        };
        let descr = field("descr")?;
        let quoted = descr.strip_prefix('\'').and_then(|rest| rest.split_once('\'')).map(|(name, _)| name);
        let dtype = quoted.and_then(Dtype::parse).ok_or_else(|| {
            let found = quoted.map_or("elements with several fields".to_owned(), |name| format!("dtype '{name}'"));
            Mismatch::new(found, "little-endian integers, booleans or floating-point numbers")
        })?;
        match field("fortran_order")? {
            rest if rest.starts_with("False") => {}
            rest if rest.starts_with("True") => {
                return Err(Mismatch::new("Fortran order", "C order: save np.ascontiguousarray(array)"));
            }
            _ => return Err(broken()),
        }
        let shape = field("shape")?.strip_prefix('(').and_then(|rest| rest.split_once(')')).ok_or_else(broken)?.0;
        // NumPy under Python 2 wrote "3L".
        let sizes = shape.split(',').map(|size| size.trim().trim_end_matches('L')).filter(|size| !size.is_empty());
        let shape = sizes.map(str::parse).collect::<Result<Vec<usize>, _>>().map_err(|_| broken())?;
        Ok(Self { dtype, shape })
    }
}

impl Dtype {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "|b1" => Self::Bool,
            "|i1" => Self::I8,
            "<i2" => Self::I16,
            "<i4" => Self::I32,
            "<i8" => Self::I64,
            "|u1" => Self::U8,
            "<u2" => Self::U16,
            "<u4" => Self::U32,
            "<u8" => Self::U64,
            "<f2" => Self::F16,
            "<f4" => Self::F32,
            "<f8" => Self::F64,
            _ => return None,
        })
    }

    /// Size of an element.
    pub fn bytes(self) -> usize {
        match self {
            Self::Bool | Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 | Self::F16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }
}

/// Hands over whole elements as integers.
///
/// # Errors
/// An element of another type or too large, and those of `each`.
pub fn integers(
    dtype: Dtype,
    bytes: &[u8],
    each: &mut impl FnMut(i64) -> Result<(), Mismatch>,
) -> Result<(), Mismatch> {
    match dtype {
        Dtype::Bool | Dtype::U8 => decode(bytes, |[byte]: [u8; 1]| each(byte.into())),
        Dtype::I8 => decode(bytes, |bytes| each(i8::from_le_bytes(bytes).into())),
        Dtype::I16 => decode(bytes, |bytes| each(i16::from_le_bytes(bytes).into())),
        Dtype::I32 => decode(bytes, |bytes| each(i32::from_le_bytes(bytes).into())),
        Dtype::I64 => decode(bytes, |bytes| each(i64::from_le_bytes(bytes))),
        Dtype::U16 => decode(bytes, |bytes| each(u16::from_le_bytes(bytes).into())),
        Dtype::U32 => decode(bytes, |bytes| each(u32::from_le_bytes(bytes).into())),
        Dtype::U64 => decode(bytes, |bytes| {
            let value = u64::from_le_bytes(bytes);
            let small = i64::try_from(value);
            each(small.map_err(|_| Mismatch::new(value.to_string(), "an integer below 2^63"))?)
        }),
        Dtype::F16 | Dtype::F32 | Dtype::F64 => Err(Mismatch::new("a floating-point number", "integers")),
    }
}

/// Hands over whole elements, integers too, as floating-point numbers.
///
/// # Errors
/// Those of `each`.
pub fn floats(dtype: Dtype, bytes: &[u8], each: &mut impl FnMut(f64) -> Result<(), Mismatch>) -> Result<(), Mismatch> {
    match dtype {
        Dtype::F16 => decode(bytes, |bytes| each(f16::from_le_bytes(bytes).to_f64())),
        Dtype::F32 => decode(bytes, |bytes| each(f32::from_le_bytes(bytes).into())),
        Dtype::F64 => decode(bytes, |bytes| each(f64::from_le_bytes(bytes))),
        _ => integers(dtype, bytes, &mut |value| each(value as f64)),
    }
}

fn decode<const N: usize>(bytes: &[u8], mut each: impl FnMut([u8; N]) -> Result<(), Mismatch>) -> Result<(), Mismatch> {
    // A block holds whole elements.
    bytes.as_chunks::<N>().0.iter().try_for_each(|&element| each(element))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_of_other_programs_are_parsed() {
        for text in [
            "{'descr': '<i4', 'fortran_order': False, 'shape': (3, 2), }   \n",
            "{'descr': '<i4', 'fortran_order': False, 'shape': (3L, 2L), }",
            "{'shape': (3,2), 'fortran_order': False, 'descr': '<i4'}",
        ] {
            let header = Header::parse(text).unwrap_or_else(|mismatch| panic!("{text}: {}", mismatch.found));
            assert_eq!((header.dtype, &header.shape[..]), (Dtype::I32, &[3, 2][..]), "{text}");
        }
        let scalar = Header::parse("{'descr': '<i8', 'fortran_order': False, 'shape': (), }");
        assert!(scalar.is_ok_and(|header| header.shape.is_empty()));
    }
}
