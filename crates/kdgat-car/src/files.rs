//! The exported folder: sources, configuration, tables, test vectors, build files and README.

use kdgat_can::Frame;
use kdgat_graph::FeatureSet;
use kdgat_nn::Architecture;

use crate::network::Network;
use crate::text::{double, float};
use crate::{CText, CarError, CarModel, CarPartner, Precision, example, readme, window};

/// A file of the exported folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CarFile {
    /// Path below the folder.
    pub name: String,
    /// Text of the file.
    pub contents: String,
}

/// The exported folder, and its figures.
#[derive(Debug, Clone)]
pub struct CarFiles {
    /// All files.
    pub files: Vec<CarFile>,
    /// Bytes of the network's constants.
    pub weight_bytes: usize,
    /// Multiply-accumulates of the largest graph that a window can have.
    pub most_operations: usize,
}

/// Frames with the trainer's results for them, against which the C code is tested.
#[derive(Debug, Clone, Default)]
pub struct Vectors {
    /// Frames in order of time.
    pub frames: Vec<Frame>,
    /// One for each complete window.
    pub results: Vec<VectorResult>,
}

/// The trainer's result for a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VectorResult {
    /// Score, from 0 to 1 for a classifier.
    pub score: f64,
    /// True if the score is above the threshold.
    pub attack: bool,
    /// Contribution of the ID that weighs most.
    pub weight: f32,
}

/// Sources that are the same for every model.
const SOURCES: &[(&str, &str)] = &[
    ("kdgat_car.h", include_str!("../c/kdgat_car.h")),
    ("kdgat_car.c", include_str!("../c/kdgat_car.c")),
    ("kdgat_internal.h", include_str!("../c/kdgat_internal.h")),
    ("kdgat_model.h", include_str!("../c/kdgat_model.h")),
    ("kdgat_input.c", include_str!("../c/kdgat_input.c")),
    ("kdgat_linear.h", include_str!("../c/kdgat_linear.h")),
    ("kdgat_linear.c", include_str!("../c/kdgat_linear.c")),
    ("kdgat_attention.h", include_str!("../c/kdgat_attention.h")),
    ("kdgat_attention.c", include_str!("../c/kdgat_attention.c")),
    ("kdgat_gat.c", include_str!("../c/kdgat_gat.c")),
    ("kdgat_vgae.c", include_str!("../c/kdgat_vgae.c")),
    ("Makefile", include_str!("../c/Makefile")),
    ("CMakeLists.txt", include_str!("../c/CMakeLists.txt")),
    ("test/kdgat_test.c", include_str!("../c/test/kdgat_test.c")),
    ("test/kdgat_measure.c", include_str!("../c/test/kdgat_measure.c")),
];

/// Writes the model as C source code; returns the files.
///
/// # Errors
/// Fails if the C code does not support the model, or a weight is missing.
pub fn write(model: &CarModel, vectors: &Vectors) -> Result<CarFiles, CarError> {
    let network = Network::read(&model.name, model.description, model.state, model.precision)?;
    let partner = model.partner.as_ref().map(|partner| read_partner(model, partner, &network)).transpose()?;
    let (config, tables) = generated(model, &network, partner.as_ref())?;
    // Two models together have no calibration.
    let calibration = if partner.is_none() { window::CALIBRATION_FILES } else { &[] };
    let mut files: Vec<CarFile> = SOURCES
        .iter()
        .chain(window::FILES)
        .chain(calibration)
        .chain(example::FILES)
        .map(|&(name, contents)| CarFile { name: name.to_owned(), contents: contents.to_owned() })
        .collect();
    let mut add = |name: &str, contents: String| files.push(CarFile { name: name.to_owned(), contents });
    add("kdgat_config.h", config);
    add("kdgat_tables.c", tables);
    add("test/kdgat_vectors.h", vectors_text(vectors));
    let networks = || std::iter::once(&network).chain(&partner);
    let weight_bytes = networks().map(Network::bytes).sum();
    let most_operations = networks().map(Network::most_operations).sum();
    add("README.md", readme::write(model, weight_bytes, most_operations));
    Ok(CarFiles { files, weight_bytes, most_operations })
}

