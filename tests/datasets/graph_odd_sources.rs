//! Sources of graphs as people and other programs leave them: missing targets, targets named like features, several datasets in a folder,
//! missing files, other libraries' layouts.

use std::fs;
use std::path::Path;

use kdgat::graph::dataset::{self, Summary};
use kdgat::graph::{Split, Task};

/// Asserts that reading fails with a message that has all of `parts`.
fn assert_refused(path: &Path, parts: &[&str]) {
    let text = dataset::read(path).map(|set| set.num_graphs()).unwrap_err().to_string();
    assert!(parts.iter().all(|part| text.contains(part)), "{text} lacks one of {parts:?}");
}

/// A pair and a single node, with this table of nodes.
fn write_pair(folder: &Path, settings: &str, nodes: &str) {
    let graphs = "graph_id,split\npair,train\nlone,test\n";
    let edges = "graph_id,source,target\npair,a,b\n";
    let tables = [("graphs.csv", graphs), ("nodes.csv", nodes), ("edges.csv", edges)];
    write_files(folder, &[&tables[..], &[("kdgat-graphs.toml", settings)]].concat());
}

/// Writes files into an emptied folder.
fn write_files(folder: &Path, files: &[(&str, &str)]) {
    if folder.exists() {
        fs::remove_dir_all(folder).unwrap();
    }
    for (name, text) in files {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

#[test]
fn a_target_is_no_feature() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let nodes = "graph_id,node_id,x_a,x_charge,c_kind,pos_x,pos_y,pos_z\npair,a,1,0.5,u,0,0,0\npair,b,2,1.5,v,1,0,0\nlone,z,3,2.5,u,0,0,0\n";
    let features = |settings: &str| {
        write_pair(path, settings, nodes);
        let set = dataset::read(path).unwrap();
        let names: Vec<String> = set.schema.node_features.iter().map(|feature| feature.name.clone()).collect();
        (names.join(" "), Summary::of(&set, 5.0).notes)
    };
    let note = |name: &str| vec![format!("{name} is a target and so no feature of nodes")];
    let charge = "task = \"node-regression\"\ntargets = [\"x_charge\"]\n";
    assert_eq!(features(charge), ("x_a c_kind".to_owned(), note("x_charge")));
    let kind = "task = \"node-classification\"\ntargets = [\"c_kind\"]\nsplit = \"split\"\n";
    write_pair(path, kind, &nodes.replace("b,2,1.5,v", "b,2,1.5,u"));
    assert_eq!(dataset::read(path).unwrap().schema.node_features.len(), 2);
    // A position may be a target, but not if it decides which nodes have edges.
    let position = "task = \"node-regression\"\ntargets = [\"pos_x\"]\n";
    assert_eq!(features(position).0, "x_a x_charge c_kind");
    write_pair(path, &format!("{position}cutoff = 2.0\n"), nodes);
    fs::remove_file(path.join("edges.csv")).unwrap();
    assert_refused(path, &["kdgat-graphs.toml, line 3: a target pos_x, from which `cutoff` makes the edges"]);
}

#[test]
fn graphs_without_a_target_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let nodes = "graph_id,node_id,x_a\na,1,1\nb,1,2\nb,2,3\nc,1,4\nd,1,5\n";
    let edges = "graph_id,source,target,e_w\nb,1,2,0.5\nb,2,1,0.25\n";
    let tables =
        |graphs: &str| write_files(path, &[("graphs.csv", graphs), ("nodes.csv", nodes), ("edges.csv", edges)]);
    tables("graph_id,y,split\na,NaN,train\nb,1,train\nc,,test\nd,1,test\n");
    let set = dataset::read(path).unwrap();
    assert_eq!(
        (&set.graph_ids[..], &set.without_targets[..]),
        (&["b".to_owned(), "d".to_owned()][..], &["a".to_owned(), "c".to_owned()][..])
    );
    assert_eq!((set.schema.task, &set.schema.targets[0].classes[..]), (Task::Classification, &["1".to_owned()][..]));
    assert_eq!((&set.node_pointers[..], &set.node_features[..]), (&[0, 2, 3][..], &[2.0, 3.0, 5.0][..]));
    assert_eq!((&set.edge_pointers[..], set.edge_features.len()), (&[0, 2, 2][..], 2));
    assert_eq!((&set.graph_targets[..], set.splits), (&[0.0, 0.0][..], Some(vec![Split::Train, Split::Test])));
    assert_eq!(set.notes, ["2 of 4 graphs have no value in y and are left out, the first of them 'a'"]);
    // Beside a missing value, other programs write integers as 1.0. Values of several targets are all there or all missing.
    tables("graph_id,y\na,0.0\nb,1.0\nc,NA\nd,0.0\n");
    let set = dataset::read(path).unwrap();
    assert_eq!(
        (set.schema.task, &set.schema.targets[0].classes[..]),
        (Task::Classification, &["0".to_owned(), "1".to_owned()][..])
    );
    tables("graph_id,y_a,y_b\na,0.5,nan\nb,1,2\nc,1,2\nd,3,4\n");
    assert_refused(path, &["graphs.csv, line 2: 'y_b' has 'nan', expected a value, or no target of the graph at all"]);
    tables("graph_id,y\na,nan\nb,\nc,?\nd,null\n");
    assert_refused(path, &["graphs.csv, line 1: no value in y, expected targets of some graphs"]);
    // Numbers beside a word are names, which is noted.
    tables("graph_id,y\na,0\nb,1\nc,1\nd,one\n");
    let set = dataset::read(path).unwrap();
    assert_eq!(set.notes, ["the numbers of y are read as names of classes, because graphs.csv, line 5 has 'one'"]);

    // The same in the other formats, and for nodes.
    let energies: String = ["-1", "nan", "-2"].map(|energy| format!("1\nenergy={energy}\nH 0 0 0\n")).concat();
    write_files(path, &[("a.xyz", &energies)]);
    assert_eq!(dataset::read(path).unwrap().graph_targets, [-1.0, -2.0]);
    let tu = [("D_A.txt", ""), ("D_graph_indicator.txt", "1\n2\n3\n")];
    write_files(path, &[&tu[..], &[("D_graph_labels.txt", "1\nnan\n2\n")]].concat());
    let set = dataset::read(path).unwrap();
    assert_eq!((&set.graph_ids[..], set.schema.targets[0].classes.len()), (&["1".to_owned(), "3".to_owned()][..], 2));
    write_files(path, &[&tu[..], &[("D_graph_attributes.txt", "0.5, 1\nNaN, NaN\n2, 3\n")]].concat());
    assert_eq!(dataset::read(path).unwrap().graph_targets, [0.5, 1.0, 2.0, 3.0]);
    write_pair(path, "", "graph_id,node_id,y\nlone,z,red\npair,a,NaN\npair,b,red\n");
    let set = dataset::read(path).unwrap();
    assert_eq!((set.schema.targets[0].classes.len(), set.node_targets[0].is_nan()), (1, true));
}

