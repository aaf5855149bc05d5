//! The program under test, and folders that belong to its build.

use std::path::{Path, PathBuf};

/// Root of the repository.
pub fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Path of `kdgat`. Cargo builds it before the test programs, beside the folder that holds them.
pub fn kdgat() -> PathBuf {
    let program = match std::env::var_os("CARGO_BIN_EXE_kdgat") {
        Some(program) => program.into(),
        None => built().join("kdgat"),
    };
    assert!(program.is_file(), "{} is missing; `cargo build --release --bin kdgat` builds it", program.display());
    program
}

/// Folder for files that test programs share, `target/tmp`.
pub fn shared_folder() -> PathBuf {
    built().parent().unwrap().join("tmp")
}

/// Folder of this build's programs, `target/release`.
fn built() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().to_path_buf()
}
