//! A dataset whose test graphs are in another place than the others: two sources as one set.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::error::DatasetError;
use super::graph_set::{BOTH_WAYS, GraphSet, LeftOut};
use super::schema::{Feature, Kinds, Schema, SpaceSchema, Target, Task, numbered};
use super::space_set::SpaceSet;
use super::{read, source_digest};
use crate::{PathKind, Split};

/// The place of a dataset of graphs, or the places of its training and of its test graphs.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// The dataset, or the graphs for training and validation.
    pub data: &'a Path,
    /// The test graphs, if they are elsewhere.
    pub test: Option<&'a Path>,
}

impl<'a> From<&'a Path> for Source<'a> {
    fn from(data: &'a Path) -> Self {
        Self { data, test: None }
    }
}

impl<'a> From<&'a PathBuf> for Source<'a> {
    fn from(data: &'a PathBuf) -> Self {
        Self { data, test: None }
    }
}

impl Source<'_> {
    /// Reads the dataset. Graphs from elsewhere are the test set, whose names and classes are those of the others.
    ///
    /// # Errors
    /// Those of [`read`], test graphs whose columns differ from those of the others, or a test set among the others.
    pub fn read(self) -> Result<GraphSet, DatasetError> {
        let training = read(self.data)?;
        match self.test {
            None => Ok(training),
            Some(test) => {
                let test_set = read(test)?;
                Join { training: self.data, test }.join(training, test_set)
            }
        }
    }

    /// Digest of the names and contents of all files.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn digest(self) -> Result<String, DatasetError> {
        let digest = source_digest(self.data)?;
        let Some(test) = self.test else { return Ok(digest) };
        // The names are part of the graphs' names.
        let both = format!("{} {digest} {} {}", name_of(self.data), name_of(test), source_digest(test)?);
        Ok(blake3::hash(both.as_bytes()).to_hex().to_string())
    }
}

/// Name of a file or folder, for the names of its graphs.
fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(|| "graphs".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// The places of two sets that become one.
struct Join<'a> {
    training: &'a Path,
    test: &'a Path,
}

