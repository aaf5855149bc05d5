//! Fields of the section `[curriculum]`.

use std::path::PathBuf;

use crate::curriculum::*;
use crate::table::Limit::{Above, AtLeast, Between, Inside};
use crate::table::config_section;
use crate::values::*;

config_section! {
/// Curricula: the graphs of an epoch, chosen by their difficulty. `kdgat curriculum` chooses among the normal graphs, `kdgat train` among
/// all training graphs of a dataset of graphs.
#[rules(HAS_CURRICULUM, CHOOSES_GRAPHS)]
curriculum: CurriculumConfig {
    /// Choice of the graphs of an epoch. Attacks are in every epoch of `kdgat curriculum`.
    #[rules(HAS_A_START_SHARE)]
    curriculum: CurriculumKind = CurriculumKind::Difficulty;
    /// Normal graphs per attack graph in the first epoch.
    #[rules(HAS_A_RATIO, HAS_A_START_SHARE, CURRICULUM_IS_ON)]
    curriculum_start_ratio: f64 = 1.0, Above(0.0);
    /// Normal graphs per attack graph at the end: the ratio grows linearly and would reach this value after `max_epochs`.
    #[rules(HAS_A_RATIO, HAS_A_START_SHARE, CURRICULUM_IS_ON)]
    curriculum_end_ratio: f64 = 10.0, Above(0.0);
    /// Percentile of difficulty above which the first epoch draws its graphs; it rises linearly to 95.
    #[rules(HAS_A_START_SHARE, IS_BY_DIFFICULTY)]
    difficulty_percentile: f64 = 50.0, Between(0.0, 95.0);
    /// Epochs between two scorings of difficulty; 0 scores once. With `kdgat curriculum`, set it only if the scoring model is replaced
    /// while this one trains.
    #[rules(HAS_A_START_SHARE, SCORES_DIFFICULTY, SCORES_AGAIN)]
    difficulty_cache_update: usize = 0;
    /// Graphs per batch when scoring difficulty. Lower it when scoring runs out of memory.
    #[repeats = true]
    #[rules(HAS_A_START_SHARE, SCORES_DIFFICULTY, SCORES_IN_CHUNKS)]
    #[readers(Score)]
    difficulty_chunk: usize = 500, AtLeast(1.0);
    /// The model that scores difficulty: a run's folder or a weight file. For `kdgat curriculum` a VGAE (none: the dataset's registered
    /// VGAE teacher), for `kdgat train` a graph network, by its task loss, or a VGAE of graphs, by its error.
    #[rules(HAS_A_START_SHARE, SCORES_DIFFICULTY, SCORES_BY_MODEL)]
    #[readers(Score)]
    difficulty_model: Option<PathBuf> = None;
    /// Share of the training graphs in the first epoch of `kdgat train`; it grows linearly to all of them. none: every epoch has all
    /// training graphs.
    #[rules(SHARES_GRAPHS, HAS_A_START_SHARE, CURRICULUM_IS_ON)]
    curriculum_start_share: Option<f64> = None, Inside(0.0, 1.0);
    /// Epochs after which every epoch of `kdgat train` has all training graphs. none: `max_epochs`.
    #[rules(SHARES_GRAPHS, HAS_A_START_SHARE, CURRICULUM_IS_ON)]
    curriculum_epochs: Option<usize> = None, AtLeast(1.0);
    /// Source of the difficulty of graphs that are no CAN windows.
    #[rules(SCORES_BY_SOURCE, HAS_A_START_SHARE, SCORES_DIFFICULTY)]
    difficulty_source: DifficultySource = DifficultySource::Auto;
}}
