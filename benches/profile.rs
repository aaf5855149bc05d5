//! Profile of a training step: processor time of its sections, by default on one thread.
//!
//!     taskset -c 0 cargo bench --bench profile [-- [FILTER] [seconds=4] [threads=1] [kernel=auto|composed]]
//!
//! The graphs are those of the bench `step`.
//! It measures processor time, not wall-clock time, because other programs on the machine affect it little.

mod common;

use common::graphs::write_graphs;
use kdgat::graph::Batch;
use kdgat::graph::edge_list::EdgeListFile;
use kdgat::nn::attention::Backend;
use kdgat::nn::layers::Mode;
use kdgat::nn::vgae::task_loss;
use kdgat::nn::{ClassLoss, FreshParameters, Gat, GatConfig, Scope, Vgae, VgaeConfig};
use kdgat::train::optimizer::{Adam, AdamOptions};
use kdgat::train::threads::own_threads;
use kdgat::train::trainable::Trainable;
use rustix::time::{ClockId, clock_gettime};
use tch::{Device, Tensor};

const VOCABULARY: i64 = 40;
const BATCH_GRAPHS: usize = 512;
const BATCHES: usize = 4;

fn main() {
    // The allocator of the program: otherwise the C library maps new memory for large results in every step.
    kdgat::torch::allocator::install().unwrap();
    let options = Options::from_arguments();
    tch::set_num_threads(options.threads);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("graphs.safetensors");
    write_graphs(&path).unwrap();
    let file = EdgeListFile::open(&path).unwrap();
    let batch = |first: usize, count: usize| {
        let graphs: Vec<usize> = (first..first + count).map(|graph| graph % file.num_graphs()).collect();
        file.batch(&graphs, VOCABULARY).unwrap()
    };
    let batches: Vec<Batch> = (0..BATCHES).map(|index| batch(index * BATCH_GRAPHS, BATCH_GRAPHS)).collect();
    let single: Vec<Batch> = (0..64).map(|index| batch(index * 7, 1)).collect();
    let mean_nodes = batches.iter().map(Batch::num_nodes).sum::<i64>() / BATCHES as i64;
    println!(
        "{BATCH_GRAPHS} graphs, {mean_nodes} nodes a batch, {} thread(s); milliseconds of processor time a step, medians",
        options.threads
    );
    for (name, model) in models(options.kernel) {
        if options.filter.as_ref().is_none_or(|filter| name.contains(filter.as_str())) {
            measure(name, model, &batches, &single, (options.seconds, options.kernel));
        }
    }
}

struct Options {
    filter: Option<String>,
    seconds: f64,
    threads: i32,
    kernel: Backend,
}

impl Options {
    fn from_arguments() -> Self {
        let mut options = Self { filter: None, seconds: 4.0, threads: 1, kernel: Backend::Auto };
        for argument in std::env::args().skip(1).filter(|argument| argument != "--bench") {
            match argument.split_once('=') {
                Some(("seconds", value)) => options.seconds = value.parse().unwrap(),
                Some(("threads", value)) => options.threads = value.parse().unwrap(),
                Some(("kernel", "composed")) => options.kernel = Backend::Composed,
                Some(("kernel", "auto")) => options.kernel = Backend::Auto,
                Some(_) => panic!("unknown option {argument}"),
                None => options.filter = Some(argument),
            }
        }
        options
    }
}

enum Model {
    Vgae(Vgae),
    Gat(Gat),
}

fn models(kernel: Backend) -> Vec<(&'static str, (Model, Trainable))> {
    let vgae = |hidden: &[i64], latent, heads, embedding| {
        let config = VgaeConfig {
            hidden: hidden.to_vec(),
            latent,
            heads,
            embedding,
            vocabulary_size: VOCABULARY,
            dropout: 0.1,
            edge_scaling: None,
            input: Default::default(),
        };
        let mut fresh = FreshParameters::new(1, Device::Cpu);
        let model = Vgae::new(Scope::root(&mut fresh), &config, kernel).unwrap();
        (Model::Vgae(model), Trainable::new(fresh.into_tensors(), Device::Cpu).unwrap())
    };
    let gat = |hidden, layers, heads, embedding, fc_layers| {
        let config = GatConfig {
            hidden,
            layers,
            heads,
            embedding,
            fc_layers,
            vocabulary_size: VOCABULARY,
            dropout: 0.1,
            edge_scaling: None,
            input: Default::default(),
        };
        let mut fresh = FreshParameters::new(1, Device::Cpu);
        let model = Gat::new(Scope::root(&mut fresh), &config, kernel).unwrap();
        (Model::Gat(model), Trainable::new(fresh.into_tensors(), Device::Cpu).unwrap())
    };
    vec![
        ("vgae-student", vgae(&[80, 40, 16], 16, 1, 4)),
        ("vgae-teacher", vgae(&[480, 240, 48], 48, 4, 32)),
        ("gat-student", gat(24, 2, 4, 8, 3)),
        ("gat-teacher", gat(48, 3, 8, 16, 2)),
    ]
}

