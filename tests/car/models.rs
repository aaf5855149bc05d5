//! Models with random weights, traffic, and exports of both.

use std::path::Path;
use std::process::Command;

use crate::compiler;
use kdgat_can::Frame;
use kdgat_car::{CarFiles, CarModel, CarPartner, Precision, UsualScale, Vectors};
use kdgat_graph::{EdgeScaling, NodeScaling, Vocabulary};
use kdgat_nn::attention::Backend;
use kdgat_nn::weights::StateDict;
use kdgat_nn::{
    Architecture, DatasetIdentity, FreshParameters, Gat, GatConfig, InputConfig, ModelDescription, Scope, Vgae,
    VgaeConfig,
};
use tch::{Device, Kind};

pub const WINDOW: usize = 40;

/// Frames of `count` windows; the number of IDs grows, from one to as many as there are frames.
pub fn traffic(count: usize) -> Vec<Frame> {
    let mut state = 7_u64;
    let mut draw = |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    let frame = |position: usize| {
        let ids = 1 + (position / WINDOW * 9 % 70) as u64;
        let payload = std::array::from_fn(|_| draw(256) as u8);
        let can_id = 0x100 + 3 * draw(ids) as u32;
        Frame { timestamp: 5.0 + position as f64 * 0.000_7, can_id, payload, payload_length: 8, attack: false }
    };
    (0..count * WINDOW + 1).map(frame).collect()
}

pub fn vocabulary() -> Vocabulary {
    Vocabulary::from_ids((0..30).map(|index| 0x100 + 3 * index))
}

/// A model with random weights; batch norm has seen data, so that folding it changes something.
pub fn random_state(architecture: &Architecture) -> StateDict {
    let mut parameters = FreshParameters::new(11, Device::Cpu);
    match architecture {
        Architecture::Gat(config) => drop(Gat::new(Scope::root(&mut parameters), config, Backend::Auto).unwrap()),
        Architecture::Vgae(config) => drop(Vgae::new(Scope::root(&mut parameters), config, Backend::Auto).unwrap()),
        _ => unreachable!(),
    }
    tch::manual_seed(3);
    let named = parameters.into_tensors().into_iter().map(|named| {
        let tensor = named.tensor.detach();
        let tensor = match () {
            () if named.name.ends_with("running_var") => tensor.rand_like().f_add_scalar(0.2).unwrap(),
            () if tensor.kind() == Kind::Float && (named.name.contains("_bns.") || named.name.ends_with("bias")) => {
                tensor.randn_like().f_mul_scalar(0.3).unwrap() + 0.5
            }
            () => tensor,
        };
        (named.name, tensor)
    });
    named.collect()
}

pub fn gat(edges: bool, input: InputConfig, layers: i64) -> Architecture {
    Architecture::Gat(GatConfig {
        hidden: 11,
        layers,
        heads: 3,
        embedding: 5,
        fc_layers: 3,
        vocabulary_size: vocabulary().len() as i64,
        dropout: 0.1,
        edge_scaling: edges.then(scaling),
        input,
    })
}

pub fn vgae(edges: bool, input: InputConfig, hidden: &[i64]) -> Architecture {
    Architecture::Vgae(VgaeConfig {
        hidden: hidden.to_vec(),
        latent: 9,
        heads: 2,
        embedding: 3,
        vocabulary_size: vocabulary().len() as i64,
        dropout: 0.1,
        edge_scaling: edges.then(scaling),
        input,
    })
}

pub fn scaling() -> EdgeScaling {
    let value = |from: f64| std::array::from_fn(|feature| from + 0.3 * feature as f64);
    EdgeScaling { mean: value(-0.2), deviation: value(0.5) }
}

pub fn rich() -> InputConfig {
    let scaling = NodeScaling { mean: vec![0.1; 35], deviation: vec![1.7; 35] };
    InputConfig { node_scaling: Some(scaling), ..InputConfig::default() }
}

/// A description of a model with windows of [`WINDOW`] frames and without a list of known IDs.
pub fn description(architecture: Architecture) -> ModelDescription {
    ModelDescription {
        architecture,
        vocabulary: vocabulary(),
        foreign_ids: None,
        dataset: DatasetIdentity { name: "random".to_owned(), digest: String::new() },
        window: WINDOW,
        size: "student".to_owned(),
        epoch: 0,
        val_loss: None,
        teacher_digest: None,
        created_by_version: "0.0.0".to_owned(),
    }
}

/// Exports a model, with windows `stride` frames apart, into a new folder.
pub fn export(
    name: &str,
    architecture: Architecture,
    state: &StateDict,
    precision: Precision,
    stride: usize,
) -> (tempfile::TempDir, CarFiles) {
    export_with(name, (architecture, state), None, precision, stride)
}

/// Like [`export`], for two models together if there is a partner.
pub fn export_with(
    name: &str,
    (architecture, state): (Architecture, &StateDict),
    partner: Option<(Architecture, &StateDict)>,
    precision: Precision,
    stride: usize,
) -> (tempfile::TempDir, CarFiles) {
    let (of_partner, state_of_partner) = partner.unzip();
    let (described, of_partner) = (description(architecture), of_partner.map(description));
    let usual = UsualScale { median: 0.5, spread: 2.0 };
    let partner = of_partner.as_ref().zip(state_of_partner).map(|(description, state)| CarPartner {
        name: "partner".to_owned(),
        description,
        state,
        weights_digest: "fedcba9876543210".to_owned(),
        classifier_scale: usual,
        autoencoder_scale: usual,
    });
    let folder = tempfile::tempdir().unwrap();
    let files = write_export(folder.path(), name, (&described, state), partner, precision, stride);
    (folder, files)
}

/// Exports a model, and a partner if there is one, into `folder`.
pub fn write_export(
    folder: &Path,
    name: &str,
    (description, state): (&ModelDescription, &StateDict),
    partner: Option<CarPartner>,
    precision: Precision,
    stride: usize,
) -> CarFiles {
    let model = CarModel {
        name: name.to_owned(),
        description,
        state,
        weights_digest: "0123456789abcdef".to_owned(),
        stride,
        precision,
        threshold: 0.5,
        threshold_method: "given".to_owned(),
        least_score: None,
        calibration_rate: 0.001,
        partner,
    };
    let written = kdgat_car::write(&model, &Vectors::default()).unwrap();
    for file in &written.files {
        let path = folder.join(&file.name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, &file.contents).unwrap();
    }
    written
}

/// Compiles the sources of an export with the program `main` of this folder; warnings are errors.
pub fn compiled(folder: &Path, main: &str) -> Command {
    let main = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/car").join(main);
    Command::new(compiler::compiled(folder, &[main], "program", &["-O1"]))
}
