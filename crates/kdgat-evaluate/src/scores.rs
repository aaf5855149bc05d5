//! The score of a graph: one number, higher the more it looks like an attack.
//!
//! Evaluation, calibration and detection all compute scores here, so a graph has the same score everywhere.

use std::sync::Arc;

use tch::{Device, Kind, Tensor};

use super::id_list::{CarIds, IdList, Listed, Unlisted, ids_of_graphs};
use super::profile::Profile;
use super::{CarScale, EvaluateError, TrainedModel};
use kdgat_graph::{AssembleOptions, Batch, FeatureSet, Loader, LoaderOptions, Store};
use kdgat_nn::attention::Backend;
use kdgat_nn::layers::Mode;
use kdgat_nn::{Architecture, Gat, GivenTensors, ModelError, Scope, Vgae, weights};
use kdgat_train::memory::{Meter, by_halves};

/// Graphs per batch: as fast as larger batches on a CPU, with little memory whatever the number of graphs.
pub const BATCH_GRAPHS: usize = 512;
/// Batches prefetched by the loader.
const PREFETCH_BATCHES: usize = 2;
/// Added to each squared error before its logarithm: far below what a trained model leaves of any feature that varies.
const LEAST_ERROR: f64 = 1e-9;
/// Weight of the ID cross entropy in the difficulty.
const ID_WEIGHT: f64 = 0.1;

/// Meaning of a model's score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScoreKind {
    /// Classifier: P(attack), the softmax of its logits.
    AttackProbability,
    /// Autoencoder: reconstruction error + 0.1·cross entropy of the IDs, means over the nodes.
    Difficulty,
}

impl ScoreKind {
    /// The score of a raw output of the model (a difference of logits, or a difficulty).
    ///
    /// The probability is computed in double precision from the difference of the logits: single precision would round every
    /// probability within 10⁻⁷ of 1 to 1 and create ties.
    pub fn score(self, raw: f32) -> f64 {
        match self {
            Self::AttackProbability => 1.0 / (1.0 + (-f64::from(raw)).exp()),
            Self::Difficulty => f64::from(raw),
        }
    }

    /// Raw output on an unbounded scale, where scores of one car are evenly spread: log odds, or log difficulty.
    pub fn unbounded(self, raw: f32) -> f64 {
        match self {
            Self::AttackProbability => f64::from(raw),
            Self::Difficulty => f64::from(raw.max(f32::MIN_POSITIVE)).ln(),
        }
    }

    /// Like [`ScoreKind::unbounded`], from a score of [`ScoreKind::score`].
    pub fn unbounded_of_score(self, score: f64) -> f64 {
        match self {
            Self::AttackProbability => score.ln() - (1.0 - score).ln(),
            Self::Difficulty => score.max(f64::MIN_POSITIVE).ln(),
        }
    }
}

/// A trained model that scores graphs.
#[derive(Debug)]
pub struct Scorer {
    network: Network,
    assemble: AssembleOptions,
    features: FeatureSet,
    /// List of known IDs, for a classifier that has one.
    id_list: Option<IdList>,
    device: Device,
}

/// The network of a scorer.
#[derive(Debug)]
pub enum Network {
    /// A classifier.
    Gat(Gat),
    /// An autoencoder.
    Vgae(Vgae),
}

/// A scored window with the values that calibration needs.
#[derive(Debug, Clone, PartialEq)]
pub struct Profiled {
    /// Raw score as in [`Scorer::raw_scores`].
    pub raw: f32,
    /// Reconstruction errors (autoencoder only).
    pub profile: Option<Profile>,
    /// Output without the list of known IDs (classifiers with such a list only).
    pub unlisted: Option<Unlisted>,
}

/// The least score that a classifier may call an attack under a profile [without bytes](kdgat_graph::CarProfile::without_bytes): even odds. Its
/// recorded thresholds were chosen on windows with bytes.
pub const EVEN_ODDS: f64 = 0.5;

/// A graph's raw score, and the node that contributes most to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Explained {
    /// The scored window.
    pub window: Profiled,
    /// ID that contributes most.
    pub can_id: u32,
    /// Autoencoder: that node's error. Classifier: the drop in the log odds of an attack without that node.
    pub contribution: f32,
}

/// A graph's raw score with the contributions of nodes and edges.
#[derive(Debug, Clone, PartialEq)]
pub struct Dissected {
    /// Raw score as in [`Scorer::raw_scores`].
    pub raw: f32,
    /// Contribution of each node. Autoencoder: its error. Classifier: the drop in the log odds of an attack without it.
    pub by_node: Vec<f32>,
    /// Source, target, and attention weight averaged over layers and heads; self-loops included.
    pub edges: Vec<(usize, usize, f32)>,
}

