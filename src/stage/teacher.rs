//! The teacher of a run: found by the configuration, started on its thread; and the registration of a new teacher after training.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Map;
use tch::Device;

use super::cache_settings::cache_options;
use super::recorded_division::recorded_validation;
use super::setup::{self, Data};
use super::{Outcome, StageError, training};
use crate::config::{self, Config, FeatureChoice, IdEncoding, Residency as ResidencyChoice, Stage};
use crate::distill::frozen::{
    self, Asked, FrozenEnsemble, HiddenIds, LoadedModel, TargetChanges, TeacherVocabulary, joined_weights,
};
use crate::distill::objective::TeacherLink;
use crate::distill::registry::{self, Registry, TeacherConfig, TrainedOn};
use crate::distill::{
    FrozenModel, RegistryError, Residency, StoreShape, Teacher, TeacherError, TeacherOptions, Weights,
};
use crate::graph::{Store, Validation};
use crate::memory::{Meter, retry_on_oom};
use crate::nn::attention::Backend;
use crate::nn::weights::StateDict;
use crate::nn::{Architecture, DatasetIdentity, ModelDescription, ModelError};
use crate::shell;
use crate::train::checkpoint;
use crate::train::processes::Processes;

/// A teacher that is not started yet.
#[derive(Debug)]
pub struct FoundTeacher {
    pub architecture: Architecture,
    pub weights: Weights,
    pub vocabulary: TeacherVocabulary,
    /// Digest of the teacher's vocabulary of CAN IDs.
    pub vocabulary_digest: String,
    pub asked: Asked,
    /// Further networks, whose tensors are among `weights`.
    pub more: Vec<FurtherNetwork>,
    /// Changes of the targets for nodes.
    pub changes: TargetChanges,
    /// The processes that train together, each with this teacher.
    pub processes: Option<Arc<Processes>>,
}

/// A network of a teacher besides the first.
#[derive(Debug, Clone)]
pub struct FurtherNetwork {
    pub architecture: Architecture,
    pub vocabulary: TeacherVocabulary,
}

/// The identity of a run's teacher.
#[derive(Debug)]
pub struct TeacherIdentity {
    /// Digest of its weights, or of the file with its outputs.
    pub digest: String,
    /// The architectures of its networks, if their weights are here.
    pub architectures: Vec<Architecture>,
}

impl FoundTeacher {
    /// A teacher of these networks, at least one, with the weights of each.
    pub(super) fn of(
        mut networks: Vec<FurtherNetwork>,
        weights: Vec<Weights>,
        asked: Asked,
    ) -> Result<Self, StageError> {
        let more = networks.split_off(1);
        let FurtherNetwork { architecture, vocabulary } = networks.remove(0);
        let (weights, changes) = (joined_weights(weights)?, TargetChanges::default());
        let vocabulary_digest = "none".to_owned();
        Ok(Self { architecture, weights, vocabulary, vocabulary_digest, asked, more, changes, processes: None })
    }

    /// A teacher of these networks, which read what the student reads.
    pub(super) fn of_shared(found: Vec<LoadedModel>, asked: Asked) -> Result<Self, StageError> {
        let vocabulary = TeacherVocabulary::Shared;
        let network = |found: LoadedModel| {
            (FurtherNetwork { architecture: found.architecture, vocabulary: vocabulary.clone() }, found.weights)
        };
        let (networks, weights) = found.into_iter().map(network).unzip();
        Self::of(networks, weights, asked)
    }

    /// The teacher's identity.
    pub fn identity(&self) -> TeacherIdentity {
        TeacherIdentity { digest: self.weights.digest().to_owned(), architectures: self.architectures() }
    }

    /// The architectures of all its networks.
    pub fn architectures(&self) -> Vec<Architecture> {
        let further = self.more.iter().map(|network| network.architecture.clone());
        std::iter::once(self.architecture.clone()).chain(further).collect()
    }

