//! The interface of zip 0.6 that tch and torch-sys use, provided by a current version of the same crate.

pub use current::{CompressionMethod, ZipArchive, result};

/// Writing archives.
pub mod write {
    pub use current::write::{SimpleFileOptions as FileOptions, ZipWriter};
}

pub use write::ZipWriter;
