//! Content of the panel at several sizes, with and without colours.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::Color;

use super::*;
use crate::console::{Heading, Pulse};
use crate::metrics::EpochMetrics;
use crate::panel::memory::{Component, Gpu, Host, MemoryPlan};

const MIB: u64 = 1 << 20;

fn metrics(epoch: u64) -> EpochMetrics {
    let loss = 1.0 / (epoch + 1) as f64;
    EpochMetrics {
        epoch,
        train_loss: loss,
        val_loss: 1.1 * loss,
        parts: vec![
            ("task_loss", 0.75 * loss, 0.8 * loss),
            ("kd_loss", 1.25 * loss, 1.4 * loss),
            ("none", f64::NAN, 0.0),
        ],
        lr: 1e-3,
        graphs_per_second: 1234.0,
        peak_memory_bytes: 80 * MIB,
        seconds: 2.0,
        steps: 120,
    }
}

/// A run in the middle of its fifth epoch.
fn state() -> State {
    let heading =
        Heading { what: "vgae student on small".into(), run: "runs/small/vgae_student_autoencoder_kd/1".into() };
    let mut state = State { heading, unit: "graphs", activity: "training", ..State::default() };
    for epoch in 0..5 {
        state.elapsed = 3.0 * epoch as f64;
        state.start_epoch(epoch, 50, 120, 0);
        if epoch < 4 {
            state.finish_epoch(&metrics(epoch), true);
        }
    }
    state.elapsed = 13.0;
    let pulse = Pulse {
        step: 60,
        graphs_per_second: 12_345.0,
        steps_seconds: 9.0,
        optimizer_seconds: 0.5,
        data_wait_seconds: 0.2,
        teacher_wait_seconds: 0.8,
    };
    state.advance(pulse);
    let columns =
        ["teacher_mode", "teacher_bytes", "teacher_forward_ms", "copy_ms", "cache_hit_rows", "cache_miss_rows"];
    let values = ["forward", "12582912", "250", "100", "3000", "1000"].map(str::to_owned);
    state.row(0.2345, &columns, &values);
    let component = |name, place, now, peak| Component { name, place, now_bytes: now * MIB, peak_bytes: peak * MIB };
    state.memory.host = Host {
        components: vec![
            component("data", 1, 4, 4),
            component("parameters", 2, 6, 6),
            component("optimizer", 4, 12, 10),
            component("activations", 5, 1, 60),
            component("teacher", 6, 20, 20),
        ],
        now_bytes: 43 * MIB,
        peak_bytes: 100 * MIB,
        kept_bytes: 30 * MIB,
        process_bytes: 500 * MIB,
        limit_bytes: 200 * MIB,
    };
    state.memory.plan = Some(MemoryPlan { limit_bytes: 200 * MIB, expected_bytes: 120 * MIB });
    (1..=4).for_each(|line| state.say(&format!("line {line} of the log")));
    state
}

fn drawn(state: &State, (width, height): (u16, u16), colors: bool) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, state, Theme::new(colors))).unwrap();
    terminal.backend().buffer().clone()
}

fn rows(buffer: &Buffer) -> Vec<String> {
    let width = usize::from(buffer.area.width);
    buffer.content.chunks(width).map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>()).collect()
}

fn text(state: &State, size: (u16, u16)) -> String {
    rows(&drawn(state, size, true)).join("\n")
}

/// Number of filled cells in the row that contains `name`, after the name.
fn bar_cells(text: &str, name: &str) -> usize {
    let row = text.lines().find(|row| row.contains(name)).unwrap_or_else(|| panic!("no {name} in\n{text}"));
    row.split(name).nth(1).unwrap().chars().filter(|sign| "█▉▊▋▌▍▎▏".contains(*sign)).count()
}

#[test]
fn everything_is_on_a_usual_terminal() {
    let text = text(&state(), (100, 30));
    for expected in [
        "vgae student on small",
        "runs/small/vgae_student_autoencoder_kd/1",
        "training · 13 s",
        "epoch 5/50",
        "step  60/120",
        "60.0 steps/s, 1.0 s left",
        "3.0 s each, at most 2 min 17 s left",
        "this epoch       0.23450",
        "last epoch       0.25000 0.27500 0.27500",
        " task_loss",
        " kd_loss",
        "best 0.27500 in epoch 4",
        "host, peak 100 MiB",
        "limit 200 MiB",
        "┊ plan 120 MiB",
        "activations",
        "forward; busy",
        "forwards",
        "3,000 cached, 1,000 new (75 %)",
        "12,345 graphs/s",
        "data wait",
        "8.0 %",
        "line 4 of the log",
        "q or Ctrl-C: save and stop",
    ] {
        assert!(text.contains(expected), "'{expected}' is not in\n{text}");
    }
    assert!(!text.contains("none"), "a part without a value is shown:\n{text}");
}

