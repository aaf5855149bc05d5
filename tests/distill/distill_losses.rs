//! A student's losses do not depend on teacher residency or caching: real models, on the
//! CPU, one thread.

use std::path::{Path, PathBuf};
use std::sync::MutexGuard;
use support::process::alone;

use crate::common::graphs::Graphs;
use crate::common::models::random_weights;
use crate::common::training::{Training, start_teacher};
use kdgat::distill::frozen::{self, Asked, FrozenEnsemble, TeacherVocabulary};
use kdgat::distill::{CacheMode, CacheOptions, Precision, Residency, StoreShape, Summary, Teacher, TeacherOptions};
use kdgat::graph::{Batch, EdgeScaling};
use kdgat::nn::attention::Backend;
use kdgat::nn::{Architecture, GatConfig, VgaeConfig};
use tch::Device;

/// Graphs of the file that batches are built from.
const GRAPHS: usize = 8;
const BATCH: usize = 2;

/// Student and its teacher, of one or several networks.
struct Pair {
    student: Architecture,
    teachers: Vec<Architecture>,
}

fn vgae() -> Pair {
    let config = |hidden: &[i64], latent, heads, embedding| {
        let (hidden, vocabulary_size, dropout, edge_scaling) = (hidden.to_vec(), 40, 0.1, None::<EdgeScaling>);
        Architecture::Vgae(VgaeConfig {
            hidden,
            latent,
            heads,
            embedding,
            vocabulary_size,
            dropout,
            edge_scaling,
            input: Default::default(),
        })
    };
    Pair { student: config(&[16, 8, 4], 4, 1, 4), teachers: vec![config(&[64, 32, 12], 12, 4, 8)] }
}

fn gat() -> Pair {
    let config = |hidden, layers, heads, embedding, fc_layers| {
        let (vocabulary_size, dropout, edge_scaling) = (40, 0.1, None);
        let config = GatConfig {
            hidden,
            layers,
            heads,
            embedding,
            fc_layers,
            vocabulary_size,
            dropout,
            edge_scaling,
            input: Default::default(),
        };
        Architecture::Gat(config)
    };
    Pair { student: config(6, 2, 2, 4, 2), teachers: vec![config(16, 3, 4, 8, 3)] }
}

/// A student of two classifiers of different sizes.
fn two_gats() -> Pair {
    let Pair { student, mut teachers } = gat();
    teachers.push(student.clone());
    Pair { student, teachers }
}

/// Residency of the weights, and caching of the targets.
struct Way {
    name: &'static str,
    residency: Residency,
    burst: usize,
    mode: CacheMode,
    precision: Precision,
    path: Option<PathBuf>,
}

fn way(name: &'static str, residency: Residency, burst: usize, mode: CacheMode) -> Way {
    Way { name, residency, burst, mode, precision: Precision::F32, path: None }
}

fn graphs() -> Graphs {
    Graphs::open(Some(&support::parity::parity_file("batch.safetensors"))).unwrap()
}

fn teacher(pair: &Pair, way: &Way, graphs: &Graphs) -> Teacher {
    let cache = CacheOptions {
        mode: way.mode,
        precision: way.precision,
        path: way.path.clone(),
        ram_budget_bytes: 1 << 30,
        architecture: format!("{:?}", pair.teachers),
        features: "vocabulary of the tests".to_owned(),
        unit: "graphs",
    };
    let options = TeacherOptions {
        residency: way.residency,
        burst: way.burst,
        cache,
        layer_slots: 2,
        ..TeacherOptions::new(Device::Cpu)
    };
    let shape: StoreShape = graphs.shape(GRAPHS);
    if let [only] = pair.teachers.as_slice() {
        return start_teacher(only, random_weights(only, 7).unwrap(), &options, &shape).unwrap();
    }
    let network = |architecture: &Architecture| {
        frozen::model(architecture.clone(), TeacherVocabulary::Shared, Backend::Auto, Asked::OUTPUTS).unwrap()
    };
    let model = FrozenEnsemble::new(pair.teachers.iter().map(network).collect()).unwrap();
    let weights = pair.teachers.iter().map(|architecture| random_weights(architecture, 7).unwrap()).collect();
    Teacher::start(Box::new(model), frozen::joined_weights(weights).unwrap(), &options, &shape).unwrap()
}

/// Runs one test at a time, because dropout uses the process's generator.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    tch::set_num_threads(1);
    alone()
}

/// Losses of all steps of these epochs, and the digest of the trained weights.
fn train(pair: &Pair, way: &Way, epochs: &[Vec<Batch>]) -> (Vec<f64>, String) {
    let running = teacher(pair, way, &graphs());
    let mut training =
        Training::new(&pair.student, Some((running, &pair.teachers[0])), way.burst, Device::Cpu).unwrap();
    let mut losses = Vec::new();
    for batches in epochs {
        losses.extend(training.losses(batches).unwrap());
    }
    (losses, training.trainable.digest(|_| true).unwrap())
}

fn batches(graphs: &Graphs) -> Vec<Batch> {
    graphs.batches(BATCH, GRAPHS / BATCH).unwrap()
}

/// Epochs with the same batches.
fn fixed(epochs: usize) -> Vec<Vec<Batch>> {
    let graphs = graphs();
    (0..epochs).map(|_| batches(&graphs)).collect()
}

