//! Initial weights from another model: a run that was trained before, on the same or on another task, gives a new one the layers that both
//! have.

use serde_json::{Map, Value, json};

use super::StageError;
use super::recorded_division::{RecordedSplit, recorded_split};
use super::teacher;
use crate::config::Config;
use crate::config::run_settings::{BEGINS_WITH, INITIAL_WEIGHTS, SAW_TESTS};
use crate::distill::frozen::LoadedModel;
use crate::graph::OfPaths;
use crate::nn::parameters::Role;
use crate::nn::weights::expect_finite;
use crate::nn::{Architecture, FreshParameters};

/// Names that a line lists.
const MOST_NAMES: usize = 8;

/// A model to begin with.
pub struct InitialWeights {
    model: LoadedModel,
    freezes: bool,
}

impl InitialWeights {
    /// Opens the configured model; `None` without one. `inputs` has the run's division into sets, if it has one; with `--transductive` it notes
    /// there that the model may have seen the test set.
    ///
    /// # Errors
    /// A model that cannot be read, has NaN or infinite weights, or may have seen what this run tests on.
    pub fn find(config: &Config, inputs: &mut Map<String, Value>) -> Result<Option<Self>, StageError> {
        let Some(path) = &config.training.init_from else { return Ok(None) };
        let model = teacher::open(path)?;
        expect_finite(model.weights.iter())?;
        if let Some(split) = inputs.get_mut("split") {
            match expect_unseen_tests(&model, split) {
                Err(StageError::Input(_)) if config.training.transductive => split[SAW_TESTS] = json!(true),
                other => other?,
            }
        }
        Ok(Some(Self { model, freezes: config.training.freeze }))
    }

    /// The digest that identifies it among a run's inputs, and its kind, by which tables group runs.
    pub fn inputs(&self) -> Map<String, Value> {
        let kind = match &self.model.architecture {
            Architecture::Pretraining(config) => config.pretext.as_str(),
            other => other.model_name(),
        };
        let digest = (INITIAL_WEIGHTS.to_owned(), json!(self.model.weights.digest()));
        Map::from_iter([digest, (BEGINS_WITH.to_owned(), json!(kind))])
    }

    /// Copies every tensor that the model has by name and shape, but for those of the new model's head. Returns a line for the user.
    ///
    /// # Errors
    /// A model that has none of the tensors, or those of libtorch.
    pub fn fill(&self, parameters: &mut FreshParameters, architecture: &Architecture) -> Result<String, StageError> {
        if let (Some(own), Some(new)) = (paths_of(&self.model.architecture), paths_of(architecture))
            && own != new
        {
            let [own, new] = [own, new].map(|names| names.describe());
            return Err(StageError::Input(format!(
                "--init-from {} reads {own}, the new model {new}: its weights would mean something else; begin with a model of the same tables, or \
                 with --multi-hop false in one of the two",
                self.model.path.display()
            )));
        }
        let (mut filled, mut new) = (0, Vec::new());
        for named in parameters.tensors_mut() {
            let found = self.model.weights.get(&named.name).filter(|found| found.size() == named.tensor.size());
            let Some(found) = found.filter(|_| !is_of_head(architecture, &named.name)) else {
                new.push(named.name.clone());
                continue;
            };
            tch::no_grad(|| named.tensor.f_copy_(found))?;
            if self.freezes && named.role == Role::Parameter {
                named.role = Role::Frozen;
                let _ = named.tensor.f_set_requires_grad(false)?;
            }
            filled += 1;
        }
        let path = self.model.path.display();
        let names = listed(&new);
        if filled == 0 {
            return Err(StageError::Input(format!(
                "--init-from {path}: no tensor has name and shape of one of the new model's ({names}), so there is nothing to begin with; \
                 give both the same kind of layers and widths"
            )));
        }
        if !parameters.tensors().iter().any(|named| named.role == Role::Parameter) {
            return Err(StageError::Input(format!(
                "--freeze: {path} gives every tensor of the new model, so that nothing is left to train; drop --freeze"
            )));
        }
        let frozen = if self.freezes { ", which stay as they are" } else { "" };
        let rest = if new.is_empty() { String::new() } else { format!("; new: {names}") };
        Ok(format!("initial weights: {filled} tensors of {path}{frozen}{rest}"))
    }
}

/// True for a tensor of the network's head, which initial weights do not fill: it answers another question.
fn is_of_head(architecture: &Architecture, name: &str) -> bool {
    match architecture {
        Architecture::Gat(_) => name.starts_with("fc_layers."),
        // Of networks in space, as schnetpack calls it.
        Architecture::Graph(_) | Architecture::Pretraining(_) => {
            name.starts_with("head.") || name.starts_with("output_modules.")
        }
        // The last layer with weights gives the outputs.
        Architecture::Nodes(config) => {
            let last = config.layers - 1;
            ["convs", "lins"].iter().any(|layers| name.starts_with(&format!("{layers}.{last}.")))
        }
        Architecture::Vgae(_) | Architecture::GraphVgae(_) => name.starts_with("head."),
    }
}

/// Names of the parameters of a network's angles and dihedrals; `None` for one without such messages.
fn paths_of(architecture: &Architecture) -> Option<OfPaths<Vec<String>>> {
    match architecture {
        Architecture::Graph(network) => network.path_parameters(),
        Architecture::Pretraining(config) => config.network.path_parameters(),
        _ => None,
    }
}

/// Refuses a model unless its run held out the same test items.
fn expect_unseen_tests(model: &LoadedModel, split: &Value) -> Result<(), StageError> {
    let text = |name: &str| split[name].as_str().unwrap_or_default();
    let own = text("test_digest");
    let found = match recorded_split(&model.path)? {
        Some(RecordedSplit { saw_tests: true, .. }) => {
            "itself began with weights that may have seen its test items (--transductive)".to_owned()
        }
        Some(RecordedSplit { test_digest, .. }) if test_digest == own => return Ok(()),
        Some(RecordedSplit { test_digest, origin, .. }) => {
            format!("was trained with other test items ({origin}, {test_digest}; this run: {}, {own})", text("origin"))
        }
        None => "does not say what it was trained on".to_owned(),
    };
    Err(StageError::Input(format!(
        "--init-from {} {found}, so that it may have seen what this run tests on; train it with the same division of the same data, or add \
         --transductive if its data have none of this run's test items or you accept that they do",
        model.path.display()
    )))
}

/// Some names, and how many more there are.
fn listed(names: &[String]) -> String {
    let more = names.len().saturating_sub(MOST_NAMES);
    let mut text = names.iter().take(MOST_NAMES).cloned().collect::<Vec<_>>().join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}
