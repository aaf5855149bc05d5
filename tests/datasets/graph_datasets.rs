//! Datasets of graphs that are no CAN windows: formats, bad input, training, distillation and evaluation.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use kdgat::graph::dataset::{self, Summary, TargetValues};
use kdgat::graph::store::open_or_build_graphs;
use kdgat::graph::{AssembleOptions, DatasetError, Split, Task, Vocabulary, assemble};
use support::cli::Workplace;

/// Rings and stars with 4 to 9 nodes in the text format of TUDataset: which of the two is the class, and every node has the label 0 or 1.
fn write_tu(folder: &Path, name: &str, graphs: usize) {
    let (mut edges, mut indicator, mut labels, mut node_labels) = <(String, String, String, String)>::default();
    let mut first = 1;
    for graph in 0..graphs {
        let nodes = 4 + graph % 6;
        let is_ring = graph % 2 == 0;
        for node in 0..nodes {
            indicator += &format!("{}\n", graph + 1);
            node_labels += &format!("{}\n", (graph + node) % 2);
            let other = if is_ring { (node + 1) % nodes } else { 0 };
            if other != node {
                edges += &format!("{}, {}\n{}, {}\n", first + node, first + other, first + other, first + node);
            }
        }
        labels += if is_ring { "1\n" } else { "-1\n" };
        first += nodes;
    }
    fs::create_dir_all(folder).unwrap();
    for (kind, text) in
        [("A", edges), ("graph_indicator", indicator), ("graph_labels", labels), ("node_labels", node_labels)]
    {
        fs::write(folder.join(format!("{name}_{kind}.txt")), text).unwrap();
    }
}

/// Paths with 2 to 7 nodes as tables; the target is the number of nodes times two, plus the mean of a feature.
fn write_tables(folder: &Path, graphs: usize) {
    let mut of_graphs = "graph_id,y,split\n".to_owned();
    let mut nodes = "graph_id,node_id,x_a,c_kind\n".to_owned();
    let mut edges = "graph_id,source,target,e_w\n".to_owned();
    for graph in 0..graphs {
        let count = 2 + graph % 6;
        let split = ["train", "train", "train", "validation", "test"][graph % 5];
        let value = (graph % 7) as f64 / 7.0;
        of_graphs += &format!("g{graph},{},{split}\n", 2.0 * count as f64 + value);
        for node in 0..count {
            nodes += &format!("g{graph},n{node},{value},{}\n", ["C", "N"][node % 2]);
            if node > 0 {
                edges += &format!("g{graph},n{},n{node},1.5\n", node - 1);
            }
        }
    }
    fs::create_dir_all(folder).unwrap();
    for (name, text) in [("graphs.csv", of_graphs), ("nodes.csv", nodes), ("edges.csv", edges)] {
        fs::write(folder.join(name), text).unwrap();
    }
    fs::write(folder.join("kdgat-graphs.toml"), "directed = false\n").unwrap();
}

fn run(place: &Workplace, arguments: &[&str]) -> String {
    place.success(arguments)
}

fn refused(place: &Workplace, arguments: &[&str], text: &str) {
    let said = place.refused(arguments);
    assert!(said.contains(text), "{arguments:?}: {said}");
}

#[test]
fn the_text_format_is_read() {
    let folder = tempfile::tempdir().unwrap();
    write_tu(&folder.path().join("shapes"), "SHAPES", 12);
    let set = dataset::read(&folder.path().join("shapes")).unwrap();
    assert_eq!((set.name.as_str(), set.num_graphs(), set.schema.task), ("SHAPES", 12, Task::Classification));
    assert_eq!(set.schema.targets[0].classes, ["-1", "1"]);
    assert_eq!((set.num_nodes(0), set.num_edges(0), set.num_nodes(1), set.num_edges(1)), (4, 8, 5, 8));
    assert_eq!(&set.node_features[..4], [1.0, 0.0, 0.0, 1.0], "labels 0 and 1 of the first two nodes");
    // Each end of a star's edge lists it, so every edge of a star is there twice.
    assert_eq!((set.left_out.self_loops, set.left_out.repeated), (0, 0));
    let summary = Summary::of(&set, 5.0);
    assert!(summary.undirected && summary.warnings.is_empty(), "{summary:?}");
    assert_eq!(summary.target_values, [TargetValues::Classes(vec![6, 6])]);
}

