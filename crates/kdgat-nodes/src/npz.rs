//! Reader of `.npz` archives: zip files of NumPy arrays in the `.npy` format, versions 1 to 3.
//!
//! Values are decoded in blocks and handed over one by one, so that a caller needs no memory besides its own result.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use kdgat_base::archive::{self, ArchiveError};
use zip::ZipArchive;
use zip::read::ZipFile;
use zip::result::ZipError;

use crate::NodesError;
use crate::npy::{Dtype, Header, description, floats, integers};
use crate::sources::Mismatch;

/// Extension of an array's file in the archive.
const ENDING: &str = ".npy";
/// Bytes decoded at a time: a multiple of every element's size.
const BLOCK_BYTES: usize = 1 << 16;
/// Bytes that one byte of the deflate format unpacks to at most (RFC 1951: 258 bytes for two bits).
pub const MOST_INFLATION: u64 = 1032;

/// An open archive.
pub struct Npz {
    path: PathBuf,
    archive: ZipArchive<BufReader<File>>,
    /// Names of the arrays, ascending.
    names: Vec<String>,
}

impl Npz {
    /// Opens an archive.
    ///
    /// # Errors
    /// A file that cannot be read or is no complete zip archive.
    pub fn open(path: &Path) -> Result<Self, NodesError> {
        let file = File::open(path).map_err(NodesError::io("open", path))?;
        let archive = archive::open(file).map_err(|error| not_an_archive(path, error))?;
        let mut names: Vec<String> =
            archive.file_names().filter_map(|name| name.strip_suffix(ENDING)).map(str::to_owned).collect();
        names.sort_unstable();
        Ok(Self { path: path.to_owned(), archive, names })
    }

    /// Names of the arrays, ascending.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// True if there is an array of this name.
    pub fn has(&self, name: &str) -> bool {
        self.names.iter().any(|found| found == name)
    }

    /// Shape of an array.
    ///
    /// # Errors
    /// A missing or unreadable array, one in Fortran order, or one of an unsupported type.
    pub fn shape(&mut self, name: &str) -> Result<Vec<usize>, NodesError> {
        self.member(name).map(|(header, _)| header.shape)
    }

    /// Shape of an array with a known number of dimensions.
    ///
    /// # Errors
    /// Those of [`shape`](Self::shape), or another number of dimensions.
    pub fn dimensions<const N: usize>(&mut self, name: &str) -> Result<[usize; N], NodesError> {
        let shape = self.shape(name)?;
        let wrong = |shape: Vec<usize>| self.error(name, format!("shape {shape:?}"), format!("{N} dimension(s)"));
        shape.try_into().map_err(wrong)
    }

    /// Calls `each` with the position, in C order, and the value of every element of an array of integers or booleans.
    ///
    /// # Errors
    /// Those of [`shape`](Self::shape), floating-point elements, or an error of `each`.
    pub fn each_integer(
        &mut self,
        name: &str,
        mut each: impl FnMut(usize, i64) -> Result<(), Mismatch>,
    ) -> Result<(), NodesError> {
        let mut index = 0;
        let mut counted = |value| {
            each(index, value)?;
            index += 1;
            Ok(())
        };
        let done = self.each_block(name, |dtype, bytes| integers(dtype, bytes, &mut counted))?;
        done.map_err(|mismatch| mismatch.at(&self.path, format!(", array {name}[{index}]")))
    }

    /// Calls `each` with the position, in C order, and the value of every element of an array of any supported type.
    ///
    /// # Errors
    /// Those of [`shape`](Self::shape), or an error of `each`.
    pub fn each_float(
        &mut self,
        name: &str,
        mut each: impl FnMut(usize, f64) -> Result<(), Mismatch>,
    ) -> Result<(), NodesError> {
        let mut index = 0;
        let mut counted = |value| {
            each(index, value)?;
            index += 1;
            Ok(())
        };
        let done = self.each_block(name, |dtype, bytes| floats(dtype, bytes, &mut counted))?;
        done.map_err(|mismatch| mismatch.at(&self.path, format!(", array {name}[{index}]")))
    }

