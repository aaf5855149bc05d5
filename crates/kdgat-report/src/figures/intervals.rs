//! F1 of all models on each test folder, with confidence intervals.

use std::path::Path;

use plotters::prelude::*;

use super::{Drawn, Figure, folder_words, trade_off};
use crate::ReportError;
use crate::chart::palette::{self, AXIS, GRID, INK};
use crate::chart::{
    SMALL_TEXT, Svg, TEXT, WIDTH, fitted, px, short, stroke, text_width, ticks, write, write_centered, write_right,
};
use crate::files::{Evaluation, Model};
use crate::html::slug;

const ROW: i32 = 24;
const TOP: i32 = 30;
const MOST_LEFT: i32 = 170;
const MOST_MODELS: usize = 18;

/// A model's F1 with the bounds of its interval.
#[derive(Debug, Clone, PartialEq)]
struct Dot {
    name: String,
    value: f64,
    low: f64,
    high: f64,
    color: usize,
}

/// Draws a figure for each test folder on which at least two models have an F1.
pub fn draw(evaluation: &Evaluation) -> Result<Vec<Drawn>, ReportError> {
    let source = evaluation.folder.join("metrics.json");
    each_folder(evaluation, &source, trade_off::COLORS, |model| (model.label(), trade_off::color(model)))
}

/// Draws the same figures for a fusion agent and its baselines.
pub fn of_contenders(evaluation: &Evaluation, source: &Path) -> Result<Vec<Drawn>, ReportError> {
    let agent = evaluation.models.first().map_or("", |model| model.model.as_str());
    each_folder(evaluation, source, "Blue: the agent; green: the baselines.", |model| match model.model == agent {
        true => (format!("agent ({})", model.kind), 0),
        false => (model.model.clone(), 2),
    })
}

fn each_folder(
    evaluation: &Evaluation,
    source: &Path,
    colors: &str,
    look: impl Fn(&Model) -> (String, usize),
) -> Result<Vec<Drawn>, ReportError> {
    let mut drawn = Vec::new();
    for folder in evaluation.folders() {
        let mut dots: Vec<Dot> = evaluation
            .models
            .iter()
            .filter_map(|model| {
                let [value, low, high] = model.folders().find(|row| row.folder == folder)?.metric("f1");
                let (name, color) = look(model);
                value.is_finite().then_some(Dot { name, value, low, high, color })
            })
            .collect();
        if dots.len() < 2 {
            continue;
        }
        dots.sort_by(|left, right| right.value.total_cmp(&left.value));
        let hidden = dots.len().saturating_sub(MOST_MODELS);
        dots.truncate(MOST_MODELS);
        let hidden = if hidden > 0 { format!(" {hidden} more are in the table.") } else { String::new() };
        let intervals = match dots.iter().any(|dot| dot.low.is_finite()) {
            true => {
                "Bars are 95 % bootstrap intervals; if two do not overlap, chance in the choice of windows does not explain the gap."
            }
            false => "Intervals need `--resamples`.",
        };
        drawn.push(
            Figure {
                slug: slug(&format!("f1 {} {folder}", evaluation.name())),
                title: format!(
                    "F1, {}: {:.3} ({}) down to {:.3} ({})",
                    folder_words(folder),
                    dots[0].value,
                    dots[0].name,
                    dots[dots.len() - 1].value,
                    dots[dots.len() - 1].name
                ),
                reading: format!("At the recorded threshold; further right is better. {intervals} {colors}{hidden}"),
                sources: vec![source.to_owned()],
                svg: svg(&dots)?,
            }
            .into(),
        );
    }
    Ok(drawn)
}

fn svg(dots: &[Dot]) -> Result<Svg, ReportError> {
    let widest = dots.iter().map(|dot| text_width(&dot.name, SMALL_TEXT)).max().unwrap_or(0);
    let left = (widest + 14).min(MOST_LEFT);
    let width = WIDTH - left - 20;
    let x = |value: f64| left + (f64::from(width) * value.clamp(0.0, 1.0)).round() as i32;
    let bottom = TOP + ROW * dots.len() as i32;
    Ok(Svg::draw(WIDTH, bottom + 46, |area| {
        for value in ticks(0.0, 1.0, 5) {
            stroke(area, &[(x(value), TOP), (x(value), bottom)], 1.0, GRID)?;
            write_centered(area, &short(value), (x(value), bottom + 12), SMALL_TEXT, AXIS)?;
        }
        write(area, "model", (4, 12), TEXT, INK)?;
        write_centered(area, "F1", (left + width / 2, bottom + 34), TEXT, INK)?;
        for (index, dot) in dots.iter().enumerate() {
            let middle = TOP + ROW * index as i32 + ROW / 2;
            write_right(area, &fitted(&dot.name, left - 12, SMALL_TEXT), (left - 8, middle), SMALL_TEXT, INK)?;
            if dot.low.is_finite() && dot.high.is_finite() {
                let bar = [(px(x(dot.low)), px(middle - 2)), (px(x(dot.high)), px(middle + 2))];
                area.draw(&Rectangle::new(bar, palette::series(dot.color).mix(0.45).filled()))?;
            }
            area.draw(&Circle::new((px(x(dot.value)), px(middle)), px(5), palette::series(dot.color).filled()))?;
        }
        Ok(())
    })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_model_is_a_dot_and_a_bar_where_there_is_an_interval() {
        let dot = |value, low| Dot { name: "GAT, KD".to_owned(), value, low, high: value + 0.1, color: 0 };
        assert_eq!(svg(&[dot(0.5, 0.4), dot(0.3, f64::NAN)]).unwrap().marks(), 3 + 6, "6 lines of the grid");
    }
}
