//! Presets: TOML files named by `--preset`, from `presets/` in the working directory or from the binary.
//! A file that sets `model` is a model preset and may define sizes (`[size.student]`); any other is an overlay, and may change a size of
//! a model (`[size-of-gat.teacher]`).

use std::path::Path;

use super::data_kind::DataKind;
use super::error::{ConfigError, Problem};
use kdgat_base::nearest;

use super::layer::Layer;
use super::origin::Origin;
use super::text::{Entry, Node, Table, parse_toml};

/// Presets compiled into the binary: name and content. A test compares the list with the folder.
pub const BUILT_IN: &[(&str, &str)] = &[
    ("appnp", include_str!("../../../presets/appnp.toml")),
    ("consistency", include_str!("../../../presets/consistency.toml")),
    ("dqn", include_str!("../../../presets/dqn.toml")),
    ("gat", include_str!("../../../presets/gat.toml")),
    ("gcn", include_str!("../../../presets/gcn.toml")),
    ("gin", include_str!("../../../presets/gin.toml")),
    ("gpu-12gb", include_str!("../../../presets/gpu-12gb.toml")),
    ("gpu-141gb", include_str!("../../../presets/gpu-141gb.toml")),
    ("gpu-16gb", include_str!("../../../presets/gpu-16gb.toml")),
    ("gpu-24gb", include_str!("../../../presets/gpu-24gb.toml")),
    ("gpu-4gb", include_str!("../../../presets/gpu-4gb.toml")),
    ("gpu-40gb", include_str!("../../../presets/gpu-40gb.toml")),
    ("gpu-8gb", include_str!("../../../presets/gpu-8gb.toml")),
    ("gpu-80gb", include_str!("../../../presets/gpu-80gb.toml")),
    ("irreps", include_str!("../../../presets/irreps.toml")),
    ("mlp", include_str!("../../../presets/mlp.toml")),
    ("painn", include_str!("../../../presets/painn.toml")),
    ("profile", include_str!("../../../presets/profile.toml")),
    ("quick", include_str!("../../../presets/quick.toml")),
    ("sage", include_str!("../../../presets/sage.toml")),
    ("schnet", include_str!("../../../presets/schnet.toml")),
    ("sgmp", include_str!("../../../presets/sgmp.toml")),
    ("vgae", include_str!("../../../presets/vgae.toml")),
];

/// A parsed preset file.
pub struct Preset {
    pub name: String,
    /// The file's path, for origins and errors.
    pub file: String,
    pub shared: Table,
    pub sizes: Vec<(String, Table)>,
    /// Fields that replace those of a size when the data are graphs that are no CAN windows: `[size-on-graphs.teacher]`.
    pub on_graphs: Vec<(String, Table)>,
    /// Fields that replace those of a size when the data are one large graph: `[size-on-nodes.teacher]`.
    pub on_nodes: Vec<(String, Table)>,
    /// Fields of an overlay for one size of a model, with the model's name: `[size-of-gat.teacher]`.
    pub of_models: Vec<(String, Vec<(String, Table)>)>,
}

impl Preset {
    fn parse(name: &str, file: String, text: &str) -> Result<Preset, Box<Problem>> {
        let mut shared = parse_toml(&file, text)?;
        let sizes = named_tables(&mut shared, "size", &file)?;
        let on_graphs = named_tables(&mut shared, ON_GRAPHS, &file)?;
        let on_nodes = named_tables(&mut shared, ON_NODES, &file)?;
        let models: Vec<String> =
            shared.iter().filter_map(|entry| entry.key.strip_prefix(SIZE_OF)).map(str::to_owned).collect();
        let mut of_models = Vec::new();
        for model in models {
            let fields = named_tables(&mut shared, &format!("{SIZE_OF}{model}"), &file)?;
            of_models.push((model, fields));
        }
        Ok(Preset { name: name.to_string(), file, shared, sizes, on_graphs, on_nodes, of_models })
    }

