//! Sources of a model's tensors, and the tensors' names.
//!
//! A model requests each of its tensors from a [`TensorSource`] by name and shape. [`FreshParameters`] creates new
//! ones, drawn from the seed and the tensor's own name, so that the order of construction does not matter;
//! [`GivenTensors`] looks them up. Names are built like paths, `scope.sub("encoder_layers").sub(0)`, and are the keys
//! of checkpoints.

use std::collections::BTreeMap;
use std::fmt::Display;

use kdgat_base::random;
use kdgat_torch::{draw, resolve_vector_math};
use tch::{Device, Kind, Tensor};

use super::ModelError;
use super::fused::step_seed::LayerId;

/// Initialisation of a new parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// The same value for every element.
    Constant(f64),
    /// Uniform in ±√(6 / (fan in + fan out)) over the two last dimensions (Glorot & Bengio 2010).
    Glorot,
    /// Uniform in ±1/√fan_in: PyTorch's default for linear layers (He et al. 2015 with a = √5).
    Linear {
        /// Number of input columns.
        fan_in: i64,
    },
    /// Standard normal: PyTorch's default for embeddings.
    Normal,
}

/// Role of a tensor in training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Updated by the optimizer.
    Parameter,
    /// Saved with the model but not optimized, such as running statistics.
    Buffer,
    /// Saved with the model and never changed: initial weights that are kept.
    Frozen,
}

/// A source of a model's tensors.
pub trait TensorSource {
    /// Returns the tensor called `name` of exactly `shape`.
    ///
    /// # Errors
    /// If the source lacks the tensor or has it in another shape.
    fn tensor(&mut self, name: &str, shape: &[i64], kind: Kind, init: Init, role: Role) -> Result<Tensor, ModelError>;
}

/// A node in the tree of names, from which layers request their tensors.
pub struct Scope<'a> {
    source: &'a mut dyn TensorSource,
    path: String,
}

impl<'a> Scope<'a> {
    /// The root of the tree.
    pub fn root(source: &'a mut dyn TensorSource) -> Self {
        resolve_vector_math();
        Self { source, path: String::new() }
    }

    /// The child `name` of this scope.
    pub fn sub(&mut self, name: impl Display) -> Scope<'_> {
        let path = self.join(&name.to_string());
        Scope { source: &mut *self.source, path }
    }

    /// Identifies the layer at this scope for the seeds of its dropout masks.
    pub fn layer_id(&self) -> LayerId {
        LayerId::new(&self.path)
    }

    /// Requests a trainable tensor.
    pub fn parameter(&mut self, name: &str, shape: &[i64], init: Init) -> Result<Tensor, ModelError> {
        let path = self.join(name);
        self.source.tensor(&path, shape, Kind::Float, init, Role::Parameter)
    }

    /// Requests a tensor that is saved but not trained.
    pub fn buffer(&mut self, name: &str, shape: &[i64], kind: Kind, init: Init) -> Result<Tensor, ModelError> {
        let path = self.join(name);
        self.source.tensor(&path, shape, kind, init, Role::Buffer)
    }

    fn join(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }
}

/// A tensor of a model and its name.
#[derive(Debug)]
pub struct NamedTensor {
    /// Key in checkpoints.
    pub name: String,
    /// Handle to the tensor that the model uses.
    pub tensor: Tensor,
    /// Role of the tensor in training.
    pub role: Role,
}

/// Creates new parameters, drawn by seed and name.
#[derive(Debug)]
pub struct FreshParameters {
    seed: u64,
    device: Device,
    tensors: Vec<NamedTensor>,
}

impl FreshParameters {
    /// Creates a source of new parameters on `device`.
    pub fn new(seed: u64, device: Device) -> Self {
        Self { seed, device, tensors: Vec::new() }
    }

    /// All tensors created so far, in order of construction.
    pub fn tensors(&self) -> &[NamedTensor] {
        &self.tensors
    }

    /// All tensors created so far, to fill them or to change their roles before the training.
    pub fn tensors_mut(&mut self) -> &mut [NamedTensor] {
        &mut self.tensors
    }

    /// Returns all tensors created so far, in order of construction.
    pub fn into_tensors(self) -> Vec<NamedTensor> {
        self.tensors
    }

    fn draw(&self, name: &str, shape: &[i64], kind: Kind, init: Init) -> Result<Tensor, ModelError> {
        // Drawn on the CPU, so that training on a GPU starts from the same weights.
        let seed = random::seed_of_name(self.seed, name);
        let uniform = |bound: f64| draw::uniform(shape, kind, -bound, bound, seed);
        let tensor = match init {
            Init::Constant(value) => Tensor::f_full(shape, value, (kind, Device::Cpu))?,
            Init::Glorot => {
                let fans: i64 = shape.iter().rev().take(2).sum();
                uniform((6.0 / fans as f64).sqrt())?
            }
            Init::Linear { fan_in } => uniform(1.0 / (fan_in as f64).sqrt())?,
            Init::Normal => draw::normal(shape, kind, seed)?,
        };
        Ok(tensor.f_to_device(self.device)?)
    }
}

