//! Stores of one large graph: the generator and the import of an OGB folder, beside the rate at which the disk takes the same bytes.
//!
//! The peer of each row is a plain sequential write of as many bytes as the store has, synced, in the same folder.

mod common;

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Parser;
use common::rows::Rows;
use common::{Error, median};
use kdgat::nodes::sources::GraphOptions;
use kdgat::nodes::{Build, CitationOptions, Features, NodeGraph, simulate_citations, store};
use tch::Device;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

const COLUMNS: usize = 128;
const CLASSES: usize = 172;
/// Bytes of a plain write.
const BLOCK_BYTES: usize = 4 << 20;

#[derive(Debug, Parser)]
struct Options {
    #[command(flatten)]
    output: common::Output,
    /// Folder for the stores: on the disk to measure (up to 15 GB)
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Measurements of each row; the median counts
    #[arg(long, default_value_t = 3)]
    repetitions: usize,
    /// Memory of a build, in bytes
    #[arg(long, default_value_t = kdgat::nodes::build::DEFAULT_MEMORY)]
    memory: u64,
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<(), Error> {
    let mut options = Options::parse();
    if options.output.quick {
        options.repetitions = 1;
    }
    common::start(0)?;
    let scratch = match &options.folder {
        Some(folder) => tempfile::tempdir_in(folder)?,
        None => tempfile::tempdir()?,
    };
    let bench = Bench { options: &options, folder: scratch.path() };
    let mut rows = Rows::new("node_import", options.output.json);
    let sizes: &[(usize, u64)] = match options.output.quick {
        true => &[(200_000, 2_000_000)],
        false => &[(1_000_000, 10_000_000), (10_000_000, 100_000_000)],
    };
    for &(nodes, edges) in sizes {
        bench.generator(nodes, edges, &mut rows)?;
    }
    let (nodes, edges) = if options.output.quick { (100_000, 1_000_000) } else { (1_000_000, 10_000_000) };
    bench.import(nodes, edges, &mut rows)?;
    rows.finish(Device::Cpu, options.output.results.as_deref())
}

struct Bench<'a> {
    options: &'a Options,
    folder: &'a Path,
}

impl Bench<'_> {
    fn limits(&self) -> Build<'static> {
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
        Build { memory: self.options.memory, threads, progress: &() }
    }

    fn generator(&self, nodes: usize, edges: u64, rows: &mut Rows) -> Result<(), Error> {
        let path = self.folder.join("graph.kdgat-nodes");
        let options = CitationOptions { nodes, edges, classes: CLASSES, features: COLUMNS, seed: 1, half: true };
        let seconds = self.measure(|| {
            if path.exists() {
                fs::remove_file(&path)?;
            }
            Ok(simulate_citations(&options, &path, &self.limits())?)
        })?;
        let bytes = path.metadata()?.len();
        fs::remove_file(&path)?;
        self.report(&format!("generator, {nodes} nodes, {edges} edges"), [nodes as u64, edges, bytes], seconds, rows)
    }

    fn import(&self, nodes: usize, edges: u64, rows: &mut Rows) -> Result<(), Error> {
        let generated = self.folder.join("source.kdgat-nodes");
        let options = CitationOptions { nodes, edges, classes: CLASSES, features: COLUMNS, seed: 1, half: false };
        simulate_citations(&options, &generated, &self.limits())?;
        let (source, stores) = (self.folder.join("folder"), self.folder.join("stores"));
        let listed = write_folder(&store::open(&generated)?, &source)?;
        fs::remove_file(&generated)?;
        let options = GraphOptions { largest_component: false, half: true, ..GraphOptions::default() };
        let mut bytes = 0;
        let seconds = self.measure(|| {
            let built = store::open_or_build_with(&source, &options, &stores, &self.limits())?;
            bytes = built.path.metadata()?.len();
            Ok(fs::remove_dir_all(&stores)?)
        })?;
        self.report(&format!("import, {nodes} nodes, {listed} edges"), [nodes as u64, listed, bytes], seconds, rows)
    }

    /// Median time of some repetitions.
    fn measure(&self, mut run: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
        let mut seconds = Vec::new();
        for _ in 0..self.options.repetitions {
            let start = Instant::now();
            run()?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        Ok(median(seconds))
    }

    fn report(&self, name: &str, amounts: [u64; 3], seconds: f64, rows: &mut Rows) -> Result<(), Error> {
        let [nodes, edges, bytes] = amounts.map(|amount| amount as f64);
        let disk = bytes / 1e6 / self.measure(|| plain_write(&self.folder.join("plain"), bytes as usize))?;
        rows.add(name, ("nodes", "million/s"), nodes / 1e6 / seconds, None);
        rows.add(name, ("edges", "million/s"), edges / 1e6 / seconds, None);
        let rate = bytes / 1e6 / seconds;
        rows.add(name, ("store", "MB/s"), rate, Some(("a plain write", disk, rate / disk)));
        Ok(())
    }
}