impl Scorer {
    /// Builds the scorer from a model's weights on `device`.
    ///
    /// # Errors
    /// Fails if the weights do not fit their architecture.
    pub fn new(model: &TrainedModel, device: Device, kernel: Backend) -> Result<Self, EvaluateError> {
        let on_device = |(name, tensor): (&String, &Tensor)| Ok((name.clone(), tensor.f_to_device(device)?));
        let tensors = model.state.iter().map(on_device).collect::<Result<Vec<_>, ModelError>>()?;
        let mut given = GivenTensors::new(tensors);
        let network = match &model.description.architecture {
            Architecture::Gat(config) => Network::Gat(Gat::new(Scope::root(&mut given), config, kernel)?),
            Architecture::Graph(_)
            | Architecture::Nodes(_)
            | Architecture::GraphVgae(_)
            | Architecture::Pretraining(_) => {
                return Err(EvaluateError::Input(format!(
                    "{} was trained on graphs of other kinds than CAN windows; name that dataset with --data",
                    model.name
                )));
            }
            Architecture::Vgae(config) => Network::Vgae(Vgae::new(Scope::root(&mut given), config, kernel)?),
        };
        given.check_all_used(|_| false)?;
        let vocabulary = Arc::new(model.description.vocabulary.clone());
        let id_list = match (&network, model.description.foreign_ids) {
            (Network::Gat(_), Some(counted)) => Some(IdList::new(Arc::clone(&vocabulary), counted)),
            _ => None,
        };
        let assemble = AssembleOptions {
            vocabulary,
            unknown_drop: None,
            edge_attributes: model.description.architecture.reads_edge_features(),
            hashed_ids: model.description.architecture.hashes_ids(),
            profile: model.description.architecture.input().profile.clone(),
            short_profiles: false,
            space: None,
        };
        Ok(Self { network, assemble, features: model.description.architecture.input().features(), id_list, device })
    }

    /// Meaning of its scores.
    pub fn kind(&self) -> ScoreKind {
        match self.network {
            Network::Gat(_) => ScoreKind::AttackProbability,
            Network::Vgae(_) => ScoreKind::Difficulty,
        }
    }

    /// The network, in evaluation mode only.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Device that it computes on.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Features that its input graphs must have.
    pub fn features(&self) -> FeatureSet {
        self.features
    }

    /// Options to assemble its input batches, with its own vocabulary.
    pub fn assemble_options(&self) -> AssembleOptions {
        self.assemble.clone()
    }

    /// List of known IDs, for a classifier that has one.
    pub fn id_list(&self) -> Option<&IdList> {
        self.id_list.as_ref()
    }

    /// Raw score of each graph of a batch: the difference of the logits plus the evidence of the ID list, if there is one, or the
    /// difficulty.
    pub fn raw_scores(&self, batch: &Batch) -> Result<Vec<f32>, EvaluateError> {
        let mut raw = self.network_scores(batch)?;
        if let Some(list) = &self.id_list {
            raw.iter_mut().zip(list.of_graphs(batch)?).for_each(|(raw, evidence)| *raw += evidence);
        }
        Ok(raw)
    }

    /// Raw scores without the evidence of the ID list.
    fn network_scores(&self, batch: &Batch) -> Result<Vec<f32>, EvaluateError> {
        tch::no_grad(|| {
            let batch = &batch.to_device(self.device)?;
            let raw = match &self.network {
                Network::Gat(model) => model.log_odds(&model.embed(batch, Mode::Evaluation)?)?,
                Network::Vgae(model) => model.difficulty(batch)?.total,
            };
            Ok(weights::floats(&raw)?)
        })
    }

    /// Evidence of the ID list, added to the logits of a batch's graphs, `[num_graphs, 2]`; `None` without a list.
    pub fn evidence(&self, batch: &Batch) -> Result<Option<Tensor>, EvaluateError> {
        let Some(list) = &self.id_list else { return Ok(None) };
        let of_attack = Tensor::f_from_slice(&list.of_graphs(batch)?)?.f_to_device(self.device)?;
        Ok(Some(Tensor::f_stack(&[of_attack.f_zeros_like()?, of_attack], 1)?))
    }

    /// Model outputs for a batch: logits `[num_graphs, 2]`, with the evidence of the ID list added to that of an attack, or
    /// difficulties `[num_graphs]`.
    pub fn answers(&self, batch: &Batch) -> Result<Tensor, EvaluateError> {
        tch::no_grad(|| {
            let on_device = &batch.to_device(self.device)?;
            let answers = match &self.network {
                Network::Gat(model) => model.forward(on_device, Mode::Evaluation)?,
                Network::Vgae(model) => model.difficulty(on_device)?.total,
            };
            Ok(match self.evidence(batch)? {
                Some(evidence) => answers.f_add(&evidence)?,
                None => answers,
            })
        })
    }