    /// Reads the elements of an array of integers or booleans from the position `from`, in C order, in blocks.
    ///
    /// # Errors
    /// Those of [`shape`](Self::shape), or floating-point elements.
    pub fn integers(&mut self, name: &str, from: usize) -> Result<Integers<'_>, NodesError> {
        let path = self.path.clone();
        let (Header { dtype, shape }, mut member) = self.member(name)?;
        if matches!(dtype, Dtype::F16 | Dtype::F32 | Dtype::F64) {
            let place = format!(", array {name}");
            return Err(NodesError::invalid(&path, place, "floating-point numbers", "integers"));
        }
        let skipped = (from * dtype.bytes()) as u64;
        let done = io::copy(&mut (&mut member).take(skipped), &mut io::sink());
        if done.map_err(|error| unreadable(&path, name, error))? != skipped {
            return Err(unreadable(&path, name, io::ErrorKind::UnexpectedEof.into()));
        }
        let left = shape.iter().product::<usize>() - from;
        Ok(Integers { path, name: name.to_owned(), dtype, member, index: from, left, buffer: Vec::new() })
    }

    /// Reserves memory for what is made of an array: `count` values, a number that the file says itself.
    ///
    /// # Errors
    /// Less memory than that.
    pub fn reserve<T>(&self, name: &str, count: usize) -> Result<Vec<T>, NodesError> {
        let mut values = Vec::new();
        let reserved = values.try_reserve_exact(count);
        let found = || format!("{count} values of {} bytes", size_of::<T>());
        reserved.map_err(|_| self.error(name, found(), "an array that fits into memory"))?;
        Ok(values)
    }

    /// An error about an array.
    pub fn error(&self, name: &str, found: impl Into<String>, expected: impl Into<String>) -> NodesError {
        NodesError::invalid(&self.path, format!(", array {name}"), found, expected)
    }

    /// The outer error is the archive's, the inner one that of `each`.
    fn each_block(
        &mut self,
        name: &str,
        mut each: impl FnMut(Dtype, &[u8]) -> Result<(), Mismatch>,
    ) -> Result<Result<(), Mismatch>, NodesError> {
        let path = self.path.clone();
        let (header, mut member) = self.member(name)?;
        let failed = |error| unreadable(&path, name, error);
        // `member` has checked that the product fits.
        let mut left = header.shape.iter().product::<usize>() * header.dtype.bytes();
        let mut buffer = vec![0; BLOCK_BYTES.min(left)];
        while left > 0 {
            let block = &mut buffer[..BLOCK_BYTES.min(left)];
            member.read_exact(block).map_err(failed)?;
            if let Err(mismatch) = each(header.dtype, block) {
                return Ok(Err(mismatch));
            }
            left -= block.len();
        }
        // The archive compares the checksum when it reaches the end.
        let at_end = member.read(&mut [0]).map_err(failed)? == 0;
        drop(member);
        match at_end {
            true => Ok(Ok(())),
            false => Err(self.error(name, "more bytes than its shape says", "as many as its shape says")),
        }
    }

    /// Opens an array, reads its description, and checks that its size is that of its elements.
    fn member(&mut self, name: &str) -> Result<(Header, ZipFile<'_, BufReader<File>>), NodesError> {
        let Self { path, archive, names } = self;
        let error =
            |found: String, expected: &str| NodesError::invalid(path, format!(", array {name}"), found, expected);
        let mut member = match archive.by_name(&format!("{name}{ENDING}")) {
            Ok(member) => member,
            Err(ZipError::FileNotFound) => {
                let found = format!("no array {name} among {}", names.join(", "));
                return Err(NodesError::invalid(path, "", found, format!("an array {name}")));
            }
            Err(ZipError::Io(source)) => return Err(unreadable(path, name, source)),
            Err(other) => return Err(error(format!("unreadable ({other})"), "a stored or deflated array")),
        };
        let (description, length) = description(&mut member).map_err(|source| unreadable(path, name, source))?;
        let header = Header::parse(&description).map_err(|Mismatch { found, expected }| error(found, &expected))?;
        let elements = header.shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
        let bytes = elements.and_then(|elements| elements.checked_mul(header.dtype.bytes()));
        let held = member.size().saturating_sub(length as u64);
        if bytes.is_none_or(|bytes| bytes as u64 != held) {
            let found = format!("{held} bytes of elements for shape {:?}", header.shape);
            return Err(error(found, "as many bytes as the shape says"));
        }
        // Callers reserve memory by the shape.
        if member.size() > member.compressed_size().saturating_mul(MOST_INFLATION).saturating_add(BLOCK_BYTES as u64) {
            let found = format!("{} bytes in {} compressed ones", member.size(), member.compressed_size());
            return Err(error(found, "a size that compression can reach"));
        }
        Ok((header, member))
    }
}

