//! The fusion states equal the reference formulas applied to the reference outputs of both models.

use kdgat::fusion::states::{STATE, gat_columns, vgae_columns};
use kdgat::nn::attention::Backend;
use kdgat::nn::{Gat, GatConfig, GivenTensors, Scope, Vgae, VgaeConfig};
use support::parity::{PARITY_VOCABULARY, parity_batch, parity_scalars, parity_tensors};
use tch::{Kind, Tensor};

const TOLERANCE: f64 = 1e-5;
const KERNELS: [Backend; 2] = [Backend::Composed, Backend::Fused];

fn vgae(size: &str, kernel: Backend) -> Vgae {
    let (hidden, latent, heads, embedding) =
        if size == "student" { (vec![80, 40, 16], 16, 1, 4) } else { (vec![480, 240, 48], 48, 4, 32) };
    let config = VgaeConfig {
        hidden,
        latent,
        heads,
        embedding,
        vocabulary_size: PARITY_VOCABULARY,
        dropout: 0.0,
        edge_scaling: None,
        input: Default::default(),
    };
    let mut given = GivenTensors::new(parity_tensors(&format!("vgae_{size}_state")));
    Vgae::new(Scope::root(&mut given), &config, kernel).unwrap()
}

fn gat(size: &str, kernel: Backend) -> Gat {
    let (hidden, layers, heads, embedding, fc_layers) =
        if size == "student" { (24, 2, 4, 8, 3) } else { (48, 3, 8, 16, 2) };
    let config = GatConfig {
        hidden,
        layers,
        heads,
        embedding,
        fc_layers,
        vocabulary_size: PARITY_VOCABULARY,
        dropout: 0.0,
        edge_scaling: None,
        input: Default::default(),
    };
    let mut given = GivenTensors::new(parity_tensors(&format!("gat_{size}_state")));
    Gat::new(Scope::root(&mut given), &config, kernel).unwrap()
}

/// Rows of each graph.
fn by_graph(x: &Tensor, batch: &kdgat::graph::Batch) -> Vec<Tensor> {
    let pointers = Vec::<i64>::try_from(&batch.node_pointers).unwrap();
    pointers.windows(2).map(|ends| x.narrow(0, ends[0], ends[1] - ends[0]).to_kind(Kind::Double)).collect()
}

fn number(tensor: Tensor) -> f64 {
    tensor.double_value(&[])
}

fn statistics(x: &Tensor) -> [f64; 4] {
    [number(x.mean(Kind::Double)), number(x.std(false)), number(x.max()), number(x.min())]
}

fn compare(what: &str, found: &Tensor, expected: &[Vec<f64>], names: &[&str]) {
    for (graph, expected) in expected.iter().enumerate() {
        for (column, (expected, name)) in expected.iter().zip(names).enumerate() {
            let found = found.double_value(&[graph as i64, column as i64]);
            let difference = (found - expected).abs();
            assert!(
                difference <= TOLERANCE * expected.abs().max(0.1),
                "{what}, graph {graph}, {name}: {found} instead of {expected}"
            );
        }
    }
}

#[test]
fn the_autoencoders_part_equals_the_reference() {
    for size in ["student", "teacher"] {
        for (batch_name, suffix) in [("batch", ""), ("edge_batch", "_edge")] {
            let name = format!("vgae_{size}_eval_eps0{suffix}");
            for kernel in KERNELS {
                let (model, reference) = (vgae(size, kernel), parity_tensors(&name));
                let batch = parity_batch(batch_name);
                let scalars = parity_scalars()[&name]["per_graph"].clone();
                let z = by_graph(&reference["z"], &batch);
                let logits = by_graph(&reference["nbr_logits"], &batch);
                let targets = by_graph(&reference["nbr_targets"], &batch);
                let expected: Vec<Vec<f64>> = (0..batch.num_graphs())
                    .map(|graph| {
                        let part = |name: &str| scalars[graph][name].as_f64().unwrap();
                        // −y·ln σ(x) − (1−y)·ln(1−σ(x)), mean over nodes and IDs.
                        let (x, y) = (&logits[graph], &targets[graph]);
                        let likelihood: Tensor = y * x.log_sigmoid() + (1.0 - y) * (-x).log_sigmoid();
                        let successors = -number(likelihood.mean(Kind::Double));
                        let [mean, std, max, min] = statistics(&z[graph]);
                        vec![part("recon"), successors, part("canid"), mean, std, max, min, 1.0 / (1.0 + part("recon"))]
                    })
                    .collect();
                let found = tch::no_grad(|| vgae_columns(&model, &batch)).unwrap();
                assert_eq!(found.size(), [batch.num_graphs() as i64, 8]);
                compare(&format!("{name}, {kernel:?}"), &found, &expected, &STATE[..8]);
            }
        }
    }
}

#[test]
fn the_classifiers_part_equals_the_reference() {
    for size in ["student", "teacher"] {
        for (batch_name, suffix) in [("batch", ""), ("edge_batch", "_edge")] {
            let name = format!("gat_{size}_eval{suffix}");
            for kernel in KERNELS {
                let (model, reference) = (gat(size, kernel), parity_tensors(&name));
                let batch = parity_batch(batch_name);
                let layers: Vec<&Tensor> = (0..).map_while(|layer| reference.get(&format!("xs{layer}"))).collect();
                let side_by_side = Tensor::cat(&layers, 1);
                let nodes = by_graph(&side_by_side, &batch);
                let expected: Vec<Vec<f64>> = (0..batch.num_graphs())
                    .map(|graph| {
                        let logit = |class: i64| reference["logits"].double_value(&[graph as i64, class]);
                        let odds = logit(1) - logit(0);
                        let attack = 1.0 / (1.0 + (-odds).exp());
                        let entropy = -attack * attack.ln() - (1.0 - attack) * (1.0 - attack).ln();
                        let pooled = nodes[graph].mean_dim([0i64].as_slice(), false, Kind::Double);
                        let [mean, std, max, min] = statistics(&pooled);
                        let certainty = 1.0 - entropy / std::f64::consts::LN_2;
                        vec![1.0 - attack, attack, mean, std, max, min, certainty, odds]
                    })
                    .collect();
                let found = tch::no_grad(|| gat_columns(&model, None, &batch)).unwrap();
                let names = [&STATE[8..], &["log odds"]].concat();
                compare(&format!("{name}, {kernel:?}"), &found, &expected, &names);
            }
        }
    }
}
