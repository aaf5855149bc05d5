//! Layers of representations equal e3nn: coefficients, values, derivatives, and gradients of a loss of both.

use std::f64::consts::PI;

use kdgat::graph::Space;
use kdgat::nn::attention::Backend;
use kdgat::nn::irreps::{EdgeFeatures, Edges, Irreps, IrrepsLayer, LayerOptions, harmonics, polynomial_cutoff, wigner};
use kdgat::nn::layers::Mode;
use kdgat::nn::parameters::NamedTensor;
use kdgat::nn::space::Pairs;
use kdgat::nn::{FreshParameters, Scope};
use kdgat::torch::autograd;
use tch::{Device, Kind, Tensor};

use super::reference_values::{Reference, assert_close, integers, reference};

const CUTOFF: f64 = 3.0;
const FUNCTIONS: i64 = 4;

/// Name, input, output, and true with a gate and a layer norm.
const CASES: [(&str, &str, &str, bool); 3] =
    [("even", EVEN, EVEN, true), ("all", ALL, ALL, true), ("first", "6x0e", EVEN, false)];
const EVEN: &str = "6x0e + 4x1o + 2x2e";
const ALL: &str = "2x0o + 5x0e + 3x1o + 2x1e + 1x2o + 2x2e";

/// Rows in e3nn's order, a feature's components together, as kdgat has them: a component's features together.
fn own_order(x: &Tensor, irreps: &Irreps) -> Tensor {
    let part = |(first, part): (usize, kdgat::nn::irreps::Part)| {
        let (count, components) = (part.count as i64, part.irrep.components() as i64);
        let rows = x.narrow(1, first as i64, count * components);
        rows.reshape([-1, count, components]).transpose(1, 2).reshape([-1, count * components])
    };
    Tensor::cat(&irreps.parts().map(part).collect::<Vec<_>>(), 1)
}

fn pairs(reference: &Reference) -> Pairs {
    let of = |name: &str| reference[name].shallow_clone();
    let targets = integers(&of("targets"));
    let nodes = of("positions").size()[0];
    let before = |node: i64| targets.iter().filter(|&&target| target < node).count() as i32;
    let space = Space {
        positions: of("positions"),
        kinds: Tensor::zeros([nodes], (Kind::Int64, Device::Cpu)),
        targets: of("targets"),
        sources: of("sources"),
        row_pointers: Tensor::from_slice(&(0..=nodes).map(before).collect::<Vec<_>>()),
        shifts: None,
        forces: None,
        displaced: None,
        paths: Default::default(),
    };
    let pairs = Pairs::of(&space).unwrap();
    assert!(pairs.seconds.is_some(), "a pair and its reverse share a line");
    pairs
}

fn layer(
    reference: &Reference,
    name: &str,
    [input, output]: [&Irreps; 2],
    (full, kernel): (bool, Backend),
) -> (IrrepsLayer, Vec<NamedTensor>) {
    let options = LayerOptions {
        radial_hidden: 5,
        neighbours: 2.5,
        self_connection: true,
        gate: full,
        residual: true,
        layer_norm: full,
    };
    let mut fresh = FreshParameters::new(4, Device::Cpu);
    let layer = IrrepsLayer::new(Scope::root(&mut fresh), [input, output], FUNCTIONS, options, kernel).unwrap();
    let mut tensors = fresh.into_tensors();
    for named in &mut tensors {
        tch::no_grad(|| named.tensor.copy_(&reference[&format!("{name}.state.{}", named.name)]));
    }
    (layer, tensors)
}

