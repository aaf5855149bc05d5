//! The flags shared by all commands with a configuration: presets, a configuration file, and one flag per field, generated from
//! the table of fields.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::OnceLock;

use anyhow::Result;
use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, Id};

use crate::config::{self, Choice, Config, ConfigError, Field, Loaded, Reader, Sources, Stage};
use crate::stage::RunData;

/// The sources of a command's configuration.
#[derive(Args, Clone, Debug, Default)]
pub struct Settings {
    /// Presets, merged left to right: a model, one of its sizes, then overlays (vgae,student,quick)
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub preset: Vec<String>,
    /// Configuration file: TOML, or the config.json of a run to repeat that run
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub fields: FieldFlags,
}

impl Settings {
    /// Merges the configuration, and checks what holds for every command.
    pub fn load(&self) -> Result<Loaded, ConfigError> {
        let loaded = self.merge()?;
        config::check(&loaded.config)?;
        Ok(loaded)
    }

    /// Merges the configuration, and checks it for a command that trains.
    pub fn load_for(&self, stage: Stage) -> Result<Loaded, ConfigError> {
        let loaded = self.merge()?;
        config::check_stage(&loaded, stage)?;
        Ok(loaded)
    }

    /// Merges the configuration, and checks it for a command that reads a part of it.
    pub fn load_reading(&self, reader: Reader) -> Result<Loaded, ConfigError> {
        let loaded = self.merge()?;
        config::check_reads(&loaded, reader)?;
        Ok(loaded)
    }

    /// Like [`Settings::load_reading`], for one large graph that need not exist.
    pub fn load_reading_of_nodes(&self, reader: Reader) -> Result<Loaded, ConfigError> {
        let loaded = config::load(&Sources { one_graph: true, ..self.sources() })?;
        config::check_reads(&loaded, reader)?;
        Ok(loaded)
    }

    /// Like [`Settings::load_reading`], for a command that works on runs: their dataset is the default.
    pub fn load_reading_of(&self, reader: Reader, runs: &[PathBuf]) -> Result<Loaded> {
        let loaded = self.merge_of(runs)?;
        config::check_reads(&loaded, reader)?;
        Ok(loaded)
    }

    /// Like [`Settings::load_reading_of`], if the fields that the command reads depend on the data.
    pub fn load_reading_by(&self, runs: &[PathBuf], reader_of: impl Fn(&Config) -> Reader) -> Result<Loaded> {
        let loaded = self.merge_of(runs)?;
        config::check_reads(&loaded, reader_of(&loaded.config))?;
        Ok(loaded)
    }

    /// Like [`Settings::load_for`], for `kdgat fusion`: the dataset of the named models is the default.
    pub fn load_for_fusion(&self) -> Result<Loaded> {
        let models = self.merge()?.config.fusion;
        let named: Vec<PathBuf> = [models.fusion_vgae, models.fusion_gat].into_iter().flatten().collect();
        let loaded = self.merge_of(&named)?;
        config::check_stage(&loaded, Stage::Fusion)?;
        Ok(loaded)
    }

    fn merge(&self) -> Result<Loaded, ConfigError> {
        config::load(&self.sources())
    }

    fn merge_of(&self, runs: &[PathBuf]) -> Result<Loaded> {
        let runs = RunData::of_all(runs);
        let mut loaded = config::load(&Sources { run: RunData::config_of(&runs), ..self.sources() })?;
        if !loaded.is_given("data") {
            loaded.set_data(RunData::common(&runs)?);
        }
        Ok(loaded)
    }

    /// The sources of the configuration, with the process's environment and working directory.
    pub fn sources(&self) -> Sources {
        Sources {
            run: None,
            presets: self.preset.clone(),
            working_folder: PathBuf::new(),
            variables: std::env::vars_os().collect(),
            config_file: self.config.clone(),
            flags: self.fields.0.clone(),
            one_graph: false,
        }
    }
}

/// The flags given on the command line, as pairs of field name and text.
#[derive(Clone, Debug, Default)]
pub struct FieldFlags(pub Vec<(String, String)>);

/// The fields whose flags `-h` shows; `--help` shows all.
const COMMON: &[&str] = &[
    "data",
    "max_epochs",
    "lr",
    "batch_size",
    "seed",
    "device",
    "use_kd",
    "teacher_path",
    "offload_teacher",
    "memory_limit",
    "resume",
    "live",
];

impl Args for FieldFlags {
    fn augment_args(command: Command) -> Command {
        // Some twenty commands have them.
        static ARGUMENTS: OnceLock<Vec<Arg>> = OnceLock::new();
        let arguments = ARGUMENTS.get_or_init(|| {
            let defaults = Config::default();
            config::fields().map(|field| argument(field, &defaults)).collect()
        });
        // A command that takes runs has `--model RUN` instead of the field, which it does not read.
        let own: Vec<Id> = command.get_arguments().map(|own| own.get_id().clone()).collect();
        command.args(arguments.iter().filter(|argument| !own.contains(argument.get_id())))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for FieldFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        // Of another type if the command has an argument of its own instead.
        let given = |field: &Field| {
            let text = matches.try_get_one::<String>(field.name).ok().flatten()?;
            Some((field.name.to_string(), text.clone()))
        };
        Ok(FieldFlags(config::fields().filter_map(given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn argument(field: &'static Field, defaults: &Config) -> Arg {
    let limit = field.limit.map(|limit| format!("; {limit}")).unwrap_or_default();
    let help = format!("{} [default: {}{limit}]", field.help_text().trim_end_matches('.'), (field.show)(defaults));
    let mut argument = Arg::new(field.name)
        .long(field.name.replace('_', "-"))
        .alias(field.name)
        .help(help)
        .help_heading(format!("{} fields", capitalised(field.section.name)))
        .value_name(field.kind.placeholder)
        .value_parser(AnyText { choices: field.kind.choices })
        .action(ArgAction::Set)
        .allow_negative_numbers(true)
        .overrides_with(field.name)
        .hide_short_help(!COMMON.contains(&field.name));
    if let Some(alias) = field.alias {
        argument = argument.alias(alias.replace('_', "-")).alias(alias);
    }
    if field.kind.switch {
        argument = argument.num_args(0..=1).default_missing_value("true");
    }
    argument
}

fn capitalised(word: &str) -> String {
    let (first, rest) = word.split_at(1);
    first.to_ascii_uppercase() + rest
}

/// Accepts any text, so that the configuration can report all bad values together. Knows the valid values for help and completion.
#[derive(Clone)]
struct AnyText {
    choices: &'static [Choice],
}

impl TypedValueParser for AnyText {
    type Value = String;

    fn parse_ref(&self, command: &Command, _: Option<&Arg>, value: &OsStr) -> Result<String, clap::Error> {
        let invalid = || clap::Error::new(ErrorKind::InvalidUtf8).with_cmd(command);
        value.to_str().map(str::to_string).ok_or_else(invalid)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let values = self.choices.iter().map(|choice| PossibleValue::new(choice.name).help(choice.help));
        (!self.choices.is_empty()).then(|| Box::new(values) as Box<dyn Iterator<Item = PossibleValue>>)
    }
}
