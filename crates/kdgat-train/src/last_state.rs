//! `last/`: the state from which a run is resumed.

use kdgat_base::files;
use kdgat_nn::ModelError;
use kdgat_nn::weights::StateDict;
use tch::Tensor;

use super::checkpoint;
use super::error::FitError;
use super::fit::{Fit, FitOptions, LAST};
use super::optimizer::{Adam, State};
use super::run_directory::RunError;
use super::state::Position;

/// Writes the state of the loop to a single file, so that its parts are consistent.
pub(super) fn write(fit: &Fit, optimizer: &State, sums: &Tensor, position: &Position) -> Result<(), FitError> {
    let path = fit.run.file(LAST);
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(files::failed("create", folder)).map_err(RunError::from)?;
    }
    let mut tensors = StateDict::new();
    for (name, tensor) in fit.trainable.state_dict()? {
        tensors.insert(format!("model.{name}"), tensor);
    }
    for (name, tensor) in optimizer {
        tensors.insert(format!("optimizer.{name}"), tensor.shallow_clone());
    }
    tensors.insert("epoch_sums".into(), sums.f_detach_copy()?);
    Ok(checkpoint::write(&path, &tensors, position)?)
}

/// Restores a saved run and returns its position.
pub(super) fn restore(
    fit: &mut Fit,
    options: &FitOptions,
    optimizer: &mut Adam,
    sums: &mut Tensor,
) -> Result<Position, FitError> {
    let path = fit.run.file(LAST);
    let (tensors, position): (StateDict, Position) = checkpoint::read(&path)?;
    if position.identity != options.identity {
        return Err(FitError::OtherIdentity { path, found: position.identity, expected: options.identity.clone() });
    }
    let model = tensors
        .iter()
        .filter_map(|(name, tensor)| Some((name.strip_prefix("model.")?.to_owned(), tensor.shallow_clone())));
    fit.trainable.load_state_dict(&model.collect())?;
    let find = |name: String, expected: Vec<i64>| {
        tensors.get(&name).map(Tensor::shallow_clone).ok_or(ModelError::MissingTensor { name, expected })
    };
    optimizer.load(|name| find(format!("optimizer.{name}"), vec![]))?;
    sums.f_copy_(&find("epoch_sums".into(), sums.size())?)?;
    Ok(position)
}