    /// The teacher of graphs that these weights belong to.
    pub fn model(&self, kernel: Backend) -> Result<Box<dyn FrozenModel>, TeacherError> {
        let first = (self.architecture.clone(), self.vocabulary.clone());
        if self.more.is_empty() {
            return Ok(frozen::model(first.0, first.1, kernel, self.asked)?);
        }
        let further = self.more.iter().map(|network| (network.architecture.clone(), network.vocabulary.clone()));
        let networks = std::iter::once(first).chain(further);
        let models =
            networks.map(|(architecture, vocabulary)| frozen::model(architecture, vocabulary, kernel, self.asked));
        Ok(Box::new(FrozenEnsemble::new(models.collect::<Result<_, _>>()?)?))
    }
}

/// The networks that a teacher can consist of.
pub(super) struct Search<'a> {
    pub dataset: &'a str,
    /// Name in the registry.
    pub kind: &'a str,
    /// The command that trains one.
    pub command: &'a str,
}

impl Search<'_> {
    /// Finds the configured networks, if a teacher is configured: by path, or the registered one, and the further ones. `check` refuses those
    /// that do not fit the data or their division.
    ///
    /// # Errors
    /// A network that is missing, cannot be read or does not fit.
    pub fn run(
        &self,
        config: &Config,
        check: impl Fn(&LoadedModel, &ModelRole) -> Result<(), StageError>,
    ) -> Result<Option<Vec<LoadedModel>>, StageError> {
        if !config.distillation.use_kd {
            return Ok(None);
        }
        let first = match &config.distillation.teacher_path {
            Some(path) => (open(path)?, ModelRole { given: Some(path), ..TEACHER }),
            None => (self.registered(config)?, TEACHER),
        };
        let mut found = vec![first];
        for path in config.distillation.more_teachers.iter().flat_map(|paths| &paths.0) {
            found.push((open(path)?, ModelRole { flag: "--more-teachers", given: Some(path), ..TEACHER }));
        }
        found.iter().try_for_each(|(network, role)| check(network, role))?;
        Ok(Some(found.into_iter().map(|(network, _)| network).collect()))
    }

    /// Loads the registered network. The error for a missing one names the command that trains it on this data.
    pub fn registered(&self, config: &Config) -> Result<LoadedModel, StageError> {
        let registry = Registry::new(&config.distillation.teachers_dir);
        let found = match (registry.find(self.dataset, self.kind), shipped_teachers()) {
            (Err(RegistryError::NoTeacher { wanted, root, near, .. }), shipped) => {
                let missing = RegistryError::NoTeacher { wanted, root, near, command: self.command.to_owned() };
                shipped.and_then(|shipped| shipped.find(self.dataset, self.kind).ok()).ok_or(missing)?
            }
            (found, _) => found?,
        };
        retry_on_oom(Meter::new(Device::Cpu), || Ok::<_, StageError>(LoadedModel::registered(&found)?))
    }
}

/// The teachers that a package of the program brings along, for a dataset of which none is registered.
fn shipped_teachers() -> Option<Registry> {
    std::env::var_os("KDGAT_SHIPPED_TEACHERS").map(|folder| Registry::new(Path::new(&folder)))
}

/// Finds the configured teacher of CAN windows, if any.
///
/// # Errors
/// Also if it is of another kind than the student, reads other features, or was trained on what this run holds out.
pub fn find(config: &Config, stage: Stage, data: &Data) -> Result<Option<FoundTeacher>, StageError> {
    let model = stage.model().as_str();
    let command = training_command(config, stage, model, "teacher") + &otherwise(config, model);
    let search = Search { dataset: &data.dataset.name, kind: model, command: &command };
    let found = search.run(config, |network, role| {
        expect_kind(network, model, role)?;
        expect_same_validation(config, stage, model, network)?;
        expect_same_features(config, stage, data, network)
    })?;
    let Some(found) = found else { return Ok(None) };
    let (mut networks, mut weights, mut ids) = (Vec::new(), Vec::new(), Vec::new());
    for network in found {
        ids.extend(network.vocabulary.ids().iter().flat_map(|id| id.to_le_bytes()));
        let vocabulary = TeacherVocabulary::new(&network.architecture, network.vocabulary, data.store.vocabulary());
        networks.push(FurtherNetwork { architecture: network.architecture, vocabulary });
        weights.push(network.weights);
    }
    let asked = Asked { hidden_ids: hidden_ids(config, stage), ..asked(config) };
    let vocabulary_digest = blake3::hash(&ids).to_hex()[..16].to_owned();
    Ok(Some(FoundTeacher { vocabulary_digest, ..FoundTeacher::of(networks, weights, asked)? }))
}

