//! Builds as streams beside builds in memory: the same bytes, whatever the limits and interruptions.

use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use super::*;
use crate::citations::{CitationOptions, simulate_citations};
use crate::sources::testing::{Kind, SmallGraph, small_graphs};
use crate::sources::{read, source_digest};
use crate::store::{open_or_build_with, write};

/// Stops at the event with this number.
struct StopsAt {
    events: AtomicU64,
    stop: u64,
    /// The folder whose largest size is measured.
    folder: Option<PathBuf>,
    largest: AtomicU64,
    needed: AtomicU64,
}

impl StopsAt {
    fn new(stop: u64) -> Self {
        Self { events: AtomicU64::new(0), stop, folder: None, largest: AtomicU64::new(0), needed: AtomicU64::new(0) }
    }
}

impl Progress for StopsAt {
    fn report(&self, event: &Event<'_>) {
        self.events.fetch_add(1, Ordering::SeqCst);
        if let Event::Started { needed, .. } = event {
            self.needed.store(*needed, Ordering::SeqCst);
        }
        if let Some(folder) = &self.folder {
            let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
            let size =
                files.filter(|file| file.file_name() != "journal.json").map(|file| file.metadata().unwrap().len());
            self.largest.fetch_max(size.sum(), Ordering::SeqCst);
        }
    }

    fn stop_requested(&self) -> bool {
        self.events.load(Ordering::SeqCst) >= self.stop
    }
}

fn limits(memory: u64, threads: usize, progress: &dyn Progress) -> Build<'_> {
    Build { memory, threads, progress }
}

/// The bytes of the store that is built in memory.
fn in_memory(source: &Path, options: &GraphOptions) -> Option<Vec<u8>> {
    let folder = folder_in_memory();
    let path = folder.path().join("store");
    let (graph, notes) = read(source, options).ok()?;
    let provenance = Provenance { source_digest: source_digest(source).unwrap(), options: options.clone(), notes };
    write(&graph, provenance, &path).unwrap();
    Some(fs::read(path).unwrap())
}

/// A temporary folder, in memory where Linux has one there: a build waits for the disk after each step, and these tests make hundreds.
fn folder_in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// A folder named `small` with a graph.
fn source(small: &SmallGraph, binary: bool) -> (tempfile::TempDir, PathBuf) {
    let folder = folder_in_memory();
    let path = folder.path().join("small");
    fs::create_dir(&path).unwrap();
    small.write_ogb(&path, binary);
    (folder, path)
}

/// A graph of a star, whose centre has more edges than the memory holds, and a path.
fn star(nodes: u32) -> SmallGraph {
    let star = (0..nodes).flat_map(|node| [(node, 3), (node, 3), (node / 2, node)]);
    SmallGraph {
        kind: Kind::Dense,
        edges: star.collect(),
        columns: 2,
        features: (0..2 * nodes).map(f64::from).collect(),
        labels: (0..nodes).map(|node| i64::from(node % 7) - 1).collect(),
        split: Some((0..nodes).map(|node| (node % 4) as u8).collect()),
    }
}

fn whole_graph() -> GraphOptions {
    GraphOptions { largest_component: false, ..GraphOptions::default() }
}

fn names(folder: &Path) -> Vec<String> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn a_stream_gives_the_bytes_of_a_build_in_memory(
        small in small_graphs(),
        binary: bool,
        undirected: bool,
        row_normalized: bool,
        half: bool,
        memory in prop_oneof![1u64..400, Just(1 << 20)],
        threads in 1usize..4,
    ) {
        prop_assume!(small.kind != Kind::Sparse);
        let options = GraphOptions { undirected, largest_component: false, row_normalized, half };
        let (folder, path) = source(&small, binary);
        let stores = folder.path().join("stores");
        let built = open_or_build_with(&path, &options, &stores, &limits(memory, threads, &()));
        match in_memory(&path, &options) {
            Some(expected) => {
                let built = built.unwrap();
                prop_assert!(built.built);
                prop_assert!(fs::read(&built.path).unwrap() == expected);
                store::verify(&built.path).unwrap();
                prop_assert_eq!(names(&stores).len(), 1);
            }
            None => prop_assert!(built.unwrap_err().to_string().contains("no node has a label")),
        }
    }
}

#[test]
fn targets_with_more_edges_than_the_memory_holds_are_sorted() {
    for binary in [true, false] {
        let (folder, path) = source(&star(500), binary);
        let expected = in_memory(&path, &whole_graph()).unwrap();
        for (number, memory) in [16, 160, 1600, 16_000, 1 << 30].into_iter().enumerate() {
            let stores = folder.path().join(number.to_string());
            let built = open_or_build_with(&path, &whole_graph(), &stores, &limits(memory, 2, &())).unwrap();
            assert!(fs::read(&built.path).unwrap() == expected, "{memory} bytes");
        }
    }
}

