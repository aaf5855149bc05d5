//! Edges between nearest nodes, and rooted trees of graphs of points, from the command line.

use std::fmt::Write;
use std::fs;
use std::sync::Arc;

use kdgat::graph::store::open_or_build_graphs;
use kdgat::graph::{AssembleOptions, SpaceOptions, Vocabulary, assemble};
use support::cli::Workplace;

/// Writes tables of graphs whose nodes have these positions, with these settings and further tables.
fn write_points(place: &Workplace, graphs: &[Vec<[f64; 3]>], settings: &str, more: &[(&str, &str)]) {
    let folder = place.path().join("points");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder).unwrap();
    let (mut of_graphs, mut nodes) = ("graph_id,y\n".to_owned(), "graph_id,node_id,pos_x,pos_y,pos_z\n".to_owned());
    for (graph, points) in graphs.iter().enumerate() {
        writeln!(of_graphs, "g{graph},{}", graph % 2).unwrap();
        for (node, [x, y, z]) in points.iter().enumerate() {
            writeln!(nodes, "g{graph},n{node},{x},{y},{z}").unwrap();
        }
    }
    let tables = [("graphs.csv", of_graphs.as_str()), ("nodes.csv", &nodes), ("kdgat-graphs.toml", settings)];
    tables.iter().chain(more).for_each(|(name, text)| fs::write(folder.join(name), text).unwrap());
}

/// Points on a line, one further apart than the other.
fn line(count: usize) -> Vec<[f64; 3]> {
    (0..count).map(|node| [(node * node) as f64, 0.0, 0.0]).collect()
}

const CHECK: [&str; 4] = ["data", "check", "--data", "points"];

#[test]
fn nearest_nodes_have_edges() {
    let place = Workplace::new();
    write_points(&place, &[line(4), line(6)], "knn = 2\n", &[]);
    let told = place.success(&CHECK);
    // Of nodes at 0, 1, 4 and 9, all pairs but 0 and 9; with 16 and 25 behind them, 9 is nearer to 16 than to 1.
    assert!(told.contains("edges          10 to 14") && told.contains("edge features  distance"), "{told}");
    for (settings, expected) in [
        ("knn = 0\n", "kdgat-graphs.toml, line 1: knn 0, expected 1 to 256 nearest nodes"),
        ("name = 'a'\nknn = 3\ncutoff = 2.0\n", "kdgat-graphs.toml, line 2: `knn` beside `cutoff`"),
        ("knn = 3\ndirected = true\n", "line 1: `knn` beside `directed`"),
        ("resample = 2\n", "line 1: `resample` beside other files than SWC"),
    ] {
        write_points(&place, &[line(4)], settings, &[]);
        let said = place.refused(&CHECK);
        assert!(said.contains(expected), "{settings}: {said}");
    }
    write_points(&place, &[line(4)], "knn = 2\n", &[("edges.csv", "graph_id,source,target\ng0,n0,n1\n")]);
    let said = place.refused(&CHECK);
    assert!(said.contains("`knn` beside edges.csv"), "{said}");
}

/// A graph may have more edges than 16 bits can number.
#[test]
fn a_graph_of_many_edges_is_stored_and_read() {
    let place = Workplace::new();
    // A plane of 92 × 92 points: of each the four nearest and the four next ones.
    let points: Vec<[f64; 3]> = (0..8464).map(|node| [f64::from(node % 92), f64::from(node / 92), 0.0]).collect();
    write_points(&place, &[points.clone(), line(5)], "knn = 8\n", &[]);
    let store = open_or_build_graphs(&place.path().join("points"), &place.path().join("stores"), &()).unwrap();
    store.verify().unwrap();
    let edges = store.graph(0).num_edges();
    assert!(edges > 1 << 16, "{edges}");
    let options = AssembleOptions {
        space: Some(SpaceOptions::POSITIONS),
        ..AssembleOptions::new(Arc::new(Vocabulary::from_ids([])))
    };
    let batch = assemble(&store, &[0, 1], &options).unwrap();
    let pointers = Vec::<i32>::try_from(&batch.adjacency.row_pointers).unwrap();
    let sources = Vec::<i32>::try_from(&batch.adjacency.sources).unwrap();
    // With a self-loop for each node.
    assert_eq!(sources.len(), edges + 8464 + store.graph(1).num_edges() + 5);
    for node in [0usize, 4000, 8463] {
        let row = &sources[pointers[node] as usize..pointers[node + 1] as usize];
        let distance = |other: &i32| {
            let (one, other) = (points[node], points[*other as usize]);
            (one[0] - other[0]).powi(2) + (one[1] - other[1]).powi(2)
        };
        assert!(row.len() >= 9 && row.is_sorted() && row.iter().all(|other| distance(other) <= 8.0), "{node}: {row:?}");
    }
}

