//! A small multilayer perceptron on the scaled state, a baseline of the fusion: 15 → 32 → 32 → 1, ReLU, trained with Adam on
//! cross entropy; the epoch with the lowest validation loss gives the weights.

use tch::{Kind, Reduction, Tensor};

use super::agent::BATCH_GRAPHS;
use super::scaling::VALUES;
use super::{FusionError, Observations, World};
use kdgat_base::random::{self, Purpose};
use kdgat_nn::attention::Backend;
use kdgat_nn::layers::{Mlp, Mode};
use kdgat_nn::weights::StateDict;
use kdgat_nn::{FreshParameters, Scope};
use kdgat_train::interrupt;
use kdgat_train::memory::{Meter, retry_on_oom};
use kdgat_train::optimizer::{Adam, AdamOptions};
use kdgat_train::trainable::Trainable;

const WIDTHS: [i64; 4] = [VALUES as i64, 32, 32, 1];
const EPOCHS: u64 = 60;
const BATCH: usize = 256;
const LEARNING_RATE: f64 = 2e-3;
/// Epochs without a lower validation loss before early stopping.
const PATIENCE: u64 = 10;
const KERNEL: Backend = Backend::Composed;

/// The trained network.
#[derive(Debug)]
pub struct SmallMlp {
    model: Mlp,
    trainable: Trainable,
}

impl SmallMlp {
    /// Trains a network; `None` if interrupted.
    pub fn fit(world: &World, seed: u64) -> Result<Option<Self>, FusionError> {
        let meter = Meter::new(world.device);
        let (mut network, mut optimizer) = retry_on_oom(meter, || {
            let mut parameters = FreshParameters::new(seed, world.device);
            let model = Mlp::new(Scope::root(&mut parameters).sub("mlp"), &WIDTHS)?;
            let trainable = Trainable::new(parameters.into_tensors(), world.device)?;
            let options = AdamOptions {
                weight_decay: 1e-4,
                gradient_clip: 1.0,
                offload: false,
                kernel: KERNEL,
                ..AdamOptions::PLAIN
            };
            let optimizer = Adam::new(&trainable, options)?;
            Ok::<_, FusionError>((Self { model, trainable }, optimizer))
        })?;
        let mut best: Option<(f64, u64, StateDict)> = None;
        for epoch in 0..EPOCHS {
            let mut order: Vec<usize> = (0..world.training.len()).collect();
            random::shuffle(&mut order, seed, Purpose::Shuffle, epoch);
            for positions in order.chunks(BATCH) {
                if interrupt::requested() {
                    return Ok(None);
                }
                retry_on_oom(meter, || {
                    network.trainable.zero_gradients()?;
                    Ok::<_, FusionError>(network.loss(world, &world.training, positions)?.f_backward()?)
                })?;
                retry_on_oom(meter, || {
                    Ok::<_, FusionError>(optimizer.step(&mut network.trainable, LEARNING_RATE).map(drop)?)
                })?;
            }
            let loss = network.validation_loss(world)?;
            if best.as_ref().is_none_or(|(lowest, ..)| loss < *lowest) {
                best = Some((loss, epoch, network.trainable.state_dict()?));
            } else if best.as_ref().is_some_and(|(_, at, _)| epoch - at >= PATIENCE) {
                break;
            }
        }
        if let Some((_, _, weights)) = best {
            network.trainable.load_state_dict(&weights)?;
        }
        Ok(Some(network))
    }

    /// Number of trained parameters.
    pub fn num_parameters(&self) -> usize {
        self.trainable.num_parameters() as usize
    }

    /// Log odds of an attack for each graph.
    pub fn log_odds(&self, world: &World, of: &Observations) -> Result<Vec<f64>, FusionError> {
        let positions: Vec<usize> = (0..of.len()).collect();
        let mut scores = Vec::with_capacity(of.len());
        for chunk in positions.chunks(BATCH_GRAPHS) {
            let odds = retry_on_oom(Meter::new(world.device), || tch::no_grad(|| self.forward(world, of, chunk)))?;
            scores.extend(Vec::<f64>::try_from(odds.f_to_kind(Kind::Double)?)?);
        }
        Ok(scores)
    }

    fn forward(&self, world: &World, of: &Observations, positions: &[usize]) -> Result<Tensor, FusionError> {
        let states = world.states_at(of, positions)?;
        Ok(self.model.forward(&states, 0.0, KERNEL, Mode::Evaluation)?.f_squeeze_dim(1)?)
    }

    fn loss(&self, world: &World, of: &Observations, positions: &[usize]) -> Result<Tensor, FusionError> {
        let labels: Vec<f32> = positions.iter().map(|&position| f32::from(u8::from(of.attack[position]))).collect();
        let labels = Tensor::f_from_slice(&labels)?.f_to_device(world.device)?;
        let odds = self.forward(world, of, positions)?;
        let none = None::<&Tensor>;
        Ok(odds.f_binary_cross_entropy_with_logits(&labels, none, none, Reduction::Mean)?)
    }

    fn validation_loss(&self, world: &World) -> Result<f64, FusionError> {
        let positions: Vec<usize> = (0..world.validation.len()).collect();
        let mut sum = 0.0;
        for chunk in positions.chunks(BATCH_GRAPHS) {
            let loss =
                retry_on_oom(Meter::new(world.device), || tch::no_grad(|| self.loss(world, &world.validation, chunk)))?;
            sum += f64::try_from(loss)? * chunk.len() as f64;
        }
        Ok(sum / positions.len().max(1) as f64)
    }
}
