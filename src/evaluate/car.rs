//! A model of the profile set on another car: the car's profile from attack-free windows, and scores under it.
//!
//! The windows that teach the profile look too usual under it. For the threshold each of them is therefore scored with a profile learned
//! without its fifth of the traffic.

use std::ops::Range;
use std::sync::Arc;

use super::EvaluateError;
use super::scores::{Profiled, Scorer};
use crate::graph::assemble::Assembler;
use crate::graph::profile::{ProfileLearner, fold_parts};
use crate::graph::{AssembleOptions, CarProfile, Columns, Store};
use crate::memory::{Meter, by_halves, retry_on_oom};

/// Learns the car's profile from the `calibration` windows of a file (counted from its first graph), and scores all its windows with it.
///
/// # Errors
/// Fails if a graph cannot be read, and on errors of libtorch.
pub fn profile_file(
    scorer: &Scorer,
    store: &Arc<Store>,
    graphs: Range<u64>,
    calibration: Range<usize>,
) -> Result<(CarProfile, Vec<Profiled>), EvaluateError> {
    let in_store = |range: Range<usize>| graphs.start + range.start as u64..graphs.start + range.end as u64;
    let learn = |range: Range<usize>| -> Result<ProfileLearner, EvaluateError> {
        let mut learner = ProfileLearner::default();
        for graph in in_store(range) {
            learner.add(&store.try_graph(graph)?);
        }
        Ok(learner)
    };
    let in_file = |part: Range<usize>| part.start + calibration.start..part.end + calibration.start;
    let parts: Vec<Range<usize>> = fold_parts(calibration.len()).into_iter().map(in_file).collect();
    let learned = parts.iter().map(|part| learn(part.clone())).collect::<Result<Vec<_>, _>>()?;
    let score = |profile: CarProfile, range: Range<usize>| {
        let graphs: Vec<u64> = in_store(range).collect();
        let assemble = AssembleOptions { profile: Some(profile), ..scorer.assemble_options() };
        scorer.each_assembled(store, &graphs, assemble, |batch| scorer.profiled(batch))
    };
    let whole = ProfileLearner::merged(&learned, None).profile();
    let mut windows = score(whole.clone(), 0..(graphs.end - graphs.start) as usize)?;
    for (number, part) in parts.into_iter().enumerate() {
        let scored = score(ProfileLearner::merged(&learned, Some(number)).profile(), part.clone())?;
        windows[part].clone_from_slice(&scored);
    }
    Ok((whole, windows))
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
            profile: Some(ProfileLearner::merged(&learned, Some(number)).profile()),
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
