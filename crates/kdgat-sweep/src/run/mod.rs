//! Execution of a plan's tasks.

mod attempt;
mod board;
mod command;
mod follow;
mod ladder;
mod local;
mod one;
mod promise;
mod relief;
mod resources;
mod view;

pub use attempt::Grant;
pub(crate) use board::Board;
pub use command::command_line;
pub(crate) use follow::Follower;
pub use local::{Ended, run as run_here};
pub use one::{Outcome, work_on};
pub(crate) use relief::out_of_memory;
pub use resources::{Slots, Wish, slots};
