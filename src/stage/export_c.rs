//! `kdgat export --c`: writes a trained detector as C99 source code.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tch::Device;

use super::export::{description, short};
use super::{StageError, setup};
use crate::can::Frame;
use crate::car::{self, CarCalibration, CarModel, CarPartner, Measured, Precision, UsualScale, VectorResult, Vectors};
use crate::config::{Config, EvaluationConfig, Setting, Threshold};
use crate::detect::{AttackAbove, DetectOptions, Detection, Detector};
use crate::evaluate::ensemble::EnsembleThreshold;
use crate::evaluate::{Ensemble, Scale, TrainedModel, calibrations, records};
use crate::files;
use crate::nn::Architecture;
use crate::random;
use crate::shell;

const FORMAT: &str = "kdgat c source";
const CONFIG: &str = "config.json";
/// Share of attack-free windows that a calibration may call attacks, if no rule states one.
const DEFAULT_RATE: f64 = 0.001;
/// Windows of the test vectors.
const VECTOR_WINDOWS: usize = 24;
/// Seed of the frames of the test vectors: the same for every export.
const VECTOR_SEED: u64 = 0x6b64_6761_745f_6361;

/// Options of an export as C.
#[derive(Debug, Clone)]
pub struct ExportCOptions {
    /// A run's folder or a weight file; two of them, a classifier and an autoencoder, judge together.
    pub runs: Vec<PathBuf>,
    /// Folder for the sources.
    pub folder: PathBuf,
    /// Precision of the weight matrices.
    pub precision: Precision,
    /// Decision threshold: a score, or the rule of a recorded one; none: the one that `kdgat detect` uses.
    pub threshold: Option<Threshold>,
    /// Compile and measure the export.
    pub measure: bool,
    /// A calibration of the models, by name or as a file, to write for the C code.
    pub calibration: Option<String>,
}

/// A calibration that was written for the C code.
#[derive(Debug, Clone)]
pub struct ExportedCalibration {
    /// Its file.
    pub path: PathBuf,
    /// Differences between the verdicts of the C code and those of `kdgat detect` with the calibration, if there are any.
    pub left_out: Option<String>,
}

/// The result of an export as C.
#[derive(Debug, Clone)]
pub struct ExportedC {
    pub folder: PathBuf,
    /// Number of files.
    pub files: usize,
    /// Bytes of the network's constants.
    pub weight_bytes: usize,
    /// Most multiply-accumulates of a window.
    pub most_operations: usize,
    /// The threshold on the score, and its origin.
    pub threshold: f64,
    pub threshold_source: String,
    /// The calibration, if one was asked for.
    pub calibration: Option<ExportedCalibration>,
    /// Figures of the compiled detector, if they were asked for.
    pub measured: Option<Measured>,
}