/// The elements of an array of integers, read in blocks.
pub struct Integers<'a> {
    path: PathBuf,
    name: String,
    dtype: Dtype,
    member: ZipFile<'a, BufReader<File>>,
    /// Position of the next element.
    index: usize,
    left: usize,
    buffer: Vec<u8>,
}

impl Integers<'_> {
    /// Appends what `convert` makes of the next elements, at most `most` of them, to `values`.
    ///
    /// # Errors
    /// A damaged archive, or an error of `convert`.
    pub fn next<T>(
        &mut self,
        most: usize,
        values: &mut Vec<T>,
        convert: impl Fn(i64) -> Result<T, Mismatch>,
    ) -> Result<(), NodesError> {
        let Self { path, name, dtype, member, index, left, buffer } = self;
        let count = most.min(*left);
        buffer.resize(count * dtype.bytes(), 0);
        member.read_exact(buffer).map_err(|error| unreadable(path, name, error))?;
        let converted = integers(*dtype, buffer, &mut |value| {
            values.push(convert(value)?);
            *index += 1;
            Ok(())
        });
        converted.map_err(|mismatch| mismatch.at(path, format!(", array {name}[{index}]")))?;
        *left -= count;
        if *left > 0 {
            return Ok(());
        }
        // The archive compares the checksum when it reaches the end.
        match member.read(&mut [0]).map_err(|error| unreadable(path, name, error))? {
            0 => Ok(()),
            _ => {
                let (found, expected) = ("more bytes than its shape says", "as many as its shape says");
                Err(NodesError::invalid(path, format!(", array {name}"), found, expected))
            }
        }
    }
}

fn not_an_archive(path: &Path, error: ArchiveError) -> NodesError {
    match error {
        ArchiveError::Io(source) => NodesError::io("read", path)(source),
        other => NodesError::invalid(
            path,
            "",
            format!("no readable zip archive ({other})"),
            "a complete .npz file: copy or download it again",
        ),
    }
}

