//! `kdgat export`: writes a trained model as files that other programs can read without kdgat.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::evaluate::expect_fit;
use super::run_data::warn_of_other;
use super::{StageError, setup, training};
use crate::config::Config;
use crate::evaluate::{Scorer, TrainedModel, records};
use crate::files;
use crate::graph::{Batch, Split, assemble};
use crate::memory::{Meter, retry_on_oom};
use crate::nn::Architecture;
use crate::nn::weights::StateDict;
use crate::onnx;
use crate::train::checkpoint;

const FORMAT: &str = "kdgat model";
const FORMAT_VERSION: u32 = 1;
/// Names of the exported files.
const WEIGHTS: &str = "model.safetensors";
const CONFIG: &str = "config.json";
const EXAMPLES: &str = "examples.safetensors";
const ONNX: &str = "model.onnx";

/// Options of an export, in addition to the configuration.
#[derive(Debug, Clone)]
pub struct ExportOptions {
    /// A run's folder or a weight file.
    pub run: PathBuf,
    /// Folder for the files; none: `export` in the run's folder.
    pub output: Option<PathBuf>,
    /// Also write the model as ONNX (classifiers only).
    pub onnx: bool,
    /// Number of test graphs to write with the model's outputs.
    pub examples: usize,
}

/// The result of an export.
#[derive(Debug, Clone)]
pub struct Exported {
    pub folder: PathBuf,
    /// Names of the files written.
    pub names: Vec<&'static str>,
    /// Number of test graphs among the examples.
    pub examples: usize,
}

/// Exports a model. Writes nothing before all contents are computed.
pub fn export(config: &Config, options: &ExportOptions) -> Result<Exported, StageError> {
    setup::use_threads(config.training.threads);
    let model = TrainedModel::read(&options.run)?;
    let folder = options.output.clone().unwrap_or_else(|| model.folder.join("export"));
    expect_no_other(&folder, &model)?;
    let description = description(&model)?;
    let onnx = options.onnx.then(|| onnx(&model, &description)).transpose()?;
    let examples = match options.examples {
        0 => None,
        count => {
            expect_fit(config, &model)?;
            Some(retry_on_oom(Meter::new(Device::Cpu), || examples(config, &model, count))?)
        }
    };

    fs::create_dir_all(&folder).map_err(|source| file_error(&folder, "make", source))?;
    checkpoint::write(&folder.join(WEIGHTS), &model.state, &model.description)?;
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        files::write_atomically(&path, bytes).map_err(|source| file_error(&path, "write", source))
    };
    write(CONFIG, format!("{description:#}").as_bytes())?;
    let mut names = vec![WEIGHTS, CONFIG];
    if let Some(onnx) = onnx {
        write(ONNX, &onnx)?;
        names.push(ONNX);
    }
    if let Some(examples) = &examples {
        checkpoint::write(&folder.join(EXAMPLES), examples, &json!({ "weights_digest": model.weights_digest }))?;
        names.push(EXAMPLES);
    }
    let examples = examples.map_or(0, |examples| examples["label"].numel());
    Ok(Exported { folder, names, examples })
}

/// Refuses a folder with the export of other weights, whose optional files would remain next to the new ones, and a folder whose
/// `config.json` is not that of an export.
fn expect_no_other(folder: &Path, model: &TrainedModel) -> Result<(), StageError> {
    let path = folder.join(CONFIG);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(file_error(&path, "read", source)),
    };
    let found: Value = serde_json::from_slice(&text).unwrap_or(Value::Null);
    let what = match &found["weights_digest"] {
        _ if found["format"] != FORMAT => "does not belong to an export and would be overwritten".to_owned(),
        Value::String(digest) if *digest == model.weights_digest => {
            let (found, own) = (found["foreign_id_evidence"].as_f64().unwrap_or(0.0), foreign_id_evidence(model));
            if found == own {
                return Ok(());
            }
            format!(
                "belongs to the same weights with another list of known IDs (foreign_id_evidence {found}, not {own})"
            )
        }
        other => format!(
            "belongs to other weights ({}) than those of {} ({})",
            short(other.as_str().unwrap_or("unknown")),
            model.name,
            short(&model.weights_digest)
        ),
    };
    Err(StageError::Input(format!("{}: {what}; delete the folder, or name another with --output", path.display())))
}

