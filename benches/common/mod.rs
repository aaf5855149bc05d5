//! Shared by the benches: graphs, students stepped as in the training loop, and rows of results.
#![allow(dead_code)] // Each bench uses only some items.

pub mod graphs;
pub mod in_turn;
pub mod models;
pub mod peer;
pub mod rows;
pub mod training;

/// Options of every bench.
#[derive(Debug, clap::Args)]
pub struct Output {
    /// Measure less, in under three minutes
    #[arg(long)]
    pub quick: bool,
    /// Print one JSON object per row instead of a table
    #[arg(long)]
    pub json: bool,
    /// Folder for the full results
    #[arg(long)]
    pub results: Option<std::path::PathBuf>,
}

/// Error of a bench, from any module.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Median of some numbers (the upper one of two).
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Parses `cpu`, `cuda` or `cuda:INDEX`.
pub fn device(name: &str) -> Result<tch::Device, Error> {
    match name.split_once(':').unwrap_or((name, "0")) {
        ("cpu", "0") => Ok(tch::Device::Cpu),
        ("cuda", index) => {
            let (index, found) = (index.parse::<usize>()?, kdgat::torch::device::cuda_device_count()?);
            if index >= found {
                return Err(format!("--device {name}: {found} GPUs found").into());
            }
            Ok(tch::Device::Cuda(index))
        }
        _ => Err(format!("--device {name}: expected cpu, cuda or cuda:INDEX").into()),
    }
}

/// Installs the program's allocator and loads CUDA if available. Must run before anything else uses torch.
pub fn start(threads: usize) -> Result<(), Error> {
    kdgat::memory::install()?;
    for warning in kdgat::memory::start_devices(None).warnings {
        eprintln!("warning: {warning}");
    }
    if threads > 0 {
        tch::set_num_threads(threads as i32);
    }
    Ok(())
}
