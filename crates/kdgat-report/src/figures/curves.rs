//! ROC and precision-recall curves of an evaluation.

use super::{Drawn, Figure, folder_words, thinned};
use crate::ReportError;
use crate::chart::{LineChart, Series, Way, palette};
use crate::files::{Columns, Evaluation, Model};
use crate::html::slug;

const MOST_POINTS: usize = 160;

/// A kind of curve.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    metric: &'static str,
    /// Column of `curves.csv` and name of the horizontal axis.
    x: (&'static str, &'static str),
    /// Column of `curves.csv` and name of the vertical axis.
    y: (&'static str, &'static str),
    way: Way,
    reading: &'static str,
}

const KINDS: [Kind; 2] = [
    Kind {
        name: "ROC",
        metric: "roc_auc",
        x: ("false_positive_rate", "false-positive rate (share of normal windows)"),
        y: ("true_positive_rate", "true-positive rate (share of attacks)"),
        way: Way::Straight,
        reading: "Closer to the upper left is better; the diagonal is chance.",
    },
    Kind {
        name: "Precision and recall",
        metric: "pr_auc",
        x: ("true_positive_rate", "recall (share of attacks found)"),
        y: ("precision", "precision (share of alarms that are attacks)"),
        way: Way::Steps,
        reading: "Closer to the upper right is better; chance is the share of attacks in the test folder.",
    },
];

/// Draws a figure of each kind for each test folder, with one line per model; for a single model, a figure of each kind with one
/// line per folder.
pub fn draw(evaluation: &Evaluation) -> Result<Vec<Drawn>, ReportError> {
    let what = format!("ROC and precision\u{2013}recall on {}", evaluation.dataset);
    let Some(curves) = evaluation.curves.as_ref().filter(|curves| !curves.is_empty()) else {
        let why = "the evaluation has no curves.csv; evaluate again.";
        return Ok(vec![Drawn::missing(what, why)]);
    };
    let mut drawn = Vec::new();
    let folders = evaluation.folders();
    if evaluation.models.len() == 1 {
        for kind in KINDS {
            let model = evaluation.models[0].model.as_str();
            let lines: Vec<_> = folders.iter().map(|&folder| (folder_words(folder), model, folder)).collect();
            drawn.extend(one(evaluation, curves, kind, &evaluation.models[0].model, &lines)?);
        }
    } else {
        for folder in &folders {
            for kind in KINDS {
                let lines: Vec<_> = ranked(evaluation, folder, kind)
                    .into_iter()
                    .map(|model| (model.label(), model.model.as_str(), *folder))
                    .collect();
                drawn.extend(one(evaluation, curves, kind, &folder_words(folder), &lines)?);
            }
        }
    }
    if drawn.is_empty() {
        let why = "no test folder has both normal windows and attacks, which a curve needs.";
        drawn.push(Drawn::missing(what, why));
    }
    Ok(drawn)
}

/// Returns the models with the largest area under this curve, best first, at most one per colour.
fn ranked<'a>(evaluation: &'a Evaluation, folder: &str, kind: Kind) -> Vec<&'a Model> {
    let area = |model: &Model| {
        model.folders().find(|row| row.folder == folder).map_or(f64::NAN, |row| row.metric(kind.metric)[0])
    };
    let mut models: Vec<&Model> = evaluation.models.iter().filter(|model| !area(model).is_nan()).collect();
    models.sort_by(|left, right| area(right).total_cmp(&area(left)).then(left.model.cmp(&right.model)));
    models.truncate(palette::SERIES.len());
    models
}

/// Draws one figure; `lines` are (name, model, folder).
fn one(
    evaluation: &Evaluation,
    curves: &Columns,
    kind: Kind,
    subject: &str,
    lines: &[(String, &str, &str)],
) -> Result<Option<Drawn>, ReportError> {
    let (models, folders, calibrations) = (curves.texts("model"), curves.texts("folder"), curves.texts("calibration"));
    let (x, y) = (curves.numbers(kind.x.0), curves.numbers(kind.y.0));
    let points = |model: &str, folder: &str| {
        let is_of = |row: &usize| models[*row] == model && folders[*row] == folder && calibrations[*row] == "none";
        let points: Vec<(f64, f64)> = (0..curves.len()).filter(is_of).map(|row| (x[row], y[row])).collect();
        thinned(&points, MOST_POINTS)
    };
    let area = |model: &str, folder: &str| {
        let model = evaluation.models.iter().find(|found| found.model == model)?;
        Some(model.folders().find(|row| row.folder == folder)?.metric(kind.metric)[0])
    };
    let mut series = Vec::new();
    let mut areas = Vec::new();
    for (name, model, folder) in lines {
        let points = points(model, folder);
        if points.len() > 1 {
            // A model has the same colour in all charts, if there are enough colours.
            let place = evaluation.models.iter().position(|found| found.model == *model).unwrap_or(0);
            let few = evaluation.models.len() <= palette::SERIES.len() && evaluation.models.len() > 1;
            let color = if few { place } else { series.len() };
            areas.extend(area(model, folder).map(|area| (area, name.clone())));
            series.push(Series { way: kind.way, ..Series::new(name.clone(), color, points) });
        }
    }
    let chart = LineChart {
        x: kind.x.1.to_owned(),
        y: kind.y.1.to_owned(),
        series,
        x_range: Some(0.0..1.0),
        y_range: Some(0.0..1.02),
        ..LineChart::default()
    };
    let Some(svg) = chart.draw()? else { return Ok(None) };
    let best = areas.iter().max_by(|left, right| left.0.total_cmp(&right.0));
    let best = best.map_or(String::new(), |(area, name)| format!(": largest area {area:.3} ({name})"));
    let areas: Vec<String> = areas.iter().map(|(area, name)| format!("{name} {area:.3}")).collect();
    let hidden = evaluation.models.len().saturating_sub(palette::SERIES.len());
    let hidden = if lines.len() > 1 && hidden > 0 && evaluation.models.len() > 1 {
        format!(" The {} models with the largest area of {} are shown.", lines.len(), evaluation.models.len())
    } else {
        String::new()
    };
    Ok(Some(
        Figure {
            slug: slug(&format!("{} {} {subject}", kind.name, evaluation.dataset)),
            title: format!("{}, {subject}{best}", kind.name),
            reading: format!("{} Areas: {}.{hidden}", kind.reading, areas.join(", ")),
            sources: vec![curves.path.clone()],
            svg,
        }
        .into(),
    ))
}
