//! A step of SGMP over all paths of three edges, beside one that is written plainly in PyTorch: time and memory.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use kdgat::graph::paths::Neighbours;
use kdgat::nn::attention::Backend;
use kdgat::nn::parameters::NamedTensor;
use kdgat::nn::sgmp::{PathConfig, PathGraph, Sgmp};
use kdgat::nn::{FreshParameters, GnnConfig, GnnKind, Scope};
use tch::{Device, Kind, Tensor};

use crate::Options;
use crate::common::Error;
use crate::common::peer::{Turns, peak, reset_peak};
use crate::common::rows::Rows;

const NODES: i64 = 100;
const NEIGHBOURS: i64 = 8;
const WIDTH: i64 = 64;
const LAYERS: i64 = 3;
const SIDE: f64 = 10.0;
/// Graphs of a batch.
const BATCHES: [i64; 2] = [4, 16];
const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

/// Adds rows of time and memory.
pub fn measure(options: &Options, scratch: &Path, rows: &mut Rows) -> Result<(), Error> {
    for count in BATCHES {
        let points = Points::new(count)?;
        let path = scratch.join("points.safetensors");
        points.write(&path)?;
        let mut peer = options.peers().start(options.paths_peer.as_ref(), &["--graphs"], &path)?;
        let (graph, network) = (points.graph()?, Network::new()?);
        let paths: u64 = graph.paths.iter().sum();
        let before = reset_peak()?;
        let turns = Turns::new(1, 3, &mut peer, || network.step(&points.features, &graph))?;
        let peak = peak()? - before;
        if let Some(&of_peer) = turns.last.get(2) {
            assert_eq!(of_peer as u64, paths, "paths of both programs");
        }
        let name = format!("SGMP of {LAYERS} layers, {count} graphs of {NODES} nodes, {paths} paths");
        turns.add_time(&name, "rows and gradients", "PyTorch", rows);
        turns.add_peak(&name, peak, "PyTorch", rows);
    }
    Ok(())
}

/// Random points, each with the nearest of its graph.
struct Points {
    /// `[nodes, 3]`
    positions: Tensor,
    /// `[nodes, NEIGHBOURS]`: rows of the nearest points, ascending.
    neighbours: Tensor,
    /// `[nodes, WIDTH]`
    features: Tensor,
}

impl Points {
    fn new(graphs: i64) -> Result<Self, Error> {
        tch::manual_seed(0);
        let positions = Tensor::f_rand([graphs, NODES, 3], FLOAT)?.f_mul_scalar(SIDE)?;
        let far = Tensor::f_eye(NODES, FLOAT)?.f_mul_scalar(1e9)?;
        let distances = Tensor::f_cdist(&positions, &positions, 2.0, None)?.f_add(&far)?;
        let (_, nearest) = distances.f_topk(NEIGHBOURS, -1, false, true)?;
        let (nearest, _) = nearest.f_sort(-1, false)?;
        let firsts =
            Tensor::f_arange(graphs, (Kind::Int64, Device::Cpu))?.f_mul_scalar(NODES)?.f_view([graphs, 1, 1])?;
        Ok(Self {
            positions: positions.f_reshape([-1, 3])?,
            neighbours: nearest.f_add(&firsts)?.f_reshape([-1, NEIGHBOURS])?,
            features: Tensor::f_randn([graphs * NODES, WIDTH], FLOAT)?,
        })
    }

    fn write(&self, path: &Path) -> Result<(), Error> {
        let tensors = [("positions", &self.positions), ("neighbours", &self.neighbours), ("features", &self.features)];
        Ok(Tensor::write_safetensors(&tensors, path)?)
    }

    fn graph(&self) -> Result<Arc<PathGraph>, Error> {
        let sources = Vec::<i64>::try_from(&self.neighbours.f_reshape([-1i64].as_slice())?)?;
        let sources: Vec<i32> = sources.into_iter().map(i32::try_from).collect::<Result<_, _>>()?;
        let ends: Vec<i32> = (0..=self.features.size()[0] as i32).map(|node| node * NEIGHBOURS as i32).collect();
        let positions = Vec::<f32>::try_from(&self.positions.f_reshape([-1i64].as_slice())?)?;
        let positions = positions.as_chunks::<3>().0.iter().map(|position| position.map(f64::from)).collect();
        Ok(Arc::new(PathGraph::new(Neighbours::of_incoming(&ends, &sources), positions)))
    }
}

struct Network {
    model: Sgmp,
    tensors: Vec<NamedTensor>,
}

impl Network {
    fn new() -> Result<Self, Error> {
        let paths = PathConfig { cutoff: SIDE, gaussians: PathConfig::GAUSSIANS };
        let config = GnnConfig { paths: Some(paths), ..GnnConfig::new(GnnKind::Sgmp, [WIDTH, WIDTH, LAYERS, 1]) };
        let mut parameters = FreshParameters::new(1, Device::Cpu);
        let model = Sgmp::new(&mut Scope::root(&mut parameters), &config, Backend::Auto)?;
        Ok(Self { model, tensors: parameters.into_tensors() })
    }

    /// Milliseconds of a step.
    fn step(&self, features: &Tensor, graph: &Arc<PathGraph>) -> Result<f64, Error> {
        let start = Instant::now();
        self.model.nodes(features, graph)?.f_square()?.f_mean(Kind::Float)?.f_backward()?;
        for named in &self.tensors {
            let _ = named.tensor.grad().f_zero_()?;
        }
        Ok(1e3 * start.elapsed().as_secs_f64())
    }
}