/// Processor time of this process, in milliseconds.
fn processor_ms() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

fn measure(
    name: &str,
    (model, mut trainable): (Model, Trainable),
    batches: &[Batch],
    single: &[Batch],
    (seconds, kernel): (f64, Backend),
) {
    let mut adam = Adam::new(
        &trainable,
        AdamOptions { weight_decay: 1e-4, gradient_clip: 1.0, offload: false, kernel, ..AdamOptions::PLAIN },
    )
    .unwrap();
    let _threads = own_threads(&trainable, kernel, Device::Cpu, None);
    let sections = ["forward", "loss", "backward", "optimiser"];
    let mut rounds: Vec<[f64; 4]> = Vec::new();
    let start = processor_ms();
    while processor_ms() - start < seconds * 1e3 || rounds.len() < 7 {
        let batch = &batches[rounds.len() % batches.len()];
        let mut marks = [processor_ms(); 5];
        let loss = train_loss(&model, batch, &mut marks);
        loss.backward();
        marks[3] = processor_ms();
        let _norm = adam.step(&mut trainable, 1e-4).unwrap();
        marks[4] = processor_ms();
        rounds.push(std::array::from_fn(|section| marks[section + 1] - marks[section]));
    }
    // The first rounds include memory allocation and cold caches.
    let rounds = &rounds[2..];
    let total = median(rounds.iter().map(|round| round.iter().sum()));
    print!("{name:>13}: training {total:.2}");
    for (index, section) in sections.iter().enumerate() {
        print!(", {section} {:.2}", median(rounds.iter().map(|round| round[index])));
    }
    println!("   ({:.0} graphs a second of processor time)", BATCH_GRAPHS as f64 / total * 1e3);

    let evaluated = timed(batches, seconds / 4.0, |batch| evaluate(&model, batch, false));
    let scored = timed(batches, seconds / 4.0, |batch| evaluate(&model, batch, true));
    let alone = timed(single, seconds / 4.0, |batch| evaluate(&model, batch, false));
    let alone_scored = timed(single, seconds / 4.0, |batch| evaluate(&model, batch, true));
    println!(
        "{:>13}  inference {evaluated:.2}, scoring {scored:.2}; one graph: inference {:.0} µs, scoring {:.0} µs",
        "",
        alone * 1e3,
        alone_scored * 1e3
    );
}

/// Loss of a training step; records the times at which forward and loss end.
fn train_loss(model: &Model, batch: &Batch, marks: &mut [f64; 5]) -> Tensor {
    match model {
        Model::Vgae(model) => {
            let output = model.forward(batch, Mode::Training).unwrap();
            marks[1] = processor_ms();
            let loss = task_loss(&output, batch).unwrap().total;
            marks[2] = processor_ms();
            loss
        }
        Model::Gat(model) => {
            let logits = model.forward(batch, Mode::Training).unwrap();
            marks[1] = processor_ms();
            let loss = ClassLoss::CrossEntropy.of(&logits, &batch.labels, None).unwrap();
            marks[2] = processor_ms();
            loss
        }
    }
}

fn evaluate(model: &Model, batch: &Batch, score: bool) {
    tch::no_grad(|| match model {
        Model::Vgae(model) => match score {
            true => drop(model.difficulty(batch).unwrap()),
            false => drop(model.forward(batch, Mode::Evaluation).unwrap()),
        },
        Model::Gat(model) => drop(model.forward(batch, Mode::Evaluation).unwrap()),
    });
}

/// Median processor time of `run`, in milliseconds.
fn timed(batches: &[Batch], seconds: f64, run: impl Fn(&Batch)) -> f64 {
    let mut times = Vec::new();
    let start = processor_ms();
    while processor_ms() - start < seconds * 1e3 || times.len() < 12 {
        let begin = processor_ms();
        run(&batches[times.len() % batches.len()]);
        times.push(processor_ms() - begin);
    }
    median(times.into_iter().skip(2))
}

fn median(times: impl Iterator<Item = f64>) -> f64 {
    let mut times: Vec<f64> = times.collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