/// Exports a model as C. Writes nothing before all contents are computed.
pub fn export_c(config: &Config, options: &ExportCOptions) -> Result<ExportedC, StageError> {
    setup::use_threads(config.training.threads);
    let models = Ensemble::read(&options.runs)?;
    let (chosen, scales) = match models.partner() {
        None => (threshold(models.first(), options.threshold)?, Vec::new()),
        Some(_) => (joint_threshold(&models, options.threshold)?, models.scales()?),
    };
    let stride = models.stride()?;
    let calibration = match &options.calibration {
        Some(asked) => calibration_of(&models, asked, options.precision)?,
        None => None,
    };
    let mut models = models.into_models();
    // From here on the trainer computes with the weights that the C code has.
    for model in &mut models {
        model.state = car::as_exported(&model.state, options.precision)?;
    }
    let vectors = vectors(&models, scales.clone(), stride, chosen.value)?;
    let (model, other) = (&models[0], models.get(1));
    let mut described = description(model)?;
    if let Some(other) = other {
        described["partner"] = description(other)?;
    }
    let exported = car::write(
        &CarModel {
            name: model.name.clone(),
            description: &model.description,
            state: &model.state,
            weights_digest: model.weights_digest.clone(),
            stride,
            precision: options.precision,
            threshold: chosen.value,
            threshold_method: chosen.method.clone(),
            least_score: chosen.least_score,
            calibration_rate: chosen.calibration_rate,
            partner: other.zip(scales.first().zip(scales.get(1))).map(|(other, (of_classifier, of_autoencoder))| {
                CarPartner {
                    name: other.name.clone(),
                    description: &other.description,
                    state: &other.state,
                    weights_digest: other.weights_digest.clone(),
                    classifier_scale: usual(of_classifier),
                    autoencoder_scale: usual(of_autoencoder),
                }
            }),
        },
        &vectors,
    )?;
    let folder = &options.folder;
    let names: Vec<&str> = exported.files.iter().map(|file| file.name.as_str()).collect();
    expect_own(folder, &names, &models)?;
    let write = |name: &str, contents: &str| {
        let path = folder.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(files::failed("make", parent))?;
        }
        files::write_atomically(&path, contents.as_bytes()).map_err(files::failed("write", &path))
    };
    // First, so that an interrupted export can be repeated.
    let precision = if options.precision == Precision::Int8 { "int8" } else { "f32" };
    let of_c =
        json!({ "precision": precision, "threshold": chosen.value, "threshold_method": chosen.method, "files": names });
    let mut marker = described;
    marker["format"] = FORMAT.into();
    marker["c"] = of_c;
    write(CONFIG, &format!("{marker:#}"))?;
    for file in &exported.files {
        write(&file.name, &file.contents)?;
    }
    let calibration = match calibration {
        Some(Saved { name, bytes, left_out }) => {
            let path = folder.join(name);
            files::write_atomically(&path, &bytes).map_err(files::failed("write", &path))?;
            Some(ExportedCalibration { path, left_out })
        }
        None => None,
    };
    Ok(ExportedC {
        calibration,
        folder: folder.clone(),
        files: exported.files.len() + 1,
        weight_bytes: exported.weight_bytes,
        most_operations: exported.most_operations,
        threshold: chosen.value,
        threshold_source: chosen.source,
        measured: if options.measure { Some(car::measure(folder)?) } else { None },
    })
}

/// A calibration in the format of the C code.
struct Saved {
    /// Name of the file.
    name: String,
    bytes: Vec<u8>,
    left_out: Option<String>,
}

/// Finds a calibration of the model and converts it; `None` if `asked` says none.
fn calibration_of(models: &Ensemble, asked: &str, precision: Precision) -> Result<Option<Saved>, StageError> {
    let Some((path, calibration)) = calibrations::find(models, asked)? else { return Ok(None) };
    if models.partner().is_some() {
        return Err(StageError::Input(
            "--calibration: two models together have no calibration in C; export one of them alone".to_owned(),
        ));
    }
    let car = &calibration.car;
    let ids = car.ids().map(|ids| (ids.known().ids(), ids.evidence()));
    let scale = car.scale();
    let saved = CarCalibration {
        weights_digest: &calibration.weights_digest,
        precision,
        median: scale.median,
        spread: scale.spread,
        threshold: calibration.threshold,
        profile: car.profile(),
        ids,
        errors: car.usual_errors(),
    };
    let relations = car.profile().map_or(0, |profile| profile.relations().len());
    let mut left_out = Vec::new();
    if relations > 0 {
        left_out.push(format!("the C code has no room for the calibration's {relations} relations between signals"));
    }
    if precision == Precision::Int8 {
        left_out.push("the calibration was made with weights of single precision, not of 8 bits".to_owned());
    }
    let left_out = (!left_out.is_empty())
        .then(|| format!("{}; verdicts may differ from those of kdgat detect", left_out.join(", and ")));
    let stem = path.file_stem().map_or("car".into(), |stem| stem.to_string_lossy());
    Ok(Some(Saved { name: format!("{stem}.calibration"), bytes: saved.bytes()?, left_out }))
}