impl Join<'_> {
    fn refuse<T>(&self, detail: String) -> Result<T, DatasetError> {
        Err(DatasetError::Unusable { root: self.test.to_owned(), detail })
    }

    /// Refuses what differs, with both sides.
    fn expect_equal(&self, what: &str, [training, test]: [String; 2]) -> Result<(), DatasetError> {
        match training == test {
            true => Ok(()),
            false => {
                let [of_training, of_test] = [training, test].map(|side| format!("{what} {side}").trim().to_owned());
                self.refuse(format!(
                    "test data with {of_test}, and the training data ({}) with {of_training}; write both in the same way",
                    self.training.display()
                ))
            }
        }
    }

    fn join(&self, training: GraphSet, test: GraphSet) -> Result<GraphSet, DatasetError> {
        let schema = self.schema(&training, &test)?;
        let splits = self.splits(&training, &test)?;
        let names = [name_of(self.training), name_of(self.test)];
        if names[0] == names[1] {
            return self.refuse(format!(
                "test data named {} as the training data ({}): give them different names, which graphs are named by",
                names[1],
                self.training.display()
            ));
        }
        let sets = [&training, &test];
        let of_nodes = sets.map(|set| Columns::new(&set.schema.node_features, &schema.node_features));
        let of_edges = sets.map(|set| Columns::new(&set.schema.edge_features, &schema.edge_features));
        let classes = |set: &GraphSet| class_numbers(&set.schema.targets, &schema.targets);
        let maps = sets.map(classes);
        let both = |of: &dyn Fn(usize) -> Vec<f32>| [of(0), of(1)].concat();
        let ids = sets.iter().zip(&names);
        let named = |id: &String, name: &String| format!("{name}:{id}");
        Ok(GraphSet {
            graph_ids: ids
                .clone()
                .flat_map(|(set, name)| set.graph_ids.iter().map(move |id| named(id, name)))
                .collect(),
            without_targets: ids
                .flat_map(|(set, name)| set.without_targets.iter().map(move |id| named(id, name)))
                .collect(),
            node_ids: sets.iter().flat_map(|set| set.node_ids.iter().cloned()).collect(),
            notes: sets
                .iter()
                .zip(&names)
                .flat_map(|(set, name)| set.notes.iter().map(move |note| format!("{name}: {note}")))
                .collect(),
            node_pointers: joined_pointers([&training.node_pointers, &test.node_pointers]),
            edge_pointers: joined_pointers([&training.edge_pointers, &test.edge_pointers]),
            node_features: both(&|at| of_nodes[at].moved(&sets[at].node_features)),
            edge_features: both(&|at| of_edges[at].moved(&sets[at].edge_features)),
            sources: [&training.sources[..], &test.sources].concat(),
            targets: [&training.targets[..], &test.targets].concat(),
            graph_targets: both(&|at| renumbered(&sets[at].graph_targets, &maps[at])),
            target_rests: match training.target_rests.is_empty() && test.target_rests.is_empty() {
                true => Vec::new(),
                false => both(&|at| match sets[at].target_rests.is_empty() {
                    true => vec![0.0; sets[at].graph_targets.len()],
                    false => sets[at].target_rests.clone(),
                }),
            },
            node_targets: both(&|at| renumbered(&sets[at].node_targets, &maps[at])),
            splits: Some(splits),
            left_out: LeftOut {
                self_loops: training.left_out.self_loops + test.left_out.self_loops,
                repeated: training.left_out.repeated + test.left_out.repeated,
            },
            space: joined_space([&training, &test], schema.space.as_ref()),
            position_hashes: match (&training.position_hashes, &test.position_hashes) {
                (Some(training), Some(test)) => Some([&training[..], test].concat()),
                _ => None,
            },
            lists_edges: training.lists_edges,
            made: training.made.clone(),
            name: training.name.clone(),
            schema,
        })
    }

    /// The columns of both; those of categories have the values of either.
    fn schema(&self, training: &GraphSet, test: &GraphSet) -> Result<Schema, DatasetError> {
        let (own, other) = (&training.schema, &test.schema);
        self.expect_equal("the task", [own, other].map(|schema| schema.task_name().to_owned()))?;
        let names =
            |targets: &[Target]| targets.iter().map(|target| target.name.clone()).collect::<Vec<_>>().join(", ");
        self.expect_equal("the targets", [own, other].map(|schema| names(&schema.targets)))?;
        let edges = |set: &GraphSet| if set.lists_edges { "listed" } else { "made or absent" }.to_owned();
        self.expect_equal("edges that are", [training, test].map(edges))?;
        let mut made = [training, test].map(|set| set.made.clone());
        // A source may list both directions of each edge itself.
        if made[0] != made[1] && training.is_undirected() && test.is_undirected() {
            made = made.map(|text| text.replace(BOTH_WAYS, ""));
        }
        self.expect_equal("", made)?;
        let features = |features: &[Feature]| {
            let kind = |feature: &Feature| if feature.values.is_some() { " (categories)" } else { "" };
            let texts: Vec<String> =
                features.iter().map(|feature| format!("{}{}", feature.name, kind(feature))).collect();
            if texts.is_empty() { "none".to_owned() } else { texts.join(", ") }
        };
        self.expect_equal("the features of nodes", [own, other].map(|schema| features(&schema.node_features)))?;
        self.expect_equal("the features of edges", [own, other].map(|schema| features(&schema.edge_features)))?;
        let unions = |own: &[Feature], other: &[Feature]| -> Vec<Feature> {
            own.iter().zip(other).map(|(own, other)| union_of(own, other)).collect()
        };
        Ok(Schema {
            task: own.task,
            level: own.level,
            targets: self.targets(own, other)?,
            node_features: unions(&own.node_features, &other.node_features),
            edge_features: unions(&own.edge_features, &other.edge_features),
            space: self.space(own.space.as_ref(), other.space.as_ref())?,
        })
    }

    /// The targets of the training data, whose classes are all that there are.
    fn targets(&self, own: &Schema, other: &Schema) -> Result<Vec<Target>, DatasetError> {
        let pairs = own.targets.iter().zip(&other.targets);
        let unknown = pairs.flat_map(|(own, other)| other.classes.iter().filter(|class| !own.classes.contains(class)));
        match (own.task, unknown.into_iter().next()) {
            (Task::Classification, Some(class)) => self.refuse(format!(
                "class '{class}', which no training graph has; only classes of the training data can be tested"
            )),
            _ => Ok(own.targets.clone()),
        }
    }

    fn space(
        &self,
        own: Option<&SpaceSchema>,
        other: Option<&SpaceSchema>,
    ) -> Result<Option<SpaceSchema>, DatasetError> {
        let has = |space: Option<&SpaceSchema>| if space.is_some() { "" } else { "no " }.to_owned() + "positions";
        self.expect_equal("", [has(own), has(other)])?;
        let (Some(own), Some(other)) = (own, other) else { return Ok(None) };
        let forces = |space: &SpaceSchema| if space.forces { "forces" } else { "no forces" }.to_owned();
        self.expect_equal("", [forces(own), forces(other)])?;
        self.expect_equal("", [own, other].map(|space| space.paths.describe()))?;
        let unit = |own: &Option<String>, other: &Option<String>| own.clone().or_else(|| other.clone());
        let known = |own: &Option<String>, other: &Option<String>| match (own, other) {
            (Some(own), Some(other)) => [own.clone(), other.clone()],
            _ => [String::new(), String::new()],
        };
        self.expect_equal("the unit of lengths", known(&own.length_unit, &other.length_unit))?;
        self.expect_equal("the unit of energies", known(&own.energy_unit, &other.energy_unit))?;
        let kinds = match (&own.kinds, &other.kinds) {
            (Kinds::Named(own), Kinds::Named(other)) => Kinds::Named(numbered(&[&own[..], other].concat()).0),
            (own, other) => {
                let named = |kinds: &Kinds| match kinds {
                    Kinds::Unknown => "unknown",
                    Kinds::Elements => "elements",
                    Kinds::Named(_) => "names",
                };
                self.expect_equal("kinds of nodes that are", [own, other].map(|kinds| named(kinds).to_owned()))?;
                own.clone()
            }
        };
        Ok(Some(SpaceSchema {
            kinds,
            forces: own.forces,
            // Equal in both: the making of the graphs was compared.
            rooted: own.rooted,
            periodic: own.periodic || other.periodic,
            length_unit: unit(&own.length_unit, &other.length_unit),
            energy_unit: unit(&own.energy_unit, &other.energy_unit),
            unfit: own.unfit.clone().or_else(|| other.unfit.clone()),
            paths: own.paths.clone(),
        }))
    }

    /// The training data's own sets, and the test set.
    fn splits(&self, training: &GraphSet, test: &GraphSet) -> Result<Vec<Split>, DatasetError> {
        let own = training.splits.clone().unwrap_or_else(|| vec![Split::Train; training.num_graphs()]);
        if own.contains(&Split::Test) {
            let text = "the training data have test graphs of their own, by their split or test_files: remove these, or the separate test data";
            return self.refuse(format!("{text} (training data: {})", self.training.display()));
        }
        if test.splits.as_ref().is_some_and(|splits| splits.iter().any(|split| *split != Split::Test)) {
            return self.refuse(
                "test data whose split names graphs for training or validation: all of them are for testing".to_owned(),
            );
        }
        Ok([own, vec![Split::Test; test.num_graphs()]].concat())
    }
}