    /// The fields that replace those of a size for this kind of data.
    fn replaced(&self, size: &str, kind: DataKind) -> Option<&Table> {
        let tables = match kind {
            DataKind::Windows => return None,
            DataKind::Graphs => &self.on_graphs,
            DataKind::OneGraph => &self.on_nodes,
        };
        tables.iter().find(|of_size| of_size.0 == size).map(|(_, fields)| fields)
    }

    /// The fields that this overlay has for a size of a model.
    fn fields_of(&self, model: &str, size: &str) -> Option<&Table> {
        let (_, sizes) = self.of_models.iter().find(|of_model| of_model.0 == model)?;
        sizes.iter().find(|of_size| of_size.0 == size).map(|(_, fields)| fields)
    }

    pub fn is_model(&self) -> bool {
        let sets_model = |entry: &Entry| match &entry.node {
            Node::Value(_) => entry.key == "model",
            Node::Table(fields) => entry.key == "model" && fields.iter().any(|field| field.key == "model"),
        };
        !self.sizes.is_empty() || self.shared.iter().any(sets_model)
    }
}

/// The table with a size's fields for a dataset of graphs.
const ON_GRAPHS: &str = "size-on-graphs";
/// The table with a size's fields for one large graph.
const ON_NODES: &str = "size-on-nodes";
/// Beginning of an overlay's table with fields for the sizes of a model, whose name follows.
const SIZE_OF: &str = "size-of-";

/// Takes the tables `[name.KEY]` out of `table`.
fn named_tables(table: &mut Table, name: &str, file: &str) -> Result<Vec<(String, Table)>, Box<Problem>> {
    let found = table.extract_if(.., |entry| entry.key == name && matches!(entry.node, Node::Table(_)));
    let mut tables = Vec::new();
    for Entry { node, .. } in found {
        if let Node::Table(entries) = node {
            tables.extend(entries);
        }
    }
    let fields_of = |Entry { key, line, node }: Entry| match node {
        Node::Table(fields) => Ok((key, fields)),
        Node::Value(_) => {
            let message = format!("{name}.{key} must be a table of fields: [{name}.{key}]");
            Err(Box::new(Problem::Syntax { file: file.to_owned(), line, message }))
        }
    };
    tables.into_iter().map(fields_of).collect()
}

/// All available presets: those in the folder `presets/` first, then those in the binary.
pub fn available(working_folder: &Path) -> Result<(Vec<Preset>, Vec<Problem>), ConfigError> {
    let mut presets: Vec<Preset> = Vec::new();
    let mut problems = Vec::new();
    let mut add = |name: &str, file: String, text: &str| match Preset::parse(name, file, text) {
        Ok(preset) => presets.push(preset),
        Err(problem) => problems.push(*problem),
    };
    let mut found = Vec::new();
    for path in toml_files(&working_folder.join("presets"))? {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text =
            std::fs::read_to_string(&path).map_err(|source| ConfigError::Unreadable { path: path.clone(), source })?;
        add(&name, format!("presets/{name}.toml"), &text);
        found.push(name);
    }
    for (name, text) in BUILT_IN {
        if !found.iter().any(|found| found == name) {
            add(name, format!("built-in presets/{name}.toml"), text);
        }
    }
    Ok((presets, problems))
}