#[test]
fn a_build_that_is_stopped_anywhere_is_resumed() {
    for binary in [true, false] {
        let (folder, path) = source(&star(200), binary);
        let expected = in_memory(&path, &whole_graph()).unwrap();
        let all = StopsAt::new(u64::MAX);
        let once = folder.path().join("once");
        open_or_build_with(&path, &whole_graph(), &once, &limits(700, 2, &all)).unwrap();
        let events = all.events.into_inner();
        assert!(events > 20, "{events}");
        for stop in 1..events {
            let stores = folder.path().join(format!("{stop}"));
            let build = |stop| open_or_build_with(&path, &whole_graph(), &stores, &limits(700, 2, &StopsAt::new(stop)));
            assert!(matches!(build(stop), Err(NodesError::Stopped)), "event {stop}");
            // Again at the first event, then to the end with another limit.
            assert!(build(2).is_err(), "event {stop}");
            let built = open_or_build_with(&path, &whole_graph(), &stores, &limits(3000, 1, &())).unwrap();
            assert!(fs::read(&built.path).unwrap() == expected, "event {stop}");
            assert_eq!(names(&stores).len(), 1, "event {stop}: temporary files are left");
        }
    }
}

/// Counts the events of each step.
#[derive(Default)]
struct Steps(Mutex<Vec<Step>>);

impl Progress for Steps {
    fn report(&self, event: &Event<'_>) {
        if let Event::Advanced { step, .. } = event {
            self.0.lock().push(*step);
        }
    }
}

#[test]
fn finished_steps_are_not_repeated() {
    let (folder, path) = source(&star(300), false);
    let build = |stores: &Path, progress: &dyn Progress| {
        open_or_build_with(&path, &whole_graph(), stores, &limits(700, 1, progress))
    };
    let all = StopsAt::new(u64::MAX);
    build(&folder.path().join("all"), &all).unwrap();
    let mut sorted_before = usize::MAX;
    for stop in 1..all.events.into_inner() {
        let stores = folder.path().join(stop.to_string());
        assert!(build(&stores, &StopsAt::new(stop)).is_err());
        let journal = fs::read_to_string(stores.join(names(&stores).pop().unwrap()).join("journal.json")).unwrap();
        let steps = Steps::default();
        build(&stores, &steps).unwrap();
        let steps = steps.0.into_inner();
        let repeats = |step| steps.contains(&step);
        assert_eq!(repeats(Step::Edges), journal.contains("\"buckets\":null"), "stopped at {stop}");
        assert_eq!(repeats(Step::Features), !journal.contains("\"rows_written\":300"), "stopped at {stop}");
        let sorted = steps.iter().filter(|step| **step == Step::Sort).count();
        assert!(sorted <= sorted_before, "stopped at {stop}");
        sorted_before = sorted;
    }
    assert_eq!(sorted_before, 0);
}

/// A build that is stopped as soon as its folder is as wanted; returns the folder.
fn stopped_when(source: &Path, stores: &Path, is_wanted: impl Fn(&Path) -> bool) -> PathBuf {
    let build = |progress: &dyn Progress| open_or_build_with(source, &whole_graph(), stores, &limits(700, 1, progress));
    // Each build goes one event further than the last one.
    for stop in 2.. {
        assert!(matches!(build(&StopsAt::new(stop)), Err(NodesError::Stopped)), "never as wanted");
        let work = stores.join(names(stores).pop().unwrap());
        if is_wanted(&work) {
            return work;
        }
        fs::remove_dir_all(stores).unwrap();
    }
    unreachable!("the loop has no end");
}

#[test]
fn damaged_temporary_files_are_named_and_never_used() {
    let (folder, path) = source(&star(200), true);
    let expected = in_memory(&path, &whole_graph()).unwrap();
    let stores = folder.path().join("stores");
    let build = || open_or_build_with(&path, &whole_graph(), &stores, &limits(700, 1, &()));
    let journal = |work: &Path| fs::read_to_string(work.join("journal.json")).unwrap();
    let has_buckets = |work: &Path| journal(work).contains("\"buckets\":[");
    let has_edges = |work: &Path| fs::metadata(work.join("store")).is_ok_and(|store| store.len() > 8192);
    for damage in ["cut", "missing", "flipped", "store", "journal"] {
        let work = match damage {
            "store" => stopped_when(&path, &stores, has_edges),
            _ => stopped_when(&path, &stores, has_buckets),
        };
        let bucket = names(&work).into_iter().filter(|name| name.starts_with("bucket-")).max().unwrap();
        let mut bytes = fs::read(work.join(&bucket)).unwrap();
        match damage {
            "cut" => fs::write(work.join(&bucket), &bytes[..bytes.len() - 8]).unwrap(),
            "missing" => fs::remove_file(work.join(&bucket)).unwrap(),
            "flipped" => {
                bytes[0] ^= 1;
                fs::write(work.join(&bucket), bytes).unwrap();
            }
            "store" => File::options().write(true).open(work.join("store")).unwrap().set_len(4096).unwrap(),
            _ => {
                let other = journal(&work).replace("\"edges_written\":", "\"edges_written\":1");
                fs::write(work.join("journal.json"), other).unwrap();
            }
        }
        // A damaged journal counts for nothing.
        if damage != "journal" {
            let named = if damage == "store" { "store: damaged (4096 bytes" } else { bucket.as_str() };
            let error = build().unwrap_err();
            let text = error.to_string();
            assert!(error.is_input() && text.contains(named) && text.contains("starts again"), "{damage}: {text}");
        }
        let built = build().unwrap();
        assert!(fs::read(&built.path).unwrap() == expected, "{damage}");
        fs::remove_dir_all(&stores).unwrap();
    }
}

