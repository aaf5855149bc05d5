//! C programs of exports. Exports of different models share most of their files: what was compiled before is linked again.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

/// Options of all compilations; warnings are errors.
const STRICT: &[&str] = &["-std=c99", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror"];

/// Object files by the hash of what they were compiled from.
static OBJECTS: Mutex<BTreeMap<u64, Vec<u8>>> = Mutex::new(BTreeMap::new());

/// True if there is a C compiler; says so if there is none.
pub fn can_compile() -> bool {
    let found = Command::new("cc").arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        println!("skipped: there is no C compiler `cc`");
    }
    found
}

/// The C files of a folder.
pub fn sources(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut sources: Vec<PathBuf> = paths.filter(|path| path.extension() == Some(OsStr::new("c"))).collect();
    sources.sort();
    sources
}

/// Compiles the sources of the export `export` together with `others` into its file `name`. Panics at a warning.
pub fn compiled(export: &Path, others: &[PathBuf], name: &str, options: &[&str]) -> PathBuf {
    let made = compile(export, others, name, options);
    made.unwrap_or_else(|output| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

/// [`compiled`] for a compiler that may fail: returns its output then.
pub fn compile(export: &Path, others: &[PathBuf], name: &str, options: &[&str]) -> Result<PathBuf, Output> {
    let mut sources = sources(export);
    sources.extend_from_slice(others);
    let keys: Vec<u64> = sources.iter().map(|source| key(source, export, options)).collect();
    let known = |key: &u64| OBJECTS.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned();
    let folder = tempfile::tempdir().unwrap();
    let object = |source: &Path| folder.path().join(source.file_stem().unwrap()).with_extension("o");
    let mut missing = Vec::new();
    for (source, key) in sources.iter().zip(&keys) {
        match known(key) {
            Some(contents) => fs::write(object(source), contents).unwrap(),
            None => missing.push((source, *key)),
        }
    }
    if !missing.is_empty() {
        let mut command = Command::new("cc");
        command.current_dir(folder.path()).args(STRICT).args(options).arg("-I").arg(export).arg("-c");
        succeeded(command.args(missing.iter().map(|(source, _)| source)))?;
        for (source, key) in missing {
            let contents = fs::read(object(source)).unwrap();
            OBJECTS.lock().unwrap_or_else(PoisonError::into_inner).insert(key, contents);
        }
    }
    let program = export.join(name);
    let mut link = Command::new("cc");
    link.args(options).args(sources.iter().map(|source| object(source))).arg("-o").arg(&program).arg("-lm");
    succeeded(&mut link).map(|()| program)
}

fn succeeded(command: &mut Command) -> Result<(), Output> {
    let output = command.output().unwrap();
    if output.status.success() { Ok(()) } else { Err(output) }
}

/// Hash of all that an object file depends on: the options, the source, and the headers of the project that it includes.
fn key(source: &Path, export: &Path, options: &[&str]) -> u64 {
    let mut hasher = DefaultHasher::new();
    options.hash(&mut hasher);
    let (mut read, mut unread) = (BTreeSet::new(), vec![source.to_path_buf()]);
    while let Some(path) = unread.pop() {
        if !read.insert(path.clone()) {
            continue;
        }
        // A file that another export has; the compiler misses it if this one needs it.
        let Ok(text) = fs::read_to_string(&path) else { continue };
        (path.file_name(), &text).hash(&mut hasher);
        let included = text.lines().filter_map(|line| line.trim().strip_prefix("#include \"")?.strip_suffix('"'));
        for name in included {
            let beside = path.with_file_name(name);
            unread.push(if beside.is_file() { beside } else { export.join(name) });
        }
    }
    hasher.finish()
}
