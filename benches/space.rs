//! Training steps of networks in space, energies and forces, beside schnetpack's: the same molecules, in turn, in one run. And of a network of
//! representations on a binding pocket, beside e3nn's, and of a network over paths of three edges, beside a plain one in PyTorch.
//!
//! 200 molecules of nine atoms whose pairs all exchange messages; a step computes energies, forces and the gradients of a loss of both. The
//! pocket has 1,500 atoms; a step computes its rows and the gradients of their mean square.

mod common;
#[path = "common/paths.rs"]
mod paths;
#[path = "common/pocket.rs"]
mod pocket;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Parser;
use common::Error;
use common::peer::{Peers, Turns};
use common::rows::Rows;
use kdgat::graph::edge_list::{EdgeList, from_edge_list};
use kdgat::graph::{Batch, Space};
use kdgat::nn::attention::Backend;
use kdgat::nn::layers::Mode;
use kdgat::nn::parameters::NamedTensor;
use kdgat::nn::{FreshParameters, Gnn, GnnConfig, GnnKind, RadialBasis, Scope, SpaceConfig};
use tch::{Device, Kind, Tensor};

const MOLECULES: usize = 200;
const ATOMS: usize = 9;
const COLUMNS: i64 = 128;
const CUTOFF: f64 = 5.0;

#[derive(Debug, Parser)]
struct Options {
    #[command(flatten)]
    output: common::Output,
    /// The Python program that runs schnetpack
    #[arg(long)]
    peer: Option<PathBuf>,
    /// The Python program that runs e3nn
    #[arg(long)]
    irreps_peer: Option<PathBuf>,
    /// The Python program that runs the plain network over paths
    #[arg(long)]
    paths_peer: Option<PathBuf>,
    /// Python interpreter that runs them
    #[arg(long, default_value = "python3")]
    peer_python: PathBuf,
    /// Measure the network of representations alone
    #[arg(long)]
    irreps_only: bool,
    /// Measure the network over paths alone; the plain one takes 22 GB
    #[arg(long)]
    paths_only: bool,
    /// Threads of both programs
    #[arg(long, default_value_t = 2)]
    threads: i32,
    /// Passed by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<(), Error> {
    // The allocator of the program: otherwise the C library maps new memory for large results in every step.
    kdgat::torch::allocator::install()?;
    let options = Options::parse();
    tch::set_num_threads(options.threads);
    let scratch = tempfile::tempdir()?;
    let rounds = if options.output.quick { 5 } else { 15 };
    let mut rows = Rows::new("space", options.output.json);
    // First, so that memory that others have freed does not count.
    if options.paths_only {
        paths::measure(&options, scratch.path(), &mut rows)?;
        return rows.finish(Device::Cpu, options.output.results.as_deref());
    }
    pocket::measure(&options, scratch.path(), &mut rows)?;
    if options.irreps_only {
        return rows.finish(Device::Cpu, options.output.results.as_deref());
    }
    let batch = molecules()?;
    let path = scratch.path().join("molecules.safetensors");
    write(&batch, &path)?;
    for kind in [GnnKind::PaiNN, GnnKind::SchNet] {
        let arguments = ["--model", kind.as_str(), "--molecules"];
        let mut peer = options.peers().start(options.peer.as_ref(), &arguments, &path)?;
        let model = Network::new(kind)?;
        let turns = Turns::new(2, rounds, &mut peer, || model.step(&batch))?;
        let row = format!("{} of {COLUMNS} columns, {MOLECULES} molecules of {ATOMS} atoms", kind.as_str());
        turns.add_time(&row, "energies, forces and gradients", "schnetpack", &mut rows);
    }
    rows.finish(Device::Cpu, options.output.results.as_deref())
}

impl Options {
    fn peers(&self) -> Peers<'_> {
        Peers { python: &self.peer_python, threads: self.threads }
    }
}

struct Network {
    model: Gnn,
    tensors: Vec<NamedTensor>,
}

impl Network {
    fn new(kind: GnnKind) -> Result<Self, Error> {
        let basis = RadialBasis::Gaussian;
        let space = SpaceConfig {
            cutoff: CUTOFF,
            kinds: 100,
            features: false,
            basis,
            radial_functions: 20,
            forces: true,
            irreps: None,
        };
        let config = GnnConfig { space: Some(space), ..GnnConfig::new(kind, [1, COLUMNS, 3, 1]) };
        let mut parameters = FreshParameters::new(1, Device::Cpu);
        let model = Gnn::new(Scope::root(&mut parameters), &config, Backend::Auto)?;
        Ok(Self { model, tensors: parameters.into_tensors() })
    }

    /// Milliseconds of a step.
    fn step(&self, batch: &Batch) -> Result<f64, Error> {
        let start = Instant::now();
        let answer = self.model.in_space(batch, Mode::Training).ok_or("no network in space")??;
        let forces = answer.forces.ok_or("no forces")?;
        let loss = answer.outputs.f_square()?.f_mean(Kind::Float)?.f_add(&forces.f_square()?.f_mean(Kind::Float)?)?;
        loss.f_backward()?;
        for named in &self.tensors {
            let _ = named.tensor.grad().f_zero_()?;
        }
        Ok(1e3 * start.elapsed().as_secs_f64())
    }
}

/// Random molecules, with all pairs of atoms.
fn molecules() -> Result<Batch, Error> {
    let nodes = MOLECULES * ATOMS;
    let (mut targets, mut sources) = (Vec::new(), Vec::new());
    for target in 0..nodes {
        let first = target / ATOMS * ATOMS;
        for source in (first..first + ATOMS).filter(|&source| source != target) {
            targets.push(target as i64);
            sources.push(source as i64);
        }
    }
    tch::manual_seed(0);
    let pointers: Vec<i32> = (0..=nodes).map(|node| (node * (ATOMS - 1)) as i32).collect();
    let space = Space {
        positions: Tensor::f_randn([nodes as i64, 3], (Kind::Float, Device::Cpu))?,
        kinds: Tensor::f_randint_low(1, 9, [nodes as i64], (Kind::Int64, Device::Cpu))?,
        targets: Tensor::f_from_slice(&targets)?,
        sources: Tensor::f_from_slice(&sources)?,
        row_pointers: Tensor::f_from_slice(&pointers)?,
        shifts: None,
        forces: None,
        displaced: None,
        paths: Default::default(),
    };
    let list = EdgeList {
        id_index: &vec![0; nodes],
        continuous: &vec![0.0; 10 * nodes],
        sources: &[],
        targets: &[],
        edge_attributes: None,
        node_pointers: &(0..=MOLECULES).map(|molecule| (molecule * ATOMS) as i64).collect::<Vec<_>>(),
        labels: &[0; MOLECULES],
        vocabulary_size: 1,
    };
    Ok(Batch { space: Some(Box::new(space)), ..from_edge_list(&list)? })
}

/// Writes the molecules for schnetpack.
fn write(batch: &Batch, path: &Path) -> Result<(), Error> {
    let space = batch.space.as_ref().ok_or("no positions")?;
    let tensors = [
        ("positions", &space.positions),
        ("kinds", &space.kinds),
        ("targets", &space.targets),
        ("sources", &space.sources),
        ("molecule", &batch.graph_of_node),
    ];
    Tensor::write_safetensors(&tensors, path)?;
    Ok(())
}
