//! Sources of graphs beside CSV with edges and TUDataset: positions with a cutoff, extended XYZ, Parquet tables.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use kdgat::graph::dataset::{self, Summary, TargetValues};
use kdgat::graph::store::open_or_build_graphs;
use kdgat::graph::{AssembleOptions, Batch, Level, Split, Task, Vocabulary, assemble};
use support::cli::Workplace;

const GRAPHS: &str = "graph_id,y,split\nbent,1.5,train\nlone,-2.5,train\nfar,0.25,test\n";
/// Nodes of the graphs in mixed order: a bent triple with sides 3, 4 and 5, a single node, and two nodes at the same place.
const NODES: &str = "graph_id,node_id,c_element,pos_x,pos_y,pos_z\n\
                     bent,a,O,0,0,0\nfar,a,H,1e6,-2,3\nbent,b,H,3,0,0\nlone,a,He,0,0,0\nbent,c,H,0,4,0\nfar,b,H,1e6,-2,3\n";

pub fn write_positions(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("graphs.csv"), GRAPHS).unwrap();
    fs::write(folder.join("nodes.csv"), NODES).unwrap();
    fs::write(folder.join("kdgat-graphs.toml"), "task = \"regression\"\ncutoff = 4.0\nradial_basis = 5\n").unwrap();
}

/// Frames of water that is more and more stretched, with `energy` and `dipole`.
pub fn water(frames: usize) -> String {
    let frame = |number: usize| {
        let stretch = 1.0 + number as f64 / 100.0;
        let (x, y) = (0.757 * stretch, 0.586 * stretch);
        format!(
            "3\nProperties=species:S:1:pos:R:3:forces:R:3 Energy={:.3} dipole={} config_type=\"a b\" pbc=\"F F F\"\n\
             O 0 0 0 1 2 3\nH {x} {y} 0.0 4 5 6\nH -{x} {y} 0.0 7 8 9\n",
            -76.4 + 0.1 * number as f64,
            1.85 * stretch,
        )
    };
    (0..frames).map(frame).collect()
}

/// Asserts that reading fails with a message that has all of `parts`.
pub fn assert_refused(path: &Path, parts: &[&str]) {
    let text = dataset::read(path).map(|set| set.num_graphs()).unwrap_err().to_string();
    assert!(parts.iter().all(|part| text.contains(part)), "{text} lacks one of {parts:?}");
}

#[test]
fn edges_are_made_within_the_cutoff() {
    let folder = tempfile::tempdir().unwrap();
    write_positions(folder.path());
    let set = dataset::read(folder.path()).unwrap();
    // Sides of 3 and 4 have edges, the one of 5 has none.
    assert_eq!(set.edge_pointers, [0, 4, 4, 6]);
    assert_eq!((&set.sources[..4], &set.targets[..4]), (&[1, 2, 0, 0][..], &[0, 0, 1, 2][..]));
    assert_eq!((&set.sources[4..], &set.targets[4..]), (&[1, 0][..], &[0, 1][..]));
    let names: Vec<&str> = set.schema.edge_features.iter().map(|feature| feature.name.as_str()).collect();
    assert_eq!(names, ["distance_0", "distance_1", "distance_2", "distance_3", "distance_4"]);
    // Centres 0, 1, 2, 3, 4 of width 1: a length of 3 is exp(-(3 - k)² / 2).
    let of_edge = |edge: usize| &set.edge_features[5 * edge..5 * (edge + 1)];
    for (length, edge) in [(3.0f32, 0), (4.0, 1), (3.0, 2), (4.0, 3), (0.0, 4), (0.0, 5)] {
        for (centre, found) in (0u8..).zip(of_edge(edge)) {
            let expected = (-(length - f32::from(centre)).powi(2) / 2.0).exp();
            assert!((found - expected).abs() < 1e-6, "edge {edge}: {found}, expected {expected}");
        }
    }
    assert_eq!((set.left_out.self_loops, set.left_out.repeated), (0, 0));
    let summary = Summary::of(&set, 5.0);
    assert!(summary.undirected && summary.graphs_without_edges == 1, "{summary:?}");
    assert_eq!(set.schema.node_columns(), 3, "positions are no features");

    fs::write(folder.path().join("kdgat-graphs.toml"), "task = \"regression\"\ncutoff = 5\n").unwrap();
    let set = dataset::read(folder.path()).unwrap();
    assert_eq!((set.num_edges(0), set.schema.edge_columns()), (6, 16), "5 is at the cutoff; 16 Gaussians by default");
}

