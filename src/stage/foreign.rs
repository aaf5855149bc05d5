//! The outputs of a teacher from elsewhere, in a file: found by the configuration or beside the dataset.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::StageError;
use super::setup::Data;
use super::train::schema;
use crate::config::{Config, EmbeddingLossChoice};
use crate::distill::foreign::{ExpectedGraphs, ForeignTargets};
use crate::distill::losses::EmbeddingLoss;
use crate::graph::dataset::{self, TARGETS};
use crate::graph::{Level, Schema, Store, Task};

/// Opens the file with a teacher's outputs that a student learns from; `None` without distillation, or if there is no such file.
///
/// # Errors
/// A file that cannot be read or does not fit the dataset.
pub fn find(config: &Config, data: &Data) -> Result<Option<Arc<ForeignTargets>>, StageError> {
    let settings = &config.distillation;
    if !settings.use_kd || settings.teacher_path.is_some() {
        return Ok(None);
    }
    let Some(source) = &config.data.data else { return Ok(None) };
    let path = path_for(settings.targets_file.as_deref(), source);
    if let (Some(path), Level::Node) = (&path, schema(&data.store)?.level) {
        return Err(StageError::Input(format!(
            "{}: a file with a teacher's outputs has a row for each graph, and the targets are of nodes; name a teacher's weights with \
             --teacher-path, or remove the file",
            path.display()
        )));
    }
    path.map(|path| open(&path, source, &data.store).map(Arc::new)).transpose()
}

/// The configured file, or the one in the dataset's folder if there is one.
pub fn path_for(configured: Option<&Path>, source: &Path) -> Option<PathBuf> {
    let beside = source.join(TARGETS);
    configured.map(Path::to_owned).or_else(|| beside.is_file().then_some(beside))
}

/// Opens a file with a teacher's outputs for the graphs of `store`, which was built from `source`.
///
/// # Errors
/// A file that cannot be read or does not fit the dataset.
pub fn open(path: &Path, source: &Path, store: &Store) -> Result<ForeignTargets, StageError> {
    let schema = schema(store)?;
    let ids = || dataset::read(source).map(|set| set.graph_ids).map_err(|error| error.to_string());
    let graphs = ExpectedGraphs {
        ids: &ids,
        count: store.num_graphs() as usize,
        outputs: outputs(schema),
        are_values: schema.task == Task::Regression,
    };
    ForeignTargets::open(path, graphs).map_err(|error| StageError::Input(error.to_string()))
}

/// Number of outputs of a model for this schema: classes, labels or values.
pub fn outputs(schema: &Schema) -> usize {
    match schema.task {
        Task::Classification => schema.targets[0].classes.len(),
        Task::MultiLabel | Task::Regression => schema.targets.len(),
    }
}

/// The configured loss of embeddings, and its weight within the distillation.
pub fn embedding_loss(config: &Config) -> (EmbeddingLoss, f64) {
    let settings = &config.distillation;
    let loss = match settings.kd_embedding_loss {
        EmbeddingLossChoice::Cosine => EmbeddingLoss::Cosine,
        EmbeddingLossChoice::Mse => EmbeddingLoss::Distance,
        EmbeddingLossChoice::Contrastive => {
            EmbeddingLoss::Contrastive { temperature: settings.kd_embedding_temperature }
        }
        EmbeddingLossChoice::Relational => EmbeddingLoss::Relational,
    };
    (loss, settings.kd_embedding_weight)
}
