//! A sweep on disk: its folder, task claims, the state of each task, and the table.

mod folder;
mod record;
pub(crate) mod results;
pub mod table;
mod task_state;

pub(crate) use folder::Claim;
pub use folder::{Membership, SweepFolder, TABLE, settled};
pub use table::Row;
pub use task_state::{Status, TaskState, Worker};
