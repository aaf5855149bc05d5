//! Prefetches batches on worker threads and delivers them in order.
//!
//! Thread `k` of `n` makes batches `k`, `k + n`, `k + 2n`… and puts them into its own bounded channel; the training
//! loop takes from the channels in turn. The order is therefore fixed, and at most `prefetch_batches` wait.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use kdgat_torch::allocator::{self, Buffers, Phase};
use kdgat_torch::parallel::compute_alone;

use super::assemble::{AssembleOptions, Assembler};
use super::deviation_cache::DeviationCache;
use super::padding::SizeClass;
use super::shuffle::Shuffle;
use super::{Batch, ResidentGraphs, Store, StoreError, UnknownDrop};

/// Longest time for which a thread retries a batch that runs out of memory.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest time if the training loop waits for this very batch and memory usage does not change: then the holder of the memory
/// waits, too.
const IDLE_PATIENCE: Duration = Duration::from_secs(2);

/// Source of batches: a store of graphs, or one large graph.
pub trait BatchSource: Send + Sync {
    /// The file or folder, for errors.
    fn path(&self) -> &Path;

    /// Makes the batches of an epoch on one thread.
    fn maker(&self, epoch: u64) -> Box<dyn BatchMaker + '_>;
}

/// Makes batches on one thread; may reuse buffers.
pub trait BatchMaker {
    /// Makes the batch of these graphs, or of these nodes of one large graph.
    ///
    /// # Errors
    /// An unreadable source, or no memory for the tensors; then the call can be repeated.
    fn make(&mut self, graphs: &[u64]) -> Result<Batch, StoreError>;
}

/// The graphs of a store.
#[derive(Debug)]
struct StoreBatches {
    store: Arc<Store>,
    assemble: AssembleOptions,
    deviations: Option<Arc<DeviationCache>>,
}

impl BatchSource for StoreBatches {
    fn path(&self) -> &Path {
        self.store.path()
    }

    fn maker(&self, epoch: u64) -> Box<dyn BatchMaker + '_> {
        let mut assemble = self.assemble.clone();
        if let Some(drop) = &mut assemble.unknown_drop {
            drop.epoch = epoch;
        }
        if let Some(displacement) = assemble.space.as_mut().and_then(|space| space.displacement.as_mut()) {
            displacement.epoch = epoch;
        }
        Box::new(StoreMaker { store: &self.store, assemble, assembler: Assembler::caching(self.deviations.clone()) })
    }
}

struct StoreMaker<'a> {
    store: &'a Store,
    assemble: AssembleOptions,
    assembler: Assembler,
}

impl BatchMaker for StoreMaker<'_> {
    fn make(&mut self, graphs: &[u64]) -> Result<Batch, StoreError> {
        self.assembler.assemble(self.store, graphs, &self.assemble)
    }
}

/// The graphs of a store on a device.
#[derive(Clone)]
struct DeviceBatches {
    graphs: Arc<ResidentGraphs>,
    unknown_drop: Option<UnknownDrop>,
    pads: bool,
}

impl BatchSource for DeviceBatches {
    fn path(&self) -> &Path {
        self.graphs.path()
    }

    fn maker(&self, epoch: u64) -> Box<dyn BatchMaker + '_> {
        let unknown_drop = self.unknown_drop.map(|drop| UnknownDrop { epoch, ..drop });
        Box::new(DeviceMaker { graphs: &self.graphs, unknown_drop, pads: self.pads })
    }
}

struct DeviceMaker<'a> {
    graphs: &'a ResidentGraphs,
    unknown_drop: Option<UnknownDrop>,
    pads: bool,
}

impl BatchMaker for DeviceMaker<'_> {
    fn make(&mut self, graphs: &[u64]) -> Result<Batch, StoreError> {
        self.graphs.batch(graphs, self.unknown_drop, self.pads)
    }
}

/// The batches of another source, each with its [padded form](Batch::padded_form).
struct PaddedBatches(Arc<dyn BatchSource>);

struct PaddingMaker<'a>(Box<dyn BatchMaker + 'a>);

impl BatchSource for PaddedBatches {
    fn path(&self) -> &Path {
        self.0.path()
    }

    fn maker(&self, epoch: u64) -> Box<dyn BatchMaker + '_> {
        Box::new(PaddingMaker(self.0.maker(epoch)))
    }
}

