//! Test results on a dataset of graphs: the metric of every run, and what a teacher adds to a student on the same test graphs.

use plotters::prelude::*;

use super::{Drawn, Figure};
use crate::ReportError;
use crate::chart::palette::{self, AXIS, GRID, INK};
use crate::chart::{
    SMALL_TEXT, Svg, TEXT, WIDTH, fitted, px, short, stroke, text_width, ticks, write, write_centered, write_right,
};
use crate::files::GraphEvaluation;
use crate::html::slug;
use kdgat_evaluate::graph_runs::{self, BASELINE, Comparison, Group, lower_is_better};

const ROW: i32 = 30;
const TOP: i32 = 30;
const MOST_LEFT: i32 = 190;
const MOST_ROWS: usize = 18;

const DISTILLED: usize = 0;
const TEACHER: usize = 1;
const ALONE: usize = 2;
const SIMPLEST: usize = 6;

/// A row of discs with their mean.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    name: String,
    values: Vec<f64>,
    mean: f64,
    interval: Option<[f64; 2]>,
    color: usize,
}

/// Draws the first metric of all runs by group, and the differences that distillation makes.
pub fn draw(evaluation: &GraphEvaluation) -> Result<Vec<Drawn>, ReportError> {
    let groups = graph_runs::groups(&evaluation.runs);
    let Some(metric) = graph_runs::metric_names(&evaluation.runs).first().copied() else {
        let what = format!("test results on {}", evaluation.dataset);
        return Ok(vec![Drawn::missing(what, "the evaluation has no run; `kdgat evaluate` without names takes all.")]);
    };
    Ok(vec![scores(evaluation, &groups, metric)?, differences(evaluation, &groups, metric)?])
}

/// Returns a sentence for each student that was trained with and without a teacher: whether the teacher helped.
pub fn findings(evaluation: &GraphEvaluation) -> Vec<String> {
    let first = graph_runs::metric_names(&evaluation.runs).first().copied();
    let mut found = graph_runs::comparisons(&graph_runs::groups(&evaluation.runs));
    found.retain(|comparison| first == Some(comparison.metric.as_str()));
    let sentence = |found: &Comparison| {
        format!(
            "{} on {}: {} {:.4} with the teacher, {:.4} alone; difference {}",
            found.distilled,
            evaluation.dataset,
            found.metric,
            found.mean_distilled,
            found.mean_alone,
            found.text()
        )
    };
    found.iter().map(sentence).collect()
}