#[test]
fn without_a_cutoff_the_edges_of_the_file_are_used() {
    let folder = tempfile::tempdir().unwrap();
    write_positions(folder.path());
    fs::write(folder.path().join("edges.csv"), "graph_id,source,target,e_w\nbent,b,c,0.5\n").unwrap();
    assert_refused(
        folder.path(),
        &["kdgat-graphs.toml, line 2: `cutoff` beside edges.csv", "remove edges.csv", "remove `cutoff`"],
    );
    fs::remove_file(folder.path().join("kdgat-graphs.toml")).unwrap();
    let set = dataset::read(folder.path()).unwrap();
    assert_eq!((set.sources.as_slice(), set.targets.as_slice()), (&[1][..], &[2][..]));
    assert_eq!(set.edge_features, [0.5]);
    fs::remove_file(folder.path().join("edges.csv")).unwrap();
    // Networks in space make pairs of their own; the two nodes in one place are no problem for others.
    let set = dataset::read(folder.path()).unwrap();
    assert_eq!(set.edge_pointers, [0; 4]);
    let unfit = set.schema.space.as_ref().and_then(|space| space.unfit.clone()).unwrap_or_default();
    assert!(unfit.starts_with("nodes.csv, line 7: nodes 1 and 2 of graph far in one place"), "{unfit}");
    let warnings = Summary::of(&set, 5.0).warnings.join("\n");
    assert!(
        warnings.contains("no schnet, painn or irreps can be trained, an sgmp can: nodes.csv, line 7"),
        "{warnings}"
    );
    fs::write(folder.path().join("kdgat-graphs.toml"), "edges = false\n").unwrap();
    assert_eq!(dataset::read(folder.path()).unwrap().edge_pointers, [0; 4]);
    fs::write(folder.path().join("edges.csv"), "graph_id,source,target\n").unwrap();
    assert_refused(folder.path(), &["kdgat-graphs.toml, line 1: `edges = false` beside edges.csv", "remove edges.csv"]);
    fs::write(folder.path().join("kdgat-graphs.toml"), "test_files = [\"a.xyz\"]\n").unwrap();
    assert_refused(folder.path(), &["line 1: `test_files` beside tables", "a column `split`"]);
}

#[test]
fn bad_positions_are_named_with_their_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let assert_error = |file: &str, from: &str, to: &str, parts: &[&str]| {
        write_positions(path);
        let text = fs::read_to_string(path.join(file)).unwrap();
        assert!(text.contains(from), "{file} has no {from}");
        fs::write(path.join(file), text.replacen(from, to, 1)).unwrap();
        assert_refused(path, parts);
    };
    let (nodes, settings) = ("nodes.csv", "kdgat-graphs.toml");
    assert_error(nodes, "pos_y", "y", &["nodes.csv, line 1: pos_x, pos_z without pos_y", "all of pos_x, pos_y, pos_z"]);
    assert_error(nodes, "H,3,0", "H,NaN,0", &["nodes.csv, line 4", "'pos_x'", "'NaN'", "a finite coordinate"]);
    assert_error(nodes, "H,3,0", "H,3,1e999", &["nodes.csv, line 4", "'pos_y'", "'1e999'"]);
    assert_error(nodes, "H,3,0,0", "H,3,0,", &["nodes.csv, line 4", "'pos_z'", "an empty field"]);
    let without = "pos_x,pos_y,pos_z";
    assert_error(nodes, without, "a,b,c", &["kdgat-graphs.toml, line 2: `cutoff`, but nodes.csv has no positions"]);
    assert_error(settings, "4.0", "0.0", &["kdgat-graphs.toml, line 2: cutoff 0", "a positive, finite distance"]);
    assert_error(settings, "= 5", "= 1", &["kdgat-graphs.toml, line 3: radial_basis 1", "2 to 256 Gaussians"]);
    assert_error(settings, "cutoff = 4.0", "", &["line 3: `radial_basis` without `cutoff`"]);
    assert_error(
        settings,
        "cutoff",
        "directed = true\ncutoff",
        &["line 2: `directed` beside edges made from positions"],
    );
    assert_error(settings, "cutoff", "cut_off", &["kdgat-graphs.toml, line 2", "cut_off", "radial_basis"]);
    let grid: String = (0..300).map(|node| format!("bent,n{node},H,0,0,{}\n", f64::from(node) * 1e-3)).collect();
    let dense = format!("{NODES}{grid}");
    assert_error(nodes, NODES, &dense, &["graphs.csv, line 2: graph bent has more than 65535 edges with cutoff 4"]);
}

