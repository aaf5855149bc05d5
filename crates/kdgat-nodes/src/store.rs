//! The store of a source: built when there is none, and opened.

use std::fs;
use std::path::{Path, PathBuf};

use kdgat_node_store::NodeStoreError;
use kdgat_node_store::store::header::FORMAT_VERSION;

use crate::NodesError;
use crate::build::{self, Build, DEFAULT_MEMORY};
use crate::node_graph::NodeGraph;
use crate::sources::{self, GraphOptions, SourceNotes, name_of, source_digest};

pub use kdgat_node_store::provenance::Provenance;
pub use kdgat_node_store::store::*;

/// Characters of a dataset's name in the name of its store.
const NAME_CHARACTERS: usize = 80;
/// Hexadecimal digits of the digest in the name of a store.
const DIGEST_DIGITS: usize = 12;

/// Opens the store of a source under `stores_dir`; reads the source and builds the store if there is none. True if it was
/// built. A source that is a store itself is opened in place.
///
/// Several processes may build the same store: the last one replaces the equal file of the others, which stays mapped
/// there.
///
/// # Errors
/// A source that cannot be read, a full or read-only disk, or [`NodeStoreError::Damaged`].
pub fn open_or_build(
    source: &Path,
    options: &GraphOptions,
    stores_dir: &Path,
) -> Result<(NodeGraph, SourceNotes, bool), NodesError> {
    let limits = Build { memory: DEFAULT_MEMORY, threads: 1, progress: &() };
    let OpenStore { graph, notes, built, .. } = open_or_build_with(source, options, stores_dir, &limits)?;
    Ok((graph, notes, built))
}

/// The store of a source.
#[derive(Debug)]
pub struct OpenStore {
    /// The graph.
    pub graph: NodeGraph,
    /// Facts about the source.
    pub notes: SourceNotes,
    /// The file.
    pub path: PathBuf,
    /// True if the store was built now.
    pub built: bool,
}

/// Like [`open_or_build`], with limits and events of a build.
///
/// A folder of the Open Graph Benchmark of which not only the largest component is kept is never held in memory; its build can be
/// resumed, and several processes wait for the first.
///
/// # Errors
/// Those of [`open_or_build`], [`NodesError::Space`] or [`NodesError::Stopped`].
pub fn open_or_build_with(
    source: &Path,
    options: &GraphOptions,
    stores_dir: &Path,
    limits: &Build<'_>,
) -> Result<OpenStore, NodesError> {
    if sources::is_store(source) {
        let (graph, notes) = open_with_notes(source)?;
        return Ok(OpenStore { graph, notes, path: source.to_owned(), built: false });
    }
    let digest = source_digest(source)?;
    let path = path_of(source, &digest, options, stores_dir);
    let built = !path.try_exists().map_err(NodesError::io("open", &path))?;
    if !built {
        build::remove_rest(&path)?;
    }
    if built {
        fs::create_dir_all(stores_dir).map_err(NodesError::io("create", stores_dir))?;
        match sources::stream(source, options, &digest)? {
            Some(stream) => build::build(&stream, &path, limits)?,
            None => {
                let (graph, notes) = sources::read(source, options)?;
                let provenance = Provenance { source_digest: digest.clone(), options: options.clone(), notes };
                write(&graph, provenance, &path)?;
            }
        }
    }
    let Opened { graph, header } = open_checked(&path, CHECKED_BYTES)?;
    let Provenance { source_digest, options: built_with, notes } = header.provenance;
    match source_digest == digest && built_with == *options {
        true => Ok(OpenStore { graph, notes, path, built }),
        false => Err(NodeStoreError::Damaged { path, detail: "it is the store of another source".to_owned() }.into()),
    }
}

/// Path of the store of a source under `stores_dir`, built or not.
///
/// # Errors
/// A source that cannot be read.
pub fn store_path(source: &Path, options: &GraphOptions, stores_dir: &Path) -> Result<PathBuf, NodesError> {
    Ok(path_of(source, &source_digest(source)?, options, stores_dir))
}

