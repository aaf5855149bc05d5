//! kdgat distils large graph networks into small ones on machines that are too small for both.
//!
//! Data flows one way: CAN logs become frames ([`can`]), windows of frames become graphs in a mapped
//! store ([`graph`]), batches of graphs train a model ([`nn`], [`train`]), and a frozen teacher on a
//! thread of its own ([`distill`]) supplies the targets. A [`stage`] wires these together.

// Helpers of the tests in tests/ name the crate.
#[cfg(test)]
extern crate self as kdgat;

/// As the standard library's, without its panic where nobody reads standard error any more (`2> >(head)`): that is no reason
/// to lose a training. Said before the modules, so that it is theirs.
macro_rules! eprintln {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

/// As [`eprintln!`], without the end of the line.
macro_rules! eprint {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = write!(std::io::stderr(), $($words)*);
    }};
}

pub mod can;
pub mod cli;
pub mod config;
pub mod curriculum;
pub mod detect;
pub mod distill;
pub mod doctor;
pub mod evaluate;
pub mod files;
pub mod fusion;
pub mod graph;
pub mod interrupt;
pub mod memory;
pub mod nn;
pub mod notices;
pub mod onnx;
pub mod random;
pub mod report;
pub mod shell;
pub mod stage;
pub mod sweep;
pub mod terminal;
pub mod torch;
pub mod train;
