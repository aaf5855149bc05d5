//! The optional file of settings of a dataset, `kdgat-graphs.toml`.

use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

use super::error::{DatasetError, Origin};
use super::nearest_points::MOST_NEIGHBOURS;
use super::radius::Radius;
use super::schema::{Level, Task};
use super::source_files::SourceFiles;
use crate::Split;

/// The file of settings.
pub(super) const SETTINGS: &str = "kdgat-graphs.toml";

/// A task by its name in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum TaskName {
    Classification,
    MultiLabel,
    Regression,
    NodeClassification,
    NodeMultiLabel,
    NodeRegression,
}

impl TaskName {
    fn task(self) -> (Task, Level) {
        match self {
            Self::Classification => (Task::Classification, Level::Graph),
            Self::MultiLabel => (Task::MultiLabel, Level::Graph),
            Self::Regression => (Task::Regression, Level::Graph),
            Self::NodeClassification => (Task::Classification, Level::Node),
            Self::NodeMultiLabel => (Task::MultiLabel, Level::Node),
            Self::NodeRegression => (Task::Regression, Level::Node),
        }
    }
}

/// The content of `kdgat-graphs.toml`; every field may be left out.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Settings {
    /// Name of the dataset; default: the folder's.
    pub name: Option<String>,
    /// `classification`, `multi-label` or `regression`, with `node-` in front for targets of nodes; default: by the targets.
    task: Option<Spanned<TaskName>>,
    /// Columns of the table of graphs or of nodes, or keys of the comment lines, to predict; default: `y` and all that begin with `y_`, or
    /// `energy`.
    pub targets: Option<Vec<String>>,
    /// Column or key with `train`, `validation` or `test`; default: `split`, if there is one.
    pub split: Option<String>,
    /// True if edges have a direction; false adds the reverse of each edge.
    directed: Option<Spanned<bool>>,
    /// Largest distance of two nodes with an edge made from their positions.
    cutoff: Option<Spanned<f64>>,
    /// Number of nearest nodes to which edges are made from positions.
    knn: Option<Spanned<usize>>,
    /// The root of the tree that is made of each graph: `degree`, `file` (a table `roots`), or the identifier of a node in all of them.
    tree: Option<Spanned<String>>,
    /// Number of Gaussians that a distance is expanded in.
    radial_basis: Option<Spanned<usize>>,
    /// False to make no edges from positions: networks in space make pairs of their own.
    edges: Option<Spanned<bool>>,
    /// Column of the table of nodes with their kinds; default: the column of chemical elements, or the only categorical one.
    pub kinds: Option<Spanned<String>>,
    /// Name of the forces: columns NAME_x, NAME_y, NAME_z of the table of nodes (default: f), a property of atoms or an array (default:
    /// forces).
    pub forces: Option<Spanned<String>>,
    /// Files whose graphs are the test set; those of the others are for training and validation. Of XYZ and npz files.
    test_files: Option<Spanned<Vec<String>>>,
    /// Distance between the points of an SWC file that are read, between its root, branch points and tips: 2 is every other one.
    resample: Option<Spanned<usize>>,
    /// Unit of positions and of the cutoff, for messages and reports.
    pub length_unit: Option<String>,
    /// Unit of energies, for messages and reports.
    pub energy_unit: Option<String>,
    /// The text of the file.
    #[serde(skip)]
    text: String,
}

impl Settings {
    /// Reads the file, if there is one.
    pub fn read(files: &SourceFiles) -> Result<Self, DatasetError> {
        let Some(bytes) = files.read(SETTINGS)? else { return Ok(Self::default()) };
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let settings = toml::from_str::<Self>(&text).map_err(|error| {
            let expected =
                "name, task (classification, multi-label, regression, node-classification, node-multi-label, node-regression), \
                 targets, split, directed, cutoff, knn, tree, radial_basis, edges, kinds, forces, test_files, resample, length_unit, energy_unit";
            origin(&text, error.span().unwrap_or(0..0)).error(error.message(), expected)
        })?;
        Ok(Self { text, ..settings })
    }

    /// The task, and what has its targets.
    pub fn task(&self) -> Option<(Task, Level)> {
        self.task.as_ref().map(|task| task.get_ref().task())
    }

