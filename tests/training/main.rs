//! Trainings of windows, through the command line: losses, resuming, run folders, outputs.

mod autoencoder_runs;
mod curriculum_difficulty;
mod disk_errors;
mod gatv2_models;
mod golden_runs;
#[cfg(feature = "live")]
mod live_panel;
mod pipeline_runs;
mod processes;
mod rich_models;
mod run_exports;
mod run_folders;
mod stage_classifier;
