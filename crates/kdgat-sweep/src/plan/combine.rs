//! Combinations of the axes: Cartesian product, zipped, or drawn at random, without the excluded ones.

use std::collections::{BTreeMap, HashSet};

use super::axis::{Axis, Choice, Choices, MOST, same_value};
use super::file::{Combine, SweepFile, text_of};
use kdgat_base::random::{self, Purpose};
use kdgat_config::{Field, nearest};

/// An axis and the field that it varies.
type Known<'a> = (&'a Axis, Option<&'static Field>);

/// One choice for each axis.
pub type Combination = Vec<Choice>;

/// Returns all combinations in the order of the file: the first axis varies slowest, and the seed is the last choice.
///
/// # Errors
/// All problems of the axes, samples and exclusions.
pub fn combinations(file: &SweepFile, axes: &[Axis]) -> Result<Vec<Combination>, Vec<String>> {
    let seeds = Axis::of_seeds(&file.seeds);
    let all: Vec<Known> = axes.iter().chain(&seeds).map(|axis| (axis, axis.field())).collect();
    let mut problems = Vec::new();
    if let (Combine::Product | Combine::Zip, Some(_)) = (file.combine, file.samples) {
        problems.push("`samples` is used with combine = \"random\"; remove it, or set that".to_owned());
    }
    problems.extend(unknown_exclusions(file, &all));
    if count(file, axes).is_none_or(|count| count > MOST) {
        problems.push(format!("the sweep has more than {MOST} trials; give fewer values, seeds or `samples`"));
        return Err(problems);
    }
    let found = match file.combine {
        Combine::Product => product(axes),
        Combine::Zip => zip(axes).unwrap_or_else(|problem| {
            problems.push(problem);
            Vec::new()
        }),
        Combine::Random => match file.samples {
            Some(samples) => draws(axes, file.sampling_seed, samples),
            None => {
                problems.push("combine = \"random\" needs the number of `samples`".to_owned());
                Vec::new()
            }
        },
    };
    let is_kept = |found: &Combination| !file.exclude.iter().any(|rule| excludes(rule, &all, found));
    let kept: Vec<_> = with_seeds(found, seeds.as_ref()).into_iter().filter(is_kept).collect();
    if problems.is_empty() && kept.is_empty() {
        problems.push("everything is excluded, no trial is left; remove an [[exclude]]".to_owned());
    }
    if problems.is_empty() { Ok(kept) } else { Err(problems) }
}

/// Counts trials with all seeds, before exclusions; `None` on overflow.
fn count(file: &SweepFile, axes: &[Axis]) -> Option<u64> {
    let lengths = || axes.iter().map(|axis| listed(axis).len() as u64);
    let combinations = match file.combine {
        Combine::Product => lengths().try_fold(1, u64::checked_mul),
        Combine::Zip => lengths().max().or(Some(1)),
        Combine::Random => file.samples.or(Some(0)),
    };
    combinations?.checked_mul(file.seeds.len().max(1) as u64)
}

fn with_seeds(found: Vec<Combination>, seeds: Option<&Axis>) -> Vec<Combination> {
    let Some(seeds) = seeds.map(listed) else { return found };
    let repeat = |start: Combination| seeds.iter().map(move |seed| [&start[..], std::slice::from_ref(seed)].concat());
    found.into_iter().flat_map(repeat).collect()
}

fn listed(axis: &Axis) -> &[Choice] {
    match &axis.choices {
        Choices::Listed(listed) => listed,
        // A range without a count is only accepted for random draws.
        Choices::Between { .. } => &[],
    }
}

fn product(axes: &[Axis]) -> Vec<Combination> {
    axes.iter().fold(vec![Vec::new()], |found, axis| {
        let longer = |start: &Combination| {
            let start = start.clone();
            listed(axis).iter().map(move |choice| [&start[..], std::slice::from_ref(choice)].concat())
        };
        found.iter().flat_map(longer).collect()
    })
}

fn zip(axes: &[Axis]) -> Result<Vec<Combination>, String> {
    let lengths: Vec<usize> = axes.iter().map(|axis| listed(axis).len()).collect();
    if lengths.windows(2).any(|pair| pair[0] != pair[1]) {
        let described: Vec<String> =
            axes.iter().zip(&lengths).map(|(axis, length)| format!("{} {length}", axis.name)).collect();
        return Err(format!(
            "combine = \"zip\" needs axes of the same length (got {}); use \"product\"",
            described.join(", ")
        ));
    }
    let length = lengths.first().copied().unwrap_or(1);
    Ok((0..length).map(|at| axes.iter().map(|axis| listed(axis)[at].clone()).collect()).collect())
}

