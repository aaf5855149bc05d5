//! The Slurm executor: runs sweeps as job arrays.

mod queue;
mod script;
mod settings;
mod submit;

pub use script::{PUT_OFF, TOO_LARGE};
pub(crate) use settings::SlurmSettings;
pub use submit::{asked, run, scripts};
