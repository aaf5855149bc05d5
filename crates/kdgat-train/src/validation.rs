//! Losses of the validation graphs, in evaluation mode.

use kdgat_torch::device::Uploader;
use tch::{Kind, Tensor};

use super::error::FitError;
use super::fit::{Fit, FitOptions};
use super::step::StepRunner;
use crate::memory::{self, Activity, Meter, retry_on_oom};

/// Means of the total loss and of its parts over the validation graphs: `[1 + parts]`; NaN without validation graphs.
pub(super) fn losses(
    fit: &mut Fit,
    options: &FitOptions,
    runner: &mut StepRunner,
    uploader: &mut Uploader,
) -> Result<Vec<f64>, FitError> {
    memory::set_activity(Activity::Validation);
    let batches = fit.plan.validation();
    let columns = 1 + fit.objective.parts().len();
    if batches.iter().all(Vec::is_empty) {
        return Ok(vec![f64::NAN; columns]);
    }
    let meter = Meter::new(options.device);
    let zeros = || Ok::<_, FitError>(Tensor::f_zeros([columns as i64], (Kind::Double, options.device))?);
    let mut sums = retry_on_oom(meter, zeros)?;
    let mut weights = 0.0;
    for batch in fit.validation_loader.epoch(batches, 0) {
        let batch = batch?;
        let batch = retry_on_oom(meter, || Ok::<_, FitError>(batch.upload(uploader)?))?;
        fit.objective.source_mut().announce(std::slice::from_ref(&batch)).map_err(FitError::Objective)?;
        fit.objective.receive(&batch).map_err(FitError::Objective)?;
        let losses = runner.validation(fit.objective, &batch, fit.console)?;
        let weight = fit.objective.weight(&batch);
        sums = retry_on_oom(meter, || add(&sums, &losses, weight))?;
        weights += weight;
    }
    Ok(Vec::<f64>::try_from(&sums)?.into_iter().map(|sum| sum / weights).collect())
}

/// Adds a batch's means to the sums, with its weight. All tensors are `[1 + parts]`.
pub(super) fn add(sums: &Tensor, means: &Tensor, weight: f64) -> Result<Tensor, FitError> {
    Ok(tch::no_grad(|| sums.f_add(&means.f_mul_scalar(weight)?))?)
}
