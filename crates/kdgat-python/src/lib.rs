//! The module `kdgat._native`: the program's own sampler of one large graph and its rows of features, for `kdgat.NodeStore`.
//!
//! Links no libtorch, and runs with any CPython from 3.9 on (abi3) and any NumPy.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kdgat_node_store::{Block, Fanout, NodeGraph, NodeStoreError, SampledLayers, store};
use numpy::{PyArray1, PyReadonlyArray1, PyReadwriteArray2};
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A mapped store that samples neighbourhoods and gathers features. Threads may share it.
#[pyclass(frozen)]
struct Graph {
    path: PathBuf,
    graph: Arc<NodeGraph>,
    /// Samplers that no thread uses. Locked only while Python's own lock is held, so that a child of a fork never finds it locked.
    idle: Mutex<Vec<Idle>>,
}

/// A sampler with the layers that it fills; both reuse their memory.
struct Idle {
    sampler: kdgat_node_store::Sampler<Arc<NodeGraph>>,
    layers: SampledLayers,
}

/// Numbers as NumPy's, i64.
type Numbers<'py> = Bound<'py, PyArray1<i64>>;

/// A layer: ends of its targets' edges `[targets + 1]`, rows of the edges' sources `[edges]`, and the number of sources.
type Layer<'py> = (Numbers<'py>, Numbers<'py>, usize);

/// A sample: numbers of the nodes in the graph `[rows]`, rows of the seeds `[seeds]`, and the layers in the order of a network.
type Sample<'py> = (Numbers<'py>, Numbers<'py>, Vec<Layer<'py>>);

#[pymethods]
impl Graph {
    /// Maps the store of a graph, whose arrays `kdgat.NodeStore` has checked. Raises `kdgat.StoreError` for a file that cannot be read, or is damaged.
    #[new]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let opened = py.detach(|| store::open_checked(&path, 0)).map_err(|error| raised(py, &error))?;
        Ok(Self { path, graph: Arc::new(opened.graph), idle: Mutex::default() })
    }

    /// Digest of the graph's contents.
    #[getter]
    fn digest(&self) -> &str {
        &self.graph.digest
    }

    /// Samples the neighbourhood of `seeds`, i64 numbers of nodes, without Python's lock. `fanouts` are those of the layers from the seeds outwards, `None`
    /// for all neighbours. Raises ValueError for a node that there is not or for more than 2^31 edges in a layer, and `kdgat.StoreError` for a damaged store.
    fn sample<'py>(
        &self,
        py: Python<'py>,
        seeds: PyReadonlyArray1<'py, i64>,
        fanouts: Vec<Option<u32>>,
        seed: u64,
        epoch: u64,
    ) -> PyResult<Sample<'py>> {
        let seeds = self.nodes(&seeds)?;
        let fanouts: Vec<Fanout> = fanouts.into_iter().map(|limit| limit.map_or(Fanout::All, Fanout::AtMost)).collect();
        let idle = self.idle.lock().pop();
        let sampled = self.guarded(py, || {
            let mut used = idle.unwrap_or_else(|| Idle {
                sampler: kdgat_node_store::Sampler::new(Arc::clone(&self.graph), &fanouts, seed),
                layers: SampledLayers::default(),
            });
            used.sampler.set(&fanouts, seed);
            let sampled = used.sampler.sample(&seeds, epoch, &mut used.layers);
            // Nothing has read the rows of the last hop's nodes.
            let (nodes, count) = (used.layers.nodes(), self.graph.num_nodes());
            let beyond = nodes.iter().find(|&&node| node as usize >= count);
            assert!(beyond.is_none(), "an edge from node {} of {count}", beyond.unwrap_or(&0));
            sampled.map(|()| used)
        })?;
        let used = sampled.map_err(|too_many| PyValueError::new_err(too_many.to_string()))?;
        let sample = arrays(py, &used.layers, seeds.len());
        self.idle.lock().push(used);
        Ok(sample)
    }

    /// Writes the features of `nodes`, i64 numbers of nodes, to `rows`, f32 `[nodes, features]`, without Python's lock. Raises ValueError for a node that
    /// there is not or for another shape, and `kdgat.StoreError` for a damaged store.
    fn gather<'py>(
        &self,
        py: Python<'py>,
        nodes: PyReadonlyArray1<'py, i64>,
        mut rows: PyReadwriteArray2<'py, f32>,
    ) -> PyResult<()> {
        let nodes = self.nodes(&nodes)?;
        let (features, rows) = (&self.graph.features, rows.as_slice_mut()?);
        if rows.len() != nodes.len() * features.columns() {
            let text = format!(
                "{} numbers for the rows of {} nodes: expected {} for each",
                rows.len(),
                nodes.len(),
                features.columns()
            );
            return Err(PyValueError::new_err(text));
        }
        self.guarded(py, || features.write_rows(&nodes, rows))
    }
}