/// The layer's rows for these positions.
fn rows(layer: &IrrepsLayer, (x, at): (&Tensor, &Tensor), pairs: &Pairs, once: bool) -> Tensor {
    let of = |nodes: &Tensor| at.index_select(0, &nodes.index_select(0, &pairs.firsts));
    let vectors = of(&pairs.sources) - of(&pairs.targets);
    let distances = vectors.square().sum_dim_intlist([1i64].as_slice(), true, Kind::Float).sqrt();
    let frequencies = Tensor::arange(FUNCTIONS, (Kind::Float, Device::Cpu)) + 1.0;
    let waves = (&distances * frequencies * (PI / CUTOFF)).sin() / &distances * (2.0 / CUTOFF).sqrt();
    let fading = polynomial_cutoff(CUTOFF, &distances).unwrap();
    let harmonics = harmonics(&(&vectors / &distances)).unwrap();
    let edges = Edges::of_pairs(pairs).unwrap();
    let features = EdgeFeatures { edges: &edges, radial: &waves, fading: Some(&fading), harmonics: &harmonics };
    layer.forward(x, &features, (Mode::Training, once)).unwrap()
}

#[test]
fn layers_of_representations_equal_e3nn() {
    let reference = reference("irreps.safetensors");
    let pairs = pairs(&reference);
    for (name, input, output, full) in CASES {
        let irreps = [input, output].map(|text| text.parse::<Irreps>().unwrap());
        let of = |tensor: &str| reference[&format!("{name}.{tensor}")].shallow_clone();
        for kernel in [Backend::Fused, Backend::Composed] {
            let what = format!("{name}, {kernel:?}");
            let (layer, tensors) = layer(&reference, name, [&irreps[0], &irreps[1]], (full, kernel));
            let x = own_order(&of("x"), &irreps[0]).set_requires_grad(true);
            let at = reference["positions"].copy().set_requires_grad(true);
            let found = rows(&layer, (&x, &at), &pairs, false);
            assert_close(&what, &found.detach(), &own_order(&of("rows"), &irreps[1]));
            let energy = (&found * own_order(&of("factors"), &irreps[1])).sum(Kind::Float);
            let forces = autograd::recorded_gradients(&[&energy], &[&at]).unwrap().remove(0).unwrap();
            assert_close(&format!("{what}, derivatives"), &forces.detach(), &of("forces"));
            (found.square().mean(Kind::Float) + forces.square().mean(Kind::Float)).backward();
            let of_x = own_order(&of("gradient.x"), &irreps[0]);
            assert_close(&format!("{what}, gradient of x"), &x.grad(), &of_x);
            assert_close(&format!("{what}, gradient of positions"), &at.grad(), &of("gradient.positions"));
            for named in &tensors {
                let expected = of(&format!("gradient.{}", named.name));
                assert_close(&format!("{what}, gradient of {}", named.name), &named.tensor.grad(), &expected);
            }
        }
    }
}

/// Activations that are computed again in the backward change nothing.
#[test]
fn memory_is_saved_without_other_gradients() {
    let reference = reference("irreps.safetensors");
    let pairs = pairs(&reference);
    let irreps: Irreps = ALL.parse().unwrap();
    let [stored, again] = [false, true].map(|once| {
        let (layer, tensors) = layer(&reference, "all", [&irreps, &irreps], (true, Backend::Fused));
        let x = own_order(&reference["all.x"], &irreps).set_requires_grad(true);
        let found = rows(&layer, (&x, &reference["positions"]), &pairs, once);
        found.square().mean(Kind::Float).backward();
        let gradients = tensors.into_iter().map(|named| named.tensor.grad());
        [found.detach(), x.grad()].into_iter().chain(gradients).collect::<Vec<_>>()
    });
    for (index, (stored, again)) in stored.iter().zip(&again).enumerate() {
        assert!(stored.equal(again), "tensor {index}");
    }
}

