//! The cache file of a teacher's targets on disk: as a whole, or in parts that other machines compute and that are joined to the same bytes.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::StageError;
use super::teacher::FoundTeacher;
use super::teacher_cache::{free_bytes, free_text, refuse_full_disk};
use crate::distill::TeacherError;
use crate::distill::cache::{CacheError, CacheKey, CacheSummary, RecordLayout, TargetCache};
use crate::distill::planner::format_bytes;
use crate::files;
use crate::graph::Share;

/// The cache file of all targets, and those of their parts beside it.
pub(super) struct TargetFiles {
    path: PathBuf,
    key: CacheKey,
    layout: RecordLayout,
    /// Numbers of the records, in the order in which they are computed.
    records: Vec<u64>,
    /// Ends of the blocks of records that are computed together: parts are whole blocks.
    ends: Vec<usize>,
}

impl TargetFiles {
    /// Files of these records, whose blocks have `blocks` records each.
    pub fn new(
        path: PathBuf,
        (key, layout): (CacheKey, RecordLayout),
        records: Vec<u64>,
        blocks: impl Iterator<Item = usize>,
    ) -> Self {
        let ends = blocks.scan(0, |end, records| {
            *end += records;
            Some(*end)
        });
        Self { path, key, layout, ends: ends.collect(), records }
    }

    /// The cache file of all targets or of a part.
    pub fn path(&self, share: Option<Share>) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        if let Some(Share { part, parts }) = share {
            path.push(format!(".part-{part}-of-{parts}"));
        }
        path.into()
    }

    /// A folder for notes on computing the targets in `parts` parts.
    pub fn notes(&self, parts: usize) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(format!(".{parts}-parts"));
        path.into()
    }

    /// The blocks of a part, or all.
    pub fn blocks(&self, share: Option<Share>) -> Range<usize> {
        let Some(Share { part, parts }) = share else { return 0..self.ends.len() };
        let end = |part: usize| self.ends.len() * part / parts;
        end(part - 1)..end(part)
    }

    /// The records of a part, or all.
    pub fn records(&self, share: Option<Share>) -> &[u64] {
        let end = |block: usize| block.checked_sub(1).map_or(0, |block| self.ends[block]);
        let blocks = self.blocks(share);
        &self.records[end(blocks.start)..end(blocks.end)]
    }

    /// Bytes of the records of a part, or of all.
    ///
    /// # Errors
    /// A layout of targets that no record has.
    pub fn bytes(&self, share: Option<Share>) -> Result<u64, StageError> {
        Ok(self.layout.total_bytes(Some(self.records(share))).map_err(of_cache)?)
    }

    /// Prints the size and place of the targets of a part, or of all, before anything is written, and refuses a file that the disk has no room
    /// for; one that exists needs no more for its filled records. `of`: graphs or nodes in words, `from`: what the teacher reads, and
    /// `advice`: the first of the things to do.
    ///
    /// # Errors
    /// Too little room.
    pub fn announce(
        &self,
        share: Option<Share>,
        teacher: &FoundTeacher,
        [of, from, advice]: [&str; 3],
    ) -> Result<(), StageError> {
        let (path, bytes) = (self.path(share), self.bytes(share)?);
        let size = format!("targets of {of} take {} in {}", format_bytes(bytes), self.key.precision.as_str());
        let (path_text, free) = (path.display(), free_text(&path));
        let (digest, model) = (&teacher.weights.digest()[..12], teacher.architecture.model_name());
        eprintln!("teacher {digest} ({model}): {size}{from}; {path_text} has {free} free");
        match !path.exists() && free_bytes(&path).is_some_and(|free| free < bytes) {
            false => Ok(()),
            true => Err(StageError::Input(format!(
                "{size}, but the disk of {path_text} has {free} free; {advice}, use --teacher-cache-precision f16, or choose another disk with \
                 --teacher-cache-dir"
            ))),
        }
    }

    /// Opens the file of a part, or of all; creates it if there is none.
    ///
    /// # Errors
    /// A file of other targets, or a damaged one.
    pub fn open(&self, share: Option<Share>) -> Result<TargetCache, StageError> {
        let path = self.path(share);
        Ok(TargetCache::open(&path, &self.key, self.layout.clone(), Some(self.records(share))).map_err(of_cache)?)
    }

    /// True if the part has been computed completely.
    pub fn has(&self, share: Share) -> bool {
        // A part that cannot be opened is computed again, which reports the error.
        self.path(Some(share)).exists() && self.open(Some(share)).is_ok_and(|cache| cache.is_complete())
    }

    /// True if all targets are there.
    ///
    /// # Errors
    /// A cache that cannot be opened.
    pub fn is_complete(&self) -> Result<bool, StageError> {
        Ok(self.path(None).exists() && self.open(None)?.is_complete())
    }

    /// Refuses a part that is missing, of other targets, or not complete.
    ///
    /// # Errors
    /// Names the part.
    pub fn expect_parts(&self, parts: usize) -> Result<(), StageError> {
        for share in shares(parts) {
            let path = self.path(Some(share));
            let refused = |what: &str| {
                Err(StageError::Input(format!(
                    "part {share} of the targets {what} ({}); compute it with `kdgat teachers cache --part {share}`, or run the same command \
                     again",
                    path.display()
                )))
            };
            if !path.exists() {
                return refused("is missing");
            }
            if !self.open(Some(share))?.is_complete() {
                return refused("is not complete");
            }
        }
        Ok(())
    }

    /// Copies the targets of all parts, which must be complete, into one file and removes theirs.
    ///
    /// # Errors
    /// A damaged part, or a full disk.
    pub fn join(&self, parts: usize) -> Result<CacheSummary, StageError> {
        let mut all = self.open(None)?;
        for share in shares(parts) {
            let mut part = self.open(Some(share))?;
            all.read_from(&mut part).map_err(of_cache)?;
            if part.summary().damaged_records > 0 {
                return Err(StageError::Input(format!(
                    "{}: {} targets are damaged; run the same command again, or `kdgat teachers cache --part {share}`, to compute them \
                     again",
                    self.path(Some(share)).display(),
                    part.summary().damaged_records
                )));
            }
        }
        let summary = all.summary();
        if !all.is_complete() {
            return Err(refuse_full_disk(&self.path, summary.filled_graphs, summary.used_graphs));
        }
        all.sync();
        for share in shares(parts) {
            remove(&self.path(Some(share)), |path| std::fs::remove_file(path))?;
        }
        remove(&self.notes(parts), |path| std::fs::remove_dir_all(path))?;
        Ok(summary)
    }
}

