//! Tests of a GPU, and the program on a GPU simulated in software.

#[path = "../../benches/common/mod.rs"]
mod common;

mod attention_gpu;
mod distill_cuda;
mod recorded_steps;
mod resident_graphs;
mod software;
mod software_card;
mod software_card_errors;
mod torch_device;