#[test]
fn frames_of_an_xyz_file_are_graphs() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("water.xyz");
    fs::write(&file, water(4)).unwrap();
    assert!(dataset::is_dataset(&file) && dataset::is_dataset(folder.path()));
    let set = dataset::read(&file).unwrap();
    assert_eq!((set.name.as_str(), set.num_graphs(), set.schema.task), ("water", 4, Task::Regression));
    assert_eq!((set.schema.targets[0].name.as_str(), set.graph_targets[1]), ("Energy", -76.3));
    let species = &set.schema.node_features[0];
    assert_eq!(
        (species.name.as_str(), species.values.as_ref().unwrap().as_slice()),
        ("species", &["H", "O"].map(String::from)[..])
    );
    assert_eq!(set.node_features[..6], [0.0, 1.0, 1.0, 0.0, 1.0, 0.0]);
    assert_eq!((set.num_edges(0), set.schema.edge_columns(), &set.splits), (6, 16, &None));
    assert_eq!(Summary::of(&set, 5.0).target_values.len(), 1);

    // A file in a folder has settings beside it.
    fs::write(
        folder.path().join("kdgat-graphs.toml"),
        "targets = [\"dipole\", \"Energy\"]\ncutoff = 1.0\nname = \"w\"\n",
    )
    .unwrap();
    let set = dataset::read(folder.path()).unwrap();
    assert_eq!((set.name.as_str(), set.graph_targets[0], set.graph_targets[1]), ("w", 1.85, -76.4));
    assert_eq!(set.num_edges(0), 4, "hydrogen atoms are 1.5 Å apart");
    assert_eq!(dataset::read(&file).unwrap().schema.targets[0].name, "Energy", "a single file has no settings");
}

#[test]
fn several_files_are_one_dataset_with_a_split_and_classes() {
    let folder = tempfile::tempdir().unwrap();
    let frame = |class: &str, split: &str| format!("1\nclass={class} split={split}\nHe 0 0 0\n");
    fs::write(folder.path().join("b.EXTXYZ"), frame("odd", "test")).unwrap();
    fs::write(folder.path().join("a.xyz"), frame("even", "train") + "\n" + &frame("odd", "train")).unwrap();
    assert_refused(folder.path(), &["a.xyz, line 2: no target among the numeric keys (none)", "`targets = [\"KEY\"]`"]);
    fs::write(folder.path().join("kdgat-graphs.toml"), "targets = [\"class\"]\n").unwrap();
    let set = dataset::read(folder.path()).unwrap();
    assert_eq!(set.graph_ids, ["a.xyz:1", "a.xyz:2", "b.EXTXYZ:1"]);
    assert_eq!(set.splits, Some(vec![Split::Train, Split::Train, Split::Test]));
    assert_eq!(
        (set.schema.task, Summary::of(&set, 5.0).target_values),
        (Task::Classification, vec![TargetValues::Classes(vec![1, 2])])
    );
    fs::write(folder.path().join("b.EXTXYZ"), frame("other", "test")).unwrap();
    assert_refused(folder.path(), &["b.EXTXYZ, line 2: class 'other', which no training graph has"]);
    fs::write(folder.path().join("b.EXTXYZ"), frame("odd", "tset")).unwrap();
    assert_refused(folder.path(), &["b.EXTXYZ, line 2: split 'tset', expected train, validation or test"]);
    fs::write(folder.path().join("b.EXTXYZ"), "").unwrap();
    assert_refused(folder.path(), &["b.EXTXYZ: no frame"]);
}

