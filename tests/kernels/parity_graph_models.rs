//! GIN, GIN-E, GCN, GraphSAGE and GAT, each with and without a virtual node, equal PyTorch Geometric: names of tensors, outputs, and gradients.

use kdgat::nn::attention::Backend;
use kdgat::nn::layers::Mode;
use kdgat::nn::{FreshParameters, Gnn, GnnConfig, GnnKind, Pooling, Scope};
use tch::{Device, Kind};

use super::reference_values::{assert_close, batch, reference};

const EDGE_FEATURES: usize = 3;

#[test]
fn graph_networks_equal_pytorch_geometric() {
    let reference = reference("graph_models.safetensors");
    let batch = batch(&reference, EDGE_FEATURES);
    for (name, kind, pooling) in [
        ("gin", GnnKind::Gin, Pooling::Sum),
        ("gine", GnnKind::Gin, Pooling::Sum),
        ("gcn", GnnKind::Gcn, Pooling::Mean),
        ("sage", GnnKind::Sage, Pooling::Sum),
        ("gat", GnnKind::Gat, Pooling::Mean),
        ("max", GnnKind::Sage, Pooling::Max),
        ("attention", GnnKind::Gin, Pooling::Attention),
        ("virtual_gin", GnnKind::Gin, Pooling::Sum),
        ("virtual_gine", GnnKind::Gin, Pooling::Mean),
        ("virtual_gcn", GnnKind::Gcn, Pooling::Mean),
        ("virtual_sage", GnnKind::Sage, Pooling::Sum),
        ("virtual_gat", GnnKind::Gat, Pooling::Mean),
    ] {
        let heads = if kind == GnnKind::Gat { 2 } else { 1 };
        let config = GnnConfig {
            edge_features: if name.ends_with("gine") { EDGE_FEATURES as i64 } else { 0 },
            heads,
            pooling,
            virtual_node: name.starts_with("virtual_"),
            ..GnnConfig::new(kind, [5, 8, 3, 4])
        };
        let of = |part: &str, tensor: &str| &reference[&format!("{name}.{part}.{tensor}")];
        for kernel in [Backend::Fused, Backend::Composed] {
            let mut fresh = FreshParameters::new(0, Device::Cpu);
            let model = Gnn::new(Scope::root(&mut fresh), &config, kernel).unwrap();
            let mut tensors = fresh.into_tensors();
            let prefix = format!("{name}.state.");
            let known = reference.keys().filter(|name| name.starts_with(&prefix)).count();
            assert_eq!(tensors.len(), known, "{name} has other tensors than the reference");
            for named in &mut tensors {
                tch::no_grad(|| named.tensor.copy_(of("state", &named.name)));
            }
            let what = format!("{name}, {kernel:?}");
            let evaluated = tch::no_grad(|| model.forward(&batch, Mode::Evaluation).unwrap());
            assert_close(&what, &evaluated, &reference[&format!("{name}.evaluation")]);
            let trained = model.forward(&batch, Mode::Training).unwrap();
            assert_close(&what, &trained.detach(), &reference[&format!("{name}.training")]);
            trained.square().mean(Kind::Float).backward();
            for named in tensors.iter().filter(|named| named.tensor.requires_grad()) {
                assert_close(&format!("{what}, {}", named.name), &named.tensor.grad(), of("gradient", &named.name));
            }
        }
    }
}
