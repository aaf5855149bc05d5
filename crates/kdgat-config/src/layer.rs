//! One layer of the configuration: the fields set by a file, by environment variables or by flags. Every name and value is
//! checked here, so the values passed to figment always fit the types.

use std::ffi::OsString;

use figment::value::{Dict, Map, Value};
use figment::{Metadata, Profile, Provider};
use kdgat_base::nearest;

use super::error::Problem;
use super::fields::SECTIONS;
use super::origin::Origin;
use super::table::{Field, variable};
use super::text::{Node, Table};
use kdgat_torch::TEST_CUDA_LIBRARY;

/// Variables with the prefix `KDGAT_` that are not fields: the log filter, folders with real data for tests, and the library that
/// tests load in place of libtorch_cuda; the teachers that a package brings along; the secret and the folder of processes that train together; and those that a command of `kdgat detect --exec` gets, which may call kdgat in turn.
pub const OTHER_VARIABLES: &[&str] = &[
    "KDGAT_LOG",
    "KDGAT_CANDATA",
    "KDGAT_SHARED",
    TEST_CUDA_LIBRARY,
    "KDGAT_SHIPPED_TEACHERS",
    "KDGAT_TOKEN",
    "KDGAT_LAUNCH",
    "KDGAT_EVENT",
    "KDGAT_TIME",
    "KDGAT_ALARM",
    "KDGAT_SCORE",
    "KDGAT_SEVERITY",
    "KDGAT_IDS",
];

/// A value for a field, and its origin.
pub struct Assignment {
    pub field: &'static Field,
    pub value: Value,
    pub origin: Origin,
}

/// The assignments of one layer.
#[derive(Default)]
pub struct Layer {
    pub assignments: Vec<Assignment>,
}

impl Layer {
    /// Reads the fields of a file: at its top level, or in tables named after the sections.
    pub fn from_table(table: &Table, origin_at: &dyn Fn(usize) -> Origin, problems: &mut Vec<Problem>) -> Layer {
        let mut layer = Layer::default();
        for entry in table {
            match &entry.node {
                Node::Value(text) => layer.assign_named(&entry.key, None, text, origin_at(entry.line), problems),
                Node::Table(fields) => {
                    layer.assign_section(&entry.key, fields, origin_at(entry.line), origin_at, problems);
                }
            }
        }
        layer
    }

    fn assign_section(
        &mut self,
        name: &str,
        fields: &Table,
        origin: Origin,
        origin_at: &dyn Fn(usize) -> Origin,
        problems: &mut Vec<Problem>,
    ) {
        let Some(section) = SECTIONS.iter().find(|section| section.name == name) else {
            let nearest = nearest(name, SECTIONS.iter().map(|section| section.name));
            problems.push(Problem::UnknownField { name: format!("[{name}]"), nearest: format!("[{nearest}]"), origin });
            return;
        };
        for entry in fields {
            let origin = origin_at(entry.line);
            match &entry.node {
                Node::Value(text) => self.assign_named(&entry.key, Some(section.name), text, origin, problems),
                Node::Table(_) => problems.push(unknown_field(&format!("{name}.{}", entry.key), origin)),
            }
        }
    }

    fn assign_named(
        &mut self,
        name: &str,
        section: Option<&str>,
        text: &str,
        origin: Origin,
        problems: &mut Vec<Problem>,
    ) {
        let Some(field) = field(name) else {
            problems.push(unknown_field(name, origin));
            return;
        };
        match section {
            Some(found) if found != field.section.name => problems.push(Problem::WrongSection {
                field: field.name,
                section: field.section.name,
                found: found.to_string(),
                origin,
            }),
            _ => self.assign(field, text, origin, problems),
        }
    }

