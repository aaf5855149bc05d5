//! Effect of each axis of a sweep: all trials by the axis' values, with means.

use plotters::prelude::*;

use super::{Drawn, Figure};
use crate::ReportError;
use crate::chart::palette::{self, AXIS, GRID, INK};
use crate::chart::{
    SMALL_TEXT, Svg, TEXT, WIDTH, fitted, px, short, stroke, ticks, write, write_centered, write_right,
};
use crate::html::slug;
use kdgat_sweep::plan::Plan;
use kdgat_sweep::state::{Row, SweepFolder, TABLE};

const LEFT: i32 = 128;
const ROW: i32 = 30;
const TOP: i32 = 30;
const MOST_VALUES: usize = 16;

/// A value of an axis and the metrics of its trials.
type Value = (String, Vec<f64>);

pub fn draw(folder: &SweepFolder, plan: &Plan, rows: &[Row]) -> Result<Vec<Drawn>, ReportError> {
    let what = format!("effects in the sweep {}", plan.name);
    let done = rows.iter().filter(|row| row.metric.is_some()).count();
    if done == 0 {
        let why = format!("no trial has a value of {} yet; `kdgat sweep status` shows the progress.", plan.metric);
        return Ok(vec![Drawn::missing(what, why)]);
    }
    let mut drawn = Vec::new();
    for (index, axis) in plan.axes.iter().enumerate().filter(|(_, axis)| *axis != "seed") {
        let values = values(rows, index);
        if values.len() < 2 || values.len() > MOST_VALUES {
            continue;
        }
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let best = values
            .iter()
            .reduce(|best, other| if plan.direction.prefers(mean(&other.1), mean(&best.1)) { other } else { best });
        let Some((best, of_best)) = best else { continue };
        drawn.push(
            Figure {
                slug: slug(&format!("sweep {} {axis}", plan.name)),
                title: format!(
                    "{} by {axis}: best mean {}{} with {best}",
                    plan.metric,
                    short(mean(of_best)),
                    plan.caveat().map_or(String::new(), |caveat| format!(" ({caveat})"))
                ),
                reading: format!(
                    "Each disc is a trial; the bar is the mean over all other settings ({} {}).",
                    plan.direction.as_str(),
                    plan.metric
                ),
                sources: vec![folder.path().join(TABLE)],
                svg: svg(plan, &values)?,
            }
            .into(),
        );
    }
    if drawn.is_empty() {
        let why = "no axis except the seed has 2 to 16 values with results; the tables show all trials.";
        drawn.push(Drawn::missing(what, why));
    }
    Ok(drawn)
}

/// Returns the values of an axis with the metrics of finished trials, in the order of the sweep.
fn values(rows: &[Row], axis: usize) -> Vec<Value> {
    let mut values: Vec<Value> = Vec::new();
    for row in rows {
        let (Some(metric), Some(label)) = (row.metric.filter(|_| row.status.is_done()), row.trial.labels.get(axis))
        else {
            continue;
        };
        match values.iter_mut().find(|(known, _)| known == label) {
            Some((_, metrics)) => metrics.push(metric),
            None => values.push((label.clone(), vec![metric])),
        }
    }
    values
}

fn svg(plan: &Plan, values: &[Value]) -> Result<Svg, ReportError> {
    let height = TOP + ROW * values.len() as i32 + 44;
    let all = || values.iter().flat_map(|(_, metrics)| metrics.iter().copied());
    let (low, high) = (all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max));
    let room = if high > low { 0.06 * (high - low) } else { 0.5 };
    let (low, high) = (low - room, high + room);
    let width = WIDTH - LEFT - 16;
    let x = |value: f64| LEFT + (f64::from(width) * (value - low) / (high - low)).round() as i32;
    Ok(Svg::draw(WIDTH, height, |area| {
        let bottom = TOP + ROW * values.len() as i32;
        for value in ticks(low, high, 4) {
            stroke(area, &[(x(value), TOP), (x(value), bottom)], 1.0, GRID)?;
            write_centered(area, &short(value), (x(value).min(WIDTH - 20), bottom + 12), SMALL_TEXT, AXIS)?;
        }
        write(area, &fitted(&format!("{} of each trial", plan.metric), WIDTH - 8, TEXT), (4, 12), TEXT, INK)?;
        write_centered(area, &plan.metric, (LEFT + width / 2, height - 10), TEXT, INK)?;
        for (index, (value, metrics)) in values.iter().enumerate() {
            let middle = TOP + ROW * index as i32 + ROW / 2;
            write_right(area, &fitted(value, LEFT - 12, SMALL_TEXT), (LEFT - 8, middle), SMALL_TEXT, INK)?;
            for metric in metrics {
                let style = palette::series(0).mix(0.6).filled();
                area.draw(&Circle::new((px(x(*metric)), px(middle)), px(4), style))?;
            }
            let mean = metrics.iter().sum::<f64>() / metrics.len() as f64;
            let bar = [(px(x(mean) - 2), px(middle - 10)), (px(x(mean) + 1), px(middle + 10))];
            area.draw(&Rectangle::new(bar, INK.filled()))?;
        }
        Ok(())
    })?)
}
