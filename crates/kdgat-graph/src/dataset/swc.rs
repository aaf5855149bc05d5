//! Reads folders of SWC files: each file is a tree of points in space, its folder is its class.
//!
//! An edge leads from each point to its parent and back. Features of a point are its radius, the number of points that hang on it, and
//! ln(1 + length of the way from the root); with its type as a category unless `kdgat-graphs.toml` says `kinds = "none"`, because types
//! alone may give classes away: apical dendrites are named. With `resample = N`, only every N-th point between the root, branch points and
//! tips is read.

use super::error::{DatasetError, Origin, Place};
use super::feature_rows::{Cells, Column, Rows};
use super::graph_set::{Edges, GraphSet, LISTED, MOST_NODES, PlacedGraphs, RawEdge, SortedEdges};
use super::schema::{Kinds, SpaceSchema, Task, numbered};
use super::settings::{SETTINGS, Settings};
use super::source_files::SourceFiles;
use super::space_set::{Misfit, SpaceMaker};
use super::swc_tree::SwcTree;
use super::targets::TargetCells;
use crate::OfPaths;

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
    let names: Vec<&String> = files.names().iter().filter(|name| is_swc(name)).collect();
    let splits = settings.splits_of(&names)?;
    let mut forest = Forest { reads_types: settings.reads_types()?, pointers: vec![0], ..Forest::default() };
    let each = settings.resample()?;
    let mut classes = Vec::new();
    for name in &names {
        let origin = Origin { file: name, place: Place::File };
        let Some((class, _)) = name.rsplit_once('/') else {
            let expected = "a folder for each class, with its trees: data/interneuron/a.swc, data/principal/b.swc";
            return Err(origin.error("a tree outside of any folder", expected));
        };
        classes.push(class.to_owned());
        let bytes = files.read(name)?.unwrap_or_default();
        let tree = SwcTree::parse(name, &String::from_utf8_lossy(&bytes))?.resampled(each);
        if tree.num_nodes() > MOST_NODES {
            let found = format!("{} points", tree.num_nodes());
            let expected =
                format!("at most {MOST_NODES}: set `resample = {}` in {SETTINGS}, or a larger number", each + 1);
            return Err(origin.error(found, expected));
        }
        forest.add(tree, name)?;
    }
    let root = files.root().file_stem().map_or("graphs".into(), |name| name.to_string_lossy().into_owned());
    let origins: Vec<Origin> = names.iter().map(|name| Origin { file: name, place: Place::File }).collect();
    let header = origins.first().copied().unwrap_or(Origin { file: SETTINGS, place: Place::File });
    let targets = TargetCells { names: vec![CLASS.to_owned()], cells: vec![classes], splits, origins, header };
    forest.finish(&settings, settings.name.clone().unwrap_or(root), targets)
}

/// The trees so far.
#[derive(Default)]
struct Forest {
    /// True if the points' types are a feature.
    reads_types: bool,
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

    fn finish(self, settings: &Settings, name: String, targets: TargetCells) -> Result<GraphSet, DatasetError> {
        let header = targets.header;
        let num_nodes = self.types.len();
        let column = |name: &str, cells: Cells| Column {
            name: name.to_owned(),
            cells,
            origin: header,
            remedy: "leave the types out (kinds = \"none\" in kdgat-graphs.toml)",
        };
        let numbers = FEATURES.iter().zip(self.features).map(|(name, values)| column(name, Cells::Numbers(values)));
        let types = self.reads_types.then(|| {
            let (values, of_rows) = numbered(&self.types);
            column(TYPE, Cells::Numbered { values, of_rows })
        });
        let nodes = Rows::new(numbers.chain(types).collect(), num_nodes)?;
        let targets = targets.parse(Some(Task::Classification))?;
        let SortedEdges { pointers, sources, targets: ends, left_out, .. } =
            SortedEdges::new(self.edges, self.ids.len());
        let none = Edges::none(0);
        let points = match settings.resample()? {
            1 => String::new(),
            each => format!(", 1 in {each} points between branches"),
        };
        let made = format!("{LISTED}, trees from a given root{points}");
        let edges = Edges { pointers, sources, targets: ends, left_out, are_listed: true, made, ..none };
        let (places, position_hashes) = self.space.finish(vec![0; num_nodes], Vec::new());
        let doubled = (self.doubled > 0).then(|| format!("{} trees have points in one place", self.doubled));
        let schema = SpaceSchema {
            kinds: Kinds::Unknown,
            forces: false,
            periodic: false,
            rooted: true,
            length_unit: settings.length_unit.clone(),
            energy_unit: settings.energy_unit.clone(),
            unfit: doubled.clone().map(|found| format!("{found}: a network of pairs cannot read them")),
            paths: OfPaths::default(),
        };
        let (ids, pointers, notes) = (self.ids, self.pointers, doubled.into_iter().collect());
        Ok(PlacedGraphs { ids, pointers, nodes, edges, targets, schema, places, position_hashes, notes }.into_set(name))
    }
}