/// Frames with periodic boundaries have the neighbours that ASE finds, each with its nearest image; further images are counted.
#[test]
fn periodic_frames_have_the_neighbours_of_another_program() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/parity");
    let golden: serde_json::Value = serde_json::from_slice(&fs::read(folder.join("periodic.json")).unwrap()).unwrap();
    let set = dataset::read(&folder.join("periodic.xyz")).unwrap();
    let frames = golden["edges"].as_array().unwrap();
    assert_eq!((set.num_graphs(), golden["cutoff"].as_f64()), (frames.len(), Some(5.0)));
    let (mut repeated, mut own) = (0, 0);
    for (graph, frame) in frames.iter().enumerate() {
        let mut nearest: BTreeMap<(u32, u32), f64> = BTreeMap::new();
        for edge in frame.as_array().unwrap() {
            let [target, source] = [0, 1].map(|end| edge[end].as_u64().unwrap() as u32);
            if target == source {
                own += 1;
                continue;
            }
            let length = edge[2].as_f64().unwrap();
            let shortest = nearest.entry((target, source)).or_insert(f64::INFINITY);
            repeated += u64::from(shortest.is_finite());
            *shortest = shortest.min(length);
        }
        let edges = set.edge_pointers[graph] as usize..set.edge_pointers[graph + 1] as usize;
        let found: Vec<(u32, u32)> = edges.clone().map(|edge| (set.targets[edge], set.sources[edge])).collect();
        assert_eq!(found, nearest.keys().copied().collect::<Vec<_>>(), "frame {graph}");
        // Sixteen Gaussians from 0 to the cutoff.
        for (edge, length) in edges.zip(nearest.values()) {
            for (centre, found) in (0u8..).zip(&set.edge_features[16 * edge..16 * (edge + 1)]) {
                let expected = (-0.5 * (length * 3.0 - f64::from(centre)).powi(2)).exp();
                assert!((f64::from(*found) - expected).abs() < 1e-5, "frame {graph}: {found} {expected}");
            }
        }
    }
    assert!(repeated > 0 && own > 0);
    assert_eq!((set.left_out.repeated, set.left_out.self_loops), (repeated, own));
}

