//! The teacher of a graph network and the model that scores the difficulty of its graphs: found, and checked against the data and their division.

use std::path::Path;

use super::graph_autoencoder::expect_difficulty_model;
use super::graphs::{other_paths, schema};
use super::recorded_division::{RecordedSplit, expect_same_division};
use super::setup::Data;
use super::teacher::{FoundTeacher, ModelRole, Search, asked, data_flag, open};
use super::{StageError, assumed};
use crate::config::Config;
use crate::distill::frozen::LoadedModel;
use crate::graph::dataset::GraphSplit;
use crate::nn::{Architecture, GnnConfig};

const DIFFICULTY_MODEL: ModelRole = ModelRole { name: "difficulty model", flag: "--difficulty-model", given: None };

/// Finds the configured teacher of a graph network, if any: by path, or the one registered for the dataset. It may have other layers than
/// the student, but must read the same columns and have the same outputs.
///
/// # Errors
/// Also if the teacher was trained on another division of the graphs: it would pass on labels of this one's test graphs.
pub fn find_for_graphs(
    config: &Config,
    data: &Data,
    student: &GnnConfig,
    split: &GraphSplit,
) -> Result<Option<FoundTeacher>, StageError> {
    let command = graph_teacher_command(config);
    let search = Search { dataset: &data.dataset.name, kind: "graph", command: &command };
    let found = search.run(config, |network, role| expect_fitting(config, data, student, split, network, role))?;
    found.map(|found| FoundTeacher::of_shared(found, asked(config))).transpose()
}

/// Loads the model at `path` that scores the difficulty of a run's graphs: a graph network by its task loss, which must read the same columns as
/// the student and have the same outputs, or a VGAE of graphs by its error.
///
/// # Errors
/// Also if it was trained on another division of the graphs: it would choose training graphs by what it learned from this one's test graphs.
pub fn difficulty_model(
    config: &Config,
    path: &Path,
    data: &Data,
    student: &GnnConfig,
    split: &GraphSplit,
) -> Result<LoadedModel, StageError> {
    let found = open(path)?;
    match &found.architecture {
        Architecture::GraphVgae(_) => expect_difficulty_model(config, data, split, &found, &DIFFICULTY_MODEL)?,
        _ => expect_fitting(config, data, student, split, &found, &DIFFICULTY_MODEL)?,
    }
    Ok(found)
}

/// The command that trains a teacher on the configured dataset of graphs and fold.
fn graph_teacher_command(config: &Config) -> String {
    let model = assumed::graph_teacher(config.model.model);
    format!("kdgat train --preset {model},teacher{}{}", data_flag(config), fold_flag(config))
}

/// The `--fold` flag of the configured fold; empty for the first.
pub(super) fn fold_flag(config: &Config) -> String {
    match config.graphs.fold {
        0 => String::new(),
        fold => format!(" --fold {fold}"),
    }
}

/// Refuses a model that is no graph network, reads other columns or has other outputs than the student, or was trained on another
/// division of the graphs.
fn expect_fitting(
    config: &Config,
    data: &Data,
    student: &GnnConfig,
    split: &GraphSplit,
    found: &LoadedModel,
    role: &ModelRole,
) -> Result<(), StageError> {
    let (path, name, command) = (found.path.display(), role.name, graph_teacher_command(config));
    let Architecture::Graph(architecture) = &found.architecture else {
        let kind = match &found.architecture {
            Architecture::GraphVgae(_) => "an autoencoder of graphs".to_owned(),
            Architecture::Pretraining(_) => "pre-trained alone (begin a training with it: --init-from)".to_owned(),
            other => format!("a {} of CAN windows", other.model_name()),
        };
        return Err(StageError::Input(format!("the {name} {path} is {kind}; train one with {command}")));
    };
    let columns = |config: &GnnConfig| {
        let (nodes, edges) = (config.node_features, config.edge_features);
        let of = config.level.units();
        let kinds = config.space.as_ref().map_or(String::new(), |space| format!(", {} kinds of nodes", space.kinds));
        format!("{nodes} node features, {edges} edge features{kinds} and {} outputs of {of}", config.outputs)
    };
    let is_alike =
        |config: &GnnConfig| (config.node_features, config.outputs, config.target_scales.is_empty(), config.level);
    let kinds = |config: &GnnConfig| config.space.as_ref().map(|space| space.kinds);
    let knows_other_kinds = kinds(architecture).zip(kinds(student)).is_some_and(|(own, others)| own != others);
    let edges = data.store.features().edge_features() as i64;
    let reads_others = architecture.edge_features != 0 && architecture.edge_features != edges;
    if reads_others || knows_other_kinds || is_alike(architecture) != is_alike(student) {
        return Err(StageError::Input(format!(
            "the {name} {path} has {}, the data {}; train a teacher on this data with {command}",
            columns(architecture),
            columns(student)
        )));
    }
    if let Some(differs) = other_paths(architecture, schema(&data.store)?) {
        return Err(StageError::Input(format!(
            "the {name} {path} {differs}; train a teacher on this data with {command}"
        )));
    }
    let division = RecordedSplit::new(split.test_digest(&data.store)?, split.origin.clone());
    expect_same_division(&found.path, role, "graphs", &division, &command)
}