/// A node with more edges and a tile with more sums than are multiplied at once, nodes without edges, and more nodes than a tile has.
#[test]
fn sums_over_many_edges_equal_those_of_single_messages() {
    let irreps: Irreps = "20x0e + 9x1o + 5x2e".parse().unwrap();
    let options = LayerOptions {
        radial_hidden: 65,
        neighbours: 4.0,
        self_connection: false,
        gate: true,
        residual: false,
        layer_norm: false,
    };
    tch::manual_seed(3);
    let (nodes, float) = (80_i64, (Kind::Float, Device::Cpu));
    // Node 0 receives from all others twice, node 1 from none.
    let mut targets = vec![0_i64; 158];
    let mut sources: Vec<i64> = (0..158).map(|edge| 1 + edge % 79).collect();
    for edge in 0..300_i64 {
        targets.push(2 + edge * 78 / 300);
        sources.push(edge * 37 % nodes);
    }
    let before = |node: i64| targets.iter().filter(|&&target| target < node).count() as i32;
    let pointers: Vec<i32> = (0..=nodes).map(before).collect();
    let space = Space {
        positions: Tensor::randn([nodes, 3], float),
        kinds: Tensor::zeros([nodes], (Kind::Int64, Device::Cpu)),
        targets: Tensor::from_slice(&targets),
        sources: Tensor::from_slice(&sources),
        row_pointers: Tensor::from_slice(&pointers),
        shifts: Some(Tensor::zeros([targets.len() as i64, 3], float)),
        forces: None,
        displaced: None,
        paths: Default::default(),
    };
    let edges = Edges::of_pairs(&Pairs::of(&space).unwrap()).unwrap();
    let count = targets.len() as i64;
    let directions = Tensor::randn([count, 3], float);
    let directions = &directions / directions.square().sum_dim_intlist([1i64].as_slice(), true, Kind::Float).sqrt();
    let inputs = Tensor::rand([count, 6], float);
    let start = Tensor::randn([nodes, irreps.columns() as i64], float);
    let [fused, composed] = [Backend::Fused, Backend::Composed].map(|kernel| {
        let mut fresh = FreshParameters::new(4, Device::Cpu);
        let layer = IrrepsLayer::new(Scope::root(&mut fresh), [&irreps, &irreps], 6, options, kernel).unwrap();
        let x = start.copy().set_requires_grad(true);
        let radial = inputs.copy().set_requires_grad(true);
        let directions = directions.copy().set_requires_grad(true);
        let harmonics = harmonics(&directions).unwrap();
        let features = EdgeFeatures { edges: &edges, radial: &radial, fading: None, harmonics: &harmonics };
        let found = layer.forward(&x, &features, (Mode::Training, true)).unwrap();
        found.square().sum(Kind::Float).backward();
        let gradients: Vec<Tensor> = fresh.into_tensors().iter().map(|named| named.tensor.grad()).collect();
        [found.detach(), x.grad(), radial.grad(), directions.grad()].into_iter().chain(gradients).collect::<Vec<_>>()
    });
    for (index, (fused, composed)) in fused.iter().zip(&composed).enumerate() {
        assert_close(&format!("tensor {index}"), fused, composed);
    }
}

#[test]
fn coefficients_equal_e3nn() {
    let reference = reference("irreps.safetensors");
    let mut known = 0;
    for (name, expected) in reference.iter().filter(|(name, _)| name.starts_with("wigner.")) {
        let degrees: Vec<usize> = name["wigner.".len()..].bytes().map(|byte| usize::from(byte - b'0')).collect();
        let degrees: [usize; 3] = degrees.try_into().unwrap();
        let sizes = degrees.map(|degree| 2 * degree as i64 + 1);
        let mut found = Vec::new();
        for place in 0..sizes.iter().product::<i64>() {
            let components = [place / (sizes[1] * sizes[2]), place / sizes[2] % sizes[1], place % sizes[2]];
            found.push(wigner(degrees, components.map(|component| component as usize)));
        }
        let found = Tensor::from_slice(&found).view(sizes).to_kind(Kind::Float);
        assert_close(name, &found, expected);
        known += 1;
    }
    assert_eq!(known, 15, "triples of degrees up to 2");
}
