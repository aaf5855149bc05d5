//! A sweep on disk: its folder, task claims, the state of each task, and the table.

mod folder;
mod record;
pub mod results;
pub mod table;
mod task_state;

pub use folder::{Claim, Membership, SweepFolder, TABLE, settled};
pub use table::Row;
pub use task_state::{Status, TaskState, Worker};
