//! `kdgat teachers`: list, show, verify.

use std::process::ExitCode;

use anyhow::Result;

use super::exit::UsageError;
use super::output;
use crate::config::Config;
use crate::distill::frozen;
use crate::distill::registry::Registry;

/// One line a registered teacher.
pub fn list(config: &Config) -> Result<ExitCode> {
    let registry = Registry::new(&config.distillation.teachers_dir);
    let teachers = registry.list()?;
    if teachers.is_empty() {
        output::write(&format!(
            "no teacher is registered in {}; `kdgat autoencoder --preset vgae,teacher` trains one\n",
            config.distillation.teachers_dir.display()
        ))?;
    }
    for (dataset, model) in teachers {
        let line = match registry.find(&dataset, &model, "") {
            Ok(teacher) => format!(
                "{dataset}/{model}  {:.2} MB  digest {}  {}\n",
                teacher.weights.bytes() as f64 / 1e6,
                &teacher.weights.digest()[..12],
                teacher.config.metrics
            ),
            Err(error) => format!("{dataset}/{model}  unusable: {error}\n"),
        };
        output::write(&line)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The card, and the configuration.
pub fn show(config: &Config, name: &str) -> Result<ExitCode> {
    let registry = Registry::new(&config.distillation.teachers_dir);
    let (dataset, model) = split(name)?;
    let teacher = registry.find(&dataset, &model, &training_command(&model))?;
    output::write(&registry.card(&dataset, &model)?)?;
    output::write(&format!("\n{}\n", serde_json::to_string_pretty(&teacher.config)?))?;
    Ok(ExitCode::SUCCESS)
}

/// Checks weights against digest and architecture, and that the teacher answers the same twice.
pub fn verify(config: &Config, names: &[String]) -> Result<ExitCode> {
    let registry = Registry::new(&config.distillation.teachers_dir);
    let teachers = match names {
        [] => registry.list()?,
        names => names.iter().map(|name| split(name)).collect::<Result<_, _>>()?,
    };
    let mut failed = 0;
    for (dataset, model) in &teachers {
        let checked = registry
            .find(dataset, model, &training_command(model))
            .map_err(anyhow::Error::from)
            .and_then(|teacher| Ok(frozen::check(teacher)?));
        match checked {
            Ok(()) => {
                output::write(&format!("{dataset}/{model}: whole, fits its architecture, answers the same twice\n"))?
            }
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

fn split(name: &str) -> Result<(String, String), UsageError> {
    match name.split_once('/') {
        Some((dataset, model)) if !dataset.is_empty() && !model.is_empty() => Ok((dataset.into(), model.into())),
        _ => Err(UsageError(format!("a teacher is named DATASET/MODEL, such as sim/vgae (got '{name}')"))),
    }
}

fn training_command(model: &str) -> String {
    let stage = if model == "vgae" { "autoencoder" } else { "normal" };
    format!("kdgat {stage} --preset {model},teacher")
}
