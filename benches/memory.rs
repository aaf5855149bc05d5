//! Predicted against actual peak memory of an epoch: teacher and student of both models, with and without distillation. Also
//! the memory saved and the time added by gradient checkpointing.

mod common;

use std::sync::Arc;
use std::time::Instant;

use clap::Parser;
use common::models::{architecture, random_weights};
use common::rows::Rows;
use common::training::{ADAM, Training, start_teacher, teacher_options};
use common::{Error, graphs::Graphs};
use kdgat::distill::{Residency, StoreShape};
use kdgat::graph::{AssembleOptions, Loader, LoaderOptions, Store, shuffled_batches};
use kdgat::memory::Meter;
use kdgat::memory::budget::{MemoryBudget, Shape, WorstBatches};
use kdgat::memory::probe::Probe;
use kdgat::torch::allocator::Phase;
use tch::Device;

const WAITING: usize = 4;
/// Graphs per batch for measuring gradient checkpointing.
const RECOMPUTED_GRAPHS: usize = 512;
const MIB: f64 = 1_048_576.0;

#[derive(Debug, Parser)]
struct Options {
    #[command(flatten)]
    output: common::Output,
    /// Batches per epoch; twice as many for batches of up to 512 graphs
    #[arg(long, default_value_t = 6)]
    batches: usize,
    /// Measure only vgae or only gat; the results file collects the rows of both
    #[arg(long)]
    model: Option<String>,
    /// Print the budgets and the actual memory by component
    #[arg(long)]
    tables: bool,
    #[arg(long, hide = true)]
    bench: bool,
}

/// Model, its size, true with distillation, and graphs per batch.
type Case<'a> = (&'a str, &'a str, bool, usize);

fn main() -> Result<(), Error> {
    let options = Options::parse();
    kdgat::memory::install()?;
    common::start(0)?;
    let device = Device::Cpu;
    let Graphs::Simulated(store, _folder) = Graphs::open(None)? else { return Ok(()) };
    let store = Arc::new(*store);
    let mut rows = Rows::new("memory", options.output.json);
    let sizes: &[usize] = if options.output.quick { &[32, 512] } else { &[32, 128, 512, 1024, 2048, 4096] };
    for model in ["vgae", "gat"].into_iter().filter(|model| options.model.as_deref().is_none_or(|one| one == *model)) {
        for (size, distills) in [("teacher", false), ("student", false), ("student", true)] {
            for &graphs in sizes {
                measure(&options, &store, (model, size, distills, graphs), device, &mut rows)?;
            }
        }
        for size in ["teacher", "student"] {
            recompute(&options, &store, (model, size), device, &mut rows)?;
        }
    }
    rows.finish(device, options.output.results.as_deref())
}

fn loader(store: &Arc<Store>) -> Loader {
    let vocabulary = Arc::new(store.vocabulary().clone());
    let assemble = AssembleOptions::new(vocabulary);
    Loader::start(Arc::clone(store), LoaderOptions { assemble, workers: 1, prefetch_batches: WAITING })
}

/// `batches` batches from the store's graphs, through one random order after another.
fn batches_of(store: &Store, graphs: usize, batches: usize) -> Vec<Vec<u64>> {
    let all: Vec<u64> = (0..store.num_graphs()).collect();
    let rounds = (graphs * batches).div_ceil(all.len()) as u64;
    let order = (0..rounds).flat_map(|round| shuffled_batches(&all, all.len(), 1, round)).flatten();
    order.collect::<Vec<_>>().chunks(graphs).take(batches).map(<[u64]>::to_vec).collect()
}

/// Nodes and edges of a graph, including the self-loops that attention adds.
fn size_of(store: &Store, graph: u64) -> (u64, u64) {
    let view = store.graph(graph);
    (view.num_nodes() as u64, (view.num_edges() + view.num_nodes()) as u64)
}

fn shape_of(store: &Store, batch: &[u64]) -> Shape {
    let sizes = batch.iter().map(|&graph| size_of(store, graph));
    let (nodes, edges) = sizes.fold((0, 0), |sum, each| (sum.0 + each.0, sum.1 + each.1));
    Shape { graphs: batch.len() as f64, nodes: nodes as f64, edges: edges as f64 }
}

