//! Tensor memory over time, stacked by purpose, with the limit.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::{Drawn, Figure, bytes, thinned};
use crate::ReportError;
use crate::chart::axes::{self, Axes};
use crate::chart::palette::{self, AXIS, GRID, INK};
use crate::chart::{HEIGHT, LineChart, SMALL_TEXT, Series, Svg, WIDTH, px, spread, stroke, text_style, write};
use crate::files::{Columns, Run};
use crate::html::slug;
use kdgat_torch::allocator::Phase;

const MOST_SAMPLES: usize = 240;
/// Share of the highest total that a component must reach once to be shown; smaller ones are added to "other".
const LEAST_SHARE: f64 = 0.01;
/// Maximum ratio of the limit to the peak for which the limit is drawn; otherwise only the title has it.
const LIMIT_SHOWN: f64 = 2.5;
const RIGHT: i32 = 122;

/// Bytes of each component over time.
#[derive(Debug, Clone, PartialEq)]
struct Stack {
    seconds: Vec<f64>,
    /// Name and values in bytes, from the lowest layer up.
    layers: Vec<(String, Vec<f64>)>,
}

pub fn draw(run: &Run) -> Result<Drawn, ReportError> {
    let what = format!("memory over time of {}", run.name);
    let Some(table) = run.memory.as_ref().filter(|table| table.len() > 1) else {
        let why = "the run has no memory.csv with two rows or more; it gets a row every --memory-sample-seconds.";
        return Ok(Drawn::missing(what, why));
    };
    let Some(stack) = stack(table) else {
        return Ok(Drawn::missing(what, "memory.csv has no tensor bytes; the run did not use kdgat's allocator."));
    };
    // For a run on a GPU, the limit is that of the GPU.
    let limit = run.budget["limit_bytes"].as_f64().filter(|_| !is_on_gpu(table));
    // Steps are shorter than the sampling interval: the counted peak is the memory that a run needs.
    let peak = table.numbers("tensor_peak_bytes").into_iter().fold(0.0, f64::max).max(stack.highest());
    let limit_words = match (limit, run.budget["limit_source"].as_str()) {
        (Some(limit), source) => format!(
            "; the limit is {} ({}), {:.1} times the peak",
            bytes(limit),
            source.unwrap_or("configured"),
            limit / peak.max(1.0)
        ),
        (None, _) if is_on_gpu(table) => " on the host".to_owned(),
        (None, _) => "; this run did not record its limit".to_owned(),
    };
    let mut sources = vec![table.path.clone()];
    sources.extend(limit.map(|_| run.folder.join("memory_budget.json")));
    let gpu = if is_on_gpu(table) { " Host memory only; GPU memory has its own chart." } else { "" };
    Ok(Figure {
        slug: slug(&format!("memory {}", run.name)),
        title: format!("Tensor memory: at most {}{limit_words}", bytes(peak)),
        reading: format!(
            "Sampled during the run; layers are stacked. Memory that is used for less than a sampling interval shows only in \
             the dashed line, the counted peak of the epoch so far.{gpu}"
        ),
        sources,
        svg: svg(&stack, &peaks(table), limit.filter(|limit| *limit <= LIMIT_SHOWN * peak), peak)?,
    }
    .into())
}

/// Draws the GPU memory of a run: its tensors, what the allocator has reserved, and the use of all processes. `None` for a run
/// without a GPU.
pub fn draw_gpu(run: &Run) -> Result<Option<Drawn>, ReportError> {
    let Some(table) = run.memory.as_ref().filter(|table| is_on_gpu(table)) else { return Ok(None) };
    let line = |column: &str| -> Vec<(f64, f64)> {
        let points = table.points("seconds", column).into_iter().map(|(second, bytes)| (second, bytes / 1e6));
        thinned(&points.collect::<Vec<_>>(), MOST_SAMPLES)
    };
    let series = [
        Series::new("tensors", 0, line("gpu_tensor_bytes")),
        Series::new("reserved", 1, line("gpu_reserved_bytes")),
        Series::new("all processes", 3, line("gpu_used_bytes")),
    ];
    let highest = table.numbers("gpu_reserved_bytes").into_iter().fold(0.0, f64::max);
    let limit = run.budget["limit_bytes"].as_f64();
    let limit_words = limit.map_or(String::new(), |limit| {
        format!("; the limit is {}, {:.1} times that", bytes(limit), limit / highest.max(1.0))
    });
    let shown = limit.filter(|limit| *limit <= LIMIT_SHOWN * highest);
    let chart = LineChart {
        x: "time (s)".to_owned(),
        y: "GPU memory (MB)".to_owned(),
        series: series.into_iter().filter(|series| !series.points.is_empty()).collect(),
        y_range: shown.map(|limit| 0.0..1.06 * limit.max(highest) / 1e6),
        level: shown.map(|limit| (limit / 1e6, "limit".to_owned())),
        ..LineChart::default()
    };
    let Some(svg) = chart.draw()? else { return Ok(None) };
    Ok(Some(
        Figure {
            slug: slug(&format!("memory gpu {}", run.name)),
            title: format!("GPU memory: at most {} reserved{limit_words}", bytes(highest)),
            reading: "Sampled during the run; shorter peaks do not show.".to_owned(),
            sources: vec![table.path.clone()],
            svg,
        }
        .into(),
    ))
}

