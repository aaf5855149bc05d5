//! `kdgat memory table`: settings for memory sizes, from measured steps on made graphs.

use std::fmt::Write;
use std::path::PathBuf;

use super::StageError;
use super::levers::{Lever, Variant};
use super::memory_plan::{Planned, PlannedSize};
use crate::config::{self, Config, DeviceChoice, Sources};
use crate::memory::budget::{MemoryBudget, gibibytes};

/// GPU sizes that overlays are made for, in GB.
pub const GPU_GIGABYTES: [u64; 8] = [4, 8, 12, 16, 24, 40, 80, 141];
/// Share of the memory that the table plans for: the safety factor of the teachers' presets.
const SHARE: f64 = 0.5;
/// Presets of CAN windows.
const WINDOW_PRESETS: [&str; 4] = ["vgae,teacher", "vgae,student", "gat,teacher", "gat,student"];
/// A window of 100 frames, as of a car with many IDs.
const WINDOW: PlannedSize = PlannedSize { graphs: MOST, nodes_per_graph: 60, edges_per_graph: 160 };
/// Largest batch size of overlays, in graphs.
const MOST: usize = 4096;

/// Memory sizes of the table of networks that read positions, in GB.
const GIGABYTES: [u64; 4] = [8, 12, 16, 24];
/// A molecule of 20 atoms, all of which are near each other.
const MOLECULE: PlannedSize = PlannedSize { graphs: 1 << 20, nodes_per_graph: 20, edges_per_graph: 380 };
/// A quarter of a graph of 100 nodes with 38,800 paths of three edges, as many as the 8 nearest neighbours of nodes make.
const QUARTER: PlannedSize = PlannedSize { graphs: 1 << 20, nodes_per_graph: 25, edges_per_graph: 182 };
/// Quarters of a graph.
const QUARTERS: usize = 4;
/// Batch, width and layers of a published recipe for networks over paths, for the sizes of [`GIGABYTES`].
const RECIPE: [[usize; 3]; 4] = [[2, 32, 2], [4, 64, 3], [8, 64, 3], [16, 64, 3]];
/// Graphs of a batch that widths are found for.
const BATCH: usize = 100;
/// Graphs of the largest measured batch; one of a network over paths, whose steps on a GPU's operations take seconds.
const MEASURED: usize = 4;

/// Recommendations for one GPU size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverlayRow {
    pub gigabytes: u64,
    /// Batch size by preset, in graphs.
    pub batches: Vec<(&'static str, usize)>,
    /// Smallest of these batch sizes, which fits all presets.
    pub batch_size: usize,
    pub checkpointing: bool,
}

/// Memory of a GPU or of a process to plan for, in bytes.
fn target(gigabytes: u64) -> f64 {
    SHARE * gigabytes as f64 * 1e9
}

/// The configuration of presets alone, for a GPU that need not be here.
fn preset_config(presets: &str, device: DeviceChoice) -> Result<Config, StageError> {
    let presets = presets.split(',').map(str::to_owned).collect();
    // No folder: a kdgat.toml would change what the table is about.
    let sources = Sources { presets, working_folder: PathBuf::from("/dev/null"), ..Sources::default() };
    let mut config = config::load(&sources).map_err(|error| StageError::Input(error.to_string()))?.config;
    config.training.device = device;
    Ok(config)
}

/// A budget that was measured with and without computing activations again.
struct WindowBudgets {
    preset: &'static str,
    planned: Planned,
    kept: MemoryBudget,
    recomputed: MemoryBudget,
}

impl WindowBudgets {
    fn of(preset: &'static str) -> Result<Self, StageError> {
        let mut config = preset_config(preset, ABSENT_GPU)?;
        (config.training.batch_size, config.training.min_steps_per_epoch) = (MOST, 1);
        let planned = Planned::of_size(&config, WINDOW)?;
        let kept = planned.budget(&Variant::default())?;
        let recomputed = planned.budget(&Variant::RECOMPUTING)?;
        Ok(Self { preset, planned, kept, recomputed })
    }

    /// Graphs that fit, and true if they do because activations are computed again.
    fn fitting(&self, target: f64) -> (usize, bool) {
        let largest = |budget: &MemoryBudget| budget.largest_batch(&self.planned.worst, target, MOST);
        match (largest(&self.kept), largest(&self.recomputed)) {
            (Some(kept), recomputed) if kept == MOST || recomputed <= Some(kept) => (kept, false),
            (_, recomputed) => (recomputed.unwrap_or(1), true),
        }
    }
}

/// A GPU that no machine has, so that the table is the same wherever it is made.
const ABSENT_GPU: DeviceChoice = DeviceChoice::Cuda(usize::MAX);