/// Decides how the teacher sees IDs that are hidden from the student: without views, it sees them all.
fn hidden_ids(config: &Config, stage: Stage) -> HiddenIds {
    match (config::views(config, stage), config.model.id_encoding) {
        (0, _) => HiddenIds::Seen,
        (_, IdEncoding::Vocabulary) => HiddenIds::Unknown,
        (_, IdEncoding::Hash) => HiddenIds::Replaced,
    }
}

/// The error for a student whose teacher is of another kind than `expected`.
pub(super) fn of_another_kind(teacher: &Architecture, expected: &'static str) -> StageError {
    let found = teacher.model_name().to_owned();
    ModelError::Architecture { field: "model", found, expected }.into()
}

/// The targets that the configured distillation needs. A latent whose distance has no weight is not returned, so not cached
/// either.
pub(super) fn asked(config: &Config) -> Asked {
    let distillation = &config.distillation;
    Asked {
        latent: distillation.kd_vgae_latent_weight > 0.0,
        hidden: distillation.kd_hint_weight > 0.0,
        hidden_ids: HiddenIds::Seen,
    }
}

/// Refuses a teacher that reads other features than the student.
fn expect_same_features(config: &Config, stage: Stage, data: &Data, found: &LoadedModel) -> Result<(), StageError> {
    let (teacher, student) = (found.architecture.input().features(), data.store.features());
    if teacher == student {
        return Ok(());
    }
    Err(StageError::Input(format!(
        "the teacher {} reads {teacher} features, the student {student} features, but both must read the same; use --features \
         {teacher}, or train a teacher with {}{} --features {student}",
        found.path.display(),
        training_command(config, stage, stage.model().as_str(), "teacher"),
        if config.distillation.teacher_path.is_some() { " and name it" } else { "" },
    )))
}

/// The role of a trained network in a run, for messages.
pub(super) struct ModelRole<'a> {
    pub name: &'static str,
    pub flag: &'static str,
    /// The path that the user has given; `None` for a registered model.
    pub given: Option<&'a Path>,
}

const TEACHER: ModelRole = ModelRole { name: "teacher", flag: "--teacher-path", given: None };

/// Refuses a teacher whose training data were divided by another rule: it may have been trained on what this run holds out, and its targets
/// there would be those of training data. Teachers without a record are accepted.
fn expect_same_validation(config: &Config, stage: Stage, model: &str, found: &LoadedModel) -> Result<(), StageError> {
    let options = setup::build_options(config);
    let own = (options.validation, options.validation_fraction);
    let recorded = recorded_validation(&found.path)?;
    // The fraction decides which logs or kinds are held out; blocks of another fraction overlap.
    let is_same = recorded.is_none_or(|teacher| teacher == own || (teacher.0.is_blocks() && own.0.is_blocks()));
    if is_same {
        return Ok(());
    }
    let text =
        |(rule, fraction): (Validation, f64)| format!("--validation {} --validation-fraction {fraction}", rule.name());
    Err(StageError::Input(format!(
        "the teacher {} was trained with {}, this run has {}, so that it may have been trained on what this run holds out; train one with {} \
         {}, or name one with --teacher-path",
        found.path.display(),
        recorded.map_or_else(String::new, text),
        text(own),
        training_command(config, stage, model, "teacher"),
        text(own)
    )))
}

/// Refuses a teacher of another kind than the student: its targets would not match.
fn expect_kind(found: &LoadedModel, student: &str, role: &ModelRole) -> Result<(), StageError> {
    let kind = found.architecture.model_name();
    if kind == student {
        return Ok(());
    }
    Err(StageError::Input(match role.given {
        Some(path) => format!(
            "{} {}: this is a {kind}, but the teacher of a {student} must be a {student}; name a {student}",
            role.flag,
            path.display()
        ),
        None => format!(
            "the registered teacher {} is a {kind}, but the teacher of a {student} must be a {student}; register another, or name one with {}",
            found.path.display(),
            role.flag
        ),
    }))
}

