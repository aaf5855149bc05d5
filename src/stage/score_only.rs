//! `kdgat curriculum --score-only`: writes the difficulty of every graph of a dataset as CSV.

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use super::difficulty::load_scorer;
use super::setup::{self, Data};
use super::{StageError, predictions};
use crate::can::Role;
use crate::config::Config;
use crate::curriculum::{CurriculumError, GraphScore, Scorer};
use crate::files;
use crate::graph::{Split, Store};

/// A row of the CSV file.
#[derive(Serialize)]
struct Row<'a> {
    graph: u64,
    folder: &'a str,
    file: &'a str,
    first_frame: u64,
    start_time: f64,
    split: &'static str,
    attack: u8,
    reconstruction: f32,
    id: f32,
    difficulty: f32,
}

/// Scores every graph of the dataset and writes the scores to a file or to standard output.
/// Returns the number of graphs.
pub fn score_only(config: &Config, target: Option<&Path>) -> Result<usize, StageError> {
    let data = setup::open(config)?;
    let scorer = load_scorer(config, &data.dataset.name, data.device)?;
    match target {
        None => write_scores(config, &data, &scorer, Path::new("standard output"), io::stdout().lock()),
        Some(path) => {
            let mut outcome = Ok(0);
            let written = files::write_atomically_with(path, |file| {
                outcome = write_scores(config, &data, &scorer, path, io::BufWriter::new(file));
                // An incomplete table must not replace a complete one.
                if outcome.is_err() { Err(io::Error::other("not scored")) } else { Ok(()) }
            });
            let graphs = outcome?;
            written.map_err(files::failed("write the scores", path))?;
            Ok(graphs)
        }
    }
}

fn write_scores(
    config: &Config,
    data: &Data,
    scorer: &Scorer,
    target: &Path,
    output: impl Write,
) -> Result<usize, StageError> {
    let graphs: Vec<u64> = (0..data.store.num_graphs()).collect();
    let failed =
        |error: csv::Error| CurriculumError::Write { path: target.to_owned(), source: predictions::io_error(error) };
    let mut table = csv::Writer::from_writer(output);
    scorer.score(&data.store, &graphs, config.curriculum.difficulty_chunk, |scores| {
        scores.iter().try_for_each(|score| table.serialize(row(&data.store, score)?).map_err(failed))
    })?;
    table.flush().map_err(|error| failed(error.into()))?;
    Ok(graphs.len())
}

fn row<'a>(store: &'a Store, score: &GraphScore) -> Result<Row<'a>, CurriculumError> {
    let view = store.try_graph(score.graph)?;
    let file = store.log_of(score.graph);
    let split = match file.role {
        Role::Test => "test",
        _ => match file.split.of(score.graph - file.first_graph) {
            Some(Split::Train) => "train",
            Some(Split::Validation) => "validation",
            _ => "none",
        },
    };
    Ok(Row {
        graph: score.graph,
        folder: &file.folder,
        file: &file.name,
        first_frame: view.first_frame,
        start_time: view.start_time,
        split,
        attack: view.attack.into(),
        reconstruction: score.reconstruction,
        id: score.id,
        difficulty: score.difficulty,
    })
}
