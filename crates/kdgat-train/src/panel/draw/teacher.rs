//! Work of the teacher's thread, and shares of the loop's time.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::text::{self, bar};
use super::theme::Theme;
use super::{heading, titled};
use crate::console::Pulse;
use crate::panel::state::State;
use crate::panel::teacher::TeacherState;

/// Rows of the teacher's block, title included.
pub const ROWS: u16 = 5;
/// Rows of the speed block, title included.
pub const SPEED_ROWS: u16 = 4;

const NAME: usize = 13;
const PERCENT: usize = 7;

/// Draws the teacher's block.
pub fn draw(frame: &mut Frame, area: Rect, teacher: &TeacherState, theme: Theme) {
    let mut title = heading("teacher", theme);
    title.push_span(Span::raw(format!("{}; {} ", teacher.mode, teacher.doing())));
    let inner = titled(frame, area, title, theme);
    let width = usize::from(inner.width);
    let weights = format!("weights {}, on device {}", text::bytes(teacher.bytes), text::bytes(teacher.device_bytes));
    let kept = format!(
        "targets {} cached, {} new ({})",
        text::grouped(teacher.hits),
        text::grouped(teacher.misses),
        text::percent(teacher.kept())
    );
    let lines = vec![
        share_line("forwards", teacher.forward, width, theme),
        copies(teacher, width, theme),
        Line::raw(kept),
        Line::raw(weights),
    ];
    frame.render_widget(Paragraph::new(lines), inner);
}

fn copies(teacher: &TeacherState, width: usize, theme: Theme) -> Line<'static> {
    if teacher.copy_exposed <= 0.0 {
        return share_line("copies", teacher.copy, width, theme);
    }
    let note = format!(" ({} exposed)", text::percent(teacher.copy_exposed));
    let mut line = share_line("copies", teacher.copy, width.saturating_sub(note.chars().count()), theme);
    line.push_span(Span::styled(note, theme.quiet()));
    line
}

/// A line with a name, a bar and the share in per cent.
fn share_line(name: &str, share: f64, width: usize, theme: Theme) -> Line<'static> {
    let room = width.saturating_sub(NAME + PERCENT + 1);
    Line::from(vec![
        Span::raw(format!("{name:<NAME$}")),
        Span::styled(bar(room, share), theme.training()),
        Span::raw(format!("{:>1$}", text::percent(share), PERCENT)),
    ])
}

/// Draws the speed block.
pub fn draw_speed(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let pulse = &state.pulse;
    let mut title = heading("speed", theme);
    title.push_span(Span::raw(format!("{} {}/s ", text::rate(pulse.graphs_per_second), state.unit)));
    let inner = titled(frame, area, title, theme);
    let width = usize::from(inner.width);
    let rows = waits(pulse, state.teacher.is_some());
    let lines: Vec<Line> = rows.into_iter().map(|(name, share)| share_line(name, share, width, theme)).collect();
    frame.render_widget(Paragraph::new(lines), inner);
}

/// Shares of the loop's time besides forward and backward, by name.
pub fn waits(pulse: &Pulse, has_teacher: bool) -> Vec<(&'static str, f64)> {
    let all = (pulse.steps_seconds + pulse.data_wait_seconds + pulse.teacher_wait_seconds).max(1e-9);
    if pulse.steps_seconds <= 0.0 {
        return Vec::new();
    }
    let mut waits = vec![("data wait", pulse.data_wait_seconds / all)];
    if has_teacher {
        waits.push(("teacher wait", pulse.teacher_wait_seconds / all));
    }
    waits.push(("optimiser", pulse.optimizer_seconds / all));
    waits
}
