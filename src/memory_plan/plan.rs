//! Recommends settings for a model, a dataset and a memory size from the architecture, without training.

use std::fmt::Write;

use super::estimate::{Circumstances, ComparedLayers, estimate, targets_per_node};
use crate::memory::budget::{MemoryBudget, Moment, WorstBatches, gibibytes};
use crate::nn::{Architecture, GatConfig, InputConfig, ModelError, VgaeConfig};

/// Batch size below which training is slow and gradients are noisy, so that other changes come first.
const SMALL_BATCH: usize = 32;
/// GPU sizes that overlays are made for, in GB.
pub const GPU_GIGABYTES: [u64; 8] = [4, 8, 12, 16, 24, 40, 80, 141];
/// Share of a GPU's memory that overlays plan for: the safety factor of the teachers' presets.
const OVERLAY_SHARE: f64 = 0.5;
/// Nodes of a window of 100 frames in overlays, as for a car with many IDs; edges and vocabulary likewise.
const OVERLAY_NODES: f64 = 60.0;
const OVERLAY_EDGES: f64 = 160.0;
const OVERLAY_IDS: i64 = 256;

/// Model, data and limits to plan for.
#[derive(Debug)]
pub struct Question<'a> {
    pub student: &'a Architecture,
    /// The networks of the teacher; none without a teacher.
    pub teachers: &'a [Architecture],
    pub worst: &'a WorstBatches,
    pub compared: ComparedLayers,
    /// Set when steps run as CUDA graphs.
    pub records_steps: bool,
    /// Number of nodes in all training graphs, in each of their views, and in all validation graphs: sets the size of the target cache.
    pub total_nodes: f64,
    /// Requested batch size, in graphs.
    pub wanted: usize,
    pub target_bytes: f64,
    pub cuda: bool,
    /// Set when fused kernels run the passes: on the CPU, in f32.
    pub fused: bool,
    /// Precision, as written in the setting.
    pub precision: &'a str,
    pub burst: usize,
    pub waiting_batches: usize,
    pub nodes_per_graph: f64,
}

impl Question<'_> {
    fn cache_bytes(&self, teacher: &Architecture) -> f64 {
        self.total_nodes * targets_per_node(teacher, self.nodes_per_graph, self.compared)
    }
}

/// Changes in force on a rung of the ladder.
#[derive(Debug, Clone, Copy)]
struct Choice {
    cache_on_disk: bool,
    half_targets: bool,
    checkpointing: bool,
    micro_batch: bool,
    layer_residency: bool,
}

/// One change and the memory that it saves at the requested batch size.
#[derive(Debug, Clone)]
pub struct Rung {
    pub change: &'static str,
    pub setting: String,
    pub saved_bytes: f64,
}

/// The recommended settings.
#[derive(Debug)]
pub struct Answer {
    pub budget: MemoryBudget,
    /// Graphs per forward pass; `None` if not even one fits.
    pub graphs: Option<usize>,
    pub checkpointing: bool,
    pub cache: &'static str,
    pub residency: &'static str,
    /// Changes needed to reach this, cheapest first.
    pub ladder: Vec<Rung>,
}

