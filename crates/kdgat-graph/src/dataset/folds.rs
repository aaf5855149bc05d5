//! Division of a dataset's graphs into training, validation and test: given by the dataset, published folds, or made folds.

use std::path::Path;

use kdgat_base::random;
use kdgat_base::set_digest::SetDigest;
use serde::Deserialize;

use super::error::DatasetError;
use super::schema::Schema;
use crate::{Split, Store, StoreError};

/// Seed of the made folds: the same for all runs, so that seeds and models are compared on the same graphs.
const FOLD_SEED: u64 = 0x6b64_6761_7420_666f;

/// Options of the division of graphs.
#[derive(Debug, Clone, PartialEq)]
pub struct FoldOptions {
    /// File with published folds; none: the dataset's own split, or made folds.
    pub file: Option<std::path::PathBuf>,
    /// Number of made folds.
    pub folds: usize,
    /// The fold to test on, from 0.
    pub fold: usize,
    /// Share of the graphs outside the test fold that is for validation, if folds are made or the dataset's split has none.
    pub validation_fraction: f64,
}

/// The graphs of a run, as positions in the store, ascending.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GraphSplit {
    /// Graphs for training.
    pub training: Vec<u64>,
    /// Graphs for validation.
    pub validation: Vec<u64>,
    /// Graphs for testing.
    pub test: Vec<u64>,
    /// Origin of the division, for the user.
    pub origin: String,
}

/// A fold of a file: that of Errica et al. (2020).
#[derive(Debug, Deserialize)]
struct PublishedFold {
    test: Vec<u64>,
    model_selection: Vec<PublishedSelection>,
}

#[derive(Debug, Deserialize)]
struct PublishedSelection {
    train: Vec<u64>,
    validation: Vec<u64>,
}

impl GraphSplit {
    /// Digest of the test graphs by what the source has of them: a teacher of another division, or of data that changed since, may have been
    /// trained on them. Neither their order nor the cutoff of edges changes it.
    ///
    /// # Errors
    /// A position beyond the store.
    pub fn test_digest(&self, store: &Store) -> Result<String, StoreError> {
        let hashes = self.test.iter().map(|&graph| store.graph_hash(graph)).collect::<Result<Vec<u64>, _>>()?;
        let mut digest = SetDigest::default();
        digest.add(hashes.into_iter());
        Ok(digest.finish())
    }

    /// Divides the graphs of a store.
    ///
    /// # Errors
    /// A file of folds that cannot be read or does not fit the store, a fold that does not exist, or an empty set.
    pub fn of(store: &Store, options: &FoldOptions) -> Result<Self, StoreError> {
        let split = match &options.file {
            Some(file) => published(store, file, options.fold)?,
            None if store.given_split(0).is_some() => given(store, options)?,
            None => made(store, options)?,
        };
        for (name, graphs) in [("training", &split.training), ("validation", &split.validation)] {
            if graphs.is_empty() {
                let detail = format!("no graph is left for {name} ({})", split.origin);
                return Err(DatasetError::Unusable { root: store.path().to_owned(), detail }.into());
            }
        }
        Ok(split)
    }
}

