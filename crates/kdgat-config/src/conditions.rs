//! Conditions of a configuration that several rules or stages depend on.

use super::check::Stage;
use super::data_kind::DataKind;
use super::fields::Config;
use super::values::{FeatureChoice, ModelKind};

/// True if the configured dataset is the store of one large graph.
pub fn is_node_store(config: &Config) -> bool {
    config.data.data.as_deref().is_some_and(kdgat_nodes::sources::is_store)
}

/// True if a stage trains on graphs that are no CAN windows, or on one large graph.
pub fn trains_on_graphs(config: &Config, stage: Stage) -> bool {
    matches!(stage, Stage::Train | Stage::Pretrain)
        || (stage == Stage::Autoencoder && config.data_kind == DataKind::Graphs)
}

/// True if batches of one large graph read the features of some of its nodes.
pub fn reads_rows(config: &Config) -> bool {
    config.nodes.fanouts.is_some() || config.nodes.clusters.is_some() || config.model.model == ModelKind::Mlp
}

/// The seed of all views of training graphs, whatever the seed of a training.
pub const VIEWS_SEED: u64 = 0;

/// True if graphs can have several views: random IDs are hidden from a classifier, or nodes in space are displaced.
pub fn draws_views(config: &Config, stage: Stage) -> bool {
    hides_ids(config, stage) || displacement(config, stage).is_some()
}

/// True if a stage trains a classifier from whose input random IDs are hidden. With profile features, no ID is visible anyway.
fn hides_ids(config: &Config, stage: Stage) -> bool {
    let is_classifier = matches!(stage, Stage::Classifier | Stage::Curriculum);
    is_classifier && config.model.unknown_drop > 0.0 && config.data.features != FeatureChoice::Profile
}

/// Number of views of each training graph that a student and its teacher see in turn; 0 if each epoch of the student has its own. The views
/// are the same in every training ([`VIEWS_SEED`]), so that trainings can share the targets.
pub fn views(config: &Config, stage: Stage) -> u64 {
    if config.distillation.use_kd && draws_views(config, stage) { config.distillation.kd_views as u64 } else { 0 }
}

/// Standard deviation of the displacements of nodes, which a student in space and its teacher see; `None` without.
pub fn displacement(config: &Config, stage: Stage) -> Option<f64> {
    let deviation = config.distillation.kd_displacement;
    (stage == Stage::Train && config.model.model.reads_positions() && config.distillation.use_kd && deviation > 0.0)
        .then_some(deviation)
}

/// True for a network of representations with messages along the data's edges.
pub fn has_bonds(config: &Config) -> bool {
    config.model.model == ModelKind::Irreps && config.graphs.bonds
}

impl ModelKind {
    /// True for a network of pairs of near nodes, which may learn forces.
    pub fn is_in_space(self) -> bool {
        matches!(self, Self::SchNet | Self::PaiNN | Self::Irreps)
    }

    /// The name with its article.
    pub fn with_article(self) -> String {
        let article = if matches!(self, Self::Sgmp | Self::Irreps) { "an" } else { "a" };
        format!("{article} {self}")
    }

    /// True for a network that reads positions of nodes.
    pub fn reads_positions(self) -> bool {
        self.is_in_space() || self == Self::Sgmp
    }
}
