//! Scores models of `kdgat train` on the test graphs of their own folds.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::train::schema;
use super::{EvaluateOptions, StageError, setup, training};
use crate::config::Config;
use crate::evaluate::graphs::{Metric, Tested, baseline, mean_and_deviation};
use crate::evaluate::{EvaluateError, TrainedModel, models};
use crate::files;
use crate::graph::dataset::{FoldOptions, GraphSplit};
use crate::graph::{AssembleOptions, Loader, LoaderOptions, Schema, Store, Task, Vocabulary};
use crate::memory::{Meter, by_halves};
use crate::nn::layers::Mode;
use crate::nn::{Architecture, GivenTensors, Gnn, ModelError, Scope, weights};

/// Graphs per batch.
const BATCH_GRAPHS: usize = 512;

/// A model and its metrics.
#[derive(Debug, Serialize)]
struct Evaluated {
    model: String,
    /// Runs of one group differ by seed or fold.
    group: String,
    parameters: usize,
    fold: String,
    seed: Option<u64>,
    test_graphs: usize,
    metrics: Vec<Metric>,
    #[serde(skip)]
    baseline: Vec<Metric>,
}

/// Runs `kdgat evaluate` on a dataset of graphs. Returns the tables and the folder of the results.
pub fn evaluate_graphs(config: &Config, options: &EvaluateOptions) -> Result<(String, PathBuf), StageError> {
    setup::use_threads(config.training.threads);
    let device = setup::device(config.training.device)?;
    let store = setup::open_graph_store(config)?;
    let dataset = store.manifest().dataset.clone();
    let found = match options.runs.as_slice() {
        [] => models::all_of_dataset(&config.output.runs_dir, &config.distillation.teachers_dir, &dataset)?,
        runs => runs.iter().map(|run| TrainedModel::read(run)).collect::<Result<Vec<_>, _>>()?,
    };
    let mut runs = Vec::new();
    for model in found {
        match division_of(&model)? {
            Some(division) => runs.push((model, division)),
            // A registered teacher is the copy of a run, and records no division.
            None if options.runs.is_empty() => {}
            None => {
                return Err(StageError::Input(format!(
                    "{} does not record how its graphs were divided, so nothing says which are for testing; name the folder of the \
                     run that it comes from",
                    model.name
                )));
            }
        }
    }
    if runs.is_empty() {
        return Err(StageError::Input(format!(
            "no finished run of dataset {dataset} below {}; train one with `kdgat train --preset gin,teacher`, or name a run's folder",
            config.output.runs_dir.display()
        )));
    }
    let schema = schema(&store)?.clone();
    let mut evaluated = Vec::new();
    for (model, division) in &runs {
        eprintln!("scoring with {}", model.name);
        evaluated.push(evaluate_one(config, options, (model, division), &store, &schema, device)?);
    }
    let folder = options.output.clone().unwrap_or_else(|| config.output.runs_dir.join(&dataset).join("evaluation"));
    write(&folder, &dataset, &schema, &evaluated)?;
    Ok((text(&dataset, &evaluated), folder))
}

/// The file of a run that records its division: the configuration it started with.
#[derive(Deserialize)]
struct Frozen {
    config: Option<FrozenSections>,
}

#[derive(Deserialize)]
struct FrozenSections {
    graphs: FrozenGraphs,
    data: FrozenData,
}

#[derive(Deserialize)]
struct FrozenGraphs {
    folds_file: Option<PathBuf>,
    folds: usize,
    fold: usize,
}

#[derive(Deserialize)]
struct FrozenData {
    validation_fraction: f64,
}

/// The division that a run was trained with; `None` for weights without the configuration of a run.
fn division_of(model: &TrainedModel) -> Result<Option<FoldOptions>, StageError> {
    let path = model.folder.join("config.json");
    let text = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|source| StageError::File { path: path.clone(), action: "read", source })?,
    };
    let frozen: Frozen = serde_json::from_slice(&text).map_err(|error| {
        StageError::Input(format!(
            "{}: not the configuration of a run of `kdgat train` ({error}); train it again",
            path.display()
        ))
    })?;
    Ok(frozen.config.map(|FrozenSections { graphs, data }| FoldOptions {
        file: graphs.folds_file,
        folds: graphs.folds,
        fold: graphs.fold,
        validation_fraction: data.validation_fraction,
    }))
}

