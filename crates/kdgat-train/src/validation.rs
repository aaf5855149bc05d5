//! Losses of the validation graphs, in evaluation mode.

use kdgat_nn::shared_statistics;
use kdgat_torch::device::Uploader;
use tch::{Kind, Tensor};

use super::burst::{Burst, next_batch};
use super::error::FitError;
use super::fit::{Fit, FitOptions};
use super::objective::Part;
use super::step::StepRunner;
use super::together::{Together, share_of};
use crate::memory::{self, Activity, Meter, retry_on_oom};

/// Means of the total loss and of its parts over the validation graphs: `[1 + parts]`; NaN without validation graphs.
pub(super) fn losses(
    fit: &mut Fit,
    options: &FitOptions,
    (runner, together): (&mut StepRunner, Option<&Together>),
    uploader: &mut Uploader,
) -> Result<Vec<f64>, FitError> {
    memory::set_activity(Activity::Validation);
    if let Some(together) = together {
        return losses_together(fit, options, (runner, together), uploader);
    }
    let batches = fit.plan.validation();
    let columns = 1 + fit.objective.parts().len();
    if batches.iter().all(Vec::is_empty) {
        return Ok(vec![f64::NAN; columns]);
    }
    let meter = Meter::new(options.device);
    let zeros = || Ok::<_, FitError>(Tensor::f_zeros([columns as i64], (Kind::Double, options.device))?);
    let mut sums = retry_on_oom(meter, zeros)?;
    let mut weights = 0.0;
    let mut loaded = fit.validation_loader.epoch(batches, 0);
    loop {
        let burst = Burst::read(&mut loaded, 1, uploader, options.records_steps && runner.can_record())?;
        let Some(step) = burst.step(0) else { break };
        fit.objective.source_mut().announce(&burst.batches).map_err(FitError::Objective)?;
        fit.objective.receive(step.batch).map_err(FitError::Objective)?;
        let losses = runner.validation(fit.objective, step, fit.console)?;
        let weight = fit.objective.weight(step.batch);
        sums = retry_on_oom(meter, || add(&sums, &losses, weight))?;
        weights += weight;
    }
    Ok(Vec::<f64>::try_from(&sums)?.into_iter().map(|sum| sum / weights).collect())
}

/// Like [`losses`], for processes of which each computes its share of each batch.
fn losses_together(
    fit: &mut Fit,
    options: &FitOptions,
    (runner, together): (&mut StepRunner, &Together),
    uploader: &mut Uploader,
) -> Result<Vec<f64>, FitError> {
    let (rank, size) = (together.processes().rank(), together.processes().size());
    let shares: Vec<Vec<u64>> =
        fit.plan.validation().iter().map(|batch| share_of(batch, rank, size).to_vec()).collect();
    let columns = 1 + fit.objective.parts().len();
    // Of each batch: its weight, the rows over which its losses are means, and their sums over these rows.
    let width = 2 + columns;
    let mut table = vec![0.0; shares.len() * width];
    let batches = shares.iter().filter(|share| !share.is_empty()).cloned().collect();
    let meter = Meter::new(options.device);
    let mut loaded = fit.validation_loader.epoch(batches, 0);
    for (index, share) in shares.iter().enumerate() {
        if share.is_empty() {
            together.start_validation(fit.objective, None)?;
            continue;
        }
        let missing = || FitError::Objective("the loader ended before the validation".into());
        let batch = next_batch(&mut loaded, meter)?.ok_or_else(missing)?;
        let batch = retry_on_oom(meter, || Ok::<_, FitError>(batch.upload(uploader)?))?;
        fit.objective.source_mut().announce(std::slice::from_ref(&batch)).map_err(FitError::Objective)?;
        fit.objective.receive(&batch).map_err(FitError::Objective)?;
        together.start_validation(fit.objective, Some(&batch))?;
        let losses = match together.sums_of_validation() {
            None => runner.validation(fit.objective, &batch, fit.console)?,
            sums => shared_statistics::with(sums, || runner.validation_together(fit.objective, &batch, together))?,
        };
        let losses: Vec<f64> = Vec::try_from(losses)?;
        let rows = fit.objective.rows(&Part::whole(&batch));
        let row = &mut table[index * width..(index + 1) * width];
        (row[0], row[1]) = (fit.objective.weight(&batch), rows);
        // A share without rows has no losses: its mean is NaN.
        let sums = losses.iter().map(|loss| if rows > 0.0 { loss * rows } else { 0.0 });
        row[2..].iter_mut().zip(sums).for_each(|(sum, loss)| *sum = loss);
    }
    together.processes().add_up(&mut table)?;
    let mut means = vec![0.0; columns];
    let mut weights = 0.0;
    for row in table.chunks_exact(width) {
        weights += row[0];
        means.iter_mut().zip(&row[2..]).for_each(|(mean, sum)| *mean += row[0] * sum / row[1].max(1.0));
    }
    // NaN without validation graphs.
    Ok(means.into_iter().map(|mean| mean / weights).collect())
}

/// Adds a batch's means to the sums, with its weight. All tensors are `[1 + parts]`.
pub(super) fn add(sums: &Tensor, means: &Tensor, weight: f64) -> Result<Tensor, FitError> {
    Ok(tch::no_grad(|| sums.f_add(&means.f_mul_scalar(weight)?))?)
}
