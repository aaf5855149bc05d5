//! Layers, losses and fused kernels on the CPU, compared with composed operations and with reference values.

mod attention_gat;
mod attention_gatv2;
mod attention_levels;
mod fused_norm;
mod fused_step;
mod fusion_states;
mod fusion_updates;
mod half_precision_losses;
mod parity_gat;
mod parity_graph_models;
mod parity_irreps;
mod parity_path_models;
mod parity_space_models;
mod parity_vgae;
mod reference_values;
mod torch_autograd;
