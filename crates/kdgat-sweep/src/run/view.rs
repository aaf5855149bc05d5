//! Progress display of a sweep: a live table on a terminal, plain lines elsewhere.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::attempt::Attempt;
use crate::plan::{Plan, Task};
use crate::state::{Status, TaskState, results};

/// Interval at which the progress of running tasks is read.
const REFRESH: Duration = Duration::from_millis(500);

/// Shows the progress of a sweep.
pub struct View {
    live: Option<Live>,
    metric: String,
}

struct Live {
    area: MultiProgress,
    total: ProgressBar,
    tasks: BTreeMap<String, ProgressBar>,
    drawn: Instant,
}

impl View {
    pub fn new(plan: &Plan) -> Self {
        let live = std::io::stderr().is_terminal().then(|| {
            let area = MultiProgress::new();
            let total = area.add(ProgressBar::new(plan.tasks.len() as u64));
            // The templates are constants; the default style is a fallback that is never used.
            let style = ProgressStyle::with_template("{prefix} [{bar:24}] {pos}/{len} tasks  {elapsed}  {msg}");
            total.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            total.set_prefix(plan.name.clone());
            Live { area, total, tasks: BTreeMap::new(), drawn: Instant::now() }
        });
        Self { live, metric: plan.metric.clone() }
    }

    /// Prints a permanent line.
    pub fn line(&self, text: &str) {
        match &self.live {
            // A closed terminal must not end the sweep.
            Some(live) => live.area.suspend(|| eprintln!("{text}")),
            None => eprintln!("{text}"),
        }
    }

    pub fn started(&mut self, task: &Task, attempts: u32) {
        let again = if attempts > 1 { format!(", attempt {attempts}") } else { String::new() };
        match &mut self.live {
            Some(live) => {
                let bar =
                    live.area.insert_before(&live.total, ProgressBar::new(task.config.training.max_epochs as u64));
                let template = "  {prefix} [{bar:16}] {pos}/{len} epochs  {elapsed}  {msg}";
                let plain = "  {prefix} {spinner} {elapsed}";
                let style = ProgressStyle::with_template(if task.kind.stage().is_some() { template } else { plain });
                bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
                bar.set_prefix(format!("{} {}{again}", task.step, task.label));
                live.tasks.insert(task.id.clone(), bar);
            }
            None => eprintln!("started  {} {}{again}", task.step, task.label),
        }
    }

    pub fn ended(&mut self, task: &Task, state: &TaskState) {
        if let Some(bar) = self.live.as_mut().and_then(|live| live.tasks.remove(&task.id)) {
            bar.finish_and_clear();
        }
        self.line(&end_line(&self.metric, task, state));
    }

    /// Updates the progress of the running tasks.
    pub fn refresh(&mut self, running: &[&Attempt], statuses: &BTreeMap<&str, Status>) {
        let Some(live) = self.live.as_mut().filter(|live| live.drawn.elapsed() >= REFRESH) else { return };
        live.drawn = Instant::now();
        live.total.set_position(statuses.values().filter(|status| status.is_settled()).count() as u64);
        let failed = statuses.values().filter(|status| matches!(status, Status::Failed | Status::Blocked)).count();
        live.total.set_message(if failed > 0 { format!("{failed} failed") } else { String::new() });
        for attempt in running {
            let Some(bar) = live.tasks.get(&attempt.task.id) else { continue };
            // A file that cannot be read now is read next time.
            let epochs = results::epochs(&attempt.run()).unwrap_or_default();
            bar.set_position(epochs.len() as u64);
            let value = epochs.last().and_then(|epoch| epoch.get(&self.metric).or(epoch.get("val_loss")));
            bar.set_message(value.map_or(String::new(), |value| format!("{value:.5}")));
        }
    }

    pub fn finish(&self) {
        if let Some(live) = &self.live {
            live.total.finish_and_clear();
        }
    }
}

/// Formats one line on how a task ended.
pub fn end_line(metric: &str, task: &Task, state: &TaskState) -> String {
    let what = match state.status {
        Status::Waiting => "requeued",
        status => status.as_str(),
    };
    let value = state.metrics.get(metric).map_or(String::new(), |value| format!("  {metric} {value:.6}"));
    let reason = state.reason.as_ref().map_or(String::new(), |reason| format!("  {reason}"));
    format!("{what:<8} {} {}{value}  {:.1} s{reason}", task.step, task.label, state.seconds)
}
