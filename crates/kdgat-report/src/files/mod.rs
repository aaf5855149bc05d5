//! Files of runs, evaluations and sweeps, as a report reads them.

mod columns;
mod evaluation;
mod find;
mod graphs;
mod growth;
mod run;
mod trials;

pub use columns::Columns;
pub use evaluation::{Evaluation, Judged, Model, Operator};
pub use find::{Found, find};
pub use graphs::GraphEvaluation;
pub use growth::{GrownModel, Growth, NodeGrowth, Tree};
pub use run::{Run, fold_words, read_json, units};
