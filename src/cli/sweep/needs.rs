//! Checks the requirements of a sweep on this machine that none of its tasks makes: datasets, registered teachers, GPUs. The error
//! comes before the first task, not hours later.
//!
//! Only certain failures are refused: models that a fusion takes from finished runs may be trained in the meantime, and inputs from
//! an earlier step (`from`) will exist by then.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;

use crate::can::catalogue;
use crate::cli::exit::UsageError;
use crate::config::{DeviceChoice, ModelKind};
use crate::distill::RegistryError;
use crate::distill::registry::Registry;
use crate::graph::dataset;
use crate::shell;
use crate::sweep::plan::{Plan, Task, TaskKind};
use crate::sweep::state::{Status, SweepFolder, settled};

/// Fails if a requirement of an open task is missing. `retries`: true if failed tasks will be retried.
pub fn expect(folder: &SweepFolder, plan: &Plan, retries: bool) -> Result<()> {
    let (mut datasets, mut teachers) = (BTreeMap::new(), BTreeSet::new());
    let gpus = tch::Cuda::device_count() as usize;
    for task in open(folder, plan, retries)? {
        let data = task.config.data.data.as_deref();
        if task.kind == TaskKind::Train {
            expect_graphs(task, data)?;
            expect_gpu(task, gpus)?;
            continue;
        }
        if let Entry::Vacant(place) = datasets.entry(data) {
            place.insert(name(data)?);
        }
        expect_gpu(task, gpus)?;
        for model in taught_by(task) {
            let registry = task.config.distillation.teachers_dir.as_path();
            if teachers.insert((data, registry, model.as_str())) {
                expect_teacher(registry, &datasets[&data], data, model)?;
            }
        }
    }
    Ok(())
}

/// The tasks that would start, and those that wait for them.
fn open<'a>(folder: &SweepFolder, plan: &'a Plan, retries: bool) -> Result<Vec<&'a Task>> {
    let mut statuses: BTreeMap<&str, Status> = BTreeMap::new();
    let mut open = Vec::new();
    for task in &plan.tasks {
        let own = match folder.state(task)?.status {
            Status::Failed if retries => Status::Waiting,
            own => own,
        };
        statuses.insert(&task.id, own);
        let status = settled(task, &|id| statuses.get(id).copied().unwrap_or_default());
        statuses.insert(&task.id, status);
        if !status.is_settled() && status != Status::Blocked {
            open.push(task);
        }
    }
    Ok(open)
}

/// The name of a dataset; an error if it does not exist.
fn name(data: Option<&Path>) -> Result<String> {
    match data {
        Some(data) => Ok(catalogue::open(data, catalogue::data_folder().as_deref())?.name),
        // The simulated dataset is created on first use.
        None => Ok(catalogue::SIMULATED.to_owned()),
    }
}

/// Fails if a step that runs `train` has no dataset of graphs.
fn expect_graphs(task: &Task, data: Option<&Path>) -> Result<()> {
    let problem = match data {
        None => "it needs a dataset of graphs: set data".to_owned(),
        Some(data) if !data.exists() => format!("data = \"{}\": there is no such folder or file", data.display()),
        Some(data) if !dataset::is_dataset(data) => {
            let detail = dataset::explain(data).unwrap_or("no dataset of graphs (see docs/graphs.md)".to_owned());
            format!("data = \"{}\": {detail}", data.display())
        }
        Some(_) => return Ok(()),
    };
    Err(UsageError(format!("step `{}`: {problem}", task.step)).into())
}

fn expect_gpu(task: &Task, gpus: usize) -> Result<()> {
    let computes = !matches!(task.kind, TaskKind::Store | TaskKind::Part(_));
    match task.config.training.device {
        DeviceChoice::Cuda(index) if computes && index >= gpus => Err(UsageError(format!(
            "step `{}` with device = \"{}\": {gpus} GPU(s) found; set device to cpu or auto, or see `kdgat doctor` for what is \
             missing",
            task.step, task.config.training.device
        ))
        .into()),
        _ => Ok(()),
    }
}

/// The models whose registered teachers a task reads.
pub fn taught_by(task: &Task) -> Vec<ModelKind> {
    let made_before = |field: &str| task.inputs.iter().any(|input| input.field == field);
    let config = &task.config;
    let mut models = Vec::new();
    // A teacher of `train` belongs to a fold, which the training itself checks.
    let learns = (task.kind.trains_on_graphs() && task.kind != TaskKind::Train) || task.kind == TaskKind::Targets;
    if learns
        && config.distillation.use_kd
        && config.distillation.teacher_path.is_none()
        && !made_before("teacher_path")
    {
        models.push(if task.kind == TaskKind::Autoencoder { ModelKind::Vgae } else { config.model.model });
    }
    let scores = config.curriculum.curriculum.scores();
    if task.kind == TaskKind::Curriculum
        && scores
        && config.curriculum.difficulty_model.is_none()
        && !made_before("difficulty_model")
    {
        models.push(ModelKind::Vgae);
    }
    models
}

fn expect_teacher(registry: &Path, dataset: &str, data: Option<&Path>, model: ModelKind) -> Result<()> {
    let flag = data.map(|path| format!(" --data {}", shell::quoted_path(path))).unwrap_or_default();
    let stage = if model == ModelKind::Vgae { "autoencoder" } else { "classifier" };
    let found = Registry::new(registry).find(dataset, model.as_str());
    found.map(drop).map_err(|error| match error {
        RegistryError::NoTeacher { wanted, root, near, .. } => {
            let command = format!("kdgat {stage} --preset {model},teacher{flag}");
            RegistryError::NoTeacher { wanted, root, near, command }.into()
        }
        other => other.into(),
    })
}
