//! `kdgat teachers`: lists, shows and verifies teachers, and caches their outputs.

use std::process::ExitCode;

use anyhow::Result;

use super::exit::UsageError;
use super::output;
use crate::config::Config;
use crate::distill::frozen;
use crate::distill::planner::format_bytes;
use crate::distill::registry::Registry;
use crate::stage;

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

/// Fills the cache file of a teacher's targets, or continues an interrupted fill.
pub fn cache(config: &Config) -> Result<ExitCode> {
    let cached = stage::cache_teacher(config)?;
    let what = if cached.interrupted { "interrupted; run the same command again to continue" } else { "complete" };
    output::write(&format!(
        "{what}: targets of {} of {} graphs ({} when complete), {} computed now in {:.1} s: {}\n",
        cached.filled,
        cached.wanted,
        format_bytes(cached.bytes),
        cached.computed,
        cached.seconds,
        cached.path.display()
    ))?;
    Ok(if cached.interrupted { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn split(name: &str) -> Result<(String, String), UsageError> {
    match name.split_once('/') {
        Some((dataset, model)) if !dataset.is_empty() && !model.is_empty() => Ok((dataset.into(), model.into())),
        _ => Err(UsageError(format!("a teacher is named DATASET/MODEL, such as sim/vgae (got '{name}')"))),
    }
}