    /// The task of a format whose graphs have the targets.
    ///
    /// # Errors
    /// A task of nodes.
    pub fn graph_task(&self) -> Result<Option<Task>, DatasetError> {
        match (&self.task, self.task()) {
            (Some(name), Some((_, Level::Node))) => {
                let expected =
                    "classification, multi-label or regression: targets of nodes are read from tables (nodes.csv)";
                Err(self.origin(name.span()).error("a task of nodes for atoms in XYZ files", expected))
            }
            (_, task) => Ok(task.map(|(task, _)| task)),
        }
    }

    /// True if edges have a direction.
    pub fn directed(&self) -> bool {
        self.directed.as_ref().is_none_or(|directed| *directed.get_ref())
    }

    /// The cutoff and the radial basis of made edges; `None` without a cutoff.
    ///
    /// # Errors
    /// A value that cannot be used, or a setting that would be ignored.
    pub fn radius(&self) -> Result<Option<Radius>, DatasetError> {
        match (&self.cutoff, &self.radial_basis) {
            (Some(cutoff), _) => self.radius_or(*cutoff.get_ref()).map(Some),
            (None, None) => Ok(None),
            (None, Some(basis)) => {
                let expected = "`cutoff`, too: the basis expands the lengths of edges made from positions";
                Err(self.origin(basis.span()).error("`radial_basis` without `cutoff`", expected))
            }
        }
    }

    /// The radial basis of made edges, and their cutoff, or the default one.
    ///
    /// # Errors
    /// A value that cannot be used, or a setting that would be ignored.
    pub fn radius_or(&self, default_cutoff: f64) -> Result<Radius, DatasetError> {
        if let Some(directed) = &self.directed {
            let expected = "no `directed`: edges made from positions have both directions";
            return Err(self.origin(directed.span()).error("`directed` beside edges made from positions", expected));
        }
        let cutoff = self.cutoff.as_ref().map_or(default_cutoff, |cutoff| *cutoff.get_ref());
        // Distances are compared by their squares.
        if cutoff <= 0.0 || !(cutoff * cutoff).is_normal() {
            return Err(self.cutoff_origin().error(format!("cutoff {cutoff}"), "a positive, finite distance"));
        }
        let Some(basis) = &self.radial_basis else { return Ok(Radius { cutoff, basis: Radius::DEFAULT_BASIS }) };
        if !Radius::BASES.contains(basis.get_ref()) {
            let expected = format!("{} to {} Gaussians", Radius::BASES.start(), Radius::BASES.end());
            return Err(self.origin(basis.span()).error(format!("radial_basis {}", basis.get_ref()), expected));
        }
        Ok(Radius { cutoff, basis: *basis.get_ref() })
    }

    /// False if no edges are wanted.
    ///
    /// # Errors
    /// A cutoff of the edges beside that.
    pub fn wants_edges(&self) -> Result<bool, DatasetError> {
        match (&self.edges, &self.cutoff) {
            (Some(edges), Some(_)) if !edges.get_ref() => {
                let expected =
                    "one of the two: networks in space have a cutoff of their own, in the configuration of the run";
                Err(self.origin(edges.span()).error("`edges = false` beside `cutoff`", expected))
            }
            (edges, _) => Ok(edges.as_ref().is_none_or(|edges| *edges.get_ref())),
        }
    }

    /// The set of each file's graphs, by `test_files`; `None` without that.
    ///
    /// # Errors
    /// A file that is not there, no file left for training, or a `split` beside that.
    pub fn splits_of(&self, files: &[&String]) -> Result<Option<Vec<Split>>, DatasetError> {
        let Some(test) = &self.test_files else { return Ok(None) };
        let error = |found: String, expected: String| Err(self.line_of(Some(test)).error(found, expected));
        if let Some(missing) = test.get_ref().iter().find(|name| !files.contains(name)) {
            let names: Vec<&str> = files.iter().map(|name| name.as_str()).collect();
            return error(format!("`test_files` with '{missing}'"), format!("names among {}", names.join(", ")));
        }
        if self.split.is_some() {
            return error("`test_files` beside `split`".to_owned(), "one of the two".to_owned());
        }
        let splits: Vec<Split> =
            files.iter().map(|&name| if test.get_ref().contains(name) { Split::Test } else { Split::Train }).collect();
        let wanted = |split: Split| splits.contains(&split);
        match wanted(Split::Test) && wanted(Split::Train) {
            true => Ok(Some(splits)),
            false => error(
                "`test_files` that leave no file for the other set".to_owned(),
                "some of the files, not all or none".to_owned(),
            ),
        }
    }