#[test]
fn the_same_dataset_in_a_zip_archive_is_the_same() {
    use std::io::Write;
    let folder = tempfile::tempdir().unwrap();
    let unpacked = folder.path().join("SHAPES");
    write_tu(&unpacked, "SHAPES", 7);
    let archive = folder.path().join("SHAPES.zip");
    let mut zip = zip::ZipWriter::new(fs::File::create(&archive).unwrap());
    for entry in fs::read_dir(&unpacked).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("SHAPES/{}", path.file_name().unwrap().to_str().unwrap());
        zip.start_file(
            name,
            zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated),
        )
        .unwrap();
        zip.write_all(&fs::read(path).unwrap()).unwrap();
    }
    zip.finish().unwrap();
    assert_eq!(dataset::read(&archive).unwrap(), dataset::read(&unpacked).unwrap());
    assert_eq!(dataset::source_digest(&archive).unwrap(), dataset::source_digest(&unpacked).unwrap());
    fs::write(&archive, "not a zip").unwrap();
    let error = dataset::read(&archive).unwrap_err().to_string();
    assert!(error.contains("no readable zip archive"), "{error}");
}

#[test]
fn tables_are_read() {
    let folder = tempfile::tempdir().unwrap();
    write_tables(&folder.path().join("paths"), 20);
    let set = dataset::read(&folder.path().join("paths")).unwrap();
    assert_eq!((set.name.as_str(), set.num_graphs(), set.schema.task), ("paths", 20, Task::Regression));
    let names: Vec<&str> = set.schema.node_features.iter().map(|feature| feature.name.as_str()).collect();
    assert_eq!((names, set.schema.node_columns(), set.schema.edge_columns()), (vec!["x_a", "c_kind"], 3, 1));
    assert_eq!((set.num_nodes(1), set.num_edges(1)), (3, 4), "directed = false adds the reverse edges");
    assert_eq!(&set.node_features[..6], [0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
    let splits = set.splits.as_ref().unwrap();
    assert_eq!((splits[0], splits[3], splits[4]), (Split::Train, Split::Validation, Split::Test));
    assert_eq!(Summary::of(&set, 5.0).splits, Some([12, 4, 4]));
}

/// Every kind of bad input is an error that names the file, the line, what was found and what was expected.
#[test]
fn bad_input_is_named_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let assert_error = |prepare: &dyn Fn(&Path), is_table: bool, parts: &[&str]| {
        let path = folder.path().join("data");
        let _ = fs::remove_dir_all(&path);
        if is_table {
            write_tables(&path, 10)
        } else {
            write_tu(&path, "D", 6)
        }
        prepare(&path);
        let error = dataset::read(&path).map(|set| set.num_graphs()).unwrap_err();
        let text = error.to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "{text} lacks one of {parts:?}");
        assert!(!matches!(error, DatasetError::Io { .. }));
    };
    let edit = |file: &'static str, from: &'static str, to: &'static str| {
        move |path: &Path| {
            let path = path.join(file);
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.contains(from), "{file} has no {from}");
            fs::write(&path, text.replacen(from, to, 1)).unwrap();
        }
    };
    let remove = |file: &'static str| move |path: &Path| fs::remove_file(path.join(file)).unwrap();
    // Tables.
    assert_error(
        &edit("nodes.csv", "node_id", "name"),
        true,
        &["nodes.csv, line 1", "no column 'node_id'", "graph_id, name"],
    );
    assert_error(&edit("graphs.csv", "y,", "z,"), true, &["graphs.csv, line 1", "no target"]);
    assert_error(&edit("edges.csv", "g1,n0,n1", "g1,n0,n9"), true, &["edges.csv, line 3", "node 'n9'", "graph g1"]);
    assert_error(&edit("edges.csv", "g1,n0", "g77,n0"), true, &["edges.csv, line 3", "'g77'", "a graph of graphs.csv"]);
    assert_error(
        &edit("nodes.csv", "g0,n1,0", "g0,n1,NaN"),
        true,
        &["nodes.csv, line 3", "'x_a'", "'NaN'", "a finite number"],
    );
    assert_error(&edit("nodes.csv", "g0,n1,0,", "g0,n1,,"), true, &["nodes.csv, line 3", "'x_a'", "an empty field"]);
    assert_error(&edit("nodes.csv", "g0,n1,", "g0,n0,"), true, &["nodes.csv, line 3", "a second time in graph g0"]);
    assert_error(
        &edit("nodes.csv", "g0,n1,0,N", "g0,n1,0"),
        true,
        &["nodes.csv, line 3", "3 fields", "4 as in the header"],
    );
    assert_error(
        &edit("graphs.csv", "train", "tarin"),
        true,
        &["graphs.csv, line 2", "'tarin'", "train, validation or test"],
    );
    assert_error(&edit("graphs.csv", "g1,", "g0,"), true, &["graphs.csv, line 3", "'g0' a second time"]);
    assert_error(&edit("kdgat-graphs.toml", "directed", "directd"), true, &["kdgat-graphs.toml, line 1", "directd"]);
    assert_error(&remove("edges.csv"), true, &["no edges.csv"]);
    let without_nodes =
        |path: &Path| fs::write(path.join("graphs.csv"), "graph_id,y\ng0,1.5\ng1,2.5\nempty,3.5\n").unwrap();
    let only_two = |path: &Path| {
        without_nodes(path);
        fs::write(path.join("nodes.csv"), "graph_id,node_id\ng0,1\ng1,1\n").unwrap();
        fs::write(path.join("edges.csv"), "graph_id,source,target\n").unwrap();
    };
    assert_error(&only_two, true, &["graph 'empty' has no row in nodes.csv"]);
    let unknown_class = |path: &Path| {
        let rows = "graph_id,y,split\ng0,a,train\ng1,b,train\ng2,a,validation\ng3,c,test\n";
        fs::write(path.join("graphs.csv"), rows).unwrap();
        fs::write(path.join("nodes.csv"), "graph_id,node_id\ng0,1\ng1,1\ng2,1\ng3,1\n").unwrap();
        fs::write(path.join("edges.csv"), "graph_id,source,target\n").unwrap();
    };
    assert_error(&unknown_class, true, &["graphs.csv, line 5", "class 'c', which no training graph has"]);
    // TUDataset.
    assert_error(
        &edit("D_A.txt", "1, 2", "1, 1000000000"),
        false,
        &["D_A.txt, line 1", "'1000000000'", "a node from 1 to"],
    );
    assert_error(&edit("D_A.txt", "1, 2", "1, 9"), false, &["D_A.txt, line 1", "an edge from graph 1 to graph 2"]);
    assert_error(&edit("D_A.txt", "1, 2", "1, 2, 3"), false, &["D_A.txt, line 1", "a third number"]);
    assert_error(&edit("D_graph_indicator.txt", "1\n", "0\n"), false, &["D_graph_indicator.txt, line 1", "'0'"]);
    assert_error(
        &edit("D_graph_indicator.txt", "1\n", "99\n"),
        false,
        &[
            "D_graph_indicator.txt, line 1",
            "graph 99",
            "a graph from 1 to 6",
            "add the missing targets and number the graphs from 1 to 7",
        ],
    );
    let all = |from: &'static str, to: &'static str| {
        move |path: &Path| {
            let path = path.join("D_graph_indicator.txt");
            let text = fs::read_to_string(&path)
                .unwrap()
                .lines()
                .map(|line| line.replace(from, to) + "\n")
                .collect::<String>();
            fs::write(&path, text).unwrap();
        }
    };
    assert_error(&all("6", "60"), false, &["graph 60", "a graph from 1 to 6", "number the graphs anew, without gaps"]);
    let fewer = |path: &Path| {
        all("6", "60")(path);
        all("2", "1")(path);
    };
    assert_error(&fewer, false, &["graph 60", "a graph from 1 to 6", "remove the targets of graphs without a node"]);
    assert_error(&edit("D_graph_labels.txt", "1\n", "1\n1\n"), false, &["graph 7 has no node"]);
    assert_error(
        &edit("D_node_labels.txt", "0\n", "0\n0\n"),
        false,
        &["D_node_labels.txt", "one for each of the nodes"],
    );
    assert_error(&remove("D_graph_labels.txt"), false, &["no D_graph_labels.txt"]);
}

