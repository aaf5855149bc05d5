//! Losses: a chart by epoch, and the parts of the last epoch as numbers.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Chart, Dataset, GraphType, Paragraph};

use super::text;
use super::theme::Theme;
use super::titled;
use crate::panel::state::{Losses, State};

/// Ratio of the largest to the smallest loss above which the chart is logarithmic.
const LOGARITHMIC: f64 = 30.0;
/// Minimum number of rows of a chart.
const CHART_ROWS: u16 = 5;
/// Widths of the table's columns: a name and a number.
const NAME: usize = 16;
const NUMBER: usize = 8;

/// Draws the chart above the table, or only the table if there is no room for both.
pub fn draw(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let losses = &state.losses;
    let inner = titled(frame, area, legend(theme), theme);
    let table = table(losses, theme);
    let room = inner.height.saturating_sub(CHART_ROWS);
    let table_rows = (table.len() as u16).min(room.max(3));
    let [chart, below] = inner.layout(&Layout::vertical([Constraint::Fill(1), Constraint::Length(table_rows)]));
    draw_chart(frame, chart, losses, theme);
    frame.render_widget(Paragraph::new(table), below);
}

fn legend(theme: Theme) -> Line<'static> {
    Line::from(vec![
        Span::styled("losses  ", theme.title()),
        Span::styled("⣀⣀ training  ", theme.training()),
        Span::styled("•• validation ", theme.validation()),
    ])
}

/// Draws training and validation loss by epoch.
pub fn draw_chart(frame: &mut Frame, area: Rect, losses: &Losses, theme: Theme) {
    let values = || losses.epochs.iter().flat_map(|(_, training, validation)| [*training, *validation]);
    let finite = || values().filter(|value| value.is_finite());
    let (low, high) = (finite().fold(f64::INFINITY, f64::min), finite().fold(f64::NEG_INFINITY, f64::max));
    if area.height < CHART_ROWS || area.width < 20 || low > high {
        let text = if low > high { "the first epoch is not done yet" } else { "" };
        return frame.render_widget(Line::styled(text, theme.quiet()), area);
    }
    let logarithmic = low > 0.0 && high / low > LOGARITHMIC;
    let scaled = |value: f64| if logarithmic { value.log10() } else { value };
    let points = |of: &dyn Fn(&(u64, f64, f64)) -> f64| -> Vec<(f64, f64)> {
        let points = losses.epochs.iter().map(|epoch| ((epoch.0 + 1) as f64, scaled(of(epoch))));
        points.filter(|(_, value)| value.is_finite()).collect()
    };
    let (training, validation) = (points(&|epoch| epoch.1), points(&|epoch| epoch.2));
    let kind = if losses.epochs.len() > 1 { GraphType::Line } else { GraphType::Scatter };
    let dataset = |marker, style, data| Dataset::default().marker(marker).graph_type(kind).style(style).data(data);
    let datasets = vec![
        dataset(Marker::Braille, theme.training(), &training),
        dataset(Marker::Dot, theme.validation(), &validation),
    ];
    let first = losses.epochs.first().map_or(1, |epoch| epoch.0 + 1);
    let last = losses.epochs.last().map_or(1, |epoch| epoch.0 + 1);
    let mut bounds = [scaled(low), scaled(high)];
    if bounds[1] - bounds[0] < 1e-9 * bounds[1].abs().max(1e-9) {
        bounds = [bounds[0] - 0.5 * bounds[0].abs().max(1e-6), bounds[1] + 0.5 * bounds[1].abs().max(1e-6)];
    }
    let value_at = |place: f64| if logarithmic { 10f64.powf(place) } else { place };
    let middle = value_at(f64::midpoint(bounds[0], bounds[1]));
    let labels = [value_at(bounds[0]), middle, value_at(bounds[1])].map(|value| format!("{:>8}", text::loss(value)));
    let epochs = [Axis::default().bounds([first as f64, last.max(first + 1) as f64]), Axis::default().bounds(bounds)];
    let [across, up] = epochs.map(|axis| axis.style(theme.quiet()));
    let chart = Chart::new(datasets)
        .x_axis(across.labels([first.to_string(), format!("epoch {last}")]))
        .y_axis(up.labels(labels))
        .legend_position(None);
    frame.render_widget(chart, area);
}

/// Rows for the total and for each part of the loss that the run has.
fn table(losses: &Losses, theme: Theme) -> Vec<Line<'static>> {
    let numbers = |values: [f64; 3]| values.map(|value| format!("{:>NUMBER$}", text::loss(value)));
    let row = |name: &str, values: [f64; 3]| {
        let [training, validation, best] = numbers(values);
        Line::from(vec![
            Span::raw(format!("{name:<NAME$}")),
            Span::styled(training, theme.training()),
            Span::styled(validation, theme.validation()),
            Span::raw(best),
        ])
    };
    let mut lines = vec![best(losses, theme)];
    let header = ["train", "val", "best"].map(|name| format!("{name:>NUMBER$}")).concat();
    lines.push(Line::styled(format!("{:NAME$}{header}", ""), theme.quiet()));
    if let Some(mean) = losses.so_far {
        lines.push(row("this epoch", [mean, f64::NAN, f64::NAN]));
    }
    let Some(last) = &losses.last else { return lines };
    let best = losses.best_validation().map_or(f64::NAN, |(_, loss)| loss);
    lines.push(row("last epoch", [last.train_loss, last.val_loss, best]));
    for (name, training, validation) in last.parts.iter().filter(|(_, training, _)| training.is_finite()) {
        let of_best = losses.best.as_ref().and_then(|best| best.parts.iter().find(|part| part.0 == *name));
        lines.push(row(&format!(" {name}"), [*training, *validation, of_best.map_or(f64::NAN, |part| part.2)]));
    }
    lines
}

/// Line with the best epoch and the number of epochs since then.
fn best(losses: &Losses, theme: Theme) -> Line<'static> {
    let Some((epoch, loss)) = losses.best_validation() else { return Line::raw("") };
    let mut text = format!("best {} in epoch {}", text::loss(loss), epoch + 1);
    if let Some(since) = losses.epochs_since_best().filter(|since| *since > 0) {
        text += &format!("; none better for {since} of {}", losses.patience);
    }
    Line::styled(text, theme.quiet())
}
