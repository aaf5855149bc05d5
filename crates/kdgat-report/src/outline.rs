//! Sections, tables and figures of a report.

use std::path::Path;

use super::ReportError;
use super::figures::{self, Drawn};
use super::files::{Evaluation, Found, GraphEvaluation, Growth, Run};
use super::page::{Block, Page, Section};
use super::table;
use kdgat_evaluate::teacher_worth;
use kdgat_sweep::report as sweep_report;
use kdgat_sweep::state::{SweepFolder, TABLE};

/// Maximum runs with charts of their own; further runs are only in tables and comparisons, to keep the page fast.
const MOST_RUNS: usize = 24;
/// Maximum evaluations shown; each trial of a sweep may have one.
const MOST_EVALUATIONS: usize = 6;
/// Maximum models of an evaluation whose details are shown unfolded.
const UNFOLDED: usize = 3;

/// Builds the whole report.
pub fn page(found: &Found, folder: &Path, pairs: &[(String, String)]) -> Result<Page, ReportError> {
    let mut sections = Vec::new();
    for sweep in &found.sweeps {
        sections.push(of_sweep(sweep, pairs)?);
    }
    if !found.runs.is_empty() {
        sections.push(of_runs(&found.runs)?);
    }
    for evaluation in found.evaluations.iter().take(MOST_EVALUATIONS) {
        sections.push(of_evaluation(evaluation, found.evaluations.len() > 1)?);
    }
    for evaluation in found.graph_evaluations.iter().take(MOST_EVALUATIONS) {
        sections.push(of_graph_evaluation(evaluation, found.graph_evaluations.len() > 1)?);
    }
    sections.extend(not_evaluated(found));
    for run in found.runs.iter().take(MOST_RUNS) {
        let is_alone = found.runs.iter().filter(|other| other.name == run.name).count() == 1;
        sections.push(of_run(run, is_alone)?);
    }
    let mut page = Page { title: title(found), findings: Vec::new(), sections, folder: folder.to_owned() };
    page.name_apart();
    page.findings = findings(found, &page);
    Ok(page)
}

/// Returns the lines at the top of the page.
fn findings(found: &Found, page: &Page) -> Vec<String> {
    let telling = |slug: &str| ["comparison-", "trade-off-", "sweep-"].iter().any(|kind| slug.starts_with(kind));
    // The verdicts on learned fusion and on distillation come first.
    let agents = found.runs.iter().filter(|run| run.stage() == "fusion");
    let mut findings: Vec<String> = agents.filter_map(figures::fusion::verdict).collect();
    findings.extend(found.graph_evaluations.iter().take(MOST_EVALUATIONS).flat_map(figures::graphs::findings));
    let of_cars = found.evaluations.iter().take(MOST_EVALUATIONS);
    findings.extend(of_cars.flat_map(|one| teacher_worth::findings(&one.teachers, &one.dataset)));
    findings.extend(page.figures().filter(|figure| telling(&figure.slug)).map(|figure| figure.title.clone()));
    let hidden = found.runs.len().saturating_sub(MOST_RUNS);
    if hidden > 0 {
        findings.push(format!(
            "{hidden} of {} runs are in tables and comparisons only; name one of them to see its charts.",
            found.runs.len()
        ));
    }
    let all = [found.evaluations.len(), found.graph_evaluations.len()];
    let hidden: usize = all.iter().map(|all| all.saturating_sub(MOST_EVALUATIONS)).sum();
    if hidden > 0 {
        let all: usize = all.iter().sum();
        findings.push(format!("{hidden} of {all} evaluations are not shown; name the folder of one to see it."));
    }
    findings
}

/// Returns a section that says how to evaluate, if no run was evaluated.
fn not_evaluated(found: &Found) -> Option<Section> {
    if !found.evaluations.is_empty() || !found.graph_evaluations.is_empty() {
        return None;
    }
    // A fusion agent is evaluated in its own run.
    let run = found.runs.iter().find(|run| run.stage() != "fusion")?;
    let why = match run.fold() {
        Some(_) => format!(
            "none of these runs has been evaluated; `kdgat evaluate` scores them on the test {} of their folds, and the next report \
             shows means over folds and seeds, and whether a teacher helps its student.",
            run.units()
        ),
        None => "none of these runs has been evaluated; `kdgat evaluate RUN` scores a run on the test folders of its dataset, and the \
                 next report shows ROC and precision\u{2013}recall curves, confusion per attack, the trade-off of size, latency and F1, \
                 and windows as graphs."
            .to_owned(),
    };
    let charts = vec![Drawn::missing("test results", why)];
    Some(Section { title: "Test results".to_owned(), blocks: vec![Block::Charts(charts)] })
}

