//! Predicted against actual peak of an epoch: teacher and student of both models, with and without distillation.

mod common;

use std::path::PathBuf;
use std::sync::Arc;

use clap::Parser;
use common::models::{architecture, random_weights};
use common::rows::Rows;
use common::training::{Training, start_teacher, teacher_options};
use common::{Error, graphs::Graphs};
use kdgat::distill::Residency;
use kdgat::graph::{AssembleOptions, Loader, LoaderOptions, Store, shuffled_batches};
use kdgat::memory::Meter;
use kdgat::memory::budget::{MemoryBudget, Shape};
use kdgat::memory::estimate::{Circumstances, estimate};
use kdgat::memory::probe::Probe;
use kdgat::nn::attention::AttentionKernel;
use kdgat::train::optimizer::AdamOptions;
use tch::Device;

const WAITING: usize = 4;

#[derive(Debug, Parser)]
struct Options {
    /// Fewer batch sizes and shorter epochs
    #[arg(long)]
    quick: bool,
    /// Print JSON, an object a row
    #[arg(long)]
    json: bool,
    /// Folder that results are written to
    #[arg(long)]
    results: Option<PathBuf>,
    /// Batches of an epoch at most
    #[arg(long, default_value_t = 12)]
    batches: usize,
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<(), Error> {
    let options = Options::parse();
    kdgat::memory::install()?;
    common::start(0)?;
    let device = Device::Cpu;
    let Graphs::Simulated(store, _folder) = Graphs::open(None)? else { return Ok(()) };
    let store = Arc::new(*store);
    let mut rows = Rows::new("memory", options.json);
    let sizes: &[usize] = if options.quick { &[32, 512] } else { &[32, 128, 512, 1024, 2048, 4096] };
    for model in ["vgae", "gat"] {
        for (size, distills) in [("teacher", false), ("student", false), ("student", true)] {
            for &graphs in sizes {
                measure(&options, &store, (model, size, distills, graphs), device, &mut rows)?;
            }
        }
    }
    rows.finish(device, options.results.as_deref())
}

fn measure(
    options: &Options,
    store: &Arc<Store>,
    (model, size, distills, graphs): (&str, &str, bool, usize),
    device: Device,
    rows: &mut Rows,
) -> Result<(), Error> {
    let vocabulary = Arc::new(store.vocabulary().clone());
    let assemble = AssembleOptions { vocabulary, unknown_drop: None, edge_attributes: false };
    let loader = Loader::start(Arc::clone(store), LoaderOptions { assemble, workers: 1, prefetch_batches: WAITING });
    let student = architecture(model, size, store.vocabulary().len() as i64)?;
    let teacher = architecture(model, "teacher", store.vocabulary().len() as i64)?;
    let all: Vec<u64> = (0..store.num_graphs()).collect();
    let batches: Vec<Vec<u64>> = shuffled_batches(&all, graphs, 1, 0).into_iter().take(options.batches).collect();
    let burst = if distills { 2 } else { 1 };
    let taught = match distills {
        true => {
            let shape = Graphs::shape_of(store);
            let teaching = teacher_options(device, Residency::Resident, burst, false);
            Some((start_teacher(&teacher, random_weights(&teacher, 7)?, &teaching, &shape)?, &teacher))
        }
        false => None,
    };
    let mut training = Training::new(&student, taught, burst, device)?;
    let size_of = |graph: u64| {
        let view = store.graph(graph);
        (view.num_nodes() as u64, (view.num_edges() + view.num_nodes()) as u64)
    };
    let budget = Probe {
        objective: training.objective.as_mut(),
        trainable: &mut training.trainable,
        loader: &loader,
        graphs: &all,
        size_of: &size_of,
        cap: graphs,
        waiting_batches: WAITING,
        adam: AdamOptions { weight_decay: 1e-4, gradient_clip: 1.0, offload: false, kernel: AttentionKernel::Auto },
        precision: None,
        device,
    }
    .measure()?;
    let circumstances = Circumstances {
        cuda: false,
        checkpointing: false,
        offload_optimizer: false,
        burst,
        waiting_batches: WAITING,
        nodes_per_graph: 50.0,
        resident_teacher: true,
    };
    let closed = estimate(&student, distills.then_some(&teacher), &circumstances)?;

    let meter = Meter::new(device);
    meter.release_kept();
    meter.reset_peak();
    let mut loaded = loader.epoch(batches.clone(), 0);
    loop {
        let some = loaded.by_ref().take(burst).collect::<Result<Vec<_>, _>>()?;
        if some.is_empty() {
            break;
        }
        training.run(&some)?;
    }
    let actual = meter.read().peak_bytes as f64;
    let predicted = |budget: &MemoryBudget| {
        let shape = |batch: &Vec<u64>| {
            let (nodes, edges) =
                batch.iter().map(|&graph| size_of(graph)).fold((0, 0), |sum, each| (sum.0 + each.0, sum.1 + each.1));
            Shape { graphs: batch.len() as f64, nodes: nodes as f64, edges: edges as f64 }
        };
        batches.iter().map(|batch| budget.peak_bytes(shape(batch))).fold(0.0, f64::max)
    };
    let name = format!("{model} {size}{} batch {graphs}", if distills { " kd" } else { "" });
    let (measured, closed) = (predicted(&budget), predicted(&closed));
    rows.add(
        &name,
        ("measured / actual", "ratio"),
        measured / actual,
        Some(("actual MiB", actual / 1_048_576.0, measured / actual)),
    );
    rows.add(
        &name,
        ("static / actual", "ratio"),
        closed / actual,
        Some(("actual MiB", actual / 1_048_576.0, closed / actual)),
    );
    Ok(())
}
