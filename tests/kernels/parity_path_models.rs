//! SGMP equals a plain computation over all paths at once: names of tensors, outputs, and gradients.

use kdgat::graph::{Batch, Space};
use kdgat::nn::attention::Backend;
use kdgat::nn::layers::Mode;
use kdgat::nn::sgmp::PathConfig;
use kdgat::nn::{FreshParameters, Gnn, GnnConfig, GnnKind, Pooling, Scope};
use tch::{Device, Kind, Tensor};

use super::reference_values::{self, Reference, assert_close, reference};

fn batch(reference: &Reference) -> Batch {
    let mut batch = reference_values::batch(reference, 0);
    let nodes = batch.num_nodes();
    let none = |shape: &[i64], kind| Tensor::zeros(shape, (kind, Device::Cpu));
    batch.space = Some(Box::new(Space {
        positions: reference["positions"].shallow_clone(),
        kinds: none(&[nodes], Kind::Int64),
        targets: none(&[0], Kind::Int64),
        sources: none(&[0], Kind::Int64),
        row_pointers: none(&[nodes + 1], Kind::Int),
        shifts: None,
        forces: None,
        displaced: None,
        paths: Default::default(),
    }));
    batch
}

#[test]
fn sgmp_equals_the_plain_computation() {
    let reference = reference("path_models.safetensors");
    let batch = batch(&reference);
    for (name, pooling) in [("sum", Pooling::Sum), ("mean", Pooling::Mean)] {
        let config = GnnConfig {
            pooling,
            paths: Some(PathConfig { cutoff: 10.0, gaussians: PathConfig::GAUSSIANS }),
            ..GnnConfig::new(GnnKind::Sgmp, [3, 8, 2, 4])
        };
        for kernel in [Backend::Fused, Backend::Composed] {
            let mut fresh = FreshParameters::new(0, Device::Cpu);
            let model = Gnn::new(Scope::root(&mut fresh), &config, kernel).unwrap();
            let tensors = fresh.into_tensors();
            let prefix = format!("{name}.state.");
            let known = reference.keys().filter(|name| name.starts_with(&prefix)).count();
            assert_eq!(tensors.len(), known, "other tensors than the reference");
            for named in &tensors {
                tch::no_grad(|| named.tensor.shallow_clone().copy_(&reference[&format!("{prefix}{}", named.name)]));
            }
            let outputs = model.forward(&batch, Mode::Training).unwrap();
            assert_close(&format!("{name}, {kernel:?}: outputs"), &outputs, &reference[&format!("{name}.outputs")]);
            outputs.square().mean(Kind::Float).backward();
            for named in &tensors {
                let expected = &reference[&format!("{name}.gradient.{}", named.name)];
                assert_close(&format!("{name}, {kernel:?}: {}", named.name), &named.tensor.grad(), expected);
            }
            let shared = tch::no_grad(|| model.forward(&batch, Mode::Evaluation)).unwrap();
            assert_close("evaluation", &shared, &outputs);
        }
    }
}