#[test]
fn several_datasets_in_one_place_are_refused() {
    use std::io::Write;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let tu = |name: &str| {
        [("A", "1, 2\n"), ("graph_indicator", "1\n1\n2\n"), ("graph_labels", "0\n1\n")]
            .map(|(kind, text)| (format!("{name}_{kind}.txt"), text))
    };
    let (first, second) = (tu("AB"), tu("CD"));
    let files = |all: &[&[(String, &'static str)]]| -> Vec<(String, &'static str)> { all.concat() };
    let write = |files: &[(String, &str)]| {
        write_files(&path, &files.iter().map(|(name, text)| (name.as_str(), *text)).collect::<Vec<_>>());
    };
    write(&files(&[&first, &second]));
    assert!(dataset::is_dataset(&path));
    assert_refused(&path, &["it holds 2 datasets: a TUDataset (AB_*.txt), a TUDataset (CD_*.txt)", "move all but one"]);
    fs::write(path.join("frames.xyz"), "1\nenergy=1\nH 0 0 0\n").unwrap();
    assert_refused(&path, &["it holds 3 datasets: extended XYZ (frames.xyz), a TUDataset (AB_*.txt)"]);
    write(&files(&[&first]));
    fs::write(path.join("kdgat-graphs.toml"), "name = \"a\"\n").unwrap();
    assert_refused(&path, &["kdgat-graphs.toml: settings beside a TUDataset", "remove them"]);
    // Hidden files of macOS are no dataset.
    write(&files(&[&first]));
    fs::write(path.join("._EF_graph_indicator.txt"), "x").unwrap();
    fs::write(path.join(".DS_Store"), "x").unwrap();
    let digest = dataset::source_digest(&path).unwrap();
    assert_eq!(dataset::read(&path).unwrap().name, "AB");
    fs::remove_file(path.join(".DS_Store")).unwrap();
    assert_eq!(dataset::source_digest(&path).unwrap(), digest);

    let archive = folder.path().join("both.zip");
    let write = |members: &[(String, &str)]| {
        let mut zip = zip::ZipWriter::new(fs::File::create(&archive).unwrap());
        for (name, text) in members {
            zip.start_file(name.as_str(), zip::write::SimpleFileOptions::default()).unwrap();
            zip.write_all(text.as_bytes()).unwrap();
        }
        zip.finish().unwrap();
    };
    let within = ["one", "two", "__MACOSX/one"];
    let members =
        within.iter().flat_map(|within| first.iter().map(move |(name, text)| (format!("{within}/{name}"), *text)));
    write(&members.collect::<Vec<_>>());
    assert_refused(&archive, &["it holds two files AB_A.txt: one/AB_A.txt and two/AB_A.txt", "unpack it"]);
    const TREE: &str = "1 3 0 0 0 1 -1\n2 3 1 0 0 1 1\n";
    // The class of a tree is its innermost folder: 2.swc may be in two of them, and the same tree in one alone.
    let trees = |paths: &[&str]| write(&paths.iter().map(|path| (path.to_string(), TREE)).collect::<Vec<_>>());
    trees(&["all/thin/1.swc", "all/thin/2.swc", "all/thick/2.swc"]);
    assert_eq!(dataset::read(&archive).unwrap().num_graphs(), 3);
    trees(&["all/thin/1.swc", "all/thick/2.swc", "copy/thin/1.swc"]);
    assert_refused(&archive, &["it holds two files thin/1.swc: all/thin/1.swc and copy/thin/1.swc", "unpack it"]);
}

#[test]
fn a_missing_file_or_an_odd_folder_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let labels = ("D_graph_labels.txt", "1\n2\n1\n");
    write_files(&path, &[("D_A.txt", "1, 2\n"), labels]);
    assert!(dataset::is_dataset(&path));
    assert_refused(&path, &["no D_graph_indicator.txt: it has the graph of each node"]);
    // Advice on numbers with gaps is right the first time.
    write_files(&path, &[("D_A.txt", ""), labels, ("D_graph_indicator.txt", "1\n2\n4\n")]);
    let (gaps, anew) = ("line 3: graph 4, although there are 3 graphs and 3 targets", "without gaps");
    assert_refused(&path, &["D_graph_indicator.txt", gaps, anew]);
    write_files(&path, &[("D_A.txt", ""), labels, ("D_graph_indicator.txt", "1\n1\n3\n")]);
    let advice = "graph 2 has no node: no line of D_graph_indicator.txt names it; remove line 2 of its targets, and lower by 1 every number above 2";
    assert_refused(&path, &[advice]);
    fs::write(path.join("D_graph_indicator.txt"), "1\n1\n2\n").unwrap();
    fs::write(path.join("D_graph_labels.txt"), "1\n1\n").unwrap();
    assert_eq!(dataset::read(&path).unwrap().num_graphs(), 2);
    write_files(&path, &[("nodes.csv", "node_id,y\n"), ("edges.csv", "source,target\n")]);
    assert_refused(&path, &["no graphs.csv", "for one large graph, write `task = \"node-class\"`"]);

    // What is no dataset says what is there.
    let explained = |files: &[(&str, &str)], text: &str| {
        write_files(&path, files);
        assert!(!dataset::is_dataset(&path), "{text}");
        let found = dataset::explain(&path).unwrap_or_default();
        assert!(found.contains(text), "{found} lacks {text}");
    };
    explained(&[("cora.npz", "")], "one large graph is named by its file: --data ");
    explained(&[("MAC/raw/D_A.txt", "1, 2\n"), ("MAC/raw/D_graph_labels.txt", "1\n")], "/data/MAC");
    explained(&[("raw/graph-label.csv.gz", "")], "Open Graph Benchmark whose graphs have labels");
    explained(&[("processed/data.pt", "")], "processed files of PyTorch Geometric");
    explained(&[("raw/ind.cora.x", "")], "raw/ has no file of a known format (found ind.cora.x)");
    explained(
        &[("Cora/raw/ind.cora.x", ""), ("Cora/processed/data.pt", "")],
        "Cora: processed files of PyTorch Geometric",
    );
    let nested = [("MAC/MAC/D_A.txt", "1, 2\n"), ("MAC/MAC/D_graph_labels.txt", "1\n")];
    explained(&nested, "/data/MAC/MAC");
    explained(&[("inner/net.npz", "")], "inner/net.npz");
    explained(&[("inner/logs.zip", ""), ("one/raw/edge.csv.gz", "")], "it holds a dataset of graphs; name it: --data ");
    write_files(&path, &[("D_A.txt", "1, 2\n"), ("weights.pt", ""), ("data.tar.gz", ""), ("drive.log", "")]);
    for (file, expected) in [
        ("D_A.txt", Some("it is one file of a dataset of graphs; name its folder")),
        ("weights.pt", Some("files of PyTorch and other libraries are not read")),
        ("data.tar.gz", Some("unpack it and name the folder")),
        ("drive.log", None),
    ] {
        let found = dataset::explain(&path.join(file));
        assert_eq!(found.is_some(), expected.is_some(), "{file}: {found:?}");
        assert!(expected.is_none_or(|text| found.unwrap_or_default().contains(text)), "{file}");
    }
    write_files(&path, &[("train_01_attack_free/log.csv", "")]);
    assert_eq!(dataset::explain(&path), None);
    // The folder of PyTorch Geometric has the files in raw/.
    let raw =
        [("raw/D_A.txt", "1, 2\n"), ("raw/D_graph_indicator.txt", "1\n1\n2\n"), ("raw/D_graph_labels.txt", "0\n1\n")];
    write_files(&path, &raw);
    assert_eq!((dataset::read(&path).unwrap().num_graphs(), dataset::is_dataset(&path)), (2, true));
}

#[test]
fn graphs_in_the_layout_of_dgl_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mini");
    let files = [
        (
            "meta.yaml",
            "dataset_name: named\nnode_data:\n- file_name: n.csv\nedge_data:\n- file_name: e.csv\ngraph_data:\n  file_name: g.csv\n",
        ),
        ("g.csv", "graph_id,label,feat\n0,1,\"1,2\"\n1,0,\"3,4\"\n"),
        ("n.csv", "graph_id,node_id,feat\n0,0,\"0.5,1\"\n0,1,\"2,3\"\n1,0,\"4,5\"\n"),
        ("e.csv", "graph_id,src_id,dst_id,w\n0,0,1,0.25\n"),
    ];
    write_files(&path, &files);
    assert!(dataset::is_dataset(&path));
    let set = dataset::read(&path).unwrap();
    assert_eq!((set.name.as_str(), set.num_graphs(), set.schema.task), ("named", 2, Task::Classification));
    assert_eq!((&set.node_features[..], &set.edge_features[..]), (&[0.5, 1.0, 2.0, 3.0, 4.0, 5.0][..], &[0.25][..]));
    assert_eq!((&set.graph_targets[..], set.notes.len()), (&[1.0, 0.0][..], 1));
    fs::remove_file(path.join("e.csv")).unwrap();
    assert_refused(&path, &["no e.csv: meta.yaml names it"]);
    write_files(&path, &[&files[..3], &[("e.csv", "graph_id,src_id,dst_id\n0,0,7\n")]].concat());
    assert_refused(&path, &["e.csv, line 2: column 'target' has node '7', expected a node of graph 0 in n.csv"]);
    // One graph is none of many.
    write_files(
        &path,
        &[("meta.yaml", "node_data:\n- file_name: n.csv\nedge_data:\n- file_name: e.csv\n"), files[2], files[3]],
    );
    assert!(!dataset::is_dataset(&path));
}

