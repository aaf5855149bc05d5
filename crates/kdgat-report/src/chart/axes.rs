//! Two numeric axes with a grid and margins, shared by all charts that have them.

use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::palette::{AXIS, GRID, INK};
use super::{Area, DrawError, SMALL_TEXT, TEXT, px, short, text_style, write};

/// Margin for the numbers of the vertical axis.
const LEFT: i32 = 46;
/// Margin for the numbers and the name of the horizontal axis.
const BOTTOM: i32 = 42;
/// Margin for the name of the vertical axis.
const TOP: i32 = 30;

/// A chart before its axes are drawn.
pub type Plot<'a, 'b, X, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>;

/// Creates a chart builder with margins for the axes, and `right` for names at the right.
pub fn builder<'a, 'b>(area: &'a Area<'b>, right: i32) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut builder = ChartBuilder::on(area);
    builder.margin_top(px(TOP)).margin_right(px(right)).margin_left(px(2)).margin_bottom(px(2));
    builder.x_label_area_size(px(BOTTOM)).y_label_area_size(px(LEFT));
    builder
}

/// Names and labels of a chart's axes.
#[derive(Debug, Clone, Copy)]
pub struct Axes<'a> {
    /// Name of the horizontal axis, with unit.
    pub x: &'a str,
    /// Name of the vertical axis, with unit.
    pub y: &'a str,
    /// Approximate number of labels on the horizontal axis.
    pub x_labels: usize,
    /// Height of the whole chart.
    pub height: i32,
}

impl Axes<'_> {
    /// Draws axes, grid, labels and names.
    pub fn draw<X, Y>(&self, area: &Area, chart: &mut Plot<'_, '_, X, Y>) -> Result<(), DrawError>
    where
        X: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let small = |horizontal, vertical| text_style(SMALL_TEXT, AXIS, horizontal, vertical);
        chart
            .configure_mesh()
            .x_labels(self.x_labels)
            .y_labels(6)
            .max_light_lines(0)
            .bold_line_style(GRID.stroke_width(px(1) as u32))
            .axis_style(AXIS.stroke_width(px(1) as u32))
            .x_label_style(small(HPos::Center, VPos::Top))
            .y_label_style(small(HPos::Right, VPos::Center))
            .x_label_formatter(&|value| short(*value))
            .y_label_formatter(&|value| short(*value))
            .set_all_tick_mark_size(px(4))
            .draw()?;
        // The name of the vertical axis is above it, not rotated, for readability.
        write(area, self.y, (4, 12), TEXT, INK)?;
        let plot = chart.plotting_area().get_pixel_range();
        let middle = (plot.0.start + plot.0.end) / 2;
        area.draw_text(self.x, &text_style(TEXT, INK, HPos::Center, VPos::Center), (middle, px(self.height - 10)))
    }
}
