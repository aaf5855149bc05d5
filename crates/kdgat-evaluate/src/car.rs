//! A model of the profile set on another car: the car's profile from attack-free windows, and scores under it.
//!
//! The windows that teach the profile look too usual under it. For the threshold each of them is therefore scored with a profile learned
//! without its fifth of the traffic, but for the IDs that only this fifth has: the car's profile knows them. The same fifths with
//! [synthetic attacks](super::attacked) show how the model scores attacks on this car.
//!
//! Some seconds of traffic say when frames come, and little about what their bytes never do: drive off, and each byte may have a value that it
//! never had. How much was not seen is estimated by leaving out a fifth (as Good 1953 leaves out one observation): while more of the windows
//! than the false-positive rate allows have bytes that the other fifths never had, a classifier judges by a profile
//! [without bytes](CarProfile::without_bytes). Relations between signals have to hold in the fifth that they were not learned from
//! ([`CarProfile::keep_borne_out`]).

use std::ops::Range;
use std::sync::Arc;

use super::EvaluateError;
use super::attacked::{AttackedCopy, AttackedWindows};
use super::calibration::Rule;
use super::gone;
use super::judge::ProfiledFile;
use super::operator::Cut;
use super::scores::{Profiled, ScoreKind, Scorer};
use super::threshold;
use kdgat_can::synthetic::SyntheticKind;
use kdgat_graph::assemble::Assembler;
use kdgat_graph::profile::{ProfileLearner, USUALLY_BROKEN, fold_parts};
use kdgat_graph::{AssembleOptions, CarProfile, Columns, Store};
use kdgat_train::memory::{Meter, by_halves, retry_on_oom};

/// A car's attack-free windows as a model of the profile set sees them.
#[derive(Debug, Clone)]
pub struct ProfiledTraffic {
    /// The car's profile, learned from all of them.
    pub profile: CarProfile,
    /// The windows, each under the profile of the other parts.
    pub windows: Vec<Profiled>,
    /// Windows with synthetic attacks, likewise.
    pub attacked: Vec<AttackedWindows>,
}

/// Learns the car's profile from the `calibration` windows of a store, and scores them and the windows `graphs` of a file with it.
///
/// # Errors
/// Fails if a graph cannot be read, and on errors of libtorch.
pub fn profile_file(
    scorer: &Scorer,
    store: &Arc<Store>,
    graphs: Range<u64>,
    calibration: Range<u64>,
    rate: f64,
) -> Result<ProfiledFile, EvaluateError> {
    let mut columns = Columns::new(store.features());
    for graph in calibration {
        columns.push(&store.try_graph(graph)?);
    }
    let options = &store.manifest().options;
    let traffic =
        profile_windows(scorer, &columns, Rule::new(rate, options.window, options.stride), Relations::BorneOut)?;
    let assemble = AssembleOptions { profile: Some(traffic.profile.clone()), ..scorer.assemble_options() };
    let gone = gone::of_file(store, graphs.clone(), &traffic.profile)?;
    let graphs: Vec<u64> = graphs.collect();
    let graphs = scorer.each_assembled(store, &graphs, assemble, |batch| scorer.profiled(batch))?;
    let judges_bytes = traffic.profile.counts_bytes();
    Ok(ProfiledFile { calibration: traffic.windows, graphs, attacked: traffic.attacked, judges_bytes, gone })
}

/// Relations between signals that a calibration keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relations {
    /// Those that each part of its traffic bears out.
    BorneOut,
    /// None.
    LeftOut,
}

/// Learns the car's profile from these attack-free windows, and scores each with the profile of the other parts.
///
/// # Errors
/// Fails on errors of libtorch.
pub fn profile_windows(
    scorer: &Scorer,
    windows: &Columns,
    rule: Rule,
    relations: Relations,
) -> Result<ProfiledTraffic, EvaluateError> {
    let parts = fold_parts(windows.num_graphs());
    let (mut profile, mut judging) = ProfileLearner::of_columns(windows, &parts);
    profile.keep_borne_out(&mut judging, windows, &parts, |counts| {
        relations == Relations::BorneOut
            && counts.windows > 0
            && threshold::is_chance(counts.broken, counts.windows, USUALLY_BROKEN)
    });
    let keeps_bytes =
        scorer.kind() != ScoreKind::AttackProbability || knows_bytes(windows, &parts, &judging, rule.rate);
    let of_car = |profile: &CarProfile| if keeps_bytes { profile.clone() } else { profile.without_bytes() };

    let mut judge = Judge { scorer, assembler: Assembler::default() };
    let mut scored = Vec::with_capacity(windows.num_graphs());
    for (profile, part) in judging.iter().zip(&parts) {
        scored.extend(judge.score(windows, &part.clone().collect::<Vec<_>>(), of_car(profile))?);
    }
    let mut attacked = Vec::new();
    let cut = Cut { window: rule.window, stride: rule.stride };
    for kind in SyntheticKind::EPISODIC {
        let copy = AttackedCopy::new(windows, &parts, cut, kind);
        let mut of_kind = Vec::with_capacity(copy.parts.len());
        for (part, profile) in judging.iter().enumerate() {
            let own: Vec<usize> = (0..copy.parts.len()).filter(|&window| copy.parts[window] == part).collect();
            of_kind.extend(judge.score(&copy.columns, &own, of_car(profile))?);
        }
        attacked.push(AttackedWindows { kind, windows: of_kind });
    }
    Ok(ProfiledTraffic { profile: of_car(&profile), windows: scored, attacked })
}

/// True if no more windows than chance allows have bytes that the other parts of the traffic never had.
fn knows_bytes(windows: &Columns, parts: &[Range<usize>], judging: &[CarProfile], rate: f64) -> bool {
    let unusual = |(profile, part): (&CarProfile, &Range<usize>)| {
        part.clone().filter(|&window| profile.has_unusual_bytes(&windows.graph(window))).count()
    };
    let unusual = judging.iter().zip(parts).map(unusual).sum();
    threshold::is_chance(unusual, windows.num_graphs(), rate)
}

/// Scores windows under a profile.
///
/// # Errors
/// Fails on errors of libtorch.
pub fn score_windows(scorer: &Scorer, windows: &Columns, profile: CarProfile) -> Result<Vec<Profiled>, EvaluateError> {
    let all: Vec<usize> = (0..windows.num_graphs()).collect();
    Judge { scorer, assembler: Assembler::default() }.score(windows, &all, profile)
}

/// Scores windows that are in memory.
struct Judge<'a> {
    scorer: &'a Scorer,
    assembler: Assembler,
}

impl Judge<'_> {
    /// Scores these windows under a profile.
    fn score(
        &mut self,
        windows: &Columns,
        chosen: &[usize],
        profile: CarProfile,
    ) -> Result<Vec<Profiled>, EvaluateError> {
        let Self { scorer, assembler } = self;
        let options = AssembleOptions { profile: Some(profile), ..scorer.assemble_options() };
        let mut scored = Vec::with_capacity(chosen.len());
        for chosen in chosen.chunks(super::scores::BATCH_GRAPHS) {
            let mut columns = Columns::new(windows.features);
            chosen.iter().for_each(|&window| columns.push(&windows.graph(window)));
            let assembled = || Ok::<_, EvaluateError>(assembler.assemble_columns(&columns, &options)?);
            let batch = retry_on_oom(Meter::new(scorer.device()), assembled)?;
            scored.extend(by_halves(Meter::new(scorer.device()), &batch, &mut |batch| scorer.profiled(batch))?);
        }
        Ok(scored)
    }
}