#[test]
fn data_check_describes_and_refuses() {
    let place = Workplace::new();
    write_tu(&place.path().join("SHAPES"), "SHAPES", 12);
    let text = run(&place, &["data", "check", "--data", "SHAPES"]);
    for part in
        ["SHAPES: 12 graphs, classification", "2 classes (-1: 6, 1: 6)", "label (2 values)", "each with its reverse"]
    {
        assert!(text.contains(part), "{text}");
    }
    fs::write(place.path().join("SHAPES/SHAPES_A.txt"), "1, 2\n3\n").unwrap();
    refused(&place, &["data", "check", "--data", "SHAPES"], "SHAPES_A.txt, line 2");
    refused(&place, &["train", "--preset", "gin,teacher", "--data", "SHAPES"], "SHAPES_A.txt, line 2");
    assert!(
        !place.path().join("stores").exists()
            || fs::read_dir(place.path().join("stores")).unwrap().all(|entry| {
                let name = entry.unwrap().file_name();
                name.to_string_lossy().ends_with(".lock")
            }),
        "nothing half built is left"
    );
    write_tu(&place.path().join("SHAPES"), "SHAPES", 12);
    refused(&place, &["classifier", "--preset", "gat,student", "--data", "SHAPES"], "train on it with `kdgat train`");
    refused(&place, &["train", "--preset", "gin,teacher"], "no dataset of graphs (tables, TUDataset");
    refused(&place, &["train", "--preset", "gin,teacher", "--data", "nowhere"], "no such folder or file");
    refused(&place, &["train", "--preset", "gin,teacher", "--data", "SHAPES", "--fold", "10"], "counted from 0");
    refused(
        &place,
        &["train", "--preset", "gin,teacher", "--data", "SHAPES", "--window", "50"],
        "--window would be ignored",
    );
}

