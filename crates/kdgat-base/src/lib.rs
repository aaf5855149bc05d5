//! Small tools shared by all crates of kdgat: atomic files ([`files`]), checked zip archives ([`archive`]) and those of
//! NumPy arrays ([`npz`]), exit codes ([`exit`]), seeded
//! random numbers ([`random`]), digests of sets ([`set_digest`]), shell quoting ([`shell`]), spelling suggestions ([`nearest`]), and an
//! `eprintln!` that survives a closed standard error.

#![warn(missing_docs)]

pub mod archive;
pub mod exit;
pub mod files;
mod npy;
pub mod npz;
pub mod random;
pub mod set_digest;
pub mod shell;

/// The name in `known` most similar to `name`, ignoring case; the first one on a tie. Empty if `known` is empty.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> &'a str {
    let name = name.to_lowercase();
    let mut best = ("", -1.0);
    for candidate in known {
        let likeness = strsim::normalized_damerau_levenshtein(&name, &candidate.to_lowercase());
        if likeness > best.1 {
            best = (candidate, likeness);
        }
    }
    best.0
}

/// Shadows the standard library's `eprintln!`: a closed standard error (`2> >(head)`) must not abort training.
#[macro_export]
macro_rules! eprintln {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

/// Shadows the standard library's `eprint!`, for the same reason as [`eprintln!`].
#[macro_export]
macro_rules! eprint {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = write!(std::io::stderr(), $($words)*);
    }};
}