    /// True if the types of points in SWC files are a feature: unless `kinds` is `none`.
    ///
    /// # Errors
    /// Another value of `kinds`, or a setting that SWC files do not have.
    pub fn reads_types(&self) -> Result<bool, DatasetError> {
        let others = [
            ("task", self.task.is_some()),
            ("targets", self.targets.is_some()),
            ("split", self.split.is_some()),
            ("directed", self.directed.is_some()),
            ("cutoff", self.cutoff.is_some()),
            ("knn", self.knn.is_some()),
            ("tree", self.tree.is_some()),
            ("radial_basis", self.radial_basis.is_some()),
            ("edges", self.edges.is_some()),
            ("forces", self.forces.is_some()),
        ];
        if let Some((name, _)) = others.iter().find(|(_, is_set)| *is_set) {
            let found = format!("`{name}` beside SWC files");
            return Err(self
                .line_of::<()>(None)
                .error(found, "name, kinds, resample, test_files and units alone: folders are the classes"));
        }
        match self.kinds.as_ref().map(|kinds| kinds.get_ref().as_str()) {
            None | Some("type") => Ok(true),
            Some("none") => Ok(false),
            Some(other) => {
                let found = format!("kinds = \"{other}\" beside SWC files");
                Err(self.line_of(self.kinds.as_ref()).error(found, "type or none"))
            }
        }
    }

    /// Step between the points of an SWC file that are read, from 1: 1 unless `resample` is set.
    ///
    /// # Errors
    /// A step of 0.
    pub fn resample(&self) -> Result<usize, DatasetError> {
        match &self.resample {
            None => Ok(1),
            Some(step) if *step.get_ref() > 0 => Ok(*step.get_ref()),
            Some(step) => {
                Err(self.line_of(Some(step)).error("resample 0", "a whole number from 1 (1 reads all points)"))
            }
        }
    }

    /// Refuses `resample`, which only SWC files have.
    ///
    /// # Errors
    /// If it is set.
    pub fn expect_no_resample(&self) -> Result<(), DatasetError> {
        match &self.resample {
            None => Ok(()),
            Some(step) => {
                let expected = "SWC files, whose points it chooses: remove it";
                Err(self.line_of(Some(step)).error("`resample` beside other files than SWC", expected))
            }
        }
    }

    /// Number of nearest nodes to which edges are made; `None` unless `knn` is set.
    ///
    /// # Errors
    /// A number that cannot be used, or a setting that would be ignored.
    pub fn knn(&self) -> Result<Option<usize>, DatasetError> {
        let Some(knn) = &self.knn else { return Ok(None) };
        let beside = [
            ("cutoff", self.cutoff.is_some()),
            ("radial_basis", self.radial_basis.is_some()),
            ("directed", self.directed.is_some()),
            ("edges", self.edges.is_some()),
        ];
        if let Some((name, _)) = beside.iter().find(|(_, is_set)| *is_set) {
            let expected =
                "one of the two: nearest nodes have edges in both directions, with their distance as feature";
            return Err(self.line_of(Some(knn)).error(format!("`knn` beside `{name}`"), expected));
        }
        match (1..=MOST_NEIGHBOURS).contains(knn.get_ref()) {
            true => Ok(Some(*knn.get_ref())),
            false => {
                let expected = format!("1 to {MOST_NEIGHBOURS} nearest nodes");
                Err(self.line_of(Some(knn)).error(format!("knn {}", knn.get_ref()), expected))
            }
        }
    }