/// Applies changes in order of cost until the requested batch fits.
pub fn recommend(question: &Question) -> Result<Answer, ModelError> {
    let mut choice = Choice {
        cache_on_disk: false,
        half_targets: false,
        checkpointing: false,
        micro_batch: false,
        layer_residency: false,
    };
    let mut ladder = Vec::new();
    let mut budget = budget(question, choice)?;
    let shape = question.worst.shape(question.wanted);
    let teacher = !question.teachers.is_empty();
    type Change = fn(&mut Choice);
    let changes: [(bool, &'static str, &str, Change); 4] = [
        (teacher && !question.cuda, "targets on disk", "--teacher-cache disk", |choice| choice.cache_on_disk = true),
        (teacher, "targets in half precision", "--teacher-cache-precision f16", |choice| choice.half_targets = true),
        (true, "recomputed activations", "--gradient-checkpointing true", |choice| choice.checkpointing = true),
        (teacher && question.cuda, "teacher layer by layer", "--teacher-residency layer", |choice| {
            choice.layer_residency = true;
        }),
    ];
    let fits = |budget: &MemoryBudget| budget.peak_bytes(shape) <= question.target_bytes;
    for (applies, change, setting, apply) in changes {
        if fits(&budget) || !applies {
            continue;
        }
        let before = budget.peak_bytes(shape);
        apply(&mut choice);
        budget = self::budget(question, choice)?;
        let saved_bytes = before - budget.peak_bytes(shape);
        ladder.push(Rung { change, setting: setting.to_owned(), saved_bytes });
    }
    let graphs = budget.largest_batch(question.worst, question.target_bytes, question.wanted);
    if let Some(graphs) = graphs.filter(|graphs| *graphs < question.wanted) {
        choice.micro_batch = true;
        let accumulated = question.wanted.div_ceil(graphs);
        let saved_bytes = budget.peak_bytes(shape) - budget.peak_bytes(question.worst.shape(graphs));
        let setting = format!("--batch-size {graphs} --accumulate-grad-batches {accumulated}");
        ladder.push(Rung { change: "smaller batches, accumulated", setting, saved_bytes });
    }
    if graphs.is_none_or(|graphs| graphs < SMALL_BATCH.min(question.wanted)) {
        let setting = "narrower --hidden, or another --preset size".to_owned();
        ladder.push(Rung { change: "a smaller model", setting, saved_bytes: f64::NAN });
    }
    Ok(Answer {
        budget,
        graphs,
        checkpointing: choice.checkpointing,
        cache: match (teacher, choice.cache_on_disk) {
            (false, _) => "off",
            (true, false) => "ram",
            (true, true) => "disk",
        },
        residency: match (teacher, choice.layer_residency) {
            (false, _) => "none",
            (true, false) => "resident",
            (true, true) => "layer",
        },
        ladder,
    })
}

fn budget(question: &Question, choice: Choice) -> Result<MemoryBudget, ModelError> {
    let circumstances = Circumstances {
        cuda: question.cuda,
        fused: question.fused,
        checkpointing: choice.checkpointing,
        offload_optimizer: false,
        burst: if question.teachers.is_empty() { 1 } else { question.burst },
        waiting_batches: question.waiting_batches,
        nodes_per_graph: question.nodes_per_graph,
        resident_teacher: !choice.layer_residency,
        teacher_counted: false,
        compared: question.compared,
    };
    let mut budget = estimate(question.student, question.teachers, &circumstances)?;
    if question.records_steps && question.cuda {
        budget.record_steps();
    }
    if let Some(teacher) = question.teachers.first().filter(|_| !question.cuda) {
        let kept = if choice.cache_on_disk { 0.0 } else { question.cache_bytes(teacher) };
        budget.add("cache of targets", Moment::Always, if choice.half_targets { kept / 2.0 } else { kept });
    }
    Ok(budget)
}

impl Answer {
    /// Text for the user: the recommendation, the table of components, and the changes.
    pub fn describe(&self, question: &Question) -> String {
        let mut text = match self.graphs {
            Some(graphs) => format!(
                "recommended: --batch-size {graphs} --precision {} --gradient-checkpointing {}, teacher {}, targets {}\n",
                question.precision, self.checkpointing, self.residency, self.cache
            ),
            None => format!("not even one graph fits into {}\n", gibibytes(question.target_bytes)),
        };
        let graphs = self.graphs.unwrap_or(1);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "planned for: {}\n", gibibytes(question.target_bytes));
        text.push_str(&self.budget.table(graphs, question.worst));
        if !self.ladder.is_empty() {
            let _ =
                writeln!(text, "\nbatches of {} graphs do not fit without changes; in order of cost:", question.wanted);
        }
        for (number, Rung { change, setting, saved_bytes }) in self.ladder.iter().enumerate() {
            let saved = if saved_bytes.is_nan() { "as needed".to_owned() } else { gibibytes(*saved_bytes) };
            let _ = writeln!(text, "  {}. {change} ({setting}): saves {saved}", number + 1);
        }
        text
    }
}

