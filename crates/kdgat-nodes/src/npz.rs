//! Reader of `.npz` archives, with errors of this crate. Its tests stand here, beside the writer of arrays.

use std::path::Path;

use kdgat_base::npz::NpzError;
pub use kdgat_base::npz::{MOST_INFLATION, Mismatch, Npz};

use crate::NodesError;

impl From<NpzError> for NodesError {
    fn from(error: NpzError) -> Self {
        match error {
            NpzError::Io { action, path, source } => Self::io(action, &path)(source),
            NpzError::Invalid { path, place, found, expected } => Self::Invalid { path, place, found, expected },
        }
    }
}

/// Errors about an array.
pub trait Faulty {
    /// An error about an array.
    fn error(&self, name: &str, found: impl Into<String>, expected: impl Into<String>) -> NodesError;
}

impl Faulty for Npz {
    fn error(&self, name: &str, found: impl Into<String>, expected: impl Into<String>) -> NodesError {
        self.fault(name, found, expected).into()
    }
}

/// A mismatch with its place.
pub trait Placed {
    /// The error at a place, such as ", line 7", of a file.
    fn at(self, path: &Path, place: impl Into<String>) -> NodesError;
}

impl Placed for Mismatch {
    fn at(self, path: &Path, place: impl Into<String>) -> NodesError {
        NodesError::invalid(path, place, self.found, self.expected)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use std::path::PathBuf;

    use super::*;
    use crate::sources::testing::{Npy, write_npz, write_zip};

    fn written(arrays: &[(&str, Npy)]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("arrays.npz");
        write_npz(&path, arrays);
        (folder, path)
    }

    fn floats_of(npz: &mut Npz, name: &str) -> Result<Vec<f64>, NpzError> {
        let mut values = Vec::new();
        npz.each_float(name, |at, value| {
            assert_eq!(at, values.len());
            values.push(value);
            Ok(())
        })?;
        Ok(values)
    }

    fn integers_of(npz: &mut Npz, name: &str) -> Result<Vec<i64>, NpzError> {
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
            Ok::<_, NpzError>((integers_of(&mut npz, "a")?, integers_of(&mut npz, "b")?))
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
            let error = NodesError::from(npz.reserve::<u64>("a", count).unwrap_err());
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
        assert!(matches!(Npz::open(&folder.path().join("absent.npz")), Err(NpzError::Io { .. })));
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
