//! Fused GATv2 attention against the composed reference and against finite differences.

use kdgat::graph::Adjacency;
use kdgat::nn::attention::{AttentionDropout, AttentionOptions, Backend, gatv2_attention};
use proptest::prelude::*;
use support::attention::{adjacency, batch, normal, relative_difference};
use tch::{Kind, Tensor};

/// Source, target, attention vector, bias, and edge terms if requested.
fn inputs(graph: &Adjacency, heads: i64, channels: i64, edge_terms: bool, kind: Kind) -> Vec<Tensor> {
    let (nodes, row) = (graph.row_pointers.size()[0] - 1, heads * channels);
    let attention = normal(&[1, heads, channels], 3, kind) / (channels as f64).sqrt();
    let mut inputs =
        vec![normal(&[nodes, row], 1, kind), normal(&[nodes, row], 2, kind), attention, normal(&[row], 4, kind)];
    if edge_terms {
        inputs.push(normal(&[graph.num_edges(), row], 5, kind));
    }
    inputs.into_iter().map(|input| input.set_requires_grad(true)).collect()
}

fn forward(kernel: Backend, graph: &Adjacency, inputs: &[Tensor], options: &AttentionOptions) -> Tensor {
    let [source, target, attention, bias, edge_term @ ..] = inputs else { unreachable!() };
    gatv2_attention(kernel, source, target, edge_term.first(), attention, Some(bias), graph, options).unwrap().output
}

fn results(kernel: Backend, graph: &Adjacency, inputs: &[Tensor], options: &AttentionOptions) -> Vec<Tensor> {
    let inputs: Vec<Tensor> = inputs.iter().map(|input| input.detach().set_requires_grad(true)).collect();
    let output = forward(kernel, graph, &inputs, options);
    (&output * normal(&output.size(), 9, output.kind())).sum(output.kind()).backward();
    std::iter::once(output.detach()).chain(inputs.iter().map(Tensor::grad)).collect()
}

fn assert_fused_is_composed(
    graph: &Adjacency,
    heads: i64,
    channels: i64,
    edge_terms: bool,
    options: &AttentionOptions,
) {
    let inputs = inputs(graph, heads, channels, edge_terms, Kind::Float);
    let fused = results(Backend::Fused, graph, &inputs, options);
    let composed = results(Backend::Composed, graph, &inputs, options);
    let names = ["output", "source", "target", "attention", "bias", "edge terms"];
    for ((name, fused), composed) in names.iter().zip(&fused).zip(&composed) {
        let difference = relative_difference(fused, composed);
        assert!(difference < 1e-5, "{name} differs by {difference:e} for {heads}×{channels}");
    }
}

#[test]
fn fused_equals_composed() {
    let dropout = Some(AttentionDropout { probability: 0.3, seed: 5, first: 0 });
    for options in [AttentionOptions::default(), AttentionOptions { dropout, ..Default::default() }] {
        let graph = batch(20, 26, 60, 7);
        for (heads, channels) in [(1, 80), (4, 24), (8, 64), (3, 13)] {
            assert_fused_is_composed(&graph, heads, channels, true, &options);
            assert_fused_is_composed(&graph, heads, channels, false, &options);
        }
        let star = adjacency(3_000, (0..3_000).map(|source| (source, 3)).chain((0..3_000).map(|target| (9, target))));
        for graph in [adjacency(0, []), adjacency(1, []), adjacency(300, []), star] {
            assert_fused_is_composed(&graph, 2, 9, true, &options);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn fused_equals_composed_for_random_graphs(
        nodes in 1_usize..60,
        edges in prop::collection::vec((0_usize..60, 0_usize..60), 0..250),
        heads in 1_i64..5,
        channels in 1_i64..70,
        edge_terms: bool,
    ) {
        let graph = adjacency(nodes, edges.into_iter().map(|(source, target)| (source % nodes, target % nodes)));
        assert_fused_is_composed(&graph, heads, channels, edge_terms, &AttentionOptions::default());
    }
}

#[test]
fn gradients_match_finite_differences() {
    let graph = adjacency(5, [(0, 1), (1, 2), (2, 0), (4, 3), (3, 0)]);
    let options = AttentionOptions::default();
    let inputs = inputs(&graph, 2, 3, true, Kind::Double);
    let loss = |inputs: &[Tensor]| {
        (forward(Backend::Fused, &graph, inputs, &options) * normal(&[5, 6], 9, Kind::Double)).sum(Kind::Double)
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

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let graph = batch(100, 26, 60, 17);
    let inputs = inputs(&graph, 2, 40, true, Kind::Float);
    let threads = tch::get_num_threads();
    let [one, three] = [1, 3].map(|threads| {
        tch::set_num_threads(threads);
        results(Backend::Fused, &graph, &inputs, &AttentionOptions::default())
    });
    tch::set_num_threads(threads);
    assert_eq!(one, three);
}
