//! Errors in a configuration. All problems of one configuration are reported together.

use std::path::PathBuf;

use thiserror::Error;

use super::origin::Origin;

/// A configuration that cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// All problems of the configuration; the message lists each on a line of its own.
    #[error("{}", all_of(.0))]
    Invalid(Vec<Problem>),
    /// A file or folder of the configuration cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
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
    /// A file, a preset or a flag sets a field that does not exist.
    #[error("{origin}: unknown field `{name}`; the nearest is `{nearest}`")]
    UnknownField {
        /// The name, or a section as in `[name]`.
        name: String,
        /// The field or section with the most similar name.
        nearest: String,
        /// The place that sets it.
        origin: Origin,
    },
    /// A `KDGAT_*` variable that belongs to no field.
    #[error("{variable}: no field has this variable; the nearest is {nearest} (`kdgat config` lists the fields)")]
    UnknownVariable {
        /// The variable's name.
        variable: String,
        /// The variable of the field with the most similar name.
        nearest: String,
    },
    /// The value of a variable is not valid UTF-8.
    #[error("{variable}: the value is not valid UTF-8; set it again or unset it")]
    NotUtf8 {
        /// The variable's name.
        variable: String,
    },
    /// A field stands in the table of another section.
    #[error(
        "{origin}: `{field}` belongs to the section [{section}], not to [{found}]; move it there or to the top of the file"
    )]
    WrongSection {
        /// The field's name.
        field: &'static str,
        /// The section that the field belongs to.
        section: &'static str,
        /// The section that the file has it in.
        found: String,
        /// The place that sets it.
        origin: Origin,
    },
    /// One layer sets a field twice, for example by its name and by its alias.
    #[error("{origin}: `{field}` is set twice (first: {first}); remove one of them")]
    GivenTwice {
        /// The field's name.
        field: &'static str,
        /// The first place.
        first: Origin,
        /// The second place.
        origin: Origin,
    },
    /// A text is not a value of its field's type.
    #[error("{origin}: `{found}` is not a valid value for {field}; expected {expected}{}", nearest.as_ref().map(|name| format!("; the nearest is {name}")).unwrap_or_default())]
    BadValue {
        /// The field's name.
        field: &'static str,
        /// The text.
        found: String,
        /// Description of the valid values, as in "one of gat, gatv2".
        expected: String,
        /// The most similar valid name, if the type is an enumeration.
        nearest: Option<&'static str>,
        /// The place that sets it.
        origin: Origin,
    },
    /// A number is outside its field's limit.
    #[error("{}{field} = {found} is out of range: it must be {limit}; {remedy}", origin.as_ref().map(|origin| format!("{origin}: ")).unwrap_or_default())]
    OutOfRange {
        /// The field's name.
        field: &'static str,
        /// The value as text.
        found: String,
        /// The limit, as in "from 0 to 1".
        limit: String,
        /// Advice, as in "set it with --lr".
        remedy: String,
        /// The place that sets it; `None` for a merged configuration.
        origin: Option<Origin>,
    },
    /// A file does not parse as TOML or JSON, or has another structure than a configuration.
    #[error("{file}:{line}: {message}")]
    Syntax {
        /// The file, as messages name it.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The parser's message, or a description of the expected structure.
        message: String,
    },
    /// A run's `config.json` has a layout newer than this program reads.
    #[error(
        "{file}: written by a newer kdgat (layout version {found}; this program reads version {supported}); use a newer kdgat"
    )]
    NewerLayout {
        /// The file, as messages name it.
        file: String,
        /// Version in the file.
        found: u64,
        /// The newest version that this program reads.
        supported: u64,
    },
    /// `--preset` names neither a preset nor a size.
    #[error("--preset: unknown preset `{name}`; the nearest is `{nearest}` (there are: {known})")]
    UnknownPreset {
        /// The name given.
        name: String,
        /// The most similar preset or size.
        nearest: String,
        /// All presets and sizes, separated by commas.
        known: String,
    },
    /// `--preset` names a size before, or without, its model.
    #[error("--preset: `{size}` is a size; name its model first: --preset {model},{size}")]
    SizeBeforeModel {
        /// The size given.
        size: String,
        /// A model that has this size.
        model: String,
    },
    /// `--preset` names a size of another model.
    #[error("--preset: {model} has no size `{size}`; the nearest is `{nearest}` (there are: {known})")]
    UnknownSize {
        /// The model given before the size.
        model: String,
        /// The size given.
        size: String,
        /// The model's size with the most similar name.
        nearest: String,
        /// All sizes of the model, separated by commas.
        known: String,
    },
    /// `--preset` names two models or two sizes.
    #[error("--preset: `{second}` and `{first}` are both {what}; keep one of them")]
    PresetConflict {
        /// Either "models" or "sizes".
        what: &'static str,
        /// The name given first.
        first: String,
        /// The name given second.
        second: String,
    },
    /// Values that contradict each other.
    #[error("{what}; {remedy}")]
    Combination {
        /// Description of the contradiction.
        what: String,
        /// Advice, with the flag to change.
        remedy: String,
    },
    /// A flag that the command would not read.
    #[error("{flag} would be ignored: {because}; {remedy}")]
    Ignored {
        /// The flag, as in `--kd-alpha`.
        flag: String,
        /// The reason why it is not read.
        because: String,
        /// Advice, with the flag to change.
        remedy: String,
    },
}
