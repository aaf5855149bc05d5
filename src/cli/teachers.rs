//! `kdgat teachers`: lists, shows and verifies teachers, and caches their outputs.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::exit::UsageError;
use super::output;
use super::part_runs::{self, PartsArgs};
use super::settings::Settings;
use crate::config::{Config, DataKind, Reader};
use crate::distill::frozen;
use crate::distill::planner::format_bytes;
use crate::distill::registry::Registry;
use crate::exit;
use crate::graph::Share;
use crate::memory::limits::PROCESS_BYTES;
use crate::stage::{Cached, CachedTargets};
use crate::sweep::parts;
use crate::sweep::plan::JobsFile;
use crate::sweep::run::{self, Ended, Wish};
use crate::sweep::state::SweepFolder;

/// Prints one line per registered teacher.
pub fn list(config: &Config) -> Result<ExitCode> {
    let registry = Registry::new(&config.distillation.teachers_dir);
    let teachers = registry.list()?;
    if teachers.is_empty() {
        output::write(&format!(
            "no teacher is registered in {}; `kdgat autoencoder --preset vgae,teacher` trains one\n",
            config.distillation.teachers_dir.display()
        ))?;
    }
    for listed in teachers {
        let name = format!("{}/{}", listed.dataset, listed.model);
        let line = match listed.teacher {
            Ok(teacher) => {
                let size = std::fs::metadata(&teacher.weights_path).map_or(0, |metadata| metadata.len());
                let (config, digest) = (&teacher.config, &teacher.config.weights_digest);
                let metric = |name: &str| config.metrics.get(name).map_or("unknown".to_owned(), ToString::to_string);
                format!(
                    "{name}  {:.2} MB  digest {}  validation loss {}  {}\n",
                    size as f64 / 1e6,
                    digest.get(..12).unwrap_or(digest),
                    metric("val_loss"),
                    metric("command"),
                )
            }
            Err(error) => format!("{name}  unusable: {error}\n"),
        };
        output::write(&line)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a teacher's card and configuration.
pub fn show(config: &Config, name: &str) -> Result<ExitCode> {
    let registry = Registry::new(&config.distillation.teachers_dir);
    let (dataset, model) = split(name)?;
    let teacher = registry.find(&dataset, &model)?;
    output::write(&teacher.card()?)?;
    output::write(&format!("{}\n", serde_json::to_string_pretty(&teacher.config)?))?;
    Ok(ExitCode::SUCCESS)
}

/// Checks weights against digest and architecture, and that the teacher gives the same outputs twice.
pub fn verify(config: &Config, names: &[String]) -> Result<ExitCode> {
    let registry = Registry::new(&config.distillation.teachers_dir);
    let teachers = match names {
        [] => registry.list()?.into_iter().map(|listed| (listed.dataset, listed.model)).collect(),
        names => names.iter().map(|name| split(name)).collect::<Result<Vec<_>, _>>()?,
    };
    if teachers.is_empty() {
        // An error, so that a script with a misspelt folder does not pass.
        return Err(UsageError(format!(
            "no teacher is registered in {}, so there is none to verify",
            config.distillation.teachers_dir.display()
        ))
        .into());
    }
    let mut failed = 0;
    for (dataset, model) in &teachers {
        let checked = registry
            .find(dataset, model)
            .and_then(|teacher| {
                frozen::registered_architecture(&teacher)?;
                Ok((teacher.load()?, teacher.config))
            })
            .map_err(anyhow::Error::from)
            .and_then(|(weights, config)| Ok(frozen::check(&config, weights)?));
        match checked {
            Ok(()) => output::write(&format!(
                "{dataset}/{model}: undamaged, matches its architecture, gives the same outputs twice\n"
            ))?,
            Err(error) => {
                failed += 1;
                output::write(&format!("{dataset}/{model}: {error:#}\n"))?;
            }
        }
    }
    if failed > 0 {
        return Err(UsageError(format!("{failed} of {} teachers cannot be used", teachers.len())).into());
    }
    Ok(ExitCode::SUCCESS)
}

/// Arguments of `kdgat teachers cache`.
#[derive(Args, Debug)]
pub struct CacheArgs {
    /// Compute only the targets of part I of N, such as 2/8. Compute each part on another machine, then join them with --parts N. Of the nodes
    /// of one large graph, with --teacher-fanouts
    #[arg(long, value_name = "I/N", conflicts_with = "parts")]
    pub part: Option<Share>,
    #[command(flatten)]
    pub in_parts: PartsArgs,
    #[command(flatten)]
    pub settings: Settings,
}

/// The configuration of `kdgat teachers cache`.
pub fn cache_config(args: &CacheArgs) -> Result<Config> {
    let reader = match args.settings.load()?.config.data_kind {
        DataKind::OneGraph => Reader::CacheNodes,
        DataKind::Graphs => Reader::CacheGraphs,
        DataKind::Windows => Reader::Cache,
    };
    Ok(args.settings.load_reading(reader)?.config)
}

/// Fills the cache file of a teacher's targets, or continues an interrupted fill.
pub fn cache(config: &Config, args: &CacheArgs) -> Result<ExitCode> {
    let targets = CachedTargets::open(config)?;
    let unit = targets.unit();
    match args.in_parts.parts {
        Some(parts) => in_parts(config, args, targets, usize::from(parts)),
        None => describe(&targets.fill(args.part)?, unit),
    }
}

fn describe(cached: &Cached, unit: &str) -> Result<ExitCode> {
    let what = if cached.interrupted { "interrupted; run the same command again to continue" } else { "complete" };
    output::write(&format!(
        "{what}: targets of {} of {} {unit} ({} when complete), {} computed now in {:.1} s: {}\n",
        cached.filled,
        cached.wanted,
        format_bytes(cached.bytes),
        cached.computed,
        cached.seconds,
        cached.path.display()
    ))?;
    Ok(if cached.interrupted { ExitCode::from(exit::INTERRUPTED) } else { ExitCode::SUCCESS })
}

fn in_parts(config: &Config, args: &CacheArgs, targets: CachedTargets, count: usize) -> Result<ExitCode> {
    if config.data_kind == DataKind::OneGraph && config.nodes.teacher_fanouts.is_none() {
        let text = "--parts needs --teacher-fanouts: exact targets are computed layer by layer for all nodes at once";
        return Err(UsageError(text.to_owned()).into());
    }
    let unit = targets.unit();
    let jobs = args.in_parts.jobs_file.as_deref().map(JobsFile::read).transpose()?.unwrap_or_default();
    let name = targets.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
    let plan = parts::plan_of_targets(&name, config, count, &jobs);
    // For all processes together: the configured limit for tensors, plus the overhead of a process.
    let memory_bytes = config.memory.memory_limit.map(|size| size.0 + PROCESS_BYTES);
    let slots = run::slots(&plan, &Wish { jobs: args.in_parts.jobs, memory_bytes })?;
    let folder = SweepFolder::at(&targets.notes(count))?;
    if args.in_parts.dry_run {
        return part_runs::print(args.in_parts.executor, &folder, &plan, &slots);
    }
    if targets.is_complete()? {
        return describe(&targets.fill(None)?, unit);
    }
    let what = format!("targets {name}");
    match part_runs::run(args.in_parts.executor, &folder, &plan, &slots, &what, |share| targets.has(share))? {
        Ended::Done => describe(&targets.merge(count)?, unit),
        ended => part_runs::report(ended, &folder, &plan),
    }
}

fn split(name: &str) -> Result<(String, String), UsageError> {
    match name.split_once('/') {
        Some((dataset, model)) if !dataset.is_empty() && !model.is_empty() => Ok((dataset.into(), model.into())),
        _ => Err(UsageError(format!("a teacher is named DATASET/MODEL, such as sim/vgae (got '{name}')"))),
    }
}
