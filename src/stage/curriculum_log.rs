//! `curriculum.csv`: the difficulties of the graphs that a curriculum chooses from, and the graphs that some epochs chose.

use std::path::PathBuf;

use crate::curriculum::Sampler;
use crate::train::logs::{CsvLog, LogError};

/// Number of difficulty bins.
const BINS: usize = 32;
/// Maximum number of epochs to write, spread evenly over the run, in addition to the last one.
const EPOCHS: u64 = 40;

const OF_NORMALS: [&str; 5] = ["epoch", "difficulty_low", "difficulty_high", "normals", "chosen"];
const OF_GRAPHS: [&str; 5] = ["epoch", "difficulty_low", "difficulty_high", "graphs", "chosen"];

/// Writer of `curriculum.csv`.
pub struct ChoiceLog {
    path: PathBuf,
    max_epochs: u64,
    header: [&'static str; 5],
    log: Option<CsvLog>,
}

impl ChoiceLog {
    /// Creates the writer for a choice of all training graphs, or of normal ones; the file is created with the first epoch.
    pub fn new(path: PathBuf, max_epochs: u64, is_of_all: bool) -> Self {
        Self { path, max_epochs, header: if is_of_all { OF_GRAPHS } else { OF_NORMALS }, log: None }
    }

    /// Writes the graphs that an epoch chooses, if the epoch is among those to write. A resumed run replaces its rows.
    pub fn note(&mut self, epoch: u64, sampler: &Sampler) -> Result<(), LogError> {
        if !epoch.is_multiple_of(self.max_epochs.div_ceil(EPOCHS).max(1)) && epoch + 1 != self.max_epochs {
            return Ok(());
        }
        let before = |row: &csv::StringRecord| row[0].parse::<u64>().is_ok_and(|found| found < epoch);
        let log = match &mut self.log {
            Some(log) => log,
            none => none.insert(CsvLog::resume(&self.path, &self.header, before)?),
        };
        for bin in sampler.distribution(&sampler.select(epoch), BINS) {
            let difficulties = [bin.low, bin.high].map(|difficulty| difficulty.to_string());
            let [low, high] = difficulties;
            log.write(&[epoch.to_string(), low, high, bin.normals.to_string(), bin.chosen.to_string()])?;
        }
        Ok(())
    }
}
