//! `--live`: a run on one screen. The training loop stores numbers, and a thread of the panel draws them five times a second.
//!
//! The thread and all drawing are part of programs that are built with the feature `live`: they stand on thirty further crates.

#[cfg(not(feature = "live"))]
mod absent;
#[cfg(feature = "live")]
mod draw;
#[cfg(feature = "live")]
mod live;
// Without the panel, nothing reads what these hold.
#[cfg_attr(not(feature = "live"), allow(dead_code))]
mod memory;
#[cfg_attr(not(feature = "live"), allow(dead_code))]
mod state;
#[cfg_attr(not(feature = "live"), allow(dead_code))]
mod teacher;
#[cfg_attr(not(feature = "live"), allow(dead_code))]
pub(super) mod text;

#[cfg(not(feature = "live"))]
pub use self::absent::Panel;
#[cfg(feature = "live")]
pub use self::live::Panel;
pub use self::memory::MemoryPlan;
pub use self::state::State;
