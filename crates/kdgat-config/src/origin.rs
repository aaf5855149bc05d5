//! The origin of a value: its layer, and the place in it.

use std::fmt;

/// The layer that set a value. Later variants win over earlier ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Built into the program.
    Default,
    /// The frozen configuration of a run that the command works on.
    Run {
        /// The run's `config.json`.
        file: String,
        /// The line, from 1.
        line: usize,
    },
    /// `presets/*.toml`, from the working directory or from the binary.
    Preset {
        /// The names given, as in `vgae,student` for a size.
        preset: String,
        /// The file, `presets/NAME.toml` or `built-in presets/NAME.toml`.
        file: String,
        /// The line, from 1.
        line: usize,
    },
    /// `kdgat.toml` of the working directory, or the file that `--config` names.
    File {
        /// The file, as messages name it.
        file: String,
        /// The line, from 1.
        line: usize,
    },
    /// An environment variable.
    Variable(String),
    /// A flag of the command line.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => formatter.write_str("default"),
            Origin::Preset { preset, file, line } => write!(formatter, "preset {preset} ({file}:{line})"),
            Origin::Run { file, line } | Origin::File { file, line } => write!(formatter, "{file}:{line}"),
            Origin::Variable(name) | Origin::Flag(name) => formatter.write_str(name),
        }
    }
}
