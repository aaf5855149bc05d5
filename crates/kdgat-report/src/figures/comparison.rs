//! Comparison of runs (teacher, student, student without distillation) by the task loss, which they share.

use super::{Drawn, Figure, significant};
use crate::ReportError;
use crate::chart::{LineChart, Series, palette};
use crate::files::Run;
use crate::html::slug;
use kdgat_config::run_settings::{self, Setting, describe, distinguishing};

/// Runs that differ only by seed or fold, drawn as one line.
struct Group<'a> {
    /// Description with the settings that distinguish the group from others of its kind.
    name: String,
    /// Only those settings if all groups are of one kind: the legend has little room.
    short: String,
    settings: Vec<Setting>,
    runs: Vec<&'a Run>,
}

/// Draws a figure for each model and dataset with several kinds of runs.
pub fn draw(runs: &[Run]) -> Result<Vec<Drawn>, ReportError> {
    let mut drawn = Vec::new();
    // A fusion agent has no task loss.
    let trained = || runs.iter().filter(|run| run.stage() != "fusion");
    // Losses of different kinds cannot be compared.
    let kind = |run: &'_ Run| [run.dataset(), family(run), task_loss(run)].map(str::to_owned);
    let mut kinds: Vec<[String; 3]> = trained().map(kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    for of_kind in &kinds {
        let groups = groups(trained().filter(|run| kind(run) == *of_kind));
        if groups.len() > 1 {
            drawn.extend(one(of_kind, &groups)?);
        }
    }
    if drawn.is_empty() {
        drawn.push(Drawn::missing(
            "teacher against student",
            "it needs two kinds of runs of one model on one dataset, such as a teacher and its student with and without \
             --use-kd; name them together: kdgat report RUN RUN RUN.",
        ));
    }
    Ok(drawn)
}

/// Family of runs of `kdgat train`.
const GRAPH_NETWORKS: &str = "graph networks";

/// Returns the models that share a task loss: those of one kind, or all networks on a dataset of graphs.
fn family(run: &Run) -> &str {
    if run.fold().is_some() { GRAPH_NETWORKS } else { run.model() }
}

/// Returns the settings that tell groups apart. Each fold has its own teacher and difficulty model, which are no other settings.
fn settings(run: &Run) -> Vec<Setting> {
    let mut settings = run_settings::settings(&run.config);
    settings.retain(|(name, _)| run.fold().is_none() || !matches!(name.as_str(), "teacher" | "difficulty_model"));
    settings
}

/// Returns the task loss of a classifier, such as `weighted`; empty for cross entropy and other models.
fn task_loss(run: &Run) -> &str {
    match run.config["config"]["training"]["task_loss"].as_str() {
        Some(kind) if run.model() == "gat" && kind != "ce" => kind,
        _ => "",
    }
}

fn groups<'a>(runs: impl Iterator<Item = &'a Run>) -> Vec<Group<'a>> {
    let mut groups: Vec<Group> = Vec::new();
    for run in runs {
        let settings = settings(run);
        // An unfinished run is not a repetition of finished ones.
        let name = if run.is_finished() { run.label.clone() } else { format!("{}, not finished", run.label) };
        match groups.iter_mut().find(|group| group.name == name && group.settings == settings) {
            Some(group) => group.runs.push(run),
            None => groups.push(Group { name, short: String::new(), settings, runs: vec![run] }),
        }
    }
    let names: Vec<(String, String)> = groups.iter().map(|group| names(group, &groups)).collect();
    groups.iter_mut().zip(names).for_each(|(group, names)| (group.name, group.short) = names);
    // Teachers first, whatever the names of the folders.
    groups.sort_by_key(|group| !group.name.contains("teacher"));
    groups
}

