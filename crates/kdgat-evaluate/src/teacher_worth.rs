//! The worth of a teacher: metrics of distilled students minus those of the same students alone, on each test folder.
//!
//! Two things are random: the seeds of the trainings and the traffic of the test. Both are resampled, independently of each other (the
//! pigeonhole bootstrap, Owen 2007), so that neither five trainings that agree about one window nor one training alone make a difference
//! significant. Neighbouring windows are similar, so stretches of n^⅓ of n windows are drawn instead of single ones (Carlstein 1986; the
//! length grows as in Hall, Horowitz & Jing 1995). With a single seed, the interval is over traffic alone.
//!
//! A teacher is a third draw: all its students inherit what its own training happened to learn. Students of the same settings and several
//! teachers are therefore also compared over all of these, which are resampled as well.

use std::ops::Range;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::bootstrap::{Bootstrap, Drawn, Interval, middle};
use super::graph_comparisons::{Verdict, verdict};
use super::graph_runs::Mean;
use super::judge::{CalibrateBy, JudgedFolder, NOT_CALIBRATED, Subject, TestFile};
use super::metrics::{F1, METRICS, RECALL_AT_FPR_1, ROC_AUC, Sample};
use super::tables::{ModelReport, groups, groups_by};
use super::text_table::{LINE_WIDTH, Table};
use kdgat_config::run_settings::{Setting, TEACHER, is_of_teacher};

/// Positions of the compared metrics in [`METRICS`], with their names in the table. F1 is at the recorded threshold, which a validation set
/// chose for each model; the recall at one rate of false alarms on the test tells whether a difference in F1 is one of that choice.
const COMPARED: [(usize, &str); 3] = [(F1, "F1"), (ROC_AUC, "ROC AUC"), (RECALL_AT_FPR_1, "recall at 1 % FPR")];

/// Values of the compared metrics.
type Compared = [f64; COMPARED.len()];

/// A metric of distilled students minus that of the same students alone, on one test folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TeacherWorth {
    /// Group of the distilled students; over several teachers, with their number.
    pub distilled: String,
    /// Group of the same students without a teacher.
    pub alone: String,
    /// Name of the test folder.
    pub folder: String,
    /// `none`, or the traffic that calibrated the scores.
    pub calibration: String,
    /// Name of the metric, as in [`METRICS`].
    pub metric: String,
    /// Number of seeds that all were trained with.
    pub seeds: usize,
    /// Number of teachers: students of the same settings learned from each.
    pub teachers: usize,
    /// Mean over those seeds, and the teachers, of the distilled students.
    pub mean_distilled: f64,
    /// Mean over those seeds of the students alone.
    pub mean_alone: f64,
    /// Difference of the means.
    pub difference: f64,
    /// Its 95 % bootstrap interval, over seeds and traffic; `None` without resamples.
    pub interval: Option<[f64; 2]>,
    /// Conclusion from the interval.
    pub verdict: Verdict,
}

/// The same student alone and with each of the compared teachers, all trained with one seed.
struct OfSeed<T> {
    alone: T,
    taught: Vec<T>,
}

impl<T> OfSeed<T> {
    fn map<'a, U>(&'a self, change: impl Fn(&'a T) -> U) -> OfSeed<U> {
        OfSeed { alone: change(&self.alone), taught: self.taught.iter().map(change).collect() }
    }
}

/// Compares each group of distilled students with the models of the same settings and no teacher, seed by seed; groups that differ by
/// their teacher only are then compared together. `subjects` are the scores of `models`, in the same order. A group without such models
/// has no comparison; a metric that is undefined on a folder has none there.
pub fn compare(
    models: &[ModelReport],
    subjects: &[Subject],
    files: &[TestFile],
    by: Option<&CalibrateBy>,
    bootstrap: &Bootstrap,
) -> Vec<TeacherWorth> {
    let groups = groups(models);
    let mut found = Vec::new();
    for (name, of_teachers) in by_teacher(models, &groups) {
        let distilled = &models[of_teachers[0][0]];
        let is_alone = |(_, group): &&(String, Vec<usize>)| {
            let other = &models[group[0]];
            !other.distilled && other.kind == distilled.kind && base(other) == base(distilled)
        };
        let Some((alone, group)) = groups.iter().find(is_alone) else { continue };
        let seeds = of_seeds(models, &of_teachers, group);
        if seeds.is_empty() {
            continue;
        }
        let judged: Vec<OfSeed<Vec<JudgedFolder>>> =
            seeds.iter().map(|seed| seed.map(|&model| subjects[model].folders(files, by))).collect();
        for folder in 0..judged[0].alone.len() {
            let of_folder: Vec<OfSeed<&JudgedFolder>> =
                judged.iter().map(|seed| seed.map(|folders| &folders[folder])).collect();
            found.extend(compare_folder(&name, alone, &of_folder, bootstrap));
        }
    }
    found
}

