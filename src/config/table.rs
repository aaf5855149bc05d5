//! The table of fields: one macro turns the list in [`super::fields`] into the structs, their defaults, and
//! [`Field`] entries, from which flags, variables, files and the reference are served.

use std::fmt;

use figment::value::Value;

use super::Config;
use super::values::Kind;

/// One field of the configuration, seen from outside.
pub struct Field {
    /// Unique over all sections: `lr` is the flag `--lr` and the variable `KDGAT_LR`.
    pub name: &'static str,
    pub section: &'static str,
    /// A former name that keeps working.
    pub alias: Option<&'static str>,
    /// The docstring, a line an entry.
    pub help: &'static [&'static str],
    pub kind: Kind,
    pub limit: Option<Limit>,
    /// The text as a value of the field's type; `None` when it is none.
    pub read: fn(&str) -> Option<Reading>,
    pub show: fn(&Config) -> String,
    pub numbers: fn(&Config) -> Vec<f64>,
}

/// A value as figment merges it, and the numbers in it, which the field's limit applies to.
pub type Reading = (Value, Vec<f64>);

/// A section of the configuration: a table of a TOML file.
pub struct Section {
    pub name: &'static str,
    pub help: &'static [&'static str],
    pub fields: &'static [Field],
}

impl Field {
    /// `max_epochs` is `--max-epochs`.
    pub fn flag(&self) -> String {
        flag(self.name)
    }

    /// `max_epochs` is `KDGAT_MAX_EPOCHS`.
    pub fn variable(&self) -> String {
        variable(self.name)
    }

    /// Whether the field's limit, if it has one, holds for all these numbers.
    pub fn admits(&self, numbers: &[f64]) -> bool {
        self.limit.is_none_or(|limit| numbers.iter().all(|&number| limit.holds(number)))
    }

    pub fn goes_by(&self, name: &str) -> bool {
        self.name == name || self.alias == Some(name)
    }

    /// The docstring as running text.
    pub fn help_text(&self) -> String {
        running_text(self.help)
    }

    /// The value as it stands in a TOML file.
    pub fn toml_literal(&self, config: &Config) -> String {
        let text = (self.show)(config);
        if self.kind.quoted {
            toml::Value::String(text).to_string()
        } else if self.kind.placeholder.contains(',') {
            format!("[{}]", text.replace(',', ", "))
        } else {
            text
        }
    }
}

pub fn flag(name: &str) -> String {
    format!("--{}", name.replace('_', "-"))
}

pub fn variable(name: &str) -> String {
    format!("KDGAT_{}", name.to_ascii_uppercase())
}

pub fn running_text(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

/// The numbers that a field may have.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    AtLeast(f64),
    Above(f64),
    /// Both ends belong to it.
    Between(f64, f64),
    /// The lower end belongs to it, the upper does not.
    Below(f64, f64),
    /// Neither end belongs to it.
    Inside(f64, f64),
}

impl Limit {
    pub fn holds(self, number: f64) -> bool {
        match self {
            Limit::AtLeast(low) => number >= low,
            Limit::Above(low) => number > low,
            Limit::Between(low, high) => (low..=high).contains(&number),
            Limit::Below(low, high) => (low..high).contains(&number),
            Limit::Inside(low, high) => number > low && number < high,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::AtLeast(low) => write!(formatter, "at least {low}"),
            Limit::Above(low) => write!(formatter, "above {low}"),
            Limit::Between(low, high) => write!(formatter, "from {low} to {high}"),
            Limit::Below(low, high) => write!(formatter, "from {low}, below {high}"),
            Limit::Inside(low, high) => write!(formatter, "above {low}, below {high}"),
        }
    }
}

macro_rules! config_fields {
    ($(
        $(#[doc = $section_help:literal])+
        $section:ident: $Section:ident {
            $(
                $(#[doc = $help:literal])+
                $(#[alias = $alias:literal])?
                $field:ident: $type:ty = $default:expr $(, $limit:expr)?;
            )+
        }
    )+) => {
        $(
            $(#[doc = $section_help])+
            #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
            #[serde(default, deny_unknown_fields)]
            pub struct $Section {
                $($(#[doc = $help])+ pub $field: $type,)+
            }

            impl Default for $Section {
                fn default() -> Self {
                    Self { $($field: $default,)+ }
                }
            }
        )+

        /// Everything that can be configured. See `docs/configuration.md`.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Config {
            $($(#[doc = $section_help])+ pub $section: $Section,)+
        }

        /// All sections with their fields, in the order of the reference.
        pub static SECTIONS: &[Section] = &[$(
            Section {
                name: stringify!($section),
                help: &[$($section_help),+],
                fields: &[$(
                    Field {
                        name: stringify!($field),
                        section: stringify!($section),
                        alias: [$(Some($alias),)? None][0],
                        help: &[$($help),+],
                        kind: <$type as Setting>::KIND,
                        limit: [$(Some($limit),)? None][0],
                        read: |text| {
                            let value = <$type as Setting>::parse(text)?;
                            let numbers = Setting::numbers(&value);
                            Some((Value::serialize(value).ok()?, numbers))
                        },
                        show: |config| Setting::show(&config.$section.$field),
                        numbers: |config| Setting::numbers(&config.$section.$field),
                    },
                )+],
            },
        )+];
    };
}
pub(super) use config_fields;