#[test]
fn the_disk_need_is_that_of_the_largest_moment() {
    let (folder, path) = source(&star(2000), true);
    let (digest, stores) = (source_digest(&path).unwrap(), folder.path().join("stores"));
    for options in [whole_graph(), GraphOptions { half: true, undirected: false, ..whole_graph() }] {
        let target = store::store_path(&path, &options, &stores).unwrap();
        let name = format!(".{}.building", target.file_name().unwrap().to_string_lossy());
        let progress = StopsAt { folder: Some(stores.join(name)), ..StopsAt::new(u64::MAX) };
        fs::create_dir_all(&stores).unwrap();
        let stream = crate::sources::stream(&path, &options, &digest).unwrap().unwrap();
        build(&stream, &target, &limits(1 << 20, 1, &progress)).unwrap();
        let (largest, needed) = (progress.largest.into_inner(), progress.needed.into_inner());
        assert!(largest <= needed && needed < largest + largest / 3 + 40_000, "{largest} bytes used of {needed}");
    }
}

#[test]
fn the_folder_of_a_build_that_was_killed_at_its_end_is_removed() {
    let (folder, path) = source(&star(30), true);
    let stores = folder.path().join("stores");
    let build = || open_or_build_with(&path, &whole_graph(), &stores, &limits(900, 1, &())).unwrap();
    let rest = work::folder_of(&build().path);
    fs::create_dir(&rest).unwrap();
    fs::write(rest.join("labels"), "").unwrap();
    assert!(!build().built);
    assert_eq!(names(&stores).len(), 1);
}

#[test]
fn two_builds_of_one_store_wait_for_each_other() {
    let (folder, path) = source(&star(300), true);
    let stores = folder.path().join("stores");
    let expected = in_memory(&path, &whole_graph()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let built = open_or_build_with(&path, &whole_graph(), &stores, &limits(900, 1, &())).unwrap();
                assert!(fs::read(&built.path).unwrap() == expected);
            });
        }
    });
    assert_eq!(names(&stores).len(), 1);
}

fn citations() -> CitationOptions {
    CitationOptions { nodes: 3001, edges: 20_000, classes: 12, features: 5, seed: 7, half: false }
}

#[test]
fn generated_stores_have_the_same_bytes_for_all_limits_and_interruptions() {
    let folder = folder_in_memory();
    let path = |name: &str| {
        // The name of the graph is that of the file.
        let inner = folder.path().join(name);
        fs::create_dir_all(&inner).unwrap();
        inner.join("graph.kdgat-nodes")
    };
    for half in [false, true] {
        let options = CitationOptions { half, ..citations() };
        let first = path(&format!("first{half}"));
        simulate_citations(&options, &first, &limits(1 << 30, 1, &())).unwrap();
        let expected = fs::read(&first).unwrap();
        store::verify(&first).unwrap();
        for (memory, threads) in [(1 << 30, 2), (40_000, 3), (3000, 1)] {
            let other = path(&format!("{memory} {threads} {half}"));
            simulate_citations(&options, &other, &limits(memory, threads, &())).unwrap();
            assert!(fs::read(&other).unwrap() == expected, "{memory} bytes, {threads} threads");
        }
        for stop in 1.. {
            let other = path(&format!("stopped {stop} {half}"));
            match simulate_citations(&options, &other, &limits(40_000, 2, &StopsAt::new(stop))) {
                Ok(()) => break,
                Err(error) => assert!(matches!(error, NodesError::Stopped), "{error}"),
            }
            simulate_citations(&options, &other, &limits(50_000, 1, &())).unwrap();
            assert!(fs::read(&other).unwrap() == expected, "stopped at {stop}");
        }
    }
    // Again, with nothing to do.
    simulate_citations(&citations(), &path("firstfalse"), &limits(1 << 30, 1, &())).unwrap();
    let seeded = path("seed");
    simulate_citations(&CitationOptions { seed: 8, ..citations() }, &seeded, &limits(1 << 30, 1, &())).unwrap();
    assert!(fs::read(&seeded).unwrap() != fs::read(path("firstfalse")).unwrap());
    let error = simulate_citations(&citations(), &seeded, &limits(1 << 30, 1, &())).unwrap_err();
    assert!(error.is_input() && error.to_string().contains("exists and is another graph: name another"), "{error}");
}