/// A feature with the values of both.
fn union_of(own: &Feature, other: &Feature) -> Feature {
    let values = match (&own.values, &other.values) {
        (Some(own), Some(other)) => Some(numbered(&[&own[..], other].concat()).0),
        _ => None,
    };
    Feature { name: own.name.clone(), values }
}

/// New places of the input columns of a set among those of both sets.
struct Columns {
    of_old: Vec<usize>,
    width: usize,
}

impl Columns {
    fn new(own: &[Feature], all: &[Feature]) -> Self {
        let (mut of_old, mut width) = (Vec::new(), 0);
        for (own, all) in own.iter().zip(all) {
            match (&own.values, &all.values) {
                (Some(own), Some(all)) => {
                    let places: HashMap<&String, usize> = all.iter().zip(width..).collect();
                    of_old.extend(own.iter().map(|value| places[value]));
                }
                _ => of_old.push(width),
            }
            width += all.columns();
        }
        Self { of_old, width }
    }

    /// Rows with their values in the new places.
    fn moved(&self, rows: &[f32]) -> Vec<f32> {
        let count = rows.len() / self.of_old.len().max(1);
        let mut moved = vec![0.0; count * self.width];
        for (row, new) in rows.chunks_exact(self.of_old.len().max(1)).zip(moved.chunks_exact_mut(self.width.max(1))) {
            row.iter().zip(&self.of_old).for_each(|(&value, &column)| new[column] = value);
        }
        moved
    }
}

