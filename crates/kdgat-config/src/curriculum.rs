//! Fields of curricula: the source of difficulty of `kdgat train`, and the conditions under which the fields are read.

use super::check::Stage;
use super::data_kind::DataKind;
use super::fields::Config;
use super::rules::Rule;
use super::values::{CurriculumKind, DifficultySource};

/// Model or property that the difficulty of a dataset's graphs comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DifficultyOf {
    /// The task loss of `difficulty_model`.
    Model,
    /// The task loss of the run's teacher.
    Teacher,
    /// The task loss of the student.
    Student,
    /// The number of nodes.
    Size,
}

/// The source of difficulty of `kdgat train`.
pub fn difficulty_of(config: &Config) -> DifficultyOf {
    match config.curriculum.difficulty_source {
        DifficultySource::Size => DifficultyOf::Size,
        DifficultySource::Student => DifficultyOf::Student,
        DifficultySource::Auto if config.curriculum.difficulty_model.is_some() => DifficultyOf::Model,
        DifficultySource::Auto if config.distillation.use_kd => DifficultyOf::Teacher,
        DifficultySource::Auto => DifficultyOf::Student,
    }
}

/// True if epochs of `kdgat train` have chosen graphs.
pub fn has_graph_curriculum(config: &Config) -> bool {
    config.curriculum.curriculum_start_share.is_some() && config.curriculum.curriculum != CurriculumKind::Off
}

pub(super) static HAS_CURRICULUM: Rule = Rule {
    is_read: |_, stage| matches!(stage, Stage::Curriculum | Stage::Train),
    because: "this command has no curriculum",
    remedy: "use `kdgat curriculum` or drop it",
};

pub(super) static CHOOSES_GRAPHS: Rule = Rule {
    is_read: |config, stage| stage != Stage::Train || config.data_kind != DataKind::OneGraph,
    because: "the nodes of one large graph have no curriculum",
    remedy: "drop it",
};

pub(super) static SHARES_GRAPHS: Rule = Rule {
    is_read: |_, stage| stage == Stage::Train,
    because: "an epoch of `kdgat curriculum` has normal graphs in a ratio to the attacks",
    remedy: "use --curriculum-start-ratio and --curriculum-end-ratio, or drop it",
};

pub(super) static SCORES_BY_SOURCE: Rule = Rule {
    is_read: |_, stage| stage == Stage::Train,
    because: "a VGAE scores the difficulty of CAN windows",
    remedy: "name one with --difficulty-model, or drop it",
};

pub(super) static HAS_A_RATIO: Rule = Rule {
    is_read: |_, stage| stage != Stage::Train,
    because: "a dataset of graphs has no attacks to which the other graphs could be in a ratio",
    remedy: "use --curriculum-start-share or drop it",
};

pub(super) static HAS_A_START_SHARE: Rule = Rule {
    is_read: |config, stage| stage != Stage::Train || config.curriculum.curriculum_start_share.is_some(),
    because: "every epoch has all training graphs unless curriculum_start_share is set",
    remedy: "add --curriculum-start-share 0.5 or drop it",
};

pub(super) static CURRICULUM_IS_ON: Rule = Rule {
    is_read: |config, _| config.curriculum.curriculum != CurriculumKind::Off,
    because: "curriculum is none",
    remedy: "use another --curriculum or drop it",
};

pub(super) static IS_BY_DIFFICULTY: Rule = Rule {
    is_read: |config, _| config.curriculum.curriculum == CurriculumKind::Difficulty,
    because: "only the curriculum `difficulty` reads it",
    remedy: "add --curriculum difficulty or drop it",
};

pub(super) static SCORES_DIFFICULTY: Rule = Rule {
    is_read: |config, _| config.curriculum.curriculum.scores(),
    because: "this curriculum does not score difficulty",
    remedy: "add --curriculum difficulty or drop it",
};

pub(super) static SCORES_BY_MODEL: Rule = Rule {
    is_read: |config, stage| stage != Stage::Train || difficulty_of(config) == DifficultyOf::Model,
    because: "difficulty_source is not auto",
    remedy: "use --difficulty-source auto or drop it",
};

pub(super) static SCORES_AGAIN: Rule = Rule {
    is_read: |config, stage| stage != Stage::Train || difficulty_of(config) == DifficultyOf::Student,
    because: "the difficulty comes from a frozen model or from the graphs' sizes and does not change",
    remedy: "add --difficulty-source student or drop it",
};

pub(super) static SCORES_IN_CHUNKS: Rule = Rule {
    is_read: |config, stage| stage != Stage::Train || difficulty_of(config) != DifficultyOf::Size,
    because: "the difficulty of a graph is its number of nodes",
    remedy: "use --difficulty-source auto or drop it",
};
