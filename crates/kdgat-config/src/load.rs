//! Merges the layers: built-in defaults, data settings of the run that the command works on, presets, `kdgat.toml`, environment
//! variables, `--config`, flags. Later layers win.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use figment::Figment;
use figment::providers::Serialized;

use super::Config;
use super::data_kind::DataKind;
use super::error::{ConfigError, Problem};
use super::layer::{Layer, fields};
use super::origin::Origin;
use super::text::{Node, Table, parse_json, parse_toml};
use super::{frozen, presets};
use kdgat_can::catalogue;

/// The sources of a configuration.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Frozen configuration of the run that the command works on; its data settings are the default.
    pub run: Option<PathBuf>,
    /// Names of presets (`vgae`, `student`, ...), merged left to right.
    pub presets: Vec<String>,
    /// The folder searched for `kdgat.toml` and `presets/`.
    pub working_folder: PathBuf,
    /// The process's environment; only `KDGAT_*` variables are read.
    pub variables: Vec<(OsString, OsString)>,
    /// The file given by `--config`: TOML, or a run's `config.json`.
    pub config_file: Option<PathBuf>,
    /// Flags, as pairs of field name and text.
    pub flags: Vec<(String, String)>,
    /// True if presets are for one large graph, whatever the data.
    pub one_graph: bool,
}

/// A merged configuration, and the origin of each value.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The merged values.
    pub config: Config,
    origins: BTreeMap<&'static str, Origin>,
}

impl Loaded {
    /// The layer that set this field.
    pub fn origin(&self, field: &str) -> &Origin {
        self.origins.get(field).unwrap_or(&Origin::Default)
    }

    /// Names the dataset.
    pub fn set_data(&mut self, data: Option<PathBuf>) {
        self.config.data_kind = DataKind::of(data.as_deref());
        self.config.data.data = data;
    }

    /// True if the user has set this field, in whatever layer.
    pub fn is_given(&self, field: &str) -> bool {
        !matches!(self.origin(field), Origin::Default | Origin::Run { .. })
    }
}

/// Merges the layers. Problems of all layers are reported together.
pub fn load(sources: &Sources) -> Result<Loaded, ConfigError> {
    let mut problems = Vec::new();
    let mut layers = Vec::new();
    let project_file = sources.working_folder.join("kdgat.toml");
    if project_file.is_file() {
        layers.push(file_layer(&project_file, "kdgat.toml", &mut problems)?);
    }
    let variables = sources.variables.iter().filter(|(name, value)| !names_data_folder(sources, name, value));
    layers.push(Layer::from_variables(variables, &mut problems));
    if let Some(path) = &sources.config_file {
        let layer = file_layer(&sources.working_folder.join(path), &path.display().to_string(), &mut problems)?;
        if !sources.presets.is_empty() && layer.assignments.len() == fields().count() {
            problems.push(Problem::Ignored {
                flag: "--preset".to_string(),
                because: format!("{} sets every field", path.display()),
                remedy: "drop --preset, or give the fields to change as flags".to_string(),
            });
        }
        layers.push(layer);
    }
    layers.push(Layer::from_flags(&sources.flags, &mut problems));
    let kind = if sources.one_graph { DataKind::OneGraph } else { data_kind(&layers, &sources.working_folder) };
    let mut presets = presets::layers(&sources.presets, &sources.working_folder, kind, &mut problems)?;
    presets.append(&mut layers);
    layers = presets;
    if let Some(path) = &sources.run {
        let names_data = layers.iter().flat_map(|layer| &layer.assignments).any(|one| one.field.name == "data");
        layers.insert(0, run_layer(path, names_data, &mut problems)?);
    }
    ConfigError::unless_empty(problems)?;

    let mut figment = Figment::from(Serialized::defaults(Config::default()));
    let mut origins = BTreeMap::new();
    for layer in layers {
        for assignment in &layer.assignments {
            origins.insert(assignment.field.name, assignment.origin.clone());
        }
        figment = figment.merge(layer);
    }
    // Every value was parsed by its field's own type, so this can only fail for a type that cannot read back what it writes; a
    // test covers all of them.
    let mut config: Config = figment.extract().map_err(|error| {
        ConfigError::Invalid(vec![Problem::Combination {
            what: format!("the merged configuration does not fit its types: {error}"),
            remedy: "please report this".to_string(),
        }])
    })?;
    if config.data.data.as_deref().is_some_and(|data| names_simulated(sources, data)) {
        config.data.data = None;
    }
    let data = config.data.data.as_ref().map(|data| sources.working_folder.join(data));
    config.data_kind = DataKind::of(data.as_deref());
    Ok(Loaded { config, origins })
}