fn scores(evaluation: &GraphEvaluation, groups: &[Group<'_>], metric: &str) -> Result<Drawn, ReportError> {
    let row = |group: &Group| Row {
        name: group.name.clone(),
        values: group.runs.iter().map(|run| run.value(metric)).filter(|value| value.is_finite()).collect(),
        mean: group.mean(metric).mean,
        interval: None,
        color: color(group),
    };
    let mut rows: Vec<Row> = groups.iter().map(row).filter(|row| row.mean.is_finite()).collect();
    let what = format!("{metric} on {}", evaluation.dataset);
    let sign = if lower_is_better(metric) { 1.0 } else { -1.0 };
    rows.sort_by(|left, right| (sign * left.mean).total_cmp(&(sign * right.mean)));
    let Some(best) = rows.first().map(|best| format!("{} {:.4}", best.name, best.mean)) else {
        return Ok(Drawn::missing(what, "no test set defines this metric."));
    };
    let hidden = rows.len().saturating_sub(MOST_ROWS);
    rows.truncate(MOST_ROWS);
    let hidden = if hidden > 0 { format!(" {hidden} more kinds of runs are in the table.") } else { String::new() };
    let simplest = graph_runs::baseline(&evaluation.runs, metric).mean;
    let beside = if simplest.is_finite() { format!("; {BASELINE} {simplest:.4}") } else { String::new() };
    if simplest.is_finite() {
        let name = BASELINE.to_owned();
        rows.push(Row { name, values: Vec::new(), mean: simplest, interval: None, color: SIMPLEST });
    }
    Ok(Figure {
        slug: slug(&format!("graph scores {}", evaluation.dataset)),
        title: format!("Test {metric} on {}: best mean {best}{beside}", evaluation.dataset),
        reading: format!(
            "Each disc is a run on the test {} of its fold; the bar is the mean. {} is better. Blue: distilled; green: without \
             a teacher; orange: teachers.{hidden}",
            evaluation.units,
            if lower_is_better(metric) { "Lower" } else { "Higher" }
        ),
        sources: vec![evaluation.path()],
        svg: svg(&rows, metric, false)?,
    }
    .into())
}

fn differences(evaluation: &GraphEvaluation, groups: &[Group<'_>], metric: &str) -> Result<Drawn, ReportError> {
    let mut found = graph_runs::comparisons(groups);
    found.retain(|comparison| comparison.metric == metric);
    if found.is_empty() {
        return Ok(Drawn::missing(
            format!("what a teacher adds to a student on {}", evaluation.dataset),
            "it needs a student with a teacher and the same student without one (--use-kd false), on the same folds and with \
             otherwise the same settings; train both, and run `kdgat evaluate`.",
        ));
    }
    let told: Vec<String> = found.iter().map(|found| format!("{} {}", found.distilled, found.text())).collect();
    found.truncate(MOST_ROWS);
    let row = |found: &Comparison| Row {
        name: found.distilled.clone(),
        values: found.differences.clone(),
        mean: found.difference,
        interval: found.interval,
        color: DISTILLED,
    };
    let rows: Vec<Row> = found.iter().map(row).collect();
    Ok(Figure {
        slug: slug(&format!("distillation {}", evaluation.dataset)),
        title: format!("{metric} with the teacher − alone: {}", told.join("; ")),
        reading: format!(
            "Each disc is the difference on the test {} of one fold (the mean over its seeds; for a single fold, of one seed); the thin \
             bar is the mean, the wide one its 95 % interval. An interval that contains 0 shows no difference.",
            evaluation.units
        ),
        sources: vec![evaluation.path()],
        svg: svg(&rows, &format!("{metric}: with the teacher − alone"), true)?,
    }
    .into())
}

fn color(group: &Group<'_>) -> usize {
    let run = group.runs[0];
    let size = run.settings.get("size").and_then(|size| size.as_str()).unwrap_or("");
    match run.distilled {
        true => DISTILLED,
        false if size.starts_with("teacher") => TEACHER,
        false => ALONE,
    }
}

/// Draws the rows from top to bottom. `from_zero` adds a line at 0.
fn svg(rows: &[Row], axis: &str, from_zero: bool) -> Result<Svg, ReportError> {
    let widest = rows.iter().map(|row| text_width(&row.name, SMALL_TEXT)).max().unwrap_or(0);
    let left = (widest + 14).min(MOST_LEFT);
    let width = WIDTH - left - 20;
    let of_row = |row: &Row| {
        let ends = row.interval.into_iter().flatten();
        row.values.iter().copied().chain(ends).chain([row.mean]).collect::<Vec<f64>>()
    };
    let all: Vec<f64> = rows.iter().flat_map(of_row).chain(from_zero.then_some(0.0)).collect();
    let (low, high) =
        all.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |ends, value| (ends.0.min(*value), ends.1.max(*value)));
    let room = if high > low { 0.06 * (high - low) } else { 0.05 * high.abs().max(0.1) };
    let (low, high) = (low - room, high + room);
    let x = |value: f64| left + (f64::from(width) * (value - low) / (high - low)).round() as i32;
    let bottom = TOP + ROW * rows.len() as i32;
    Ok(Svg::draw(WIDTH, bottom + 46, |area| {
        for value in ticks(low, high, 4) {
            stroke(area, &[(x(value), TOP), (x(value), bottom)], 1.0, GRID)?;
            write_centered(area, &short(value), (x(value).min(WIDTH - 20), bottom + 12), SMALL_TEXT, AXIS)?;
        }
        if from_zero {
            stroke(area, &[(x(0.0), TOP), (x(0.0), bottom)], 2.0, AXIS)?;
        }
        write(area, "model", (4, 12), TEXT, INK)?;
        write_centered(area, &fitted(axis, width, TEXT), (left + width / 2, bottom + 34), TEXT, INK)?;
        for (index, row) in rows.iter().enumerate() {
            let middle = TOP + ROW * index as i32 + ROW / 2;
            write_right(area, &fitted(&row.name, left - 12, SMALL_TEXT), (left - 8, middle), SMALL_TEXT, INK)?;
            if let Some([from, to]) = row.interval {
                let bar = [(px(x(from)), px(middle - 6)), (px(x(to)), px(middle + 6))];
                area.draw(&Rectangle::new(bar, palette::series(row.color).mix(0.3).filled()))?;
            }
            for value in &row.values {
                let style = palette::series(row.color).mix(0.6).filled();
                area.draw(&Circle::new((px(x(*value)), px(middle)), px(4), style))?;
            }
            let bar = [(px(x(row.mean) - 2), px(middle - 10)), (px(x(row.mean) + 1), px(middle + 10))];
            area.draw(&Rectangle::new(bar, INK.filled()))?;
        }
        Ok(())
    })?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn evaluation(gains: &[f64]) -> GraphEvaluation {
        let run = |distilled: bool, fold: usize, accuracy: f64| {
            let group = if distilled { "gin_student_train_kd" } else { "gin_student_train" };
            let metric = |value: f64| json!([{ "name": "accuracy", "value": value, "interval": null }]);
            serde_json::from_value(json!({
                "model": format!("{group}/{}", fold + 1), "group": group, "distilled": distilled, "parameters": 10,
                "fold": format!("fold {fold} of 10"), "seed": 42, "seen_graphs": 90, "test_graphs": 10,
                "test_digest": fold.to_string(), "settings": { "model": "gin" }, "metrics": metric(accuracy),
                "baseline": metric(0.4), "linear": [], "propagated": [],
            }))
            .unwrap()
        };
        let pair = |(fold, gain): (usize, &f64)| [run(false, fold, 0.5), run(true, fold, 0.5 + gain)];
        let runs = gains.iter().enumerate().flat_map(pair).collect();
        GraphEvaluation { folder: "evaluation".into(), dataset: "shapes".to_owned(), units: "graphs".to_owned(), runs }
    }

    fn titles(evaluation: &GraphEvaluation) -> Vec<String> {
        let title = |drawn| match drawn {
            Drawn::Figure(figure) => figure.title,
            Drawn::Missing { what, .. } => format!("missing: {what}"),
        };
        draw(evaluation).unwrap().into_iter().map(title).collect()
    }

    #[test]
    fn the_headline_says_whether_the_teacher_helps() {
        let better = evaluation(&[0.1, 0.11, 0.12]);
        let found = findings(&better);
        let begin = "gin_student_train_kd on shapes: accuracy 0.6100 with the teacher, 0.5000 alone; difference +0.1100 (95 %: +";
        assert!(found.len() == 1 && found[0].starts_with(begin), "{found:?}");
        assert!(found[0].ends_with("over 3 folds: better with the teacher"), "{found:?}");
        assert!(findings(&evaluation(&[0.1, -0.1]))[0].ends_with("over 2 folds: no difference seen"));
        assert!(findings(&evaluation(&[-0.1, -0.11, -0.12]))[0].ends_with("worse with the teacher"));
    }

    #[test]
    fn runs_and_differences_are_drawn_and_what_is_missing_is_said() {
        let titles_of_both = titles(&evaluation(&[0.1, 0.2]));
        let scores = "Test accuracy on shapes: best mean gin_student_train_kd 0.6500; most frequent or mean 0.4000";
        assert_eq!(titles_of_both[0], scores);
        assert!(titles_of_both[1].starts_with("accuracy with the teacher − alone: gin_student_train_kd +0.1500"));
        let mut alone = evaluation(&[0.1, 0.2]);
        alone.runs.retain(|run| !run.distilled);
        assert_eq!(titles(&alone)[1], "missing: what a teacher adds to a student on shapes");
        assert!(findings(&alone).is_empty());
        let Drawn::Figure(figure) = draw(&evaluation(&[0.1, 0.2])).unwrap().remove(1) else { panic!("no figure") };
        assert!(figure.svg.marks() >= 4, "an interval, two discs and the mean");
    }
}
