//! Learning curves of a fusion agent, and its results compared with the baselines.

use super::{Drawn, Figure, intervals, significant};
use crate::ReportError;
use crate::chart::{LineChart, Series};
use crate::files::{Evaluation, Run, read_json};
use crate::html::slug;

/// File name of an agent's results.
const RESULTS: &str = "fusion.json";

/// Draws the figures of one run of `kdgat fusion`.
pub fn draw(run: &Run) -> Result<Vec<Drawn>, ReportError> {
    let mut drawn = vec![regret(run)?, weight(run)?];
    match Evaluation::of_fusion(&run.folder.join(RESULTS))? {
        Some(evaluation) => drawn.extend(intervals::of_contenders(&evaluation, &run.folder.join(RESULTS))?),
        None => drawn.push(Drawn::missing(
            format!("{} compared with fixed weights and other baselines", run.label),
            "the run is not finished (no fusion.json yet); run the same command again to continue.",
        )),
    }
    Ok(drawn)
}

/// Returns the verdict on whether learning paid off, in one sentence; `None` before the run has results.
pub fn verdict(run: &Run) -> Option<String> {
    let results = read_json(&run.folder.join(RESULTS)).ok()?;
    Some(results["verdict"]["text"].as_str()?.lines().next()?.to_owned())
}

fn regret(run: &Run) -> Result<Drawn, ReportError> {
    let validation = run.by_epoch("val_loss");
    let title = match (validation.first(), run.best()) {
        (Some((_, first)), Some((epoch, best))) => format!(
            "{}: regret from {} to {}, lowest in epoch {epoch:.0} of {}",
            run.label,
            significant(*first),
            significant(best),
            validation.len()
        ),
        _ => format!("{}: regret by epoch", run.label),
    };
    let chart = LineChart {
        x: "epoch".to_owned(),
        y: "regret (reward that the best weight would add)".to_owned(),
        mark: run.best().map(|(epoch, _)| (epoch, "best".to_owned())),
        series: vec![Series::new("validation", 1, validation)],
        ..LineChart::default()
    };
    by_epoch(
        run,
        "regret",
        title,
        "Mean over the held-out validation graphs; lower is better, 0 is a perfect choice.",
        &chart,
    )
}

fn weight(run: &Run) -> Result<Drawn, ReportError> {
    let weights = run.by_epoch("val_weight");
    let title = match weights.last() {
        Some((_, last)) => format!("{}: final weight of the classifier {:.0} %", run.label, 100.0 * last),
        None => format!("{}: weight by epoch", run.label),
    };
    let chart = LineChart {
        x: "epoch".to_owned(),
        y: "weight of the classifier (mean)".to_owned(),
        series: vec![Series::new("training", 0, run.by_epoch("weight")), Series::new("validation", 1, weights)],
        y_range: Some(0.0..1.0),
        ..LineChart::default()
    };
    let reading = "1 is the classifier alone, 0 the autoencoder alone; training explores with some random choices.";
    by_epoch(run, "weight", title, reading, &chart)
}

fn by_epoch(run: &Run, what: &str, title: String, reading: &str, chart: &LineChart) -> Result<Drawn, ReportError> {
    let Some(svg) = chart.draw()? else {
        let why = "no epoch is finished yet; the figure appears after the first one.";
        return Ok(Drawn::missing(format!("{what} of {}", run.name), why));
    };
    Ok(Figure {
        slug: slug(&format!("{what} {}", run.name)),
        title,
        reading: reading.to_owned(),
        sources: vec![run.metrics.path.clone()],
        svg,
    }
    .into())
}
