//! Files of runs, evaluations and sweeps, as a report reads them.

mod columns;
mod evaluation;
mod find;
mod run;
mod trials;

pub use columns::Columns;
pub use evaluation::{Evaluation, Judged, Model, Operator};
pub use find::{Found, find};
pub use run::{Run, read_json};
