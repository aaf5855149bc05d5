//! What the file's section `[slurm]` may say.

use serde::{Deserialize, Serialize};

/// How jobs are submitted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SlurmSettings {
    pub partition: Option<String>,
    pub account: Option<String>,
    /// `HH:MM:SS` of a job; it goes on with its checkpoint when that is over.
    pub time: String,
    /// Cores of a job.
    pub cpus: usize,
    /// Memory that is asked for beyond what a task is granted, as a share of it.
    pub memory_margin: f64,
    /// What `--gres` asks for, such as `gpu:1`.
    pub gres: Option<String>,
    /// Seconds before the time limit at which a task is told to save.
    pub signal_seconds: u64,
    /// Jobs of an array at once; 0: as many as Slurm lets run.
    pub at_once: usize,
    /// Further directives, without `#SBATCH`.
    pub directives: Vec<String>,
    /// Shell commands before the task: modules, an environment.
    pub setup: Vec<String>,
}

impl Default for SlurmSettings {
    fn default() -> Self {
        Self {
            partition: None,
            account: None,
            time: "04:00:00".to_owned(),
            cpus: 1,
            memory_margin: 0.15,
            gres: None,
            signal_seconds: 120,
            at_once: 0,
            directives: Vec::new(),
            setup: Vec::new(),
        }
    }
}