impl Graph {
    /// Numbers of nodes as the graph has them.
    fn nodes(&self, numbers: &PyReadonlyArray1<'_, i64>) -> PyResult<Vec<u32>> {
        let count = self.graph.num_nodes();
        let node = |number: &i64| {
            let node = u32::try_from(*number).ok().filter(|&node| (node as usize) < count);
            node.ok_or_else(|| {
                PyValueError::new_err(format!("node {number}: expected a number from 0 to {}", count as i64 - 1))
            })
        };
        numbers.as_slice()?.iter().map(node).collect()
    }

    /// Runs what reads the store, without Python's lock. A large store is not checked when it is opened: a number in it may lead outside of its arrays.
    fn guarded<T: Send>(&self, py: Python<'_>, read: impl FnOnce() -> T + Send) -> PyResult<T> {
        let found = py.detach(|| catch_unwind(AssertUnwindSafe(read)));
        found.map_err(|panic| raised(py, &damaged(&self.path, &*panic)))
    }
}

/// The arrays of a sample.
fn arrays<'py>(py: Python<'py>, sampled: &SampledLayers, seeds: usize) -> Sample<'py> {
    let nodes = numbers(py, sampled.nodes().iter().copied());
    let seed_rows = match sampled.seed_rows() {
        Some(rows) => numbers(py, rows.iter().copied()),
        // At most as many as nodes.
        None => numbers(py, 0..seeds as u32),
    };
    let layer = |block: &Block| {
        let ends = numbers(py, block.row_pointers().iter().copied());
        (ends, numbers(py, block.all_sources().iter().copied()), block.num_sources())
    };
    (nodes, seed_rows, sampled.layers().map(layer).collect())
}

/// Numbers as an array of NumPy.
fn numbers<'py>(py: Python<'py>, values: impl ExactSizeIterator<Item = impl Into<i64>>) -> Numbers<'py> {
    // Moved, not copied: an array of NumPy would be filled with zeros first.
    PyArray1::from_vec(py, values.map(Into::into).collect())
}

/// The error of a store in which the sampler has left an array.
fn damaged(path: &Path, panic: &(dyn Any + Send)) -> NodeStoreError {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a number leads outside of its arrays");
    NodeStoreError::Damaged { path: path.to_owned(), detail: text.to_owned() }
}

/// The exception of the package for an error of a store.
fn raised(py: Python<'_>, error: &NodeStoreError) -> PyErr {
    let kind = py.import("kdgat.mapped_file").and_then(|module| module.getattr("StoreError"));
    match kind.and_then(|kind| kind.call1((error.to_string(),))) {
        Ok(exception) => PyErr::from_value(exception),
        Err(failed) => failed,
    }
}

/// One large graph of the program, sampled and gathered.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // A panic arrives as an exception with its message; the hook would print it as well.
    panic::set_hook(Box::new(|_| {}));
    module.add_class::<Graph>()
}
