//! Layout of the weights in the host block: layer by layer, each tensor at a multiple of 256 bytes.

use std::collections::HashMap;

use kdgat_nn::weights::not_finite;
use tch::{Kind, TchError, Tensor};

use crate::model::{FrozenModel, ModelError, WeightViews};
use crate::teacher::TeacherError;
use crate::weights::{WeightFile, Weights, tensor_bytes};

/// Alignment of each tensor in the block, good for GPU kernels and vector instructions.
const ALIGNMENT_BYTES: usize = 256;

/// A layer's position in the block, in bytes.
#[derive(Debug)]
pub(super) struct Layer {
    pub offset: usize,
    pub bytes: usize,
    entries: Vec<Entry>,
}

/// A weight in its layer.
#[derive(Debug)]
struct Entry {
    name: String,
    kind: Kind,
    shape: Vec<i64>,
    /// Bytes from the start of the layer.
    offset: usize,
    bytes: usize,
}

/// Assigns each weight of each layer its position in the block. Refuses weights that are NaN or infinite, also where no layer reads them: a
/// training that diverged leaves no weight that is worth anything.
pub(super) fn lay_out(model: &dyn FrozenModel, weights: &Weights) -> Result<Vec<Layer>, TeacherError> {
    for (name, tensor) in weights.iter() {
        if let Some(found) = not_finite(tensor).map_err(ModelError::from)? {
            let path = weights.source().map_or(String::new(), |path| format!(" {}", path.display()));
            return Err(TeacherError::NotFinite { weights: path, tensor: name.to_owned(), found });
        }
    }
    let mut layers = Vec::new();
    let mut offset = 0;
    for spec in model.layers() {
        let mut layer = Layer { offset, bytes: 0, entries: Vec::with_capacity(spec.tensors.len()) };
        for name in spec.tensors {
            let Some(tensor) = weights.get(&name) else {
                return Err(TeacherError::MissingTensor { tensor: name, layer: spec.name });
            };
            let entry = Entry {
                kind: tensor.kind(),
                shape: tensor.size(),
                offset: layer.bytes,
                bytes: tensor_bytes(tensor),
                name,
            };
            layer.bytes += entry.bytes.next_multiple_of(ALIGNMENT_BYTES);
            layer.entries.push(entry);
        }
        offset += layer.bytes;
        layers.push(layer);
    }
    if layers.is_empty() {
        return Err(TeacherError::NoLayers);
    }
    Ok(layers)
}

/// Views of the block by weight name. A weight that several layers read has several.
struct Places(HashMap<String, Vec<Tensor>>);

impl Places {
    fn new(layers: &[Layer], block: &Tensor) -> Result<Self, TeacherError> {
        let mut places: HashMap<String, Vec<Tensor>> = HashMap::new();
        for layer in layers {
            let memory = block.f_narrow(0, layer.offset as i64, layer.bytes as i64)?;
            for entry in &layer.entries {
                places.entry(entry.name.clone()).or_default().push(entry.view(&memory)?);
            }
        }
        Ok(Self(places))
    }

    /// Copies a weight to its views, if any layer reads it.
    fn fill(&self, name: &str, tensor: &Tensor) -> Result<(), TchError> {
        self.0.get(name).into_iter().flatten().try_for_each(|place| place.shallow_clone().f_copy_(tensor))
    }
}

/// Copies weights from memory into the block. Each tensor is dropped after its copy.
pub(super) fn pack(layers: &[Layer], weights: Weights, block: &Tensor) -> Result<(), TeacherError> {
    let places = Places::new(layers, block)?;
    for (name, tensor) in weights.into_tensors() {
        places.fill(&name, &tensor)?;
    }
    Ok(())
}

/// Copies the weights of a file into the block, one at a time, so that they are never in memory twice. Returns the digest of the
/// file's weights.
pub(super) fn pack_file(layers: &[Layer], file: &WeightFile, block: &Tensor) -> Result<String, TeacherError> {
    let places = Places::new(layers, block)?;
    let unreadable = |source| TeacherError::Unreadable { path: file.path().to_path_buf(), source };
    file.for_each(&mut |name, tensor| Ok(places.fill(name, &tensor)?)).map_err(unreadable)
}

/// Views of the weights of `layers`, which are contiguous in `memory`.
pub(super) fn views(layers: &[Layer], memory: &Tensor) -> Result<WeightViews, TeacherError> {
    let mut views = WeightViews::default();
    let start = layers.first().map_or(0, |layer| layer.offset);
    for layer in layers {
        let memory = memory.f_narrow(0, (layer.offset - start) as i64, layer.bytes as i64)?;
        for entry in &layer.entries {
            views.insert(entry.name.clone(), entry.view(&memory)?);
        }
    }
    Ok(views)
}

impl Entry {
    fn view(&self, layer: &Tensor) -> Result<Tensor, TeacherError> {
        if self.bytes == 0 {
            return Ok(Tensor::f_empty(&self.shape, (self.kind, layer.device()))?);
        }
        let bytes = layer.f_narrow(0, self.offset as i64, self.bytes as i64)?;
        Ok(bytes.f_view_dtype(self.kind)?.f_view(self.shape.as_slice())?)
    }
}
