//! Losses of one run by epoch, with the task and distillation parts.

use super::{Drawn, Figure, significant};
use crate::ReportError;
use crate::chart::{LineChart, Series};
use crate::files::Run;
use crate::html::slug;

pub fn draw(run: &Run) -> Result<Drawn, ReportError> {
    let what = format!("losses of {}", run.name);
    let chart = chart(run);
    let Some(svg) = chart.draw()? else {
        let why = match run.metrics.is_empty() {
            true => "no epoch is finished yet; the figure appears after the first one.",
            false => "metrics.csv has no column train_loss; runs of this kind do not log it.",
        };
        return Ok(Drawn::missing(what, why));
    };
    let distilled = run.is_distilled();
    let parts = if distilled { " with its task and distillation parts" } else { "" };
    let reading = match distilled {
        true => format!(
            "The total is \u{3b1}\u{b7}distillation + (1\u{2212}\u{3b1})\u{b7}task; parts are those of the validation {}. ",
            run.units()
        ),
        false => "This run has no teacher; its loss is the task loss alone. ".to_owned(),
    };
    let scale = if chart.log_y { "Logarithmic scale. " } else { "" };
    Ok(Figure {
        slug: slug(&format!("losses {}", run.name)),
        title: format!("{}: {}", run.label, seen(run)),
        reading: format!("Loss by epoch{parts}; lower is better. {reading}{scale}"),
        sources: vec![run.metrics.path.clone()],
        svg,
    }
    .into())
}

fn seen(run: &Run) -> String {
    let validation = run.by_epoch("val_loss");
    match (validation.first(), run.best()) {
        (Some((_, first)), Some((epoch, best))) => format!(
            "validation loss from {} to {}, lowest in epoch {epoch:.0} of {}",
            significant(*first),
            significant(best),
            validation.len()
        ),
        _ => "training loss by epoch".to_owned(),
    }
}

fn chart(run: &Run) -> LineChart {
    let mut series = vec![
        Series::new("training", 0, run.by_epoch("train_loss")),
        Series::new("validation", 1, run.by_epoch("val_loss")),
    ];
    if run.is_distilled() {
        series.push(Series::new("validation: task", 2, run.by_epoch("val_task_loss")));
        series.push(Series::new("validation: KD", 3, run.by_epoch("val_kd_loss")));
    }
    series.retain(|series| !series.points.is_empty());
    LineChart {
        x: "epoch".to_owned(),
        y: "loss (mean of an epoch)".to_owned(),
        mark: run.best().map(|(epoch, _)| (epoch, "best".to_owned())),
        series,
        ..LineChart::default()
    }
    .logarithmic_if_wide()
}
