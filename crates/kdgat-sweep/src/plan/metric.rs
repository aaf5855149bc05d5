//! Names of the metrics of each step, so that a misspelled name is reported before anything runs.

use super::file::{Direction, StepCommand, SweepFile};
use crate::early::EarlyStopping;
use kdgat_config::nearest;
use kdgat_curriculum::{CURRICULUM_COLUMNS, GRAPH_CURRICULUM_COLUMNS};
use kdgat_distill::objective;
use kdgat_evaluate::metrics::METRICS;
use kdgat_train::metrics::metrics_header;

/// Columns of `metrics.csv` that describe the progress of a training, not its result.
pub(crate) const PROGRESS: [&str; 6] = ["graphs_per_second", "seconds", "steps", "epoch", "lr", "peak_memory_bytes"];
/// Metric: number of parameters.
pub(crate) const PARAMETERS: &str = "parameters";
/// Size metrics of an evaluation.
pub(crate) const SIZES: [&str; 2] = [PARAMETERS, "file_bytes"];
/// Speed metrics of an evaluation, in milliseconds per graph.
pub(crate) const SPEEDS: [&str; 2] = ["ms_per_graph_batch_1", "ms_per_graph_batch_512"];

/// Evaluation metric on the validation data: comparing trials by it keeps the test folders held out.
pub const OF_VALIDATION: &str = "validation_roc_auc";
/// Validation loss of the task alone, without the distillation terms, whose weights may differ between trials.
const VAL_TASK_LOSS: &str = "val_task_loss";
const VAL_LOSS: &str = "val_loss";
/// Caveat that is shown next to a result that was selected as the best on the test folders.
pub(crate) const SELECTED_ON_TEST: &str = "selected on the test folders, so an optimistic estimate for new data";

/// Default metric by the command of the measured step: always a metric of the validation data.
pub(crate) fn default_of(command: Option<StepCommand>) -> (&'static str, Direction) {
    match command {
        Some(StepCommand::Evaluate) => (OF_VALIDATION, Direction::Maximize),
        Some(StepCommand::Fusion) | None => (VAL_LOSS, Direction::Minimize),
        Some(StepCommand::Autoencoder | StepCommand::Classifier | StepCommand::Curriculum | StepCommand::Train) => {
            (VAL_TASK_LOSS, Direction::Minimize)
        }
    }
}

/// True if an evaluation metric is a result on the test folders, rather than on the validation data or a property of the model.
pub(crate) fn is_of_tests(metric: &str) -> bool {
    METRICS.contains(&last_part(metric))
}

/// Returns messages for invalid metrics and early-stopping settings of a file.
pub(crate) fn problems(file: &SweepFile) -> Vec<String> {
    // A missing step is reported elsewhere.
    let Some(step) = file.measured() else { return Vec::new() };
    let (metric, direction) = file.metric();
    let unknown = |place: &str, found: &str, known: Vec<String>| {
        let near = nearest(last_part(found), known.iter().map(String::as_str));
        format!("{place}: step `{}` has no metric `{found}`; the nearest is `{near}`", step.name)
    };
    let mut problems = Vec::new();
    let known = results(step.command);
    let is_of_folder = step.command == StepCommand::Evaluate && metric.contains('/') && is_of_tests(metric);
    if !is_of_folder && !known.iter().any(|name| name == metric) {
        problems.push(unknown("metric", metric, known));
    }
    if let (None, Some(given)) = (&file.metric, file.direction.filter(|given| *given != direction)) {
        problems.push(format!(
            "direction = \"{}\" without a metric: step `{}` is then compared by `{metric}`, whose direction is {}; name the `metric`, \
             or omit the direction",
            given.as_str(),
            step.name,
            direction.as_str()
        ));
    }
    let Some(rule) = &file.early_stopping else { return problems };
    let known = columns(step.command);
    let found = rule.metric.as_deref().unwrap_or(metric);
    if known.is_empty() {
        // An evaluation has no epochs: the rule would silently never stop anything.
        problems.push(format!(
            "[early_stopping]: step `{}`, by which trials are compared, has no epochs, so there is nothing to stop early; \
             remove the rule, or measure the training before it (`measure`)",
            step.name
        ));
    } else if rule.metric.is_none() && found == PARAMETERS {
        problems.push(format!(
            "[early_stopping]: `{PARAMETERS}` is the same in every epoch; name a column to compare, e.g. metric = \"val_loss\""
        ));
    } else if !known.iter().any(|name| name == found) && (rule.metric.is_some() || problems.is_empty()) {
        problems.push(unknown("[early_stopping] metric", found, known));
    }
    problems.extend(direction_problem(file, rule));
    problems
}

