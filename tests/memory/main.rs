//! Memory of whole runs, measured and planned.

mod memory_budget;
mod memory_plan;
mod memory_runs;
mod node_memory;
