//! Sweeps: many runs from one file, on this machine or on a cluster, to one table.
//!
//! A file ([`plan::SweepFile`]) is expanded to a [`plan::Plan`]: trials, and the tasks that they are made of, each known by a
//! digest, so that what several trials need is one task. A folder ([`state::SweepFolder`]) holds how far each task is; any
//! number of processes may work on it. [`run`] does the work here, [`slurm`] and [`ray`] hand it to a cluster. The parts of a
//! graph store ([`parts`]) are such a plan too, without trials.

mod cluster;
pub mod early;
mod error;
pub mod parts;
pub mod pipeline;
pub mod plan;
pub mod ray;
pub mod report;
pub mod run;
pub mod slurm;
pub mod state;

pub use error::SweepError;
