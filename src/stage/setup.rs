//! The start of every stage: threads, device, and the store of the dataset.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use tch::Device;

use super::{StageError, synthetic};
use crate::can::{self, CanError, Dataset, Format, ReadReport, TimeUnit};
use crate::config::{Config, DeviceChoice, FeatureChoice, LogFormat, Precision, TimeUnitChoice, ValidationChoice};
use crate::graph::dataset::{self, Source};
use crate::graph::store::manifest::FileEntry;
use crate::graph::store::{self, Gathered, Gathering, duplicates::Duplicates, gather, open_or_build_graphs};
use crate::graph::{
    BuildOptions, Event, FeatureSet, Progress, Share, Store, Validation, build_part, merge, open_or_build,
};
use crate::memory;
use crate::nn::DatasetIdentity;
use crate::torch::{allocator, device};
use crate::train::fit::FitError;
use crate::train::processes::place::{self, default_threads};

pub use crate::can::catalogue::SIMULATED;

/// The device, the store and the dataset of a stage.
#[derive(Debug, Clone)]
pub struct Data {
    pub device: Device,
    pub store: Arc<Store>,
    pub dataset: DatasetIdentity,
}

/// The device of a run, and the identity of its data.
#[derive(Debug, Clone)]
pub struct Origin {
    pub device: Device,
    pub dataset: DatasetIdentity,
    /// True for the nodes of one large graph: a training counts nodes, not graphs.
    pub counts_nodes: bool,
}

impl Data {
    /// The device and the identity of the data.
    pub fn origin(&self) -> Origin {
        Origin { device: self.device, dataset: self.dataset.clone(), counts_nodes: false }
    }
}

/// Sets the number of threads, finds the device, and opens the store.
pub fn open(config: &Config) -> Result<Data, StageError> {
    let device = prepare(config)?;
    Ok(data(device, open_store(config)?))
}

/// Like [`open`], for a dataset of graphs that are no CAN windows.
pub fn open_graphs(config: &Config) -> Result<Data, StageError> {
    let device = prepare(config)?;
    Ok(data(device, open_graph_store(config)?))
}

fn data(device: Device, store: Arc<Store>) -> Data {
    let dataset = DatasetIdentity { name: store.manifest().dataset.clone(), digest: store.digest().to_owned() };
    Data { device, store, dataset }
}

/// Opens the store of the configured dataset of graphs; builds it if it does not exist or its source has changed.
pub fn open_graph_store(config: &Config) -> Result<Arc<Store>, StageError> {
    let Some(source) = &config.data.data else {
        return Err(StageError::Input(
            "`kdgat train` needs a dataset of graphs: --data DIR or --data NAME.zip (tables, TUDataset or extended XYZ; see docs/graphs.md), or one large graph, NAME.npz or a folder (see docs/nodes.md)".into(),
        ));
    };
    if !source.exists() {
        return Err(StageError::Input(format!("--data {}: there is no such folder or file", source.display())));
    }
    if let Some(test) = config.data.test_data.as_ref().filter(|test| !dataset::is_dataset(test)) {
        let detail =
            if test.exists() { "no dataset of graphs (see docs/graphs.md)" } else { "there is no such folder or file" };
        return Err(StageError::Input(format!("--test-data {}: {detail}", test.display())));
    }
    if !dataset::is_dataset(source) {
        let detail = dataset::explain(source).unwrap_or_else(|| {
            "no dataset of graphs (tables, TUDataset, extended XYZ or DGL's CSVDataset; see docs/graphs.md); logs of a CAN bus are trained \
             on with `kdgat autoencoder`, `classifier` or `curriculum`"
                .to_owned()
        });
        return Err(StageError::Input(format!("--data {}: {detail}", source.display())));
    }
    Ok(Arc::new(open_or_build_graphs(graph_source(config), &config.data.stores_dir, &BuildLines::default())?))
}

/// The places of the configured dataset of graphs.
pub fn graph_source(config: &Config) -> Source<'_> {
    Source { data: config.data.data.as_deref().unwrap_or(Path::new("")), test: config.data.test_data.as_deref() }
}

