//! Tables of angles and dihedrals: how they are read, stored and made into batches.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use kdgat::graph::dataset::{self, GraphSet};
use kdgat::graph::store::open_or_build_graphs;
use kdgat::graph::{AssembleOptions, Batch, ListedPaths, PathKind, SpaceOptions, Store, Vocabulary, assemble};
use support::cli::Workplace;
use tch::{Kind, Tensor};

/// A number from 0 to 1 that looks random.
fn noise(index: usize) -> f64 {
    let value = (index as f64 * 12.9898).sin() * 43_758.545;
    value - value.floor()
}

type Vector = [f64; 3];

fn minus(one: Vector, other: Vector) -> Vector {
    [0, 1, 2].map(|axis| one[axis] - other[axis])
}

fn cross(a: Vector, b: Vector) -> Vector {
    [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]
}

fn cosine(one: Vector, other: Vector) -> f64 {
    let dot = |one: Vector, other: Vector| (0..3).map(|axis| one[axis] * other[axis]).sum::<f64>();
    dot(one, other) / (dot(one, one) * dot(other, other)).sqrt()
}

/// The tables of some molecules, with two parameters of an angle and one of a dihedral.
pub struct Molecules {
    pub graphs: String,
    pub nodes: String,
    pub edges: String,
    pub angles: String,
    pub dihedrals: String,
}

/// Rings of five atoms with a branch. The energy is Σ k (cos θ - c)² over the angles, whose k and c are in their table, and Σ q cos φ over the
/// dihedrals.
pub fn molecules(count: usize) -> Molecules {
    const BONDS: [(usize, usize); 6] = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (1, 5)];
    let near = |node: usize| {
        BONDS.iter().filter_map(move |&(one, other)| match node {
            _ if one == node => Some(other),
            _ if other == node => Some(one),
            _ => None,
        })
    };
    let mut text = Molecules {
        graphs: "graph_id,y\n".to_owned(),
        nodes: "graph_id,node_id,c_element,pos_x,pos_y,pos_z\n".to_owned(),
        edges: "graph_id,source,target\n".to_owned(),
        angles: "graph_id,i,j,k,a_k,a_cos\n".to_owned(),
        dihedrals: "graph_id,i,j,k,l,d_q\n".to_owned(),
    };
    for graph in 0..count {
        let place = |atom: usize| {
            let (angle, radius) = (1.2566 * atom as f64, if atom == 5 { 2.2 } else { 1.2 });
            let angle = if atom == 5 { 1.2566 } else { angle };
            let moved = |axis: usize| 0.7 * (noise(131 * graph + 17 * atom + axis) - 0.5);
            [radius * angle.cos() + moved(0), radius * angle.sin() + moved(1), moved(2)]
        };
        let side = |to: usize, from: usize| minus(place(to), place(from));
        for atom in 0..6 {
            let [x, y, z] = place(atom);
            text.nodes += &format!("{graph},n{atom},C,{x:.4},{y:.4},{z:.4}\n");
        }
        BONDS.iter().for_each(|(one, other)| text.edges += &format!("{graph},n{one},n{other}\n"));
        let mut energy = 0.0;
        for j in 0..6 {
            for i in near(j) {
                for k in near(j).filter(|&k| k != i) {
                    let seed = 1000 + 997 * graph + 36 * i + 6 * j + k;
                    if i < k {
                        let (stiffness, rest) = (10.0 + 40.0 * noise(seed), 1.6 * noise(seed + 7) - 0.8);
                        text.angles += &format!("{graph},n{i},n{j},n{k},{stiffness:.3},{rest:.3}\n");
                        energy += stiffness / 30.0 * (cosine(side(i, j), side(k, j)) - rest).powi(2);
                    }
                    for l in near(k).filter(|&l| l != i && l != j && i < l) {
                        let height = 6.0 * noise(seed + 11 * l) - 3.0;
                        text.dihedrals += &format!("{graph},n{i},n{j},n{k},n{l},{height:.3}\n");
                        let middle = side(k, j);
                        energy += 0.1 * height * cosine(cross(side(j, i), middle), cross(middle, side(l, k)));
                    }
                }
            }
        }
        text.graphs += &format!("{graph},{energy:.5}\n");
    }
    text
}

impl Molecules {
    pub fn write(&self, folder: &Path) {
        fs::create_dir_all(folder).unwrap();
        for (name, text) in [
            ("graphs.csv", &self.graphs),
            ("nodes.csv", &self.nodes),
            ("edges.csv", &self.edges),
            ("angles.csv", &self.angles),
            ("dihedrals.csv", &self.dihedrals),
        ] {
            match text.is_empty() {
                false => fs::write(folder.join(name), text).unwrap(),
                true => _ = fs::remove_file(folder.join(name)),
            }
        }
        fs::write(folder.join("kdgat-graphs.toml"), "name = \"molecules\"\ndirected = false\n").unwrap();
    }

