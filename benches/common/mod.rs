//! What the benches share: graphs, students as the training loop steps them, and rows of results.
#![allow(dead_code)] // each bench uses its own part

pub mod graphs;
pub mod in_turn;
pub mod models;
pub mod rows;
pub mod training;

/// Options that every bench has.
#[derive(Debug, clap::Args)]
pub struct Output {
    /// Less of everything: under three minutes
    #[arg(long)]
    pub quick: bool,
    /// One JSON object a row instead of a table
    #[arg(long)]
    pub json: bool,
    /// A folder for the full results
    #[arg(long)]
    pub results: Option<std::path::PathBuf>,
}

/// The error of a bench, of whatever module it comes from.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// The middle one of some numbers (the upper of two).
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// `cpu`, `cuda`, `cuda:1`.
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

/// Before anything else touches torch, as the program does: its allocator, and CUDA where it is.
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
