//! Positions, forces and kinds of nodes in tables and XYZ files.

use std::fs;

use kdgat::graph::Split;
use kdgat::graph::dataset;

use super::graph_sources::{assert_refused, water, write_positions};

#[test]
fn forces_and_kinds_of_tables_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let graphs = "graph_id,y,f\na,1.5,0\nb,2.5,1\n";
    let nodes = "graph_id,node_id,c_group,z,pos_x,pos_y,pos_z,f_x,f_y,f_z\na,1,u,6.0,0,0,0,1,2,3\na,2,v,1.0,0,0,1,4,5,6\nb,1,u,8.0,0,0,0,7,8,9\n";
    let read = |settings: &str, nodes: &str| {
        fs::write(path.join("graphs.csv"), graphs).unwrap();
        fs::write(path.join("nodes.csv"), nodes).unwrap();
        fs::write(path.join("kdgat-graphs.toml"), settings).unwrap();
        dataset::read(path).map_err(|error| error.to_string())
    };
    let kinds = |settings: &str, nodes: &str| {
        let set = read(settings, nodes).unwrap();
        (set.schema.space.unwrap().kinds, set.space.unwrap().kinds)
    };
    use kdgat::graph::dataset::Kinds;
    let groups = Kinds::Named(["u", "v"].map(String::from).to_vec());
    assert_eq!(kinds("", nodes), (groups, vec![1, 2, 1]), "the only categorical column");
    assert_eq!(kinds("kinds = \"z\"\n", nodes), (Kinds::Elements, vec![6, 1, 8]));
    let several = nodes.replace("c_group,z", "c_group,c_name");
    assert_eq!(
        kinds("", &several.replace("6.0", "C").replace("1.0", "H").replace("8.0", "O")),
        (Kinds::Elements, vec![6, 1, 8])
    );
    assert_eq!(kinds("", &several), (Kinds::Unknown, vec![0; 3]));
    let units = "length_unit = \"nm\"\nenergy_unit = \"kJ/mol\"\n";
    let space = read(units, nodes).unwrap().schema.space.unwrap();
    assert_eq!((space.length_unit.as_deref(), space.energy_unit.as_deref()), (Some("nm"), Some("kJ/mol")));
    assert!(space.forces && !space.periodic);
    for (settings, nodes, expected) in [
        (
            "",
            nodes.replace("4,5,6", ",,"),
            "nodes.csv, line 3: column 'f_x' has an empty field, expected the force of each node",
        ),
        (
            "",
            nodes.replace("4,5,6", "4,NaN,6"),
            "nodes.csv, line 3: column 'f_y' has 'NaN', expected the force of each node",
        ),
        ("", nodes.replace("4,5,6", "4,inf,6"), "nodes.csv, line 3: column 'f_y' has 'inf', expected a finite number"),
        (
            "",
            nodes.replace("f_y", "g"),
            "nodes.csv, line 1: f_x, f_z without f_y, expected all of f_x, f_y, f_z, or none",
        ),
        (
            "\nforces = \"dft\"",
            nodes.into(),
            "kdgat-graphs.toml, line 2: `forces = \"dft\"`, but nodes.csv has no column dft_x",
        ),
        (
            "kinds = \"c_z\"",
            nodes.into(),
            "kdgat-graphs.toml, line 1: `kinds = \"c_z\"`, but nodes.csv has no such column",
        ),
        ("kinds = \"z\"", nodes.replace("pos_", "p_"), "line 1: `kinds` or `forces`, but nodes.csv has no positions"),
    ] {
        let error = read(settings, &nodes).err().unwrap_or_default();
        assert!(error.contains(expected), "{settings}: {error}");
    }
}

#[test]
fn forces_of_frames_are_read_and_stresses_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("water.xyz");
    fs::write(&file, water(2)).unwrap();
    let set = dataset::read(&file).unwrap();
    let space = set.space.as_ref().unwrap();
    assert_eq!((&space.forces[..6], &space.kinds[..3]), (&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0][..], &[8, 1, 1][..]));
    assert!(set.notes.is_empty(), "{:?}", set.notes);
    let replaced = |from: &str, to: &str, times: usize| {
        fs::write(&file, water(2).replacen(from, to, times)).unwrap();
        dataset::read(&file).map_err(|error| error.to_string())
    };
    let set = replaced("config_type=", "stress=\"1 2 3\" virial=\"1\" config_type=", 1).unwrap();
    assert_eq!(set.notes, ["not read: stress, virial"]);
    let set = replaced(":forces:R:3", ":REF_forces:R:3", 9).unwrap();
    let advice = "not read: REF_forces; to read forces there, set `forces = \"REF_forces\"` in kdgat-graphs.toml";
    assert_eq!((set.notes.as_slice(), set.schema.space.unwrap().forces), (&[advice.to_owned()][..], false));
    for (from, to, expected) in [
        (
            ":forces:R:3",
            ":other:R:3",
            "water.xyz, line 7: forces, which the first frame does not have, expected forces in all frames",
        ),
        (" 4 5 6", " 4 nan 6", "water.xyz, line 4: 'nan', expected a finite component of the force"),
        (
            "H 0.757 0.586 0.0",
            "H 0 0 0.00005",
            "water.xyz, line 4: nodes 1 and 2 of graph 1 in one place (distance 5.0e-5)",
        ),
        (" 4 5 6", "", "water.xyz, line 4: 4 columns, expected 7 as in Properties"),
    ] {
        let error = replaced(from, to, 1).err().unwrap_or_default();
        assert!(error.contains(expected), "{error} lacks {expected}");
    }
    // Files are the sets.
    fs::write(&file, water(2)).unwrap();
    fs::write(folder.path().join("later.xyz"), water(1)).unwrap();
    fs::write(folder.path().join("kdgat-graphs.toml"), "test_files = [\"later.xyz\"]\nedges = false\n").unwrap();
    let set = dataset::read(folder.path()).unwrap();
    assert_eq!(set.splits, Some(vec![Split::Test, Split::Train, Split::Train]));
    assert_eq!((set.sources.len(), set.schema.edge_columns()), (0, 0));
}

#[test]
fn kinds_of_edges_are_features() {
    let folder = tempfile::tempdir().unwrap();
    write_positions(folder.path());
    fs::remove_file(folder.path().join("kdgat-graphs.toml")).unwrap();
    let edges = "graph_id,source,target,kind,e_w\nbent,a,b,single,0.5\nbent,b,a,single,0.5\nbent,b,c,double,2\n";
    fs::write(folder.path().join("edges.csv"), edges).unwrap();
    let set = dataset::read(folder.path()).unwrap();
    let features = &set.schema.edge_features;
    assert_eq!(features[1].values.as_deref(), Some(&["double", "single"].map(String::from)[..]));
    // By target, then by source.
    assert_eq!(set.edge_features, [0.5, 0.0, 1.0, 0.5, 0.0, 1.0, 2.0, 1.0, 0.0]);
    fs::write(folder.path().join("edges.csv"), edges.replace("a,single", "a,")).unwrap();
    assert_refused(folder.path(), &["edges.csv, line 3: column 'kind' has an empty field"]);
}
