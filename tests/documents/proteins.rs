//! A small archive with the layout and the columns of PROTEINS as published: the dataset itself is not part of the repository.

use std::fs;
use std::io::Write;
use std::path::Path;

use zip::write::{SimpleFileOptions, ZipWriter};

const GRAPHS: usize = 60;

/// Writes the archive: chains of nodes with longer edges besides. The classes differ in the length of these edges and in the
/// labels of their nodes.
pub fn write(archive: &Path) {
    let (mut edges, mut indicator, mut labels) = (String::new(), String::new(), String::new());
    let (mut node_labels, mut node_attributes) = (String::new(), String::new());
    let mut first = 1;
    for graph in 0..GRAPHS {
        let (nodes, is_first_class) = (5 + graph % 7, graph % 5 < 3);
        let step = if is_first_class { 3 } else { 4 };
        for node in 0..nodes {
            indicator += &format!("{}\n", graph + 1);
            node_labels += &format!("{}\n", if is_first_class { node % 2 } else { node % 3 });
            node_attributes += &format!("{}.000000\n", 5 + (7 * node + graph) % 20);
            for other in [node + 1, node + step].into_iter().filter(|other| *other < nodes) {
                edges += &format!("{}, {}\n{}, {}\n", first + node, first + other, first + other, first + node);
            }
        }
        labels += if is_first_class { "1\n" } else { "2\n" };
        first += nodes;
    }
    let mut zip = ZipWriter::new(fs::File::create(archive).unwrap());
    zip.add_directory("PROTEINS/", SimpleFileOptions::default()).unwrap();
    for (kind, text) in [
        ("A", edges),
        ("graph_indicator", indicator),
        ("graph_labels", labels),
        ("node_labels", node_labels),
        ("node_attributes", node_attributes),
    ] {
        zip.start_file(format!("PROTEINS/PROTEINS_{kind}.txt"), SimpleFileOptions::default()).unwrap();
        zip.write_all(text.as_bytes()).unwrap();
    }
    zip.finish().unwrap();
}