/// The new number of each class of the first target; empty without classes.
fn class_numbers(own: &[Target], all: &[Target]) -> Vec<usize> {
    let (Some(own), Some(all)) = (own.first(), all.first()) else { return Vec::new() };
    let number = |class: &String| all.classes.iter().position(|other| other == class).unwrap_or_default();
    own.classes.iter().map(number).collect()
}

/// Targets with classes of new numbers; NaN stays.
fn renumbered(values: &[f32], numbers: &[usize]) -> Vec<f32> {
    let new = |&value: &f32| match numbers.get(value as usize) {
        Some(&number) if !value.is_nan() => number as f32,
        _ => value,
    };
    values.iter().map(new).collect()
}

/// Pointers of the first set, then those of the second one behind it.
fn joined_pointers([first, second]: [&[u64]; 2]) -> Vec<u64> {
    let end = first.last().copied().unwrap_or(0);
    first.iter().copied().chain(second.iter().skip(1).map(|pointer| end + pointer)).collect()
}

/// Positions of both sets, with kinds of new numbers.
fn joined_space(sets: [&GraphSet; 2], schema: Option<&SpaceSchema>) -> Option<SpaceSet> {
    let [Some(own), Some(other)] = sets.map(|set| set.space.as_ref()) else { return None };
    let schema = schema?;
    let kinds = sets.into_iter().flat_map(|set| {
        let numbers: HashMap<u16, u16> = match (&schema.kinds, set.schema.space.as_ref().map(|space| &space.kinds)) {
            (Kinds::Named(all), Some(Kinds::Named(own))) => {
                let places: HashMap<&String, u16> = all.iter().zip(1..).collect();
                own.iter().zip(1..).map(|(name, number)| (number, places[name])).collect()
            }
            _ => HashMap::new(),
        };
        let kinds = set.space.as_ref().map_or(&[][..], |space| &space.kinds);
        kinds.iter().map(move |kind| numbers.get(kind).copied().unwrap_or(*kind))
    });
    let cells = |set: &GraphSet, space: &SpaceSet| match space.cells.is_empty() {
        true => vec![0.0; 9 * set.num_graphs()],
        false => space.cells.clone(),
    };
    Some(SpaceSet {
        positions: [&own.positions[..], &other.positions].concat(),
        kinds: kinds.collect(),
        forces: [&own.forces[..], &other.forces].concat(),
        cells: match schema.periodic {
            true => [cells(sets[0], own), cells(sets[1], other)].concat(),
            false => Vec::new(),
        },
        paths: PathKind::ALL.map(|kind| {
            let [mut list, more] = [own, other].map(|space| space.paths[kind as usize].clone());
            list.pointers = joined_pointers([&list.pointers, &more.pointers]);
            list.nodes.extend(more.nodes);
            list.parameters.extend(more.parameters);
            list
        }),
    })
}
