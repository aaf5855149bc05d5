//! Training: the epoch loop, the optimiser, schedules, checkpoints, and run folders.

#![warn(missing_docs)]

#[macro_use]
extern crate kdgat_base;

mod batch_plan;
mod burst;
pub mod checkpoint;
pub mod checkpoint_kind;
pub mod console;
mod error;
pub mod event_file;
pub mod fit;
mod fused_adam;
mod gpu_adam;
pub mod interrupt;
mod last_state;
pub mod logs;
pub mod loss_scale;
pub mod memory;
pub mod met_sizes;
pub mod metrics;
pub mod notices;
pub mod objective;
pub mod optimizer;
pub mod options;
pub mod panel;
pub mod processes;
pub mod recorded;
pub mod run_directory;
pub mod run_logs;
pub mod run_name;
pub mod schedule;
pub mod state;
mod state_before;
pub mod step;
pub mod summary;
#[cfg(feature = "live")]
pub mod terminal;
pub mod threads;
pub mod timeline;
pub mod together;
pub mod trainable;
mod validation;