impl TensorSource for FreshParameters {
    fn tensor(&mut self, name: &str, shape: &[i64], kind: Kind, init: Init, role: Role) -> Result<Tensor, ModelError> {
        let tensor = self.draw(name, shape, kind, init)?.f_set_requires_grad(role == Role::Parameter)?;
        self.tensors.push(NamedTensor { name: name.to_owned(), tensor: tensor.shallow_clone(), role });
        Ok(tensor)
    }
}

/// Existing tensors, looked up by name.
#[derive(Debug)]
pub struct GivenTensors {
    tensors: BTreeMap<String, Tensor>,
    used: std::collections::BTreeSet<String>,
}

impl GivenTensors {
    /// Creates a source of the given tensors.
    pub fn new(tensors: impl IntoIterator<Item = (String, Tensor)>) -> Self {
        Self { tensors: tensors.into_iter().collect(), used: Default::default() }
    }

    /// Checks that the model used every tensor, except those whose names `ignored` accepts.
    ///
    /// # Errors
    /// Names the first tensor that the architecture does not have.
    pub fn check_all_used(&self, ignored: impl Fn(&str) -> bool) -> Result<(), ModelError> {
        let mut left = self.tensors.keys().filter(|name| !self.used.contains(*name) && !ignored(name));
        match left.next() {
            None => Ok(()),
            Some(name) => Err(ModelError::UnknownTensor { name: name.clone(), count: 1 + left.count() }),
        }
    }
}

impl TensorSource for GivenTensors {
    fn tensor(&mut self, name: &str, shape: &[i64], kind: Kind, _: Init, _: Role) -> Result<Tensor, ModelError> {
        let Some(tensor) = self.tensors.get(name) else {
            return Err(ModelError::MissingTensor { name: name.to_owned(), expected: shape.to_vec() });
        };
        if tensor.size() != shape {
            return Err(ModelError::TensorShape {
                name: name.to_owned(),
                found: tensor.size(),
                expected: shape.to_vec(),
            });
        }
        self.used.insert(name.to_owned());
        // A mixed-precision teacher keeps its own floating-point type; only integers are converted.
        Ok(if kind == Kind::Int64 { tensor.f_to_kind(kind)? } else { tensor.shallow_clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_parameters_depend_on_seed_and_name_alone() {
        let draw = |seed, name: &str| {
            let mut source = FreshParameters::new(seed, Device::Cpu);
            Scope::root(&mut source).parameter(name, &[4, 3], Init::Glorot).unwrap()
        };
        assert_eq!(draw(1, "a"), draw(1, "a"));
        assert_ne!(draw(1, "a"), draw(2, "a"));
        assert_ne!(draw(1, "a"), draw(1, "b"));
    }

    /// Other threads that draw, seed or build models do not change any weight.
    #[test]
    fn fresh_parameters_do_not_depend_on_other_threads() {
        let draw = |seed: u64| {
            let mut source = FreshParameters::new(seed, Device::Cpu);
            let uniform = Scope::root(&mut source).parameter("a", &[40, 30], Init::Glorot).unwrap();
            (uniform, Scope::root(&mut source).parameter("b", &[40, 30], Init::Normal).unwrap())
        };
        let alone: Vec<_> = (0..4).map(draw).collect();
        std::thread::scope(|scope| {
            for (seed, expected) in alone.into_iter().enumerate() {
                scope.spawn(move || {
                    for round in 0..300 {
                        tch::manual_seed(round);
                        assert_eq!(draw(seed as u64), expected, "seed {seed}, round {round}");
                    }
                });
            }
        });
    }

    #[test]
    fn a_wrong_shape_names_the_tensor_and_both_shapes() {
        let mut source =
            GivenTensors::new([("layer.weight".to_owned(), Tensor::zeros([2, 3], (Kind::Float, Device::Cpu)))]);
        let error = Scope::root(&mut source).sub("layer").parameter("weight", &[3, 3], Init::Glorot).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("layer.weight") && text.contains("[2, 3]") && text.contains("[3, 3]"), "{text}");
    }

    #[test]
    fn a_tensor_too_many_is_named() {
        let zeros = || Tensor::zeros([1], (Kind::Float, Device::Cpu));
        let mut source = GivenTensors::new([("a".to_owned(), zeros()), ("b".to_owned(), zeros())]);
        let _ = Scope::root(&mut source).parameter("a", &[1], Init::Normal).unwrap();
        assert!(source.check_all_used(|_| false).unwrap_err().to_string().contains("'b'"));
        source.check_all_used(|name| name == "b").unwrap();
    }
}