/// Draws combinations. A draw depends only on the seed, the sample's number and the axis, so more samples do not change the
/// first ones. Duplicates are dropped.
fn draws(axes: &[Axis], seed: u64, samples: u64) -> Vec<Combination> {
    let mut seen: HashSet<Combination> = HashSet::new();
    let combination = |sample| {
        let draw =
            |(number, axis): (usize, &Axis)| axis.draw(random::bits(seed, Purpose::Sweep, number as u64, sample));
        axes.iter().enumerate().map(draw).collect::<Combination>()
    };
    (0..samples).map(combination).filter(|combination| seen.insert(combination.clone())).collect()
}

fn unknown_exclusions(file: &SweepFile, axes: &[Known]) -> Vec<String> {
    let mut problems = Vec::new();
    for rule in &file.exclude {
        if rule.is_empty() {
            problems.push("an [[exclude]] without a value would exclude everything; remove it".to_owned());
        }
        for (name, value) in rule {
            let Some(&(axis, field)) = axes.iter().find(|(axis, _)| axis.name == *name) else {
                let near = nearest(name, axes.iter().map(|(axis, _)| axis.name.as_str()));
                problems.push(format!("[[exclude]]: there is no axis `{name}`; the nearest is `{near}`"));
                continue;
            };
            let is_there = |text: &str| listed(axis).iter().any(|choice| same_value(field, &choice.label, text));
            for text in texts(value).iter().filter(|text| !listed(axis).is_empty() && !is_there(text)) {
                let near = nearest(text, listed(axis).iter().map(|choice| choice.label.as_str()));
                problems.push(format!("[[exclude]]: axis `{name}` has no value `{text}`; the nearest is `{near}`"));
            }
        }
    }
    problems
}

fn excludes(rule: &BTreeMap<String, toml::Value>, axes: &[Known], found: &Combination) -> bool {
    rule.iter().all(|(name, value)| {
        let mut pairs = axes.iter().zip(found);
        let Some((&(_, field), choice)) = pairs.find(|((axis, _), _)| axis.name == *name) else { return false };
        texts(value).iter().any(|text| same_value(field, &choice.label, text))
    })
}