fn toml_files(folder: &Path) -> Result<Vec<std::path::PathBuf>, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable { path: folder.to_path_buf(), source };
    let entries = match std::fs::read_dir(folder) {
        Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        entries => entries.map_err(unreadable)?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_some_and(|extension| extension == "toml") && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// The layers of a list of presets such as `vgae,student,quick`, left to right, for data of this kind.
pub fn layers(
    names: &[String],
    working_folder: &Path,
    kind: DataKind,
    problems: &mut Vec<Problem>,
) -> Result<Vec<Layer>, ConfigError> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let (presets, mut unparsed) = available(working_folder)?;
    problems.append(&mut unparsed);
    let mut layers = Vec::new();
    let (mut model, mut size): (Option<&Preset>, Option<&str>) = (None, None);
    for name in names {
        if let Some(preset) = presets.iter().find(|preset| &preset.name == name) {
            if preset.is_model() {
                if let Some(first) = model {
                    problems.push(conflict("models", &first.name, name));
                }
                model = Some(preset);
            }
            layers.push(layer(preset, name, &preset.shared, problems));
            problems.extend(unknown_sizes(preset, &presets));
            if let (Some(model), Some(size)) = (model, size) {
                layers.extend(preset.fields_of(&model.name, size).map(|fields| layer(preset, name, fields, problems)));
            }
        } else if let Some((size_name, fields)) =
            model.and_then(|model| model.sizes.iter().find(|size| &size.0 == name))
        {
            if let Some(first) = size {
                problems.push(conflict("sizes", first, name));
            }
            size = Some(size_name);
            if let Some(model) = model {
                let origin = format!("{},{name}", model.name);
                layers.push(layer(model, &origin, fields, problems));
                let replaced = model.replaced(name, kind);
                layers.extend(replaced.map(|fields| layer(model, &origin, fields, problems)));
            }
        } else {
            problems.push(unknown(name, &presets, model));
        }
    }
    Ok(layers)
}

fn layer(preset: &Preset, name: &str, fields: &Table, problems: &mut Vec<Problem>) -> Layer {
    let origin_at = |line| Origin::Preset { preset: name.to_string(), file: preset.file.clone(), line };
    Layer::from_table(fields, &origin_at, problems)
}

/// Problems of an overlay's tables for sizes that no model has.
fn unknown_sizes(overlay: &Preset, presets: &[Preset]) -> Vec<Problem> {
    let is_known = |model: &str, size: &str| {
        presets.iter().any(|preset| preset.name == model && preset.sizes.iter().any(|known| known.0 == size))
    };
    let of_models = overlay.of_models.iter().flat_map(|(model, sizes)| sizes.iter().map(move |size| (model, size)));
    let unknown = of_models.filter(|(model, (size, _))| !is_known(model, size));
    let problem = |(model, (size, fields)): (&String, &(String, Table))| Problem::Syntax {
        file: overlay.file.clone(),
        line: fields.first().map_or(1, |field| field.line),
        message: format!(
            "[{SIZE_OF}{model}.{size}]: no preset {model} has a size {size}; expected [{SIZE_OF}MODEL.SIZE]"
        ),
    };
    unknown.map(problem).collect()
}

fn conflict(what: &'static str, first: &str, second: &str) -> Problem {
    Problem::PresetConflict { what, first: first.to_string(), second: second.to_string() }
}

fn unknown(name: &str, presets: &[Preset], model: Option<&Preset>) -> Problem {
    let has_size = |preset: &&Preset| preset.sizes.iter().any(|size| size.0 == name);
    match (presets.iter().rev().find(has_size), model) {
        (Some(owner), None) => {
            return Problem::SizeBeforeModel { size: name.to_string(), model: owner.name.clone() };
        }
        (Some(_), Some(model)) if !model.sizes.is_empty() => {
            let sizes: Vec<&str> = model.sizes.iter().map(|size| size.0.as_str()).collect();
            return Problem::UnknownSize {
                model: model.name.clone(),
                size: name.to_string(),
                nearest: nearest(name, sizes.iter().copied()).to_string(),
                known: sizes.join(", "),
            };
        }
        _ => {}
    }
    let mut known: Vec<&str> = Vec::new();
    for preset in presets {
        known.push(&preset.name);
        known.extend(preset.sizes.iter().map(|size| size.0.as_str()));
    }
    known.sort_unstable();
    known.dedup();
    Problem::UnknownPreset {
        name: name.to_string(),
        nearest: nearest(name, known.iter().copied()).to_string(),
        known: known.join(", "),
    }
}
