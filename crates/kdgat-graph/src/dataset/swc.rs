//! Reads folders of SWC files: each file is a tree of points in space, its folder is its class.
//!
//! An edge leads from each point to its parent and back. Features of a point are its radius, the number of points that hang on it, and
//! ln(1 + length of the way from the root); with its type as a category unless `kdgat-graphs.toml` says `kinds = "none"`, because types
//! alone may give classes away: apical dendrites are named.

use super::error::{DatasetError, Origin, Place};
use super::feature_rows::{Cells, Column, Rows};
use super::graph_set::{Edges, GraphSet, RawEdge, SortedEdges};
use super::schema::{Kinds, Level, Schema, SpaceSchema, Task, numbered};
use super::settings::{SETTINGS, Settings};
use super::source_files::SourceFiles;
use super::space_set::{Misfit, SpaceMaker};
use super::swc_tree::SwcTree;
use super::targets::TargetCells;

/// Name of the only target: the folder.
const CLASS: &str = "folder";
/// Names of the points' features.
const FEATURES: [&str; 3] = ["radius", "children", "ln_root_distance"];
/// Name of the points' types as a feature.
const TYPE: &str = "type";

/// True if a file is one of this format, by its ending.
pub(super) fn is_swc(file: &str) -> bool {
    file.rsplit_once('.').is_some_and(|(_, ending)| ending.eq_ignore_ascii_case("swc"))
}

/// Reads a dataset of this format.
///
/// # Errors
/// A line that does not fit, with its file and number; a file outside of a folder, which has no class; settings that do not fit.
pub(super) fn read(files: &SourceFiles) -> Result<GraphSet, DatasetError> {
    let settings = Settings::read(files)?;
    let reads_types = settings.reads_types()?;
    let names: Vec<&String> = files.names().iter().filter(|name| is_swc(name)).collect();
    let splits = settings.splits_of(&names)?;
    let mut forest = Forest { pointers: vec![0], ..Forest::default() };
    let mut classes = Vec::new();
    for name in &names {
        let origin = Origin { file: name, place: Place::File };
        let Some((class, _)) = name.rsplit_once('/') else {
            let expected = "a folder for each class, with its trees: data/interneuron/a.swc, data/principal/b.swc";
            return Err(origin.error("a tree outside of any folder", expected));
        };
        classes.push(class.rsplit('/').next().unwrap_or(class).to_owned());
        let bytes = files.read(name)?.unwrap_or_default();
        forest.add(SwcTree::parse(name, &String::from_utf8_lossy(&bytes))?, name)?;
    }
    let root = files.root().file_stem().map_or("graphs".into(), |name| name.to_string_lossy().into_owned());
    let origins: Vec<Origin> = names.iter().map(|name| Origin { file: name, place: Place::File }).collect();
    let header = origins.first().copied().unwrap_or(Origin { file: SETTINGS, place: Place::File });
    let targets = TargetCells { names: vec![CLASS.to_owned()], cells: vec![classes], splits, origins, header };
    let set = forest.finish(targets, reads_types)?;
    Ok(GraphSet { name: settings.name.clone().unwrap_or(root), ..set })
}

/// The trees so far.
#[derive(Default)]
struct Forest {
    ids: Vec<String>,
    pointers: Vec<u64>,
    types: Vec<String>,
    /// One list for each of [`FEATURES`].
    features: [Vec<f32>; 3],
    edges: Vec<RawEdge>,
    space: SpaceMaker,
    /// Points in one place with another one.
    doubled: u64,
}

impl Forest {
    fn add(&mut self, tree: SwcTree, name: &str) -> Result<(), DatasetError> {
        let graph = self.ids.len() as u32;
        for (node, parent) in (0u32..).zip(&tree.parents) {
            let Some(parent) = *parent else { continue };
            self.edges.push(RawEdge { graph, source: parent, target: node, row: 0 });
            self.edges.push(RawEdge { graph, source: node, target: parent, row: 0 });
        }
        let [radii, children, distances] = &mut self.features;
        radii.extend(&tree.radii);
        children.extend(tree.children.iter().map(|&count| count as f32));
        distances.extend(tree.root_distances.iter().map(|distance| distance.ln_1p() as f32));
        match self.space.add(&tree.positions, None, name) {
            // A reconstruction may have a point twice, as where a dendrite leaves the soma: SGMP reads edges, not all pairs of near nodes.
            Some(Misfit { node: Some(_), .. }) => self.doubled += 1,
            Some(Misfit { found, expected, .. }) => {
                return Err(Origin { file: name, place: Place::File }.error(found, expected));
            }
            None => {}
        }
        self.pointers.push(self.pointers[graph as usize] + tree.num_nodes() as u64);
        self.types.extend(tree.types);
        self.ids.push(name.to_owned());
        Ok(())
    }

    /// The graphs, still without the dataset's name.
    fn finish(self, targets: TargetCells, reads_types: bool) -> Result<GraphSet, DatasetError> {
        let header = targets.header;
        let nodes = self.types.len();
        let column = |name: &str, cells: Cells| Column {
            name: name.to_owned(),
            cells,
            origin: header,
            remedy: "leave the types out (kinds = \"none\" in kdgat-graphs.toml)",
        };
        let numbers = FEATURES.iter().zip(self.features).map(|(name, values)| column(name, Cells::Numbers(values)));
        let types = reads_types.then(|| {
            let (values, of_rows) = numbered(&self.types);
            column(TYPE, Cells::Numbered { values, of_rows })
        });
        let rows = Rows::new(numbers.chain(types).collect(), nodes)?;
        let targets = targets.parse(Some(Task::Classification))?;
        let sorted = SortedEdges::new(self.edges, self.ids.len());
        let edges = Edges::none(self.ids.len());
        let (places, position_hashes) = self.space.finish(vec![0; nodes], Vec::new());
        let doubled = (self.doubled > 0).then(|| format!("{} trees have points in one place", self.doubled));
        let space = SpaceSchema {
            kinds: Kinds::Unknown,
            forces: false,
            periodic: false,
            length_unit: None,
            energy_unit: None,
            unfit: doubled.clone().map(|found| format!("{found}: a network of pairs cannot read them")),
        };
        Ok(GraphSet {
            name: String::new(),
            schema: Schema {
                task: targets.task,
                level: Level::Graph,
                targets: targets.targets,
                node_features: rows.features,
                edge_features: edges.features,
                space: Some(space),
            },
            graph_ids: self.ids,
            node_ids: Vec::new(),
            without_targets: Vec::new(),
            notes: targets.notes.into_iter().chain(doubled).collect(),
            node_features: rows.values,
            node_pointers: self.pointers,
            edge_features: edges.values,
            edge_pointers: sorted.pointers,
            sources: sorted.sources,
            targets: sorted.targets,
            graph_targets: targets.values,
            node_targets: Vec::new(),
            splits: targets.splits,
            left_out: sorted.left_out,
            space: Some(places),
            position_hashes: Some(position_hashes),
            lists_edges: true,
        })
    }
}
