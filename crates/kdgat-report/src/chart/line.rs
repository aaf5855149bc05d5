//! Line charts, with the name of each line at its end.

use std::ops::Range;

use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::axes::{self, Axes, Plot};
use super::palette::{self, AXIS, INK};
use super::{
    Area, DrawError, HEIGHT, SMALL_TEXT, Svg, WIDTH, fitted, px, spread, stroke, text_style, text_width, write,
};

/// Maximum margin at the right for names.
const MOST_RIGHT: i32 = 186;
const SAMPLE: i32 = 22;
/// Minimum distance between the names of lines.
const NAME_GAP: i32 = 16;
/// Maximum points of a line for which each point gets a mark.
const MARKED: usize = 24;

/// Way in which points are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Straight lines.
    Straight,
    /// Steps, horizontal first: a value holds until the next point.
    Steps,
    /// Points only.
    Points,
}

/// A line with its name.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    pub name: String,
    /// Index of its colour in the palette.
    pub color: usize,
    pub points: Vec<(f64, f64)>,
    pub way: Way,
}

impl Series {
    pub fn new(name: impl Into<String>, color: usize, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), color, points, way: Way::Straight }
    }

    fn finite(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite())
    }
}

/// A chart of lines.
#[derive(Debug, Clone, Default)]
pub struct LineChart {
    /// Name of the horizontal axis, with unit.
    pub x: String,
    /// Name of the vertical axis, with unit.
    pub y: String,
    pub series: Vec<Series>,
    /// Fixed range of the horizontal axis; `None` for that of the data.
    pub x_range: Option<Range<f64>>,
    /// Fixed range of the vertical axis; `None` for that of the data.
    pub y_range: Option<Range<f64>>,
    pub log_x: bool,
    pub log_y: bool,
    /// Horizontal line at this value, with a label.
    pub level: Option<(f64, String)>,
    /// Vertical line at this value, with a label.
    pub mark: Option<(f64, String)>,
}

/// Ratio of the highest value to the lowest above which an axis of losses is logarithmic.
const LOGARITHMIC: f64 = 20.0;

impl LineChart {
    /// Makes the vertical axis logarithmic if its range is so wide that low values would be indistinguishable.
    pub fn logarithmic_if_wide(mut self) -> Self {
        self.log_y = self
            .range_of(|point| point.1)
            .is_some_and(|range| range.start > 0.0 && range.end / range.start > LOGARITHMIC);
        self
    }

    /// Draws the chart; `None` if no series has a point.
    pub fn draw(&self) -> Result<Option<Svg>, DrawError> {
        let (Some(x), Some(y)) = (self.range_of(|point| point.0), self.range_of(|point| point.1)) else {
            return Ok(None);
        };
        let x = self.x_range.clone().unwrap_or(if self.log_x { wide(x) } else { exact(x) });
        let y = self.y_range.clone().unwrap_or(if self.log_y { wide(y) } else { from_nought(y) });
        let right = self.room_for_names();
        let svg = Svg::draw(WIDTH, HEIGHT, |area| {
            let mut builder = axes::builder(area, right);
            match (self.log_x, self.log_y) {
                (false, false) => self.paint(area, builder.build_cartesian_2d(x, y)?),
                (true, false) => self.paint(area, builder.build_cartesian_2d(x.log_scale(), y)?),
                (false, true) => self.paint(area, builder.build_cartesian_2d(x, y.log_scale())?),
                (true, true) => self.paint(area, builder.build_cartesian_2d(x.log_scale(), y.log_scale())?),
            }
        })?;
        Ok(Some(svg))
    }

    fn range_of(&self, part: fn((f64, f64)) -> f64) -> Option<Range<f64>> {
        let values = self.series.iter().flat_map(|series| series.finite().map(part));
        values.fold(None, |range: Option<Range<f64>>, value| {
            Some(range.map_or(value..value, |range| range.start.min(value)..range.end.max(value)))
        })
    }

    fn room_for_names(&self) -> i32 {
        let widest = self.series.iter().map(|series| text_width(&series.name, SMALL_TEXT)).max().unwrap_or(0);
        (widest + SAMPLE + 12).clamp(40, MOST_RIGHT)
    }