/// Sets the number of threads and the memory limit, and finds the device.
pub fn prepare(config: &Config) -> Result<Device, StageError> {
    use_threads(config.training.threads);
    // Set now, so that it also applies to the difficulty scoring before a training.
    limit_memory(config);
    let device = device(config.training.device)?;
    if config.training.precision == Precision::Half && device == Device::Cpu {
        let text = "--precision 16-mixed needs a GPU, and none was found; use --precision bf16-mixed or 32";
        return Err(StageError::Input(text.into()));
    }
    if config.training.cuda_graphs == Some(true) && device == Device::Cpu {
        let text = "--cuda-graphs needs a GPU, and none was found; use --cuda-graphs false";
        return Err(StageError::Input(text.into()));
    }
    if config.training.cuda_graphs == Some(true)
        && let Some(setting) = memory::fatal_in_a_capture(&device::allocator_settings()?)
    {
        return Err(StageError::Input(format!(
            "--cuda-graphs with {setting} in the allocator's settings: the process would end if memory ran out while a step is \
             captured; remove {setting} from PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF, or use --cuda-graphs false"
        )));
    }
    Ok(device)
}

/// Sets the memory limit, the configured one or that of the machine, which readers of datasets keep, too.
pub fn limit_memory(config: &Config) {
    let limit = memory::limits::host_limit(config.memory.memory_limit.map(|size| size.0));
    allocator::set_limit(Some(limit.bytes));
}

/// Sets the number of CPU threads for computation; 0 uses all cores, or this process's share of them.
pub fn use_threads(threads: usize) {
    let threads = match threads {
        0 => default_threads(),
        threads => threads,
    };
    tch::set_num_threads(threads as i32);
}

/// Chooses the device and makes it the calling thread's current one.
///
/// # Errors
/// If the requested GPU does not exist.
pub fn device(choice: DeviceChoice) -> Result<Device, StageError> {
    let device = choose(choice)?;
    device::make_current(device).map_err(FitError::from)?;
    Ok(device)
}

fn choose(choice: DeviceChoice) -> Result<Device, StageError> {
    let gpus = tch::Cuda::device_count() as usize;
    match choice {
        DeviceChoice::Cpu => Ok(Device::Cpu),
        // Of several processes on this machine, each takes a GPU in turn.
        DeviceChoice::Auto if gpus > 0 => {
            Ok(Device::Cuda(place::from_environment()?.map_or(0, |place| place.local_rank % gpus)))
        }
        DeviceChoice::Auto => Ok(Device::Cpu),
        DeviceChoice::Cuda(index) if index < gpus => Ok(Device::Cuda(index)),
        DeviceChoice::Cuda(index) => Err(StageError::Input(format!(
            "--device cuda:{index}: {gpus} GPU(s) found; use --device cpu, or see `kdgat doctor` for what is missing"
        ))),
    }
}

/// Opens the store of the configured dataset; builds it if it does not exist or its sources have changed.
pub fn open_store(config: &Config) -> Result<Arc<Store>, StageError> {
    let (dataset, options) = (can_dataset(config)?, build_options(config));
    let store = open_or_build(&dataset, &options, &config.data.stores_dir, &BuildLines::default())?;
    if !options.validation.is_blocks() {
        eprintln!("held out for validation as a whole: {}", held_out_logs(&store).join(", "));
    }
    Ok(Arc::new(store))
}

/// The training logs whose windows only validate, as FOLDER/FILE.
fn held_out_logs(store: &Store) -> Vec<String> {
    let is_held_out = |file: &&FileEntry| file.split.train.is_empty() && !file.split.validation.is_empty();
    let files = store.manifest().files.iter().filter(is_held_out);
    files.map(|file| format!("{}/{}", file.folder, file.name)).collect()
}

/// Opens the store of the configured dataset with the features of the profile set, cut into the same windows.
pub fn open_profile_store(config: &Config) -> Result<Arc<Store>, StageError> {
    let mut config = config.clone();
    config.data.features = FeatureChoice::Profile;
    open_store(&config)
}

/// Opens the store of the configured dataset if it exists and its sources have not changed; builds, simulates and synthesises nothing.
pub fn find_store(config: &Config) -> Result<Option<Store>, StageError> {
    let simulated = simulated_folder(&config.data.stores_dir);
    let dataset = match &config.data.data {
        None if !simulated.exists() => return Ok(None),
        None => Dataset::open(&simulated)?,
        Some(_) => recorded_dataset(config)?,
    };
    let dataset = match config.data.synthetic_attacks {
        false => dataset,
        true => match synthetic::add_existing(dataset, config)? {
            Some(dataset) => dataset,
            None => return Ok(None),
        },
    };
    Ok(store::build::find(&dataset, &build_options(config), &config.data.stores_dir)?)
}

/// The digest of the contents of a store's sources; `None` for the simulated dataset, which the program creates itself.
pub fn data_digest(config: &Config) -> Result<Option<String>, StageError> {
    if config.data.data.is_none() {
        return Ok(None);
    }
    let (dataset, options) = (can_dataset(config)?, build_options(config));
    let digest = store::build::sources_digest(&dataset, &options, &config.data.stores_dir, &BuildLines::default())?;
    Ok(Some(digest))
}

