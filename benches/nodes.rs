//! Sampled edges per second: kdgat's sampler beside DGL's and GraphBolt's, in turn, on the same graph, with the same fan-outs.
//!
//! kdgat's batches come from its loader, as in training: all tensors of all layers, the order by source included, which the others do
//! not make. Self-loops are not counted. The other programs run in their fastest configuration: widths of node numbers, fused or
//! not, threads or worker processes are tried before each row.
//!
//! A store (`--store FILE.kdgat-nodes`) is measured where it is and without the other programs: it can be larger than the memory. Its
//! sampled batches read their features around the system's cache.

mod common;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use clap::Parser;
use common::rows::Rows;
use common::{Error, median};
use kdgat::graph::Loader;
use kdgat::memory::limits::host_limit;
use kdgat::random::{self, Purpose};
use kdgat::torch::direct_read::{DirectFile, DirectReader, Span};
use kdgat_nodes::sources::{GraphOptions, SourceNotes, read};
use kdgat_nodes::store::{self, Provenance};
use kdgat_nodes::{
    BatchOptions, Fanout, FeatureRows, Features, NodeBatches, NodeGraph, NodeTask, Reach, RowAccess, SampledLayers,
    Sampler, Section,
};
use serde_json::Value;
use tch::Device;

/// Nodes and drawn undirected edges of the generated graph: about ten million directed edges are left without repetitions.
const NODES: usize = 1_000_000;
const DRAWN_EDGES: usize = 5_200_000;
/// Columns of the features that some rows gather.
const COLUMNS: usize = 128;
const SEED: u64 = 1;
/// Rows of a gathered batch.
const GATHERED: usize = 100_000;

#[derive(Debug, Parser)]
struct Options {
    #[command(flatten)]
    output: common::Output,
    /// Another graph to measure, such as an .npz file; may be repeated
    #[arg(long)]
    data: Vec<PathBuf>,
    /// Measure this store and nothing else, without the other programs
    #[arg(long, conflicts_with_all = ["data", "peer"])]
    store: Option<PathBuf>,
    /// The Python program that runs DGL and GraphBolt
    #[arg(long)]
    peer: Option<PathBuf>,
    /// Python interpreter that runs it
    #[arg(long, default_value = "python3")]
    peer_python: PathBuf,
    /// Measurements of each program, alternating
    #[arg(long, default_value_t = 5)]
    pairs: usize,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Only rows whose names contain this text
    #[arg(long)]
    only: Option<String>,
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<(), Error> {
    let mut options = Options::parse();
    if options.output.quick {
        (options.pairs, options.seconds) = (1, 1.0);
    }
    common::start(0)?;
    let scratch = tempfile::tempdir()?;
    let mut rows = Rows::new("nodes", options.output.json);
    for name in std::iter::once(None).chain(options.data.iter().map(Some)) {
        let graph = match (name, &options.store) {
            (None, Some(store)) => store::open(store)?,
            (None, None) => heavy_tailed(NODES, DRAWN_EDGES),
            (Some(path), _) => with_features(read(path, &GraphOptions::default())?.0),
        };
        let bench = Bench { options: &options, folder: scratch.path(), graph: Arc::new(graph) };
        if options.peer.is_some() {
            bench.write_graph()?;
        }
        for case in cases(options.output.quick) {
            bench.measure(&case, &mut rows)?;
        }
        bench.gather(&mut rows)?;
    }
    rows.finish(Device::Cpu, options.output.results.as_deref())
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
struct Case {
    fanouts: &'static [u32],
    batch: usize,
    threads: usize,
    gathers: bool,
}

fn cases(quick: bool) -> Vec<Case> {
    let mut found = Vec::new();
    for (fanouts, batch) in [(&[15, 10, 5][..], 1024), (&[5, 3], 256)] {
        for threads in [1, 2] {
            for gathers in [false, true] {
                found.push(Case { fanouts, batch, threads, gathers });
            }
        }
    }
    found.retain(|case| !quick || !case.gathers);
    found
}

struct Bench<'a> {
    options: &'a Options,
    folder: &'a Path,
    graph: Arc<NodeGraph>,
}

impl Bench<'_> {
    fn measure(&self, case: &Case, rows: &mut Rows) -> Result<(), Error> {
        let fanouts: Vec<String> = case.fanouts.iter().map(u32::to_string).collect();
        let name = format!(
            "{}, fan-outs {}, batch {}, {} thread{}{}",
            self.graph.name,
            fanouts.join(","),
            case.batch,
            case.threads,
            if case.threads == 1 { "" } else { "s" },
            if case.gathers { ", features" } else { "" },
        );
        if self.options.only.as_ref().is_some_and(|text| !name.contains(text.as_str())) {
            return Ok(());
        }
        let metric = ("sampled edges", "1/s");
        let mut peers = Vec::new();
        if self.options.peer.is_some() {
            for program in ["dgl", "graphbolt"] {
                peers.push((program, self.fastest(program, case)?, Vec::new()));
            }
        }
        let mut ours = Vec::new();
        for pair in 0..self.options.pairs {
            ours.push(self.rate(case)?);
            for (program, way, rates) in &mut peers {
                rates.push(self.peer_rate(program, way, case, self.options.seconds)?);
            }
            let text: Vec<String> =
                peers.iter().map(|(program, _, rates)| format!("{program} {:.3e}", rates[pair])).collect();
            eprintln!("  {name}: pair {}: kdgat {:.3e}, {}", pair + 1, ours[pair], text.join(", "));
        }
        let value = median(ours.clone());
        for (program, way, rates) in &peers {
            let ratio = median(ours.iter().zip(rates).map(|(ours, theirs)| ours / theirs).collect());
            let peer = format!("{program}, {way}");
            rows.add(&name, metric, value, Some((&peer, median(rates.clone()), ratio)));
        }
        if peers.is_empty() {
            rows.add(&name, metric, value, None);
        }
        if case.threads == 1 && !case.gathers {
            let alone = (0..self.options.pairs).map(|_| self.rate_of_sampling(case)).collect::<Result<_, _>>()?;
            rows.add(&name, ("sampled edges, without making tensors", "1/s"), median(alone), None);
        }
        Ok(())
    }

