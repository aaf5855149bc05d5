//! Compiled programs on disk: compiling takes about a second for each, loading a file none.
//!
//! A file is the BLAKE3 checksum of the code, followed by the code. Its name contains a digest of all that the code depends on: text,
//! definitions, GPU, compiler, and version of kdgat. Files are written to a temporary file and renamed, so that several processes may
//! share the folder.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::{env, fs};

use super::{ProgramError, Source, nvrtc};

const CHECKSUM_BYTES: usize = 32;

/// Machine code of a program for GPUs of compute capability `capability`, from the user's cache folder or compiled.
///
/// # Errors
/// See [`nvrtc::compile`]. A cache that cannot be read or written costs time, is logged, and is no error.
pub(super) fn compile(source: &Source, capability: i32) -> Result<Vec<u8>, ProgramError> {
    let compiler = nvrtc::compiler_version()?;
    match folder() {
        Some(folder) => {
            cached(&folder, &digest(source, capability, compiler), source, || nvrtc::compile(source, capability))
        }
        None => nvrtc::compile(source, capability),
    }
}

/// `kdgat/kernels` in the user's cache folder.
fn folder() -> Option<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(cache.join("kdgat").join("kernels"))
}

fn digest(source: &Source, capability: i32, compiler: (i32, i32)) -> String {
    let mut hasher = blake3::Hasher::new();
    let head = format!("{} {capability} {compiler:?} {:?}\n", env!("CARGO_PKG_VERSION"), source.definitions);
    hasher.update(head.as_bytes()).update(source.text.as_bytes());
    hasher.finalize().to_hex()[..24].to_owned()
}

fn cached(
    folder: &Path,
    digest: &str,
    source: &Source,
    compile: impl FnOnce() -> Result<Vec<u8>, ProgramError>,
) -> Result<Vec<u8>, ProgramError> {
    let path = folder.join(format!("{}-{digest}.cubin", source.name.replace(' ', "-")));
    match read(&path) {
        Ok(code) => return Ok(code),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!("{}: {error}; compiling {} again", path.display(), source.name),
    }
    let code = compile()?;
    if let Err(error) = write(folder, &path, &code) {
        tracing::warn!("cannot cache compiled {} in {}: {error}", source.name, path.display());
    }
    Ok(code)
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let content = fs::read(path)?;
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the checksum does not match: the file is damaged");
    let (checksum, code) = content.split_at_checked(CHECKSUM_BYTES).ok_or_else(damaged)?;
    if *blake3::hash(code).as_bytes() != *checksum {
        return Err(damaged());
    }
    Ok(code.to_vec())
}

fn write(folder: &Path, path: &Path, code: &[u8]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(blake3::hash(code).as_bytes())?;
    file.write_all(code)?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn source(definitions: Vec<(&'static str, String)>) -> Source {
        Source { name: "two words", text: "text", kernels: &[], definitions }
    }

    #[test]
    fn code_is_compiled_once_and_again_when_its_file_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let compiled = Cell::new(0);
        let compile = || {
            compiled.set(compiled.get() + 1);
            Ok(vec![1, 2, 3])
        };
        let source = source(Vec::new());
        let code = || cached(&folder.path().join("new"), "digest", &source, compile).unwrap();
        assert_eq!((code(), code(), compiled.get()), (vec![1, 2, 3], vec![1, 2, 3], 1));
        let path = folder.path().join("new/two-words-digest.cubin");
        for damage in [&b"short"[..], &[7; CHECKSUM_BYTES + 3]] {
            fs::write(&path, damage).unwrap();
            let before = compiled.get();
            assert_eq!((code(), code(), compiled.get()), (vec![1, 2, 3], vec![1, 2, 3], before + 1));
        }
        assert_eq!(fs::read_dir(folder.path().join("new")).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn a_cache_that_cannot_be_written_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        let code = cached(&folder.path().join("file"), "digest", &source(Vec::new()), || Ok(vec![1])).unwrap();
        assert_eq!(code, vec![1]);
    }

    #[test]
    fn the_digest_depends_on_all_that_the_code_depends_on() {
        let plain = || source(Vec::new());
        let reference = digest(&plain(), 90, (13, 0));
        assert_eq!(digest(&plain(), 90, (13, 0)), reference);
        let others = [
            digest(&plain(), 86, (13, 0)),
            digest(&plain(), 90, (12, 9)),
            digest(&source(vec![("HEADS", "1".into())]), 90, (13, 0)),
            digest(&Source { text: "texts", ..plain() }, 90, (13, 0)),
        ];
        assert!(others.iter().all(|other| *other != reference), "{others:?}");
    }
}