impl BatchMaker for PaddingMaker<'_> {
    fn make(&mut self, graphs: &[u64]) -> Result<Batch, StoreError> {
        let mut batch = self.0.make(graphs)?;
        let failed = |source| StoreError::Tensor { tensor: "padding", source };
        batch.padded_form = Some(Box::new(batch.padded(SizeClass::of(&batch)).map_err(failed)?));
        Ok(batch)
    }
}

/// Options for prefetching batches.
#[derive(Debug, Clone)]
pub struct LoaderOptions {
    /// Options of assembling; the epoch of `unknown_drop` and of displacements is set to that of [`Loader::epoch`].
    pub assemble: AssembleOptions,
    /// Number of threads (at least one is used).
    pub workers: usize,
    /// Largest number of finished batches waiting over all threads (at least one per thread).
    pub prefetch_batches: usize,
}

/// Shuffles the graphs and cuts them into batches of `batch_graphs` (the last one may be smaller).
///
/// A pure function: the same arguments give the same batches on every machine.
pub fn shuffled_batches(graphs: &[u64], batch_graphs: usize, seed: u64, epoch: u64) -> Vec<Vec<u64>> {
    Shuffle::FULL.batches(graphs, batch_graphs, seed, epoch)
}

/// Makes batches of one source.
#[derive(Clone)]
pub struct Loader {
    source: Arc<dyn BatchSource>,
    workers: usize,
    prefetch_batches: usize,
    buffers: Option<Arc<Buffers>>,
    /// The source again, if it is on a device.
    on_device: Option<DeviceBatches>,
}

impl Loader {
    /// Creates a loader over `store`; its threads live for one epoch.
    pub fn start(store: Arc<Store>, options: LoaderOptions) -> Self {
        Self::of_store(store, options, None)
    }

    /// The same for several epochs of the same graphs: what has to be computed for a graph is computed in the first one and cached in a file.
    pub fn for_epochs(store: Arc<Store>, options: LoaderOptions) -> Self {
        let deviations = DeviationCache::new(&store).map(Arc::new);
        Self::of_store(store, options, deviations)
    }

    fn of_store(store: Arc<Store>, options: LoaderOptions, deviations: Option<Arc<DeviationCache>>) -> Self {
        let LoaderOptions { assemble, workers, prefetch_batches } = options;
        Self::over(Arc::new(StoreBatches { store, assemble, deviations }), workers, prefetch_batches)
    }

    /// Creates a loader over graphs on a device. Their batches are made there when they are asked for, on the thread that asks: it only queues
    /// work, and no batch waits in the device's memory.
    pub fn on_device(graphs: Arc<ResidentGraphs>, unknown_drop: Option<UnknownDrop>) -> Self {
        Self::of_device(DeviceBatches { graphs, unknown_drop, pads: false })
    }

    fn of_device(batches: DeviceBatches) -> Self {
        Self { on_device: Some(batches.clone()), ..Self::over(Arc::new(batches), 1, 1) }
    }

    /// Bytes of the graphs that stay on the device; `None` if batches are made on the host.
    pub fn resident_bytes(&self) -> Option<u64> {
        self.on_device.as_ref().map(|batches| batches.graphs.bytes())
    }

    /// Creates a loader over any source, with this number of threads and of finished batches waiting over all threads (at least
    /// one of each).
    pub fn over(source: Arc<dyn BatchSource>, workers: usize, prefetch_batches: usize) -> Self {
        Self { source, workers, prefetch_batches, buffers: None, on_device: None }
    }

    /// The same loader, which also makes the padded form of each batch, for CUDA graphs.
    pub fn padding(self) -> Self {
        if let Some(batches) = self.on_device {
            return Self::of_device(DeviceBatches { pads: true, ..batches });
        }
        Self { source: Arc::new(PaddedBatches(self.source)), ..self }
    }

    /// The same loader, whose threads place the tensors of each batch in one of these buffers. There should be as many as batches are in
    /// memory at a time; a further batch gets memory of its own.
    pub fn with_buffers(self, buffers: Option<Arc<Buffers>>) -> Self {
        Self { buffers, ..self }
    }

