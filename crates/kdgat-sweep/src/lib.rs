//! Sweeps: many runs from one file, on this machine or on a cluster, with one table of results.
//!
//! A file ([`plan::SweepFile`]) is expanded to a [`plan::Plan`]: trials and the tasks that they consist of. Each task has a
//! digest, so trials share a task that they have in common. A folder ([`state::SweepFolder`]) holds the state of each task; any
//! number of processes may work on it. [`run`] executes tasks on this machine, [`slurm`] and [`ray`] submit them to a cluster.
//! The parts of a graph store ([`parts`]) are also such a plan, without trials.

#![warn(missing_docs)]

#[macro_use]
extern crate kdgat_base;

mod cluster;
mod early;
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
