//! `kdgat export`: writes a trained model as files that other programs can read without kdgat.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tch::Device;

use super::export_examples::examples;
use super::{StageError, setup};
use crate::config::Config;
use crate::evaluate::{TrainedModel, records};
use crate::files;
use crate::memory::{Meter, retry_on_oom};
use crate::nn::Architecture;
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
    /// Also write the model as ONNX (no autoencoders).
    pub onnx: bool,
    /// Number of test graphs or nodes to write with the model's outputs.
    pub examples: usize,
}

/// The result of an export.
#[derive(Debug, Clone)]
pub struct Exported {
    pub folder: PathBuf,
    /// Names of the files written.
    pub names: Vec<&'static str>,
    /// Number of test graphs or nodes among the examples.
    pub examples: usize,
    /// Name of one of them: "graph" or "node".
    pub unit: &'static str,
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
        count => Some(retry_on_oom(Meter::new(Device::Cpu), || examples(config, &model, count))?),
    };

    fs::create_dir_all(&folder).map_err(files::failed("make", &folder))?;
    checkpoint::write(&folder.join(WEIGHTS), &model.state, &model.description)?;
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        files::write_atomically(&path, bytes).map_err(files::failed("write", &path))
    };
    write(CONFIG, format!("{description:#}").as_bytes())?;
    let mut names = vec![WEIGHTS, CONFIG];
    if let Some(onnx) = onnx {
        write(ONNX, &onnx)?;
        names.push(ONNX);
    }
    if let Some(examples) = &examples {
        checkpoint::write(
            &folder.join(EXAMPLES),
            &examples.tensors,
            &json!({ "weights_digest": model.weights_digest }),
        )?;
        names.push(EXAMPLES);
    }
    let (examples, unit) = examples.map_or((0, "graph"), |examples| (examples.count, examples.unit));
    Ok(Exported { folder, names, examples, unit })
}

/// Refuses a folder with the export of other weights, whose optional files would remain next to the new ones, and a folder whose
/// `config.json` is not that of an export.
fn expect_no_other(folder: &Path, model: &TrainedModel) -> Result<(), StageError> {
    let path = folder.join(CONFIG);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(files::failed("read", &path)(source).into()),
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
    let labels = [("kdgat", description.to_string())];
    let (known, state) = (&model.description, &model.state);
    Ok(match &known.architecture {
        Architecture::Gat(architecture) => onnx::classifier(architecture, known.foreign_ids, state, &labels)?,
        Architecture::Graph(architecture) => onnx::graph_network(architecture, state, &labels)?,
        Architecture::Nodes(architecture) => onnx::node_network(architecture, state, &labels)?,
        Architecture::Vgae(_) | Architecture::GraphVgae(_) => {
            let text = "an autoencoder cannot be exported as ONNX; its safetensors and JSON files can be read";
            return Err(StageError::Input(format!("{}: {text}", model.name)));
        }
        Architecture::Pretraining(_) => {
            let text = "a pre-trained network has no outputs to export; begin a training with it (kdgat train --init-from) and export that";
            return Err(StageError::Input(format!("{}: {text}", model.name)));
        }
    })
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