/// Settings of a student apart from its teacher.
fn base(model: &ModelReport) -> Vec<&Setting> {
    model.settings.iter().filter(|(name, _)| !is_of_teacher(name)).collect()
}

/// Names and groups of distilled students: each group, and then those of one name and the same settings that differ by their teacher.
fn by_teacher<'a>(models: &[ModelReport], groups: &'a [(String, Vec<usize>)]) -> Vec<(String, Vec<&'a [usize]>)> {
    let taught: Vec<&(String, Vec<usize>)> = groups.iter().filter(|(_, group)| models[group[0]].distilled).collect();
    let mut found: Vec<(String, Vec<&[usize]>)> =
        taught.iter().map(|(name, group)| (name.clone(), vec![&group[..]])).collect();
    for (name, together) in groups_by(models, |setting| setting != TEACHER) {
        let of_teachers = taught.iter().map(|(_, group)| &group[..]).filter(|group| together.contains(&group[0]));
        let of_teachers: Vec<&[usize]> = of_teachers.collect();
        if of_teachers.len() > 1 {
            found.push((format!("{name} ({} teachers)", of_teachers.len()), of_teachers));
        }
    }
    found
}

/// Positions of the models of each seed that students alone and those of every teacher were trained with.
fn of_seeds(models: &[ModelReport], of_teachers: &[&[usize]], alone: &[usize]) -> Vec<OfSeed<usize>> {
    let with_seed = |group: &[usize], seed: u64| group.iter().copied().find(|&model| models[model].seed == Some(seed));
    let mut seeds: Vec<u64> = Vec::new();
    for seed in of_teachers[0].iter().filter_map(|&model| models[model].seed) {
        if !seeds.contains(&seed) {
            seeds.push(seed);
        }
    }
    let of_seed = |seed: u64| {
        let taught: Option<Vec<usize>> = of_teachers.iter().map(|group| with_seed(group, seed)).collect();
        Some(OfSeed { alone: with_seed(alone, seed)?, taught: taught? })
    };
    seeds.into_iter().filter_map(of_seed).collect()
}

/// Differences of the compared metrics of one folder; `seeds` has the judged graphs of each seed.
fn compare_folder(
    distilled: &str,
    alone: &str,
    seeds: &[OfSeed<&JudgedFolder>],
    bootstrap: &Bootstrap,
) -> Vec<TeacherWorth> {
    let folder = seeds[0].alone;
    let samples: Vec<OfSeed<Sample<'_>>> = seeds.iter().map(|seed| seed.map(|folder| sample(folder))).collect();
    let ones = vec![1; folder.scores.len()];
    let values: Vec<OfSeed<Compared>> = samples.iter().map(|seed| seed.map(|sample| compared(sample, &ones))).collect();
    let intervals = intervals(&samples, &stretches(&folder.graphs_of_files), bootstrap);
    let mut found = Vec::new();
    for (position, (metric, _)) in COMPARED.into_iter().enumerate() {
        let mean = |values: Vec<f64>| Mean::of(&values).mean;
        let mean_alone = mean(values.iter().map(|seed| seed.alone[position]).collect());
        let mean_distilled = mean(values.iter().flat_map(|seed| &seed.taught).map(|taught| taught[position]).collect());
        if !(mean_distilled.is_finite() && mean_alone.is_finite()) {
            continue;
        }
        let (low, high) = intervals[position];
        let interval = (low.is_finite() && high.is_finite()).then_some([low, high]);
        found.push(TeacherWorth {
            distilled: distilled.to_owned(),
            alone: alone.to_owned(),
            folder: folder.folder.clone(),
            calibration: folder.calibration.clone(),
            metric: METRICS[metric].to_owned(),
            seeds: seeds.len(),
            teachers: seeds[0].taught.len(),
            mean_distilled,
            mean_alone,
            difference: mean_distilled - mean_alone,
            interval,
            verdict: verdict(interval, false),
        });
    }
    found
}