    /// Raw score of each graph of a batch with the values that calibration needs.
    pub fn profiled(&self, batch: &Batch) -> Result<Vec<Profiled>, EvaluateError> {
        let Network::Vgae(model) = &self.network else { return self.listed(self.network_scores(batch)?, batch) };
        tch::no_grad(|| {
            let batch = &batch.to_device(self.device)?;
            let (errors, profiles) = model.error_profile(batch)?;
            let raw = weights::floats(&model.difficulty_of(&errors, batch)?.total)?;
            let with_profile = |(raw, profile)| Profiled { raw, profile: Some(profile), unlisted: None };
            Ok(raw.into_iter().zip(profiles_of(&profiles)?).map(with_profile).collect())
        })
    }

    /// Classifier outputs for each graph of a batch, with and without the list of known IDs.
    fn listed(&self, raw: Vec<f32>, batch: &Batch) -> Result<Vec<Profiled>, EvaluateError> {
        let Some(list) = &self.id_list else {
            return Ok(raw.into_iter().map(|raw| Profiled { raw, profile: None, unlisted: None }).collect());
        };
        let with_ids = |(raw, can_ids): (f32, Vec<u32>)| Profiled {
            raw: raw + list.of_window(&can_ids),
            profile: None,
            unlisted: Some(Unlisted { raw, can_ids }),
        };
        Ok(raw.into_iter().zip(ids_of_graphs(batch)?).map(with_ids).collect())
    }

    /// Raw scores of graphs of a store, in their order. Only the result grows with their number.
    pub fn score_store(&self, store: &Arc<Store>, graphs: &[u64]) -> Result<Vec<f32>, EvaluateError> {
        self.each_of_store(store, graphs, |batch| self.raw_scores(batch))
    }

    /// Like [`Scorer::score_store`], with profiles.
    pub fn profile_store(&self, store: &Arc<Store>, graphs: &[u64]) -> Result<Vec<Profiled>, EvaluateError> {
        self.each_of_store(store, graphs, |batch| self.profiled(batch))
    }

    /// Applies `of_batch` to batches of a store's graphs and returns the results in the order of `graphs`. The loader prefetches
    /// batches; batches are halved when memory runs out.
    pub fn each_of_store<T>(
        &self,
        store: &Arc<Store>,
        graphs: &[u64],
        of_batch: impl FnMut(&Batch) -> Result<Vec<T>, EvaluateError>,
    ) -> Result<Vec<T>, EvaluateError> {
        self.each_assembled(store, graphs, self.assemble_options(), of_batch)
    }

    /// Like [`Scorer::each_of_store`], with batches assembled by other options.
    pub fn each_assembled<T>(
        &self,
        store: &Arc<Store>,
        graphs: &[u64],
        assemble: AssembleOptions,
        mut of_batch: impl FnMut(&Batch) -> Result<Vec<T>, EvaluateError>,
    ) -> Result<Vec<T>, EvaluateError> {
        let options = LoaderOptions { assemble, workers: 1, prefetch_batches: PREFETCH_BATCHES };
        let loader = Loader::start(Arc::clone(store), options);
        let batches = graphs.chunks(BATCH_GRAPHS).map(<[u64]>::to_vec).collect();
        let mut scores = Vec::with_capacity(graphs.len());
        for batch in loader.epoch(batches, 0) {
            scores.extend(by_halves(Meter::new(self.device), &batch?, &mut of_batch)?);
            store.release_pages()?;
        }
        Ok(scores)
    }

    /// Raw score of a batch of one graph, with each node's contribution and each edge's attention.
    pub fn dissect(&self, batch: &Batch) -> Result<Dissected, EvaluateError> {
        tch::no_grad(|| {
            let on_device = &batch.to_device(self.device)?;
            let weights = match &self.network {
                Network::Gat(model) => model.attention_weights(on_device)?,
                Network::Vgae(model) => model.attention_weights(on_device)?,
            };
            let (window, by_node) = self.parts(batch, on_device, None)?;
            Ok(Dissected { raw: window.raw, by_node, edges: mean_attention(batch, &weights)? })
        })
    }

    /// Raw score of a batch of one graph, and the ID that contributes most to it.
    ///
    /// Autoencoder: the node with the largest error. Classifier: the node whose removal from the pooled mean gives the lowest log
    /// odds; only pooling and head are recomputed, for all nodes in one small batch. With a calibrated `car`, that car's ID list
    /// replaces the model's.
    pub fn explain(&self, batch: &Batch, car: Option<&CarScale>) -> Result<Explained, EvaluateError> {
        tch::no_grad(|| {
            let car_ids = car.and_then(CarScale::ids).map(CarIds::listed);
            let (window, by_node) = self.parts(batch, &batch.to_device(self.device)?, car_ids)?;
            let highest = (0..by_node.len()).max_by(|&a, &b| by_node[a].total_cmp(&by_node[b])).unwrap_or(0);
            let (can_ids, contribution) = (&batch.can_ids, by_node.get(highest).copied().unwrap_or(f32::NAN));
            Ok(Explained { window, can_id: can_ids.get(highest).copied().unwrap_or(0), contribution })
        })
    }

