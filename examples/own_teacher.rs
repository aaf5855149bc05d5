//! Runs a model that kdgat does not have on the teacher's thread: a perceptron over the nodes' features, larger than it need be.
//!
//!     cargo run --release --example own_teacher
//!
//! A teacher is a [`FrozenModel`]: a pure function of its weights and a batch, layer by layer. The thread adds the rest: weights
//! on the device only around a forward pass (here one layer at a time), answers in order, and the cache.

use std::error::Error;

use kdgat::can::{Dataset, SimulationOptions, simulate};
use kdgat::distill::{
    CacheMode, CacheOptions, FrozenModel, LayerSpec, LayerState, ModelError, Residency, StoreShape, Summary,
    TargetLayout, TargetName, Teacher, TeacherOptions, WeightViews, Weights,
};
use kdgat::graph::{AssembleOptions, Batch, BuildOptions, Split, assemble, open_or_build};
use kdgat::nn::layers::mean_per_graph;
use tch::{Device, Kind, Tensor};

/// Width of the hidden layers: each has four times 1024² bytes of weights.
const WIDTH: i64 = 1024;
/// Layers between the first and the last.
const HIDDEN_LAYERS: usize = 4;
const CLASSES: i64 = 2;

/// Each node's features pass through all layers; a graph's logits are the mean over its nodes.
struct Perceptron {
    features: i64,
}

impl Perceptron {
    /// Columns of the input and of the output, by layer.
    fn shapes(&self) -> Vec<[i64; 2]> {
        let mut widths = vec![self.features];
        widths.extend([WIDTH; HIDDEN_LAYERS + 1]);
        widths.push(CLASSES);
        widths.windows(2).map(|pair| [pair[0], pair[1]]).collect()
    }

    /// Random weights, from a fixed seed. A real teacher reads a file: [`Weights::read`].
    fn weights(&self) -> Result<Weights, Box<dyn Error>> {
        tch::manual_seed(1);
        let mut tensors = Vec::new();
        for (layer, [input, output]) in self.shapes().into_iter().enumerate() {
            let drawn = Tensor::f_randn([output, input], (Kind::Float, Device::Cpu))?;
            tensors.push((weight(layer), drawn.f_mul_scalar((input as f64).powf(-0.5))?));
        }
        Ok(Weights::from_tensors(tensors)?)
    }
}

/// Name of a layer's weight.
fn weight(layer: usize) -> String {
    format!("layers.{layer}.weight")
}

impl FrozenModel for Perceptron {
    fn target_layout(&self) -> TargetLayout {
        TargetLayout::classifier(CLASSES as usize)
    }

    fn layers(&self) -> Vec<LayerSpec> {
        let spec = |layer| LayerSpec { name: format!("layer {layer}"), tensors: vec![weight(layer)] };
        (0..self.shapes().len()).map(spec).collect()
    }

    fn forward_layer(
        &self,
        layer: usize,
        weights: &WeightViews,
        batch: &Batch,
        state: LayerState,
    ) -> Result<LayerState, ModelError> {
        let x = state.first().unwrap_or(&batch.continuous);
        let x = x.f_linear(&weights.get(&weight(layer))?, None::<Tensor>)?;
        if layer + 1 < self.shapes().len() {
            return Ok(vec![x.f_relu()?]);
        }
        Ok(vec![mean_per_graph(&x, batch)?])
    }
}

/// Answers of the teacher to the same four batches, asked twice.
pub struct Lesson {
    /// Logits `[num_graphs, classes]` of each batch, computed by the model.
    pub first: Vec<Tensor>,
    /// The same logits from the cache.
    pub second: Vec<Tensor>,
    /// The teacher's work.
    pub summary: Summary,
}

/// Asks the teacher twice for the logits of the same batches.
pub fn teach() -> Result<Lesson, Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("sim");
    simulate(&SimulationOptions::default(), &data)?;
    let store = open_or_build(&Dataset::open(&data)?, &BuildOptions::default(), &folder.path().join("stores"), &())?;
    let options = AssembleOptions {
        vocabulary: store.vocabulary().clone().into(),
        unknown_drop: None,
        edge_attributes: false,
        hashed_ids: false,
        profile: None,
        short_profiles: false,
        space: None,
    };
    let graphs = store.select(Split::Train, Some(false));
    let batches: Vec<Batch> =
        graphs.chunks(128).take(4).map(|graphs| assemble(&store, graphs, &options)).collect::<Result<_, _>>()?;

    let model = Perceptron { features: batches[0].continuous.size2()?.1 };
    let weights = model.weights()?;
    let cache = CacheOptions { mode: CacheMode::Ram, ram_budget_bytes: 64 << 20, ..CacheOptions::off() };
    let options = TeacherOptions { residency: Residency::Layer, burst: 4, cache, ..TeacherOptions::new(Device::Cpu) };
    let mut teacher = Teacher::start(Box::new(model), weights, &options, &StoreShape::new(&store, None))?;
    let mut pass = || -> Result<Vec<Tensor>, Box<dyn Error>> {
        // All four batches share one visit of the weights.
        teacher.submit(batches.iter().map(Batch::shallow_clone).collect());
        let logits = |_| Ok(teacher.targets()?.get(TargetName::Logits).ok_or("no logits")?.shallow_clone());
        batches.iter().map(logits).collect()
    };
    let (first, second) = (pass()?, pass()?);
    Ok(Lesson { first, second, summary: teacher.finish()? })
}

#[allow(dead_code)] // The tests call `teach`.
fn main() -> Result<(), Box<dyn Error>> {
    let Lesson { first, second, summary } = teach()?;
    let equal = first.iter().zip(&second).all(|(first, second)| first == second);
    println!("the logits of both passes are {}", if equal { "equal" } else { "different" });
    println!("{summary:#?}");
    Ok(())
}
