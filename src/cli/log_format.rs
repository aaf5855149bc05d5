//! The parser of `--format`: a log format, with a help text for each.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Command};

use crate::can::Format;
use crate::config::{LogFormat, Setting};

/// Parses the name of a log format.
#[derive(Clone)]
pub struct LogFormatParser;

impl TypedValueParser for LogFormatParser {
    type Value = Format;

    fn parse_ref(&self, command: &Command, argument: Option<&Arg>, value: &OsStr) -> Result<Format, clap::Error> {
        let text = value.to_str().ok_or_else(|| clap::Error::new(ErrorKind::InvalidUtf8).with_cmd(command))?;
        text.parse().map_err(|reason| {
            let argument = argument.map_or("--format".to_owned(), ToString::to_string);
            let message = format!("invalid value for '{argument}': {reason}\n");
            clap::Error::raw(ErrorKind::ValueValidation, message).with_cmd(command)
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let formats = LogFormat::KIND.choices.iter().filter(|choice| choice.name.parse::<Format>().is_ok());
        Some(Box::new(formats.map(|choice| PossibleValue::new(choice.name).help(choice.help))))
    }
}
