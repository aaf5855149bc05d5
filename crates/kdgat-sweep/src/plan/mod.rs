//! Expansion of a sweep file to a plan of tasks and trials.

mod axis;
mod combine;
mod expand;
mod file;
pub mod metric;
mod overrides;
mod shared;
mod shipped;
mod task;

pub(crate) use axis::same_value;
pub use expand::{Surroundings, expand};
pub(crate) use file::MOST_THREADS;
pub use file::{Direction, JobsFile, SweepFile};
pub use overrides::apply as override_field;
pub use shipped::{Found, SHIPPED, find};
pub use task::{Input, Plan, Task, TaskKind, Trial};
