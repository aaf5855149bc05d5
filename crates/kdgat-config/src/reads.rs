//! The fields read by commands that do not train. Flags of other fields would be ignored, so they are refused.
//! [`super::rules`] has the fields that training commands read.

use super::check;
use super::conditions;
use super::error::{ConfigError, Problem};
use super::field_groups;
use super::layer::fields;
use super::load::Loaded;
use super::origin::Origin;
use super::table::Field;

/// The part of the configuration that a command reads.
#[derive(Clone, Copy, Debug)]
pub struct Reads {
    /// The command, without `kdgat`.
    pub command: &'static str,
    /// Sections that are read completely.
    pub sections: &'static [&'static str],
    /// Single fields that are read in addition.
    pub fields: &'static [&'static str],
}

/// `kdgat data simulate`: a simulated car.
pub const SIMULATE: Reads = Reads { command: "data simulate", sections: &[], fields: &["seed"] };
/// `kdgat data simulate --kind drive`: one drive.
pub const SIMULATE_DRIVE: Reads = Reads { command: "data simulate --kind drive", sections: &[], fields: &["seed"] };
/// `kdgat data simulate --kind citations`: one large citation graph.
pub const SIMULATE_CITATIONS: Reads = Reads {
    command: "data simulate --kind citations",
    sections: &[],
    fields: &["seed", "half_features", "threads", "memory_limit"],
};
/// `kdgat data build` of many graphs.
pub const BUILD: Reads = Reads { command: "data build", ..INFO };
/// `kdgat data build` of one large graph.
pub const BUILD_NODES: Reads = Reads {
    command: "data build",
    sections: &[],
    fields: &[
        "data",
        "stores_dir",
        "threads",
        "memory_limit",
        "undirected",
        "largest_component",
        "row_normalized",
        "half_features",
    ],
};
/// `kdgat data info`.
pub const INFO: Reads = Reads { command: "data info", sections: &["data"], fields: &["threads", "memory_limit"] };
/// `kdgat data merge`.
pub const MERGE: Reads = Reads { command: "data merge", sections: &[], fields: &["stores_dir"] };
/// `kdgat data check`.
pub const CHECK: Reads = Reads {
    command: "data check",
    sections: &[],
    fields: &[
        "data",
        "stores_dir",
        "log_format",
        "interface",
        "time_unit",
        "window",
        "max_reject_share",
        "threads",
        "undirected",
        "largest_component",
        "row_normalized",
        "half_features",
    ],
};
/// `kdgat teachers list`, `show` and `verify`.
pub const TEACHERS: Reads = Reads { command: "teachers", sections: &[], fields: &["teachers_dir"] };
/// Includes the student's model, so that the command accepts the flags of the student's training.
pub const CACHE: Reads = Reads {
    command: "teachers cache",
    sections: &["data", "model"],
    fields: &[
        "batch_size",
        "threads",
        "num_workers",
        "prefetch_batches",
        "device",
        "precision",
        "use_kd",
        "teacher_path",
        "more_teachers",
        "teachers_dir",
        "kd_views",
        "kd_vgae_latent_weight",
        "kd_hint_weight",
        "offload_teacher",
        "teacher_residency",
        "teacher_burst",
        "teacher_layer_slots",
        "use_teacher_cache",
        "teacher_cache",
        "teacher_cache_precision",
        "teacher_cache_dir",
        "memory_limit",
        "gpu_memory_limit",
    ],
};
/// `kdgat teachers cache` for one large graph.
pub const CACHE_NODES: Reads = Reads {
    command: "teachers cache",
    sections: &["data", "model", "nodes"],
    fields: &[
        "seed",
        "batch_size",
        "threads",
        "num_workers",
        "prefetch_batches",
        "device",
        "use_kd",
        "teacher_path",
        "more_teachers",
        "teachers_dir",
        "use_teacher_cache",
        "teacher_cache",
        "teacher_cache_precision",
        "teacher_cache_dir",
        "memory_limit",
        "gpu_memory_limit",
        "safety_factor",
        "features_from",
        "hot_rows",
    ],
};
/// `kdgat curriculum --score-only`: difficulty scores without a training.
pub const SCORE: Reads = Reads {
    command: "curriculum --score-only",
    sections: &["data"],
    fields: &[
        "attention",
        "threads",
        "device",
        "teachers_dir",
        "difficulty_chunk",
        "difficulty_model",
        "memory_limit",
        "gpu_memory_limit",
    ],
};
/// `kdgat evaluate` on CAN windows.
pub const EVALUATE: Reads = Reads {
    command: "evaluate",
    sections: &["data", "evaluation"],
    fields: &["attention", "seed", "threads", "device", "teachers_dir", "memory_limit", "runs_dir"],
};
/// `kdgat evaluate` on a dataset of graphs or on one large graph: their division, and the options of reading a graph, are those of each run.
pub const EVALUATE_DIVIDED: Reads = Reads {
    command: "evaluate --data GRAPHS",
    sections: &[],
    fields: &[
        "data",
        "stores_dir",
        "attention",
        "seed",
        "threads",
        "device",
        "teachers_dir",
        "memory_limit",
        "runs_dir",
    ],
};
/// `kdgat export` without example graphs.
pub const EXPORT: Reads = Reads { command: "export", sections: &[], fields: &["threads"] };
/// `kdgat export --examples`, which also reads graphs of the dataset.
pub const EXPORT_EXAMPLES: Reads =
    Reads { command: "export --examples", sections: &["data"], fields: &["attention", "threads", "memory_limit"] };
/// Accepts the flags of the training that is planned.
pub const PLAN: Reads = Reads {
    command: "memory plan",
    sections: &["data", "graphs", "nodes", "model", "training", "distillation", "memory"],
    fields: &[],
};

impl Reads {
    /// True if the command reads this field.
    pub fn includes(&self, field: &Field) -> bool {
        self.sections.contains(&field.section) || self.fields.contains(&field.name)
    }
}

/// Runs [`check::check`], and also refuses command-line flags that the command would not read. (A preset, a file or a variable may
/// serve other commands; a flag is meant for this one.)
pub fn check_reads(loaded: &Loaded, reads: &Reads) -> Result<(), ConfigError> {
    let mut problems = match check::check(&loaded.config) {
        Err(ConfigError::Invalid(problems)) => problems,
        other => other.map(|()| Vec::new())?,
    };
    let given = |field: &&Field| matches!(loaded.origin(field.name), Origin::Flag(_));
    let says_no = |field: &Field| check::says_no(field, &loaded.config);
    for field in fields().filter(given).filter(|field| !reads.includes(field) && !says_no(field)) {
        problems.push(Problem::Ignored {
            flag: loaded.origin(field.name).to_string(),
            because: format!("`kdgat {}` does not read it", reads.command),
            remedy: "drop it".to_owned(),
        });
    }
    if conditions::is_node_store(&loaded.config) {
        let fields = fields().filter(given).filter(|field| field_groups::READING_FIELDS.contains(&field.name));
        problems.extend(fields.filter(|field| reads.includes(field) && !says_no(field)).map(|field| {
            Problem::Ignored {
                flag: loaded.origin(field.name).to_string(),
                because: field_groups::STORE_IS_READ.to_owned(),
                remedy: "drop it".to_owned(),
            }
        }));
    }
    ConfigError::unless_empty(problems)
}
