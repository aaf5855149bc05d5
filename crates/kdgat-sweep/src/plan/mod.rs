//! Expansion of a sweep file to a plan of tasks and trials.

mod axis;
mod combine;
mod expand;
pub mod file;
pub mod metric;
mod overrides;
mod shared;
mod shipped;
pub mod task;

pub use axis::same_value;
pub use expand::{Surroundings, expand};
pub use file::{Direction, JobsFile, SweepFile};
pub use overrides::apply as override_field;
pub use shipped::{Found, SHIPPED, find};
pub use task::{Plan, Task, TaskKind, Trial};
