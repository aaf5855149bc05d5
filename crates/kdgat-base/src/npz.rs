//! Reader of `.npz` archives: zip files of NumPy arrays in the `.npy` format, versions 1 to 3.
//!
//! Values are decoded in blocks and handed over one by one, so that a caller needs no memory besides its own result.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use thiserror::Error;
use zip::ZipArchive;
use zip::read::ZipFile;
use zip::result::ZipError;

use crate::archive::{self, ArchiveError};
use crate::npy::{Dtype, Header, description, floats, integers};

/// Extension of an array's file in the archive.
const ENDING: &str = ".npy";
/// Bytes decoded at a time: a multiple of every element's size.
const BLOCK_BYTES: usize = 1 << 16;
/// Bytes that one byte of the deflate format unpacks to at most (RFC 1951: 258 bytes for two bits).
pub const MOST_INFLATION: u64 = 1032;

/// A value in a file and the requirement that it misses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The text or value found.
    pub found: String,
    /// The requirement.
    pub expected: String,
}

impl Mismatch {
    /// A value and the requirement that it misses.
    pub fn new(found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { found: found.into(), expected: expected.into() }
    }
}

/// An error of reading an archive of arrays.
#[derive(Debug, Error)]
pub enum NpzError {
    /// The file cannot be read.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The attempted action, as in "cannot {action} PATH".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file holds something else than required.
    #[error("{}{place}: {found}, expected {expected}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The array, as in ", array coords", or empty.
        place: String,
        /// The text or value found.
        found: String,
        /// The requirement.
        expected: String,
    },
}

impl NpzError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }

    fn invalid(path: &Path, place: impl Into<String>, found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self::Invalid { path: path.to_owned(), place: place.into(), found: found.into(), expected: expected.into() }
    }

    fn at(mismatch: Mismatch, path: &Path, place: String) -> Self {
        Self::invalid(path, place, mismatch.found, mismatch.expected)
    }
}

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
    pub fn open(path: &Path) -> Result<Self, NpzError> {
        let file = File::open(path).map_err(NpzError::io("open", path))?;
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
    pub fn shape(&mut self, name: &str) -> Result<Vec<usize>, NpzError> {
        self.member(name).map(|(header, _)| header.shape)
    }

    /// Shape of an array with a known number of dimensions.
    ///
    /// # Errors
    /// Those of [`shape`](Self::shape), or another number of dimensions.
    pub fn dimensions<const N: usize>(&mut self, name: &str) -> Result<[usize; N], NpzError> {
        let shape = self.shape(name)?;
        let wrong = |shape: Vec<usize>| self.fault(name, format!("shape {shape:?}"), format!("{N} dimension(s)"));
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
    ) -> Result<(), NpzError> {
        let mut index = 0;
        let mut counted = |value| {
            each(index, value)?;
            index += 1;
            Ok(())
        };
        let done = self.each_block(name, |dtype, bytes| integers(dtype, bytes, &mut counted))?;
        done.map_err(|mismatch| NpzError::at(mismatch, &self.path, format!(", array {name}[{index}]")))
    }

    /// Calls `each` with the position, in C order, and the value of every element of an array of any supported type.
    ///
    /// # Errors
    /// Those of [`shape`](Self::shape), or an error of `each`.
    pub fn each_float(
        &mut self,
        name: &str,
        mut each: impl FnMut(usize, f64) -> Result<(), Mismatch>,
    ) -> Result<(), NpzError> {
        let mut index = 0;
        let mut counted = |value| {
            each(index, value)?;
            index += 1;
            Ok(())
        };
        let done = self.each_block(name, |dtype, bytes| floats(dtype, bytes, &mut counted))?;
        done.map_err(|mismatch| NpzError::at(mismatch, &self.path, format!(", array {name}[{index}]")))
    }

    /// Reads the elements of an array of integers or booleans from the position `from`, in C order, in blocks.
    ///
    /// # Errors
    /// Those of [`shape`](Self::shape), or floating-point elements.
    pub fn integers(&mut self, name: &str, from: usize) -> Result<Integers<'_>, NpzError> {
        let path = self.path.clone();
        let (Header { dtype, shape }, mut member) = self.member(name)?;
        if matches!(dtype, Dtype::F16 | Dtype::F32 | Dtype::F64) {
            let place = format!(", array {name}");
            return Err(NpzError::invalid(&path, place, "floating-point numbers", "integers"));
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
    pub fn reserve<T>(&self, name: &str, count: usize) -> Result<Vec<T>, NpzError> {
        let mut values = Vec::new();
        let reserved = values.try_reserve_exact(count);
        let found = || format!("{count} values of {} bytes", size_of::<T>());
        reserved.map_err(|_| self.fault(name, found(), "an array that fits into memory"))?;
        Ok(values)
    }

    /// An error about an array.
    pub fn fault(&self, name: &str, found: impl Into<String>, expected: impl Into<String>) -> NpzError {
        NpzError::invalid(&self.path, format!(", array {name}"), found, expected)
    }

    /// The outer error is the archive's, the inner one that of `each`.
    fn each_block(
        &mut self,
        name: &str,
        mut each: impl FnMut(Dtype, &[u8]) -> Result<(), Mismatch>,
    ) -> Result<Result<(), Mismatch>, NpzError> {
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
            false => Err(self.fault(name, "more bytes than its shape says", "as many as its shape says")),
        }
    }

    /// Opens an array, reads its description, and checks that its size is that of its elements.
    fn member(&mut self, name: &str) -> Result<(Header, ZipFile<'_, BufReader<File>>), NpzError> {
        let Self { path, archive, names } = self;
        let error = |found: String, expected: &str| NpzError::invalid(path, format!(", array {name}"), found, expected);
        let mut member = match archive.by_name(&format!("{name}{ENDING}")) {
            Ok(member) => member,
            Err(ZipError::FileNotFound) => {
                let found = format!("no array {name} among {}", names.join(", "));
                return Err(NpzError::invalid(path, "", found, format!("an array {name}")));
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
    ) -> Result<(), NpzError> {
        let Self { path, name, dtype, member, index, left, buffer } = self;
        let count = most.min(*left);
        buffer.resize(count * dtype.bytes(), 0);
        member.read_exact(buffer).map_err(|error| unreadable(path, name, error))?;
        let converted = integers(*dtype, buffer, &mut |value| {
            values.push(convert(value)?);
            *index += 1;
            Ok(())
        });
        converted.map_err(|mismatch| NpzError::at(mismatch, path, format!(", array {name}[{index}]")))?;
        *left -= count;
        if *left > 0 {
            return Ok(());
        }
        // The archive compares the checksum when it reaches the end.
        match member.read(&mut [0]).map_err(|error| unreadable(path, name, error))? {
            0 => Ok(()),
            _ => {
                let (found, expected) = ("more bytes than its shape says", "as many as its shape says");
                Err(NpzError::invalid(path, format!(", array {name}"), found, expected))
            }
        }
    }
}

fn not_an_archive(path: &Path, error: ArchiveError) -> NpzError {
    match error {
        ArchiveError::Io(source) => NpzError::io("read", path)(source),
        other => NpzError::invalid(
            path,
            "",
            format!("no readable zip archive ({other})"),
            "a complete .npz file: copy or download it again",
        ),
    }
}

fn unreadable(path: &Path, name: &str, error: io::Error) -> NpzError {
    // Errors of decompression and of the checksum have no number.
    if error.raw_os_error().is_some() {
        return NpzError::io("read", path)(error);
    }
    let found = format!("unreadable ({error})");
    NpzError::invalid(path, format!(", array {name}"), found, "a complete .npz file: copy or download it again")
}