#[test]
fn species_are_elements_in_any_case() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let frame = |species: &str| format!("1\nenergy=-1\n{species} 0 0 0\n");
    write_files(path, &[("a.xyz", &["O", "o", "CL", "Cl", "X", "x"].map(frame).concat())]);
    let set = dataset::read(path).unwrap();
    assert_eq!(set.schema.node_features[0].values.as_deref().unwrap(), ["Cl", "O", "X", "x"]);
    assert_eq!(set.node_features[..8], [0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
    assert_eq!(set.notes, ["species are read as elements: CL as Cl, o as O"]);
}

#[test]
fn a_categorical_column_of_many_values_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let rows = |row: &dyn Fn(usize) -> String| (0..4097).map(row).collect::<String>();
    let graphs = "graph_id,y\na,0.5\nb,1.5\n";
    let nodes = format!("graph_id,node_id,c_id\nb,0,v0\n{}", rows(&|node| format!("a,{node},v{node}\n")));
    write_files(path, &[("graphs.csv", graphs), ("nodes.csv", &nodes), ("edges.csv", "graph_id,source,target\n")]);
    assert_refused(path, &["nodes.csv, line 1: column 'c_id' with 4097 different values", "leave the column out"]);
    let tu = [("D_A.txt", "1, 2\n"), ("D_graph_labels.txt", "0\n")];
    let (indicator, labels) = (rows(&|_| "1\n".to_owned()), rows(&|node| format!("{node}\n")));
    write_files(path, &[&tu[..], &[("D_graph_indicator.txt", &indicator), ("D_node_labels.txt", &labels)]].concat());
    assert_refused(path, &["D_node_labels.txt: column 'label' with 4097 different values", "the file of attributes"]);
}
