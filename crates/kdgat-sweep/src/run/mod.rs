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

pub use attempt::{Asked, Attempt, Grant};
pub use board::Board;
pub use command::command_line;
pub use follow::Follower;
pub use local::{Ended, run as run_here};
pub use one::{Outcome, work_on};
pub use relief::out_of_memory;
pub use resources::{Slots, Wish, slots};