fn is_on_gpu(table: &Columns) -> bool {
    table.numbers("gpu_tensor_bytes").iter().any(|bytes| bytes.is_finite())
}

fn peaks(table: &Columns) -> Vec<(f64, f64)> {
    thinned(&table.points("seconds", "tensor_peak_bytes"), MOST_SAMPLES)
}

/// Selects the rows to draw: of several that are too close to each other, the one with the most bytes.
fn telling_rows(table: &Columns) -> Vec<usize> {
    let bytes = table.numbers("tensor_bytes");
    let rows: Vec<usize> = (0..table.len()).collect();
    let near = rows.len().div_ceil(MOST_SAMPLES).max(1);
    let highest = |rows: &[usize]| rows.iter().copied().max_by(|left, right| bytes[*left].total_cmp(&bytes[*right]));
    rows.chunks(near).filter_map(highest).collect()
}

fn stack(table: &Columns) -> Option<Stack> {
    let rows = telling_rows(table);
    let column = |name: &str| -> Vec<f64> {
        let values = table.numbers(name);
        rows.iter().map(|&row| if values[row].is_finite() { values[row] } else { 0.0 }).collect()
    };
    // Long-lived components at the bottom.
    let order = [
        (Phase::Parameters, "weights"),
        (Phase::Optimizer, "optimiser"),
        (Phase::Gradients, "gradients"),
        (Phase::Teacher, "teacher"),
        (Phase::Cache, "target cache"),
        (Phase::Data, "batches"),
        (Phase::Activations, "activations"),
        (Phase::Other, "other"),
    ];
    let mut layers: Vec<(String, Vec<f64>)> =
        order.iter().map(|(phase, name)| ((*name).to_owned(), column(&format!("{}_bytes", phase.name())))).collect();
    let highest = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let total: Vec<f64> = (0..rows.len()).map(|row| layers.iter().map(|(_, values)| values[row]).sum()).collect();
    let least = LEAST_SHARE * highest(&total);
    if least <= 0.0 {
        return None;
    }
    let (_, mut rest) = layers.pop()?;
    layers.retain(|(_, values)| {
        let is_shown = highest(values) >= least;
        if !is_shown {
            rest.iter_mut().zip(values).for_each(|(rest, value)| *rest += value);
        }
        is_shown
    });
    if highest(&rest) >= least {
        layers.push(("other".to_owned(), rest));
    }
    Some(Stack { seconds: column("seconds"), layers })
}

impl Stack {
    fn highest(&self) -> f64 {
        let total = |row: usize| self.layers.iter().map(|(_, values)| values[row]).sum::<f64>();
        (0..self.seconds.len()).map(total).fold(0.0, f64::max)
    }
}