fn evaluate_one(
    config: &Config,
    options: &EvaluateOptions,
    (model, division): (&TrainedModel, &FoldOptions),
    store: &Arc<Store>,
    schema: &Schema,
    device: Device,
) -> Result<Evaluated, StageError> {
    let Architecture::Graph(architecture) = &model.description.architecture else {
        return Err(StageError::Input(format!(
            "{} is a model of CAN windows, not of {}",
            model.name,
            store.manifest().dataset
        )));
    };
    if model.description.dataset.digest != store.digest() {
        tracing::warn!("{} was trained on other graphs than {} has now", model.name, store.manifest().dataset);
    }
    let split = GraphSplit::of(store, division)?;
    if split.test.is_empty() {
        return Err(StageError::Input(format!("{}: no graph is left for testing ({})", model.name, split.origin)));
    }
    let on_device = |(name, tensor): (&String, &Tensor)| Ok((name.clone(), tensor.f_to_device(device)?));
    let tensors = model.state.iter().map(on_device).collect::<Result<Vec<_>, ModelError>>()?;
    let mut given = GivenTensors::new(tensors);
    let network = Gnn::new(Scope::root(&mut given), architecture, training::attention_kernel(config))?;
    given.check_all_used(|_| false)?;
    let truth = |graphs: &[u64]| -> Result<Vec<Vec<f64>>, StageError> {
        let of =
            |&graph: &u64| Ok(store.try_graph(graph)?.targets_of_graph.iter().map(|&value| f64::from(value)).collect());
        graphs.iter().map(of).collect()
    };
    let tested =
        Tested { outputs: outputs(&network, schema, store, &split.test, device)?, targets: truth(&split.test)? };
    let simplest = baseline(schema, &truth(&split.training)?, &tested.targets);
    let seed = config.training.seed;
    Ok(Evaluated {
        model: model.name.clone(),
        group: model.group.clone(),
        parameters: model.num_parameters(),
        fold: split.origin,
        seed: model.seed,
        test_graphs: split.test.len(),
        metrics: tested.metrics(schema, options.resamples, seed),
        baseline: simplest.metrics(schema, 0, seed),
    })
}

/// Probabilities, or values in the units of the targets, `[num_graphs, outputs]`.
fn outputs(
    network: &Gnn,
    schema: &Schema,
    store: &Arc<Store>,
    graphs: &[u64],
    device: Device,
) -> Result<Vec<Vec<f64>>, StageError> {
    let assemble = AssembleOptions::new(Arc::new(Vocabulary::from_ids([])));
    let loader = Loader::start(Arc::clone(store), LoaderOptions { assemble, workers: 1, prefetch_batches: 2 });
    let batches = graphs.chunks(BATCH_GRAPHS).map(<[u64]>::to_vec).collect();
    let mut all = Vec::with_capacity(graphs.len());
    for batch in loader.epoch(batches, 0) {
        let rows = by_halves(Meter::new(device), &batch?, &mut |batch| {
            tch::no_grad(|| {
                let outputs = network.forward(&batch.to_device(device)?, Mode::Evaluation)?.f_to_kind(Kind::Double)?;
                let outputs = match schema.task {
                    Task::Classification => outputs.f_softmax(-1, Kind::Double)?,
                    Task::MultiLabel => outputs.f_sigmoid()?,
                    Task::Regression => outputs,
                };
                let columns = outputs.size()[1].max(1) as usize;
                let values: Vec<f32> = weights::floats(&outputs)?;
                let rows = values.chunks_exact(columns).map(|row| row.iter().map(|&value| f64::from(value)).collect());
                Ok::<_, EvaluateError>(rows.collect::<Vec<Vec<f64>>>())
            })
        })?;
        all.extend(rows);
    }
    let scales = &network.config().target_scales;
    for row in &mut all {
        row.iter_mut().zip(scales).for_each(|(value, scale)| *value = *value * scale.deviation + scale.mean);
    }
    Ok(all)
}

