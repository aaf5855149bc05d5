//! `config.json` of a registered teacher: everything needed to build the model and to check its weights.

use std::path::Path;

use kdgat_graph::ForeignIds;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{RegistryError, file_error};

/// Version of `config.json`.
pub const FORMAT_VERSION: u32 = 1;

/// The dataset that a teacher was trained on.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TrainedOn {
    /// The dataset's name, which is the teacher's folder in the registry.
    pub name: String,
    /// Digest of the store of graphs.
    #[serde(default)]
    pub digest: String,
}

/// The content of `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TeacherConfig {
    /// [`FORMAT_VERSION`] of the program that wrote the file.
    pub format_version: u32,
    /// `vgae` or `gat`.
    pub model: String,
    /// The model's hyperparameters: hidden widths, latent size, heads and so on.
    pub architecture: Map<String, Value>,
    /// CAN IDs of the vocabulary, ascending, without UNKNOWN: row `i + 1` of the embedding belongs to `vocabulary[i]`.
    pub vocabulary: Vec<u32>,
    /// For a classifier used with a list of known IDs: how often windows have an ID that is not listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign_ids: Option<ForeignIds>,
    /// [`crate::Weights::digest`] of the weights beside this file. May be missing for weights of another program.
    #[serde(default)]
    pub weights_digest: String,
    /// The dataset of its training.
    #[serde(default)]
    pub dataset: TrainedOn,
    /// Metrics measured in its training.
    #[serde(default)]
    pub metrics: Map<String, Value>,
    /// Version of the program that trained it.
    #[serde(default)]
    pub created_by_version: String,
}

impl TeacherConfig {
    /// Reads and validates `config.json`.
    pub fn read(path: &Path) -> Result<Self, RegistryError> {
        let text = std::fs::read_to_string(path).map_err(file_error(path, "read"))?;
        let invalid = |reason: String| RegistryError::InvalidConfig { path: path.to_path_buf(), reason };
        // The version is checked first: in another format, no other field can be relied on.
        let value: Value = serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))?;
        match value.get("format_version").and_then(Value::as_u64) {
            Some(version) if version == u64::from(FORMAT_VERSION) => {}
            Some(version) => {
                return Err(invalid(format!("format_version is {version}, this program reads {FORMAT_VERSION}")));
            }
            None => return Err(invalid("it has no format_version".to_string())),
        }
        let config: Self = serde_json::from_value(value).map_err(|error| invalid(error.to_string()))?;
        if let Some(pair) = config.vocabulary.windows(2).find(|pair| pair[0] >= pair[1]) {
            let reason = format!(
                "its vocabulary has {} before {}; expected CAN IDs in ascending order without duplicates, in the order of the \
                 embedding's rows",
                pair[0], pair[1]
            );
            return Err(invalid(reason));
        }
        if let Some(id) = config.vocabulary.last().filter(|id| **id >= 1 << 29) {
            return Err(invalid(format!("its vocabulary has {id}, expected CAN IDs of at most 29 bits")));
        }
        match config.foreign_ids.and_then(|counted| counted.problem()) {
            Some(problem) => Err(invalid(problem)),
            None => Ok(config),
        }
    }

    /// The architecture as JSON with sorted keys: part of a cache's key.
    pub fn architecture_text(&self) -> String {
        let mut text = String::new();
        write_sorted(&Value::Object(self.architecture.clone()), &mut text);
        text
    }
}

/// Writes JSON with the keys of every object ascending, so that equal content gives equal text.
fn write_sorted(value: &Value, text: &mut String) {
    match value {
        Value::Object(entries) => {
            let mut sorted: Vec<_> = entries.iter().collect();
            sorted.sort_by_key(|(key, _)| key.as_str());
            text.push('{');
            for (number, (key, value)) in sorted.into_iter().enumerate() {
                text.push_str(if number > 0 { "," } else { "" });
                text.push_str(&Value::from(key.as_str()).to_string());
                text.push(':');
                write_sorted(value, text);
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for (number, item) in items.iter().enumerate() {
                text.push_str(if number > 0 { "," } else { "" });
                write_sorted(item, text);
            }
            text.push(']');
        }
        other => text.push_str(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_architectures_are_equal_text() {
        let config = |architecture: &str| TeacherConfig {
            format_version: FORMAT_VERSION,
            model: "vgae".to_string(),
            architecture: serde_json::from_str(architecture).unwrap(),
            vocabulary: vec![1],
            foreign_ids: None,
            weights_digest: String::new(),
            dataset: TrainedOn::default(),
            metrics: Map::new(),
            created_by_version: String::new(),
        };
        let text = config(r#"{"latent": 16, "hidden": [80, {"b": 1, "a": 2}]}"#).architecture_text();
        assert_eq!(text, r#"{"hidden":[80,{"a":2,"b":1}],"latent":16}"#);
        assert_eq!(text, config(r#"{"hidden": [80, {"a": 2, "b": 1}], "latent": 16}"#).architecture_text());
    }
}
