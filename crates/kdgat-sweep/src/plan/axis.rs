//! Axes of a sweep: reads the entries of the sweep file and lists or draws their choices.

use std::collections::HashSet;

use super::file::{AxisEntry, Range, Scale, text_of};
use kdgat_base::random;
use kdgat_config::{self, Field};

/// Maximum values of a range, and trials of a sweep. More are a mistake, and would fill the memory before anything runs.
pub const MOST: u64 = 100_000;

/// One varied setting.
#[derive(Clone, Debug)]
pub struct Axis {
    /// Name, also the axis' column in the table.
    pub name: String,
    /// Steps that it applies to; empty for all.
    pub steps: Vec<String>,
    pub choices: Choices,
}

/// The values of an axis.
#[derive(Clone, Debug)]
pub enum Choices {
    Listed(Vec<Choice>),
    /// Any number between two inclusive bounds, for random draws.
    Between {
        field: String,
        from: f64,
        to: f64,
        scale: Scale,
        integer: bool,
    },
}

/// One value of an axis: its label and the settings that it applies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Choice {
    pub label: String,
    /// Presets that are added to those of the step.
    pub presets: Vec<String>,
    /// Pairs of a field and its value as text.
    pub settings: Vec<(String, String)>,
}

impl Choice {
    /// Creates the choice of one value for a field.
    pub fn setting(field: &str, text: String) -> Self {
        Self { label: text.clone(), presets: Vec::new(), settings: vec![(field.to_owned(), text)] }
    }

    /// True if it sets only this field, to the value that is its label.
    fn is_value_of(&self, field: &str) -> bool {
        matches!(&self.settings[..], [(name, text)] if name == field && *text == self.label)
    }
}

impl Axis {
    /// Creates the axis of a file's seeds, which applies to all steps; `None` without seeds.
    pub fn of_seeds(seeds: &[u64]) -> Option<Self> {
        let choices = seeds.iter().map(|seed| Choice::setting("seed", seed.to_string())).collect();
        let axis = Self { name: "seed".to_owned(), steps: Vec::new(), choices: Choices::Listed(choices) };
        (!seeds.is_empty()).then_some(axis)
    }

    /// Returns the field that the axis varies; `None` for presets, cases and datasets, whose labels are names.
    pub fn field(&self) -> Option<&'static Field> {
        let name = match &self.choices {
            Choices::Between { field, .. } => field,
            Choices::Listed(listed) => match &listed.first()?.settings[..] {
                [(field, _)] if listed.iter().all(|choice| choice.is_value_of(field)) => field,
                _ => return None,
            },
        };
        kdgat_config::field(name)
    }

    /// Reads an `[[axis]]` entry. `draws` is true if values are drawn at random, so that ranges need no count.
    ///
    /// # Errors
    /// The message for an invalid entry.
    pub fn new(entry: &AxisEntry, draws: bool) -> Result<Self, String> {
        let what =
            entry.name.as_ref().or(entry.field.as_ref()).map_or("an axis".to_owned(), |name| format!("axis `{name}`"));
        let kinds = [
            ("values", entry.values.is_some()),
            ("range", entry.range.is_some()),
            ("presets", entry.presets.is_some()),
            ("datasets", entry.datasets.is_some()),
            ("cases", entry.cases.is_some()),
        ];
        let given: Vec<&str> = kinds.iter().filter(|(_, given)| *given).map(|(name, _)| *name).collect();
        if given.len() != 1 {
            let found = if given.is_empty() { "none".to_owned() } else { given.join(" and ") };
            return Err(format!("{what} has {found} of values, range, presets, datasets and cases; give exactly one"));
        }
        let needs_field = entry.values.is_some() || entry.range.is_some();
        if needs_field != entry.field.is_some() {
            let remedy = if needs_field { "name the field" } else { "remove `field`, or use `values`" };
            return Err(format!("{what}: `field` is used with `values` or `range` (found {}); {remedy}", given[0]));
        }
        let field = entry.field.as_deref().map(known_field).transpose().map_err(|wrong| format!("{what}: {wrong}"))?;
        let choices = choices(entry, field, draws).map_err(|wrong| format!("{what}: {wrong}"))?;
        if let Choices::Listed(listed) = &choices {
            if listed.is_empty() {
                return Err(format!("{what} has no value; give at least one"));
            }
            let mut seen = HashSet::new();
            if let Some(choice) = listed.iter().find(|choice| !seen.insert(&choice.label)) {
                return Err(format!("{what}: value `{}` appears twice; remove one", choice.label));
            }
        }
        let fallback = match given[0] {
            "presets" => "preset",
            "datasets" => "data",
            "cases" => "case",
            _ => field.unwrap_or_default(),
        };
        let name = entry.name.clone().unwrap_or_else(|| fallback.to_owned());
        Ok(Self { name, steps: entry.steps.clone(), choices })
    }

    /// Returns the choice for these random bits.
    pub fn draw(&self, bits: u64) -> Choice {
        match &self.choices {
            Choices::Listed(listed) => listed[random::to_below(bits, listed.len() as u64) as usize].clone(),
            Choices::Between { field, from, to, scale, integer } => {
                // An integer covers the unit interval around it, so that both ends are as likely as the rest.
                let half = if *integer { 0.5 } else { 0.0 };
                let number = between(from - half, to + half, random::to_unit(bits), *scale);
                let text = if *integer { whole(number.clamp(*from, *to)) } else { short(number) };
                Choice::setting(field, text)
            }
        }
    }
}