#[test]
fn bars_are_proportional_to_their_numbers() {
    let text = text(&state(), (120, 40));
    let of_host = text.lines().position(|row| row.contains("host, peak")).unwrap();
    let stack = text.lines().nth(of_host + 1).unwrap();
    let filled = stack.chars().filter(|sign| *sign == '█').count() as f64;
    let inside = filled + stack.chars().filter(|sign| "·┊".contains(*sign)).count() as f64;
    assert!((filled / inside - 0.5).abs() < 0.02, "100 of 200 MiB are {filled} of {inside} cells");
    let expected = stack.chars().take_while(|sign| *sign != '┊').filter(|sign| "█·".contains(*sign)).count() as f64;
    assert!((expected / inside - 0.6).abs() < 0.02, "120 of 200 MiB are marked at {expected} of {inside} cells");
    let (activations, teacher) = (bar_cells(&text, "activations"), bar_cells(&text, "teacher     "));
    assert!(activations.abs_diff(3 * teacher) <= 3, "60 MiB are {activations} cells and 20 MiB {teacher}");
}

#[test]
fn without_colours_there_are_none_and_parts_are_still_distinct() {
    let colored = |buffer: &Buffer| {
        buffer.content.iter().filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset).count()
    };
    for size in [(100, 30), (40, 10)] {
        assert!(colored(&drawn(&state(), size, true)) > 0);
        let plain = drawn(&state(), size, false);
        assert_eq!(colored(&plain), 0, "at {size:?}");
    }
    let text = rows(&drawn(&state(), (100, 30), false)).join("\n");
    let stack = text.lines().skip_while(|row| !row.contains("host, peak")).nth(1).unwrap();
    for sign in ["+", "▓", "▒", "█", "#"] {
        assert!(stack.contains(sign), "the part of '{sign}' is not in '{stack}'");
    }
}

#[test]
fn small_terminals_show_what_matters_most() {
    let narrow = text(&state(), (40, 10));
    let words = ["epoch 5/50", "step 60/120", "train 0.23450", "val 0.27500", "memory", "200 MiB", "graphs/s", "q or"];
    for expected in words {
        assert!(narrow.contains(expected), "'{expected}' is not in\n{narrow}");
    }
    let usual = text(&state(), (80, 24));
    for expected in ["epoch 5/50", "last epoch", "activations", "the rest", "forwards", "graphs/s", "line 4"] {
        assert!(usual.contains(expected), "'{expected}' is not in\n{usual}");
    }
}

#[test]
fn unusual_sizes_and_states_do_not_panic() {
    let mut odd = state();
    odd.losses.epochs = vec![(0, f64::NAN, f64::INFINITY), (1, -1.0, 0.0), (2, 1e30, 1e-30)];
    odd.memory.host.limit_bytes = 0;
    odd.pulse.graphs_per_second = f64::NAN;
    odd.heading.what = "ü".repeat(300);
    odd.say(&"字".repeat(500));
    let single = State {
        losses: super::super::state::Losses { epochs: vec![(0, 0.5, 0.5)], ..Default::default() },
        ..State::default()
    };
    for state in [&State::default(), &state(), &odd, &single] {
        for width in (1..=130).step_by(3).chain([500]) {
            for height in (1..=50).chain([300]) {
                drawn(state, (width, height), height % 2 == 0);
            }
        }
    }
}

#[test]
fn the_gpu_is_above_the_host() {
    let mut state = state();
    state.memory.plan = Some(MemoryPlan { limit_bytes: 8 << 30, expected_bytes: 5 << 30 });
    let gib = |count: u64| count << 30;
    state.memory.gpu = Some(Gpu {
        now_bytes: gib(1),
        peak_bytes: gib(4),
        reserved_bytes: gib(3),
        used_bytes: gib(6),
        total_bytes: gib(24),
    });
    let text = text(&state, (100, 36));
    for expected in [
        "GPU, peak 4.00 GiB",
        "limit 8.00 GiB",
        "now 1.00 GiB, cached 2.00 GiB",
        "card 6.00 GiB of 24 GiB",
        "host, peak",
    ] {
        assert!(text.contains(expected), "'{expected}' is not in\n{text}");
    }
    assert_eq!(text.matches("┊ plan").count(), 1, "the plan is that of the GPU:\n{text}");
}

#[test]
fn a_stop_is_acknowledged() {
    let mut state = state();
    state.stopping = true;
    for size in [(100, 30), (40, 10)] {
        assert!(text(&state, size).contains("stopping after this step"));
    }
}

#[test]
fn without_a_teacher_memory_gets_its_rows() {
    let mut state = state();
    state.teacher = None;
    let text = text(&state, (100, 30));
    assert!(!text.contains("forwards") && !text.contains("teacher wait"), "{text}");
    assert!(text.contains("data wait"));
}

#[test]
fn a_loop_that_counts_no_steps_has_no_bar_for_them() {
    let mut state = state();
    state.start_epoch(5, 50, 1, 0);
    assert!(!text(&state, (100, 30)).contains("step "));
}