fn text(dataset: &str, evaluated: &[Evaluated]) -> String {
    let mut text = format!("{dataset}\n\n");
    let names: Vec<&str> = evaluated[0].metrics.iter().map(|metric| metric.name.as_str()).collect();
    let width = evaluated.iter().map(|one| one.model.len()).max().unwrap_or(0).max(24);
    let line = |text: &mut String, name: &str, parameters: &str, graphs: &str, cells: &[String]| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{name:<width$}  {parameters:>10}  {graphs:>6}");
        for cell in cells {
            let _ = write!(text, "  {cell:>22}");
        }
        text.push('\n');
    };
    line(&mut text, "model", "parameters", "graphs", &names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    for one in evaluated {
        let cells: Vec<String> = one.metrics.iter().map(cell).collect();
        line(&mut text, &one.model, &one.parameters.to_string(), &one.test_graphs.to_string(), &cells);
    }
    let mut groups: BTreeMap<&str, Vec<&Evaluated>> = BTreeMap::new();
    evaluated.iter().for_each(|one| groups.entry(&one.group).or_default().push(one));
    text += "\nmeans over runs that differ by fold or seed\n\n";
    line(&mut text, "model", "parameters", "runs", &names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    let over = |of: &[&[Metric]]| -> Vec<String> {
        let of_metric = |at: usize| {
            let values: Vec<f64> = of.iter().map(|metrics| metrics[at].value).collect();
            let (mean, deviation, count) = mean_and_deviation(&values);
            if count > 1 { format!("{mean:.4} ± {deviation:.4}") } else { format!("{mean:.4}") }
        };
        (0..names.len()).map(of_metric).collect()
    };
    for (group, members) in &groups {
        let metrics: Vec<&[Metric]> = members.iter().map(|one| one.metrics.as_slice()).collect();
        line(&mut text, group, &members[0].parameters.to_string(), &members.len().to_string(), &over(&metrics));
    }
    let baselines: Vec<&[Metric]> = evaluated.iter().map(|one| one.baseline.as_slice()).collect();
    line(&mut text, "most frequent or mean", "0", &evaluated.len().to_string(), &over(&baselines));
    text
}

fn cell(metric: &Metric) -> String {
    match metric.interval {
        Some([low, high]) => format!("{:.4} ({low:.3}–{high:.3})", metric.value),
        None => format!("{:.4}", metric.value),
    }
}

fn write(folder: &Path, dataset: &str, schema: &Schema, evaluated: &[Evaluated]) -> Result<(), StageError> {
    let error = |path: &Path| {
        let path = path.to_owned();
        move |source| StageError::File { path, action: "write", source }
    };
    fs::create_dir_all(folder).map_err(error(folder))?;
    let json = json!({ "format_version": 1, "dataset": dataset, "task": schema.task, "models": evaluated });
    let mut csv = csv::Writer::from_writer(Vec::new());
    let mut row = |cells: &[String]| csv.write_record(cells).map_err(std::io::Error::other);
    let path = folder.join("graph_metrics.csv");
    row(&["model", "group", "fold", "seed", "graphs", "metric", "value", "low", "high"].map(str::to_owned))
        .map_err(error(&path))?;
    for one in evaluated {
        for metric in &one.metrics {
            let end = |at: usize| metric.interval.map_or(String::new(), |interval| interval[at].to_string());
            let seed = one.seed.map_or(String::new(), |seed| seed.to_string());
            let cells = [one.model.clone(), one.group.clone(), one.fold.clone(), seed, one.test_graphs.to_string()];
            let values = [metric.name.clone(), metric.value.to_string(), end(0), end(1)];
            row(&cells.into_iter().chain(values).collect::<Vec<_>>()).map_err(error(&path))?;
        }
    }
    let csv = csv.into_inner().map_err(|failed| error(&path)(std::io::Error::other(failed.to_string())))?;
    let json = serde_json::to_vec_pretty(&json).map_err(|problem| error(&path)(problem.into()))?;
    for (name, content) in [("graph_metrics.json", json), ("graph_metrics.csv", csv)] {
        let path = folder.join(name);
        files::write_atomically(&path, &content).map_err(error(&path))?;
    }
    Ok(())
}