/// Builds one part of the store. Returns the part's folder.
pub fn build_store_part(config: &Config, share: Share) -> Result<PathBuf, StageError> {
    let (dataset, options) = (can_dataset(config)?, build_options(config));
    Ok(build_part(&dataset, &options, share, &config.data.stores_dir, &BuildLines::default())?)
}

/// Merges the parts of a store.
pub fn merge_store_parts(config: &Config, parts: &[PathBuf]) -> Result<Store, StageError> {
    Ok(merge(parts, &config.data.stores_dir, &BuildLines::default())?)
}

/// Opens the store if it exists, or acquires the right to assemble it from parts that other processes build.
pub fn gather_store(config: &Config, parts: usize) -> Result<Gathered, StageError> {
    let (dataset, options) = (can_dataset(config)?, build_options(config));
    Ok(gather(&dataset, &options, parts, &config.data.stores_dir, &BuildLines::default())?)
}

/// The folder for the state of a build in parts, and the store's name.
pub fn gather_notes(config: &Config, parts: usize) -> Result<(PathBuf, String), StageError> {
    let (dataset, options) = (can_dataset(config)?, build_options(config));
    Ok(store::gather::notes_of(&dataset, &options, parts, &config.data.stores_dir)?)
}

/// Merges gathered parts into the store.
pub fn merge_gathered(gathering: Gathering) -> Result<Store, StageError> {
    Ok(gathering.merge(&BuildLines::default())?)
}

/// Opens the configured dataset, with its synthetic attacks if they are configured; creates both on first use.
pub fn can_dataset(config: &Config) -> Result<Dataset, StageError> {
    let dataset = recorded_dataset(config)?;
    if config.data.synthetic_attacks { synthetic::add(dataset, config) } else { Ok(dataset) }
}

/// Opens the configured dataset without synthetic attacks; creates the simulated one on first use.
pub fn recorded_dataset(config: &Config) -> Result<Dataset, StageError> {
    match &config.data.data {
        Some(data) if crate::nodes::sources::is_node_dataset(data) => Err(StageError::Input(format!(
            "--data {}: one large graph; train on it with `kdgat train` and score models with `kdgat evaluate`",
            data.display()
        ))),
        Some(data) if dataset::is_dataset(data) => Err(StageError::Input(format!(
            "--data {}: a dataset of graphs; train on it with `kdgat train` or `kdgat autoencoder`",
            data.display()
        ))),
        Some(data) => match can::catalogue::open(data, can::catalogue::data_folder().as_deref()) {
            Ok(dataset) => Ok(dataset),
            Err(error @ (CanError::NoDatasetFolders { .. } | CanError::NotAFolder { .. })) => {
                Err(match dataset::explain(data) {
                    Some(detail) => StageError::Input(format!("--data {}: {detail}", data.display())),
                    None => error.into(),
                })
            }
            Err(error) => Err(error.into()),
        },
        None => simulated(&config.data.stores_dir),
    }
}

/// The configured options for building stores.
pub fn build_options(config: &Config) -> BuildOptions {
    BuildOptions {
        window: config.data.window,
        stride: config.data.stride,
        validation_fraction: config.data.validation_fraction,
        validation: match config.data.validation {
            ValidationChoice::Blocks => Validation::Blocks,
            ValidationChoice::Logs => Validation::Logs,
            ValidationChoice::Attacks => Validation::Attacks,
        },
        max_reject_share: config.data.max_reject_share,
        format: forced_format(config.data.log_format),
        interface: config.data.interface.clone(),
        time_unit: forced_unit(config.data.time_unit),
        keep_duplicates: config.data.keep_duplicates,
        features: feature_set(config),
        threads: config.training.threads,
        memory_limit_bytes: config.memory.memory_limit.map(|size| size.0),
        ..BuildOptions::default()
    }
}

/// The configured feature set of nodes and edges.
pub fn feature_set(config: &Config) -> FeatureSet {
    match config.data.features {
        FeatureChoice::Window => FeatureSet::Window,
        FeatureChoice::Rich => FeatureSet::Rich,
        FeatureChoice::Profile => FeatureSet::Profile,
    }
}

/// The configuration's name of a feature set of CAN windows; `None` for that of a dataset of graphs.
pub fn feature_choice(features: FeatureSet) -> Option<FeatureChoice> {
    match features {
        FeatureSet::Window => Some(FeatureChoice::Window),
        FeatureSet::Rich => Some(FeatureChoice::Rich),
        FeatureSet::Profile => Some(FeatureChoice::Profile),
        FeatureSet::Columns { .. } => None,
    }
}

