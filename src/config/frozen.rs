//! The frozen configuration of a run: `config.json`, which `--config` replays.

use serde_json::{Map, Value, json};

use super::Config;

/// Version of the layout of `config.json`.
pub const VERSION: u64 = 1;
pub const VERSION_KEY: &str = "layout_version";
pub const CONFIG_KEY: &str = "config";

/// The content of a run's `config.json`: the configuration, the command that it served, the program's version, and
/// whatever else identifies the inputs (digests of data and teacher).
///
/// Where the run lies (`run_dir`), that it was continued (`resume`) and how it was shown (`live`) is left out: replayed, it is
/// a new run.
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
