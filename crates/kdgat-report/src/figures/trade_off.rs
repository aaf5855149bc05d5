//! Trade-off of size, latency and F1 between models.

use plotters::prelude::*;

use super::{Drawn, Figure, bytes};
use crate::ReportError;
use crate::chart::axes::{self, Axes};
use crate::chart::palette::{self, AXIS, INK};
use crate::chart::{SMALL_TEXT, Svg, WIDTH, fitted, px, spread, stroke, write};
use crate::files::{Evaluation, Judged, Model};
use crate::html::slug;
use kdgat_evaluate::calibration::is_unknown_vehicle;

const HEIGHT: i32 = 340;
const RIGHT: i32 = 176;
const MOST_MODELS: usize = 18;

/// Legend of [`color`].
pub const COLORS: &str =
    "Blue: distilled; green: without distillation; orange: teachers; violet: two models together; brown: rules.";

/// A model as a point of the chart.
#[derive(Debug, Clone, PartialEq)]
struct Point {
    name: String,
    /// Milliseconds per graph.
    latency: f64,
    /// Mean F1 over the test folders on which all models have an F1.
    f1: f64,
    /// Mean specificity over the same folders.
    specificity: f64,
    /// Text with the results on unknown cars; empty unless both known and unknown cars are tested.
    unknown_cars: String,
    parameters: f64,
    file_bytes: f64,
    color: usize,
}

pub fn draw(evaluation: &Evaluation) -> Result<Drawn, ReportError> {
    let what = format!("size, latency and F1 on {}", evaluation.dataset);
    let (folders, cars) = compared(evaluation);
    let mut points: Vec<Point> = evaluation.models.iter().filter_map(|model| point(model, &folders, cars)).collect();
    if points.len() < 2 {
        let why =
            "it needs an evaluation of at least two models with their speed; `kdgat evaluate` without names takes all.";
        return Ok(Drawn::missing(what, why));
    }
    // If there are too many, only the best are shown.
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
            "Best F1 {:.3}{}{} by {}{}; fastest {:.3} ms per graph by {}; smallest {} by {}",
            points[0].f1,
            specificity(points[0].specificity),
            cars.words(),
            points[0].name,
            points[0].unknown_cars,
            fastest.latency,
            fastest.name,
            bytes(smallest.file_bytes),
            smallest.name
        ),
        reading: format!(
            "Up is better, left is faster; larger discs have more parameters. F1 is the mean over the test folders with attacks{} \
             at the recorded threshold; latency is for one graph at a time{threads}. {COLORS}{hidden}",
            cars.words()
        ),
        sources: vec![evaluation.folder.join("metrics.json")],
        svg: svg(&points)?,
    }
    .into())
}

/// Cars whose test folders are averaged. Thresholds are chosen for the cars in the training data, so a mean over known and
/// unknown cars would describe neither.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Cars {
    /// Cars in the training data; unknown ones are tested too.
    Known,
    /// Only unknown cars.
    Unknown,
    /// Only cars in the training data.
    All,
}

impl Cars {
    fn words(self) -> &'static str {
        match self {
            Self::Known => " on known cars",
            Self::Unknown => " on unknown cars, not calibrated,",
            Self::All => "",
        }
    }
}

/// Returns the test folders on which all models have an F1, which needs attacks: means over different folders would not be
/// comparable. Only those of known cars, if there are any.
fn compared(evaluation: &Evaluation) -> (Vec<&str>, Cars) {
    let has_f1 = |model: &Model, folder: &str| {
        model.folders().any(|row| row.folder == folder && row.attacks > 0 && row.metric("f1")[0].is_finite())
    };
    let mut folders = evaluation.folders();
    folders.retain(|folder| evaluation.models.iter().all(|model| has_f1(model, folder)));
    let (unknown, known): (Vec<&str>, Vec<&str>) = folders.into_iter().partition(|folder| is_unknown_vehicle(folder));
    match (known.is_empty(), unknown.is_empty()) {
        (false, false) => (known, Cars::Known),
        (true, false) => (unknown, Cars::Unknown),
        (_, true) => (known, Cars::All),
    }
}

fn point(model: &Model, folders: &[&str], cars: Cars) -> Option<Point> {
    let rows: Vec<&Judged> = model.folders().filter(|row| folders.contains(&row.folder.as_str())).collect();
    let f1 = mean(&rows, "f1");
    let latency = model.speed.as_ref()?.ms_per_graph_batch_1;
    let (parameters, file_bytes) = (model.parameters, model.file_bytes);
    let unknown_cars = if cars == Cars::Known { unknown_cars(model) } else { String::new() };
    let specificity = mean(&rows, "specificity");
    let (name, color) = (model.label(), color(model));
    let point = Point { name, latency, f1, specificity, unknown_cars, parameters, file_bytes, color };
    (f1.is_finite() && latency > 0.0).then_some(point)
}

