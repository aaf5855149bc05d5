//! Size, latency and quality of models: what a smaller or faster one costs.

use plotters::prelude::*;

use super::{Drawn, Figure, bytes};
use crate::report::ReportError;
use crate::report::chart::axes::{self, Axes};
use crate::report::chart::palette::{self, AXIS, INK};
use crate::report::chart::{SMALL_TEXT, Svg, WIDTH, fitted, px, spread, stroke, write};
use crate::report::files::{Evaluation, Model};
use crate::report::html::slug;

const HEIGHT: i32 = 340;
const RIGHT: i32 = 176;
const MOST_MODELS: usize = 18;

/// What [`color`] means.
pub const COLORS: &str = "Blue: learned from a teacher; green: without; orange: teachers; violet: two models together.";

/// A model as a point.
#[derive(Debug, Clone, PartialEq)]
struct Point {
    name: String,
    /// Milliseconds a graph.
    latency: f64,
    /// Mean F1 over the test folders that all models have one on.
    f1: f64,
    parameters: f64,
    file_bytes: f64,
    color: usize,
}

pub fn draw(evaluation: &Evaluation) -> Result<Drawn, ReportError> {
    let what = format!("size, latency and F1 on {}", evaluation.dataset);
    let folders = compared(evaluation);
    let mut points: Vec<Point> = evaluation.models.iter().filter_map(|model| point(model, &folders)).collect();
    if points.len() < 2 {
        let why =
            "it takes an evaluation of two models or more with their speed; `kdgat evaluate` without names takes all.";
        return Ok(Drawn::missing(what, why));
    }
    // The best are shown, if there are too many.
    points.sort_by(|left, right| right.f1.total_cmp(&left.f1));
    let hidden = points.len().saturating_sub(MOST_MODELS);
    points.truncate(MOST_MODELS);
    let fastest = points.iter().min_by(|left, right| left.latency.total_cmp(&right.latency));
    let smallest = points.iter().min_by(|left, right| left.parameters.total_cmp(&right.parameters));
    let (Some(fastest), Some(smallest)) = (fastest, smallest) else { return Ok(Drawn::missing(what, "no model.")) };
    let hidden = if hidden > 0 { format!(" {hidden} more models are in the table only.") } else { String::new() };
    let threads = evaluation.models.iter().find_map(|model| model.speed.as_ref()?.threads);
    let threads = threads.map_or(String::new(), |threads| format!(" on {threads} thread(s)"));
    Ok(Figure {
        slug: slug(&format!("trade-off {}", evaluation.dataset)),
        title: format!(
            "Best F1 {:.3} by {}; fastest {:.3} ms a graph by {}; smallest {} by {}",
            points[0].f1,
            points[0].name,
            fastest.latency,
            fastest.name,
            bytes(smallest.file_bytes),
            smallest.name
        ),
        reading: format!(
            "Up is better, left is faster; the larger the disc, the more parameters. F1 is the mean over the test folders with \
             attacks at the recorded threshold, the latency that of one graph at a time{threads}. {COLORS}{hidden}"
        ),
        sources: vec![evaluation.folder.join("metrics.json")],
        svg: svg(&points)?,
    }
    .into())
}

/// The test folders on which all models have an F1, which is defined where there are attacks: means over others would not be
/// comparable.
fn compared(evaluation: &Evaluation) -> Vec<&str> {
    let has_f1 = |model: &Model, folder: &str| {
        model.folders().any(|row| row.folder == folder && row.attacks > 0 && row.metric("f1")[0].is_finite())
    };
    let mut folders = evaluation.folders();
    folders.retain(|folder| evaluation.models.iter().all(|model| has_f1(model, folder)));
    folders
}

fn point(model: &Model, folders: &[&str]) -> Option<Point> {
    let rows = model.folders().filter(|row| folders.contains(&row.folder.as_str()));
    let values: Vec<f64> = rows.map(|row| row.metric("f1")[0]).collect();
    let f1 = values.iter().sum::<f64>() / values.len() as f64;
    let latency = model.speed.as_ref()?.ms_per_graph_batch_1;
    let (parameters, file_bytes) = (model.parameters, model.file_bytes);
    let point = Point { name: model.label(), latency, f1, parameters, file_bytes, color: color(model) };
    (f1.is_finite() && latency > 0.0).then_some(point)
}

/// Number of the colour of a kind of models.
pub fn color(model: &Model) -> usize {
    match model {
        model if model.kind.contains('+') => 4,
        model if model.size.starts_with("teacher") => 3,
        model if model.distilled => 0,
        _ => 2,
    }
}

fn svg(points: &[Point]) -> Result<Svg, ReportError> {
    let extreme = |value: fn(&Point) -> f64| {
        let values = || points.iter().map(value);
        (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max))
    };
    let ((fastest, slowest), (worst, best)) = (extreme(|point| point.latency), extreme(|point| point.f1));
    let room = (slowest / fastest).powf(0.12).max(1.3);
    let margin = (0.12 * (best - worst)).max(0.03);
    let (low, high) = ((worst - margin).max(0.0), (best + margin).min(1.05));
    let largest = extreme(|point| point.parameters).1.max(1.0);
    Ok(Svg::draw(WIDTH, HEIGHT, |area| {
        let mut chart =
            axes::builder(area, RIGHT).build_cartesian_2d((fastest / room..slowest * room).log_scale(), low..high)?;
        Axes { x: "latency (ms a graph)", y: "F1 (mean over test folders)", x_labels: 4, height: HEIGHT }
            .draw(area, &mut chart)?;
        let plot = chart.plotting_area().get_pixel_range();

        let place = |point: &Point| chart.backend_coord(&(point.latency, point.f1));
        let mut names: Vec<i32> = points.iter().map(|point| place(point).1 / px(1)).collect();
        spread(&mut names, 16, plot.1.start / px(1), plot.1.end / px(1));
        let x = plot.0.end / px(1) + 16;
        for (point, name) in points.iter().zip(&names) {
            let (left, top) = place(point);
            stroke(area, &[(left / px(1), top / px(1)), (x - 3, *name)], 0.75, AXIS)?;
            write(area, &fitted(&point.name, WIDTH - x - 2, SMALL_TEXT), (x, *name), SMALL_TEXT, INK)?;
        }
        // Discs lie over the lines; their areas go with the parameters, but none is too small to see.
        for point in points {
            let radius = 4.0 + 9.0 * (point.parameters / largest).sqrt();
            let center = place(point);
            let radius = (radius * f64::from(px(1))) as i32;
            area.draw(&Circle::new(center, radius, palette::series(point.color).mix(0.85).filled()))?;
        }
        Ok(())
    })?)
}
