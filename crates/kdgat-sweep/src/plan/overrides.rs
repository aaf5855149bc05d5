//! `--set [STEP.]FIELD=A,B,C`: replaces the values of an axis, adds an axis, or sets one value for all trials.

use super::axis::{known_field, split};
use super::expand::EVALUATED_SECTIONS;
use super::file::{AxisEntry, StepCommand, SweepFile};
use crate::SweepError;

/// Applies one `--set` argument to the file.
///
/// # Errors
/// If the argument has no `=` or no value, names an unknown field or step, or gives a seed that is not a whole number. Other values are
/// checked by [`expand`](fn@super::expand).
pub fn apply(file: &mut SweepFile, flag: &str) -> Result<(), SweepError> {
    let usage = |what: String| SweepError::Usage(format!("--set {flag}: {what}"));
    let Some((target, text)) = flag.split_once('=') else {
        return Err(usage("expected FIELD=VALUE,VALUE,...".to_owned()));
    };
    let (step, name) = match target.split_once('.') {
        Some((step, name)) => (Some(step), name),
        None => (None, target),
    };
    let field = known_field(name.trim()).map_err(usage)?;
    if let Some(step) = step.filter(|step| !file.step.iter().any(|known| known.name == **step)) {
        let near = kdgat_config::nearest(step, file.step.iter().map(|known| known.name.as_str()));
        return Err(usage(format!("there is no step `{step}`; the nearest is `{near}`")));
    }
    let values = values(field, text);
    if values.is_empty() {
        return Err(usage("the value is missing".to_owned()));
    }
    if field == "seed" && step.is_none() && !file.axis.iter().any(|axis| varies(axis, field)) {
        let seed =
            |text: &String| text.parse().map_err(|_| usage(format!("`{text}` is not a seed; expected a whole number")));
        file.seeds = values.iter().map(seed).collect::<Result<_, _>>()?;
        return Ok(());
    }
    let named =
        |axis: &&mut AxisEntry| varies(axis, field) && step.is_none_or(|step| axis.steps.iter().any(|s| s == step));
    if let Some(axis) = file.axis.iter_mut().find(named) {
        if field == "data" {
            *axis = AxisEntry {
                name: axis.name.clone(),
                steps: axis.steps.clone(),
                datasets: Some(values),
                ..Default::default()
            };
        } else {
            let values = values.into_iter().map(toml::Value::String).collect();
            *axis = AxisEntry {
                name: axis.name.clone(),
                steps: axis.steps.clone(),
                field: Some(field.to_owned()),
                values: Some(values),
                ..Default::default()
            };
        }
        return Ok(());
    }
    if let [value] = &values[..] {
        let judges = kdgat_config::field(field).is_some_and(|field| EVALUATED_SECTIONS.contains(&field.section.name));
        let meant = |name: &str, command: StepCommand| match step {
            Some(step) => step == name,
            None => command != StepCommand::Evaluate || judges,
        };
        for step in file.step.iter_mut().filter(|step| meant(&step.name, step.command)) {
            step.set.retain(|name, _| kdgat_config::field(name).is_none_or(|known| known.name != field));
            step.set.insert(field.to_owned(), toml::Value::String(value.clone()));
        }
        return Ok(());
    }
    file.axis.push(AxisEntry {
        field: Some(field.to_owned()),
        steps: step.map(str::to_owned).into_iter().collect(),
        values: Some(values.into_iter().map(toml::Value::String).collect()),
        ..AxisEntry::default()
    });
    Ok(())
}

/// True if the axis varies this field.
fn varies(axis: &AxisEntry, field: &str) -> bool {
    let of_field = axis.field.as_deref().and_then(kdgat_config::field).is_some_and(|known| known.name == field);
    of_field || (field == "data" && axis.datasets.is_some())
}

/// Splits the values of a field: at commas, or at semicolons for a field whose value is a list.
fn values(field: &str, text: &str) -> Vec<String> {
    let is_list = kdgat_config::field(field).is_some_and(|field| field.kind.placeholder.contains(','));
    match is_list {
        true => text.split(';').map(|value| split(value).join(",")).filter(|value| !value.is_empty()).collect(),
        false => split(text),
    }
}