    /// Rows of features per second from each place, for random rows on one thread, beside a copy of memory and large direct reads.
    fn gather(&self, rows: &mut Rows) -> Result<(), Error> {
        let name = format!("{}, {GATHERED} random rows", self.graph.name);
        if self.options.only.as_ref().is_some_and(|text| !name.contains(text.as_str())) {
            return Ok(());
        }
        let path = self.options.store.clone().map_or_else(|| self.written(), Ok)?;
        let stored = store::open(&path)?;
        let row_bytes = FeatureRows::mapped(&stored.features).row_bytes().ok_or("sparse features are not measured")?;
        let nodes = |batch: usize| -> Vec<u32> {
            let draw = |at: usize| random::unit(SEED, Purpose::Sweep, 1 + batch as u64, at as u64);
            (0..GATHERED).map(|at| (draw(at) * stored.num_nodes() as f64) as u32).collect()
        };
        let memory = self.rate_of(|| {
            let (from, mut to) = (vec![1u8; GATHERED * row_bytes], vec![0u8; GATHERED * row_bytes]);
            let start = Instant::now();
            to.copy_from_slice(std::hint::black_box(&from));
            std::hint::black_box(&to);
            Ok(start.elapsed().as_secs_f64())
        })?;
        let disk = {
            let file = Arc::new(DirectFile::open(&path)?);
            let mut reader = DirectReader::new(&file, 1 << 20)?;
            let span = |at: usize| Span { offset: (at << 20) as u64, bytes: 1 << 20 };
            let spans: Vec<Span> = (0..(GATHERED * row_bytes).div_ceil(1 << 20)).map(span).collect();
            self.rate_of(|| {
                let start = Instant::now();
                reader.read(&spans, |_, bytes| {
                    let _ = std::hint::black_box(bytes.len());
                })?;
                Ok(start.elapsed().as_secs_f64())
            })?
        };
        // Mapped and resident rows are measured where both copies of all features fit well into memory.
        let fits = 4 * stored.features.bytes() as u64 <= host_limit(None).bytes;
        let direct = (RowAccess::Direct, "direct reads of 1 MiB", disk);
        let in_memory = [RowAccess::Mapped, RowAccess::Resident].map(|access| (access, "a copy of memory", memory));
        for (access, peer, rate) in in_memory.into_iter().filter(|_| fits).chain([direct]) {
            let from = FeatureRows::open(&stored.features, access)?;
            let (mut reader, mut batch) = (from.reader()?, 0);
            let value = self.rate_of(|| {
                let nodes = nodes(batch);
                batch += 1;
                let start = Instant::now();
                reader.read(&nodes)?;
                Ok(start.elapsed().as_secs_f64())
            })?;
            let metric = ("gathered rows", "1/s");
            rows.add(&format!("{name}, {access:?}"), metric, value, Some((peer, rate, value / rate)));
        }
        Ok(())
    }

