//! The Slurm executor: runs sweeps as job arrays.

mod queue;
mod script;
mod settings;
mod submit;

pub(crate) use settings::SlurmSettings;
pub use submit::{asked, run, scripts};