#[test]
fn bad_frames_are_named_with_their_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("water.xyz");
    let assert_error = |from: &str, to: &str, parts: &[&str]| {
        let text = water(2);
        assert!(text.contains(from), "no {from}");
        fs::write(&file, text.replacen(from, to, 1)).unwrap();
        assert_refused(&file, parts);
    };
    assert_error("3\n", "2\n", &["water.xyz, line 5", "expected the number of atoms of a frame"]);
    assert_error("3\n", "4\n", &["water.xyz, line 6: 1 columns", "the number of atoms is too large"]);
    assert_error("3\n", "0\n", &["water.xyz, line 1: a frame of 0 atoms"]);
    assert_error("H 0.757", "H inf", &["water.xyz, line 4: 'inf', expected a finite coordinate"]);
    assert_error("pos:R:3", "pos:X:3", &["water.xyz, line 2: type 'X' of property 'pos'"]);
    assert_error("pbc=\"F F F\"", "pbc=\"T T F\"", &["water.xyz, line 2: no Lattice, expected a Lattice"]);
    assert_error(
        "pbc=\"F F F\"",
        "Lattice=\"9 0 0\"",
        &["water.xyz, line 2: Lattice '9 0 0', expected nine finite numbers"],
    );
    let tiny = "Lattice=\"1e-3 0 0 0 1e-3 0 0 0 1e-3\"";
    assert_error("pbc=\"F F F\"", tiny, &["water.xyz, line 4: nodes 1 and 2 of graph 1 in one place"]);
    assert_error("-76.400", "much", &["water.xyz, line 2: 'Energy' has 'much', expected a finite number"]);
    assert_error(
        "Energy",
        "E",
        &["water.xyz, line 2: no target among the numeric keys (E, dipole)", "put the file into a folder"],
    );
    assert_error("Energy=-76.300", "E=1", &["water.xyz, line 7: no key 'Energy' (numeric keys: E, dipole)"]);
    let text = water(2);
    fs::write(&file, text.trim_end().rsplit_once('\n').unwrap().0).unwrap();
    assert_refused(&file, &["water.xyz, line 9: the end of the file after 2 of 3 atoms"]);
    fs::write(folder.path().join("kdgat-graphs.toml"), "name = \"w\"\ndirected = true\n").unwrap();
    assert_refused(folder.path(), &["kdgat-graphs.toml, line 2: `directed`"]);
}

#[test]
fn a_model_is_trained_on_an_xyz_file() {
    let place = Workplace::new();
    fs::write(place.path().join("water.xyz"), water(40)).unwrap();
    let text = place.success(&["data", "check", "--data", "water.xyz"]);
    for part in
        ["water: 40 graphs, regression", "species (2 values)", "distance_0 to distance_15", "each with its reverse"]
    {
        assert!(text.contains(part), "{text}");
    }
    let options = ["--hidden", "8", "--layers", "2", "--max-epochs", "2", "--device", "cpu", "--threads", "1"];
    place.success(&[&["train", "--preset", "gin,teacher", "--data", "water.xyz"][..], &options].concat());
    fs::write(place.path().join("water.xyz"), "3\n").unwrap();
    let text = place.refused(&["data", "check", "--data", "water.xyz"]);
    assert!(text.contains("water.xyz, line 1: the end of the file"), "{text}");
}

#[cfg(not(feature = "parquet"))]
#[test]
fn parquet_tables_are_refused_with_the_feature_to_build() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("graphs.parquet"), "PAR1").unwrap();
    assert!(dataset::is_dataset(folder.path()));
    assert_refused(folder.path(), &["graphs.parquet: a Parquet file", "rebuild it with `--features parquet`"]);
}

/// A pair and a single node; the pair's second node and the single node have targets.
fn write_node_targets(folder: &Path, settings: &str, nodes: &str) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("graphs.csv"), "graph_id,split\npair,train\nlone,test\n").unwrap();
    fs::write(folder.join("nodes.csv"), nodes).unwrap();
    fs::write(folder.join("edges.csv"), "graph_id,source,target\npair,a,b\n").unwrap();
    fs::write(folder.join("kdgat-graphs.toml"), settings).unwrap();
}

