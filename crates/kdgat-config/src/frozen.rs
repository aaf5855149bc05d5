//! The frozen configuration of a run: `config.json`, which `--config` reads back to repeat the run.

use serde_json::{Map, Value, json};

use super::Config;

/// Version of the layout of `config.json`.
pub const VERSION: u64 = 1;
pub const VERSION_KEY: &str = "layout_version";
/// The key of `config.json` that holds the configuration.
pub const CONFIG_KEY: &str = "config";

/// The content of a run's `config.json`: the configuration, the command, the program's version, and digests that identify the
/// inputs (data and teacher).
///
/// `run_dir`, `resume` and `live` are reset: repeating a run creates a new one.
pub fn freeze(config: &Config, command: &str, inputs: &Map<String, Value>) -> Value {
    let mut config = config.clone();
    config.output.resume = false;
    config.output.run_dir = None;
    config.output.live = false;
    json!({
        "format": "kdgat configuration",
        VERSION_KEY: VERSION,
        "kdgat_version": env!("CARGO_PKG_VERSION"),
        "command": command,
        "inputs": inputs,
        CONFIG_KEY: config,
    })
}
