//! Memory-mapped files. The only `unsafe` code outside of kdgat-torch, so that readers of stores need no libtorch.

#![warn(missing_docs)]
#![allow(unsafe_code)]

use std::fs::File;
use std::io;

use memmap2::{Mmap, UncheckedAdvice};

/// Maps a file. It must have its final name and never be written to again: writers of such files create a new file and
/// rename it. If another process truncates the file, the next read of a missing page ends the process (`kdgat_torch::explain_bus_errors` makes the
/// program say so).
///
/// # Errors
/// Any error of the system.
pub fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the bytes do not change while mapped, by this function's contract.
    unsafe { Mmap::map(file) }
}

/// Drops the pages of a map from this process's memory; the next read maps them again.
///
/// # Errors
/// Any error of the system.
pub fn release_pages(map: &Mmap) -> io::Result<()> {
    // SAFETY: the map is shared with its file and never written to, so the file holds the same bytes as the pages, even
    // for concurrent readers.
    unsafe { map.unchecked_advise(UncheckedAdvice::DontNeed) }
}