/// Architectures of the presets, with their teachers if they have one.
fn preset_models() -> Vec<(&'static str, Architecture, Option<Architecture>)> {
    let vgae = |hidden: &[i64], heads, embedding, dropout| {
        Architecture::Vgae(VgaeConfig {
            hidden: hidden.to_vec(),
            latent: hidden[hidden.len() - 1],
            heads,
            embedding,
            vocabulary_size: OVERLAY_IDS,
            dropout,
            edge_scaling: None,
            input: InputConfig::default(),
        })
    };
    let gat = |hidden, layers, heads, embedding, fc_layers, dropout| {
        Architecture::Gat(GatConfig {
            hidden,
            layers,
            heads,
            embedding,
            fc_layers,
            vocabulary_size: OVERLAY_IDS,
            dropout,
            edge_scaling: None,
            input: InputConfig::default(),
        })
    };
    let teachers = || (vgae(&[480, 240, 48], 4, 32, 0.15), gat(48, 2, 8, 16, 3, 0.1));
    let (vgae_teacher, gat_teacher) = teachers();
    vec![
        ("vgae,teacher", vgae_teacher, None),
        ("vgae,student", vgae(&[80, 40, 16], 1, 4, 0.1), Some(teachers().0)),
        ("gat,teacher", gat_teacher, None),
        ("gat,student", gat(24, 2, 4, 8, 3, 0.1), Some(teachers().1)),
    ]
}

/// Recommendation for one GPU size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub gigabytes: u64,
    /// Batch size by preset, in graphs.
    pub batches: Vec<(&'static str, usize)>,
    /// Smallest of these batch sizes, which fits all presets.
    pub batch_size: usize,
    pub checkpointing: bool,
}

/// Recommendations for all GPU sizes.
pub fn table() -> Result<Vec<Row>, ModelError> {
    GPU_GIGABYTES.into_iter().map(row).collect()
}

fn row(gigabytes: u64) -> Result<Row, ModelError> {
    const WANTED: usize = 4096;
    let worst = WorstBatches::uniform(OVERLAY_NODES, OVERLAY_EDGES + OVERLAY_NODES, WANTED);
    let mut row = Row { gigabytes, batches: Vec::new(), batch_size: WANTED, checkpointing: false };
    for (preset, student, teacher) in preset_models() {
        let question = Question {
            student: &student,
            teachers: teacher.as_slice(),
            worst: &worst,
            compared: ComparedLayers { latents: true, hints: false },
            records_steps: false,
            total_nodes: 0.0,
            wanted: WANTED,
            target_bytes: OVERLAY_SHARE * gigabytes as f64 * 1e9,
            cuda: true,
            fused: false,
            precision: "32",
            burst: 16,
            waiting_batches: 4,
            nodes_per_graph: OVERLAY_NODES,
        };
        let answer = recommend(&question)?;
        let graphs = answer.graphs.unwrap_or(1);
        row.batches.push((preset, graphs));
        row.batch_size = row.batch_size.min(graphs);
        row.checkpointing |= answer.checkpointing;
    }
    // Round down to a multiple of 64 for readability.
    row.batch_size = if row.batch_size >= 64 { row.batch_size / 64 * 64 } else { row.batch_size };
    Ok(row)
}

impl Row {
    /// Text of the overlay for this size, as in `presets/gpu-8gb.toml`.
    pub fn overlay(&self) -> String {
        format!(
            "# For a GPU of {} GB, by `kdgat memory table`. Add it last: --preset vgae,student,gpu-{}gb\n\
             batch_size = {}\ngradient_checkpointing = {}\nprecision = \"32\"\ngpu_memory_limit = \"{}GB\"\n",
            self.gigabytes, self.gigabytes, self.batch_size, self.checkpointing, self.gigabytes
        )
    }
}

/// Formats the recommendations as a table for a terminal.
pub fn describe_table(rows: &[Row]) -> String {
    let mut text = format!("{:>6}", "GPU");
    for (preset, _) in rows.iter().flat_map(|row| &row.batches).take(rows.first().map_or(0, |row| row.batches.len())) {
        let _ = write!(text, " {preset:>14}");
    }
    let _ = writeln!(text, " {:>12} {:>14}", "batch_size", "checkpointing");
    for row in rows {
        let _ = write!(text, "{:>3} GB", row.gigabytes);
        for (_, graphs) in &row.batches {
            let _ = write!(text, " {graphs:>14}");
        }
        let _ = writeln!(text, " {:>12} {:>14}", row.batch_size, row.checkpointing);
    }
    text
}
