//! The merged configuration as text: TOML with the origin of each value, or JSON.

use serde_json::{Map, Value, json};

use super::fields::SECTIONS;
use super::layer::fields;
use super::load::Loaded;
use super::table::running_text;

/// Column where the comments start, unless a value is longer.
const COMMENT_COLUMN: usize = 40;

/// TOML that `--config` reads, with a comment after each value that names the layer that set it.
pub fn to_toml(loaded: &Loaded) -> String {
    let mut text = "# The merged configuration. After each value: the layer that set it.\n".to_string();
    for section in SECTIONS {
        text.push_str(&format!("\n# {}\n[{}]\n", running_text(section.help), section.name));
        for field in section.fields {
            let assignment = format!("{} = {}", field.name, field.toml_literal(&loaded.config));
            text.push_str(&format!("{assignment:COMMENT_COLUMN$} # {}\n", loaded.origin(field.name)));
        }
    }
    text
}

/// JSON with the configuration under `config`, as in a run's `config.json`, and the origin of each field under `origins`.
pub fn to_json(loaded: &Loaded) -> Value {
    let origin = |name: &'static str| (name.to_string(), Value::from(loaded.origin(name).to_string()));
    let origins: Map<String, Value> = fields().map(|field| origin(field.name)).collect();
    json!({ "config": loaded.config, "origins": origins })
}