fn published(store: &Store, file: &Path, fold: usize) -> Result<GraphSplit, StoreError> {
    let name = file.display().to_string();
    let error = |found: String, expected: String| DatasetError::line(&name, 1, found, expected);
    let text = std::fs::read(file).map_err(DatasetError::io(file))?;
    let folds: Vec<PublishedFold> = serde_json::from_slice(&text).map_err(|problem| {
        let expected = "a list of folds, each with `test` and `model_selection` (train, validation)".to_owned();
        DatasetError::line(&name, problem.line() as u64, problem.to_string(), expected)
    })?;
    let count = folds.len();
    let Some(PublishedFold { test, model_selection }) = folds.into_iter().nth(fold) else {
        return Err(error(format!("fold {fold}"), format!("a fold from 0 to {}", count.saturating_sub(1))).into());
    };
    let Some(PublishedSelection { train, validation }) = model_selection.into_iter().next() else {
        return Err(
            error(format!("no model_selection in fold {fold}"), "train and validation graphs".to_owned()).into()
        );
    };
    let graphs = store.num_graphs();
    let mut seen = vec![false; graphs as usize];
    for &graph in train.iter().chain(&validation).chain(&test) {
        match seen.get_mut(graph as usize) {
            Some(seen) if !*seen => *seen = true,
            Some(_) => {
                return Err(error(format!("graph {graph} twice in fold {fold}"), "each graph in one set".into()).into());
            }
            None => {
                let expected = format!("a graph from 0 to {}, which {} has", graphs - 1, store.manifest().dataset);
                return Err(error(format!("graph {graph} in fold {fold}"), expected).into());
            }
        }
    }
    let sorted = |mut graphs: Vec<u64>| {
        graphs.sort_unstable();
        graphs
    };
    let origin = format!("fold {fold} of {count} of {name}");
    Ok(GraphSplit { training: sorted(train), validation: sorted(validation), test: sorted(test), origin })
}

fn given(store: &Store, options: &FoldOptions) -> Result<GraphSplit, StoreError> {
    let of =
        |split| (0..store.num_graphs()).filter(|&graph| store.given_split(graph) == Some(split)).collect::<Vec<_>>();
    let (training, validation, test) = (of(Split::Train), of(Split::Validation), of(Split::Test));
    let origin = "split of the dataset".to_owned();
    if !validation.is_empty() {
        return Ok(GraphSplit { training, validation, test, origin });
    }
    let (validation, training) = drawn(store, &training, options.validation_fraction)?;
    Ok(GraphSplit { training, validation, test, origin: origin + ", validation drawn from training" })
}

fn made(store: &Store, options: &FoldOptions) -> Result<GraphSplit, StoreError> {
    let folds = options.folds as u64;
    let order = shuffled(store, &(0..store.num_graphs()).collect::<Vec<_>>())?;
    let (mut test, mut rest) = (Vec::new(), Vec::new());
    for (place, &graph) in (0u64..).zip(&order) {
        if place % folds == options.fold as u64 { test.push(graph) } else { rest.push(graph) }
    }
    rest.sort_unstable();
    test.sort_unstable();
    let (validation, training) = drawn(store, &rest, options.validation_fraction)?;
    let origin = format!("fold {} of {folds}", options.fold);
    Ok(GraphSplit { training, validation, test, origin })
}

/// A share of `graphs`, at least one, and the others; both ascending, with the classes in nearly equal shares.
fn drawn(store: &Store, graphs: &[u64], share: f64) -> Result<(Vec<u64>, Vec<u64>), StoreError> {
    let count = ((graphs.len() as f64 * share).round() as usize).clamp(1, graphs.len().max(1));
    let order = shuffled(store, graphs)?;
    let (mut drawn, mut others) = (Vec::new(), Vec::new());
    for (place, &graph) in order.iter().enumerate() {
        // Evenly spaced places: each class gives its share.
        let is_drawn = (place + 1) * count / order.len() > place * count / order.len();
        if is_drawn { drawn.push(graph) } else { others.push(graph) }
    }
    drawn.sort_unstable();
    others.sort_unstable();
    Ok((drawn, others))
}

/// The graphs class by class, shuffled within each class; all together for tasks without classes. Every k-th of them is a stratified fold.
fn shuffled(store: &Store, graphs: &[u64]) -> Result<Vec<u64>, StoreError> {
    let has_classes = store.schema().is_some_and(Schema::has_classes);
    let key = |&graph: &u64| -> Result<(u32, u64, u64), StoreError> {
        let class = match has_classes {
            true => store.try_graph(graph)?.class(),
            false => 0,
        };
        Ok((class, random::mix(FOLD_SEED ^ graph), graph))
    };
    let mut keys = graphs.iter().map(key).collect::<Result<Vec<_>, _>>()?;
    keys.sort_unstable();
    Ok(keys.into_iter().map(|(_, _, graph)| graph).collect())
}