fn unreadable(path: &Path, name: &str, error: io::Error) -> NodesError {
    // Errors of decompression and of the checksum have no number.
    if error.raw_os_error().is_some() {
        return NodesError::io("read", path)(error);
    }
    let found = format!("unreadable ({error})");
    NodesError::invalid(path, format!(", array {name}"), found, "a complete .npz file: copy or download it again")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sources::testing::{Npy, write_npz, write_zip};

    fn written(arrays: &[(&str, Npy)]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("arrays.npz");
        write_npz(&path, arrays);
        (folder, path)
    }

    fn floats_of(npz: &mut Npz, name: &str) -> Result<Vec<f64>, NodesError> {
        let mut values = Vec::new();
        npz.each_float(name, |at, value| {
            assert_eq!(at, values.len());
            values.push(value);
            Ok(())
        })?;
        Ok(values)
    }

    fn integers_of(npz: &mut Npz, name: &str) -> Result<Vec<i64>, NodesError> {
        let mut values = Vec::new();
        npz.each_integer(name, |_, value| {
            values.push(value);
            Ok(())
        })?;
        Ok(values)
    }

    #[test]
    fn every_type_and_version_is_read() {
        let array = |descr, bytes: &[u8]| Npy::new(descr, 2, bytes.to_vec());
        let version = |version, array: Npy| Npy { version, ..array };
        let (_folder, path) = written(&[
            ("b1", array("'|b1'", &[0, 1])),
            ("i1", array("'|i1'", &[0xff, 2])),
            ("u1", array("'|u1'", &[0xff, 2])),
            ("i2", version(2, array("'<i2'", &[0xfe, 0xff, 2, 1]))),
            ("u2", version(3, array("'<u2'", &[0xfe, 0xff, 2, 1]))),
            ("i4", Npy::i4(&[-5, 7])),
            ("u4", array("'<u4'", &[0xff, 0xff, 0xff, 0xff, 7, 0, 0, 0])),
            ("i8", Npy::i8(&[i64::MIN, 7])),
            ("u8", array("'<u8'", &[7, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f])),
            ("f2", Npy::f2(&[-0.5, 65504.0])),
            ("f4", Npy::f4(&[0.25, -1e30])),
            ("f8", Npy::f8(&[1e300, -0.125])),
        ]);
        let mut npz = Npz::open(&path).unwrap();
        for (name, expected) in [
            ("b1", [0, 1]),
            ("i1", [-1, 2]),
            ("u1", [255, 2]),
            ("i2", [-2, 258]),
            ("u2", [65534, 258]),
            ("i4", [-5, 7]),
            ("u4", [4_294_967_295, 7]),
            ("i8", [i64::MIN, 7]),
            ("u8", [7, i64::MAX]),
        ] {
            assert_eq!(integers_of(&mut npz, name).unwrap(), expected, "{name}");
            assert_eq!(floats_of(&mut npz, name).unwrap(), expected.map(|value| value as f64), "{name}");
        }
        for (name, expected) in [("f2", [-0.5, 65504.0]), ("f4", [0.25, -1e30_f32 as f64]), ("f8", [1e300, -0.125])] {
            assert_eq!(floats_of(&mut npz, name).unwrap(), expected, "{name}");
            let error = integers_of(&mut npz, name).unwrap_err().to_string();
            assert!(error.contains("a floating-point number, expected integers"), "{error}");
        }
        assert_eq!(npz.names().len(), 12);
        assert!(npz.has("f8") && !npz.has("f"));
    }

    #[test]
    fn arrays_that_cannot_be_read_are_named() {
        let large = Npy::new("'<u8'", 1, vec![0xff; 8]);
        let (_folder, path) = written(&[
            ("fortran", Npy { fortran: true, ..Npy::f4(&[0.0; 6]).shaped(&[2, 3]) }),
            ("object", Npy::new("'|O'", 1, vec![0; 8])),
            ("text", Npy::text(3)),
            ("big", Npy::new("'>i4'", 1, vec![0; 4])),
            ("fields", Npy::new("[('a', '<f4'), ('b', '<i4')]", 1, vec![0; 8])),
            ("short", Npy::f4(&[0.0]).shaped(&[2])),
            ("long", Npy::f4(&[0.0; 3]).shaped(&[2])),
            ("huge", Npy::f4(&[0.0]).shaped(&[usize::MAX, 4])),
            ("version", Npy { version: 4, ..Npy::f4(&[0.0]) }),
            ("large", large),
        ]);
        let mut npz = Npz::open(&path).unwrap();
        for (name, expected) in [
            ("fortran", "array fortran: Fortran order, expected C order: save np.ascontiguousarray(array)"),
            ("object", "array object: dtype '|O', expected little-endian"),
            ("text", "array text: dtype '<U2', expected little-endian"),
            ("big", "array big: dtype '>i4', expected little-endian"),
            ("fields", "array fields: elements with several fields"),
            ("short", "array short: 4 bytes of elements for shape [2]"),
            ("long", "array long: 12 bytes of elements for shape [2]"),
            ("huge", "array huge: 4 bytes of elements for shape [18446744073709551615, 4]"),
            ("version", "array version: unreadable (version 4 of the .npy format"),
            ("large", "array large[0]: 18446744073709551615, expected an integer below 2^63"),
            ("absent", "no array absent among big, fields, fortran, huge"),
        ] {
            let error = integers_of(&mut npz, name).unwrap_err().to_string();
            assert!(error.contains("arrays.npz") && error.contains(expected), "{name}: {error}");
        }
        let error = npz.dimensions::<1>("fortran").unwrap_err().to_string();
        assert!(error.contains("Fortran order"), "{error}");
        let error = npz.dimensions::<2>("large").unwrap_err().to_string();
        assert!(error.contains("shape [1], expected 2 dimension(s)"), "{error}");
    }

    #[test]
    fn damaged_archives_are_refused() {
        let (_folder, path) = written(&[("a", Npy::i4(&[1; 500])), ("b", Npy::i4(&(0..500).collect::<Vec<_>>()))]);
        let whole = std::fs::read(&path).unwrap();
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let mut npz = Npz::open(&path)?;
            Ok::<_, NodesError>((integers_of(&mut npz, "a")?, integers_of(&mut npz, "b")?))
        };
        let expected = read(&whole).unwrap();
        for length in 0..whole.len() {
            let error = read(&whole[..length]).unwrap_err().to_string();
            assert!(error.contains("arrays.npz") && error.contains("expected a complete .npz file"), "{error}");
        }
        // A flipped bit is an error, or lies where the archive has no content, such as times.
        for position in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[position] ^= 0x10;
            if let Ok(found) = read(&flipped) {
                assert_eq!(found, expected, "byte {position}");
            }
        }
    }

    #[test]
    fn arrays_larger_than_the_file_are_refused() {
        // 2^30 entries by the description and the directory, and 8 bytes.
        let claimed = Npy::new("'|u1'", 1 << 30, vec![0; 8]);
        let content = claimed.to_bytes();
        let (_folder, path) = written(&[("a", claimed)]);
        let mut bytes = std::fs::read(&path).unwrap();
        let entry = bytes.windows(4).rposition(|bytes| bytes == b"PK\x01\x02").unwrap();
        let size = ((content.len() - 8 + (1 << 30)) as u32).to_le_bytes();
        bytes[entry + 20..entry + 24].copy_from_slice(&size);
        bytes[entry + 24..entry + 28].copy_from_slice(&size);
        std::fs::write(&path, bytes).unwrap();
        let error = Npz::open(&path).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("its member a.npy claims 1073741") && error.contains("copy or download it"), "{error}");
    }

    #[test]
    fn memory_that_an_array_does_not_get_is_an_error() {
        let (_folder, path) = written(&[("a", Npy::i4(&[1]))]);
        let npz = Npz::open(&path).unwrap();
        assert!(npz.reserve::<u64>("a", 1000).unwrap().capacity() >= 1000);
        for count in [1 << 58, usize::MAX] {
            let error = npz.reserve::<u64>("a", count).unwrap_err();
            let text = format!("array a: {count} values of 8 bytes, expected an array that fits into memory");
            assert!(error.is_input() && error.to_string().contains(&text), "{error}");
        }
    }

    #[test]
    fn files_that_are_no_arrays_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("arrays.npz");
        let description = |text: &str| {
            let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
            bytes.extend((text.len() as u16).to_le_bytes());
            bytes.extend(text.as_bytes());
            bytes
        };
        let contents = [
            b"text, not an array".to_vec(),
            description(""),
            description("{'descr': '<f4', 'fortran_order': False, 'shape': (0,)"),
            description("{'descr': '<f4', 'fortran_order': False, 'shape': 3, }"),
            description("{'descr': '<f4', 'fortran_order': False, 'shape': (-3,), }"),
            description("{'descr': '<f4', 'fortran_order': 0, 'shape': (0,), }"),
            description("{'descr': '<f4', 'shape': (0,), }"),
            b"\x93NUMPY\x02\x00\xff\xff\xff\xff".to_vec(),
        ];
        for content in contents {
            write_zip(&path, &[("a.npy".to_owned(), content.clone())]);
            let found = Npz::open(&path).unwrap().shape("a");
            // The third one lacks no value.
            assert_eq!(found.is_ok(), content.ends_with(b"(0,)"), "{content:?}: {found:?}");
        }
        std::fs::write(&path, "text").unwrap();
        assert!(Npz::open(&path).is_err());
        assert!(matches!(Npz::open(&folder.path().join("absent.npz")), Err(NodesError::Io { .. })));
    }

    proptest! {
        #[test]
        fn values_return_bit_by_bit(values in prop::collection::vec(any::<f64>(), 0..20_000)) {
            let (_folder, path) = written(&[("first", Npy::f8(&values)), ("second", Npy::f8(&values))]);
            let mut npz = Npz::open(&path).unwrap();
            for name in ["first", "second"] {
                let found = floats_of(&mut npz, name).unwrap();
                let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                prop_assert_eq!(bits(&found), bits(&values));
            }
        }
    }
}