/// 16 bits do not count the edges of such a graph; its neighbours in the store are as they were.
#[test]
fn a_graph_of_more_edges_than_16_bits_count_is_stored_and_trained_on() {
    let place = Workplace::new();
    let folder = place.path().join("dense");
    write_tables(&folder, 10);
    let before = open_or_build_graphs(&folder, &place.path().join("stores"), &()).unwrap();
    let mut nodes = fs::read_to_string(folder.join("nodes.csv")).unwrap();
    let mut edges = fs::read_to_string(folder.join("edges.csv")).unwrap();
    // All of the 260 · 259 possible edges: more than 65,535.
    for source in 0..260 {
        nodes += &format!("g3,m{source},0.5,C\n");
        (0..260).filter(|target| *target != source).for_each(|target| edges += &format!("g3,m{source},m{target},1\n"));
    }
    fs::write(folder.join("nodes.csv"), nodes).unwrap();
    fs::write(folder.join("edges.csv"), edges).unwrap();
    let said = run(&place, &["data", "check", "--data", "dense"]);
    assert!(said.contains("67348"), "{said}");
    let store = open_or_build_graphs(&folder, &place.path().join("stores"), &()).unwrap();
    store.verify().unwrap();
    for graph in 0..10 {
        let (old, new) = (before.graph(graph), store.graph(graph));
        let own = old.num_nodes();
        let ends = (0..own).map(|node| new.edges_of(node)).collect::<Vec<_>>();
        assert_eq!(ends, (0..own).map(|node| old.edges_of(node)).collect::<Vec<_>>(), "graph {graph}");
        assert_eq!(&new.sources[..old.num_edges()], old.sources);
        if new.num_nodes() > own {
            assert_eq!((new.num_nodes() - own, new.num_edges() - old.num_edges()), (260, 67_340));
            let last = new.edges_of(new.num_nodes() - 1);
            assert_eq!((last.end, last.len()), (new.num_edges(), 259));
        }
    }
    let options = AssembleOptions::new(Arc::new(Vocabulary::from_ids([])));
    let batch = assemble(&store, &(0..10).collect::<Vec<_>>(), &options).unwrap();
    let loops = batch.num_nodes();
    assert_eq!(batch.adjacency.sources.size()[0], store.manifest().totals.edges as i64 + loops);
    let train = ["train", "--preset", "gin,teacher", "--data", "dense", "--max-epochs", "1", "--hidden", "4"];
    run(&place, &[&train[..], &["--folds", "3", "--device", "cpu"]].concat());
}