/// Refuses a folder whose files an export of another model or another program would overwrite.
fn expect_own(folder: &Path, names: &[&str], models: &[TrainedModel]) -> Result<(), StageError> {
    let path = folder.join(CONFIG);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let Some(foreign) = names.iter().map(|name| folder.join(name)).find(|path| path.exists()) else {
                return Ok(());
            };
            return Err(StageError::Input(format!(
                "{} exists but {} does not: the folder has no export as C, and the file would be overwritten; name another folder with --c",
                foreign.display(),
                path.display()
            )));
        }
        Err(source) => return Err(files::failed("read", &path)(source).into()),
    };
    let found: Value = serde_json::from_slice(&text).unwrap_or(Value::Null);
    let digests: Vec<&str> =
        [&found, &found["partner"]].iter().filter_map(|one| one["weights_digest"].as_str()).collect();
    let what = if found["format"] != FORMAT {
        "does not belong to an export as C and would be overwritten".to_owned()
    } else if digests.iter().copied().eq(models.iter().map(|model| model.weights_digest.as_str())) {
        return Ok(());
    } else {
        let listed = |texts: Vec<&str>| texts.join(" + ");
        format!(
            "belongs to other weights ({}) than those of {} ({})",
            if digests.is_empty() {
                "unknown".to_owned()
            } else {
                listed(digests.iter().map(|digest| short(digest)).collect())
            },
            listed(models.iter().map(|model| model.name.as_str()).collect()),
            listed(models.iter().map(|model| short(&model.weights_digest)).collect()),
        )
    };
    Err(StageError::Input(format!("{}: {what}; delete the folder, or name another with --c", path.display())))
}

/// The threshold of an export.
struct Chosen {
    value: f64,
    method: String,
    /// Method and origin, for display.
    source: String,
    least_score: Option<f64>,
    calibration_rate: f64,
}

/// Chooses the threshold like `kdgat detect`: the user's, else a recorded one, else 0.5 for a classifier.
fn threshold(model: &TrainedModel, asked: Option<Threshold>) -> Result<Chosen, StageError> {
    let recorded = match asked {
        Some(Threshold::Score(_)) => None,
        Some(rule) => {
            Some(records::recorded_by(model, rule)?.into_iter().next().ok_or_else(|| not_recorded(model, rule))?)
        }
        None => records::deciding(model)?,
    };
    let method = recorded.as_ref().and_then(|recorded| Threshold::parse(&recorded.method));
    let rate_of = |threshold| match threshold {
        Some(Threshold::FalsePositiveRate(rate)) => Some(rate),
        _ => None,
    };
    let default = EvaluationConfig::default().threshold;
    let calibration_rate = rate_of(method).or(rate_of(Some(default))).unwrap_or(DEFAULT_RATE);
    let of_rate = records::recorded_by(model, Threshold::FalsePositiveRate(calibration_rate))?;
    let least_score = of_rate.first().map(|recorded| recorded.short_profile.unwrap_or(recorded.value));
    let chosen =
        |value: f64, method: String, source: String| Chosen { value, method, source, least_score, calibration_rate };
    Ok(match (recorded, asked) {
        (Some(recorded), _) => {
            let source = format!("{}, recorded on {}", recorded.method, recorded.dataset);
            chosen(recorded.value, recorded.method, source)
        }
        (None, Some(Threshold::Score(score))) => chosen(score, "given".to_owned(), "--threshold".to_owned()),
        (None, _) if matches!(model.description.architecture, Architecture::Gat(_)) => {
            let run = shell::quoted_path(&model.folder);
            let source = format!("no threshold is recorded for {}; `kdgat evaluate {run}` chooses one", model.name);
            chosen(0.5, "the default of a classifier".to_owned(), source)
        }
        (None, _) => {
            return Err(StageError::Input(format!(
                "no threshold is recorded for {}, and the scores of an autoencoder have no default threshold; run `kdgat evaluate {}`, \
                 or give --threshold",
                model.name,
                shell::quoted_path(&model.folder)
            )));
        }
    })
}

/// Chooses the threshold of two models together like `kdgat detect`: the user's, else a recorded one.
fn joint_threshold(models: &Ensemble, asked: Option<Threshold>) -> Result<Chosen, StageError> {
    let recorded = match asked {
        Some(Threshold::Score(score)) => {
            return Ok(Chosen {
                value: score,
                method: "given".to_owned(),
                source: "--threshold".to_owned(),
                least_score: None,
                calibration_rate: DEFAULT_RATE,
            });
        }
        Some(rule) => models.recorded_by(rule)?,
        None => models.deciding()?,
    };
    let EnsembleThreshold { method, value, dataset, .. } = recorded.ok_or_else(|| {
        let what = asked.map_or_else(|| "no threshold".to_owned(), |rule| format!("no threshold for {rule}"));
        StageError::Input(format!(
            "{what} is recorded for {}, and the mean of two scores has no default threshold; run `{}`, or give --threshold",
            models.name(),
            models.evaluate_command()
        ))
    })?;
    let source = format!("{method}, recorded on {dataset}");
    Ok(Chosen { value, method, source, least_score: None, calibration_rate: DEFAULT_RATE })
}