    /// The line of `knn`.
    pub fn knn_origin(&self) -> Origin<'static> {
        self.line_of(self.knn.as_ref())
    }

    /// The root of the tree that is made of each graph, as the setting names it; `None` unless `tree` is set.
    pub fn tree(&self) -> Option<&str> {
        self.tree.as_ref().map(|tree| tree.get_ref().as_str())
    }

    /// The line of `tree`.
    pub fn tree_origin(&self) -> Origin<'static> {
        self.line_of(self.tree.as_ref())
    }

    /// Refuses `knn` and `tree`, which only tables have.
    ///
    /// # Errors
    /// If one is set.
    pub fn expect_no_points(&self) -> Result<(), DatasetError> {
        let expected = "tables, whose nodes have positions: remove it";
        match (&self.knn, &self.tree) {
            (None, None) => Ok(()),
            (Some(knn), _) => Err(self.line_of(Some(knn)).error("`knn` beside other files than tables", expected)),
            (_, tree) => Err(self.line_of(tree.as_ref()).error("`tree` beside other files than tables", expected)),
        }
    }

    /// Refuses `test_files`, which tables do not have.
    ///
    /// # Errors
    /// If it is set.
    pub fn expect_no_test_files(&self) -> Result<(), DatasetError> {
        match &self.test_files {
            None => Ok(()),
            Some(files) => {
                let expected = "a column `split` in the table of graphs: `test_files` is for XYZ and npz files";
                Err(self.line_of(Some(files)).error("`test_files` beside tables", expected))
            }
        }
    }

    /// The line of `edges`.
    pub fn edges_origin(&self) -> Origin<'static> {
        self.line_of(self.edges.as_ref())
    }

    /// The line of a setting that was read, or the file.
    pub fn line_of<T>(&self, setting: Option<&Spanned<T>>) -> Origin<'static> {
        self.origin(setting.map_or(0..0, Spanned::span))
    }

    /// True if edges are made from positions.
    pub fn has_cutoff(&self) -> bool {
        self.cutoff.is_some()
    }

    /// The line of the cutoff.
    pub fn cutoff_origin(&self) -> Origin<'static> {
        self.origin(self.cutoff.as_ref().map_or(0..0, Spanned::span))
    }

    fn origin(&self, span: Range<usize>) -> Origin<'static> {
        origin(&self.text, span)
    }
}

/// The line of a value in the file.
fn origin(text: &str, span: Range<usize>) -> Origin<'static> {
    let before = text.get(..span.start).unwrap_or_default();
    Origin::line(SETTINGS, 1 + before.matches('\n').count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Settings {
        Settings { text: text.to_owned(), ..toml::from_str(text).unwrap() }
    }

    #[test]
    fn cutoff_and_basis_are_checked_with_their_lines() {
        let radius = |text: &str| settings(text).radius().unwrap();
        assert_eq!(radius(""), None);
        assert_eq!(settings("").radius_or(5.0).unwrap(), Radius { cutoff: 5.0, basis: 16 });
        assert_eq!(radius("cutoff = 3\nradial_basis = 8"), Some(Radius { cutoff: 3.0, basis: 8 }));
        for (text, expected) in [
            ("name = 'a'\nradial_basis = 8", "kdgat-graphs.toml, line 2: `radial_basis` without `cutoff`"),
            ("name = 'a'\n\ncutoff = 0.0", "kdgat-graphs.toml, line 3: cutoff 0, expected a positive"),
            ("cutoff = -1.5", "line 1: cutoff -1.5"),
            ("cutoff = nan", "line 1: cutoff NaN"),
            ("cutoff = inf", "line 1: cutoff inf"),
            ("cutoff = 1.0\nradial_basis = 1", "line 2: radial_basis 1, expected 2 to 256 Gaussians"),
            ("cutoff = 1.0\nradial_basis = 257", "line 2: radial_basis 257"),
            ("directed = true\ncutoff = 1.0", "line 1: `directed` beside edges made from positions"),
        ] {
            let error = settings(text).radius().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(settings("").wants_edges().unwrap() && !settings("edges = false").wants_edges().unwrap());
        let error = settings("cutoff = 1.0\nedges = false").wants_edges().unwrap_err().to_string();
        assert!(error.contains("kdgat-graphs.toml, line 2: `edges = false` beside `cutoff`"), "{error}");
    }
}
