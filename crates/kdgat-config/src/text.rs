//! TOML and JSON files as a tree of texts, each entry with its line number.

use toml::de::{DeTable, DeValue};

use super::error::Problem;

/// Entries of a table, in file order.
pub type Table = Vec<Entry>;

pub struct Entry {
    pub key: String,
    pub line: usize,
    pub node: Node,
}

pub enum Node {
    Table(Table),
    /// The value as text; the elements of a list are separated by commas.
    Value(String),
}

/// Parses TOML. `file` only appears in errors.
pub fn parse_toml(file: &str, text: &str) -> Result<Table, Box<Problem>> {
    match DeTable::parse(text) {
        Ok(table) => Ok(toml_table(table.get_ref(), text)),
        Err(error) => {
            let line = error.span().map_or(1, |span| line_at(text, span.start));
            Err(Box::new(Problem::Syntax { file: file.to_string(), line, message: error.message().to_string() }))
        }
    }
}

fn toml_table(table: &DeTable<'_>, text: &str) -> Table {
    let mut entries: Table = table
        .iter()
        .map(|(key, value)| Entry {
            key: key.get_ref().to_string(),
            line: line_at(text, key.span().start),
            node: match value.get_ref() {
                DeValue::Table(inner) => Node::Table(toml_table(inner, text)),
                value => Node::Value(toml_value(value)),
            },
        })
        .collect();
    entries.sort_by_key(|entry| entry.line);
    entries
}

fn toml_value(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => match i128::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => number.to_string(),
            Err(_) => number.to_string(),
        },
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(switch) => switch.to_string(),
        DeValue::Datetime(time) => time.to_string(),
        DeValue::Array(elements) => {
            elements.iter().map(|element| toml_value(element.get_ref())).collect::<Vec<_>>().join(",")
        }
        DeValue::Table(_) => "{..}".to_string(),
    }
}

fn line_at(text: &str, offset: usize) -> usize {
    text.as_bytes().iter().take(offset).filter(|&&byte| byte == b'\n').count() + 1
}

/// Parses JSON. `file` only appears in errors.
pub fn parse_json(file: &str, text: &str) -> Result<Table, Box<Problem>> {
    let syntax = |line, message| Box::new(Problem::Syntax { file: file.to_string(), line, message });
    match serde_json::from_str(text) {
        Ok(serde_json::Value::Object(object)) => Ok(json_table(&object, text)),
        Ok(_) => Err(syntax(1, "expected an object with configuration fields".to_string())),
        Err(error) => Err(syntax(error.line(), error.to_string())),
    }
}

fn json_table(object: &serde_json::Map<String, serde_json::Value>, text: &str) -> Table {
    let entry = |(key, value): (&String, &serde_json::Value)| Entry {
        key: key.clone(),
        line: line_of_key(text, key),
        node: match value {
            serde_json::Value::Object(inner) => Node::Table(json_table(inner, text)),
            value => Node::Value(json_value(value)),
        },
    };
    object.iter().map(entry).collect()
}

fn json_value(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Null => "none".to_string(),
        serde_json::Value::Array(elements) => elements.iter().map(json_value).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// The line of a key. The JSON parser reports no positions, so this searches for `"key"` followed by a colon.
fn line_of_key(text: &str, key: &str) -> usize {
    let quoted = serde_json::Value::from(key).to_string();
    let is_key = |offset: &usize| text[offset + quoted.len()..].trim_start().starts_with(':');
    let offset = text.match_indices(&quoted).map(|(offset, _)| offset).find(is_key);
    line_at(text, offset.unwrap_or(0))
}
