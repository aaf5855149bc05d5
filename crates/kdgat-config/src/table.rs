//! The table of fields: one macro turns the list in [`super::fields`] into the structs, their defaults, and [`Field`] entries,
//! which flags, variables, files and the reference are made from.

use std::fmt;

use figment::value::Value;

use super::Config;
use super::values::Kind;

/// The description of one field of the configuration.
pub struct Field {
    /// Name, unique in all sections: `lr` is the flag `--lr` and the variable `KDGAT_LR`.
    pub name: &'static str,
    /// Name of the section that the field belongs to.
    pub section: &'static str,
    /// A second name.
    pub alias: Option<&'static str>,
    /// The doc comment, one entry per line.
    pub help: &'static [&'static str],
    /// Description of the field's type.
    pub kind: Kind,
    /// The range of the field's numbers; `None` if every value of the type is valid.
    pub limit: Option<Limit>,
    /// True if no loss and no weight depends on it, or only by what a run records besides: digests, batch size, CUDA graphs.
    pub same_losses: bool,
    /// Parses a text as a value of the field's type; `None` if it is not one.
    pub read: fn(&str) -> Option<Reading>,
    /// The field's value as text.
    pub show: fn(&Config) -> String,
    /// The numbers in the field's value, to which its limit applies.
    pub numbers: fn(&Config) -> Vec<f64>,
}

/// A value in figment's form, and the numbers in it, to which the field's limit applies.
pub type Reading = (Value, Vec<f64>);

/// A section of the configuration: a table of a TOML file.
pub struct Section {
    /// Name of the table in TOML files.
    pub name: &'static str,
    /// The doc comment, one entry per line.
    pub help: &'static [&'static str],
    /// The section's fields, in the order of the reference.
    pub fields: &'static [Field],
}

impl Field {
    /// The field's flag: `--max-epochs` for `max_epochs`.
    pub fn flag(&self) -> String {
        flag(self.name)
    }

    /// The field's environment variable: `KDGAT_MAX_EPOCHS` for `max_epochs`.
    pub fn variable(&self) -> String {
        variable(self.name)
    }

    /// True if all these numbers are within the field's limit.
    pub fn admits(&self, numbers: &[f64]) -> bool {
        self.limit.is_none_or(|limit| numbers.iter().all(|&number| limit.holds(number)))
    }

    /// True if this is the field's name or alias.
    pub fn goes_by(&self, name: &str) -> bool {
        self.name == name || self.alias == Some(name)
    }

    /// The doc comment as one line of text.
    pub fn help_text(&self) -> String {
        running_text(self.help)
    }

    /// The value as a TOML literal.
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

/// Joins the lines of a doc comment.
pub fn running_text(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

/// The range of a field's numbers.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// This number or more.
    AtLeast(f64),
    /// More than this number.
    Above(f64),
    /// Both ends included.
    Between(f64, f64),
    /// Lower end included, upper end excluded.
    Below(f64, f64),
    /// Both ends excluded.
    Inside(f64, f64),
}

impl Limit {
    /// True if the number is within the range.
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
                $(#[same_losses = $same_losses:literal])?
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

        /// The complete configuration. See `docs/configuration.md`.
        #[derive(Clone, Debug, Default, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Config {
            $($(#[doc = $section_help])+ pub $section: $Section,)+
            /// The kind of the data that `data` names; found out when the configuration is loaded.
            #[serde(skip)]
            pub data_kind: DataKind,
        }

        impl PartialEq for Config {
            /// Compares the fields: the kind of the data follows from them, and a saved configuration does not have it.
            fn eq(&self, other: &Self) -> bool {
                $(self.$section == other.$section)&&+
            }
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
                        same_losses: [$($same_losses,)? false][0],
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