#[test]
fn targets_of_nodes_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    // Rows are in another order than graphs.
    let nodes = "graph_id,node_id,x_a,y\nlone,z,1,red\npair,a,2,\npair,b,3,red\n";
    for settings in ["", "task = \"node-classification\"\n"] {
        write_node_targets(path, settings, nodes);
        let set = dataset::read(path).unwrap();
        assert_eq!((set.schema.task, set.schema.level), (Task::Classification, Level::Node));
        assert_eq!(set.schema.targets[0].classes, ["red"]);
        assert_eq!((set.graph_targets.len(), set.node_features.as_slice()), (0, &[2.0, 3.0, 1.0][..]));
        assert!(set.node_targets[0].is_nan() && set.node_targets[1..] == [0.0, 0.0], "{:?}", set.node_targets);
        let summary = Summary::of(&set, 5.0);
        assert_eq!((summary.with_targets, &summary.target_values[0]), (2, &TargetValues::Classes(vec![2])));
    }
    let nodes = "graph_id,node_id,y_a,y_b\nlone,z,0,1\npair,a,1,1\npair,b,1,0\n";
    write_node_targets(path, "task = \"node-multi-label\"\ntargets = [\"y_b\"]\n", nodes);
    let set = dataset::read(path).unwrap();
    assert_eq!((set.schema.task_name(), set.node_targets.as_slice()), ("node-multi-label", &[1.0, 0.0, 1.0][..]));
    write_node_targets(path, "", nodes);
    let set = dataset::read(path).unwrap();
    assert_eq!((set.schema.task, set.node_targets.len()), (Task::MultiLabel, 6));
    write_node_targets(path, "task = \"node-regression\"\n", nodes);
    assert_eq!(dataset::read(path).unwrap().schema.task_name(), "node-regression");

    // A store keeps them, and a selection of graphs of a batch has those of its nodes.
    let nodes = "graph_id,node_id,y_a,y_b\nlone,z,0.5,1\npair,a,,\npair,b,1,0\n";
    write_node_targets(path, "", nodes);
    let stores = tempfile::tempdir().unwrap();
    let store = open_or_build_graphs(path, stores.path(), &()).unwrap();
    store.verify().unwrap();
    let options = AssembleOptions::new(Arc::new(Vocabulary::from_ids([])));
    let batch = assemble(&store, &[1, 0, 1], &options).unwrap();
    let expect = |batch: &Batch, nodes: &[i64], values: &[f32], pointers: &[u64]| {
        let targets = batch.node_targets.as_ref().unwrap();
        assert_eq!(Vec::<i64>::try_from(&targets.nodes).unwrap(), nodes);
        assert_eq!(Vec::<f32>::try_from(&targets.values.flatten(0, -1)).unwrap(), values);
        assert_eq!(targets.pointers[..], *pointers);
    };
    expect(&batch, &[0, 2, 3], &[0.5, 1.0, 1.0, 0.0, 0.5, 1.0], &[0, 1, 2, 3]);
    expect(&batch.select_graphs(&[1, 2]).unwrap(), &[1, 2], &[1.0, 0.0, 0.5, 1.0], &[0, 1, 2]);
    expect(&batch.select_graphs(&[2]).unwrap(), &[0], &[0.5, 1.0], &[0, 1]);
}

#[test]
fn bad_targets_of_nodes_are_named_with_their_lines() {
    let folder = tempfile::tempdir().unwrap();
    let refuse = |settings: &str, nodes: &str, parts: &[&str]| {
        write_node_targets(folder.path(), settings, nodes);
        assert_refused(folder.path(), parts);
    };
    let rows = |lone: &str, first: &str, second: &str| {
        format!("graph_id,node_id,y_a,y_b\nlone,z,{lone}\npair,a,{first}\npair,b,{second}\n")
    };
    refuse("", &rows("1,2", "3,", "1,2"), &["nodes.csv, line 3: column 'y_b' has an empty field", "or no target"]);
    refuse("", &rows(",", "3,4", "1,2"), &["nodes.csv: graph 'lone' has no node with a value in y_a, y_b"]);
    let regression = "task = \"node-regression\"\n";
    refuse(regression, &rows("1,2", "3,x", "1,2"), &["nodes.csv, line 3: 'y_b' has 'x', expected a finite number"]);
    refuse("task = \"node-multi-label\"\n", &rows("1,0", ",", "1,2"), &["nodes.csv, line 4: 'y_b' has '2'", "0 or 1"]);
    let classes = "task = \"node-classification\"\n";
    refuse(classes, &rows("1,0", ",", "1,2"), &["nodes.csv, line 1: a second target 'y_b'"]);
    let one = "graph_id,node_id,y\npair,a,red\npair,b,\nlone,z,blue\n";
    refuse(classes, one, &["nodes.csv, line 4: class 'blue', which no training graph has"]);
    let none = "graph_id,node_id,x_a\npair,a,1\npair,b,2\nlone,z,3\n";
    refuse(classes, none, &["nodes.csv, line 1: no target among graph_id, node_id, x_a", "a column y"]);
    refuse("", none, &["graphs.csv, line 1: no target among graph_id, split", "in that of nodes"]);
    refuse("task = \"nodes\"\n", none, &["kdgat-graphs.toml, line 1", "node-classification"]);
    fs::write(folder.path().join("water.xyz"), water(3)).unwrap();
    for file in ["graphs.csv", "nodes.csv", "edges.csv"] {
        fs::remove_file(folder.path().join(file)).unwrap();
    }
    fs::write(folder.path().join("kdgat-graphs.toml"), regression).unwrap();
    assert_refused(folder.path(), &["kdgat-graphs.toml, line 1: a task of nodes for atoms", "nodes.csv"]);
}

