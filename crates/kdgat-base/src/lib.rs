//! What every room of kdgat needs and no library offers as wanted: files that are whole or absent ([`files`]), numbers that are a
//! function of a seed ([`random`]), the known name that is nearest to a mistyped one ([`nearest`]), quoting for a shell
//! ([`shell`]), and `eprintln!` that survives a closed standard error.

pub mod files;
pub mod nearest;
mod print;
pub mod random;
pub mod shell;
