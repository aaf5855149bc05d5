//! The file of an evaluation with the growth of a test tree: `growth.json`.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::run::read_json;
use crate::ReportError;

const FILE: &str = "growth.json";
const FORMAT_VERSION: u64 = 1;

/// Predicted and real growth of a test tree.
#[derive(Debug, Clone, Deserialize)]
pub struct Growth {
    pub length_unit: Option<String>,
    pub models: Vec<GrownModel>,
    #[serde(skip)]
    pub path: PathBuf,
}

/// A model with the tree as it predicted it.
#[derive(Debug, Clone, Deserialize)]
pub struct GrownModel {
    pub model: String,
    pub tree: Tree,
}

/// A tree.
#[derive(Debug, Clone, Deserialize)]
pub struct Tree {
    pub positions: Vec<[f64; 3]>,
    pub parents: Vec<Option<usize>>,
    pub growth: Vec<NodeGrowth>,
}

/// Mean distance of a node's children, and mean angle between the edge to it and those to them.
#[derive(Debug, Clone, Deserialize)]
pub struct NodeGrowth {
    pub node: usize,
    pub predicted: [f64; 2],
    pub real: [f64; 2],
}

impl Growth {
    /// Reads the file of an evaluation; `None` if it has none.
    ///
    /// # Errors
    /// If the file is damaged or of another version.
    pub fn read(folder: &Path) -> Result<Option<Self>, ReportError> {
        let path = folder.join(FILE);
        if !path.is_file() {
            return Ok(None);
        }
        let content = read_json(&path)?;
        if content["format_version"] != FORMAT_VERSION {
            let found = &content["format_version"];
            let reason = format!("has format version {found}, this program reads {FORMAT_VERSION}; evaluate again");
            return Err(ReportError::input(&path, reason));
        }
        let damaged = |reason: String| ReportError::input(&path, format!("{reason}; evaluate again"));
        let growth: Self = serde_json::from_value(content)
            .map_err(|error| damaged(format!("is not the growth of a tree: {error}")))?;
        for GrownModel { model, tree: Tree { positions, parents, growth } } in &growth.models {
            let nodes = positions.len();
            let fits = parents.len() == nodes
                && parents.iter().flatten().all(|&parent| parent < nodes)
                && growth.iter().all(|at| at.node < nodes);
            if !fits {
                return Err(damaged(format!("names nodes that the tree of {model} does not have")));
            }
        }
        Ok(Some(Self { path, ..growth }))
    }
}
