//! Angles and dihedrals that a dataset lists: paths over two or three edges, with parameters such as those of a force field.

use serde::{Deserialize, Serialize};

/// A kind of listed paths. Arrays of one value for each kind are in the order of [`PathKind::ALL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathKind {
    /// Paths i–j–k over two edges.
    Angles,
    /// Paths i–j–k–l over three edges.
    Dihedrals,
}

impl PathKind {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::Angles, Self::Dihedrals];

    /// Number of nodes of a path.
    pub const fn nodes(self) -> usize {
        match self {
            Self::Angles => 3,
            Self::Dihedrals => 4,
        }
    }

    /// Its plural, the name of its table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Angles => "angles",
            Self::Dihedrals => "dihedrals",
        }
    }

    /// Name of a table's column of parameters, if there is only one; several begin with it.
    pub const fn parameter(self) -> &'static str {
        match self {
            Self::Angles => "a",
            Self::Dihedrals => "d",
        }
    }
}

/// Listed paths of one kind, one graph after the other. A path and its reverse are one, listed from the end with the smaller number; the paths of
/// a graph ascend by their nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct PathList {
    /// `[num_graphs + 1]`: paths of graph `g` are `pointers[g]..pointers[g + 1]`.
    pub pointers: Vec<u64>,
    /// `[paths, nodes of a path]`: nodes of each path, numbered within the graph.
    pub nodes: Vec<u16>,
    /// `[paths, parameters]`: parameters of each path.
    pub parameters: Vec<f32>,
}

/// The listed paths of a graph of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PathView<'a> {
    /// `[paths, nodes of a path]`: nodes of each path, numbered within the graph, ascending by path.
    pub nodes: &'a [u16],
    /// `[paths, parameters]`: parameters of each path.
    pub parameters: &'a [f32],
}

impl Default for PathList {
    fn default() -> Self {
        Self { pointers: vec![0], nodes: Vec::new(), parameters: Vec::new() }
    }
}

impl PathList {
    /// Appends a graph with these paths.
    pub fn push(&mut self, kind: PathKind, paths: PathView<'_>) {
        self.nodes.extend_from_slice(paths.nodes);
        self.parameters.extend_from_slice(paths.parameters);
        self.pointers.push((self.nodes.len() / kind.nodes()) as u64);
    }

    /// The paths of a graph, which have so many parameters.
    ///
    /// # Panics
    /// When there is no such graph.
    pub fn of(&self, kind: PathKind, graph: usize, parameters: usize) -> PathView<'_> {
        let (begin, end) = (self.pointers[graph] as usize, self.pointers[graph + 1] as usize);
        PathView {
            nodes: &self.nodes[begin * kind.nodes()..end * kind.nodes()],
            parameters: &self.parameters[begin * parameters..end * parameters],
        }
    }

    /// Number of paths of all graphs.
    pub fn count(&self) -> u64 {
        self.pointers.last().copied().unwrap_or(0)
    }

    /// Removes all graphs but keeps the allocated memory.
    pub fn clear(&mut self) {
        self.pointers.truncate(1);
        self.nodes.clear();
        self.parameters.clear();
    }
}

impl PathView<'_> {
    /// Describes a contradiction in the paths of a graph of so many nodes, if there is one: damaged bytes must not become indices.
    pub(crate) fn inconsistency(&self, kind: PathKind, nodes: usize) -> Option<String> {
        let name = kind.name();
        if let Some(highest) = self.nodes.iter().max().filter(|&&node| usize::from(node) >= nodes) {
            return Some(format!("its {name} have node {highest} of {nodes}"));
        }
        let paths = || self.nodes.chunks_exact(kind.nodes());
        let ascend = paths().zip(paths().skip(1)).all(|(one, next)| one < next);
        (!ascend).then(|| format!("its {name} do not ascend"))
    }
}

/// A value for each kind of paths that a dataset lists; `None` for a kind that it does not list. Files hold them by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OfPaths<T> {
    /// That of angles.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    pub angles: Option<T>,
    /// That of dihedrals.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    pub dihedrals: Option<T>,
}

fn none<T>() -> Option<T> {
    None
}

impl<T> Default for OfPaths<T> {
    fn default() -> Self {
        Self { angles: None, dihedrals: None }
    }
}

impl OfPaths<Vec<String>> {
    /// Both tables as text, by the names of their parameters.
    pub fn describe(&self) -> String {
        let table = |kind: PathKind| match self.of(kind) {
            None => format!("no table of {}", kind.name()),
            Some(names) if names.is_empty() => format!("a table of {} without parameters", kind.name()),
            Some(names) => format!("a table of {} with the parameters {}", kind.name(), names.join(", ")),
        };
        PathKind::ALL.map(table).join(" and ")
    }
}

impl<T> OfPaths<T> {
    /// The value of a kind.
    pub const fn of(&self, kind: PathKind) -> Option<&T> {
        match kind {
            PathKind::Angles => self.angles.as_ref(),
            PathKind::Dihedrals => self.dihedrals.as_ref(),
        }
    }

    /// True without any value.
    pub fn is_none(&self) -> bool {
        self.angles.is_none() && self.dihedrals.is_none()
    }

    /// Other values of the kinds that have one.
    pub fn map<U>(&self, value: impl Fn(&T) -> U) -> OfPaths<U> {
        OfPaths { angles: self.angles.as_ref().map(&value), dihedrals: self.dihedrals.as_ref().map(&value) }
    }

    /// The values that a function gives for each kind.
    pub fn of_all(value: impl Fn(PathKind) -> Option<T>) -> Self {
        Self { angles: value(PathKind::Angles), dihedrals: value(PathKind::Dihedrals) }
    }

    /// The values that a function gives for each kind, unless it fails.
    ///
    /// # Errors
    /// Those of the function.
    pub fn try_of<E>(mut value: impl FnMut(PathKind) -> Result<Option<T>, E>) -> Result<Self, E> {
        Ok(Self { angles: value(PathKind::Angles)?, dihedrals: value(PathKind::Dihedrals)? })
    }
}