fn choices(entry: &AxisEntry, field: Option<&'static str>, draws: bool) -> Result<Choices, String> {
    let field = field.unwrap_or_default();
    if let Some(values) = &entry.values {
        return Ok(Choices::Listed(values.iter().map(|value| Choice::setting(field, text_of(value))).collect()));
    }
    if let Some(range) = &entry.range {
        return of_range(field, range, draws);
    }
    if let Some(presets) = &entry.presets {
        let choice = |names: &String| Choice { label: names.clone(), presets: split(names), settings: Vec::new() };
        return Ok(Choices::Listed(presets.iter().map(choice).collect()));
    }
    if let Some(datasets) = &entry.datasets {
        let choice = |name: &String| {
            // The simulated dataset has a name in results, but no folder.
            let text = if name == kdgat_can::catalogue::SIMULATED { "none" } else { name };
            Choice { label: name.clone(), ..Choice::setting("data", text.to_owned()) }
        };
        return Ok(Choices::Listed(datasets.iter().map(choice).collect()));
    }
    let mut listed = Vec::new();
    for case in entry.cases.iter().flatten() {
        let Some(label) = case.get("label") else { return Err("every case needs a `label`".to_owned()) };
        let fields = case.iter().filter(|(name, _)| *name != "label");
        let settings = fields.map(|(name, value)| Ok((known_field(name)?.to_owned(), text_of(value))));
        let settings = settings.collect::<Result<Vec<_>, String>>()?;
        listed.push(Choice { label: text_of(label), presets: Vec::new(), settings });
    }
    Ok(Choices::Listed(listed))
}

fn of_range(field: &'static str, range: &Range, draws: bool) -> Result<Choices, String> {
    let number = |value: &toml::Value| value.as_float().or(value.as_integer().map(|number| number as f64));
    let (Some(from), Some(to)) = (number(&range.from), number(&range.to)) else {
        return Err("`from` and `to` of a range must be numbers".to_owned());
    };
    let integer = range.from.is_integer() && range.to.is_integer();
    if !(from.is_finite() && to.is_finite() && from < to) {
        return Err(format!("`from` of a range must be below `to` (got {from} to {to})"));
    }
    if range.scale == Scale::Log && from <= 0.0 {
        return Err(format!("`from` of a logarithmic range must be above 0 (got {from})"));
    }
    let Some(count) = range.count else {
        return match draws {
            true => Ok(Choices::Between { field: field.to_owned(), from, to, scale: range.scale, integer }),
            false => Err("a range needs a `count` unless combine = \"random\"".to_owned()),
        };
    };
    if count < 2 {
        return Err(format!("a range needs at least 2 values (got count = {count})"));
    }
    if count > MOST {
        return Err(format!(
            "a range can have at most {MOST} values (got count = {count}); with combine = \"random\" omit `count`"
        ));
    }
    let value = |index: u64| {
        let number = between(from, to, index as f64 / (count - 1) as f64, range.scale);
        if integer { whole(number) } else { short(number) }
    };
    let mut texts: Vec<String> = (0..count).map(value).collect();
    texts.dedup();
    Ok(Choices::Listed(texts.into_iter().map(|text| Choice::setting(field, text)).collect()))
}

/// Interpolates between two bounds on the given scale; `share` is from 0 to 1.
fn between(from: f64, to: f64, share: f64, scale: Scale) -> f64 {
    match scale {
        Scale::Linear => from + share * (to - from),
        Scale::Log => (from.max(f64::MIN_POSITIVE).ln() * (1.0 - share) + to.ln() * share).exp(),
    }
}

/// Rounds to the nearest integer, as text.
fn whole(number: f64) -> String {
    unsigned_zero(number.round()).to_string()
}

/// Rounds to six significant digits, as text: readable, and the same on every machine.
fn short(number: f64) -> String {
    unsigned_zero(format!("{number:.5e}").parse().unwrap_or(number)).to_string()
}

/// Replaces a negative zero: no field accepts `-0`.
fn unsigned_zero(number: f64) -> f64 {
    if number == 0.0 { 0.0 } else { number }
}

/// True if two texts are the same value of a field, such as `1e-3` and `0.001`. Without a field, compares the texts.
pub fn same_value(field: Option<&Field>, left: &str, right: &str) -> bool {
    let read = |text| field.and_then(|field| (field.read)(text)).map(|(value, _)| value);
    left == right || read(left).is_some_and(|value| read(right) == Some(value))
}

/// Returns the canonical name of a field.
///
/// # Errors
/// A message with the nearest known name.
pub fn known_field(name: &str) -> Result<&'static str, String> {
    kdgat_config::field(name)
        .map(|field| field.name)
        .ok_or_else(|| format!("unknown field `{name}`; the nearest is `{}`", kdgat_config::nearest_field(name)))
}

/// Splits a comma-separated list such as `vgae,student`.
pub fn split(presets: &str) -> Vec<String> {
    presets.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}
