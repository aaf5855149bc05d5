//! Fields of the section `[output]`.

use std::path::PathBuf;

use crate::table::config_section;

config_section! {
/// Results: folders, files and display.
output: OutputConfig {
    /// Folder of all runs.
    #[same_losses = true]
    #[readers(Evaluate, EvaluateDivided)]
    runs_dir: PathBuf = "runs".into();
    /// Resume the last unfinished run from its last checkpoint, or the run in `run_dir`.
    #[same_losses = true]
    resume: bool = false;
    /// Folder of this run. none: the next free number below `runs_dir`.
    #[same_losses = true]
    run_dir: Option<PathBuf> = None;
    /// Also write metrics.csv and steps.csv as TensorBoard event files.
    #[same_losses = true]
    tensorboard: bool = false;
    /// Also write metrics.csv and steps.csv as JSON lines: metrics.jsonl and steps.jsonl.
    #[same_losses = true]
    json_lines: bool = false;
    /// Show losses, memory, teacher and speed on a panel that fills the terminal (only in builds with `--features live`).
    #[same_losses = true]
    live: bool = false;
}}