/// Checks the rule's direction: a column other than the sweep's metric needs its own.
fn direction_problem(file: &SweepFile, rule: &EarlyStopping) -> Option<String> {
    let (own, own_direction) = file.metric();
    let other = rule.metric.as_ref().filter(|metric| *metric != own);
    match (other, rule.direction) {
        (Some(metric), None) => Some(format!(
            "[early_stopping] metric = \"{metric}\" is not the sweep's metric `{own}`, so its direction is needed: \
             direction = \"minimize\" or \"maximize\""
        )),
        (None, Some(direction)) if direction != own_direction => Some(format!(
            "[early_stopping] direction = \"{}\" contradicts the sweep's own (\"{}\") for the same metric; remove it",
            direction.as_str(),
            own_direction.as_str()
        )),
        _ => None,
    }
}

/// Returns the name without the test folder: `f1` of `test_01_known_vehicle_known_attack/f1`.
fn last_part(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// Returns the names of the result metrics of a command.
fn results(command: StepCommand) -> Vec<String> {
    if command == StepCommand::Evaluate {
        let of_validation = [OF_VALIDATION];
        return METRICS
            .iter()
            .chain(&of_validation)
            .chain(&SIZES)
            .chain(&SPEEDS)
            .map(|name| (*name).to_owned())
            .collect();
    }
    let mut known = columns(command);
    known.retain(|name| !PROGRESS.contains(&name.as_str()));
    known.push(PARAMETERS.to_owned());
    known
}

/// Returns the columns of `metrics.csv` for a command; none for an evaluation.
fn columns(command: StepCommand) -> Vec<String> {
    let parts: &[&str] = match command {
        StepCommand::Autoencoder => objective::VGAE_PARTS,
        StepCommand::Classifier | StepCommand::Curriculum => objective::GAT_PARTS,
        StepCommand::Train => objective::GRAPH_PARTS,
        StepCommand::Fusion => &kdgat_fusion::fit::PARTS,
        StepCommand::Evaluate => return Vec::new(),
    };
    let mut columns = metrics_header(parts);
    if command == StepCommand::Autoencoder {
        // Those of a dataset of graphs.
        let of_graphs = metrics_header(objective::GRAPH_VGAE_PARTS);
        let more: Vec<String> = of_graphs.into_iter().filter(|column| !columns.contains(column)).collect();
        columns.extend(more);
    }
    let of_curriculum: &[&str] = match command {
        StepCommand::Curriculum => CURRICULUM_COLUMNS,
        StepCommand::Train => GRAPH_CURRICULUM_COLUMNS,
        _ => &[],
    };
    columns.extend(of_curriculum.iter().map(|&column| column.to_owned()));
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(metric: &str, command: &str, more: &str) -> Option<String> {
        let text = format!("metric = \"{metric}\"\n{more}\n[[step]]\nname = \"one\"\ncommand = \"{command}\"\n");
        let mut problems = problems(&SweepFile::parse("test", &text).unwrap());
        assert!(problems.len() <= 1, "{problems:?}");
        problems.pop()
    }

    #[test]
    fn each_command_has_its_metrics() {
        for (metric, command) in [
            ("val_loss", "autoencoder"),
            ("val_edges", "autoencoder"),
            ("val_hint_kd", "classifier"),
            ("parameters", "classifier"),
            ("curriculum_ratio", "curriculum"),
            ("curriculum_share", "train"),
            ("val_reward", "fusion"),
            ("val_accuracy", "train"),
            ("val_mean_absolute_error", "train"),
            ("f1", "evaluate"),
            ("test_01_known_attack/roc_auc", "evaluate"),
            ("ms_per_graph_batch_1", "evaluate"),
            ("validation_roc_auc", "evaluate"),
        ] {
            assert_eq!(problem(metric, command, ""), None);
        }
        for (metric, command, near) in [
            ("val_task_los", "classifier", "val_task_loss"),
            ("f_1", "evaluate", "f1"),
            ("test_01/roc_acu", "evaluate", "roc_auc"),
        ] {
            let said = problem(metric, command, "").unwrap();
            let expected = format!("metric: step `one` has no metric `{metric}`; the nearest is `{near}`");
            assert_eq!(said, expected);
        }
        for (metric, command) in [("seconds", "classifier"), ("curriculum_ratio", "classifier"), ("f1", "fusion")] {
            assert!(problem(metric, command, "").is_some(), "{metric} of {command}");
        }
    }

    #[test]
    fn without_a_metric_it_is_one_of_the_validation_data() {
        let read = |command: &str, more: &str| {
            let text = format!("{more}\n[[step]]\nname = \"one\"\ncommand = \"{command}\"\n");
            SweepFile::parse("test", &text).unwrap()
        };
        for (command, metric, direction) in [
            ("autoencoder", "val_task_loss", Direction::Minimize),
            ("classifier", "val_task_loss", Direction::Minimize),
            ("curriculum", "val_task_loss", Direction::Minimize),
            ("train", "val_task_loss", Direction::Minimize),
            ("fusion", "val_loss", Direction::Minimize),
            ("evaluate", "validation_roc_auc", Direction::Maximize),
        ] {
            let file = read(command, "");
            assert_eq!(file.metric(), (metric, direction));
            assert_eq!(problems(&file), Vec::<String>::new(), "{command}");
            assert!(!is_of_tests(metric));
        }
        let said = problems(&read("evaluate", "direction = \"minimize\"")).join("\n");
        assert!(said.contains("compared by `validation_roc_auc`, whose direction is maximize"), "{said}");
        assert!(is_of_tests("f1") && is_of_tests("test_01/roc_auc") && !is_of_tests("ms_per_graph_batch_1"));
        assert!(problem("test_01/ms_per_graph_batch_1", "evaluate", "").is_some(), "a folder has no speed");
    }

    #[test]
    fn early_stopping_looks_at_any_column() {
        let rule = |metric: &str| {
            format!("early_stopping = {{ rule = \"median\", metric = \"{metric}\", direction = \"maximize\" }}")
        };
        assert_eq!(problem("val_loss", "classifier", &rule("graphs_per_second")), None);
        let said = problem("val_loss", "classifier", &rule("val_los")).unwrap();
        assert!(said.starts_with("[early_stopping] metric: ") && said.contains("`val_loss`"), "{said}");
    }

    #[test]
    fn another_column_needs_a_direction_of_its_own() {
        let rule = |more: &str| format!("direction = \"maximize\"\nearly_stopping = {{ rule = \"median\"{more} }}");
        assert_eq!(problem("val_loss", "classifier", &rule("")), None);
        assert_eq!(problem("val_loss", "classifier", &rule(", metric = \"val_loss\"")), None);
        assert_eq!(problem("val_loss", "classifier", &rule(", metric = \"lr\", direction = \"minimize\"")), None);
        let said = problem("val_loss", "classifier", &rule(", metric = \"lr\"")).unwrap();
        assert!(said.contains("metric = \"lr\" is not the sweep's metric `val_loss`"), "{said}");
        assert!(said.contains("direction = \"minimize\" or"), "{said}");
        let said = problem("val_loss", "classifier", &rule(", direction = \"minimize\"")).unwrap();
        assert!(said.contains("contradicts"), "{said}");
    }

    #[test]
    fn early_stopping_needs_epochs_to_look_at() {
        let rule = "early_stopping = { rule = \"asha\" }";
        assert_eq!(problem("val_loss", "classifier", rule), None);
        let said = problem("f1", "evaluate", rule).unwrap();
        assert!(said.contains("step `one`") && said.contains("no epochs"), "{said}");
        let said = problem("parameters", "classifier", rule).unwrap();
        assert!(said.contains("the same in every epoch"), "{said}");
        let said = problem("val_los", "classifier", rule).unwrap();
        assert!(said.starts_with("metric: "), "reported once: {said}");
    }
}