    fn paint<'a, X, Y>(&self, area: &Area<'a>, mut chart: Plot<'_, 'a, X, Y>) -> Result<(), DrawError>
    where
        X: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let axes = Axes { x: &self.x, y: &self.y, x_labels: if self.log_x { 4 } else { 7 }, height: HEIGHT };
        axes.draw(area, &mut chart)?;
        let plot = chart.plotting_area().get_pixel_range();
        let middle = (plot.0.start + plot.0.end) / 2;

        if let Some((height, name)) = &self.level {
            let (from, to) = (chart.x_range().start, chart.x_range().end);
            chart.draw_series([PathElement::new(
                vec![(from, *height), (to, *height)],
                INK.stroke_width(px(2) as u32),
            )])?;
            let place = chart.backend_coord(&(from, *height));
            area.draw_text(
                name,
                &text_style(SMALL_TEXT, INK, HPos::Left, VPos::Bottom),
                (place.0 + px(6), place.1 - px(3)),
            )?;
        }
        if let Some((place, name)) = &self.mark {
            let (from, to) = (chart.y_range().start, chart.y_range().end);
            chart
                .draw_series([PathElement::new(vec![(*place, from), (*place, to)], AXIS.stroke_width(px(1) as u32))])?;
            let top = chart.backend_coord(&(*place, to));
            let near_end = top.0 > middle;
            let (anchor, shift) = if near_end { (HPos::Right, -px(5)) } else { (HPos::Left, px(5)) };
            area.draw_text(name, &text_style(SMALL_TEXT, AXIS, anchor, VPos::Top), (top.0 + shift, top.1 + px(3)))?;
        }

        let mut ends = Vec::new();
        for series in &self.series {
            let style = palette::series(series.color).stroke_width(px(2) as u32);
            let points: Vec<(f64, f64)> = series.finite().collect();
            let line = match series.way {
                Way::Straight => points.clone(),
                Way::Steps => steps(&points),
                Way::Points => Vec::new(),
            };
            if line.len() > 1 {
                chart.draw_series([PathElement::new(line, style)])?;
            }
            if points.len() == 1 || series.way == Way::Points || points.len() <= MARKED && series.way == Way::Straight {
                let radius = if series.way == Way::Points { 5 } else { 2 };
                let mark = |point: &(f64, f64)| Circle::new(*point, px(radius), style.filled());
                chart.draw_series(points.iter().map(mark))?;
            }
            let end = points.last().map(|point| chart.backend_coord(point));
            ends.push(end.map_or(plot.1.end, |end| end.1));
        }
        self.write_names(area, plot.0.end, &ends, plot.1.start..plot.1.end)
    }

    /// Writes the names at the right, each near the end of its line, with a sample of the line.
    fn write_names(&self, area: &Area, right: i32, ends: &[i32], range: Range<i32>) -> Result<(), DrawError> {
        let scale = px(1);
        let mut places: Vec<i32> = ends.iter().map(|end| end / scale).collect();
        spread(&mut places, NAME_GAP, range.start / scale + 4, range.end / scale - 2);
        let x = right / scale + 6;
        let room = WIDTH - x - SAMPLE - 2;
        for (series, place) in self.series.iter().zip(places) {
            let color = palette::series(series.color);
            match series.way {
                Way::Points => {
                    let center = (px(x + SAMPLE / 2 - 2), px(place));
                    area.draw(&Circle::new(center, px(5), color.filled()))?;
                }
                _ => stroke(area, &[(x, place), (x + SAMPLE - 5, place)], 2.0, color)?,
            }
            write(area, &fitted(&series.name, room, SMALL_TEXT), (x + SAMPLE, place), SMALL_TEXT, INK)?;
        }
        Ok(())
    }
}

/// Returns the range itself, or a range around a single value.
fn exact(range: Range<f64>) -> Range<f64> {
    if range.end > range.start { range } else { range.start - 0.5..range.end + 0.5 }
}

/// Extends the range to 0 and a bit above the highest value.
fn from_nought(range: Range<f64>) -> Range<f64> {
    let low = range.start.min(0.0);
    let high = if range.end > low { range.end } else { low + 1.0 };
    low..high + 0.06 * (high - low)
}

/// Extends the range by a factor at both ends, for a logarithmic axis.
fn wide(range: Range<f64>) -> Range<f64> {
    let low = range.start.max(f64::MIN_POSITIVE);
    let high = range.end.max(low);
    // At least a factor of four in total, so that there are one or two ticks.
    let factor = (high / low).powf(0.12).max(2.0_f64.min(4.0 * low / high).max(1.15));
    low / factor..high * factor
}

/// Converts points to the corners of a step line.
fn steps(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut line = Vec::with_capacity(2 * points.len());
    for point in points {
        if let Some((_, y)) = line.last().copied() {
            line.push((point.0, y));
        }
        line.push(*point);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(series: Vec<Series>) -> LineChart {
        LineChart { x: "epoch".to_owned(), y: "loss".to_owned(), series, ..LineChart::default() }
    }

    #[test]
    fn a_chart_without_points_is_none() {
        assert_eq!(chart(Vec::new()).draw().unwrap(), None);
        assert_eq!(chart(vec![Series::new("a", 0, vec![(0.0, f64::NAN)])]).draw().unwrap(), None);
    }

    #[test]
    fn all_kinds_of_data_are_drawn() {
        let one = vec![(1.0, 0.5)];
        let constant = vec![(0.0, 0.0), (1.0, 0.0), (2.0, 0.0)];
        let falling: Vec<(f64, f64)> = (1..100).map(|x| (f64::from(x), 10.0 / f64::from(x))).collect();
        for (points, log) in
            [(one.clone(), false), (one, true), (constant, false), (falling.clone(), false), (falling, true)]
        {
            let mut chart = chart(vec![Series::new("first", 0, points.clone()), Series::new("second", 1, points)]);
            (chart.log_x, chart.log_y) = (log, log);
            chart.mark = Some((1.0, "best".to_owned()));
            let svg = chart.draw().unwrap().unwrap();
            assert!(svg.marks() >= 2, "{}", svg.inline("x"));
            assert!(!svg.inline("x").contains("NaN"));
        }
    }

    #[test]
    fn steps_hold_a_value_until_the_next() {
        assert_eq!(steps(&[(0.0, 1.0), (2.0, 3.0)]), [(0.0, 1.0), (2.0, 1.0), (2.0, 3.0)]);
    }
}