    /// Scored window and node contributions of a batch of one graph; `car_ids` replaces the model's ID list.
    fn parts(
        &self,
        batch: &Batch,
        on_device: &Batch,
        car_ids: Option<Listed<'_>>,
    ) -> Result<(Profiled, Vec<f32>), EvaluateError> {
        let model = match &self.network {
            Network::Vgae(model) => return Ok(explain_vgae(model, on_device)?),
            Network::Gat(model) => model,
        };
        let (raw, mut by_node) = explain_gat(model, on_device)?;
        if let Some(list) = car_ids.or_else(|| self.id_list.as_ref().map(IdList::listed)) {
            by_node.iter_mut().zip(list.of_nodes(batch)?).for_each(|(of_node, evidence)| *of_node += evidence);
        }
        let mut window = self.listed(vec![raw], batch)?;
        Ok((window.swap_remove(0), by_node))
    }
}

/// Source, target and attention of each edge, self-loops included, averaged over layers and heads.
fn mean_attention(batch: &Batch, layers: &[Tensor]) -> Result<Vec<(usize, usize, f32)>, ModelError> {
    let means = layers.iter().map(|weights| Ok(weights.f_mean_dim([1i64].as_slice(), false, Kind::Float)?));
    let means = means.collect::<Result<Vec<Tensor>, ModelError>>()?;
    let mean = weights::floats(&Tensor::f_stack(&means, 0)?.f_mean_dim([0i64].as_slice(), false, Kind::Float)?)?;
    let positions = |tensor: &Tensor| Vec::<i32>::try_from(tensor).map_err(ModelError::from);
    let (sources, targets) = (positions(&batch.adjacency.sources)?, positions(&batch.adjacency.targets)?);
    let edges = sources.into_iter().zip(targets).zip(mean);
    Ok(edges.map(|((source, target), weight)| (source as usize, target as usize, weight)).collect())
}

/// Log odds of a batch of one graph, and how much they drop without each node. The drops are in single precision: they name nodes, and one
/// head for each node takes longer than the rest of the window.
fn explain_gat(model: &Gat, batch: &Batch) -> Result<(f32, Vec<f32>), ModelError> {
    let layers = model.layer_outputs(batch, Mode::Evaluation)?;
    let pooled = model.pool(&layers, batch)?;
    let raw = weights::floats(&model.log_odds(&pooled)?)?.first().copied().unwrap_or(f32::NAN);
    let nodes = batch.num_nodes();
    if nodes < 2 {
        return Ok((raw, vec![raw]));
    }
    let others = pooled.f_mul_scalar(nodes as f64)?.f_sub(&Tensor::f_cat(&layers, 1)?)?;
    let others = others.f_div_scalar((nodes - 1) as f64)?;
    let logits = model.classify(&Tensor::f_cat(&[pooled, others], 0)?, Mode::Evaluation)?;
    let log_odds = weights::floats(&logits.f_select(1, 1)?.f_sub(&logits.f_select(1, 0)?)?)?;
    let (whole, without) = log_odds.split_first().map_or((raw, &[][..]), |(whole, without)| (*whole, without));
    Ok((raw, without.iter().map(|without| whole - without).collect()))
}

/// Difficulty of a batch of one graph with its profile, and the error of each node.
fn explain_vgae(model: &Vgae, batch: &Batch) -> Result<(Profiled, Vec<f32>), ModelError> {
    let (errors, profile) = model.error_profile(batch)?;
    let raw = model.difficulty_of(&errors, batch)?.total;
    let raw = weights::floats(&raw)?.first().copied().unwrap_or(f32::NAN);
    let by_node = weights::floats(&errors.reconstruction.f_add(&errors.id.f_mul_scalar(ID_WEIGHT)?)?)?;
    Ok((Profiled { raw, profile: profiles_of(&profile)?.pop(), unlisted: None }, by_node))
}

/// Converts each row of means to a profile; squares and cross entropy vary by factors, so their logarithms are taken.
fn profiles_of(means: &Tensor) -> Result<Vec<Profile>, ModelError> {
    let values = usize::try_from(means.size2()?.1).unwrap_or(1).max(1);
    let of_row = |row: &[f32]| {
        let logarithm = |mean: &f32| (f64::from(*mean) + LEAST_ERROR).ln();
        let (signed, positive) = row.split_at(values / 2);
        signed.iter().map(|mean| f64::from(*mean)).chain(positive.iter().map(logarithm)).collect()
    };
    Ok(weights::floats(means)?.chunks_exact(values).map(of_row).collect())
}