/// Reads the autoencoder that judges together with a classifier. Windows and features are computed once for both.
fn read_partner(model: &CarModel, partner: &CarPartner, network: &Network) -> Result<Network, CarError> {
    let autoencoder = Network::read(&partner.name, partner.description, partner.state, model.precision)?;
    let (of_classifier, of_autoencoder) = (model.description, partner.description);
    let inputs = [of_classifier, of_autoencoder].map(|description| description.architecture.input());
    let difference = if of_classifier.vocabulary != of_autoencoder.vocabulary {
        Some("vocabulary")
    } else if inputs[0].features() != inputs[1].features() || inputs[0].node_scaling != inputs[1].node_scaling {
        Some("features")
    } else if inputs[0].profile != inputs[1].profile {
        Some("profile of the car")
    } else {
        network.difference(&autoencoder)
    };
    match difference {
        None => Ok(autoencoder),
        Some(what) => Err(CarError::Unsupported(format!(
            "{} and {} cannot be exported together: their {what} differs, and the C code computes windows and features once for both; \
             train both on the same dataset with the same features, or export each alone",
            model.name, partner.name
        ))),
    }
}

/// Texts of `kdgat_config.h` and `kdgat_tables.c`.
fn generated(model: &CarModel, network: &Network, autoencoder: Option<&Network>) -> Result<(String, String), CarError> {
    let (mut config, mut tables) = (CText::default(), CText::default());
    let partner = model.partner.as_ref().map_or(String::new(), |partner| format!(" and {}", partner.name));
    let origin = format!("Generated by kdgat {} from {}{partner}.", env!("CARGO_PKG_VERSION"), model.name);
    config.comment(&format!("Configuration of the detector. {origin}"));
    config.line("#ifndef KDGAT_CONFIG_H\n#define KDGAT_CONFIG_H\n");
    config.define("KDGAT_WINDOW", format!("{}u", model.description.window));
    config.define("KDGAT_STRIDE", format!("{}u", model.stride));
    let input = model.description.architecture.input();
    let features = match input.features() {
        FeatureSet::Window => "CLASSIC",
        FeatureSet::Rich => "RICH",
        FeatureSet::Profile => "PROFILE",
        FeatureSet::Columns { .. } => {
            return Err(CarError::Unsupported(format!("{} is no model of CAN windows", model.name)));
        }
    };
    config.define("KDGAT_FEATURES", format!("KDGAT_FEATURES_{features}"));
    let kind = if matches!(model.description.architecture, Architecture::Gat(_)) { "GAT" } else { "VGAE" };
    config.define("KDGAT_MODEL", format!("KDGAT_MODEL_{kind}"));
    config.define("KDGAT_PAIR", u8::from(model.partner.is_some()));
    if let Some(CarPartner { classifier_scale, autoencoder_scale, .. }) = &model.partner {
        for (name, scale) in [("CLASSIFIER", classifier_scale), ("AUTOENCODER", autoencoder_scale)] {
            config.define(&format!("KDGAT_{name}_MEDIAN"), double(scale.median));
            config.define(&format!("KDGAT_{name}_SPREAD"), double(scale.spread));
        }
    }
    config.define("KDGAT_THRESHOLD", double(model.threshold));
    let digest = model.weights_digest.get(..16).unwrap_or("0");
    config.define("KDGAT_MODEL_DIGEST", format!("UINT64_C(0x{digest})"));
    tables.comment(&format!("Weights and tables of the detector. {origin}"));
    tables.line("#include \"kdgat_car.h\"\n#include \"kdgat_model.h\"\n");
    network.write(autoencoder, &mut config, &mut tables)?;
    window::write(model, &mut config, &mut tables)?;
    config.line("\n#endif");
    Ok((config.into_string(), tables.into_string()))
}

/// Text of `test/kdgat_vectors.h`.
fn vectors_text(vectors: &Vectors) -> String {
    let mut text = CText::default();
    text.comment("Frames, and the trainer's results for their windows.");
    text.line("static const kdgat_frame vectors[] = {");
    for Frame { timestamp, can_id, payload, payload_length, .. } in &vectors.frames {
        let payload = payload.map(|byte| byte.to_string()).join(", ");
        text.line(&format!("    {{{}, {can_id}u, {payload_length}, {{{payload}}}}},", double(*timestamp)));
    }
    text.line("};\n\nstatic const expected_result expected[] = {");
    for VectorResult { score, attack, weight } in &vectors.results {
        text.line(&format!("    {{{}, {}, {}}},", double(*score), u8::from(*attack), float(*weight)));
    }
    text.line("};");
    text.into_string()
}

/// Name of a precision in texts.
pub(crate) fn precision_name(precision: Precision) -> &'static str {
    match precision {
        Precision::F32 => "f32",
        Precision::Int8 => "int8",
    }
}