/// Loads the registered VGAE of a dataset of CAN windows, as the difficulty model of a curriculum.
///
/// # Errors
/// None is registered, or it cannot be read.
pub fn registered_vgae(config: &Config, dataset: &str) -> Result<LoadedModel, StageError> {
    let command = training_command(config, Stage::Autoencoder, "vgae", "teacher");
    Search { dataset, kind: "vgae", command: &command }.registered(config)
}

/// Other ways than the command that trains a teacher: a classifier needs attacks, which not every dataset has recorded.
fn otherwise(config: &Config, model: &str) -> String {
    let lacks_attacks = model == "gat" && !config.data.synthetic_attacks;
    let attacks =
        if lacks_attacks { " (without recorded attacks: --synthetic-attacks, or the preset profile)" } else { "" };
    format!("{attacks}, or train without a teacher: --use-kd false")
}

/// Loads the model at `path`. Warns of one whose training has not ended: its weights may change, and a run that uses them then refuses to resume.
pub fn open(path: &Path) -> Result<LoadedModel, StageError> {
    let model = retry_on_oom(Meter::new(Device::Cpu), || Ok::<_, StageError>(LoadedModel::open(path)?))?;
    let folder = if path.is_dir() { Some(path) } else { path.parent() };
    let has = |file: &str| folder.is_some_and(|folder| folder.join(file).exists());
    if has("config.json") && !has("summary.json") {
        tracing::warn!(
            "the training of {} has not ended: the weights of its best epoch so far are used",
            path.display()
        );
    }
    Ok(model)
}

/// The command that trains a model of this size on the configured data.
fn training_command(config: &Config, stage: Stage, model: &str, size: &str) -> String {
    let profile = if config.data.features == FeatureChoice::Profile { ",profile" } else { "" };
    format!("kdgat {} --preset {model},{size}{profile}{}", stage.command(), data_flag(config))
}

/// The `--data` flag for the configured data, quoted for a shell; empty for the simulated dataset.
pub(super) fn data_flag(config: &Config) -> String {
    config.data.data.as_ref().map(|path| format!(" --data {}", shell::quoted_path(path))).unwrap_or_default()
}

/// The requests that a run will make to its teacher.
#[derive(Debug)]
pub struct TeacherUse {
    /// Positions in the store of all graphs that will be requested.
    pub graphs: Vec<u64>,
    /// Number of graphs, the first ones, that are requested in each view if there are several.
    pub num_viewed: usize,
    /// Training and validation batches of an epoch.
    pub batches_per_epoch: u64,
}

impl TeacherUse {
    /// The shape of a cache of the targets of `store` for these requests, if training graphs are seen in `views`.
    pub fn shape(&self, store: &Store, views: u64) -> StoreShape {
        // A training needs no order.
        let staggered = false;
        StoreShape::new(store, Some(self.graphs.clone())).in_views(views, self.num_viewed, staggered)
    }
}

/// Starts the teacher's thread, if there is a teacher.
pub fn start(
    config: &Config,
    found: Option<FoundTeacher>,
    data: &Data,
    usage: TeacherUse,
) -> Result<TeacherLink, StageError> {
    let Some(found) = found else { return Ok(TeacherLink::none()) };
    let has_views = found.asked.hidden_ids != HiddenIds::Seen || config::displacement(config, Stage::Train).is_some();
    let views = if has_views { config.distillation.kd_views as u64 } else { 0 };
    let shape = usage.shape(&data.store, views);
    let options = teacher_options(config, &found, data.device, &data.dataset, usage.batches_per_epoch);
    start_with(config, found, &options, &shape)
}

/// Starts the teacher's thread with these options, for the targets of `shape`.
pub(super) fn start_with(
    config: &Config,
    found: FoundTeacher,
    options: &TeacherOptions,
    shape: &StoreShape,
) -> Result<TeacherLink, StageError> {
    let model = found.model(training::attention_kernel(config))?;
    let teacher = Teacher::start(model, found.weights, options, shape)?;
    Ok(TeacherLink::new(Some(teacher), config.distillation.teacher_burst, training::alpha(config)))
}