/// A teacher, a student that learns from it while it is offloaded, and their evaluation, for classes.
#[test]
fn a_teacher_and_its_student_are_trained_and_evaluated() {
    let place = Workplace::new();
    write_tu(&place.path().join("SHAPES"), "SHAPES", 120);
    let data = ["--data", "SHAPES", "--device", "cpu", "--threads", "1"];
    let with = |arguments: &[&str]| run(&place, &[arguments, &data].concat());
    with(&["train", "--preset", "gin,teacher", "--hidden", "16", "--layers", "2", "--max-epochs", "25"]);
    for preset in ["mlp,student", "gin,student", "gcn,student", "sage,student", "gat,student"] {
        let epochs = if preset.starts_with("gin") { "25" } else { "2" };
        let text = with(&[
            "train",
            "--preset",
            preset,
            "--hidden",
            "8",
            "--offload-teacher",
            "--max-epochs",
            epochs,
            "--use-kd",
        ]);
        assert!(text.contains("teacher") && text.contains("of targets cached"), "{text}");
    }
    let text = with(&["evaluate", "--resamples", "50"]);
    assert!(text.contains("most frequent or mean") && text.contains("gin_teacher_train"), "{text}");
    let rows: Vec<std::collections::HashMap<String, String>> =
        csv::Reader::from_path(place.path().join("runs/SHAPES/evaluation/graph_metrics.csv"))
            .unwrap()
            .deserialize()
            .map(Result::unwrap)
            .collect();
    let accuracy = |model: &str| -> f64 {
        let row = rows.iter().find(|row| row["model"] == model && row["metric"] == "accuracy");
        row.unwrap_or_else(|| panic!("no {model} in {rows:?}"))["value"].parse().unwrap()
    };
    assert!(accuracy("gin_teacher_train/1") > 0.9 && accuracy("gin_student_train_kd/1") > 0.9, "{text}");

    assert!(run(&place, &["teachers", "verify"]).contains("SHAPES/graph"));

    // A teacher of another fold may have been trained on this fold's test graphs.
    let other = ["train", "--preset", "gin,student", "--fold", "3", "--max-epochs", "1"];
    refused(&place, &[&other[..], &data].concat(), "another division of the graphs");
    with(&["train", "--preset", "gin,teacher", "--hidden", "16", "--layers", "2", "--max-epochs", "1", "--fold", "3"]);
    with(&other);

    // The weights of a training that has not ended may change.
    let folder = place.path().join("runs/SHAPES/gin_teacher_train/1");
    fs::rename(folder.join("summary.json"), folder.join("summary")).unwrap();
    let early =
        ["train", "--preset", "gin,student", "--max-epochs", "1", "--teacher-path", "runs/SHAPES/gin_teacher_train/1"];
    let said = with(&early);
    assert!(said.contains("the training of runs/SHAPES/gin_teacher_train/1 has not ended"), "{said}");
    fs::rename(folder.join("summary"), folder.join("summary.json")).unwrap();

    // Only the configuration of a run says which graphs are for testing: without it, nothing is scored or taught.
    fs::write(folder.join("config.json"), "{").unwrap();
    let taught =
        ["train", "--preset", "gin,student", "--teacher-path", "runs/SHAPES/gin_teacher_train/1/best.safetensors"];
    refused(&place, &[&taught[..], &data].concat(), "gin_teacher_train/1/config.json: damaged");
    refused(&place, &[&["evaluate"][..], &data].concat(), "gin_teacher_train/1/config.json: not the configuration");
    fs::remove_file(folder.join("config.json")).unwrap();
    let named = ["evaluate", "runs/SHAPES/gin_teacher_train/1"];
    refused(&place, &[&named[..], &data].concat(), "does not record how its graphs were divided");
}