/// Returns the text of a value, or of each element of a list.
fn texts(value: &toml::Value) -> Vec<String> {
    match value {
        toml::Value::Array(elements) => elements.iter().map(text_of).collect(),
        one => vec![text_of(one)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> (SweepFile, Vec<Axis>) {
        let file = SweepFile::parse("test", &format!("metric = \"val_loss\"\n{text}")).unwrap();
        let draws = file.combine == Combine::Random;
        let axes = file.axis.iter().map(|entry| Axis::new(entry, draws).unwrap()).collect();
        (file, axes)
    }

    fn labels(text: &str) -> Vec<String> {
        let (file, axes) = file(text);
        let found = combinations(&file, &axes).unwrap();
        found
            .iter()
            .map(|found| found.iter().map(|choice| choice.label.clone()).collect::<Vec<_>>().join(" "))
            .collect()
    }

    const AXES: &str =
        "[[axis]]\nfield = \"kd_alpha\"\nvalues = [0.5, 0.9]\n[[axis]]\nfield = \"kd_temperature\"\nvalues = [1, 4]\n";

    #[test]
    fn product_zip_and_exclusions() {
        assert_eq!(labels(AXES), ["0.5 1", "0.5 4", "0.9 1", "0.9 4"]);
        assert_eq!(labels(&format!("combine = \"zip\"\n{AXES}")), ["0.5 1", "0.9 4"]);
        let excluded = format!("{AXES}[[exclude]]\nkd_alpha = 0.9\nkd_temperature = [1, 4]\n");
        assert_eq!(labels(&excluded), ["0.5 1", "0.5 4"]);
    }

    #[test]
    fn more_draws_keep_the_first() {
        let random = |samples: u64, seed: u64| {
            labels(&format!(
                "combine = \"random\"\nsamples = {samples}\nsampling_seed = {seed}\n[[axis]]\nfield = \"lr\"\n\
                 range = {{ from = 1e-4, to = 1e-2, scale = \"log\" }}\n[[axis]]\nfield = \"heads\"\nrange = {{ from = 1, to = 4 }}\n"
            ))
        };
        let (few, many) = (random(5, 1), random(40, 1));
        assert_eq!(few[..], many[..5]);
        assert_ne!(few, random(5, 2));
        for heads in ["1", "2", "3", "4"] {
            assert!(
                many.iter().any(|label| label.ends_with(&format!(" {heads}"))),
                "{heads} was never drawn: {many:?}"
            );
        }
        let rates: Vec<f64> = many.iter().map(|label| label.split(' ').next().unwrap().parse().unwrap()).collect();
        assert!(rates.iter().all(|rate| (1e-4..=1e-2).contains(rate)));
        let below = rates.iter().filter(|rate| **rate < 1e-3).count();
        assert!((10..=30).contains(&below), "{below} of 40 draws are in the lower decade");
    }

    #[test]
    fn values_are_excluded_however_they_are_written() {
        let axes = "[[axis]]\nname = \"rate\"\nfield = \"lr\"\nvalues = [0.001, \"2e-3\"]\n\
                    [[axis]]\nfield = \"use_kd\"\nvalues = [true, \"no\"]\n";
        let left = |rule: &str| labels(&format!("{axes}[[exclude]]\n{rule}\n"));
        assert_eq!(left("rate = \"1e-3\""), ["2e-3 true", "2e-3 no"]);
        assert_eq!(left("rate = 0.002\nuse_kd = false"), ["0.001 true", "0.001 no", "2e-3 true"]);
        let seeds = "seeds = [1, 2]\n[[axis]]\nfield = \"lr\"\nvalues = [0.1, 0.2]\n[[exclude]]\n";
        assert_eq!(labels(&format!("{seeds}seed = 2\nlr = 1e-1\n")), ["0.1 1", "0.2 1", "0.2 2"]);
        let (file, axes) = file(&format!("{seeds}seed = 3\n"));
        let said = combinations(&file, &axes).unwrap_err().join("\n");
        assert!(said.contains("axis `seed` has no value `3`; the nearest is `1`"), "{said}");
    }

    #[test]
    fn whole_numbers_have_no_signed_zero() {
        let text = "combine = \"random\"\nsamples = 64\n[[axis]]\nfield = \"seed\"\nrange = { from = 0, to = 3 }\n";
        let mut drawn = labels(text);
        drawn.sort();
        assert_eq!(drawn, ["0", "1", "2", "3"]);
        let text = "[[axis]]\nfield = \"seed\"\nrange = { from = -1, to = 0, count = 6 }\n";
        assert_eq!(labels(text), ["-1", "0"]);
    }

    #[test]
    fn too_many_trials_are_refused_before_they_are_expanded() {
        let refused = |text: &str| {
            let (file, axes) = file(text);
            combinations(&file, &axes).unwrap_err().join("\n")
        };
        let axis =
            |field: &str| format!("[[axis]]\nfield = \"{field}\"\nrange = {{ from = 0.1, to = 0.9, count = 400 }}\n");
        assert!(refused(&format!("{}{}", axis("kd_alpha"), axis("lr"))).contains("more than 100000 trials"));
        assert!(refused(&format!("seeds = [{}]\n{}", "1, ".repeat(300), axis("lr"))).contains("fewer values, seeds"));
        let random = "combine = \"random\"\nsamples = 100000000000\n[[axis]]\nfield = \"lr\"\nvalues = [0.1, 0.2]\n";
        assert!(refused(random).contains("more than 100000 trials"));
        let range = "[[axis]]\nfield = \"lr\"\nrange = { from = 0.1, to = 0.9, count = 100000000000 }\n";
        let file = SweepFile::parse("test", &format!("metric = \"val_loss\"\n{range}")).unwrap();
        assert!(Axis::new(&file.axis[0], false).unwrap_err().contains("values (got count = 100000000000)"));
    }

    #[test]
    fn a_range_has_both_ends() {
        let text = "[[axis]]\nfield = \"lr\"\nrange = { from = 1e-4, to = 1e-2, count = 3, scale = \"log\" }\n";
        assert_eq!(labels(text), ["0.0001", "0.001", "0.01"]);
        let text = "[[axis]]\nfield = \"latent\"\nrange = { from = 4, to = 16, count = 4 }\n";
        assert_eq!(labels(text), ["4", "8", "12", "16"]);
    }

    #[test]
    fn invalid_axes_and_exclusions_are_reported() {
        let wrong = |text: &str| {
            let (file, axes) = file(text);
            combinations(&file, &axes).unwrap_err().join("\n")
        };
        assert!(wrong(&format!("{AXES}[[exclude]]\nkd_alhpa = 0.9\n")).contains("`kd_alpha`"));
        assert!(wrong(&format!("{AXES}[[exclude]]\nkd_alpha = 0.8\n")).contains("no value `0.8`"));
        assert!(wrong(&format!("{AXES}[[exclude]]\nkd_alpha = [0.5, 0.9]\n")).contains("no trial is left"));
        assert!(wrong(&format!("samples = 3\n{AXES}")).contains("random"));
        let unequal =
            "combine = \"zip\"\n[[axis]]\nfield = \"lr\"\nvalues = [1]\n[[axis]]\nfield = \"seed\"\nvalues = [1, 2]\n";
        assert!(wrong(unequal).contains("same length"));
        let entry = |text: &str| {
            let file = SweepFile::parse("test", &format!("metric = \"val_loss\"\n[[axis]]\n{text}")).unwrap();
            Axis::new(&file.axis[0], false).unwrap_err()
        };
        assert!(entry("field = \"kd_alhpa\"\nvalues = [1]").contains("`kd_alpha`"));
        assert!(entry("field = \"lr\"").contains("exactly one"));
        assert!(entry("field = \"lr\"\nrange = { from = 1, to = 2 }").contains("count"));
        assert!(entry("field = \"lr\"\nvalues = [1, 1]").contains("twice"));
    }
}