#[cfg(feature = "parquet")]
mod parquet_tables {
    use std::sync::Arc;

    use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, FloatType, Int64Type};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    use super::*;

    /// A column to write: its values, without those that are null.
    enum Column {
        Texts(Vec<&'static str>),
        Integers(Vec<i64>),
        Doubles(Vec<f64>),
        Floats(Vec<f32>),
        Booleans(Vec<bool>),
    }

    fn write(path: &Path, schema: &str, columns: &[Column], definitions: Option<&[i16]>) {
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let properties = Arc::new(WriterProperties::builder().build());
        let mut writer = SerializedFileWriter::new(fs::File::create(path).unwrap(), schema, properties).unwrap();
        let mut group = writer.next_row_group().unwrap();
        for column in columns {
            let mut next = group.next_column().unwrap().unwrap();
            match column {
                Column::Texts(texts) => {
                    let texts: Vec<ByteArray> = texts.iter().map(|text| ByteArray::from(*text)).collect();
                    next.typed::<ByteArrayType>().write_batch(&texts, definitions, None)
                }
                Column::Integers(values) => next.typed::<Int64Type>().write_batch(values, definitions, None),
                Column::Doubles(values) => next.typed::<DoubleType>().write_batch(values, definitions, None),
                Column::Floats(values) => next.typed::<FloatType>().write_batch(values, definitions, None),
                Column::Booleans(values) => next.typed::<BoolType>().write_batch(values, definitions, None),
            }
            .unwrap();
            next.close().unwrap();
        }
        group.close().unwrap();
        writer.close().unwrap();
    }

    fn write_graphs(folder: &Path) {
        let schema = "message m { required binary graph_id (UTF8); required double y; required binary split (UTF8); }";
        let (ids, splits) = (vec!["bent", "lone", "far"], vec!["train", "train", "test"]);
        let columns = [Column::Texts(ids), Column::Doubles(vec![1.5, -2.5, 0.25]), Column::Texts(splits)];
        write(&folder.join("graphs.parquet"), schema, &columns, None);
    }

    #[test]
    fn each_table_can_be_parquet_or_csv() {
        let folder = tempfile::tempdir().unwrap();
        write_positions(folder.path());
        // Two nodes in one place are named by the line or the row of the format.
        let read = |folder: &Path| {
            let mut set = dataset::read(folder).unwrap();
            let unfit = set.schema.space.as_mut().and_then(|space| space.unfit.as_mut()).unwrap();
            let (place, fault) = unfit.split_once(": ").unwrap();
            let expected = if place.starts_with("nodes.csv") { "nodes.csv, line 7" } else { "nodes.parquet, row 6" };
            assert_eq!(place, expected);
            *unfit = fault.to_owned();
            set
        };
        let expected = read(folder.path());
        write_graphs(folder.path());
        assert_refused(folder.path(), &["graphs.parquet: the same table as graphs.csv", "remove the other"]);
        fs::remove_file(folder.path().join("graphs.csv")).unwrap();
        assert_eq!(read(folder.path()), expected);

        let schema = "message m { required binary graph_id (UTF8); required binary node_id; required binary c_element (UTF8); \
                      required double pos_x; required float pos_y; required int64 pos_z; }";
        let columns = [
            Column::Texts(vec!["bent", "far", "bent", "lone", "bent", "far"]),
            Column::Texts(vec!["a", "a", "b", "a", "c", "b"]),
            Column::Texts(vec!["O", "H", "H", "He", "H", "H"]),
            Column::Doubles(vec![0.0, 1e6, 3.0, 0.0, 0.0, 1e6]),
            Column::Floats(vec![0.0, -2.0, 0.0, 0.0, 4.0, -2.0]),
            Column::Integers(vec![0, 3, 0, 0, 0, 3]),
        ];
        write(&folder.path().join("nodes.parquet"), schema, &columns, None);
        fs::remove_file(folder.path().join("nodes.csv")).unwrap();
        assert_eq!(read(folder.path()), expected);
    }

    #[test]
    fn targets_of_nodes_are_those_of_the_same_csv() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        write_node_targets(path, "", "graph_id,node_id,y\nlone,z,0.5\npair,a,1.5\npair,b,2.5\n");
        let expected = dataset::read(path).unwrap();
        let schema =
            "message m { required binary graph_id (UTF8); required binary node_id (UTF8); required double y; }";
        let columns = [
            Column::Texts(vec!["lone", "pair", "pair"]),
            Column::Texts(vec!["z", "a", "b"]),
            Column::Doubles(vec![0.5, 1.5, 2.5]),
        ];
        write(&path.join("nodes.parquet"), schema, &columns, None);
        fs::remove_file(path.join("nodes.csv")).unwrap();
        let found = dataset::read(path).unwrap();
        assert_eq!(found, expected);
        assert_eq!(found.node_targets, [1.5, 2.5, 0.5]);
    }

    #[test]
    fn bad_cells_are_named_with_their_row() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        write_positions(path);
        fs::remove_file(path.join("kdgat-graphs.toml")).unwrap();
        let edges = path.join("edges.parquet");
        let ends = "required binary graph_id (UTF8); required binary source (UTF8); required binary target (UTF8);";
        let columns = |second: &'static str| {
            [Column::Texts(vec!["bent", "bent"]), Column::Texts(vec!["a", second]), Column::Texts(vec!["b", "c"])]
        };
        write(&edges, &format!("message m {{ {ends} }}"), &columns("b"), None);
        assert_eq!(dataset::read(path).unwrap().sources, [0, 1]);
        write(&edges, &format!("message m {{ {ends} }}"), &columns("x"), None);
        assert_refused(path, &["edges.parquet, row 2", "node 'x'", "a node of graph bent in nodes.csv"]);
        write(&edges, "message m { required binary graph_id (UTF8); }", &columns("b")[..1], None);
        assert_refused(path, &["edges.parquet: no column 'source' among graph_id"]);
        fs::remove_file(&edges).unwrap();

        fs::remove_file(path.join("graphs.csv")).unwrap();
        let graphs = path.join("graphs.parquet");
        let of_graphs = |ids: Vec<&'static str>, flags: Vec<bool>, definitions: &[i16]| {
            let schema = "message m { optional binary graph_id (UTF8); optional boolean y; }";
            write(&graphs, schema, &[Column::Texts(ids), Column::Booleans(flags)], Some(definitions));
        };
        fs::write(path.join("edges.csv"), "graph_id,source,target\n").unwrap();
        of_graphs(vec!["bent", "lone", "far"], vec![true, false, true], &[1, 1, 1]);
        assert_eq!(dataset::read(path).unwrap().graph_targets, [1.0, 0.0, 1.0]);
        of_graphs(vec!["bent", "far"], vec![true, true], &[1, 0, 1]);
        assert_refused(path, &["graphs.parquet, row 2", "'graph_id'", "an empty field"]);
        fs::write(&graphs, "PAR1 cut off").unwrap();
        assert_refused(path, &["graphs.parquet: ", "expected a readable Parquet file"]);
    }
}
