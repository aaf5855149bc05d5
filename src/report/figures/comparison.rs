//! Runs side by side: teacher, student, and student without distillation, by the loss that all of them have.

use super::{Drawn, Figure, significant};
use crate::report::ReportError;
use crate::report::chart::{LineChart, Series, palette};
use crate::report::files::Run;
use crate::report::html::slug;

/// Runs that differ by seed only, as one line.
struct Group<'a> {
    label: &'a str,
    runs: Vec<&'a Run>,
}

/// A figure for each model and dataset of which there are several kinds of runs.
pub fn draw(runs: &[Run]) -> Result<Vec<Drawn>, ReportError> {
    let mut drawn = Vec::new();
    // An agent that fuses two models has no task loss.
    let trained = || runs.iter().filter(|run| run.stage() != "fusion");
    let mut kinds: Vec<(&str, &str)> = trained().map(|run| (run.dataset(), run.model())).collect();
    kinds.sort_unstable();
    kinds.dedup();
    for (dataset, model) in kinds {
        let groups = groups(trained().filter(|run| (run.dataset(), run.model()) == (dataset, model)));
        if groups.len() > 1 {
            drawn.extend(one(dataset, model, &groups)?);
        }
    }
    if drawn.is_empty() {
        drawn.push(Drawn::missing(
            "teacher against student",
            "it takes two kinds of runs of one model on one dataset, such as a teacher and its student with and without \
             --use-kd; name them together: kdgat report RUN RUN RUN.",
        ));
    }
    Ok(drawn)
}

fn groups<'a>(runs: impl Iterator<Item = &'a Run>) -> Vec<Group<'a>> {
    let mut groups: Vec<Group> = Vec::new();
    for run in runs {
        match groups.iter_mut().find(|group| group.label == run.label) {
            Some(group) => group.runs.push(run),
            None => groups.push(Group { label: &run.label, runs: vec![run] }),
        }
    }
    // Teachers first, whatever the folders are called.
    groups.sort_by_key(|group| !group.label.contains("teacher"));
    groups
}

fn one(dataset: &str, model: &str, groups: &[Group]) -> Result<Option<Drawn>, ReportError> {
    let shown = groups.iter().take(palette::SERIES.len());
    let series = shown.enumerate().map(|(color, group)| {
        let name = group.label.split_once(' ').map_or(group.label, |(_, rest)| rest);
        let name = name.replace("student, curriculum", "curriculum");
        let count = group.runs.len();
        let name = if count > 1 { format!("{name} (mean of {count})") } else { name };
        Series::new(name, color, mean(&group.runs))
    });
    let chart = LineChart {
        x: "epoch".to_owned(),
        y: "task loss of the validation graphs".to_owned(),
        series: series.collect(),
        ..LineChart::default()
    }
    .logarithmic_if_wide();
    let Some(svg) = chart.draw()? else { return Ok(None) };
    let scale = if chart.log_y { " Logarithmic scale." } else { "" };
    let best = |group: &Group| {
        let lowest = mean(&group.runs).into_iter().map(|(_, loss)| loss).fold(f64::INFINITY, f64::min);
        lowest
            .is_finite()
            .then(|| format!("{} {}", group.label.split_once(' ').map_or("", |(_, rest)| rest), significant(lowest)))
    };
    let lowest: Vec<String> = groups.iter().filter_map(best).collect();
    let hidden = groups.len().saturating_sub(palette::SERIES.len());
    let hidden =
        if hidden > 0 { format!(" {hidden} more kinds of runs are in the table only.") } else { String::new() };
    Ok(Some(
        Figure {
            slug: slug(&format!("comparison {dataset} {model}")),
            title: format!(
                "{} on {dataset}: lowest validation task loss \u{2013} {}",
                model.to_uppercase(),
                lowest.join("; ")
            ),
            reading: format!(
                "The task loss is what teacher and students have in common: a student with distillation minimises more than \
                 it. Lower is better.{scale}{hidden}"
            ),
            sources: groups.iter().flat_map(|group| &group.runs).map(|run| run.metrics.path.clone()).collect(),
            svg,
        }
        .into(),
    ))
}

/// Mean over runs of the validation task loss, epoch by epoch.
fn mean(runs: &[&Run]) -> Vec<(f64, f64)> {
    let lines: Vec<Vec<(f64, f64)>> = runs.iter().map(|run| run.by_epoch("val_task_loss")).collect();
    let longest = lines.iter().map(Vec::len).max().unwrap_or(0);
    let at = |place: usize| {
        let values: Vec<(f64, f64)> = lines.iter().filter_map(|line| line.get(place)).copied().collect();
        (values[0].0, values.iter().map(|(_, loss)| loss).sum::<f64>() / values.len() as f64)
    };
    (0..longest).map(at).collect()
}