fn title(found: &Found) -> String {
    if let [sweep] = found.sweeps.as_slice()
        && let Ok(plan) = sweep.plan()
    {
        return plan.title();
    }
    if let ([run], []) = (found.runs.as_slice(), found.sweeps.as_slice()) {
        return format!("{} on {}", run.name, run.dataset());
    }
    let mut datasets: Vec<&str> = found.runs.iter().map(Run::dataset).collect();
    datasets.extend(found.evaluations.iter().map(|evaluation| evaluation.dataset.as_str()));
    datasets.extend(found.graph_evaluations.iter().map(|evaluation| evaluation.dataset.as_str()));
    datasets.sort_unstable();
    datasets.dedup();
    match found.runs.len() {
        0 => format!("Evaluation on {}", datasets.join(", ")),
        runs => format!("{runs} runs on {}", datasets.join(", ")),
    }
}

fn of_runs(runs: &[Run]) -> Result<Section, ReportError> {
    let mut blocks = vec![Block::Table(table::of_runs(runs))];
    if runs.len() > 1 {
        blocks.push(Block::Charts(figures::comparison::draw(runs)?));
    }
    Ok(Section { title: "Training".to_owned(), blocks })
}

/// Builds the section of a run. `is_alone` is true if no other run has its name.
fn of_run(run: &Run, is_alone: bool) -> Result<Section, ReportError> {
    let mut charts = match run.stage() {
        // A fusion agent uses little memory, which is not sampled.
        "fusion" => figures::fusion::draw(run)?,
        _ => vec![figures::losses::draw(run)?, figures::memory::draw(run)?],
    };
    charts.extend(figures::memory::draw_gpu(run)?);
    charts.extend(figures::difficulty::draw(run)?);
    charts.extend(figures::teacher::draw(run)?);
    let mut title = if is_alone { run.name.clone() } else { format!("{} on {}", run.name, run.dataset()) };
    if let Some(fold) = run.fold() {
        title += &format!(", {fold}");
    }
    if !run.trial.is_empty() {
        title += &format!(" ({})", run.trial);
    }
    Ok(Section { title, blocks: vec![Block::Charts(charts)] })
}

fn of_evaluation(evaluation: &Evaluation, is_one_of_several: bool) -> Result<Section, ReportError> {
    let mut charts = vec![figures::trade_off::draw(evaluation)?];
    charts.extend(figures::intervals::draw(evaluation)?);
    charts.extend(figures::curves::draw(evaluation)?);
    let mut blocks = vec![Block::Table(table::of_evaluation(evaluation)), Block::Charts(charts)];
    let open = evaluation.models.iter().filter(|model| !model.is_rule()).count() <= UNFOLDED;
    for model in &evaluation.models {
        let mut charts = vec![figures::confusion::draw(evaluation, model)?];
        let mut title = format!("{}: confusion per attack", model.model);
        // A pair of models has no attention weights of its own, nor has a rule.
        if !model.kind.contains('+') && !model.is_rule() {
            charts.extend(figures::windows::draw(evaluation, &model.model)?);
            title += ", and windows as graphs";
        }
        let open = open && !model.is_rule();
        blocks.push(Block::Folded { title, charts, open });
    }
    Ok(Section { title: title_of_evaluation(&evaluation.dataset, &evaluation.folder, is_one_of_several), blocks })
}

fn of_graph_evaluation(evaluation: &GraphEvaluation, is_one_of_several: bool) -> Result<Section, ReportError> {
    let mut blocks: Vec<Block> = table::of_graphs(evaluation).into_iter().map(Block::Table).collect();
    // Means and differences come first, then the charts, then the single runs.
    let mut charts = figures::graphs::draw(evaluation)?;
    if let Some(growth) = Growth::read(&evaluation.folder)? {
        charts.extend(figures::growth::draw(&growth)?);
    }
    blocks.insert(blocks.len().min(2), Block::Charts(charts));
    let molecules = figures::molecules::draw(evaluation)?;
    if !molecules.is_empty() {
        let title = "Molecules with their errors".to_owned();
        blocks.insert(blocks.len().min(3), Block::Folded { title, charts: molecules, open: true });
    }
    Ok(Section { title: title_of_evaluation(&evaluation.dataset, &evaluation.folder, is_one_of_several), blocks })
}

fn title_of_evaluation(dataset: &str, folder: &Path, is_one_of_several: bool) -> String {
    match is_one_of_several {
        true => {
            let folder = folder.file_name().unwrap_or_default().to_string_lossy();
            format!("Test results on {dataset} ({folder})")
        }
        false => "Test results".to_owned(),
    }
}

fn of_sweep(folder: &SweepFolder, pairs: &[(String, String)]) -> Result<Section, ReportError> {
    let plan = folder.plan()?;
    let rows = kdgat_sweep::state::table::rows(folder, &plan)?;
    let charts = figures::sweep::draw(folder, &plan, &rows)?;
    let mut blocks = vec![Block::Charts(charts)];
    let tables = sweep_report::tables(&plan, &rows, pairs)?;
    let source = folder.path().join(TABLE);
    blocks.extend(tables.into_iter().map(|table| Block::Table(table::of_sweep(table, source.clone()))));
    Ok(Section { title: plan.title(), blocks })
}