/// Rows of a table, the header aside, in the opposite order.
fn reverse_rows(table: &Path) {
    let text = fs::read_to_string(table).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines[1..].reverse();
    fs::write(table, lines.join("\n") + "\n").unwrap();
}

/// Made folds depend on the number of graphs alone. Rows in another order, or data drawn anew, put a teacher's training graphs into the test set.
#[test]
fn models_of_data_that_changed_are_refused() {
    let place = Workplace::new();
    write_tables(&place.path().join("paths"), 60);
    let graphs = place.path().join("paths/graphs.csv");
    // Without a split of their own.
    let text = fs::read_to_string(&graphs)
        .unwrap()
        .lines()
        .fold(String::new(), |text, line| text + line.rsplit_once(',').unwrap().0 + "\n");
    fs::write(&graphs, &text).unwrap();
    let quick = ["--data", "paths", "--device", "cpu", "--threads", "1", "--max-epochs", "1", "--hidden", "4"];
    let train = |arguments: &[&'static str]| [&["train"], arguments, &quick[..]].concat();
    let student = train(&["--preset", "gin,student", "--run-dir", "taught"]);
    run(&place, &train(&["--preset", "gin,teacher", "--run-dir", "teacher"]));
    let evaluate = ["evaluate", "teacher", "--data", "paths", "--resamples", "0", "--device", "cpu"];
    run(&place, &evaluate);

    reverse_rows(&graphs);
    let said = place.refused(&student);
    let differs = "was trained on other data with the same division of the graphs (fold 0 of 10): the identifiers, targets or rows of the test graphs were \
                   others";
    assert!(
        said.contains(differs) && said.contains("train one with kdgat train --preset gin,teacher --data paths"),
        "{said}"
    );
    let curriculum =
        ["--preset", "gin,student", "--use-kd", "false", "--curriculum", "easiest", "--curriculum-start-share", "0.5"];
    let model = ["--difficulty-model", "teacher", "--run-dir", "curriculum"];
    refused(&place, &train(&[&curriculum[..], &model].concat()), "the difficulty model teacher");
    let said = place.refused(&evaluate);
    assert!(said.contains("teacher was trained on other graphs than paths has now: its test graphs"), "{said}");
    assert!(said.contains("restore the data, train it again with `kdgat train --data paths`"), "{said}");

    fs::write(&graphs, &text).unwrap();
    fs::write(place.path().join("paths/README.md"), "another file").unwrap();
    run(&place, &evaluate);
    run(&place, &student);
}

/// Another cutoff makes other edges of the same graphs.
#[test]
fn a_teacher_with_another_cutoff_fits() {
    let place = Workplace::new();
    let frame = |number: usize| {
        let x = 1.0 + number as f64 / 20.0;
        format!("3\nenergy={x}\nH 0 0 0\nO {x} 0 0\nH 0 {x} 0.5\n")
    };
    let folder = place.path().join("molecules");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("frames.xyz"), (0..30).map(frame).collect::<String>()).unwrap();
    let quick = ["--data", "molecules", "--device", "cpu", "--threads", "1", "--max-epochs", "1", "--hidden", "4"];
    let train = |arguments: &[&str]| run(&place, &[&["train"], arguments, &quick[..]].concat());
    train(&["--preset", "gin,teacher", "--run-dir", "teacher"]);
    fs::write(folder.join("kdgat-graphs.toml"), "cutoff = 1.9\n").unwrap();
    train(&["--preset", "gin,student", "--run-dir", "student"]);
    let said = place.refused(&["evaluate", "teacher", "--data", "molecules", "--device", "cpu"]);
    assert!(
        said.contains("its test graphs are the same, but others, their edges or the options of reading have changed"),
        "{said}"
    );
}