/// Recommendations for all GPU sizes, for CAN windows.
///
/// # Errors
/// No memory for a small batch.
pub fn overlays() -> Result<Vec<OverlayRow>, StageError> {
    let budgets = WINDOW_PRESETS.into_iter().map(WindowBudgets::of).collect::<Result<Vec<_>, _>>()?;
    let row = |gigabytes| {
        let found = budgets.iter().map(|budgets| (budgets.preset, budgets.fitting(target(gigabytes))));
        let found: Vec<(&'static str, (usize, bool))> = found.collect();
        let smallest = found.iter().map(|(_, (graphs, _))| *graphs).min().unwrap_or(1);
        OverlayRow {
            gigabytes,
            // A multiple of 64, for readability.
            batch_size: if smallest >= 64 { smallest / 64 * 64 } else { smallest },
            checkpointing: found.iter().any(|(_, (_, recomputes))| *recomputes),
            batches: found.into_iter().map(|(preset, (graphs, _))| (preset, graphs)).collect(),
        }
    };
    Ok(GPU_GIGABYTES.into_iter().map(row).collect())
}

impl OverlayRow {
    /// Text of the overlay for this size, as in `presets/gpu-8gb.toml`.
    pub fn overlay(&self) -> String {
        format!(
            "# For a GPU of {} GB, by `kdgat memory table`. Add it last: --preset vgae,student,gpu-{}gb\n\
             batch_size = {}\ngradient_checkpointing = {}\nprecision = \"32\"\ngpu_memory_limit = \"{}GB\"\n",
            self.gigabytes, self.gigabytes, self.batch_size, self.checkpointing, self.gigabytes
        )
    }
}

/// Settings for memory sizes: CAN windows, then networks that read positions, with what saves memory.
///
/// # Errors
/// No memory for a small batch.
pub fn memory_table() -> Result<String, StageError> {
    let mut text = String::from(
        "Steps are measured on the CPU, with the operations of a GPU; larger ones follow in proportion. Half of the memory is planned for.\n\n",
    );
    describe_windows(&mut text, &overlays()?);
    let what = "structures of 20 nodes and 380 pairs of near nodes, with forces, without a teacher";
    for presets in [["painn,teacher", "painn,student"], ["schnet,teacher", "schnet,student"]] {
        let _ = writeln!(text, "\n{what}:\n{}", header(GIGABYTES));
        for preset in presets {
            describe_network(&mut text, preset)?;
        }
    }
    describe_paths(&mut text)?;
    Ok(text)
}

/// The names of memory sizes above their columns.
fn header<const N: usize>(gigabytes: [u64; N]) -> String {
    let sizes: String = gigabytes.iter().map(|gigabytes| format!(" {:>10}", format!("{gigabytes} GB"))).collect();
    format!("{:<58}{sizes}", "")
}

fn row(text: &mut String, name: &str, values: impl IntoIterator<Item = usize>) {
    let values: String = values.into_iter().map(|value| format!(" {value:>10}")).collect();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{name:<58}{values}");
}

fn describe_windows(text: &mut String, rows: &[OverlayRow]) {
    let _ = writeln!(text, "CAN windows of 60 nodes and 160 edges, batch by preset:\n{}", header(GPU_GIGABYTES));
    for (index, preset) in WINDOW_PRESETS.iter().enumerate() {
        row(text, preset, rows.iter().map(|row| row.batches[index].1));
    }
    row(text, "batch_size of the preset gpu-...gb", rows.iter().map(|row| row.batch_size));
    let checkpointing: String = rows.iter().map(|row| format!(" {:>10}", row.checkpointing)).collect();
    let _ = writeln!(text, "{:<58}{checkpointing}", "gradient_checkpointing of that preset");
}

/// A network measured at one width and number of layers.
fn measured(
    preset: &str,
    size: PlannedSize,
    device: DeviceChoice,
    shape: Option<[usize; 2]>,
) -> Result<(Planned, MemoryBudget), StageError> {
    let mut config = preset_config(preset, device)?;
    // Few are enough: larger batches follow in proportion.
    let most = if preset.starts_with("sgmp") { 1 } else { MEASURED };
    (config.training.batch_size, config.training.optimize_batch_size) = (most, false);
    config.distillation.use_kd = false;
    if let Some([width, layers]) = shape {
        (config.model.hidden, config.model.layers) = (vec![width], layers);
    }
    let planned = Planned::of_size(&config, size)?;
    let budget = planned.budget(&Variant::default())?;
    Ok((planned, budget))
}

/// The largest multiple of `step` up to which a quantity fits that takes `bytes` at `at`: a line through two measurements.
fn extrapolated(at: [usize; 2], bytes: [f64; 2], target: f64, step: usize) -> usize {
    let slope = (bytes[1] - bytes[0]) / (at[1] - at[0]) as f64;
    let most = at[0] as f64 + (target - bytes[0]) / slope.max(1.0);
    (most.max(0.0) as usize) / step * step
}

fn describe_network(text: &mut String, preset: &'static str) -> Result<(), StageError> {
    let (planned, budget) = measured(preset, MOLECULE, ABSENT_GPU, None)?;
    let (width, layers) = (planned.config.model.hidden[0], planned.config.model.layers);
    let largest = |gigabytes| budget.largest_batch(&planned.worst, target(gigabytes), MOLECULE.graphs).unwrap_or(0);
    row(text, &format!("{preset}: batch at width {width}"), GIGABYTES.map(largest));
    let (_, wider) = measured(preset, MOLECULE, ABSENT_GPU, Some([2 * width, layers]))?;
    let bytes = [&budget, &wider].map(|budget| budget.peak_bytes(planned.worst.shape(BATCH)));
    let widest = |gigabytes| extrapolated([width, 2 * width], bytes, target(gigabytes), 8);
    row(text, &format!("{preset}: width at batches of {BATCH}"), GIGABYTES.map(widest));
    match preset.ends_with("teacher") {
        true => describe_levers(text, &planned, &budget, [BATCH, BATCH]),
        false => Ok(()),
    }
}

/// Lists the savings of settings, of the memory of batches of `made` planned graphs, which are `batch` graphs of the table.
fn describe_levers(
    text: &mut String,
    planned: &Planned,
    budget: &MemoryBudget,
    [made, batch]: [usize; 2],
) -> Result<(), StageError> {
    let peak = budget.peak_bytes(planned.worst.shape(made));
    // Writing to a String cannot fail.
    let _ = writeln!(text, "  of the {} of batches of {batch}:", gibibytes(peak));
    for Lever { name, flags, bytes } in Lever::all(planned, budget, None, made)? {
        let flags = if flags.starts_with("--batch-size") { "--accumulate-grad-batches 2" } else { &flags };
        let _ = writeln!(text, "    {name} ({flags}) saves {:.0} %", 100.0 * (1.0 - bytes / peak));
    }
    Ok(())
}

/// Networks over paths, beside the recipe.
fn describe_paths(text: &mut String) -> Result<(), StageError> {
    let _ = writeln!(
        text,
        "\ngraphs of 100 nodes with 38,800 paths of three edges, without a teacher:\n{}",
        header(GIGABYTES)
    );
    let recipe: String =
        RECIPE.iter().map(|[batch, width, layers]| format!(" {:>10}", format!("{batch}/{width}/{layers}"))).collect();
    let _ = writeln!(text, "{:<58}{recipe}", "a published recipe: batch/width/layers");
    for (place, device) in [("on a GPU", ABSENT_GPU), ("on a CPU, fused", DeviceChoice::Cpu)] {
        let (planned, narrow) = measured("sgmp,teacher", QUARTER, device, Some([32, 2]))?;
        let (_, wide) = measured("sgmp,teacher", QUARTER, device, Some([64, 2]))?;
        let (deep, budget) = measured("sgmp,teacher", QUARTER, device, Some([64, 3]))?;
        let all = || GIGABYTES.into_iter().zip(RECIPE);
        let largest = |(gigabytes, [_, width, _]): (u64, [usize; 3])| {
            let budget = if width == 32 { &narrow } else { &budget };
            budget.largest_batch(&planned.worst, target(gigabytes), QUARTER.graphs).unwrap_or(0) / QUARTERS
        };
        row(text, &format!("sgmp {place}: batch at the recipe's width and layers"), all().map(largest));
        let at = |budget: &MemoryBudget, batch: usize| budget.peak_bytes(planned.worst.shape(QUARTERS * batch));
        let widest = |(gigabytes, [batch, _, layers]): (u64, [usize; 3])| {
            // Layers beyond the second take as much as it does, at each width.
            let deeper = (layers - 2) as f64 * (at(&budget, batch) - at(&wide, batch)).max(0.0);
            let bytes = [at(&narrow, batch) + deeper / 2.0, at(&wide, batch) + deeper];
            extrapolated([32, 64], bytes, target(gigabytes), 8)
        };
        row(text, &format!("sgmp {place}: width at its batch and layers"), all().map(widest));
        let deepest = |(gigabytes, [batch, ..]): (u64, [usize; 3])| {
            extrapolated([2, 3], [at(&wide, batch), at(&budget, batch)], target(gigabytes), 1)
        };
        row(text, &format!("sgmp {place}: layers of width 64 at its batch"), all().map(deepest));
        describe_levers(text, &deep, &budget, [QUARTERS * 16, 16])?;
    }
    Ok(())
}