    /// Starts prefetching the given batches (positions in the store, or numbers of nodes).
    ///
    /// The first error ends the iteration, unless the batch [can be made again](EpochBatches::can_repeat). Dropping the iterator stops the threads
    /// and waits for them.
    pub fn epoch(&self, batches: Vec<Vec<u64>>, epoch: u64) -> EpochBatches {
        if self.on_device.is_some() {
            return EpochBatches::Here { source: Arc::clone(&self.source), batches: batches.into(), epoch };
        }
        let workers = self.workers.clamp(1, batches.len().max(1));
        let waiting = (self.prefetch_batches / workers).max(1);
        let (source, buffers) = (Arc::clone(&self.source), self.buffers.clone());
        let work = Arc::new(Work { source, batches, epoch, buffers });
        let mut epoch = Threads {
            remaining: work.batches.len(),
            next: 0,
            channels: Vec::new(),
            awaited: Vec::new(),
            threads: Vec::new(),
        };
        for worker in 0..workers {
            // Each thread holds one finished batch beyond the channel's capacity while it waits to send it.
            let (sender, receiver) = bounded(waiting - 1);
            let (work, awaited) = (Arc::clone(&work), Arc::new(AtomicBool::new(false)));
            epoch.awaited.push(Arc::clone(&awaited));
            let run = move || work.run(worker, workers, &sender, &awaited);
            match std::thread::Builder::new().name(format!("kdgat-loader-{worker}")).spawn(run) {
                Ok(thread) => {
                    epoch.threads.push(thread);
                    epoch.channels.push(receiver);
                }
                Err(source) => epoch.channels.push(only_error(self.source.path(), source)),
            }
        }
        EpochBatches::Ahead(epoch)
    }
}

/// The channel of a thread that could not be started: it delivers only the error.
fn only_error(path: &Path, source: std::io::Error) -> Receiver<Result<Batch, StoreError>> {
    let (sender, receiver) = bounded(1);
    let path = path.to_path_buf();
    // The channel has room for one message, and the receiver exists.
    let _ = sender.send(Err(StoreError::Io { action: "start a loader thread for", path, source }));
    receiver
}

struct Work {
    source: Arc<dyn BatchSource>,
    batches: Vec<Vec<u64>>,
    epoch: u64,
    buffers: Option<Arc<Buffers>>,
}

impl Work {
    fn run(&self, worker: usize, workers: usize, sender: &Sender<Result<Batch, StoreError>>, awaited: &AtomicBool) {
        let _phase = allocator::enter_phase(Phase::Data);
        compute_alone();
        let mut maker = self.source.maker(self.epoch);
        let share = self.batches.iter().skip(worker).step_by(workers);
        hand_over(worker, share, sender, |graphs| {
            retry_on_oom(awaited, || {
                let _buffer = self.buffers.as_ref().map(|buffers| buffers.enter());
                maker.make(graphs)
            })
        });
    }
}

/// Retries making a batch when out of memory: the training loop frees memory after its step, unless it waits for this very batch
/// (`awaited`).
fn retry_on_oom<T>(awaited: &AtomicBool, mut make: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
    let out_of_memory =
        |error: &StoreError| matches!(error, StoreError::Tensor { source, .. } if allocator::is_out_of_memory(source));
    let start = Instant::now();
    let (mut in_use, mut idle_since) = (allocator::stats().current, start);
    loop {
        match make() {
            Err(error) if out_of_memory(&error) && start.elapsed() < PATIENCE => {
                let now_in_use = allocator::stats().current;
                if now_in_use != in_use || !awaited.load(Ordering::Acquire) {
                    (in_use, idle_since) = (now_in_use, Instant::now());
                } else if idle_since.elapsed() >= IDLE_PATIENCE {
                    return Err(error);
                }
                allocator::release_cached();
                std::thread::sleep(Duration::from_millis(20));
            }
            outcome => return outcome,
        }
    }
}

/// Makes and sends batches until the last one, an error, a panic, or the receiver is dropped.
fn hand_over<'a>(
    worker: usize,
    share: impl Iterator<Item = &'a Vec<u64>>,
    sender: &Sender<Result<Batch, StoreError>>,
    mut make: impl FnMut(&[u64]) -> Result<Batch, StoreError>,
) {
    for graphs in share {
        let result = catch_unwind(AssertUnwindSafe(|| make(graphs)))
            .unwrap_or_else(|payload| Err(StoreError::panic(format!("loader thread {worker}"), payload.as_ref())));
        let failed = result.is_err();
        if sender.send(result).is_err() || failed {
            return;
        }
    }
}

