//! The table of fields: a macro turns the list of each section in [`super::fields`] into its struct, the defaults, and [`Field`] entries,
//! which flags, variables, files, the reference, and the checks of what a command reads are made from.

use std::fmt;

use figment::value::Value;

use super::Config;
use super::reads::Reader;
use super::rules::Rule;
use super::setting::Kind;

/// The description of one field of the configuration.
pub struct Field {
    /// Name, unique in all sections: `lr` is the flag `--lr` and the variable `KDGAT_LR`.
    pub name: &'static str,
    /// The section that the field belongs to.
    pub section: &'static Section,
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
    /// True if the field decides on a graph's nodes and their division into sets.
    pub divides: bool,
    /// True if runs that differ by it alone repeat each other: seeds, the fold to test on, and chunks of a computation.
    pub repeats: bool,
    /// The conditions under which a stage reads the field, beside the section's.
    pub rules: &'static [&'static Rule],
    /// The commands that do not train and read the field, beside the section's.
    pub readers: &'static [Reader],
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
    /// The conditions under which a stage reads the section.
    pub rules: &'static [&'static Rule],
    /// The commands that do not train and read the whole section.
    pub readers: &'static [Reader],
    /// The section's fields, in the order of the reference.
    pub fields: &'static [Field],
}

impl Field {
    /// True if this command, which does not train, reads the field.
    pub fn is_read_by(&self, reader: Reader) -> bool {
        self.readers.contains(&reader) || self.section.readers.contains(&reader)
    }

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

/// Defines a section: its struct with defaults, and its entry in the table.
///
/// A field has, in this order and as far as they apply: its help, `alias`, `same_losses`, `divides`, `repeats`, `rules` and `readers`; see [`Field`].
macro_rules! config_section {
    (
        $(#[doc = $section_help:literal])+
        $(#[rules($($section_rule:ident),+)])?
        $(#[readers($($section_reader:ident),+)])?
        $section:ident: $Section:ident {
            $(
                $(#[doc = $help:literal])+
                $(#[alias = $alias:literal])?
                $(#[same_losses = $same_losses:literal])?
                $(#[divides = $divides:literal])?
                $(#[repeats = $repeats:literal])?
                $(#[rules($($rule:ident),+)])?
                $(#[readers($($reader:ident),+)])?
                $field:ident: $type:ty = $default:expr $(, $limit:expr)?;
            )+
        }
    ) => {
        $(#[doc = $section_help])+
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $Section {
            $($(#[doc = $help])+ pub $field: $type,)+
        }

        impl Default for $Section {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }

        pub(super) static SECTION: $crate::table::Section = $crate::table::Section {
            name: stringify!($section),
            help: &[$($section_help),+],
            rules: &[$($(&$section_rule),+)?],
            readers: &[$($($crate::reads::Reader::$section_reader),+)?],
            fields: &[$(
                $crate::table::Field {
                    name: stringify!($field),
                    section: &SECTION,
                    alias: [$(Some($alias),)? None][0],
                    help: &[$($help),+],
                    kind: <$type as $crate::setting::Setting>::KIND,
                    limit: [$(Some($limit),)? None][0],
                    same_losses: [$($same_losses,)? false][0],
                    divides: [$($divides,)? false][0],
                    repeats: [$($repeats,)? false][0],
                    rules: &[$($(&$rule),+)?],
                    readers: &[$($($crate::reads::Reader::$reader),+)?],
                    read: |text| {
                        let value = <$type as $crate::setting::Setting>::parse(text)?;
                        let numbers = $crate::setting::Setting::numbers(&value);
                        Some((figment::value::Value::serialize(value).ok()?, numbers))
                    },
                    show: |config| $crate::setting::Setting::show(&config.$section.$field),
                    numbers: |config| $crate::setting::Setting::numbers(&config.$section.$field),
                },
            )+],
        };
    };
}
pub(super) use config_section;

/// Defines the configuration from its sections.
macro_rules! config_sections {
    ($($(#[doc = $help:literal])+ $section:ident: $Section:ident,)+) => {
        /// The complete configuration. See `docs/configuration.md`.
        #[derive(Clone, Debug, Default, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Config {
            $($(#[doc = $help])+ pub $section: $Section,)+
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
        pub static SECTIONS: &[&Section] = &[$(&$section::SECTION),+];
    };
}
pub(super) use config_sections;