/// The scale in the form of the C code.
fn usual(scale: &Scale) -> UsualScale {
    UsualScale { median: scale.median, spread: scale.spread }
}

fn not_recorded(model: &TrainedModel, rule: Threshold) -> StageError {
    StageError::Input(format!(
        "--threshold {rule}: no such threshold is recorded for {}; `kdgat evaluate {} --threshold {rule}` chooses it on validation windows \
         and records it",
        model.name,
        shell::quoted_path(&model.folder)
    ))
}

/// Frames of the test vectors, with the trainer's results.
fn vectors(models: &[TrainedModel], scales: Vec<Scale>, stride: usize, threshold: f64) -> Result<Vectors, StageError> {
    let options = DetectOptions { stride, threshold: AttackAbove::Score(threshold), cars: Vec::new(), scales };
    let mut detector = Detector::new(&models.iter().collect::<Vec<_>>(), options, Device::Cpu)?;
    let first = &models[0];
    let count = (VECTOR_WINDOWS - 1) * stride + first.window()? + 1;
    let frames = vector_frames(first.description.vocabulary.ids(), count);
    let mut results = Vec::with_capacity(VECTOR_WINDOWS);
    detector.push(&frames, |Detection { score, label, contribution, .. }| {
        results.push(VectorResult { score, attack: label == "attack", weight: contribution });
        Ok::<(), StageError>(())
    })?;
    Ok(Vectors { frames, results })
}

/// Traffic with everything that a bus can have: known IDs with counters and constants, unknown and extended IDs, frames without payload, a
/// flood of one ID, and bursts of many IDs.
fn vector_frames(ids: &[u32], count: usize) -> Vec<Frame> {
    let mut time = 1_000.0;
    let frame = |position: usize| {
        let draw = |which: u64| random::mix(VECTOR_SEED ^ random::mix(which) ^ position as u64);
        let known = match ids {
            [] => 0x100,
            ids => ids[random::to_below(draw(1), ids.len() as u64) as usize],
        };
        // A phase is an eighth of the traffic.
        let can_id = match (8 * position / count, draw(2) % 10) {
            (3, 0..8) => 0,
            (4, 0..3) => 0x600 + (draw(3) % 64) as u32,
            (5, 0..3) => 0x18fe_f100 + (draw(3) % 8) as u32,
            (6, _) => (draw(3) % 2048) as u32,
            _ => known,
        };
        let payload_length = if draw(4) % 8 == 0 { (draw(5) % 9) as u8 } else { 8 };
        let mut payload = [0; crate::can::frame::PAYLOAD_BYTES];
        for (index, byte) in payload.iter_mut().enumerate().take(payload_length.into()) {
            *byte = match index {
                0 => (position / 7) as u8,
                1..4 => can_id as u8,
                _ => draw(6 + index as u64) as u8,
            };
        }
        time += 1e-4 + 1e-6 * (draw(20) % 900) as f64;
        Frame { timestamp: (time * 1e6).round() / 1e6, can_id, payload, payload_length, attack: false }
    };
    (0..count).map(frame).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frames_of_the_vectors_never_change() {
        let frames = vector_frames(&[0x100, 0x200, 0x300], 2501);
        assert_eq!(frames, vector_frames(&[0x100, 0x200, 0x300], 2501));
        assert!(frames.windows(2).all(|pair| pair[0].timestamp < pair[1].timestamp));
        let has = |predicate: fn(&Frame) -> bool| frames.iter().any(predicate);
        assert!(
            has(|frame| frame.can_id == 0x200)
                && has(|frame| frame.can_id > 0x7ff)
                && has(|frame| frame.payload_length == 0)
        );
        assert!(
            frames.iter().all(|frame| frame.payload[usize::from(frame.payload_length)..].iter().all(|byte| *byte == 0))
        );
    }
}