#[test]
fn graphs_of_points_become_rooted_trees() {
    let place = Workplace::new();
    // A ring of four with a tail, and two nodes apart.
    let points =
        vec![[0.0; 3], [1.0, 0.0, 0.0], [1.0, 1.5, 0.0], [0.0, 1.0, 0.0], [2.0, 0.0, 0.0], [9.0; 3], [10.0; 3]];
    let edges =
        "graph_id,source,target\ng0,n0,n1\ng0,n1,n2\ng0,n2,n3\ng0,n3,n0\ng0,n1,n4\ng0,n5,n6\ng1,n0,n1\ng1,n1,n2\n";
    let graphs = [points, line(3)];
    let files = |roots: &'static str| [("edges.csv", edges), ("roots.csv", roots)];
    let none = files("graph_id,node_id\ng0,n4\ng1,n2\n");
    write_points(&place, &graphs, "directed = false\ntree = \"degree\"\n", &none);
    let told = place.success(&CHECK);
    assert!(told.contains("nodes          3 to 5") && told.contains("edges          4 to 8"), "{told}");
    assert!(told.contains("node features  children, ln_root_distance"), "{told}");
    // Two nodes, and the longest edge of the ring.
    assert!(told.contains("1 graphs are no trees: 3 of their nodes and edges"), "{told}");
    for tree in ["file", "n1"] {
        write_points(&place, &graphs, &format!("directed = false\ntree = \"{tree}\"\n"), &none);
        place.success(&CHECK);
    }
    for (tree, roots, expected) in [
        ("n5", "", "graph g1 has no node of that name, expected degree, file"),
        ("file", "graph_id,node_id\ng0,n4\n", "roots.csv, line 1: no root of graph g1"),
        ("file", "graph_id,node_id\ng0,n4\ng0,n1\n", "roots.csv, line 3"),
        ("file", "graph_id,node_id\ng0,n9\n", "roots.csv, line 2"),
        (
            "file",
            "graph_id,node_id\ng0,n5\ng1,n0\n",
            "graphs.csv, line 2: the root of its tree is in a component of 2 nodes",
        ),
    ] {
        let settings = format!("directed = false\ntree = \"{tree}\"\n");
        write_points(&place, &graphs, &settings, &files(roots));
        let said = place.refused(&CHECK);
        assert!(said.contains(expected), "{tree} {roots}: {said}");
    }
    // Edges between nearest nodes become trees as those of a table do, and are pre-trained on.
    let spiral = |turn: f64| -> Vec<[f64; 3]> {
        (1..25).map(|node| f64::from(node) * 0.3).map(|at| [at * at.cos(), at * (at * turn).sin(), at]).collect()
    };
    let spirals: Vec<_> = (0..20).map(|number| spiral(f64::from(number) / 5.0)).collect();
    write_points(&place, &spirals, "knn = 3\ntree = \"n0\"\n", &[]);
    let run = ["pretrain", "--objective", "gt-ssl", "--preset", "sgmp,teacher", "--data", "points", "--hidden", "4"];
    place.success(&[&run[..], &["--max-epochs", "1", "--device", "cpu", "--threads", "1", "--layers", "1"]].concat());
}