/// Rows of a file of predictions.
fn rows_of(path: &Path) -> Vec<std::collections::HashMap<String, String>> {
    csv::Reader::from_path(path).unwrap().deserialize().map(Result::unwrap).collect()
}

#[test]
fn predictions_name_graphs_and_options_of_windows_are_refused() {
    let place = Workplace::new();
    write_tables(&place.path().join("paths"), 50);
    let quick = ["--data", "paths", "--device", "cpu", "--threads", "1"];
    let student = ["train", "--preset", "gin,student", "--use-kd", "false", "--max-epochs", "1", "--hidden", "4"];
    for _ in 0..2 {
        run(&place, &[&student[..], &quick].concat());
    }
    let [one, other] = ["gin_student_train/1", "gin_student_train/2"];
    let folders = [one, one, other].map(|name| format!("runs/paths/{name}"));
    let weights = format!("{}/best.safetensors", folders[0]);
    let evaluate = ["evaluate", &folders[0], &weights, &folders[2], "--resamples", "0", "--predictions", "rows.csv"];
    let said = run(&place, &[&evaluate[..], &quick].concat());
    // A run that is named twice is scored once, and a run with equal settings, fold and seed is no further evidence.
    assert!(said.contains(&format!("{one} is already in the list")), "{said}");
    assert!(
        said.contains(&format!("counted once, with equal settings, fold and seed: {other} repeats {one}")),
        "{said}"
    );
    assert!(!said.contains("± 0.0000"), "{said}");
    let rows = rows_of(&place.path().join("rows.csv"));
    assert_eq!(rows.len(), 20, "10 test graphs for each of two models");
    // Test graphs are g4, g9, …
    let targets = fs::read_to_string(place.path().join("paths/graphs.csv")).unwrap();
    let (mut errors, of_one) = (0.0, rows.iter().filter(|row| row["model"] == one).collect::<Vec<_>>());
    for (row, graph) in of_one.iter().zip((4..).step_by(5)) {
        let number = |name: &str| row[name].parse::<f64>().unwrap();
        assert_eq!(
            (row["graph"].as_str(), row["fold"].as_str()),
            (format!("g{graph}").as_str(), "split of the dataset")
        );
        let line = targets.lines().find(|line| line.starts_with(&format!("g{graph},"))).unwrap();
        let target: f64 = line.split(',').nth(1).unwrap().parse().unwrap();
        assert!((number("target_y") - target).abs() < 1e-5, "{row:?}");
        errors += (number("predicted_y") - number("target_y")).abs() / of_one.len() as f64;
    }
    let metrics = fs::read(place.path().join("runs/paths/evaluation/graph_metrics.json")).unwrap();
    let metrics: serde_json::Value = serde_json::from_slice(&metrics).unwrap();
    let mean_error = metrics["models"][0]["metrics"][0]["value"].as_f64().unwrap();
    assert!((errors - mean_error).abs() < 1e-6, "{errors} and y MAE {mean_error}");
    assert_eq!(metrics["groups"][0]["runs"], 1);
    assert_eq!(metrics["repeats"], serde_json::json!([{ "model": other, "of": one }]));

    for ignored in
        [&["--calibrate-seconds", "5"][..], &["--calibrate-from", "a/b.csv"], &["--rules"], &["--rules", "false"]]
    {
        let said = place.refused(&[&["evaluate", &folders[0]], &quick[..], ignored].concat());
        let expected =
            format!("{} would be ignored: it is for CAN windows, and the data are graphs; drop it", ignored[0]);
        assert!(said.contains(&expected), "{said}");
    }
    for ignored in
        [["--threshold", "youden"], ["--window", "50"], ["--validation-fraction", "0.3"], ["--undirected", "true"]]
    {
        let said = place.refused(&[&["evaluate", &folders[0]], &quick[..], &ignored].concat());
        let expected = format!("{} {} would be ignored", ignored[0], ignored[1]);
        assert!(said.contains(ignored[0]) && said.contains("would be ignored"), "{expected}: {said}");
    }
}