fn path_of(source: &Path, source_digest: &str, options: &GraphOptions, stores_dir: &Path) -> PathBuf {
    let key = serde_json::json!([FORMAT_VERSION, options, source_digest]).to_string();
    let digest = blake3::hash(key.as_bytes()).to_hex();
    let name: String = name_of(source).chars().take(NAME_CHARACTERS).collect();
    stores_dir.join(format!("{name}-{}.{EXTENSION}", &digest[..DIGEST_DIGITS]))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io;
    use std::os::unix::fs::FileExt;
    use std::process::{Command, Stdio};
    use std::sync::Barrier;

    use proptest::prelude::*;

    use super::*;
    use crate::node_graph::Features;
    use crate::prepare::prepare;
    use crate::sampler::{Fanout, SampledLayers, Sampler};
    use crate::sources::testing::{Kind, SmallGraph, assert_same, small_graphs};
    use crate::test_graphs::random_graph;

    fn provenance() -> Provenance {
        let notes = SourceNotes { ignored_columns: vec!["edges.csv e_\"ü\"".to_owned()], ..SourceNotes::default() };
        Provenance { source_digest: "0".repeat(64), options: GraphOptions::default(), notes }
    }

    fn example(kind: Kind) -> NodeGraph {
        let raw = SmallGraph { kind, ..SmallGraph::example() }.raw(&GraphOptions::default());
        prepare(raw, &GraphOptions::default()).0
    }

    fn is_damaged(error: &NodeStoreError) -> bool {
        matches!(error, NodeStoreError::Damaged { .. }) && error.is_input()
    }

    #[test]
    fn rows_that_are_read_ahead_are_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("graph.kdgat-nodes");
        write(&random_graph(3000, 40_000, 7), provenance(), &path).unwrap();
        let graph = open(&path).unwrap();
        let sampled = |fanouts: &[Fanout]| {
            let mut layers = SampledLayers::default();
            Sampler::new(&graph, fanouts, 3).sample(&(0..600).collect::<Vec<_>>(), 1, &mut layers).unwrap();
            layers.nodes().to_vec()
        };
        let fanouts = [[Fanout::AtMost(4), Fanout::AtMost(2)], [Fanout::All, Fanout::AtMost(1)]];
        let expected = fanouts.each_ref().map(|fanouts| sampled(fanouts));
        assert!(!graph.sources.is_prefetched() && graph.edge_bytes() > 8 * 3000);
        graph.read_edges_randomly().unwrap();
        assert!(graph.clone().sources.is_prefetched() && graph.row_pointers.is_prefetched(), "all handles are told");
        assert_eq!(fanouts.each_ref().map(|fanouts| sampled(fanouts)), expected);
        graph.read_edges_in_order().unwrap();
        assert!(!graph.sources.is_prefetched() && !graph.row_pointers.is_prefetched());
        assert_eq!(fanouts.each_ref().map(|fanouts| sampled(fanouts)), expected);
    }

    #[test]
    fn every_flipped_byte_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("graph.kdgat-nodes");
        write(&example(Kind::Sparse), provenance(), &path).unwrap();
        verify(&path).unwrap();
        let whole = fs::read(&path).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        for (position, byte) in (0..).zip(&whole) {
            file.write_all_at(&[byte ^ (1 << (position % 8))], position).unwrap();
            let error = verify(&path).expect_err("a flipped byte");
            assert!(is_damaged(&error), "byte {position}: {error}");
            assert!(error.to_string().contains("graph.kdgat-nodes is damaged"), "{error}");
            assert!(open(&path).is_err(), "byte {position}: small stores are checked when they are opened");
            file.write_all_at(&[*byte], position).unwrap();
        }
        verify(&path).unwrap();
        for length in (0..whole.len()).step_by(509) {
            fs::write(&path, &whole[..length]).unwrap();
            assert!(is_damaged(&open_checked(&path, 0).err().unwrap()), "{length} bytes");
        }
        fs::write(&path, [&whole[..], &[0; 4096]].concat()).unwrap();
        assert!(is_damaged(&open_checked(&path, 0).err().unwrap()), "an added page");
    }

    #[test]
    fn a_store_of_an_earlier_version_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("graph.kdgat-nodes");
        write(&example(Kind::Dense), provenance(), &path).unwrap();
        File::options().write(true).open(&path).unwrap().write_all_at(&1u32.to_le_bytes(), 8).unwrap();
        let error = open(&path).unwrap_err();
        assert!(error.is_input());
        let text = error.to_string();
        assert!(
            text.contains("has format version 1, this program reads version 2: build it again with `kdgat data build`"),
            "{text}"
        );
    }

    #[test]
    fn the_header_of_a_large_store_is_checked_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("graph.kdgat-nodes");
        let graph = example(Kind::Dense);
        write(&graph, provenance(), &path).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        let last = file.metadata().unwrap().len() - 4096;
        file.write_all_at(&[9], last).unwrap();
        assert!(open_checked(&path, 0).is_ok());
        let error = verify(&path).unwrap_err().to_string();
        assert!(error.contains("the checksum of array original is wrong"), "{error}");
        file.write_all_at(b"x", 100).unwrap();
        let error = open_checked(&path, 0).err().unwrap().to_string();
        assert!(error.contains("the checksum of its header is wrong"), "{error}");
    }

    #[test]
    fn inconsistent_values_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("graph.kdgat-nodes");
        let sparse = example(Kind::Sparse);
        let (nodes, edges) = (sparse.num_nodes(), sparse.num_edges());
        let (pointers, sources) = (sparse.row_pointers.to_vec(), sparse.sources.to_vec());
        let of = |change: &dyn Fn(&mut NodeGraph)| {
            let mut graph = sparse.clone();
            change(&mut graph);
            write(&graph, provenance(), &path).unwrap();
            open(&path).unwrap_err().to_string()
        };
        let with_pointer = |at: usize, value: u64| {
            let mut pointers = pointers.clone();
            pointers[at] = value;
            of(&|graph| graph.row_pointers = pointers.clone().into())
        };
        let with_source = |value: u32| {
            let mut sources = sources.clone();
            sources[edges - 1] = value;
            of(&|graph| graph.sources = sources.clone().into())
        };
        for (error, expected) in [
            (with_pointer(0, 1), "indptr goes from Some(1)"),
            (with_pointer(nodes, 0), "indptr goes from Some(0) to Some(0), expected 0 to"),
            (with_pointer(1, edges as u64 + 1), "the pointers of indices do not ascend after row 0"),
            (with_source(nodes as u32), "of indices does not ascend below"),
            (of(&|graph| graph.labels = vec![-2; nodes].into()), "labels has -2, expected -1 to"),
            (of(&|graph| graph.task.classes = 1), "labels has 2, expected -1 to 0"),
            (of(&|graph| graph.given_split = Some(vec![4; nodes].into())), "split has 4, expected 0 to 3"),
            (of(&|graph| graph.labels = vec![0; nodes - 1].into()), "array indptr has"),
        ] {
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }

    #[test]
    fn a_store_is_built_once_for_its_source_and_options() {
        let folder = tempfile::tempdir().unwrap();
        let (source, stores) = (folder.path().join("small.npz"), folder.path().join("stores"));
        SmallGraph::example().write_npz(&source);
        let options = GraphOptions::default();
        let (built, notes, is_new) = open_or_build(&source, &options, &stores).unwrap();
        assert!(is_new);
        let (opened, same_notes, is_new) = open_or_build(&source, &options, &stores).unwrap();
        assert!(!is_new);
        let (read, read_notes) = sources::read(&source, &options).unwrap();
        assert_same(&built, &opened);
        assert_same(&read, &opened);
        assert_eq!((&notes, &same_notes), (&read_notes, &read_notes));
        let path = store_path(&source, &options, &stores).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let digest = name.strip_prefix("small-").and_then(|rest| rest.strip_suffix(".kdgat-nodes")).unwrap();
        assert!(digest.len() == 12 && digest.bytes().all(|digit| digit.is_ascii_hexdigit()), "{name}");
        let directed = GraphOptions { undirected: false, ..options.clone() };
        assert!(open_or_build(&source, &directed, &stores).unwrap().2);
        SmallGraph { labels: vec![1; 6], ..SmallGraph::example() }.write_npz(&source);
        assert!(open_or_build(&source, &options, &stores).unwrap().2);
        assert_eq!(fs::read_dir(&stores).unwrap().count(), 3);
        assert_same(&opened, &open(&path).unwrap());
    }

    #[test]
    fn damaged_and_exchanged_stores_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let (source, stores) = (folder.path().join("small.npz"), folder.path().join("stores"));
        SmallGraph::example().write_npz(&source);
        let options = GraphOptions::default();
        let directed = GraphOptions { undirected: false, ..options.clone() };
        open_or_build(&source, &options, &stores).unwrap();
        let path = store_path(&source, &options, &stores).unwrap();
        fs::copy(&path, store_path(&source, &directed, &stores).unwrap()).unwrap();
        let NodesError::Store(error) = open_or_build(&source, &directed, &stores).unwrap_err() else { panic!() };
        assert!(is_damaged(&error) && error.to_string().contains("the store of another source"), "{error}");
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, bytes).unwrap();
        let NodesError::Store(error) = open_or_build(&source, &options, &stores).unwrap_err() else { panic!() };
        assert!(is_damaged(&error) && error.to_string().contains("delete it"), "{error}");
        fs::remove_file(&path).unwrap();
        assert!(open_or_build(&source, &options, &stores).unwrap().2);
    }

    #[test]
    fn concurrent_builds_give_one_store() {
        let folder = tempfile::tempdir().unwrap();
        let (source, stores) = (folder.path().join("small.npz"), folder.path().join("stores"));
        SmallGraph::example().write_npz(&source);
        let (expected, _) = sources::read(&source, &GraphOptions::default()).unwrap();
        let together = Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    together.wait();
                    let (graph, ..) = open_or_build(&source, &GraphOptions::default(), &stores).unwrap();
                    assert_same(&graph, &expected);
                });
            }
        });
        assert_eq!(fs::read_dir(&stores).unwrap().count(), 1);
    }

    /// Set to the path of a store in the process that is killed.
    const KILLED_WRITER: &str = "KDGAT_KILLED_WRITER";

    #[test]
    fn a_killed_write_leaves_the_old_store_or_none() {
        if let Some(path) = std::env::var_os(KILLED_WRITER) {
            let mut graph = example(Kind::Dense);
            let (columns, nodes) = (1 << 20, graph.num_nodes());
            graph.features = Features::Dense { columns, values: vec![0.5; columns * nodes].into() };
            loop {
                write(&graph, provenance(), Path::new(&path)).unwrap();
                fs::remove_file(&path).unwrap();
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("graph.kdgat-nodes");
        let test = "store::tests::a_killed_write_leaves_the_old_store_or_none";
        let mut writer = Command::new(std::env::current_exe().unwrap());
        let writer = writer.args(["--exact", test, "--nocapture"]).env(KILLED_WRITER, &path);
        let mut writer = writer.stdout(Stdio::null()).spawn().unwrap();
        let names = || fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        while !names().any(|name| name.to_string_lossy().ends_with(".partial")) {
            assert!(writer.try_wait().unwrap().is_none(), "the writer ended");
            std::thread::yield_now();
        }
        writer.kill().unwrap();
        writer.wait().unwrap();
        // The writer may have renamed or removed the file since it was seen.
        match open(&path) {
            Ok(_) => verify(&path).unwrap(),
            Err(NodeStoreError::Io { source, .. }) => assert_eq!(source.kind(), io::ErrorKind::NotFound),
            Err(other) => panic!("{other}"),
        }
        let graph = example(Kind::Half);
        write(&graph, provenance(), &path).unwrap();
        assert_same(&open(&path).unwrap(), &graph);
    }

    #[test]
    fn folders_that_cannot_be_written_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let (source, stores) = (folder.path().join("small.npz"), folder.path().join("stores"));
        SmallGraph::example().write_npz(&source);
        fs::write(&stores, "a file").unwrap();
        let error = open_or_build(&source, &GraphOptions::default(), &stores).unwrap_err();
        assert!(error.to_string().contains("stores"), "{error}");
        let absent = open(&folder.path().join("absent.kdgat-nodes")).unwrap_err();
        assert!(matches!(absent, NodeStoreError::Io { .. }), "{absent}");
    }

    proptest! {
        #[test]
        fn a_store_returns_the_graph_bit_by_bit(small in small_graphs(), undirected: bool, largest_component: bool) {
            let half = small.kind == Kind::Half;
            let options = GraphOptions { undirected, largest_component, half, ..GraphOptions::default() };
            let (graph, notes) = prepare(small.raw(&options), &options);
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("graph.kdgat-nodes");
            let provenance = Provenance { source_digest: "1".repeat(64), options, notes };
            write(&graph, provenance.clone(), &path).unwrap();
            verify(&path).unwrap();
            let opened = open_checked(&path, CHECKED_BYTES).unwrap();
            assert_same(&opened.graph, &graph);
            prop_assert_eq!(opened.header.provenance, provenance);
            assert_same(&open_checked(&path, 0).unwrap().graph, &graph);
        }
    }
}