    fn read(&self) -> Result<GraphSet, String> {
        let folder = tempfile::tempdir().unwrap();
        self.write(folder.path());
        dataset::read(folder.path()).map_err(|error| error.to_string())
    }

    pub fn store(&self, folder: &Path) -> Store {
        self.write(&folder.join("data"));
        open_or_build_graphs(&folder.join("data"), &folder.join("stores"), &()).unwrap()
    }
}

/// The text with its first line, then the others in another order.
pub fn shuffled(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    let header = lines.remove(0);
    let mut order: Vec<usize> = (0..lines.len()).collect();
    order.sort_by(|&one, &other| noise(one).total_cmp(&noise(other)));
    std::iter::once(header).chain(order.into_iter().map(|at| lines[at])).map(|line| format!("{line}\n")).collect()
}

/// Every second row of a table of paths turned around.
pub fn reversed(text: &str, nodes: usize) -> String {
    let turned = |(row, line): (usize, &str)| {
        let mut cells: Vec<&str> = line.split(',').collect();
        if row % 2 == 1 {
            cells[1..=nodes].reverse();
        }
        cells.join(",") + "\n"
    };
    text.lines().enumerate().map(turned).collect()
}

/// The order of rows and the end from which a path is listed change nothing.
#[test]
fn a_table_is_the_same_in_any_order() {
    let known = molecules(4);
    let set = known.read().unwrap();
    let schema = set.schema.space.as_ref().unwrap();
    let names = |kind| schema.paths.of(kind).cloned().unwrap();
    assert_eq!(names(PathKind::Angles), ["a_k", "a_cos"]);
    assert_eq!(names(PathKind::Dihedrals), ["d_q"]);
    let [angles, dihedrals] = &set.space.as_ref().unwrap().paths;
    assert_eq!((angles.pointers[1], dihedrals.pointers[1]), (7, 7));
    let paths = set.paths_of(PathKind::Angles, 1).unwrap();
    assert_eq!(paths.nodes[..6], [0, 1, 2, 0, 1, 5]);
    let other = Molecules {
        angles: shuffled(&reversed(&known.angles, 3)),
        dihedrals: shuffled(&reversed(&known.dihedrals, 4)),
        ..molecules(4)
    };
    assert_eq!(other.read().unwrap(), set);
    // Graphs without a target take their paths along.
    let first = |text: &str| text.lines().nth(1).unwrap().to_owned();
    let row = first(&known.graphs);
    let unlabelled = Molecules { graphs: known.graphs.replace(&row, "0,"), ..molecules(4) }.read().unwrap();
    for kind in PathKind::ALL {
        for graph in 0..3 {
            assert_eq!(unlabelled.paths_of(kind, graph), set.paths_of(kind, graph + 1));
        }
    }
    // A set without tables has none, and one without parameters has a list.
    let without = Molecules { angles: String::new(), dihedrals: String::new(), ..molecules(4) }.read().unwrap();
    assert!(without.schema.space.unwrap().paths.is_none() && without.space.unwrap().paths[0].nodes.is_empty());
    let bare = Molecules { angles: known.angles.replace("a_", "x_"), ..molecules(4) }.read().unwrap();
    assert_eq!(bare.schema.space.as_ref().unwrap().paths.angles, Some(Vec::new()));
    assert_eq!(bare.paths_of(PathKind::Angles, 1).unwrap().nodes, paths.nodes);
    // Test data must list the same.
    let folder = tempfile::tempdir().unwrap();
    let [data, test] = ["data", "test"].map(|name| folder.path().join(name));
    known.write(&data);
    Molecules { dihedrals: known.dihedrals.replace("d_q", "d_p"), ..molecules(4) }.write(&test);
    let joined =
        |test: &Path| dataset::Source { data: &data, test: Some(test) }.read().map_err(|error| error.to_string());
    let error = joined(&test).unwrap_err();
    assert!(
        error.contains("a table of dihedrals with the parameters d_p") && error.contains("parameters d_q"),
        "{error}"
    );
    known.write(&test);
    let joined = joined(&test).unwrap();
    assert_eq!(joined.paths_of(PathKind::Dihedrals, 6), set.paths_of(PathKind::Dihedrals, 2));
}