fn measure(
    options: &Options,
    store: &Arc<Store>,
    (model, size, distills, graphs): Case,
    device: Device,
    rows: &mut Rows,
) -> Result<(), Error> {
    let loader = loader(store);
    let student = architecture(model, size, store.vocabulary().len() as i64)?;
    let teacher = architecture(model, "teacher", store.vocabulary().len() as i64)?;
    // Small batches take little time, and the loader needs a few steps to prefetch as far as it is allowed to.
    let count = if graphs <= 512 { 2 * options.batches } else { options.batches };
    let batches = batches_of(store, graphs, count);
    let burst = if distills { 2 } else { 1 };
    let taught = match distills {
        true => {
            let shape = StoreShape::new(store, None);
            let teaching = teacher_options(device, Residency::Resident, burst, false);
            Some((start_teacher(&teacher, random_weights(&teacher, 7)?, &teaching, &shape)?, &teacher))
        }
        false => None,
    };
    let mut training = Training::new(&student, taught, burst, device)?;
    let all: Vec<u64> = (0..store.num_graphs()).collect();
    let measured = Probe {
        objective: training.objective.as_mut(),
        trainable: &mut training.trainable,
        loader: &loader,
        graphs: &all,
        size_of: &|graph| size_of(store, graph),
        cap: graphs,
        burst,
        waiting_batches: WAITING,
        adam: ADAM,
        precision: None,
        device,
    }
    .measure()?;
    let whole = shape_of(store, &all);
    let meter = Meter::new(device);
    meter.release_kept();
    meter.reset_peak();
    run(&mut training, &loader, &batches, burst)?;
    let actual = meter.read().peak_bytes as f64;
    let predicted = |budget: &MemoryBudget| {
        batches.iter().map(|batch| budget.peak_bytes(shape_of(store, batch))).fold(0.0, f64::max)
    };
    let name = format!("{model} {size}{} batch {graphs}", if distills { " kd" } else { "" });
    if options.tables {
        let worst = WorstBatches::uniform(whole.nodes / whole.graphs, whole.edges / whole.graphs, graphs);
        eprintln!("{name}: {:.1} MiB", actual / MIB);
        eprintln!("measured\n{}", measured.table("graphs", graphs, &worst));
        let host = meter.read().host;
        let at_peak =
            Phase::ALL.map(|phase| format!("{} {:.1}", phase.name(), phase.of(&host.phases_at_peak) as f64 / MIB));
        eprintln!("actual, MiB: {}\n", at_peak.join(", "));
    }
    let ratio = predicted(&measured) / actual;
    rows.add(&name, ("measured / actual", "ratio"), ratio, Some(("actual MiB", actual / MIB, ratio)));
    Ok(())
}

fn run(training: &mut Training, loader: &Loader, batches: &[Vec<u64>], burst: usize) -> Result<(), Error> {
    let mut loaded = loader.epoch(batches.to_vec(), 0);
    loop {
        let some = loaded.by_ref().take(burst).collect::<Result<Vec<_>, _>>()?;
        if some.is_empty() {
            return Ok(());
        }
        training.run(&some)?;
    }
}

/// Memory saved and time added by gradient checkpointing in a step: medians of alternating steps.
fn recompute(
    options: &Options,
    store: &Arc<Store>,
    (model, size): (&str, &str),
    device: Device,
    rows: &mut Rows,
) -> Result<(), Error> {
    let student = architecture(model, size, store.vocabulary().len() as i64)?;
    let loader = loader(store);
    let steps = if options.output.quick { 5 } else { 15 };
    let batch = loader.epoch(batches_of(store, RECOMPUTED_GRAPHS, 1), 0).collect::<Result<Vec<_>, _>>()?;
    let mut trainings = [false, true]
        .map(|recomputes| Training::with_checkpointing(&student, None, 1, device, recomputes))
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    let (mut seconds, mut peaks) = ([Vec::new(), Vec::new()], [0, 0]);
    let meter = Meter::new(device);
    for step in 0..=steps {
        for (index, training) in trainings.iter_mut().enumerate() {
            let before = meter.read().current_bytes;
            meter.reset_peak();
            let start = Instant::now();
            training.run(&batch)?;
            // The first step allocates memory that later steps reuse.
            if step > 0 {
                seconds[index].push(start.elapsed().as_secs_f64());
                peaks[index] = meter.read().peak_bytes - before;
            }
        }
    }
    let [kept, recomputed] = seconds.map(|mut seconds| {
        seconds.sort_by(f64::total_cmp);
        seconds[seconds.len() / 2]
    });
    let name = format!("{model} {size} batch {RECOMPUTED_GRAPHS}, activations computed again");
    rows.add(&name, ("step", "ms"), 1e3 * recomputed, Some(("kept", 1e3 * kept, recomputed / kept)));
    let [kept, recomputed] = peaks.map(|bytes| bytes as f64 / MIB);
    rows.add(&name, ("peak of a step", "MiB"), recomputed, Some(("kept", kept, recomputed / kept)));
    Ok(())
}