/// Returns the name, such as `student, no KD` with the settings that differ within its kind, and the short name.
fn names(group: &Group, groups: &[Group]) -> (String, String) {
    let alike: Vec<&[Setting]> =
        groups.iter().filter(|other| other.name == group.name).map(|other| &other.settings[..]).collect();
    // The title names a model that all have.
    let words = match group.name.split_once(' ').filter(|_| only_model(groups).is_some()) {
        Some((_, rest)) => rest,
        None => group.name.as_str(),
    };
    let words = words.replace("student, curriculum", "curriculum");
    match describe(&group.settings, &distinguishing(&alike)) {
        differing if differing.is_empty() && only_model(groups).is_none() => {
            let short = words.replace(" student,", ",");
            (words, short)
        }
        differing if differing.is_empty() => (words.clone(), words),
        differing => {
            let name = format!("{words}, {differing}");
            let short = if alike.len() == groups.len() { differing } else { name.clone() };
            (name, short)
        }
    }
}

/// Returns the model of all groups, if it is one.
fn only_model<'a>(groups: &'a [Group]) -> Option<&'a str> {
    let mut models = groups.iter().flat_map(|group| &group.runs).map(|run| run.model());
    let first = models.next()?;
    models.all(|model| model == first).then_some(first)
}

fn one([dataset, model, task_loss]: &[String; 3], groups: &[Group]) -> Result<Option<Drawn>, ReportError> {
    let shown = groups.iter().take(palette::SERIES.len());
    // The legend has little room: a number of runs that all groups have is told below the chart.
    let all_of = groups[0].runs.len();
    let all_of = if groups.iter().all(|group| group.runs.len() == all_of) { all_of } else { 1 };
    let series = shown.enumerate().map(|(color, group)| {
        let count = group.runs.len();
        let name =
            if count > 1 && all_of == 1 { format!("{} (mean of {count})", group.short) } else { group.short.clone() };
        Series::new(name, color, mean(&group.runs))
    });
    let chart = LineChart {
        x: "epoch".to_owned(),
        y: format!("task loss of the validation {}", groups[0].runs[0].units()),
        series: series.collect(),
        ..LineChart::default()
    }
    .logarithmic_if_wide();
    let Some(svg) = chart.draw()? else { return Ok(None) };
    let mean_of = if all_of > 1 { format!(" Each line is the mean of {all_of} runs.") } else { String::new() };
    let scale = if chart.log_y { " Logarithmic scale." } else { "" };
    let best = |group: &Group| {
        let of_run =
            |run: &&Run| run.by_epoch("val_task_loss").into_iter().map(|(_, loss)| loss).fold(f64::INFINITY, f64::min);
        let lowest = group.runs.iter().map(of_run).sum::<f64>() / group.runs.len() as f64;
        lowest.is_finite().then(|| format!("{} {}", group.name, significant(lowest)))
    };
    let lowest: Vec<String> = groups.iter().filter_map(best).collect();
    let hidden = groups.len().saturating_sub(palette::SERIES.len());
    let hidden =
        if hidden > 0 { format!(" {hidden} more kinds of runs are in the table only.") } else { String::new() };
    Ok(Some(
        Figure {
            slug: slug(format!("comparison {dataset} {model} {task_loss}").trim_end()),
            title: format!(
                "{} on {dataset}: lowest validation task loss{} \u{2013} {}",
                only_model(groups).map_or_else(|| "Graph networks".to_owned(), str::to_uppercase),
                if task_loss.is_empty() { String::new() } else { format!(" ({task_loss})") },
                lowest.join("; ")
            ),
            reading: format!(
                "Teacher and students share the task loss; a distilled student also minimises the distillation loss. \
                 Lower is better.{mean_of}{scale}{hidden}"
            ),
            sources: groups.iter().flat_map(|group| &group.runs).map(|run| run.metrics.path.clone()).collect(),
            svg,
        }
        .into(),
    ))
}

/// Averages the validation task loss over runs, epoch by epoch, up to the last epoch that all have finished.
fn mean(runs: &[&Run]) -> Vec<(f64, f64)> {
    let lines: Vec<Vec<(f64, f64)>> = runs.iter().map(|run| run.by_epoch("val_task_loss")).collect();
    let shortest = lines.iter().map(Vec::len).min().unwrap_or(0);
    let at = |place: usize| {
        let sum: f64 = lines.iter().map(|line| line[place].1).sum();
        (lines[0][place].0, sum / lines.len() as f64)
    };
    (0..shortest).map(at).collect()
}
