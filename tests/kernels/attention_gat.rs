//! Fused graph attention against the composed reference and against finite differences.

use kdgat::graph::Adjacency;
use kdgat::nn::attention::{AttentionDropout, AttentionError, AttentionOptions, Backend, gat_attention, gat_conv};
use proptest::prelude::*;
use support::attention::{adjacency, batch, normal, relative_difference};
use tch::{Kind, Tensor};

/// Output and gradients of values, source, target (and bias) for a fixed random loss.
fn run_conv(
    kernel: Backend,
    graph: &Adjacency,
    heads: i64,
    channels: i64,
    kind: Kind,
    options: &AttentionOptions,
) -> Vec<(&'static str, Tensor)> {
    let nodes = graph.row_pointers.size()[0] - 1;
    let real = if kind == Kind::Double { Kind::Double } else { Kind::Float };
    let leaf = |size: &[i64], seed, kind| normal(size, seed, kind).set_requires_grad(true);
    let values = leaf(&[nodes, heads * channels], 1, kind);
    let scaled = |seed| (normal(&[1, heads, channels], seed, real) / (channels as f64).sqrt()).set_requires_grad(true);
    let (source, target) = (scaled(2), scaled(3));
    let bias = leaf(&[heads * channels], 4, real);
    let attended = gat_conv(kernel, &values, &source, &target, Some(&bias), graph, options).unwrap();
    (&attended.output * normal(&[nodes, heads * channels], 5, kind)).sum(real).backward();
    let mut results = vec![
        ("output", attended.output.detach()),
        ("values", values.grad()),
        ("source", source.grad()),
        ("target", target.grad()),
        ("bias", bias.grad()),
    ];
    results.extend(attended.weights.map(|weights| ("weights", weights)));
    results
}

fn run_attention(
    kernel: Backend,
    graph: &Adjacency,
    heads: i64,
    channels: i64,
    options: &AttentionOptions,
) -> Vec<(&'static str, Tensor)> {
    let nodes = graph.row_pointers.size()[0] - 1;
    let leaf = |size: &[i64], seed| normal(size, seed, Kind::Float).set_requires_grad(true);
    let values = leaf(&[nodes, heads, channels], 1);
    let (source, target) = (leaf(&[nodes, heads], 2), leaf(&[nodes, heads], 3));
    let output = gat_attention(kernel, &values, &source, &target, graph, options).unwrap().output;
    (&output * normal(&[nodes, heads, channels], 5, Kind::Float)).sum(Kind::Float).backward();
    vec![
        ("output", output.detach()),
        ("values", values.grad()),
        ("source scores", source.grad()),
        ("target scores", target.grad()),
    ]
}

fn assert_close(found: &[(&str, Tensor)], expected: &[(&str, Tensor)], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for ((name, found), (_, expected)) in found.iter().zip(expected) {
        let difference = relative_difference(found, expected);
        assert!(difference <= tolerance, "{name} differs by {difference:e}, more than {tolerance:e}");
    }
}

fn assert_fused_is_composed(graph: &Adjacency, heads: i64, channels: i64, options: &AttentionOptions) {
    let conv = |kernel| run_conv(kernel, graph, heads, channels, Kind::Float, options);
    assert_close(&conv(Backend::Fused), &conv(Backend::Composed), 1e-5);
    let attention = |kernel| run_attention(kernel, graph, heads, channels, options);
    assert_close(&attention(Backend::Fused), &attention(Backend::Composed), 1e-5);
}

#[test]
fn fused_equals_composed_for_the_shapes_of_the_models() {
    let graph = batch(40, 26, 60, 7);
    for (heads, channels) in [(1, 80), (4, 24), (8, 64), (4, 256), (1, 10), (4, 12), (2, 20), (1, 48), (5, 60), (1, 1)]
    {
        assert_fused_is_composed(&graph, heads, channels, &AttentionOptions::default());
    }
}

