//! Test graphs in a place of their own: `--test-data`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use kdgat::graph::Split;
use kdgat::graph::dataset::{self, GraphSet, Source};
use support::cli::Workplace;

use super::graph_sources::water;

fn tables(folder: &Path, files: &[(&str, &str)]) {
    fs::create_dir_all(folder).unwrap();
    files.iter().for_each(|(name, text)| fs::write(folder.join(name), text).unwrap());
}

fn joined(data: &Path, test: &Path) -> Result<GraphSet, String> {
    Source { data, test: Some(test) }.read().map_err(|error| error.to_string())
}

/// Two files are the same as a folder with both, of which the settings name one as the test set.
#[test]
fn files_apart_are_those_of_a_folder_with_settings() {
    let folder = tempfile::tempdir().unwrap();
    let [known, later] = ["known.xyz", "later.xyz"].map(|name| folder.path().join(name));
    fs::write(&known, water(4)).unwrap();
    // Another element, which comes first among both.
    fs::write(&later, water(3).replace("\nO 0 0 0", "\nF 0 0 0")).unwrap();
    let apart = joined(&known, &later).unwrap();
    fs::write(folder.path().join("kdgat-graphs.toml"), "test_files = [\"later.xyz\"]\n").unwrap();
    let together = dataset::read(folder.path()).unwrap();
    assert_eq!(apart.schema, together.schema);
    type Columns = (Vec<f32>, Vec<f32>, Vec<f32>, Vec<u16>, Split);
    let by_name = |set: &GraphSet| -> BTreeMap<String, Columns> {
        let of = |graph: usize| {
            let nodes = set.node_pointers[graph] as usize..set.node_pointers[graph + 1] as usize;
            let (width, space) = (set.schema.node_columns(), set.space.as_ref().unwrap());
            (
                set.targets_of(graph).to_vec(),
                set.node_features[nodes.start * width..nodes.end * width].to_vec(),
                space.positions[nodes.start * 3..nodes.end * 3].to_vec(),
                space.kinds[nodes].to_vec(),
                set.splits.as_ref().unwrap()[graph],
            )
        };
        (0..set.num_graphs()).map(|graph| (set.graph_ids[graph].clone(), of(graph))).collect()
    };
    assert_eq!(by_name(&apart), by_name(&together));
    // Graphs that are made in another way mean something else.
    fs::write(folder.path().join("kdgat-graphs.toml"), "cutoff = 1.0\n").unwrap();
    let error = joined(folder.path(), &later).unwrap_err();
    assert!(error.contains("edges within 5, as 16 Gaussians") && error.contains("edges within 1, as 16"), "{error}");
    let digest = |test: Option<&Path>| Source { data: &known, test }.digest().unwrap();
    assert!(digest(None) != digest(Some(&later)) && digest(Some(&later)) != digest(Some(&known)));
}

const NODES: &str = "graph_id,node_id,c_kind,x\na,1,red,0.5\na,2,blue,1\nb,1,red,2\n";
const EDGES: &str = "graph_id,source,target,kind\na,1,2,near\n";

#[test]
fn categories_and_classes_of_both_are_one() {
    let folder = tempfile::tempdir().unwrap();
    let [data, test] = ["data", "test"].map(|name| folder.path().join(name));
    let graphs = "graph_id,y\na,yes\nb,no\n";
    tables(&data, &[("graphs.csv", graphs), ("nodes.csv", NODES), ("edges.csv", EDGES)]);
    let of_test = |graphs: &str, nodes: &str| {
        tables(&test, &[("graphs.csv", graphs), ("nodes.csv", nodes), ("edges.csv", &EDGES.replace("near", "far"))]);
        joined(&data, &test)
    };
    // A kind of nodes and one of edges that the training data do not have; `yes` is the only class, of number 0 there.
    let nodes = &NODES.replace("blue", "green");
    let set = of_test("graph_id,y\na,yes\nb,yes\n", nodes).unwrap();
    assert_eq!(set.graph_ids, ["data:a", "data:b", "test:a", "test:b"]);
    let [kinds, edges] = [&set.schema.node_features, &set.schema.edge_features]
        .map(|features| features.iter().find_map(|feature| feature.values.clone()).unwrap());
    assert_eq!(
        (kinds, edges),
        (["blue", "green", "red"].map(String::from).to_vec(), ["far", "near"].map(String::from).to_vec())
    );
    assert_eq!((set.schema.targets[0].classes.len(), &set.graph_targets[..]), (2, &[1.0, 0.0, 1.0, 1.0][..]));
    let red = set.schema.node_features.iter().take_while(|feature| feature.values.is_none()).count() + 2;
    let is_red: Vec<f32> = set.node_features.chunks(set.schema.node_columns()).map(|row| row[red]).collect();
    assert_eq!(is_red, [1.0, 0.0, 1.0, 1.0, 0.0, 1.0]);
    assert_eq!((&set.edge_features[..], &set.edge_pointers[..]), (&[0.0, 1.0, 1.0, 0.0][..], &[0, 1, 1, 2, 2][..]));
    assert_eq!(set.splits.unwrap(), [Split::Train, Split::Train, Split::Test, Split::Test]);

    let yes = "graph_id,y\na,yes\nb,yes\n";
    for (graphs, nodes, expected) in [
        ("graph_id,y\na,yes\nb,maybe\n", nodes.clone(), "class 'maybe', which no training graph has"),
        ("graph_id,y\na,0.5\nb,1.25\n", nodes.clone(), "the task regression"),
        (yes, nodes.replace(",x\n", ",x_other\n"), "the features of nodes"),
        ("graph_id,y,split\na,yes,train\nb,yes,test\n", nodes.clone(), "all of them are for testing"),
        ("graph_id,y\na,yes\nb,\n", nodes.clone(), ""),
    ] {
        let found = of_test(graphs, &nodes);
        match expected {
            "" => assert_eq!(found.unwrap().without_targets, ["test:b"]),
            expected => {
                let error = found.unwrap_err();
                assert!(error.contains(expected) && error.contains("test"), "{error} lacks {expected}");
            }
        }
    }
    tables(&data, &[("graphs.csv", "graph_id,y,split\na,yes,train\nb,yes,test\n")]);
    let error = of_test(yes, nodes).unwrap_err();
    assert!(error.contains("test graphs of their own"), "{error}");
}

