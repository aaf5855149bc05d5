//! Memory: the peak by component as one bar against the limit, and a bar for each component against the peak.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::text::{self, bar, cells};
use super::theme::Theme;
use super::{heading, titled};
use crate::panel::memory::{Component, Gpu, Memory};

const NAME: usize = 12;
const NUMBER: usize = 10;

/// Draws as many rows as fit: first the GPU's, if there is one, then the host's.
pub fn draw(frame: &mut Frame, area: Rect, memory: &Memory, theme: Theme) {
    let inner = titled(frame, area, heading("memory of tensors", theme), theme);
    let (width, height) = (usize::from(inner.width), usize::from(inner.height));
    let mut lines = memory.gpu.as_ref().map_or(Vec::new(), |gpu| gpu_lines(memory, gpu, width, theme));
    let on_gpu = memory.gpu.is_some();
    lines.extend(host_lines(memory, on_gpu, width, theme));
    let rows = component_lines(memory, width, height.saturating_sub(lines.len() + 1), theme);
    if !rows.is_empty() {
        let names = format!("{:>1$}{2:>NUMBER$}", "at peak", width.saturating_sub(NUMBER), "now");
        lines.push(Line::styled(names, theme.quiet()));
    }
    lines.extend(rows);
    frame.render_widget(Paragraph::new(lines), inner);
}

/// Colour index and share of the limit of each part of a device's bar.
type Parts = Vec<(usize, f64)>;

/// A bar whose right end is the limit; the expected peak of the largest batch is marked.
fn stacked(parts: &Parts, expected: Option<f64>, width: usize, theme: Theme) -> Line<'static> {
    let room = width.saturating_sub(2);
    let shares: Vec<f64> = parts.iter().map(|(_, share)| *share).collect();
    let counts = cells(room, &shares);
    let mut spans = vec![Span::styled("▕", theme.quiet())];
    for ((place, _), count) in parts.iter().zip(&counts) {
        let (sign, style) = theme.fill(*place);
        spans.push(Span::styled(sign.repeat(*count), style));
    }
    let filled: usize = counts.iter().sum();
    let mut rest = vec!['·'; room - filled.min(room)];
    let mark = expected.map(|share| (share.clamp(0.0, 1.0) * room as f64).round() as usize);
    if let Some(cell) = mark.and_then(|mark| mark.checked_sub(filled)).and_then(|place| rest.get_mut(place)) {
        *cell = '┊';
    }
    spans.push(Span::styled(rest.into_iter().collect::<String>(), theme.quiet()));
    spans.push(Span::styled("▏", theme.quiet()));
    Line::from(spans)
}

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// A line with text at both edges.
fn pair(left: String, right: &str, width: usize) -> Line<'static> {
    let room = width.saturating_sub(left.chars().count());
    Line::raw(format!("{left}{right:>room$}"))
}

fn host_lines(memory: &Memory, on_gpu: bool, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let host = &memory.host;
    let limit = host.limit_bytes;
    // Components are in the allocator's fixed order, so their colours never change.
    let parts = host.components.iter().map(|component| (component.place, share(component.peak_bytes, limit))).collect();
    let expected = memory.plan.as_ref().filter(|_| !on_gpu).map(|plan| plan.expected_bytes);
    let planned = expected.map_or(String::new(), |bytes| format!(" ┊ plan {}", text::bytes(bytes)));
    vec![
        pair(format!("host, peak {}", text::bytes(host.peak_bytes)), &format!("limit {}", text::bytes(limit)), width),
        stacked(&parts, expected.map(|bytes| share(bytes, limit)), width, theme),
        pair(format!("now {}, cached {}", text::bytes(host.now_bytes), text::bytes(host.kept_bytes)), &planned, width),
    ]
}

fn gpu_lines(memory: &Memory, gpu: &Gpu, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let limit = memory.gpu_limit();
    let kept = gpu.reserved_bytes.saturating_sub(gpu.now_bytes);
    let expected = memory.plan.as_ref().map(|plan| plan.expected_bytes);
    let parts = vec![(5, share(gpu.peak_bytes, limit))];
    let planned = expected.map_or(String::new(), |bytes| format!(" ┊ plan {}", text::bytes(bytes)));
    let used = format!("card {} of {}", text::bytes(gpu.used_bytes), text::bytes(gpu.total_bytes));
    vec![
        pair(format!("GPU, peak {}", text::bytes(gpu.peak_bytes)), &format!("limit {}", text::bytes(limit)), width),
        stacked(&parts, expected.map(|bytes| share(bytes, limit)), width, theme),
        pair(format!("now {}, cached {}", text::bytes(gpu.now_bytes), text::bytes(kept)), &planned, width),
        pair(used, "", width),
    ]
}

/// Rows of the largest components; those that do not fit are added up.
fn component_lines(memory: &Memory, width: usize, rows: usize, theme: Theme) -> Vec<Line<'static>> {
    let mut components = memory.host.components.clone();
    components.sort_by_key(|component| std::cmp::Reverse((component.peak_bytes, component.now_bytes)));
    if rows == 0 {
        return Vec::new();
    }
    if components.len() > rows {
        let rest = components.split_off(rows - 1);
        let sum = |of: fn(&Component) -> u64| rest.iter().map(of).sum();
        components.push(Component {
            name: "the rest",
            place: 0,
            now_bytes: sum(|component| component.now_bytes),
            peak_bytes: sum(|component| component.peak_bytes),
        });
    }
    let room = width.saturating_sub(NAME + 2 * NUMBER + 3);
    let line = |component: &Component| {
        let (sign, style) = theme.fill(component.place);
        let length = bar(room, share(component.peak_bytes, memory.host.peak_bytes));
        Line::from(vec![
            Span::styled(sign, style),
            Span::raw(format!(" {:<NAME$}", component.name)),
            Span::styled(length, style),
            Span::raw(format!(" {:>NUMBER$}", text::bytes(component.peak_bytes))),
            Span::raw(format!("{:>NUMBER$}", text::bytes(component.now_bytes))),
        ])
    };
    components.iter().map(line).collect()
}