pub(super) fn teacher_options(
    config: &Config,
    found: &FoundTeacher,
    device: Device,
    dataset: &DatasetIdentity,
    batches_per_epoch: u64,
) -> TeacherOptions {
    let settings = &config.distillation;
    TeacherOptions {
        residency: residency(config),
        layer_slots: settings.teacher_layer_slots,
        cache: cache_options(config, found, dataset),
        burst: settings.teacher_burst,
        batches_per_epoch,
        epochs: config.training.max_epochs as u64,
        keeps_targets_on_device: config.memory.graphs_on_device && device.is_cuda(),
        processes: found.processes.clone(),
        ..TeacherOptions::new(device)
    }
}

/// The configured residency of the teacher's weights.
pub fn residency(config: &Config) -> Residency {
    match config.distillation.residency() {
        ResidencyChoice::Resident => Residency::Resident,
        ResidencyChoice::Forward => Residency::Forward,
        ResidencyChoice::Layer => Residency::Layer,
        ResidencyChoice::Auto => Residency::Auto,
    }
}

/// Registers the model that a run has trained as the teacher of its dataset, replacing an earlier one. Returns its folder.
pub fn register(config: &Config, best: &Path, outcome: &Outcome) -> Result<PathBuf, StageError> {
    let (weights, description) = retry_on_oom(Meter::new(Device::Cpu), || {
        let (tensors, description): (StateDict, ModelDescription) = checkpoint::read(best)?;
        Ok::<_, StageError>((Weights::from_tensors(tensors)?, description))
    })?;
    let model = description.architecture.model_name();
    let mut metrics = Map::new();
    if let Some(command) = shell::command() {
        metrics.insert("command".into(), command.into());
    }
    metrics.insert("size".into(), description.size.clone().into());
    metrics.insert("window".into(), description.window.into());
    metrics.insert("data".into(), config.data.data.as_ref().map(|data| data.display().to_string()).into());
    metrics.insert("stride".into(), config.data.stride.into());
    metrics.insert("validation_fraction".into(), config.data.validation_fraction.into());
    metrics.insert("validation".into(), setup::build_options(config).validation.name().into());
    metrics.insert("synthetic_attacks".into(), config.data.synthetic_attacks.into());
    metrics.insert("seed".into(), config.training.seed.into());
    metrics.insert("epochs".into(), outcome.epochs.into());
    metrics.insert("best_epoch".into(), outcome.best_epoch.into());
    metrics.insert("val_loss".into(), outcome.best_val_loss.into());
    if let Some(split) = outcome.inputs.get("split") {
        metrics.insert("split".into(), split.clone());
    }
    if let Some(parts) = outcome.best.as_ref().and_then(|best| best["parts"].as_object()) {
        metrics.extend(parts.clone());
    }
    let teacher = TeacherConfig {
        format_version: registry::FORMAT_VERSION,
        model: model.to_owned(),
        architecture: description.architecture.to_json().as_object().cloned().unwrap_or_default(),
        vocabulary: description.vocabulary.ids().to_vec(),
        foreign_ids: description.foreign_ids,
        weights_digest: weights.digest().to_owned(),
        dataset: TrainedOn { name: description.dataset.name, digest: description.dataset.digest },
        metrics,
        created_by_version: description.created_by_version,
    };
    let replace = true;
    let registry = Registry::new(&config.distillation.teachers_dir);
    let registered =
        retry_on_oom(Meter::new(Device::Cpu), || Ok::<_, StageError>(registry.register(&teacher, &weights, replace)?))?;
    Ok(registered.weights_path.parent().unwrap_or(Path::new("")).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A classifier's teacher wants attacks, which most datasets of one's own lack: the command alone would lead to the next error.
    #[test]
    fn a_missing_teacher_is_explained_to_those_without_labels() {
        let mut config = Config::default();
        let command = |config: &Config| training_command(config, Stage::Classifier, "gat", "teacher");
        assert_eq!(command(&config), "kdgat classifier --preset gat,teacher");
        assert!(otherwise(&config, "gat").contains("--synthetic-attacks, or the preset profile"));
        assert!(otherwise(&config, "gat").ends_with("train without a teacher: --use-kd false"));
        assert_eq!(otherwise(&config, "vgae"), ", or train without a teacher: --use-kd false");
        (config.data.features, config.data.synthetic_attacks) = (FeatureChoice::Profile, true);
        assert_eq!(command(&config), "kdgat classifier --preset gat,teacher,profile");
        assert_eq!(otherwise(&config, "gat"), ", or train without a teacher: --use-kd false");
    }
}
