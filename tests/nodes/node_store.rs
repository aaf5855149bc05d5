//! Stores of one large graph, through the command line: generated, imported as streams, killed and resumed, and input that is refused.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use flate2::Compression;
use flate2::write::GzEncoder;
use kdgat::nodes::sources::{GraphOptions, read};
use kdgat::nodes::store;
use kdgat::random;
use support::cli::{Workplace, said};
use support::stops::KillLoop;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

const SMALL: [&str; 12] = [
    "data",
    "simulate",
    "--kind",
    "citations",
    "--nodes",
    "3000",
    "--edges",
    "20000",
    "--classes",
    "10",
    "--columns",
    "16",
];

fn only_file(folder: &Path) -> PathBuf {
    let found: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

#[test]
fn a_generated_graph_is_a_dataset() {
    let place = Workplace::new();
    let said = place.success(&[&SMALL[..], &["graph", "--half-features"]].concat());
    assert!(said.contains("building the store of 3000 nodes and 20000 edges"), "{said}");
    assert!(said.contains("with seed 42: graph.kdgat-nodes"), "{said}");
    let again = ["again/graph.kdgat-nodes", "--half-features", "--threads", "3", "--memory-limit", "50000"];
    fs::create_dir(place.path().join("again")).unwrap();
    place.success(&[&SMALL[..], &again].concat());
    let bytes = |name: &str| fs::read(place.path().join(name)).unwrap();
    assert!(bytes("graph.kdgat-nodes") == bytes("again/graph.kdgat-nodes"), "threads or memory change the bytes");

    let checked = place.success(&["data", "check", "--data", "graph.kdgat-nodes"]);
    assert!(checked.contains("nodes     3000") && checked.contains("features  16\n"), "{checked}");
    assert!(checked.contains("classes   10 (nodes of each:"), "{checked}");
    let data = ["--data", "graph.kdgat-nodes", "--threads", "1", "--max-epochs", "2"];
    let trained = place.success(&[&["train", "--preset", "sage,teacher"], &data[..]].concat());
    assert!(!trained.contains("built") && trained.contains("split: "), "{trained}");
    place.success(&[&["train", "--preset", "mlp,student", "--offload-teacher"], &data[..]].concat());
    assert!(place.success(&["evaluate", "--data", "graph.kdgat-nodes"]).contains("sage_teacher_train"));

    // The last byte of an array, which only a whole check reads in a large store.
    let mut damaged = bytes("graph.kdgat-nodes");
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    fs::write(place.path().join("graph.kdgat-nodes"), damaged).unwrap();
    let text = place.refused(&["data", "check", "--data", "graph.kdgat-nodes"]);
    assert!(text.contains("graph.kdgat-nodes is damaged (the checksum of array node_hashes is wrong)"), "{text}");
}

#[test]
fn options_that_do_not_fit_a_generated_graph_are_refused() {
    let place = Workplace::new();
    let refused = |arguments: &[&str], text: &str| {
        let said = place.refused(arguments);
        assert!(said.contains(text), "{arguments:?}: {said}");
    };
    refused(&["data", "simulate", "--kind", "citations", "--nodes", "9000", "graph"], "--edges");
    refused(&["data", "simulate", "--nodes", "9", "car"], "--nodes is for a graph of citations");
    refused(&["data", "simulate", "car", "--half-features"], "`kdgat data simulate` does not read it");
    refused(
        &[&SMALL[..], &["--nodes", "100", "graph"]].concat(),
        "--nodes 100: expected 256 to 4294967295 for 10 classes",
    );
    refused(
        &[&SMALL[..], &["--window", "50", "graph"]].concat(),
        "`kdgat data simulate --kind citations` does not read it",
    );
    place.success(&[&SMALL[..], &["graph"]].concat());
    let text = "graph.kdgat-nodes exists and is another graph: name another file, or delete it first";
    refused(&[&SMALL[..], &["graph", "--seed", "7"]].concat(), text);
    // A process that was killed after its last step is run again: there is nothing to do.
    place.success(&[&SMALL[..], &["graph"]].concat());
    for command in [&["data", "check"][..], &["data", "build"], &["train", "--preset", "sage,teacher"]] {
        let arguments = [command, &["--data", "graph.kdgat-nodes", "--half-features"]].concat();
        refused(&arguments, "a store has its edges and features already");
    }
    refused(&["data", "build", "--data", "graph.kdgat-nodes", "--part", "1/2"], "--part and --parts are for logs");
}

/// Runs a command, and again in another folder with kills. Returns the number of kills.
fn compare_with_kills(place: &Workplace, whole: &[&str], killed: &[&str]) -> u32 {
    let start = Instant::now();
    place.success(whole);
    let kills = KillLoop { whole: start.elapsed(), first_share: 0.1, growth: 0.1, takes_children: None };
    let kills = kills.run(|| place.command(killed));
    assert!(kills > 0, "never killed");
    kills
}

#[test]
fn a_killed_generator_is_resumed_with_the_same_bytes() {
    let place = Workplace::new();
    let command = |name: &'static str| {
        let sizes = ["--nodes", "150000", "--edges", "1500000", "--memory-limit", "4000000", name];
        [&SMALL[..], &sizes].concat()
    };
    for folder in ["whole", "killed"] {
        fs::create_dir(place.path().join(folder)).unwrap();
    }
    let kills = compare_with_kills(&place, &command("whole/graph.kdgat-nodes"), &command("killed/graph.kdgat-nodes"));
    let [whole, killed] = ["whole", "killed"].map(|folder| fs::read(only_file(&place.path().join(folder))).unwrap());
    assert!(whole == killed, "{kills} kills changed the bytes");
}