fn svg(stack: &Stack, peaks: &[(f64, f64)], limit: Option<f64>, peak: f64) -> Result<Svg, ReportError> {
    let unit = 1e6;
    let end = stack.seconds.last().copied().unwrap_or(1.0).max(1e-3);
    let top = limit.unwrap_or(peak).max(peak) / unit * 1.06;
    Ok(Svg::draw(WIDTH, HEIGHT, |area| {
        let mut chart = axes::builder(area, RIGHT).build_cartesian_2d(0.0..end, 0.0..top)?;
        Axes { x: "time (s)", y: "tensor memory (MB)", x_labels: 6, height: HEIGHT }.draw(area, &mut chart)?;
        let plot = chart.plotting_area().get_pixel_range();

        let mut below = vec![0.0; stack.seconds.len()];
        let mut ends = Vec::new();
        for (index, (_, values)) in stack.layers.iter().enumerate() {
            let above: Vec<f64> = below.iter().zip(values).map(|(below, value)| below + value).collect();
            let edge = |heights: &[f64]| -> Vec<(f64, f64)> {
                stack.seconds.iter().zip(heights).map(|(second, height)| (*second, height / unit)).collect()
            };
            let outline: Vec<(f64, f64)> = edge(&above).into_iter().chain(edge(&below).into_iter().rev()).collect();
            chart.draw_series([Polygon::new(outline, color(index).filled())])?;
            let last = above.len() - 1;
            ends.push(chart.backend_coord(&(end, (above[last] + below[last]) / 2.0 / unit)).1 / px(1));
            below = above;
        }
        let counted: Vec<(f64, f64)> = peaks.iter().map(|(second, bytes)| (*second, bytes / unit)).collect();
        // The style sheet draws the second colour dashed.
        chart.draw_series([PathElement::new(counted, palette::series(1).stroke_width(px(2) as u32))])?;
        if let Some(limit) = limit {
            let line = vec![(0.0, limit / unit), (end, limit / unit)];
            chart.draw_series([PathElement::new(line, INK.stroke_width(px(2) as u32))])?;
            let place = chart.backend_coord(&(0.0, limit / unit));
            let style = text_style(SMALL_TEXT, INK, HPos::Left, VPos::Top);
            area.draw_text("limit", &style, (place.0 + px(6), place.1 + px(3)))?;
        }

        // The highest layer first, so that layers that end at zero stay in order too.
        ends.reverse();
        spread(&mut ends, 16, plot.1.start / px(1) + 22, plot.1.end / px(1) - 4);
        let x = plot.0.end / px(1) + 8;
        for ((index, (name, _)), y) in stack.layers.iter().enumerate().rev().zip(&ends) {
            area.draw(&Rectangle::new([(px(x), px(y - 5)), (px(x + 12), px(y + 5))], color(index).filled()))?;
            write(area, name, (x + 18, *y), SMALL_TEXT, INK)?;
        }
        stroke(area, &[(x, 34), (x + 14, 34)], 2.0, palette::series(1))?;
        write(area, "counted peak", (x + 18, 34), SMALL_TEXT, INK)
    })?)
}

/// Returns the colour of a layer: all but the second, which is that of the peak, then greys.
fn color(index: usize) -> RGBColor {
    match index {
        0 => palette::series(0),
        index if index < palette::SERIES.len() - 1 => palette::series(index + 1),
        6 => AXIS,
        _ => GRID,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_on_a_gpu_has_a_chart_of_it_with_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("metrics.csv"), "epoch\n0\n").unwrap();
        std::fs::write(folder.path().join("config.json"), r#"{"format": "kdgat configuration"}"#).unwrap();
        std::fs::write(folder.path().join("memory_budget.json"), r#"{"limit_bytes": 4e6}"#).unwrap();
        let memory = |gpu: &str| {
            let rows = format!("seconds,gpu_tensor_bytes,gpu_reserved_bytes,gpu_used_bytes\n0{gpu}\n1{gpu}\n");
            std::fs::write(folder.path().join("memory.csv"), rows).unwrap();
            draw_gpu(&Run::read(folder.path()).unwrap()).unwrap()
        };
        let Some(Drawn::Figure(figure)) = memory(",1e6,2e6,3e6") else { panic!("no chart") };
        assert_eq!(figure.title, "GPU memory: at most 2.0 MB reserved; the limit is 4.0 MB, 2.0 times that");
        assert!(figure.svg.inline("x").contains("limit"), "the limit is drawn");
        assert!(memory(",,,").is_none());
    }

    #[test]
    fn layers_add_up_and_small_ones_are_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memory.csv");
        let text = "seconds,tensor_peak_bytes,other_bytes,data_bytes,parameters_bytes,gradients_bytes,optimizer_bytes,\
                    activations_bytes,teacher_bytes,cache_bytes\n0,100,1,0,1000,0,0,0,0,5\n1,3000,0,500,1000,1000,0,400,0,5\n";
        std::fs::write(&path, text).unwrap();
        let stack = stack(&Columns::read(&path).unwrap().unwrap()).unwrap();
        let names: Vec<&str> = stack.layers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["weights", "gradients", "batches", "activations"], "6 of 2905 bytes are too few to show");
        assert_eq!(stack.highest(), 2900.0);
        assert!(svg(&stack, &[(0.0, 100.0), (1.0, 3000.0)], Some(5000.0), 3000.0).unwrap().marks() >= 6);
    }
}