#[test]
fn bad_rows_of_paths_are_named_with_their_line() {
    let place = Workplace::new();
    let known = molecules(2);
    let line = |text: &str, number: usize| text.lines().nth(number - 1).unwrap().to_owned();
    let [angle, dihedral] = [line(&known.angles, 4), line(&known.dihedrals, 2)];
    assert!(angle.starts_with("0,n0,n1,n5,") && dihedral.starts_with("0,n1,n0,n4,n3,"), "{angle} {dihedral}");
    let angles = |from: &str, to: &str| Molecules { angles: known.angles.replacen(from, to, 1), ..molecules(2) };
    let turned = angle.replace("n0,n1,n5", "n5,n1,n0");
    let longer = |row: &str| Molecules { angles: format!("{}{row}\n", known.angles), ..molecules(2) };
    let end = known.angles.lines().count() + 1;
    let cases = [
        (angles(&angle, "0,n0,n1,n9,1,0"), "angles.csv, line 4: column 'k' has node 'n9', expected a node of graph 0"),
        (
            angles(&angle, "7,n0,n1,n5,1,0"),
            "angles.csv, line 4: column 'graph_id' has '7', expected a graph of graphs.csv",
        ),
        (
            angles(&angle, "0,n0,n1,n3,1,0"),
            "angles.csv, line 4: column 'k' has node 'n3', and no edge between it and node 'n1', expected a path over edges",
        ),
        (angles(&angle, "0,n0,n1,n0,1,0"), "line 4: column 'k' has node 'n0' a second time, expected different nodes"),
        (angles(&angle, "0,n0,n1,n5,,0"), "angles.csv, line 4: column 'a_k' has an empty field"),
        (angles(&angle, "0,n0,n1,n5,NaN,0"), "line 4: column 'a_k' has 'NaN', expected a finite number"),
        (angles(&angle, "0,n0,n1,n5,1,inf"), "line 4: column 'a_cos' has 'inf', expected a finite number"),
        (angles(",j,", ",middle,"), "angles.csv, line 1: no column 'j' among graph_id, i, middle, k"),
        (angles("a_cos", "a_k"), "angles.csv, line 1: column 'a_k' twice"),
        (
            longer(&angle),
            &format!(
                "angles.csv, line {end}: a path that angles.csv, line 4 has already, expected each of the angles once"
            ),
        ),
        (longer(&turned), &format!("line {end}: a path that angles.csv, line 4 has already")),
        (
            Molecules { dihedrals: known.dihedrals.replacen(&dihedral, "0,n1,n0,n4,n5,1", 1), ..molecules(2) },
            "dihedrals.csv, line 2: column 'l' has node 'n5', and no edge between it and node 'n4'",
        ),
        (
            Molecules { nodes: known.nodes.replace("pos_", "p_"), ..molecules(2) },
            "angles.csv: paths of nodes in space, but nodes.csv has no positions",
        ),
    ];
    for (molecules, expected) in cases {
        let error = molecules.read().err().unwrap_or_default();
        assert!(error.contains(expected), "{error}, expected {expected}");
    }
    let folder = place.path().join("bad");
    angles(&angle, "0,n0,n1,n3,1,0").write(&folder);
    let said = place.refused(&["data", "check", "--data", "bad"]);
    assert!(said.contains("angles.csv, line 4: column 'k'"), "{said}");
    known.write(&folder);
    fs::write(folder.join("kdgat-graphs.toml"), "directed = false\ntree = \"degree\"\n").unwrap();
    let said = place.refused(&["data", "check", "--data", "bad"]);
    assert!(said.contains("kdgat-graphs.toml, line 2: `tree` beside angles.csv"), "{said}");
    known.write(&folder);
    let said = place.success(&["data", "check", "--data", "bad"]);
    assert!(said.contains("angles         7 to 7 a graph, parameters a_k, a_cos"), "{said}");
}

pub fn options(paths: bool) -> AssembleOptions {
    let space = Some(SpaceOptions { paths, ..SpaceOptions::new(2.5).unwrap() });
    AssembleOptions { space, ..AssembleOptions::new(Arc::new(Vocabulary::from_ids([]))) }
}

pub fn batch(store: &Store, graphs: &[u64]) -> Batch {
    assemble(store, graphs, &options(true)).unwrap()
}

fn paths(batch: &Batch) -> [&ListedPaths; 2] {
    batch.space.as_ref().unwrap().paths.each_ref().map(|paths| paths.as_ref().unwrap())
}

