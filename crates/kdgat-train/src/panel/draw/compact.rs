//! The panel on a small terminal: one line for each item, the most important first.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::teacher::waits;
use super::text::{self, bar};
use super::theme::Theme;
use super::{keys, losses};
use crate::panel::state::State;

/// Minimum number of rows to show the chart, too.
const CHART_FROM: u16 = 18;

/// Draws the panel on a small terminal.
pub fn draw(frame: &mut Frame, state: &State, theme: Theme) {
    let area = frame.area();
    let width = usize::from(area.width);
    let lines = lines(state, width, theme);
    let own_rows = (lines.len() as u16).min(area.height.saturating_sub(1));
    let chart_rows = if area.height >= CHART_FROM { area.height.saturating_sub(own_rows + 1) / 2 } else { 0 };
    let [own, chart, log, footer] = area.layout(&Layout::vertical([
        Constraint::Length(own_rows),
        Constraint::Length(chart_rows),
        Constraint::Fill(1),
        Constraint::Length(1),
    ]));
    frame.render_widget(Paragraph::new(lines), own);
    if chart_rows > 0 {
        losses::draw_chart(frame, chart, &state.losses, theme);
    }
    let first = state.lines.len().saturating_sub(usize::from(log.height));
    let said: Vec<Line> =
        state.lines.iter().skip(first).map(|line| Line::styled(line.as_str(), theme.quiet())).collect();
    frame.render_widget(Paragraph::new(said), log);
    frame.render_widget(keys(state, theme), footer);
}

fn lines(state: &State, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let (progress, now) = (&state.progress, state.elapsed);
    let left = |seconds: Option<f64>| seconds.map_or(String::new(), text::duration);
    let mut lines = vec![Line::from(vec![
        Span::styled(state.heading.what.clone(), theme.title()),
        Span::styled(format!("  {}", state.activity), theme.quiet()),
    ])];
    let epoch = format!("epoch {}/{}", progress.epoch + 1, progress.max_epochs);
    lines.push(progress_line(&epoch, progress.run_share(), &left(progress.run_left(now)), width, theme));
    if progress.steps > 1 {
        let step = format!("step {}/{}", progress.step, progress.steps);
        lines.push(progress_line(&step, progress.epoch_share(), &left(progress.epoch_left(now)), width, theme));
    }
    lines.push(loss_line(state, theme));
    lines.extend(memory_lines(state, width, theme));
    let shares = waits(&state.pulse, state.teacher.is_some()).into_iter();
    let shares: Vec<String> = shares.map(|(name, share)| format!("{name} {}", text::percent(share))).collect();
    lines.push(Line::raw(format!(
        "{} {}/s  {}",
        text::rate(state.pulse.graphs_per_second),
        state.unit,
        shares.join("  ")
    )));
    if let Some(teacher) = &state.teacher {
        let kept = text::percent(teacher.kept());
        lines.push(Line::raw(format!("teacher {}, {kept} of targets cached", teacher.mode)));
    }
    lines
}

fn progress_line(label: &str, share: f64, left: &str, width: usize, theme: Theme) -> Line<'static> {
    let note = if left.is_empty() { String::new() } else { format!("{left} left") };
    let room = width.saturating_sub(16 + 18);
    Line::from(vec![
        Span::raw(format!("{label:<16}")),
        Span::styled(bar(room, share), theme.progress()),
        Span::raw(format!(" {note:>17}")),
    ])
}

fn loss_line(state: &State, theme: Theme) -> Line<'static> {
    let losses = &state.losses;
    let training = losses.so_far.or(losses.last.as_ref().map(|last| last.train_loss));
    let mut spans = Vec::new();
    if let Some(loss) = training {
        spans.push(Span::styled(format!("train {}", text::loss(loss)), theme.training()));
    }
    if let Some(last) = &losses.last {
        spans.push(Span::styled(format!("  val {}", text::loss(last.val_loss)), theme.validation()));
    }
    if let Some((epoch, loss)) = losses.best_validation() {
        spans.push(Span::raw(format!("  best {} ({})", text::loss(loss), epoch + 1)));
    }
    Line::from(spans)
}

fn memory_lines(state: &State, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let memory = &state.memory;
    let line = |name: &str, peak: u64, limit: u64| {
        let numbers = format!("{} of {}", text::bytes(peak), text::bytes(limit));
        let room = width.saturating_sub(8 + 1 + numbers.chars().count());
        Line::from(vec![
            Span::raw(format!("{name:<8}")),
            Span::styled(bar(room, peak as f64 / limit.max(1) as f64), theme.training()),
            Span::raw(format!(" {numbers}")),
        ])
    };
    let mut lines = Vec::new();
    if let Some(gpu) = &memory.gpu {
        lines.push(line("GPU", gpu.peak_bytes, memory.gpu_limit()));
    }
    lines.push(line("memory", memory.host.peak_bytes, memory.host.limit_bytes));
    lines
}
