//! Sweeps on Slurm.

mod queue;
mod script;
mod settings;
mod submit;

pub use script::PUT_OFF;
pub use settings::SlurmSettings;
pub use submit::{run, scripts};