/// The batches of an epoch, in order.
pub enum EpochBatches {
    /// Made ahead by threads.
    Ahead(Threads),
    /// Made when they are asked for. After an error the same batch is made again if it is asked for again.
    Here {
        /// Their maker.
        source: Arc<dyn BatchSource>,
        /// The graphs of the batches to come.
        batches: VecDeque<Vec<u64>>,
        /// The epoch.
        epoch: u64,
    },
}

impl EpochBatches {
    /// True if a batch for which there was no memory may be asked for again.
    pub fn can_repeat(&self) -> bool {
        matches!(self, Self::Here { .. })
    }
}

impl Iterator for EpochBatches {
    type Item = Result<Batch, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Ahead(threads) => threads.next(),
            Self::Here { source, batches, epoch } => {
                let _phase = allocator::enter_phase(Phase::Data);
                let made = source.maker(*epoch).make(batches.front()?);
                if made.is_ok() {
                    batches.pop_front();
                }
                Some(made)
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let remaining = match self {
            Self::Ahead(threads) => threads.remaining,
            Self::Here { batches, .. } => batches.len(),
        };
        (remaining, Some(remaining))
    }
}

impl ExactSizeIterator for EpochBatches {}

/// Threads that make the batches of an epoch.
#[derive(Debug)]
pub struct Threads {
    remaining: usize,
    next: usize,
    channels: Vec<Receiver<Result<Batch, StoreError>>>,
    /// For each thread, true while its next batch is awaited.
    awaited: Vec<Arc<AtomicBool>>,
    threads: Vec<JoinHandle<()>>,
}

impl Threads {
    fn next(&mut self) -> Option<Result<Batch, StoreError>> {
        if self.remaining == 0 {
            return None;
        }
        let worker = self.next % self.channels.len();
        self.next += 1;
        self.remaining -= 1;
        if let Some(awaited) = self.awaited.get(worker) {
            awaited.store(true, Ordering::Release);
        }
        let received = self.channels[worker].recv();
        if let Some(awaited) = self.awaited.get(worker) {
            awaited.store(false, Ordering::Release);
        }
        let result = received.unwrap_or_else(|_| {
            let thread = format!("loader thread {worker}");
            Err(StoreError::Panic { thread, message: "it ended before its last batch".to_string() })
        });
        if result.is_err() {
            self.remaining = 0;
        }
        Some(result)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // Without receivers the threads' next `send` fails, and they end.
        self.channels.clear();
        for thread in self.threads.drain(..) {
            // `next` has already reported a panic outside of assembling as a missing batch.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> StoreError {
        let source = tch::TchError::Torch("kdgat: host memory limit of 1 bytes: it would be exceeded".to_owned());
        assert!(allocator::is_out_of_memory(&source));
        StoreError::Tensor { tensor: "x", source }
    }

    #[test]
    fn a_batch_that_is_waited_for_is_soon_given_up_and_another_is_not() {
        let start = Instant::now();
        retry_on_oom(&AtomicBool::new(true), || Err::<(), _>(refused())).unwrap_err();
        // Other tests allocate at the same time, so it can take longer.
        assert!((IDLE_PATIENCE..PATIENCE + IDLE_PATIENCE).contains(&start.elapsed()));
        let start = Instant::now();
        let later = || if start.elapsed() > IDLE_PATIENCE + IDLE_PATIENCE / 4 { Ok(7) } else { Err(refused()) };
        assert_eq!(retry_on_oom(&AtomicBool::new(false), later).unwrap(), 7);
    }

    #[test]
    fn a_panic_reaches_the_consumer_with_its_message() {
        let (sender, receiver) = bounded(8);
        hand_over(3, [vec![1], vec![2]].iter(), &sender, |graphs| panic!("no graph {}", graphs[0]));
        drop(sender);
        let messages: Vec<String> = receiver.iter().map(|result| result.unwrap_err().to_string()).collect();
        assert_eq!(messages, ["loader thread 3 stopped with a panic: no graph 1; please report it"]);
    }
}
