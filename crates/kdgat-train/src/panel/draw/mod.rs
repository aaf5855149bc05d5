//! The panel on a terminal of any size.
//!
//! ```text
//! model and dataset                                      activity of the loop
//! epoch  ███████                                         rate, time left
//! step   ███                                             rate, time left
//!
//! losses by epoch (chart)          memory by component against the limit
//! and their parts (table)          teacher's thread
//!                                  speed, and shares of the time
//! the last lines of the log
//! keys
//! ```
//!
//! A small terminal gets one line for each of these: see [`compact`].

mod compact;
mod losses;
mod memory;
mod teacher;
mod theme;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph};

pub use theme::Theme;

use super::state::{Progress, State};
use super::text;

/// Minimum size for two columns, in cells.
const WIDE: (u16, u16) = (76, 20);
/// Cells between the columns.
const GAP: u16 = 2;

/// Draws the whole panel.
pub fn draw(frame: &mut Frame, state: &State, theme: Theme) {
    let area = frame.area();
    if area.width < WIDE.0 || area.height < WIDE.1 {
        return compact::draw(frame, state, theme);
    }
    let counts_steps = state.progress.steps > 1;
    let log_rows = (area.height / 5).clamp(3, 12);
    let [header, epochs, steps, _, body, log, footer] = area.layout(&Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(u16::from(counts_steps)),
        Constraint::Length(u16::from(area.height >= 28)),
        Constraint::Min(0),
        Constraint::Length(log_rows),
        Constraint::Length(1),
    ]));
    draw_header(frame, header, state, theme);
    draw_bar(frame, epochs, &epoch_row(&state.progress, state.elapsed), theme);
    draw_bar(frame, steps, &step_row(&state.progress, state.elapsed), theme);
    let [left, _, right] =
        body.layout(&Layout::horizontal([Constraint::Percentage(50), Constraint::Length(GAP), Constraint::Fill(1)]));
    losses::draw(frame, left, state, theme);
    let teacher_rows = state.teacher.as_ref().map_or(0, |_| teacher::ROWS);
    let [memory, teacher, speed] = right.layout(&Layout::vertical([
        Constraint::Fill(1),
        Constraint::Length(teacher_rows),
        Constraint::Length(teacher::SPEED_ROWS),
    ]));
    memory::draw(frame, memory, &state.memory, theme);
    if let Some(of) = &state.teacher {
        teacher::draw(frame, teacher, of, theme);
    }
    teacher::draw_speed(frame, speed, state, theme);
    draw_log(frame, log, state, theme);
    frame.render_widget(keys(state, theme), footer);
}

/// Draws a title over a thin line; returns the area below it.
fn titled(frame: &mut Frame, area: Rect, title: Line, theme: Theme) -> Rect {
    let block = Block::new().borders(Borders::TOP).border_style(theme.quiet()).title(title);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    inner
}

fn heading(text: &'static str, theme: Theme) -> Line<'static> {
    Line::from(Span::styled(format!("{text} "), theme.title()))
}

fn draw_header(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let doing = format!("{} · {}", state.activity, text::duration(state.elapsed));
    let room = usize::from(area.width).saturating_sub(doing.chars().count() + state.heading.what.chars().count() + 4);
    let left = Line::from(vec![
        Span::styled(state.heading.what.clone(), theme.title()),
        Span::styled(format!("  {}", text::tail(&state.heading.run, room)), theme.quiet()),
    ]);
    frame.render_widget(left, area);
    frame.render_widget(Line::from(doing).right_aligned(), area);
}

/// A progress bar with its label and a note.
struct BarRow {
    label: String,
    share: f64,
    note: String,
}

fn epoch_row(progress: &Progress, now: f64) -> BarRow {
    let (epoch, all) = (progress.epoch + 1, progress.max_epochs);
    let each = progress.epoch_seconds(now).map(|seconds| format!("{} each", text::duration(seconds)));
    let left = progress.run_left(now).map(|seconds| format!("at most {} left", text::duration(seconds)));
    BarRow {
        label: format!("epoch {epoch}/{all}"),
        share: progress.run_share(),
        note: [each, left].into_iter().flatten().collect::<Vec<_>>().join(", "),
    }
}

fn step_row(progress: &Progress, now: f64) -> BarRow {
    let rate = progress.steps_per_second(now).map(|rate| format!("{} steps/s", text::rate(rate)));
    let left = progress.epoch_left(now).map(|seconds| format!("{} left", text::duration(seconds)));
    BarRow {
        label: format!("step  {}/{}", text::grouped(progress.step), text::grouped(progress.steps)),
        share: progress.epoch_share(),
        note: [rate, left].into_iter().flatten().collect::<Vec<_>>().join(", "),
    }
}

fn draw_bar(frame: &mut Frame, area: Rect, row: &BarRow, theme: Theme) {
    const LABEL: u16 = 18;
    const NOTE: u16 = 44;
    let width = area.width.saturating_sub(LABEL + NOTE + 2);
    let line = Line::from(vec![
        Span::raw(format!("{:<1$}", row.label, usize::from(LABEL))),
        Span::styled("▕", theme.quiet()),
        Span::styled(text::bar(usize::from(width), row.share), theme.progress()),
        Span::styled("▏", theme.quiet()),
        Span::raw(format!("{:>5} {}", text::percent(row.share), row.note)),
    ]);
    frame.render_widget(line, area);
}

fn draw_log(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let inner = titled(frame, area, heading("log", theme), theme);
    let first = state.lines.len().saturating_sub(usize::from(inner.height));
    let lines: Vec<Line> = state.lines.iter().skip(first).map(|line| Line::raw(line.as_str())).collect();
    frame.render_widget(Paragraph::new(lines), inner);
}

fn keys(state: &State, theme: Theme) -> Line<'static> {
    if state.stopping {
        return Line::styled("stopping after this step, saving; Ctrl-C again stops at once", theme.alert());
    }
    Line::styled("q or Ctrl-C: save and stop; --resume continues", theme.quiet())
}

#[cfg(test)]
mod tests;
