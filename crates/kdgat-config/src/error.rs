//! Errors in a configuration. All problems of one configuration are reported together.

use std::path::PathBuf;

use thiserror::Error;

use super::origin::Origin;

#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("{}", all_of(.0))]
    Invalid(Vec<Problem>),
    #[error("cannot read {}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
}

impl ConfigError {
    /// `Ok` when there are no problems.
    pub fn unless_empty(problems: Vec<Problem>) -> Result<(), ConfigError> {
        if problems.is_empty() { Ok(()) } else { Err(ConfigError::Invalid(problems)) }
    }
}

fn all_of(problems: &[Problem]) -> String {
    match problems {
        [problem] => problem.to_string(),
        _ => {
            let lines: String = problems.iter().map(|problem| format!("\n  - {problem}")).collect();
            format!("{} problems in the configuration:{lines}", problems.len())
        }
    }
}

/// One problem, with its place and the remedy.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Problem {
    #[error("{origin}: unknown field `{name}`; the nearest is `{nearest}`")]
    UnknownField { name: String, nearest: String, origin: Origin },
    #[error("{variable}: no field has this variable; the nearest is {nearest} (`kdgat config` lists the fields)")]
    UnknownVariable { variable: String, nearest: String },
    #[error("{variable}: the value is not valid UTF-8; set it again or unset it")]
    NotUtf8 { variable: String },
    #[error(
        "{origin}: `{field}` belongs to the section [{section}], not to [{found}]; move it there or to the top of the file"
    )]
    WrongSection { field: &'static str, section: &'static str, found: String, origin: Origin },
    #[error("{origin}: `{field}` is set twice (first: {first}); remove one of them")]
    GivenTwice { field: &'static str, first: Origin, origin: Origin },
    #[error("{origin}: `{found}` is not a valid value for {field}; expected {expected}{}", nearest.as_ref().map(|name| format!("; the nearest is {name}")).unwrap_or_default())]
    BadValue { field: &'static str, found: String, expected: String, nearest: Option<&'static str>, origin: Origin },
    #[error("{}{field} = {found} is out of range: it must be {limit}; {remedy}", origin.as_ref().map(|origin| format!("{origin}: ")).unwrap_or_default())]
    OutOfRange { field: &'static str, found: String, limit: String, remedy: String, origin: Option<Origin> },
    #[error("{file}:{line}: {message}")]
    Syntax { file: String, line: usize, message: String },
    #[error(
        "{file}: written by a newer kdgat (layout version {found}; this program reads version {supported}); use a newer kdgat"
    )]
    NewerLayout { file: String, found: u64, supported: u64 },
    #[error("--preset: unknown preset `{name}`; the nearest is `{nearest}` (there are: {known})")]
    UnknownPreset { name: String, nearest: String, known: String },
    #[error("--preset: `{size}` is a size; name its model first: --preset {model},{size}")]
    SizeBeforeModel { size: String, model: String },
    #[error("--preset: {model} has no size `{size}`; the nearest is `{nearest}` (there are: {known})")]
    UnknownSize { model: String, size: String, nearest: String, known: String },
    #[error("--preset: `{second}` and `{first}` are both {what}; keep one of them")]
    PresetConflict { what: &'static str, first: String, second: String },
    #[error("{what}; {remedy}")]
    Combination { what: String, remedy: String },
    #[error("{flag} would be ignored: {because}; {remedy}")]
    Ignored { flag: String, because: String, remedy: String },
}