/// Epochs with differently composed batches.
fn shuffled(epochs: usize) -> Vec<Vec<Batch>> {
    let Graphs::File(file) = graphs() else { unreachable!("opened from a file") };
    let all: Vec<u64> = (0..GRAPHS as u64).collect();
    let epoch = |epoch| kdgat::graph::shuffled_batches(&all, BATCH, 3, epoch);
    let batch = |graphs: &Vec<u64>| file.batch(&graphs.iter().map(|&graph| graph as usize).collect::<Vec<_>>(), 40);
    (0..epochs as u64).map(|number| epoch(number).iter().map(|graphs| batch(graphs).unwrap()).collect()).collect()
}

/// Writes the targets of every second graph to the file at `path`.
fn fill_half(pair: &Pair, path: &Path) -> Summary {
    let on_disk = Way { path: Some(path.to_owned()), ..way("half", Residency::Resident, 1, CacheMode::Disk) };
    let graphs = graphs();
    let mut running = teacher(pair, &on_disk, &graphs);
    let Graphs::File(file) = &graphs else { unreachable!("opened from a file") };
    let half: Vec<usize> = (0..GRAPHS).step_by(2).collect();
    running.submit(vec![file.batch(&half, 40).unwrap()]);
    running.targets().unwrap();
    running.finish().unwrap()
}

fn losses_are_equal(pair: &Pair) {
    let _alone = one_at_a_time();
    let folder = tempfile::tempdir().unwrap();
    let on_disk = |name, file: &str, residency, burst| Way {
        path: Some(folder.path().join(file)),
        ..way(name, residency, burst, CacheMode::Disk)
    };
    let half = fill_half(pair, &folder.path().join("half.targets")).cache.unwrap();
    assert_eq!((half.filled_graphs, half.used_graphs), (GRAPHS as u64 / 2, GRAPHS as u64));
    let ways = [
        way("forward, burst 1", Residency::Forward, 1, CacheMode::Off),
        way("forward, burst 4", Residency::Forward, 4, CacheMode::Off),
        way("layer", Residency::Layer, 4, CacheMode::Off),
        way("auto", Residency::Auto, 2, CacheMode::Off),
        way("ram", Residency::Forward, 2, CacheMode::Ram),
        on_disk("disk, empty", "whole.targets", Residency::Forward, 2),
        on_disk("disk, complete", "whole.targets", Residency::Resident, 4),
        on_disk("disk, half", "half.targets", Residency::Forward, 2),
        on_disk("disk, half filled and then completed", "half.targets", Residency::Layer, 1),
    ];
    let epochs = fixed(3);
    let resident = train(pair, &way("resident", Residency::Resident, 1, CacheMode::Off), &epochs);
    assert!(resident.0.iter().all(|loss| loss.is_finite()));
    for way in &ways {
        let found = train(pair, way, &epochs);
        assert_eq!(bits(&found.0), bits(&resident.0), "losses with {}", way.name);
        assert_eq!(found.1, resident.1, "trained weights with {}", way.name);
    }
}

fn bits(losses: &[f64]) -> Vec<u64> {
    losses.iter().map(|loss| loss.to_bits()).collect()
}

#[test]
fn losses_of_a_vgae_are_the_same_bits_wherever_its_teacher_is() {
    losses_are_equal(&vgae());
}

#[test]
fn losses_of_a_classifier_are_the_same_bits_wherever_its_teacher_is() {
    losses_are_equal(&gat());
}

#[test]
fn losses_of_a_classifier_are_the_same_bits_wherever_its_teachers_are() {
    losses_are_equal(&two_gats());
}

#[test]
fn with_shuffling_losses_agree_to_rounding() {
    let _alone = one_at_a_time();
    let epochs = shuffled(5);
    for pair in [vgae(), gat()] {
        let (expected, _) = train(&pair, &way("resident", Residency::Resident, 1, CacheMode::Off), &epochs);
        let (cached, _) = train(&pair, &way("ram", Residency::Forward, 2, CacheMode::Ram), &epochs);
        let difference = |step: usize| ((cached[step] - expected[step]) / expected[step]).abs();
        assert!(difference(0) <= 1e-6, "first step: {} and {}", cached[0], expected[0]);
        let last = expected.len() - 1;
        assert!(difference(last) <= 1e-4, "after five epochs: {} and {}", cached[last], expected[last]);
    }
}

#[test]
fn half_precision_changes_losses_by_a_known_little() {
    let _alone = one_at_a_time();
    let epochs = fixed(3);
    for (name, pair) in [("vgae", vgae()), ("gat", gat())] {
        let (expected, _) = train(&pair, &way("resident", Residency::Resident, 1, CacheMode::Off), &epochs);
        let half = Way { precision: Precision::F16, ..way("f16", Residency::Forward, 2, CacheMode::Ram) };
        let (found, _) = train(&pair, &half, &epochs);
        let differences = found.iter().zip(&expected).map(|(found, expected)| ((found - expected) / expected).abs());
        let largest = differences.fold(0.0, f64::max);
        println!("{name}: targets in f16 change a loss by at most {largest:.1e}, relatively");
        assert!(largest > 0.0 && largest < 1e-3, "{name}: {largest:e}");

        // Live targets are rounded too, so results do not depend on what is cached.
        let mut running = teacher(&pair, &half, &graphs());
        running.submit(batches(&graphs()));
        (0..GRAPHS / BATCH).for_each(|_| drop(running.targets().unwrap()));
        let deviation = running.finish().unwrap().cache.unwrap().half_deviation;
        println!("{name}: a target in f16 differs by at most {deviation:.1e} of its batch's largest");
        assert!(deviation > 0.0 && deviation < 1e-3, "{name}: {deviation:e}");
    }
}
