//! A step of a network of representations on a made-up binding pocket, beside e3nn's: time and memory.

use std::path::Path;
use std::time::Instant;

use kdgat::graph::Space;
use kdgat::nn::attention::Backend;
use kdgat::nn::irreps::{EdgeFeatures, Edges, Irreps, IrrepsLayer, LayerOptions, harmonics};
use kdgat::nn::layers::Mode;
use kdgat::nn::parameters::NamedTensor;
use kdgat::nn::space::Pairs;
use kdgat::nn::{FreshParameters, Scope};
use tch::{Device, Kind, Tensor};

use crate::Options;
use crate::common::Error;
use crate::common::peer::{Turns, peak, reset_peak};
use crate::common::rows::Rows;

const IRREPS: &str = "32x0e + 16x1o + 8x2e";
const ATOMS: i64 = 1500;
const LAYERS: i64 = 6;
const BONDED: i64 = 3200;
/// Edges between near atoms, of the comparison first.
const NEAR: [i64; 4] = [20_000, 50_000, 100_000, 200_000];
/// Radial functions and attributes of both kinds of edges.
const INPUTS: [i64; 2] = [10, 11];
/// Factor of messages of near atoms.
const SHARE: f64 = 0.2;
const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

/// Adds rows of time and memory.
pub fn measure(options: &Options, scratch: &Path, rows: &mut Rows) -> Result<(), Error> {
    let (first, others) = NEAR.split_at(1);
    let mut before = None;
    for &near in first.iter().chain(if options.output.quick { &[] } else { others }) {
        let pocket = Pocket::new(near)?;
        let path = scratch.join("pocket.safetensors");
        pocket.write(&path)?;
        let program = options.irreps_peer.as_ref().filter(|_| near == NEAR[0]);
        let mut peer = options.peers().start(program, &["--pocket"], &path)?;
        let network = Network::new()?;
        // Memory that smaller sizes have left behind is part of the peak.
        let now = reset_peak()?;
        let before = *before.get_or_insert(now);
        let rounds = if near == NEAR[0] { 3 } else { 1 };
        let turns = Turns::new(1, rounds, &mut peer, || network.step(&pocket))?;
        let peak = peak()? - before;
        let name = format!("irreps of {LAYERS} layers, {ATOMS} atoms, {BONDED} + {near} edges");
        turns.add_time(&name, "rows and gradients", "e3nn", rows);
        turns.add_peak(&name, peak, "e3nn", rows);
    }
    Ok(())
}

struct Pocket {
    rows: Tensor,
    bonded: Kinds,
    near: Kinds,
}

/// Edges of one kind.
struct Kinds {
    edges: Edges,
    radial: Tensor,
    directions: Tensor,
    harmonics: Tensor,
}

impl Pocket {
    fn new(near: i64) -> Result<Self, Error> {
        tch::manual_seed(0);
        let irreps: Irreps = IRREPS.parse()?;
        Ok(Self {
            rows: Tensor::f_randn([ATOMS, irreps.columns() as i64], FLOAT)?,
            bonded: Kinds::new(BONDED, INPUTS[0])?,
            near: Kinds::new(near, INPUTS[1])?,
        })
    }

    fn write(&self, path: &Path) -> Result<(), Error> {
        let mut tensors = vec![("rows".to_owned(), &self.rows)];
        for (name, of) in [("bonded", &self.bonded), ("near", &self.near)] {
            let of_kind = [
                ("sources", &of.edges.sources),
                ("targets", &of.edges.targets),
                ("radial", &of.radial),
                ("directions", &of.directions),
            ];
            tensors.extend(of_kind.map(|(part, tensor)| (format!("{name}.{part}"), tensor)));
        }
        Ok(Tensor::write_safetensors(&tensors, path)?)
    }
}

impl Kinds {
    /// Random edges, each a line of its own.
    fn new(count: i64, inputs: i64) -> Result<Self, Error> {
        let numbers = || Tensor::f_randint_low(0, ATOMS, [count], (Kind::Int64, Device::Cpu));
        let (sources, (targets, _)) = (numbers()?, numbers()?.f_sort(0, false)?);
        let all = Tensor::f_arange(ATOMS + 1, (Kind::Int64, Device::Cpu))?;
        let (as_i32, right) = (true, false);
        let pointers = all.f_searchsorted(&targets, as_i32, right, "left", None::<&Tensor>)?;
        let space = Space {
            positions: Tensor::f_zeros([ATOMS, 3], FLOAT)?,
            kinds: Tensor::f_zeros([ATOMS], (Kind::Int64, Device::Cpu))?,
            targets,
            sources,
            row_pointers: pointers,
            shifts: Some(Tensor::f_zeros([count, 3], FLOAT)?),
            forces: None,
            displaced: None,
            paths: Default::default(),
        };
        let edges = Edges::of_pairs(&Pairs::of(&space)?)?;
        let vectors = Tensor::f_randn([count, 3], FLOAT)?;
        let squares = vectors.f_square()?.f_sum_dim_intlist([1i64].as_slice(), true, Kind::Float)?;
        let directions = vectors.f_div(&squares.f_sqrt()?)?;
        let harmonics = harmonics(&directions)?;
        Ok(Self { edges, radial: Tensor::f_rand([count, inputs], FLOAT)?, directions, harmonics })
    }

    fn features(&self) -> EdgeFeatures<'_> {
        EdgeFeatures { edges: &self.edges, radial: &self.radial, fading: None, harmonics: &self.harmonics }
    }
}

struct Network {
    layers: Vec<[IrrepsLayer; 2]>,
    tensors: Vec<NamedTensor>,
}

impl Network {
    fn new() -> Result<Self, Error> {
        let irreps: Irreps = IRREPS.parse()?;
        let mut parameters = FreshParameters::new(1, Device::Cpu);
        let mut layers = Vec::new();
        for index in 0..LAYERS {
            let mut of = |kind: usize| {
                let options = LayerOptions {
                    radial_hidden: 64,
                    neighbours: 36.0,
                    self_connection: kind == 0,
                    gate: true,
                    residual: false,
                    layer_norm: false,
                };
                let mut root = Scope::root(&mut parameters);
                let scope = root.sub(format!("{index}.{kind}"));
                IrrepsLayer::new(scope, [&irreps, &irreps], INPUTS[kind], options, Backend::Auto)
            };
            layers.push([of(0)?, of(1)?]);
        }
        Ok(Self { layers, tensors: parameters.into_tensors() })
    }

    /// Milliseconds of a step.
    fn step(&self, pocket: &Pocket) -> Result<f64, Error> {
        let start = Instant::now();
        let mut x = pocket.rows.shallow_clone();
        for [bonded, near] in &self.layers {
            let once = (Mode::Training, true);
            let of_bonds = bonded.forward(&x, &pocket.bonded.features(), once)?;
            let of_near = near.forward(&x, &pocket.near.features(), once)?;
            x = x.f_add(&of_bonds)?.f_add(&of_near.f_mul_scalar(SHARE)?)?;
        }
        x.f_narrow(1, 0, 32)?.f_square()?.f_mean(Kind::Float)?.f_backward()?;
        for named in &self.tensors {
            let _ = named.tensor.grad().f_zero_()?;
        }
        Ok(1e3 * start.elapsed().as_secs_f64())
    }
}