/// Averages a metric over the rows in which it is defined.
fn mean(rows: &[&Judged], metric: &str) -> f64 {
    let values: Vec<f64> = rows.iter().map(|row| row.metric(metric)[0]).filter(|value| value.is_finite()).collect();
    values.iter().sum::<f64>() / values.len() as f64
}

/// Formats ` (specificity 0.998)`, since F1 alone does not show how often a model is wrong about normal traffic.
fn specificity(value: f64) -> String {
    if value.is_finite() { format!(" (specificity {value:.3})") } else { String::new() }
}

/// Formats `, on unknown cars 0.410 (specificity 0.200) not calibrated and 0.900 (specificity 0.990) calibrated`.
fn unknown_cars(model: &Model) -> String {
    let of = |calibrated: bool, words: &str| {
        let rows: Vec<&Judged> = model.unknown_cars(calibrated).collect();
        let f1 = mean(&rows, "f1");
        f1.is_finite().then(|| format!("{f1:.3}{} {words}", specificity(mean(&rows, "specificity"))))
    };
    let found: Vec<String> = [of(false, "not calibrated"), of(true, "calibrated")].into_iter().flatten().collect();
    if found.is_empty() { String::new() } else { format!(", on unknown cars {}", found.join(" and ")) }
}

/// Returns the index of a model's colour, by its kind.
pub fn color(model: &Model) -> usize {
    match model {
        model if model.kind.contains('+') => 4,
        model if model.is_rule() => 6,
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
        Axes { x: "latency (ms per graph)", y: "F1 (mean over test folders)", x_labels: 4, height: HEIGHT }
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
        // Discs cover the lines. Their areas grow with the parameters, from a visible minimum.
        for point in points {
            let radius = 4.0 + 9.0 * (point.parameters / largest).sqrt();
            let center = place(point);
            let radius = (radius * f64::from(px(1))) as i32;
            area.draw(&Circle::new(center, radius, palette::series(point.color).mix(0.85).filled()))?;
        }
        Ok(())
    })?)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn judged(folder: &str, calibration: &str, f1: f64, specificity: f64) -> Value {
        json!({
            "folder": folder, "file": null, "calibration": calibration, "threshold_method": "fpr:0.001",
            "graphs": 100, "attacks": 50,
            "confusion": {"true_positives": 1, "false_positives": 1, "true_negatives": 1, "false_negatives": 1},
            "metrics": {"f1": {"value": f1, "low": null, "high": null},
                        "specificity": {"value": specificity, "low": null, "high": null}},
        })
    }

    fn evaluation(results: Value) -> Evaluation {
        let model = |name: &str| {
            json!({
                "model": name, "kind": "gat", "size": "student", "distilled": false, "parameters": 10.0, "file_bytes": 10.0,
                "speed": {"ms_per_graph_batch_1": 1.0, "threads": 1}, "results": results,
            })
        };
        let models =
            ["gat_student_normal/1", "gat_student_normal/2"].map(|name| serde_json::from_value(model(name)).unwrap());
        let (folder, dataset) = ("evaluation".into(), "tiny".to_owned());
        Evaluation { folder, dataset, models: models.to_vec(), teachers: Vec::new(), curves: None, windows: Vec::new() }
    }

    fn title(evaluation: &Evaluation) -> String {
        match draw(evaluation).unwrap() {
            Drawn::Figure(figure) => figure.title,
            missing => panic!("{missing:?}"),
        }
    }

    #[test]
    fn the_headline_does_not_mix_known_with_unknown_cars_and_tells_the_specificity() {
        let known = judged("test_01_known_vehicle", "none", 0.9, 0.99);
        let raw = judged("test_02_unknown_vehicle", "none", 0.3, 0.05);
        let calibrated = judged("test_02_unknown_vehicle", "60 s", 0.8, 0.97);
        let told = title(&evaluation(json!([known, raw, calibrated])));
        let expected = "Best F1 0.900 (specificity 0.990) on known cars by GAT, no KD, on unknown cars 0.300 (specificity 0.050) \
                        not calibrated and 0.800 (specificity 0.970) calibrated; fastest";
        assert!(told.starts_with(expected), "{told}");
        let told = title(&evaluation(json!([raw])));
        assert!(
            told.starts_with("Best F1 0.300 (specificity 0.050) on unknown cars, not calibrated, by GAT"),
            "{told}"
        );
        let told = title(&evaluation(json!([known])));
        assert!(told.starts_with("Best F1 0.900 (specificity 0.990) by GAT, no KD; fastest"), "{told}");
    }
}