const NODES: u64 = 20_000;
const EDGES: u64 = 150_000;
const COLUMNS: u64 = 12;

fn draw(purpose: u64, index: u64, bound: u64) -> u64 {
    random::to_below(random::mix(random::mix(purpose) ^ index), bound)
}

/// Edge `number`: many to few targets.
fn edge(number: u64) -> (u64, u64) {
    let target = draw(2, number, NODES);
    (draw(1, number, NODES), if number.is_multiple_of(3) { target / 500 } else { target })
}

fn feature(node: u64, column: u64) -> f32 {
    draw(3, node * COLUMNS + column, 4001) as f32 / 64.0 - 30.0
}

/// A class, or nothing for most nodes.
fn label(node: u64) -> Option<u64> {
    (draw(4, node, 10) < 3).then_some(node % 6)
}

fn write_gz(path: &Path, lines: impl Iterator<Item = String>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut encoder = GzEncoder::new(File::create(path).unwrap(), Compression::fast());
    lines.for_each(|line| writeln!(encoder, "{line}").unwrap());
    encoder.finish().unwrap();
}

fn write_split(folder: &Path) {
    for (set, name) in ["train", "valid", "test"].into_iter().enumerate() {
        let nodes = (0..NODES).filter(|&node| label(node).is_some() && node % 3 == set as u64);
        write_gz(&folder.join("split/time").join(format!("{name}.csv.gz")), nodes.map(|node| node.to_string()));
    }
}

/// The graph as text, as OGB's package unpacks small datasets.
fn write_text(folder: &Path) {
    let write = |name: &str, lines: &mut dyn Iterator<Item = String>| write_gz(&folder.join("raw").join(name), lines);
    write("num-node-list.csv.gz", &mut [NODES.to_string()].into_iter());
    write("num-edge-list.csv.gz", &mut [EDGES.to_string()].into_iter());
    write("edge.csv.gz", &mut (0..EDGES).map(edge).map(|(source, target)| format!("{source},{target}")));
    let row = |node| (0..COLUMNS).map(|column| feature(node, column).to_string()).collect::<Vec<_>>().join(",");
    write("node-feat.csv.gz", &mut (0..NODES).map(row));
    write(
        "node-label.csv.gz",
        &mut (0..NODES).map(|node| label(node).map_or(String::new(), |label| label.to_string())),
    );
    write_split(folder);
}

fn npy(descr: &str, shape: &[u64], bytes: &[u8]) -> Vec<u8> {
    let sizes: String = shape.iter().map(|size| format!("{size}, ")).collect();
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({sizes}), }}");
    text = format!("{text:<117}\n");
    [b"\x93NUMPY\x01\x00", &(text.len() as u16).to_le_bytes()[..], text.as_bytes(), bytes].concat()
}

fn write_npz(path: &Path, arrays: &[(&str, Vec<u8>)]) {
    let mut archive = ZipWriter::new(File::create(path).unwrap());
    for (name, bytes) in arrays {
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
        archive.start_file(format!("{name}.npy"), options).unwrap();
        archive.write_all(bytes).unwrap();
    }
    archive.finish().unwrap();
}

/// The graph as arrays, as OGB's package unpacks ogbn-papers100M.
fn write_arrays(folder: &Path) {
    fs::create_dir_all(folder.join("raw")).unwrap();
    let edges: Vec<(u64, u64)> = (0..EDGES).map(edge).collect();
    let ends = edges.iter().map(|edge| edge.0).chain(edges.iter().map(|edge| edge.1));
    let ends: Vec<u8> = ends.flat_map(|node| (node as i64).to_le_bytes()).collect();
    let features = (0..NODES * COLUMNS).flat_map(|at| feature(at / COLUMNS, at % COLUMNS).to_le_bytes());
    let labels = (0..NODES).flat_map(|node| label(node).map_or(f32::NAN, |label| label as f32).to_le_bytes());
    write_npz(
        &folder.join("raw/data.npz"),
        &[
            ("edge_index", npy("<i8", &[2, EDGES], &ends)),
            ("node_feat", npy("<f4", &[NODES, COLUMNS], &features.collect::<Vec<u8>>())),
            ("num_nodes_list", npy("<i8", &[1], &NODES.to_le_bytes())),
            ("num_edges_list", npy("<i8", &[1], &EDGES.to_le_bytes())),
        ],
    );
    let labels: Vec<u8> = labels.collect();
    write_npz(&folder.join("raw/node-label.npz"), &[("node_label", npy("<f4", &[NODES, 1], &labels))]);
    write_split(folder);
}