    /// Rows per second of something that takes the returned seconds for `GATHERED` rows: the median of the pairs.
    fn rate_of(&self, mut seconds: impl FnMut() -> Result<f64, Error>) -> Result<f64, Error> {
        seconds()?;
        let rates = (0..3 * self.options.pairs).map(|_| Ok(GATHERED as f64 / seconds()?));
        Ok(median(rates.collect::<Result<Vec<f64>, Error>>()?))
    }

    /// Writes the graph as a store, and returns its path.
    fn written(&self) -> Result<PathBuf, Error> {
        let path = self.folder.join("graph.kdgat-nodes");
        let (options, notes) = (GraphOptions::default(), SourceNotes::default());
        store::write(&self.graph, Provenance { source_digest: "0".repeat(64), options, notes }, &path)?;
        Ok(path)
    }

    fn fanouts(&self, case: &Case) -> Vec<Fanout> {
        case.fanouts.iter().map(|&limit| Fanout::AtMost(limit)).collect()
    }

    /// All nodes as seeds, in batches, until there are `count` of them; of a store nodes that are drawn at random.
    fn batches(&self, case: &Case, count: usize) -> Vec<Vec<u64>> {
        if self.options.store.is_some() {
            let draw = |at: usize| random::unit(SEED, Purpose::Shuffle, 0, at as u64) * self.graph.num_nodes() as f64;
            let batch_of = |batch: usize| (batch * case.batch..(batch + 1) * case.batch).map(|at| draw(at) as u64);
            return (0..count).map(|batch| BTreeSet::from_iter(batch_of(batch)).into_iter().collect()).collect();
        }
        let mut nodes: Vec<u64> = (0..self.graph.num_nodes() as u64).collect();
        random::shuffle(&mut nodes, SEED, Purpose::Shuffle, 0);
        nodes.chunks(case.batch).cycle().take(count).map(<[u64]>::to_vec).collect()
    }

    /// Edges per second of batches from the loader.
    fn rate(&self, case: &Case) -> Result<f64, Error> {
        let columns = if case.gathers { self.graph.features.columns() } else { 0 };
        let graph = match case.gathers {
            true => Arc::clone(&self.graph),
            false => {
                let features = Features::Dense { columns: 0, values: Section::from(Vec::new()) };
                Arc::new(NodeGraph { features, ..(*self.graph).clone() })
            }
        };
        let labels = Arc::new(vec![0; graph.num_nodes()]);
        let options = BatchOptions { reach: Reach::Sampled(self.fanouts(case)), seed: SEED, degrees: false };
        let rows = match case.gathers && self.options.store.is_some() {
            true => FeatureRows::open(&graph.features, RowAccess::Direct)?,
            false => FeatureRows::mapped(&graph.features),
        };
        let batches = NodeBatches::new(graph, labels, options, Path::new("generated"))?.reading(Arc::new(rows));
        let source = Arc::new(batches);
        let loader = Loader::over(source, case.threads, 2 * case.threads);
        self.repeat(|count| {
            let batches = self.batches(case, count);
            let start = Instant::now();
            let mut edges = 0;
            for batch in loader.epoch(batches, 0) {
                let around = batch?.neighbourhood.ok_or("a batch without a neighbourhood")?;
                assert_eq!(around.features.columns() as usize, columns);
                edges += around.layers.iter().map(|layer| layer.num_edges() - layer.num_targets()).sum::<i64>();
            }
            Ok((edges as f64, start.elapsed().as_secs_f64()))
        })
    }

    /// Edges per second of sampling alone, on this thread.
    fn rate_of_sampling(&self, case: &Case) -> Result<f64, Error> {
        let mut sampler = Sampler::new(&*self.graph, &self.fanouts(case), SEED);
        let mut layers = SampledLayers::default();
        self.repeat(|count| {
            let batches: Vec<Vec<u32>> =
                self.batches(case, count).iter().map(|batch| batch.iter().map(|&node| node as u32).collect()).collect();
            let start = Instant::now();
            let mut edges = 0;
            for seeds in &batches {
                sampler.sample(seeds, 0, &mut layers)?;
                edges += layers.layers().map(|block| block.num_edges() - block.num_targets()).sum::<usize>();
            }
            Ok((edges as f64, start.elapsed().as_secs_f64()))
        })
    }

