//! [`Setting`], the trait of field types: it parses the text from a file, a variable or a flag, writes a value back as text, and
//! describes the type. Implemented here for plain types, and in [`values`](super::values) for the program's own.

use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// One value of an enumeration.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// The text that selects it, in files and on the command line.
    pub name: &'static str,
    /// Its meaning, without a full stop.
    pub help: &'static str,
}

/// The description of a type, for help texts, the reference and errors.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Completes "expected …", such as "a whole number".
    pub expected: &'static str,
    /// The placeholder of the flag's value, such as "N".
    pub placeholder: &'static str,
    /// All valid values, for an enumeration; else empty.
    pub choices: &'static [Choice],
    /// True if `none` is a valid value, too.
    pub optional: bool,
    /// True if the value is quoted in a TOML file.
    pub quoted: bool,
    /// True if the flag may be given without a value, which means `true`.
    pub switch: bool,
}

impl Kind {
    pub(super) const fn plain(expected: &'static str, placeholder: &'static str, quoted: bool) -> Kind {
        Kind { expected, placeholder, choices: &[], optional: false, quoted, switch: false }
    }

    /// Describes the valid values: "one of gat, gatv2", "a path, or none".
    pub fn describe(&self) -> String {
        let mut text = match self.choices {
            [] => self.expected.to_string(),
            choices => format!("one of {}", choices.iter().map(|choice| choice.name).collect::<Vec<_>>().join(", ")),
        };
        if self.optional {
            text.push_str(", or none");
        }
        text
    }
}

/// A type that a configuration field can have.
pub trait Setting: Sized + Serialize + DeserializeOwned {
    /// Description of the type.
    const KIND: Kind;
    /// Parses a value; `None` if the text is not a value of this type.
    fn parse(text: &str) -> Option<Self>;
    /// Writes the value as text that [`Setting::parse`] reads back to the same value.
    fn show(&self) -> String;
    /// The numbers in the value, to which the field's limit applies.
    fn numbers(&self) -> Vec<f64> {
        Vec::new()
    }
}

impl Setting for bool {
    const KIND: Kind = Kind { switch: true, ..Kind::plain("true or false", "true|false", false) };

    fn parse(text: &str) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => Some(true),
            "false" | "no" | "off" | "0" => Some(false),
            _ => None,
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

macro_rules! whole_numbers {
    ($($number:ty),+) => {$(
        impl Setting for $number {
            const KIND: Kind = Kind::plain("a whole number", "N", false);

            fn parse(text: &str) -> Option<Self> {
                text.trim().replace('_', "").parse().ok()
            }

            fn show(&self) -> String {
                self.to_string()
            }

            fn numbers(&self) -> Vec<f64> {
                vec![*self as f64]
            }
        }
    )+};
}
whole_numbers!(usize, u64);

impl Setting for f64 {
    const KIND: Kind = Kind::plain("a number", "X", false);

    fn parse(text: &str) -> Option<Self> {
        text.trim().parse().ok().filter(|number: &f64| number.is_finite())
    }

    fn show(&self) -> String {
        format!("{self:?}")
    }

    fn numbers(&self) -> Vec<f64> {
        vec![*self]
    }
}

/// A name that becomes part of a folder's name.
impl Setting for String {
    const KIND: Kind = Kind::plain("a name of letters, digits, '.', '-' and '_'", "NAME", true);

    fn parse(text: &str) -> Option<Self> {
        let fits = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
        (!text.is_empty() && !text.starts_with('.') && text.chars().all(fits)).then(|| text.to_string())
    }

    fn show(&self) -> String {
        self.clone()
    }
}

impl Setting for PathBuf {
    const KIND: Kind = Kind::plain("a path", "PATH", true);

    fn parse(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| PathBuf::from(text))
    }

    fn show(&self) -> String {
        self.display().to_string()
    }
}

impl Setting for Vec<usize> {
    const KIND: Kind = Kind::plain("whole numbers separated by commas", "N,N,..", false);

    fn parse(text: &str) -> Option<Self> {
        let inner = text.trim().trim_start_matches('[').trim_end_matches(']');
        inner.split(',').map(usize::parse).collect()
    }

    fn show(&self) -> String {
        self.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
    }

    fn numbers(&self) -> Vec<f64> {
        self.iter().map(|&number| number as f64).collect()
    }
}

impl<T: Setting> Setting for Option<T> {
    const KIND: Kind = Kind { optional: true, ..T::KIND };

    fn parse(text: &str) -> Option<Self> {
        if text == "none" { Some(None) } else { T::parse(text).map(Some) }
    }

    fn show(&self) -> String {
        self.as_ref().map_or_else(|| "none".to_string(), T::show)
    }

    fn numbers(&self) -> Vec<f64> {
        self.as_ref().map(T::numbers).unwrap_or_default()
    }
}