/// The kind of the dataset that the last of these layers with a dataset names.
fn data_kind(layers: &[Layer], working_folder: &Path) -> DataKind {
    let named = layers.iter().flat_map(|layer| &layer.assignments).rfind(|one| one.field.name == "data");
    let path = named.and_then(|one| one.value.as_str()).map(|path| working_folder.join(path));
    DataKind::of(path.as_deref())
}

/// True if this variable is `KDGAT_DATA` and names the parent folder of datasets. If it names a single dataset, it sets the field
/// `data`, like any other variable.
fn names_data_folder(sources: &Sources, name: &OsStr, value: &OsStr) -> bool {
    name == catalogue::DATA_FOLDER_VARIABLE
        && !value.is_empty()
        && catalogue::holds_no_dataset(&sources.working_folder.join(value))
}

/// True if `data` is the name of the simulated dataset (whose folder exists only after its first use) and no folder has that name.
fn names_simulated(sources: &Sources, data: &Path) -> bool {
    let variable = sources.variables.iter().find(|(name, _)| name == catalogue::DATA_FOLDER_VARIABLE);
    let beside = variable.map(|(_, folder)| sources.working_folder.join(folder).join(data));
    let is_there = sources.working_folder.join(data).exists() || beside.is_some_and(|folder| folder.is_dir());
    data == Path::new(catalogue::SIMULATED) && !is_there
}

fn file_layer(path: &Path, name: &str, problems: &mut Vec<Problem>) -> Result<Layer, ConfigError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable { path: path.to_path_buf(), source })?;
    let parsed = if text.trim_start().starts_with('{') {
        parse_json(name, &text).and_then(|table| configuration_of(name, table))
    } else {
        parse_toml(name, &text)
    };
    match parsed {
        Ok(table) => {
            let origin_at = |line| Origin::File { file: name.to_string(), line };
            Ok(Layer::from_table(&table, &origin_at, problems))
        }
        Err(problem) => {
            problems.push(*problem);
            Ok(Layer::default())
        }
    }
}

/// The data settings of a run. If another layer names a dataset, only the settings that the run's model depends on.
fn run_layer(path: &Path, names_data: bool, problems: &mut Vec<Problem>) -> Result<Layer, ConfigError> {
    const READ_BY_MODEL: [&str; 4] = ["window", "stride", "features", "synthetic_attacks"];
    let unreadable = |source| ConfigError::Unreadable { path: path.to_path_buf(), source };
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let file = path.display().to_string();
    match parse_json(&file, &text).and_then(|table| configuration_of(&file, table)) {
        Ok(mut table) => {
            table.retain(|entry| entry.key == "data");
            let origin_at = |line| Origin::Run { file: file.clone(), line };
            let mut layer = Layer::from_table(&table, &origin_at, problems);
            layer.assignments.retain(|one| !names_data || READ_BY_MODEL.contains(&one.field.name));
            Ok(layer)
        }
        Err(problem) => {
            problems.push(*problem);
            Ok(Layer::default())
        }
    }
}

/// The fields of a file: a run's `config.json` has them under `config`, next to the run's inputs.
fn configuration_of(file: &str, table: Table) -> Result<Table, Box<Problem>> {
    let mut table = table;
    for entry in &table {
        if let (frozen::VERSION_KEY, Node::Value(text)) = (entry.key.as_str(), &entry.node) {
            let found = text.parse().unwrap_or(u64::MAX);
            if found > frozen::VERSION {
                return Err(Box::new(Problem::NewerLayout {
                    file: file.to_string(),
                    found,
                    supported: frozen::VERSION,
                }));
            }
        }
    }
    let position = table.iter().position(|entry| entry.key == frozen::CONFIG_KEY);
    match position.map(|position| table.swap_remove(position).node) {
        Some(Node::Table(configuration)) => Ok(configuration),
        Some(Node::Value(_)) => Err(Box::new(Problem::Syntax {
            file: file.to_string(),
            line: 1,
            message: format!("`{}` must be an object with configuration fields", frozen::CONFIG_KEY),
        })),
        None => Ok(table),
    }
}