    /// Measures more and more batches until they take long enough; returns edges per second.
    fn repeat(&self, mut measure: impl FnMut(usize) -> Result<(f64, f64), Error>) -> Result<f64, Error> {
        let mut count = 16;
        loop {
            let (edges, seconds) = measure(count)?;
            if seconds >= 0.8 * self.options.seconds {
                return Ok(edges / seconds);
            }
            let factor = (self.options.seconds / seconds.max(1e-3)).clamp(1.5, 20.0);
            count = (count as f64 * factor) as usize;
        }
    }

    /// The fastest way to run a peer, by one short measurement of each.
    fn fastest(&self, program: &str, case: &Case) -> Result<String, Error> {
        let mut ways = Vec::new();
        for bits in [32, 64] {
            // More threads can be slower.
            ways.extend((1..=case.threads).map(|threads| format!("--bits {bits} --threads {threads}")));
            if case.threads > 1 {
                ways.push(format!("--bits {bits} --workers {}", case.threads));
            }
        }
        let mut best = (String::new(), 0.0);
        for way in ways {
            let rate = self.peer_rate(program, &way, case, self.options.seconds.min(2.0))?;
            if rate > best.1 {
                best = (way, rate);
            }
        }
        Ok(best.0)
    }

    fn peer_rate(&self, program: &str, way: &str, case: &Case, seconds: f64) -> Result<f64, Error> {
        let peer = self.options.peer.as_ref().ok_or("no --peer")?;
        let fanouts: Vec<String> = case.fanouts.iter().map(u32::to_string).collect();
        let features = if case.gathers { COLUMNS } else { 0 };
        let output = Command::new(&self.options.peer_python)
            .arg(peer)
            .args([program, "--fanouts", &fanouts.join(","), "--batch", &case.batch.to_string()])
            .args(["--features", &features.to_string(), "--seconds", &seconds.to_string(), "--graph"])
            .arg(self.folder)
            .args(way.split(' '))
            .output()?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{} {program} {way} failed: {text}", peer.display()).into());
        }
        let text = String::from_utf8(output.stdout)?;
        let found: Value = serde_json::from_str(text.lines().last().unwrap_or_default())?;
        found["edges_per_second"].as_f64().ok_or_else(|| format!("{program} did not report its rate: {text}").into())
    }

    /// Writes the edges for the peers.
    fn write_graph(&self) -> Result<(), Error> {
        write(&self.folder.join("indptr.bin"), bytemuck::cast_slice(&self.graph.row_pointers))?;
        write(&self.folder.join("indices.bin"), bytemuck::cast_slice(&self.graph.sources))
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(bytes)?;
    file.flush()?;
    Ok(())
}

/// An undirected graph whose degrees have a heavy tail: an end of an edge is node `n u²` of a random order, for uniform `u`.
fn heavy_tailed(nodes: usize, edges: usize) -> NodeGraph {
    let mut order: Vec<u32> = (0..nodes as u32).collect();
    random::shuffle(&mut order, SEED, Purpose::Shuffle, 1);
    let end = |index: u64| order[(random::unit(SEED, Purpose::Sweep, 0, index).powi(2) * nodes as f64) as usize];
    let mut pairs: Vec<u64> = (0..edges as u64)
        .map(|edge| [end(2 * edge), end(2 * edge + 1)])
        .filter(|[one, other]| one != other)
        .flat_map(|[one, other]| [(u64::from(one) << 32) | u64::from(other), (u64::from(other) << 32) | u64::from(one)])
        .collect();
    pairs.sort_unstable();
    pairs.dedup();
    let mut row_pointers = vec![0u64; nodes + 1];
    pairs.iter().for_each(|pair| row_pointers[(pair >> 32) as usize + 1] += 1);
    (0..nodes).for_each(|node| row_pointers[node + 1] += row_pointers[node]);
    with_features(NodeGraph {
        name: format!("{:.0e} nodes, {:.1e} edges", nodes as f64, pairs.len() as f64),
        digest: String::new(),
        row_pointers: Section::from(row_pointers),
        sources: Section::from(pairs.iter().map(|&pair| pair as u32).collect::<Vec<u32>>()),
        features: Features::Dense { columns: 0, values: Section::from(Vec::new()) },
        labels: Section::from(vec![0; nodes]),
        task: NodeTask { classes: 1 },
        given_split: None,
        node_hashes: Section::from(Vec::new()),
        original: None,
    })
}

/// The graph with features of the same width as the peers'.
fn with_features(graph: NodeGraph) -> NodeGraph {
    let values: Vec<f32> = (0..graph.num_nodes() * COLUMNS).map(|value| (value % 1000) as f32).collect();
    NodeGraph { features: Features::Dense { columns: COLUMNS, values: Section::from(values) }, ..graph }
}