const BUILD: [&str; 8] =
    ["data", "build", "--data", "net", "--largest-component", "false", "--memory-limit", "1000000"];

#[test]
fn both_layouts_of_a_folder_give_the_graph_that_is_read_into_memory() {
    for layout in ["text", "arrays"] {
        let place = Workplace::new();
        let net = place.path().join("net");
        if layout == "text" {
            write_text(&net)
        } else {
            write_arrays(&net)
        }
        let said = place.success(&BUILD);
        assert!(said.contains("building the store of 20000 nodes and 150000 edges"), "{layout}: {said}");
        assert!(said.contains("repeated edges of 150000"), "{layout}: {said}");
        let path = only_file(&place.path().join("stores"));
        assert!(said.contains(path.file_name().unwrap().to_str().unwrap()), "{layout}: {said}");
        store::verify(&path).unwrap();
        let options = GraphOptions { largest_component: false, ..GraphOptions::default() };
        let (expected, notes) = read(&place.path().join("net"), &options).unwrap();
        assert_eq!(store::open(&path).unwrap().digest, expected.digest, "{layout}");
        assert!(notes.lines().iter().all(|line| said.contains(line)), "{layout}: {said}");
        let data = ["--data", "net", "--largest-component", "false", "--max-epochs", "1", "--threads", "1"];
        let trained = place.success(&[&["train", "--preset", "mlp,student", "--use-kd", "false"], &data[..]].concat());
        assert!(!trained.contains("built"), "{trained}");
    }
}

#[test]
fn a_killed_import_is_resumed_with_the_same_bytes() {
    let place = Workplace::new();
    write_text(&place.path().join("net"));
    let command = |stores: &'static str| [&BUILD[..], &["--stores-dir", stores]].concat();
    let kills = compare_with_kills(&place, &command("whole"), &command("killed"));
    let [whole, killed] = ["whole", "killed"].map(|folder| fs::read(only_file(&place.path().join(folder))).unwrap());
    assert!(whole == killed, "{kills} kills changed the bytes");
}

#[test]
fn what_does_not_fit_is_named_with_its_place() {
    let place = Workplace::new();
    let net = place.path().join("net");
    write_text(&net);
    let node = |at: u64| if at == 12_345 { format!("{NODES},0") } else { "0,1".to_owned() };
    write_gz(&net.join("raw/edge.csv.gz"), (0..EDGES).map(node));
    let text = place.refused(&BUILD);
    assert!(text.contains("edge.csv.gz, line 12346: node 20000, expected a node from 0 to 19999"), "{text}");
    write_text(&net);
    let row = |node: u64| format!("0.5,{}", if node == 17_000 { "-70000" } else { "2" });
    write_gz(&net.join("raw/node-feat.csv.gz"), (0..NODES).map(row));
    let text = place.refused(&[&BUILD[..], &["--half-features"]].concat());
    assert!(text.contains("node-feat.csv.gz, line 17001: -70000 for node 17000, column 1"), "{text}");
    assert!(text.contains("leave --half-features out"), "{text}");
    // The other precision holds it; the failed build is not in its way.
    assert!(place.success(&BUILD).contains("2 features"));
    assert_eq!(stores(&place).len(), 1);
}

/// Stores that are complete.
fn stores(place: &Workplace) -> Vec<String> {
    let names = fs::read_dir(place.path().join("stores")).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).filter(|name| name.ends_with(".kdgat-nodes")).collect()
}

#[test]
#[cfg(unix)]
fn a_full_disk_is_named_and_the_next_build_is_whole() {
    let place = Workplace::new();
    write_arrays(&place.path().join("net"));
    // A file size limit, beyond which writes fail as on a full disk.
    let script = "trap '' XFSZ; ulimit -f 800; exec \"$0\" \"$@\"";
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", script, env!("CARGO_BIN_EXE_kdgat")]).args(BUILD).current_dir(place.path());
    let output = limited.env("KDGAT_THREADS", "1").stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("cannot write") && said(&output).contains("stores"), "{}", said(&output));
    assert!(stores(&place).is_empty());
    assert!(place.success(&BUILD).contains("20000 nodes"));
    store::verify(&only_file(&place.path().join("stores"))).unwrap();
}
