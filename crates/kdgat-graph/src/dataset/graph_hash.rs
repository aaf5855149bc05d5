//! Hashes of graphs as their source has them, by which a division recognises its test graphs.
//!
//! The hash of a graph is that of its identifier, its targets, the features of its nodes, its edges, positions, cell, forces and listed paths. Edges that were made
//! from positions depend on the cutoff, so the positions alone count then. Kinds of nodes are among their features.

use std::collections::BTreeSet;

use super::graph_set::GraphSet;
use super::schema::Level;
use crate::PathKind;

/// `[num_graphs]`: the hash of each graph of a set, as it was read.
pub(crate) fn graph_hashes(set: &GraphSet) -> Vec<u64> {
    (0..set.num_graphs()).map(|graph| hash_of(set, graph)).collect()
}

fn hash_of(set: &GraphSet, graph: usize) -> u64 {
    let mut hash = blake3::Hasher::new();
    add_text(&mut hash, &set.graph_ids[graph]);
    let nodes = set.node_pointers[graph] as usize..set.node_pointers[graph + 1] as usize;
    let count = set.schema.targets.len();
    let targets = match set.schema.level {
        Level::Graph => set.targets_of(graph),
        Level::Node => &set.node_targets[nodes.start * count..nodes.end * count],
    };
    for (at, &value) in targets.iter().enumerate() {
        let classes = &set.schema.targets[at % count].classes;
        match classes.get(value as usize).filter(|_| !value.is_nan()) {
            Some(class) => add_text(&mut hash, class),
            None => add_numbers(&mut hash, &[value]),
        }
    }
    add_numbers(&mut hash, set.rests_of(graph));
    let width = set.schema.node_columns();
    hash.update(&(nodes.len() as u64).to_le_bytes());
    add_numbers(&mut hash, &set.node_features[nodes.start * width..nodes.end * width]);
    if set.lists_edges {
        hash.update(&hash_of_edges(set, graph).to_le_bytes());
    }
    if let Some(positions) = &set.position_hashes {
        hash.update(&positions[graph].to_le_bytes());
    }
    if let Some(space) = set.space.as_ref().filter(|space| !space.forces.is_empty()) {
        add_numbers(&mut hash, &space.forces[nodes.start * 3..nodes.end * 3]);
    }
    for kind in PathKind::ALL {
        if let Some(paths) = set.paths_of(kind, graph) {
            add_text(&mut hash, kind.name());
            hash.update(&(paths.nodes.len() as u64).to_le_bytes());
            hash.update(bytemuck::cast_slice(paths.nodes));
            add_numbers(&mut hash, paths.parameters);
        }
    }
    first_bytes(&hash)
}

/// Hash of the edges without their directions, which depend on the setting `directed`.
fn hash_of_edges(set: &GraphSet, graph: usize) -> u64 {
    let width = set.schema.edge_columns();
    let of_edge = |edge: usize| {
        let (source, target) = (set.sources[edge], set.targets[edge]);
        let mut hash = blake3::Hasher::new();
        hash.update(&source.min(target).to_le_bytes());
        hash.update(&source.max(target).to_le_bytes());
        add_numbers(&mut hash, &set.edge_features[edge * width..(edge + 1) * width]);
        first_bytes(&hash)
    };
    let edges = set.edge_pointers[graph] as usize..set.edge_pointers[graph + 1] as usize;
    let distinct: BTreeSet<u64> = edges.map(of_edge).collect();
    distinct.into_iter().fold(0, |sum, edge| sum.wrapping_add(edge))
}

/// The first eight bytes of a hash.
pub(super) fn first_bytes(hash: &blake3::Hasher) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&hash.finalize().as_bytes()[..8]);
    u64::from_le_bytes(first)
}

fn add_text(hash: &mut blake3::Hasher, text: &str) {
    hash.update(&(text.len() as u64).to_le_bytes());
    hash.update(text.as_bytes());
}

