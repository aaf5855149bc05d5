//! Pre-trains a network on graphs of any kind: its head answers a question that the graphs themselves answer, and the other layers become the
//! initial weights of a training.

use serde_json::{Map, Value, json};
use tch::Device;

use super::epochs::Epochs;
use super::graphs::{Head, divided, gnn_config, inputs_of_split, packed, schema};
use super::run::{Prepared, Run};
use super::setup::Data;
use super::workload::{NewStudent, Opened, TeacherSource, Workload};
use super::{StageError, graph_batches, training};
use crate::config::run_settings::SAW_TESTS;
use crate::config::{Config, PretrainingObjectiveChoice, Stage};
use crate::distill::objective::{PretrainingObjective, TeacherLink};
use crate::graph::dataset::GraphSplit;
use crate::graph::{NodeScaling, Store};
use crate::nn::{Architecture, FreshParameters, GnnConfig, Pretext, Pretraining, PretrainingConfig, Scope};
use crate::train::trainable::Trainable;

/// Columns of the order of a tree's nodes.
const ORDER_COLUMNS: i64 = 32;
/// Bins of the distances and of the angles of a node's children.
const GROWTH_BINS: [usize; 2] = [20, 20];

/// A network in pre-training on a dataset of graphs that are no CAN windows.
pub struct PretrainedNetwork<'a> {
    config: &'a Config,
    data: Data,
    /// The division of all graphs.
    split: GraphSplit,
    /// The division, whose training graphs include the test graphs if the configuration says so.
    chosen: GraphSplit,
    architecture: PretrainingConfig,
}

impl<'a> PretrainedNetwork<'a> {
    /// Opens the configured dataset of graphs and divides it.
    ///
    /// # Errors
    /// Data that cannot be read, a model that does not fit them, or trees asked of graphs that are none.
    pub fn open(config: &'a Config) -> Result<Self, StageError> {
        let (data, split) = divided(config)?;
        let mut chosen = split.clone();
        if config.training.transductive {
            chosen.training.extend(&split.test);
            chosen.training.sort_unstable();
        }
        let architecture = architecture(config, &data, &split, &chosen)?;
        Ok(Self { config, data, split, chosen, architecture })
    }
}

impl<'a> Workload<'a> for PretrainedNetwork<'a> {
    type Student = PretrainingObjective;
    type Plan = Epochs;

    fn opened(&self) -> Opened<'a> {
        Opened { config: self.config, stage: Stage::Pretrain, origin: self.data.origin() }
    }

    fn architecture(&self) -> Architecture {
        Architecture::Pretraining(self.architecture.clone())
    }

    fn find_teacher(&mut self) -> Result<TeacherSource, StageError> {
        Ok(TeacherSource::None)
    }

    fn inputs(&mut self) -> Result<Map<String, Value>, StageError> {
        let mut inputs = inputs_of_split(&self.data, &self.split)?;
        if self.config.training.transductive {
            inputs["split"][SAW_TESTS] = json!(true);
        }
        Ok(inputs)
    }

    fn plan(&mut self) -> Result<Epochs, StageError> {
        Ok(Epochs::of_all(self.config, packed(self.config, &self.data, &self.chosen)?))
    }

    fn new_student(&self, _: Option<&Architecture>) -> Result<NewStudent<PretrainingObjective>, StageError> {
        new_student(self.config, self.data.device, &self.architecture)
    }

    fn start_teacher(&self, _: TeacherSource, _: &Epochs) -> Result<TeacherLink, StageError> {
        Ok(TeacherLink::none())
    }

    fn prepare(
        &self,
        run: &mut Run,
        student: &mut PretrainingObjective,
        trainable: &mut Trainable,
        plan: &mut Epochs,
    ) -> Result<Prepared, StageError> {
        graph_batches::prepare(run, &self.data, self.architecture(), student, trainable, plan)
    }
}

/// Makes a network with its loss.
///
/// # Errors
/// Too little memory.
pub(super) fn new_student(
    config: &Config,
    device: Device,
    architecture: &PretrainingConfig,
) -> Result<NewStudent<PretrainingObjective>, StageError> {
    let seed = config.training.seed;
    let mut parameters = FreshParameters::new(seed, device);
    let model = Pretraining::new(Scope::root(&mut parameters), architecture, training::attention_kernel(config))?;
    Ok(NewStudent { parameters, student: PretrainingObjective::new(model, seed) })
}

/// The configured network with the head that the objective needs. `chosen`: the division with the graphs that are learned from.
fn architecture(
    config: &Config,
    data: &Data,
    split: &GraphSplit,
    chosen: &GraphSplit,
) -> Result<PretrainingConfig, StageError> {
    let schema = schema(&data.store)?;
    let pretext = match config.graphs.objective {
        PretrainingObjectiveChoice::Masked => Pretext::Masked { share: config.graphs.mask_share },
        PretrainingObjectiveChoice::GtSsl => Pretext::GtSsl { columns: ORDER_COLUMNS, bins: GROWTH_BINS },
    };
    let outputs = PretrainingConfig::outputs(&pretext, schema.node_columns() as i64);
    let network = gnn_config(config, data, split, Head::OfNodes(outputs))?;
    if let Pretext::GtSsl { .. } = pretext {
        expect_trees(config, &data.store, &network)?;
    }
    let categories = schema.node_categories();
    let is_scaled = |column: usize| !categories.iter().any(|columns| columns.contains(&(column as i64)));
    let scaling = NodeScaling::of_graphs(&data.store, &chosen.training, is_scaled)?;
    Ok(PretrainingConfig { network, pretext, categories, scaling })
}

/// Refuses graphs that are no rooted trees, and networks that do not read paths.
fn expect_trees(config: &Config, store: &Store, network: &GnnConfig) -> Result<(), StageError> {
    if network.paths.is_none() {
        return Err(StageError::Input(format!(
            "--objective gt-ssl predicts how trees grow from the paths to a node, which {} does not read; use --preset sgmp,teacher, or \
             --objective masked",
            config.model.model.with_article()
        )));
    }
    let is_rooted = schema(store)?.space.as_ref().is_some_and(|space| space.rooted);
    match is_rooted {
        true => Ok(()),
        false => Err(StageError::Input(format!(
            "--objective gt-ssl needs rooted trees, and the graphs of {} are none: it reads folders of SWC files; use --objective masked",
            store.manifest().dataset
        ))),
    }
}