#[test]
fn graphs_made_in_another_way_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [data, test] = ["data", "test"].map(|name| folder.path().join(name));
    let graphs = ("graphs.csv", "graph_id,y\na,yes\nb,no\n");
    let refused = |files: &[(&str, &str)], [own, other]: [&str; 2], expected: [&str; 2]| {
        tables(&data, &[files, &[("kdgat-graphs.toml", own)]].concat());
        tables(&test, &[files, &[("kdgat-graphs.toml", own)]].concat());
        joined(&data, &test).unwrap();
        tables(&test, &[("kdgat-graphs.toml", other)]);
        let error = joined(&data, &test).unwrap_err();
        assert!(expected.iter().all(|text| error.contains(text)), "{error} lacks {expected:?}");
    };
    let listed = [graphs, ("nodes.csv", NODES), ("edges.csv", EDGES)];
    refused(&listed, ["", "directed = false\n"], ["with listed edges, each in both directions,", "with listed edges;"]);
    // Who lists both directions has the same graphs.
    tables(&data, &[("edges.csv", &format!("{EDGES}a,2,1,near\n"))]);
    joined(&data, &test).unwrap();

    fs::remove_dir_all(&data).unwrap();
    fs::remove_dir_all(&test).unwrap();
    let nodes = "graph_id,node_id,c_one,c_two,pos_x,pos_y,pos_z\na,1,C,N,0,0,0\na,2,N,N,1,0,0\na,3,C,C,3,0,0\nb,1,N,C,0,0,0\nb,2,C,N,0,1,0\nb,3,C,N,0,5,0\n";
    let points = [graphs, ("nodes.csv", nodes)];
    let kinds = "kinds = \"c_one\"\n";
    let with = |settings: &str| format!("{kinds}{settings}");
    refused(&points, [&with("knn = 1\n"), &with("knn = 2\n")], ["to the 1 nearest nodes", "to the 2 nearest nodes"]);
    let other_kinds = "kinds = \"c_two\"\nknn = 1\n";
    refused(&points, [&with("knn = 1\n"), other_kinds], ["kinds by c_one", "kinds by c_two"]);

    let tree = "1 3 0 0 0 1 -1\n2 3 1 0 0 1 1\n3 3 2 0 0 1 2\n4 3 3 0 0 1 3\n";
    let trees = |root: &Path, settings: &str| {
        for class in ["thin", "thick"] {
            tables(&root.join(class), &[("1.swc", tree)]);
        }
        tables(root, &[("kdgat-graphs.toml", settings)]);
    };
    let [data, test] = ["trees", "thinned"].map(|name| folder.path().join(name));
    trees(&data, "");
    trees(&test, "resample = 2\n");
    let error = joined(&data, &test).unwrap_err();
    assert!(error.contains("1 in 2 points between branches"), "{error}");
}

/// A model is trained on one place and scored on the other; without the test data, its test graphs are unknown.
#[test]
fn a_model_is_scored_on_separate_test_data() {
    let place = Workplace::new();
    fs::write(place.path().join("known.xyz"), water(30)).unwrap();
    fs::write(place.path().join("later.xyz"), water(7)).unwrap();
    let data = ["--data", "known.xyz", "--test-data", "later.xyz"];
    let train = ["train", "--preset", "gin,teacher", "--hidden", "8", "--max-epochs", "1", "--device", "cpu"];
    place.success(&[&train[..], &data].concat());
    let said = place.success(&[&["evaluate", "--device", "cpu", "--predictions", "predicted.csv"][..], &data].concat());
    let predicted = fs::read_to_string(place.path().join("predicted.csv")).unwrap();
    assert_eq!(predicted.matches("later.xyz:").count(), 7, "{said}\n{predicted}");
    assert!(!predicted.contains("known.xyz:"), "{predicted}");
    place.refused(&["evaluate", "--device", "cpu", "--data", "known.xyz"]);

    let refused = |arguments: &[&str], expected: &str| {
        let said = place.refused(&[&train[..], arguments].concat());
        assert!(said.contains(expected), "{said} lacks {expected}");
    };
    refused(
        &["--data", "known.xyz", "--test-data", "gone.xyz"],
        "--test-data gone.xyz: there is no such folder or file",
    );
    fs::create_dir(place.path().join("empty")).unwrap();
    refused(&["--data", "known.xyz", "--test-data", "empty"], "--test-data empty: no dataset of graphs");
    refused(&["--test-data", "later.xyz"], "test_data");
}