fn sample(folder: &JudgedFolder) -> Sample<'_> {
    Sample::new(&folder.scores, &folder.labels, std::slice::from_ref(&folder.decision))
}

/// The compared metrics of a sample with graph `g` counted `weights[g]` times.
fn compared(sample: &Sample<'_>, weights: &[u32]) -> Compared {
    let values = sample.weighted(weights)[0];
    COMPARED.map(|(metric, _)| values[metric])
}

/// Stretches of neighbouring graphs, the last one of each file shorter; none spans two files.
fn stretches(graphs_of_files: &[usize]) -> Vec<Range<usize>> {
    let graphs: usize = graphs_of_files.iter().sum();
    let length = ((graphs as f64).cbrt().ceil() as usize).max(1);
    let mut found = Vec::new();
    let mut begin = 0;
    for of_file in graphs_of_files {
        let end = begin + of_file;
        found.extend((begin..end).step_by(length).map(|start| start..(start + length).min(end)));
        begin = end;
    }
    found
}

/// Interval of the mean difference of each compared metric, over seeds, teachers and stretches. Resamples in which a metric is undefined do
/// not count for it.
fn intervals(
    samples: &[OfSeed<Sample<'_>>],
    stretches: &[Range<usize>],
    bootstrap: &Bootstrap,
) -> [Interval; COMPARED.len()] {
    let teachers = samples[0].taught.len();
    let difference = |Draws { stretches: of_stretches, seeds, teachers: of_teachers, weights }: &mut Draws,
                      resample| {
        bootstrap.draw(resample, Drawn::Stretches, stretches.len(), of_stretches);
        bootstrap.draw(resample, Drawn::Seeds, samples.len(), seeds);
        bootstrap.draw(resample, Drawn::Teachers, teachers, of_teachers);
        weights.clear();
        let counted = stretches.iter().zip(of_stretches.iter());
        weights.extend(counted.flat_map(|(stretch, &count)| stretch.clone().map(move |_| count)));
        let mut mean = [0.0; COMPARED.len()];
        let mut add = |values: Compared, share: f64| (0..COMPARED.len()).for_each(|of| mean[of] += share * values[of]);
        for (sample, &count) in samples.iter().zip(seeds.iter()).filter(|(_, count)| **count > 0) {
            let share = f64::from(count) / samples.len() as f64;
            add(compared(&sample.alone, weights), -share);
            for (taught, &count) in sample.taught.iter().zip(of_teachers.iter()).filter(|(_, count)| **count > 0) {
                add(compared(taught, weights), share * f64::from(count) / teachers as f64);
            }
        }
        mean
    };
    let means: Vec<Compared> = (0..bootstrap.resamples).into_par_iter().map_init(Draws::default, difference).collect();
    std::array::from_fn(|metric| {
        middle(means.iter().map(|mean| mean[metric]).filter(|value| !value.is_nan()).collect())
    })
}

/// Counts of the drawn units of a resample, and the resulting weight of each graph.
#[derive(Default)]
struct Draws {
    stretches: Vec<u32>,
    seeds: Vec<u32>,
    teachers: Vec<u32>,
    weights: Vec<u32>,
}

/// A table of the comparisons; empty without any.
pub fn text(found: &[TeacherWorth]) -> String {
    if found.is_empty() {
        return String::new();
    }
    let has_calibrated = found.iter().any(|one| one.calibration != NOT_CALIBRATED);
    let heads = ["metric", "alone", "with it", "difference", "(95 %)", ""];
    let heads = ["students"].into_iter().chain(has_calibrated.then_some("calibration")).chain(heads);
    let mut table = Table::new(&heads.collect::<Vec<_>>());
    for one in found {
        let seeds = if one.seeds == 1 { "1 seed".to_owned() } else { format!("{} seeds", one.seeds) };
        let mut cells = vec![format!("{}, {seeds}, {}", one.distilled, one.folder)];
        cells.extend(has_calibrated.then(|| one.calibration.clone()));
        cells.push(metric_name(&one.metric).to_owned());
        cells.extend([one.mean_alone, one.mean_distilled].map(|value| format!("{value:.4}")));
        cells.push(signed(one.difference));
        cells.push(one.interval.map_or(String::new(), |[low, high]| format!("{} to {}", signed(low), signed(high))));
        cells.push(one.interval.map_or("no interval without resamples", |_| one.verdict.words()).to_owned());
        table.row(cells);
    }
    format!("\nthe same students with their teacher and alone, seed by seed\n\n{}", table.text_within(LINE_WIDTH))
}

/// Formats a difference; one that rounds to 0 has no minus sign.
fn signed(difference: f64) -> String {
    // Adding 0 turns -0 into 0.
    format!("{:+.4}", (difference * 1e4).round() / 1e4 + 0.0)
}

/// A sentence for each group of distilled students and metric: on how many test folders the teacher makes it better or worse. Comparisons
/// without an interval conclude nothing and do not count.
pub fn findings(found: &[TeacherWorth], dataset: &str) -> Vec<String> {
    let mut seen: Vec<(&str, &str, &str)> = Vec::new();
    for one in found.iter().filter(|one| one.interval.is_some()) {
        let key = (one.distilled.as_str(), one.calibration.as_str(), one.metric.as_str());
        if !seen.contains(&key) {
            seen.push(key);
        }
    }
    let sentence = |(distilled, calibration, metric): (&str, &str, &str)| {
        let of_key = |one: &&TeacherWorth| {
            (one.distilled.as_str(), one.calibration.as_str(), one.metric.as_str()) == (distilled, calibration, metric)
        };
        let folders: Vec<&TeacherWorth> = found.iter().filter(of_key).collect();
        let count = |verdict: Verdict| folders.iter().filter(|one| one.verdict == verdict).count();
        let calibrated =
            if calibration == NOT_CALIBRATED { String::new() } else { format!(", calibrated on the {calibration}") };
        format!(
            "{distilled} on {dataset}{calibrated}: {} with the teacher better on {}, worse on {} of {} test folders than alone; the others \
             show no difference.",
            metric_name(metric),
            count(Verdict::Better),
            count(Verdict::Worse),
            folders.len()
        )
    };
    seen.into_iter().map(sentence).collect()
}

/// Name of a compared metric in tables and sentences.
fn metric_name(metric: &str) -> &str {
    COMPARED.iter().find(|(position, _)| METRICS[*position] == metric).map_or(metric, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Decision;

    /// Graphs of two files, every fifth an attack, with these scores.
    fn judged(scores: Vec<f64>) -> JudgedFolder {
        let count = scores.len();
        JudgedFolder {
            folder: "test_01".to_owned(),
            calibration: NOT_CALIBRATED.to_owned(),
            labels: (0..count).map(|graph| graph.is_multiple_of(5)).collect(),
            decision: Decision::above("0.5", 0.5, &scores),
            graphs_of_files: vec![count / 2, count - count / 2],
            scores,
        }
    }

    /// Scores of attacks above those of other graphs, but for every `n`th attack.
    fn missing_every(n: usize, seed: u64) -> JudgedFolder {
        let noise = |graph: usize| kdgat_base::random::unit(seed, kdgat_base::random::Purpose::Step, graph as u64, 0);
        let is_found = |graph: usize| graph.is_multiple_of(5) && !graph.is_multiple_of(5 * n);
        judged((0..1000).map(|graph| if is_found(graph) { 0.6 } else { 0.4 * noise(graph) }).collect())
    }

    /// Compares pairs of a distilled student and the same student alone, one of each seed.
    fn of(pairs: &[[JudgedFolder; 2]], resamples: u64) -> Vec<TeacherWorth> {
        let of_seed =
            |[taught, alone]: &[JudgedFolder; 2]| OfSeed { alone: alone.clone(), taught: vec![taught.clone()] };
        of_teachers(&pairs.iter().map(of_seed).collect::<Vec<_>>(), resamples)
    }

    fn of_teachers(seeds: &[OfSeed<JudgedFolder>], resamples: u64) -> Vec<TeacherWorth> {
        let seeds: Vec<OfSeed<&JudgedFolder>> = seeds.iter().map(|seed| seed.map(|folder| folder)).collect();
        compare_folder("kd", "alone", &seeds, &Bootstrap { resamples, seed: 1 })
    }

    #[test]
    fn stretches_cover_each_file_and_span_none() {
        // 1,000 graphs: stretches of 10.
        let found = stretches(&[25, 0, 975]);
        assert_eq!(found[..4], [0..10, 10..20, 20..25, 25..35]);
        assert_eq!(found.iter().map(ExactSizeIterator::len).sum::<usize>(), 1000);
        assert!(stretches(&[0]).is_empty());
    }

    #[test]
    fn more_missed_attacks_are_worse_and_the_same_are_no_difference() {
        let worse: Vec<_> = (0..3).map(|seed| [missing_every(2, seed), missing_every(20, seed)]).collect();
        let found = of(&worse, 200);
        let metrics: Vec<&str> = found.iter().map(|one| one.metric.as_str()).collect();
        assert_eq!(metrics, ["f1", "roc_auc", "detection_at_fpr_1"]);
        assert!(found.iter().all(|one| one.verdict == Verdict::Worse && one.seeds == 3), "{found:?}");
        // 100 of 200 attacks found, and 190 of 200.
        assert!(
            (found[0].mean_distilled - 200.0 / 300.0).abs() < 1e-12
                && (found[0].mean_alone - 380.0 / 390.0).abs() < 1e-12
        );
        let better: Vec<_> = worse.into_iter().map(|[distilled, alone]| [alone, distilled]).collect();
        assert!(of(&better, 200).iter().all(|one| one.verdict == Verdict::Better));
        let sentence = "kd on sim: F1 with the teacher better on 0, worse on 1 of 1 test folders than alone";
        assert!(findings(&found, "sim")[0].starts_with(sentence), "{:?}", findings(&found, "sim"));
        let same: Vec<_> = (0..3).map(|seed| [missing_every(4, seed), missing_every(4, seed)]).collect();
        assert!(of(&same, 200).iter().all(|one| one.verdict == Verdict::NoDifference && one.difference == 0.0));
        let without = of(&same, 0);
        assert!(without.iter().all(|one| one.verdict == Verdict::Unknown && one.interval.is_none()));
        assert!(findings(&without, "sim").is_empty() && text(&without).contains("no interval without resamples"));
    }

    /// Students whose scores are lower, in the same order, miss attacks at the same threshold and none at the same rate of false alarms.
    #[test]
    fn lower_scores_are_worse_at_the_threshold_only() {
        let pair = |seed: u64| {
            let alone = missing_every(20, seed);
            [judged(alone.scores.iter().map(|score| 0.8 * score).collect()), alone]
        };
        let found = of(&(0..3).map(pair).collect::<Vec<_>>(), 200);
        let verdicts: Vec<Verdict> = found.iter().map(|one| one.verdict).collect();
        assert_eq!(verdicts, [Verdict::Worse, Verdict::NoDifference, Verdict::NoDifference]);
        assert!(found[1].difference == 0.0 && found[2].difference == 0.0, "{found:?}");
    }

    /// All seeds agree about two attacks of one stretch. That is no evidence: another drive might not have that stretch.
    #[test]
    fn one_stretch_is_not_significant_however_many_seeds_agree() {
        let pair = |seed: u64| {
            let alone = missing_every(20, seed);
            let mut scores = alone.scores.clone();
            (scores[505], scores[510]) = (0.0, 0.0);
            [judged(scores), alone]
        };
        let pairs: Vec<_> = (0..8).map(pair).collect();
        let found = of(&pairs, 500);
        assert!(found.iter().all(|one| one.difference < 0.0 && one.verdict == Verdict::NoDifference), "{found:?}");
    }

    /// Students of each of two teachers differ from those alone, in opposite directions: of another teacher, that says nothing.
    #[test]
    fn teachers_that_disagree_are_no_evidence_about_teachers() {
        let seed = |seed: u64, teachers: &[usize]| OfSeed {
            alone: missing_every(4, seed),
            taught: teachers.iter().map(|&n| missing_every(n, seed)).collect(),
        };
        let verdicts = |teachers: &[usize]| {
            let seeds: Vec<_> = (0..3).map(|of| seed(of, teachers)).collect();
            let found = of_teachers(&seeds, 500);
            assert!(found.iter().all(|one| one.teachers == teachers.len() && one.seeds == 3), "{found:?}");
            found.into_iter().map(|one| one.verdict).collect::<Vec<_>>()
        };
        assert_eq!(verdicts(&[2]), [Verdict::Worse; COMPARED.len()]);
        assert_eq!(verdicts(&[20]), [Verdict::Better; COMPARED.len()]);
        assert_eq!(verdicts(&[2, 20]), [Verdict::NoDifference; COMPARED.len()]);
        assert_eq!(verdicts(&[2, 2]), [Verdict::Worse; COMPARED.len()]);
    }

    #[test]
    fn a_folder_without_attacks_has_no_difference() {
        let mut folder = judged(vec![0.1; 50]);
        folder.labels = vec![false; 50];
        assert!(of(&[[folder.clone(), folder]], 50).is_empty());
    }
}