fn shares(parts: usize) -> impl Iterator<Item = Share> {
    (1..=parts).map(move |part| Share { part, parts })
}

pub(super) fn of_cache(error: CacheError) -> TeacherError {
    error.into()
}

/// Removes a file or folder, unless another process has done so.
fn remove(path: &Path, remove: impl Fn(&Path) -> std::io::Result<()>) -> Result<(), StageError> {
    match remove(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(files::failed("remove", path)(source).into())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use tch::{Tensor, kind::FLOAT_CPU};

    use super::*;
    use crate::distill::{Precision, StoreShape, TargetLayout, TargetName, Targets};

    /// Ten records in blocks of four, four and two.
    fn files(folder: &Path, weights: &str) -> TargetFiles {
        let (targets, node_counts) = (TargetLayout::classifier(2), vec![1; 10]);
        let shape = StoreShape { dataset_digest: "data".to_owned(), node_counts, used: None };
        let key = CacheKey::new(weights, "{}", "", &targets, Precision::F32, &shape);
        let layout = RecordLayout::new(targets, Precision::F32, &shape.node_counts);
        TargetFiles::new(folder.join("all.targets"), (key, layout), (0..10).collect(), [4, 4, 2].into_iter())
    }

    fn fill(files: &TargetFiles, share: Share) {
        let records = files.records(Some(share));
        let rows = Tensor::ones([records.len() as i64, 2], FLOAT_CPU);
        let targets = Targets { tensors: vec![(TargetName::Logits, rows)] };
        files.open(Some(share)).unwrap().insert(records, &targets).unwrap();
    }

    #[test]
    fn parts_are_whole_blocks_and_all_records() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path(), "weights");
        for parts in 1..6 {
            let records: Vec<&[u64]> = shares(parts).map(|share| files.records(Some(share))).collect();
            assert_eq!(records.concat(), files.records(None));
            assert!(records.iter().all(|part| part.first().is_none_or(|first| first % 4 == 0)), "{records:?}");
        }
    }

    /// The command that joins finds the files of jobs on another disk.
    #[test]
    fn a_missing_an_incomplete_and_a_foreign_part_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path(), "weights");
        let refused = |words: &[&str]| {
            let text = files.expect_parts(2).unwrap_err().to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        };
        let [first, second] = [Share { part: 1, parts: 2 }, Share { part: 2, parts: 2 }];
        refused(&["part 1/2 of the targets is missing", "--part 1/2"]);
        fill(&files, first);
        files.open(Some(second)).unwrap();
        refused(&["part 2/2 of the targets is not complete", ".part-2-of-2"]);
        std::fs::remove_file(files.path(Some(second))).unwrap();
        fill(&super::tests::files(folder.path(), "others"), second);
        refused(&[".part-2-of-2", "teacher's weights (cache: others"]);
        assert!(!files.has(second) && files.has(first));
        std::fs::remove_file(files.path(Some(second))).unwrap();
        fill(&files, second);
        files.expect_parts(2).unwrap();
        assert_eq!(files.join(2).unwrap().filled_graphs, 10);
        assert!(files.is_complete().unwrap() && !files.path(Some(first)).exists());
    }
}