/// The evidence that an unknown ID adds to the log odds; 0 for a model without a list of known IDs.
fn foreign_id_evidence(model: &TrainedModel) -> f64 {
    model.description.foreign_ids.map_or(0.0, |counted| counted.evidence())
}

pub(super) fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

fn onnx(model: &TrainedModel, description: &Value) -> Result<Vec<u8>, StageError> {
    let found = match &model.description.architecture {
        Architecture::Gat(architecture) => {
            let labels = [("kdgat", description.to_string())];
            return Ok(onnx::classifier(architecture, model.description.foreign_ids, &model.state, &labels)?);
        }
        Architecture::Vgae(_) => "an autoencoder",
        Architecture::Graph(_) => "a network for other graphs than CAN windows",
        Architecture::Nodes(_) => "a network for the nodes of one graph",
    };
    Err(StageError::Input(format!("{} is {found}; only classifiers (gat) can be exported as ONNX", model.name)))
}

pub(super) fn file_error(path: &Path, action: &'static str, source: io::Error) -> StageError {
    StageError::File { path: path.to_owned(), action, source }
}

/// The content of `config.json`: everything that a reader needs to know.
pub(super) fn description(model: &TrainedModel) -> Result<Value, StageError> {
    let known = &model.description;
    let input = known.architecture.input();
    let thresholds: Vec<Value> = records::read(model)?
        .iter()
        .map(|recorded| json!({ "method": recorded.method, "value": recorded.value, "dataset": recorded.dataset }))
        .collect();
    Ok(json!({
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "kdgat_version": env!("CARGO_PKG_VERSION"),
        "model": known.architecture.model_name(),
        "architecture": known.architecture.to_json(),
        "vocabulary": known.vocabulary.ids(),
        "foreign_id_evidence": foreign_id_evidence(model),
        "features": input.features().to_string(),
        "window": known.window,
        "stride": model.stride,
        "dataset": known.dataset,
        "thresholds": thresholds,
        "weights_digest": model.weights_digest,
        "teacher_digest": known.teacher_digest,
    }))
}

/// The first test graphs as input tensors, with the model's outputs: logits (gat) or difficulties (vgae).
fn examples(config: &Config, model: &TrainedModel, count: usize) -> Result<StateDict, StageError> {
    let store = setup::open_store(config)?;
    warn_of_other(model, &store);
    let graphs: Vec<u64> = store.select(Split::Test, None).into_iter().take(count).collect();
    if graphs.is_empty() {
        let dataset = &store.manifest().dataset;
        return Err(StageError::Input(format!("dataset {dataset} has no test graph to write as an example")));
    }
    let scorer = Scorer::new(model, Device::Cpu, training::attention_kernel(config))?;
    let batch = assemble(&store, &graphs, &scorer.assemble_options())?;
    let name = match model.description.architecture {
        Architecture::Gat(_) => "logits",
        Architecture::Vgae(_) => "difficulty",
        Architecture::Graph(_) | Architecture::Nodes(_) => "outputs",
    };
    let mut examples = inputs(&batch)?;
    examples.insert(name.to_owned(), scorer.answers(&batch)?);
    Ok(examples)
}

/// The tensors of a batch, under the names used in the documentation.
fn inputs(batch: &Batch) -> Result<StateDict, StageError> {
    let long = |tensor: &Tensor| tensor.f_to_kind(Kind::Int64);
    let mut inputs = StateDict::from([
        ("id".to_owned(), batch.id_input.shallow_clone()),
        ("continuous".to_owned(), batch.continuous.shallow_clone()),
        ("source".to_owned(), long(&batch.adjacency.sources)?),
        ("target".to_owned(), long(&batch.adjacency.targets)?),
        ("graph".to_owned(), batch.graph_of_node.shallow_clone()),
        ("label".to_owned(), batch.labels.shallow_clone()),
    ]);
    if let Some(attributes) = &batch.edge_attributes {
        inputs.insert("edge_attributes".to_owned(), attributes.shallow_clone());
    }
    Ok(inputs)
}