fn add_numbers(hash: &mut blake3::Hasher, values: &[f32]) {
    hash.update(bytemuck::cast_slice(values));
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::read;
    use super::*;

    const GRAPHS: &str = "graph_id,y\na,0\nb,1\n";
    const NODES: &str = "graph_id,node_id,x,c\na,1,0.5,k\na,2,1,l\nb,1,2,l\nb,2,3,k\n";
    const EDGES: &str = "graph_id,source,target,e\na,1,2,0.5\nb,2,1,1\n";

    fn hashes_at(folder: &Path) -> Vec<u64> {
        graph_hashes(&read(folder).unwrap())
    }

    fn hashes(files: &[(&str, &str)]) -> Vec<u64> {
        let folder = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, text)| std::fs::write(folder.path().join(name), text).unwrap());
        hashes_at(folder.path())
    }

    fn of_tables(graphs: &str, nodes: &str, edges: &str, settings: &str) -> Vec<u64> {
        let files =
            [("graphs.csv", graphs), ("nodes.csv", nodes), ("edges.csv", edges), ("kdgat-graphs.toml", settings)];
        hashes(&files)
    }

    #[test]
    fn rows_of_other_graphs_and_directions_do_not_count_and_everything_else_does() {
        let before = of_tables(GRAPHS, NODES, EDGES, "");
        assert_ne!(before[0], before[1]);
        assert_eq!(of_tables(GRAPHS, NODES, EDGES, "directed = false"), before);
        assert_eq!(
            of_tables("graph_id,y\nb,1\na,0\n", NODES, EDGES, ""),
            [before[1], before[0]],
            "rows in another order"
        );
        for (graphs, nodes, edges, what) in [
            ("graph_id,y\na,1\nb,1\n", NODES, EDGES, "the target"),
            (GRAPHS, &NODES.replace("a,1,0.5,k", "a,1,0.6,k"), EDGES, "a feature"),
            (GRAPHS, &NODES.replace("a,1,0.5,k", "a,1,0.5,l"), EDGES, "a category"),
            (GRAPHS, NODES, &EDGES.replace("a,1,2,0.5", "a,1,2,0.6"), "a feature of an edge"),
            (GRAPHS, NODES, "graph_id,source,target,e\nb,2,1,1\n", "an edge"),
        ] {
            let after = of_tables(graphs, nodes, edges, "");
            assert!(after[0] != before[0] && after[1] == before[1], "{what}");
        }
        let renamed = of_tables(
            &GRAPHS.replace("\na,", "\nc,"),
            &NODES.replace("\na,", "\nc,"),
            &EDGES.replace("\na,", "\nc,"),
            "",
        );
        assert!(renamed[0] != before[0] && renamed[1] == before[1], "the identifier");
    }

    #[test]
    fn another_cutoff_or_basis_changes_nothing_and_a_position_does() {
        let frame =
            |x: f64| format!("2\nenergy=1.5 Lattice=\"9 0 0 0 9 0 0 0 9\"\nH 0 0 0\nO {x} 0 0\n1\nenergy=2\nH 0 0 0\n");
        let of = |x: f64, settings: &str| hashes(&[("a.xyz", &frame(x)), ("kdgat-graphs.toml", settings)]);
        let before = of(1.0, "");
        assert_eq!(of(1.0, "cutoff = 0.5\nradial_basis = 4"), before);
        let moved = of(1.001, "");
        assert!(moved[0] != before[0] && moved[1] == before[1]);
        // The nodes have no features but their degrees, which depend on the cutoff.
        let nodes = "graph_id,node_id,pos_x,pos_y,pos_z\na,1,0,0,0\na,2,1,0,0\nb,1,0,0,0\nb,2,0,0,2\n";
        let of =
            |settings: &str| hashes(&[("graphs.csv", GRAPHS), ("nodes.csv", nodes), ("kdgat-graphs.toml", settings)]);
        assert_eq!(of("cutoff = 1.5"), of("cutoff = 3.0"));
    }

    #[test]
    fn targets_of_nodes_count() {
        let graphs = "graph_id\na\nb\n";
        let nodes = "graph_id,node_id,x,y\na,1,0.5,0.25\na,2,1,\nb,1,2,1.5\nb,2,3,2\n";
        let edges = "graph_id,source,target\na,1,2\nb,2,1\n";
        let before = of_tables(graphs, nodes, edges, "task = \"node-regression\"");
        let other = nodes.replace("a,1,0.5,0.25", "a,1,0.5,0.5");
        let after = of_tables(graphs, &other, edges, "task = \"node-regression\"");
        assert!(after[0] != before[0] && after[1] == before[1]);
    }
}
