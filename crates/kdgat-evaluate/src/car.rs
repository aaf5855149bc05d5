//! A model of the profile set on another car: the car's profile from attack-free windows, and scores under it.
//!
//! The windows that teach the profile look too usual under it. For the threshold each of them is therefore scored with a profile learned
//! without its fifth of the traffic, but for the IDs that only this fifth has: the car's profile knows them.

use std::ops::Range;
use std::sync::Arc;

use super::EvaluateError;
use super::judge::ProfiledFile;
use super::scores::{Profiled, Scorer};
use kdgat_graph::assemble::Assembler;
use kdgat_graph::profile::{ProfileLearner, fold_parts};
use kdgat_graph::{AssembleOptions, CarProfile, Columns, Store};
use kdgat_train::memory::{Meter, by_halves, retry_on_oom};

/// Learns the car's profile from the `calibration` windows of a store, and scores them and the windows `graphs` of a file with it.
///
/// # Errors
/// Fails if a graph cannot be read, and on errors of libtorch.
pub fn profile_file(
    scorer: &Scorer,
    store: &Arc<Store>,
    graphs: Range<u64>,
    calibration: Range<u64>,
) -> Result<ProfiledFile, EvaluateError> {
    let learn = |range: Range<u64>| -> Result<ProfileLearner, EvaluateError> {
        let mut learner = ProfileLearner::default();
        for graph in range {
            learner.add(&store.try_graph(graph)?);
        }
        Ok(learner)
    };
    let in_store = |part: Range<usize>| calibration.start + part.start as u64..calibration.start + part.end as u64;
    let parts = fold_parts((calibration.end - calibration.start) as usize).into_iter().map(in_store);
    let parts: Vec<Range<u64>> = parts.collect();
    let learned = parts.iter().map(|part| learn(part.clone())).collect::<Result<Vec<_>, _>>()?;
    let score = |profile: CarProfile, range: Range<u64>| {
        let graphs: Vec<u64> = range.collect();
        let assemble = AssembleOptions { profile: Some(profile), ..scorer.assemble_options() };
        scorer.each_assembled(store, &graphs, assemble, |batch| scorer.profiled(batch))
    };
    let whole = ProfileLearner::merged(&learned, None).profile();
    let mut of_calibration = Vec::new();
    for (number, part) in parts.into_iter().enumerate() {
        of_calibration.extend(score(ProfileLearner::judging(&learned, number).profile(), part)?);
    }
    Ok(ProfiledFile { calibration: of_calibration, graphs: score(whole, graphs)? })
}

/// Learns the car's profile from these attack-free windows of a stream, and scores each with the profile of the other parts.
///
/// # Errors
/// Fails on errors of libtorch.
pub fn profile_windows(scorer: &Scorer, windows: &Columns) -> Result<(CarProfile, Vec<Profiled>), EvaluateError> {
    let parts = fold_parts(windows.num_graphs());
    let learn = |part: &Range<usize>| {
        let mut learner = ProfileLearner::default();
        part.clone().for_each(|window| learner.add(&windows.graph(window)));
        learner
    };
    let learned: Vec<ProfileLearner> = parts.iter().map(learn).collect();
    let (mut assembler, mut scored) = (Assembler::default(), Vec::with_capacity(windows.num_graphs()));
    for (number, part) in parts.iter().enumerate() {
        let options = AssembleOptions {
            profile: Some(ProfileLearner::judging(&learned, number).profile()),
            ..scorer.assemble_options()
        };
        let mut columns = Columns::new(windows.features);
        part.clone().for_each(|window| columns.push(&windows.graph(window)));
        if columns.num_graphs() == 0 {
            continue;
        }
        let assembled = || Ok::<_, EvaluateError>(assembler.assemble_columns(&columns, &options)?);
        let batch = retry_on_oom(Meter::new(scorer.device()), assembled)?;
        scored.extend(by_halves(Meter::new(scorer.device()), &batch, &mut |batch| scorer.profiled(batch))?);
    }
    Ok((ProfileLearner::merged(&learned, None).profile(), scored))
}