    /// Sets one field from its text; reports a bad or repeated value as a problem.
    pub fn assign(&mut self, field: &'static Field, text: &str, origin: Origin, problems: &mut Vec<Problem>) {
        if let Some(first) = self.assignments.iter().find(|assignment| assignment.field.name == field.name) {
            problems.push(Problem::GivenTwice { field: field.name, first: first.origin.clone(), origin });
            return;
        }
        match (field.read)(text) {
            Some((value, numbers)) if field.admits(&numbers) => {
                self.assignments.push(Assignment { field, value, origin });
            }
            Some(_) => problems.push(out_of_range(field, text.to_string(), Some(origin))),
            None => problems.push(Problem::BadValue {
                field: field.name,
                found: text.to_string(),
                expected: field.kind.describe(),
                nearest: (!field.kind.choices.is_empty())
                    .then(|| nearest(text, field.kind.choices.iter().map(|choice| choice.name))),
                origin,
            }),
        }
    }

    /// Reads the variables `KDGAT_*` among those given.
    pub fn from_variables<'a>(
        variables: impl Iterator<Item = &'a (OsString, OsString)>,
        problems: &mut Vec<Problem>,
    ) -> Layer {
        let mut layer = Layer::default();
        for (name, value) in variables {
            let Some(name) = name.to_str().filter(|name| name.starts_with("KDGAT_")) else { continue };
            if OTHER_VARIABLES.contains(&name) {
                continue;
            }
            let named = |field: &&Field| field.variable() == name || field.alias.map(variable).as_deref() == Some(name);
            match (fields().find(named), value.to_str()) {
                (Some(field), Some(text)) => layer.assign(field, text, Origin::Variable(name.to_string()), problems),
                (Some(_), None) => problems.push(Problem::NotUtf8 { variable: name.to_string() }),
                (None, _) => {
                    let nearest = nearest(&name["KDGAT_".len()..].to_ascii_lowercase(), names());
                    problems.push(Problem::UnknownVariable { variable: name.to_string(), nearest: variable(nearest) });
                }
            }
        }
        layer
    }

    /// Reads the command-line flags, given as pairs of field name and text.
    pub fn from_flags(flags: &[(String, String)], problems: &mut Vec<Problem>) -> Layer {
        let mut layer = Layer::default();
        for (name, text) in flags {
            let origin = Origin::Flag(super::table::flag(name));
            layer.assign_named(name, None, text, origin, problems);
        }
        layer
    }
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named("kdgat configuration layer")
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        let mut sections = Dict::new();
        for Assignment { field, value, .. } in &self.assignments {
            let section = sections.entry(field.section.name.to_string()).or_insert_with(|| Value::from(Dict::new()));
            if let Value::Dict(_, fields) = section {
                fields.insert(field.name.to_string(), value.clone());
            }
        }
        Ok(Profile::Default.collect(sections))
    }
}

/// Reports a number outside its field's limit.
pub(super) fn out_of_range(field: &Field, found: String, origin: Option<Origin>) -> Problem {
    Problem::OutOfRange {
        field: field.name,
        found,
        limit: field.limit.map(|limit| limit.to_string()).unwrap_or_default(),
        remedy: format!("set it with {}", field.flag()),
        origin,
    }
}

/// All fields, in the order of the reference.
pub fn fields() -> impl Iterator<Item = &'static Field> {
    SECTIONS.iter().flat_map(|section| section.fields)
}

/// The field with this name or alias; `max-epochs` means `max_epochs`.
pub fn field(name: &str) -> Option<&'static Field> {
    let name = name.replace('-', "_");
    fields().find(|field| field.goes_by(&name))
}

fn names() -> impl Iterator<Item = &'static str> {
    fields().map(|field| field.name)
}

fn unknown_field(name: &str, origin: Origin) -> Problem {
    let last = name.rsplit('.').next().unwrap_or(name);
    Problem::UnknownField { name: name.to_string(), nearest: nearest_field(last).to_string(), origin }
}

/// The name of the field most similar to `name`.
pub fn nearest_field(name: &str) -> &'static str {
    nearest(&name.replace('-', "_"), names())
}