#[test]
fn fused_equals_composed_for_unusual_graphs() {
    let star =
        adjacency(10_000, (0..10_000).map(|source| (source, 3)).chain((0..10_000).map(|target| (9_999, target))));
    let graphs = [
        ("no node", adjacency(0, [])),
        ("one node", adjacency(1, [])),
        ("isolated nodes", adjacency(700, [])),
        ("a node of degree 10,000", star),
        ("one long cycle", adjacency(3_000, (0..3_000).map(|node| (node, (node + 1) % 3_000)))),
    ];
    for (name, graph) in &graphs {
        println!("{name}");
        assert_fused_is_composed(graph, 3, 13, &AttentionOptions::default());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn fused_equals_composed_for_random_graphs(
        nodes in 1_usize..90,
        edges in prop::collection::vec((0_usize..90, 0_usize..90), 0..400),
        heads in 1_i64..6,
        channels in 1_i64..90,
        slope in prop::sample::select(vec![0.0, 0.2, 0.7]),
    ) {
        let graph = adjacency(nodes, edges.into_iter().map(|(source, target)| (source % nodes, target % nodes)));
        let options = AttentionOptions { negative_slope: slope, ..Default::default() };
        assert_fused_is_composed(&graph, heads, channels, &options);
    }
}

#[test]
fn dropout_and_returned_weights_agree() {
    let graph = batch(10, 26, 60, 11);
    let dropout = Some(AttentionDropout { probability: 0.3, seed: 5, first: 0 });
    let options = AttentionOptions { dropout, return_weights: true, ..Default::default() };
    assert_fused_is_composed(&graph, 4, 24, &options);
    let weights = run_conv(Backend::Fused, &graph, 4, 24, Kind::Float, &options).pop().unwrap().1;
    let dropped = weights.eq(0.0).to_kind(Kind::Float).mean(Kind::Float).double_value(&[]);
    assert!((dropped - 0.3).abs() < 0.03, "{dropped} of the weights are dropped instead of 0.3");
}

#[test]
fn attention_weights_of_a_target_sum_to_one() {
    let graph = batch(5, 26, 60, 13);
    let options = AttentionOptions { return_weights: true, ..Default::default() };
    let weights = run_conv(Backend::Fused, &graph, 2, 8, Kind::Float, &options).pop().unwrap().1;
    let sums = Tensor::zeros([130, 2], (Kind::Float, tch::Device::Cpu)).index_add(
        0,
        &graph.targets.to_kind(Kind::Int64),
        &weights,
    );
    assert!(relative_difference(&sums, &sums.ones_like()) < 1e-6);
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let threads = tch::get_num_threads();
    let graphs = [
        batch(200, 26, 60, 17),
        adjacency(5_000, (0..20_000).map(|edge| (edge * 7919 % 5_000, edge * 104_729 % 5_000))),
    ];
    for graph in &graphs {
        let results: Vec<_> = [1, 2, 3, 7]
            .map(|threads| {
                tch::set_num_threads(threads);
                run_conv(Backend::Fused, graph, 2, 40, Kind::Float, &AttentionOptions::default())
            })
            .into();
        tch::set_num_threads(threads);
        for other in &results[1..] {
            for ((name, one), (_, other)) in results[0].iter().zip(other) {
                assert_eq!(one, other, "{name} depends on the number of threads");
            }
        }
    }
}

#[test]
fn gradients_match_finite_differences() {
    let graph = adjacency(7, [(0, 1), (1, 2), (2, 0), (4, 5), (5, 4), (6, 0), (3, 0)]);
    let dropout = Some(AttentionDropout { probability: 0.25, seed: 3, first: 0 });
    for options in [AttentionOptions::default(), AttentionOptions { dropout, ..Default::default() }] {
        let inputs = [[7, 6].as_slice(), &[1, 2, 3], &[1, 2, 3], &[6]]
            .into_iter()
            .zip(21..)
            .map(|(size, seed)| normal(size, seed, Kind::Double).set_requires_grad(true))
            .collect::<Vec<_>>();
        let loss = |inputs: &[Tensor]| {
            let [values, source, target, bias] = inputs else { unreachable!() };
            let attended = gat_conv(Backend::Fused, values, source, target, Some(bias), &graph, &options).unwrap();
            (attended.output * normal(&[7, 6], 9, Kind::Double)).sum(Kind::Double)
        };
        loss(&inputs).backward();
        for (index, input) in inputs.iter().enumerate() {
            for element in 0..input.numel() as i64 {
                let at = |step: f64| {
                    let moved: Vec<Tensor> = inputs.iter().map(|input| input.detach().copy()).collect();
                    let _ = moved[index].view(-1).get(element).g_add_scalar_(step);
                    loss(&moved).double_value(&[])
                };
                let numeric = (at(1e-5) - at(-1e-5)) / 2e-5;
                let analytic = input.grad().view(-1).double_value(&[element]);
                assert!(
                    (numeric - analytic).abs() < 1e-8 + 1e-7 * numeric.abs(),
                    "input {index}, element {element}: {analytic} instead of {numeric}"
                );
            }
        }
    }
}

#[test]
fn bf16_is_rounded_only_when_stored() {
    let graph = batch(10, 26, 60, 19);
    let leaf = |size: &[i64], seed| normal(size, seed, Kind::Float).set_requires_grad(true);
    let run = |kind: Kind| {
        let values = normal(&[260, 96], 1, Kind::BFloat16).to_kind(kind).set_requires_grad(true);
        let (source, target, bias) = (leaf(&[1, 4, 24], 2), leaf(&[1, 4, 24], 3), leaf(&[96], 4));
        let options = AttentionOptions::default();
        let attended = gat_conv(Backend::Fused, &values, &source, &target, Some(&bias), &graph, &options).unwrap();
        assert_eq!(attended.output.kind(), kind);
        let weight = normal(&[260, 96], 5, Kind::BFloat16).to_kind(kind);
        (&attended.output * weight).sum(Kind::Float).backward();
        vec![
            ("output", attended.output.detach()),
            ("values", values.grad()),
            ("source", source.grad()),
            ("target", target.grad()),
            ("bias", bias.grad()),
        ]
    };
    // Half the relative distance of neighbouring bf16 numbers.
    assert_close(&run(Kind::BFloat16), &run(Kind::Float), 1.0 / 256.0);
}

#[test]
fn inference_equals_training() {
    let graph = batch(10, 26, 60, 23);
    let options = AttentionOptions::default();
    let recorded = run_conv(Backend::Fused, &graph, 4, 24, Kind::Float, &options);
    let size = [260, 96];
    let values = normal(&size, 1, Kind::Float);
    let scaled = |seed| normal(&[1, 4, 24], seed, Kind::Float) / 24_f64.sqrt();
    let (source, target) = (scaled(2), scaled(3));
    let bias = normal(&[96], 4, Kind::Float);
    let attended = gat_conv(Backend::Auto, &values, &source, &target, Some(&bias), &graph, &options).unwrap();
    assert_eq!(attended.output, recorded[0].1);
    assert!(!attended.output.requires_grad());
}

#[test]
fn what_does_not_fit_is_refused() {
    let graph = batch(2, 5, 6, 1);
    let vector = normal(&[1, 2, 4], 1, Kind::Float);
    let conv = |values: &Tensor, options: &AttentionOptions| {
        gat_conv(Backend::Fused, values, &vector, &vector, None, &graph, options).unwrap_err()
    };
    let error = conv(&normal(&[10, 9], 1, Kind::Float), &AttentionOptions::default());
    assert!(matches!(&error, AttentionError::Shape { found, .. } if found == &[10, 9]), "{error}");
    let error = conv(&normal(&[10, 8], 1, Kind::Half), &AttentionOptions::default());
    assert!(matches!(&error, AttentionError::Unsupported { kind: Kind::Half, .. }), "{error}");
    let dropout = Some(AttentionDropout { probability: 1.0, seed: 0, first: 0 });
    let error = conv(&normal(&[10, 8], 1, Kind::Float), &AttentionOptions { dropout, ..Default::default() });
    assert!(matches!(error, AttentionError::Dropout(_)), "{error}");
}