/// A run is resumed with the division that it began with; settings that no loss depends on may be others.
#[test]
fn a_run_is_not_resumed_with_another_division() {
    let place = Workplace::new();
    write_tu(&place.path().join("shapes"), "SHAPES", 40);
    let common = ["train", "--preset", "gin,student", "--use-kd", "false", "--data", "shapes", "--hidden", "4"];
    let common = [&common[..], &["--device", "cpu", "--threads", "1", "--max-epochs", "1", "--run-dir", "r"]].concat();
    run(&place, &common);
    let resumed = [&common[..], &["--resume"]].concat();
    for (other, expected) in [
        (["--validation-fraction", "0.4"], "validation_fraction (it was 0.2, now 0.4)"),
        (["--fold", "1"], "the test set"),
        (["--lr", "0.001"], "lr (it was"),
    ] {
        let said = place.refused(&[&resumed[..], &other, &["--prefetch-batches", "2"]].concat());
        assert!(said.contains(expected), "{other:?}: {said}");
        assert!(!said.contains("prefetch_batches"), "{said}");
    }
    run(&place, &[&resumed[..], &["--prefetch-batches", "2", "--num-workers", "2"]].concat());
}

/// A regression: its errors are in the units of the target, and a resumed run goes on to the same losses.
#[test]
fn values_are_learned_and_a_resumed_run_is_the_same() {
    let place = Workplace::new();
    write_tables(&place.path().join("paths"), 150);
    let train = |run_dir: &str, epochs: &str, more: &[&str]| {
        let arguments = [
            "train",
            "--preset",
            "gin,teacher",
            "--data",
            "paths",
            "--hidden",
            "16",
            "--layers",
            "2",
            "--device",
            "cpu",
            "--threads",
            "1",
            "--schedule",
            "constant",
            "--optimize-batch-size",
            "false",
            "--batch-size",
            "16",
            "--run-dir",
            run_dir,
            "--max-epochs",
            epochs,
            "--lr",
            "0.005",
        ];
        run(&place, &[&arguments[..], more].concat())
    };
    train("whole", "30", &[]);
    let losses = |folder: &str| -> Vec<String> {
        let text = fs::read_to_string(place.path().join(folder).join("metrics.csv")).unwrap();
        text.lines().map(|line| line.split(',').take(5).collect::<Vec<_>>().join(",")).collect()
    };
    train("again", "30", &[]);
    assert_eq!(losses("whole"), losses("again"));
    let text = run(&place, &["evaluate", "whole", "--data", "paths", "--device", "cpu", "--resamples", "0"]);
    let line = text.lines().find(|line| line.starts_with("whole")).unwrap();
    let numbers: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [_, _, error, _, explained] = numbers[..] else { panic!("{line}") };
    assert!(error < 0.8 && explained > 0.9, "values from 4 to 15: {text}");
    // The target is linear in the number of nodes but for the mean of a feature.
    let linear = text.lines().find(|line| line.starts_with("linear in features")).unwrap();
    let numbers: Vec<f64> = linear.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [_, error, _, explained] = numbers[..] else { panic!("{linear}") };
    assert!(error < 0.8 && explained > 0.9, "{text}");
}