fn simulated_folder(stores_dir: &Path) -> PathBuf {
    stores_dir.join("simulated").join(SIMULATED)
}

/// Opens the simulated dataset; creates it on first use.
fn simulated(stores_dir: &Path) -> Result<Dataset, StageError> {
    let folder = simulated_folder(stores_dir);
    let start = Instant::now();
    if can::ensure_simulated(&can::SimulationOptions::default(), &folder)? {
        eprintln!(
            "simulated traffic of the dataset '{SIMULATED}' in {:.1} s: {}",
            start.elapsed().as_secs_f64(),
            folder.display()
        );
    }
    Ok(Dataset::open(&folder)?)
}

/// Size of logs, in bytes, from which reading them takes long enough to print a message.
const TOLD_BYTES: u64 = 1 << 30;

/// Prints the progress of a build as plain lines.
#[derive(Debug)]
struct BuildLines {
    start: Instant,
}

impl Default for BuildLines {
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl Progress for BuildLines {
    fn report(&self, event: &Event<'_>) {
        match event {
            Event::Hashing { files, bytes } if *bytes >= TOLD_BYTES => {
                eprintln!(
                    "reading {files} logs ({:.1} GB) to compute checksums: there is no graph store for them yet",
                    *bytes as f64 / 1e9
                );
            }
            Event::Waiting { lock } => {
                eprintln!("waiting for another process that is building this store ({})", lock.display())
            }
            Event::Rebuilding { reason } => eprintln!("rebuilding the graph store: {reason}"),
            Event::Started { files, bytes } => {
                eprintln!("building the graph store from {files} logs ({:.1} MB)", *bytes as f64 / 1e6);
            }
            Event::Resuming { graphs, .. } => {
                eprintln!("resuming an interrupted build: {graphs} graphs are done")
            }
            Event::FileDone { folder, name, report, .. } if report.rejected_rows() > 0 => {
                eprintln!("warning: {folder}/{name}: {}", describe_rejects(report));
            }
            Event::Checked { duplicates } if **duplicates != Duplicates::default() => {
                eprintln!("{}", describe_duplicates(duplicates));
            }
            Event::Note { text } => eprintln!("note: {text}"),
            Event::Finished { folder, graphs, bytes } => eprintln!(
                "built {graphs} graphs in {:.1} s ({:.1} MB): {}",
                self.start.elapsed().as_secs_f64(),
                *bytes as f64 / 1e6,
                folder.display()
            ),
            _ => {}
        }
    }
}

fn describe_duplicates(duplicates: &Duplicates) -> String {
    let Duplicates { train_in_validation, train_in_test, validation_in_test, .. } = duplicates;
    let treatment = match duplicates.num_dropped() {
        0 => "none is left out".to_string(),
        dropped => format!("{dropped} are left out of training (--keep-duplicates keeps them)"),
    };
    format!(
        "graphs that are in two splits: {train_in_validation} training graphs in validation, {train_in_test} training graphs in \
         tests, {validation_in_test} validation graphs in tests; {treatment}"
    )
}

/// Describes rejected rows by reason, each with the first place.
fn describe_rejects(report: &ReadReport) -> String {
    let reason = |(reason, rejections): (&can::RejectReason, &can::report::Rejections)| {
        let first = rejections.first.first().map_or(String::new(), |place| format!(", the first at {place}"));
        format!("{} rows left out: {reason}{first}", rejections.count)
    };
    report.rejected.iter().map(reason).collect::<Vec<_>>().join("; ")
}

/// The unit of times, if one is set.
pub fn forced_unit(choice: TimeUnitChoice) -> Option<TimeUnit> {
    match choice {
        TimeUnitChoice::Auto => None,
        TimeUnitChoice::Seconds => Some(TimeUnit::Seconds),
        TimeUnitChoice::Milliseconds => Some(TimeUnit::Milliseconds),
        TimeUnitChoice::Microseconds => Some(TimeUnit::Microseconds),
        TimeUnitChoice::Nanoseconds => Some(TimeUnit::Nanoseconds),
    }
}

fn forced_format(choice: LogFormat) -> Option<Format> {
    match choice {
        LogFormat::Auto => None,
        LogFormat::CanTrainAndTest => Some(Format::CanTrainAndTest),
        LogFormat::Candump => Some(Format::Candump),
        LogFormat::CandumpAscii => Some(Format::CandumpAscii),
        LogFormat::CarHacking => Some(Format::CarHacking),
        LogFormat::Challenge2020 => Some(Format::Challenge2020),
        LogFormat::PythonCan => Some(Format::PythonCan),
        LogFormat::Asc => Some(Format::Asc),
        LogFormat::Parquet => Some(Format::Parquet),
    }
}