fn plain_write(path: &Path, bytes: usize) -> Result<(), Error> {
    let mut file = File::create(path)?;
    // No file system stores these as holes.
    let block: Vec<u8> = (0..BLOCK_BYTES).map(|at| at as u8 ^ (at >> 8) as u8).collect();
    for begin in (0..bytes).step_by(BLOCK_BYTES) {
        file.write_all(&block[..BLOCK_BYTES.min(bytes - begin)])?;
    }
    file.sync_all()?;
    Ok(fs::remove_file(path)?)
}

/// Writes a graph as a folder of OGB with arrays, stored as they are. Each undirected edge is listed once. Returns their number.
fn write_folder(graph: &NodeGraph, folder: &Path) -> Result<u64, Error> {
    fs::create_dir_all(folder.join("raw"))?;
    let Features::Dense { columns, values } = &graph.features else { return Err("dense features expected".into()) };
    let of = |target: u32| graph.neighbours(target).iter().map(move |&source| (source, target));
    let edges = || (0..graph.num_nodes() as u32).flat_map(of).filter(|(source, target)| source < target);
    let (nodes, listed) = (graph.num_nodes(), edges().count());
    let mut archive = ZipWriter::new(BufWriter::with_capacity(1 << 20, File::create(folder.join("raw/data.npz"))?));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored).large_file(true);
    archive.start_file("edge_index.npy", options)?;
    archive.write_all(&npy_header("<i8", &[2, listed]))?;
    for end in [|edge: (u32, u32)| edge.0, |edge: (u32, u32)| edge.1] {
        let ends: Vec<i64> = edges().map(|edge| i64::from(end(edge))).collect();
        archive.write_all(bytemuck::cast_slice(&ends))?;
    }
    archive.start_file("node_feat.npy", options)?;
    archive.write_all(&npy_header("<f4", &[nodes, *columns]))?;
    archive.write_all(bytemuck::cast_slice(values))?;
    for (name, number) in [("num_nodes_list", nodes), ("num_edges_list", listed)] {
        archive.start_file(format!("{name}.npy"), options)?;
        archive.write_all(&npy_header("<i8", &[1]))?;
        archive.write_all(&(number as i64).to_le_bytes())?;
    }
    archive.finish()?.flush()?;
    let mut archive = ZipWriter::new(File::create(folder.join("raw/node-label.npz"))?);
    archive.start_file("node_label.npy", options)?;
    archive.write_all(&npy_header("<f4", &[nodes, 1]))?;
    let labels: Vec<f32> = graph.labels.iter().map(|&label| if label < 0 { f32::NAN } else { label as f32 }).collect();
    archive.write_all(bytemuck::cast_slice(&labels))?;
    archive.finish()?;
    Ok(listed as u64)
}

fn npy_header(descr: &str, shape: &[usize]) -> Vec<u8> {
    let sizes: String = shape.iter().map(|size| format!("{size}, ")).collect();
    let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({sizes}), }}");
    let text = format!("{text:<117}\n");
    [b"\x93NUMPY\x01\x00", &(text.len() as u16).to_le_bytes()[..], text.as_bytes()].concat()
}