/// A batch has the paths from either end, by their second node; a part of a batch is the batch of its graphs.
#[test]
fn batches_have_the_paths_of_their_graphs() {
    let folder = tempfile::tempdir().unwrap();
    let store = molecules(3).store(folder.path());
    let all = batch(&store, &[2, 0, 1]);
    let integers = |tensor: &Tensor| Vec::<i64>::try_from(tensor.to_kind(Kind::Int64).view(-1)).unwrap();
    let [angles, dihedrals] = paths(&all);
    assert_eq!((angles.nodes.size(), dihedrals.nodes.size()), (vec![42, 3], vec![42, 4]));
    assert_eq!(integers(&angles.nodes)[..9], [1, 0, 4, 4, 0, 1, 0, 1, 2]);
    assert_eq!(integers(&angles.row_pointers)[..7], [0, 2, 8, 10, 12, 14, 14]);
    let view = store.graph(2);
    assert_eq!(angles.parameters.size(), [42, 2]);
    let of_first = view.space.paths[0];
    // The first path in the store is 0–1–2.
    assert_eq!(of_first.nodes[..3], [0, 1, 2]);
    let row = Vec::<f32>::try_from(angles.parameters.get(2)).unwrap();
    assert_eq!(row, of_first.parameters[..2]);
    for graphs in [&[1_usize, 2][..], &[2], &[2, 0], &[]] {
        let keys: Vec<u64> = graphs.iter().map(|&graph| [2, 0, 1][graph]).collect();
        let (found, expected) = (all.select_graphs(graphs).unwrap(), batch(&store, &keys));
        for (found, expected) in paths(&found).into_iter().zip(paths(&expected)) {
            for (found, expected) in [
                (&found.nodes, &expected.nodes),
                (&found.parameters, &expected.parameters),
                (&found.row_pointers, &expected.row_pointers),
            ] {
                assert!(found.size() == expected.size() && found.equal(expected), "{graphs:?}");
            }
        }
    }
    assert!(assemble(&store, &[0], &options(false)).unwrap().space.unwrap().paths.iter().all(Option::is_none));
    // A store and its copy in memory are the same, and a graph's hash has its parameters.
    let known = molecules(3);
    let row = known.angles.lines().nth(1).unwrap();
    let other = Molecules { angles: known.angles.replacen(row, "0,n1,n0,n4,1,0", 1), ..molecules(3) };
    let elsewhere = tempfile::tempdir().unwrap();
    let other = other.store(elsewhere.path());
    let hashes = |store: &Store| [0, 1, 2].map(|graph| store.graph_hash(graph).unwrap());
    assert!(hashes(&store)[0] != hashes(&other)[0] && hashes(&store)[1..] == hashes(&other)[1..]);
    assert_ne!(store.digest(), other.digest());
}

/// Every flipped bit of pointers and of node numbers is an error or found by verification, and no index.
#[test]
fn damaged_paths_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let store = molecules(3).store(folder.path());
    let shard = store.path().join("shard-00000.safetensors");
    let place = store.path().to_owned();
    drop(store);
    let whole = fs::read(&shard).unwrap();
    let length = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&whole[8..8 + length]).unwrap();
    for (name, expected) in [
        ("angle_ptr", "angle_ptr does not ascend"),
        ("dihedral_ptr", "dihedral_ptr does not ascend"),
        ("angle", "its angles"),
        ("dihedral", "its dihedrals"),
    ] {
        let offset = |end: usize| 8 + length + header[name]["data_offsets"][end].as_u64().unwrap() as usize;
        for byte in (offset(0)..offset(1)).step_by(7) {
            let mut damaged = whole.clone();
            damaged[byte] ^= 0x44;
            fs::write(&shard, &damaged).unwrap();
            let error = match Store::open(&place) {
                Err(error) => Some(error),
                Ok(store) => {
                    assert!(store.verify().is_err());
                    assemble(&store, &[0, 1, 2], &options(true)).err()
                }
            };
            let error = error.unwrap_or_else(|| panic!("{name}, byte {byte}: no error"));
            assert!(error.is_input() && error.to_string().contains("shard-00000"), "{error}");
            let text = error.to_string();
            assert!(text.contains(expected) || text.contains("does not ascend") || text.contains("ends at"), "{text}");
        }
    }
}

/// Only tables have listed paths: beside frames of atoms they would be ignored.
#[test]
fn paths_beside_frames_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("water.xyz"), "3\nenergy=1.0\nO 0 0 0\nH 1 0 0\nH 0 1 0\n").unwrap();
    assert_eq!(dataset::read(folder.path()).unwrap().graph_ids.len(), 1);
    fs::write(folder.path().join("angles.csv"), "graph_id,i,j,k\n0,1,0,2\n").unwrap();
    let said = dataset::read(folder.path()).err().unwrap().to_string();
    assert!(said.contains("angles.csv: paths beside files that are no tables"), "{said}");
}
