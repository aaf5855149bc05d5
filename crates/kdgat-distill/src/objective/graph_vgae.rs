//! The loss of a VGAE of graphs: its task, and distillation from a teacher if there is one.

use tch::Tensor;

use super::{Student, TeacherLink, VgaeDistillation, absent, parts, target};
use crate::hints::Hint;
use crate::vgae_terms::{VgaeKd, latent_distance};
use crate::{TargetName, TargetRows};
use kdgat_graph::Batch;
use kdgat_nn::graph_vgae::{reconstruction, task_loss};
use kdgat_nn::layers::Mode;
use kdgat_nn::{Draw, GraphVgae, GraphVgaeOutput, masked};
use kdgat_train::objective::{Losses, Objective, ObjectiveError, Part, TargetSource};

/// Names of the parts of the loss; the last only if hints are used.
pub const WITH_HINT: &[&str] =
    &["task_loss", "kd_loss", "latent_kd", "recon_kd", "reconstruction", "categories", "edges", "kl", "hint_kd"];

/// A VGAE of graphs in training, with or without a teacher.
pub struct GraphVgaeObjective {
    /// The student.
    pub model: GraphVgae,
    /// The connection to the teacher.
    pub teacher: TeacherLink,
    /// The distillation loss; `None` without a teacher.
    pub distillation: Option<VgaeDistillation>,
    /// The pairs of nodes without an edge that the current epoch draws.
    draw: Draw,
}

impl GraphVgaeObjective {
    /// A student in training; `distillation` is the loss that belongs to `teacher`, and `seed` the run's.
    pub fn new(model: GraphVgae, teacher: TeacherLink, distillation: Option<VgaeDistillation>, seed: u64) -> Self {
        Self { model, teacher, distillation, draw: Draw { seed, epoch: 0 } }
    }

    /// The distances to the teacher's targets, combined with the task loss; and the hint's.
    fn distil(
        &self,
        distillation: &VgaeDistillation,
        output: &GraphVgaeOutput,
        targets: &TargetRows,
        (mode, task): (Mode, &Tensor),
    ) -> Result<(VgaeKd, Option<Hint>), ObjectiveError> {
        let VgaeDistillation { projection, translation, hints, .. } = distillation;
        let wanted = target(targets, TargetName::Reconstruction)?.gathered()?;
        let wanted = match translation {
            Some(translation) => translation.apply(&wanted)?,
            None => wanted,
        };
        let own = reconstruction(&output.decoded, self.model.config())?;
        let distance = masked::squared_distance(&own, &wanted, None)?;
        let latent = match projection {
            Some(projection) => {
                Some(latent_distance(projection, &output.latent, target(targets, TargetName::Latent)?, None)?)
            }
            None => None,
        };
        let compare = |hints: &crate::hints::Hints| {
            let taught = target(targets, TargetName::HiddenNodes)?.gathered()?;
            Ok::<_, ObjectiveError>(hints.compare(&output.hidden, &taught, None)?)
        };
        let hint = hints.as_ref().map(compare).transpose()?;
        let kd = VgaeKd::new(
            latent.as_ref(),
            &distance,
            task,
            distillation.weights(self.teacher.alpha(mode)),
            hint.as_ref(),
        )?;
        Ok((kd, hint))
    }
}

impl Objective for GraphVgaeObjective {
    fn parts(&self) -> &'static [&'static str] {
        parts(WITH_HINT, self.distillation.as_ref().is_some_and(|distillation| distillation.hints.is_some()))
    }

    fn start_epoch(&mut self, epoch: u64) {
        self.draw.epoch = epoch;
    }

    fn source(&self) -> &dyn TargetSource {
        &self.teacher
    }

    fn source_mut(&mut self) -> &mut dyn TargetSource {
        &mut self.teacher
    }

    fn loss(&mut self, batch: &Batch, part: &Part, mode: Mode) -> Result<Losses, ObjectiveError> {
        let output = self.model.forward(batch, mode)?;
        let draw = if mode == Mode::Training { self.draw } else { Draw::FIXED };
        let task = task_loss(&output, self.model.config(), batch, draw)?;
        let targets = self.teacher.targets_of(part)?;
        let (kd, hint) = match (&self.distillation, targets) {
            (Some(distillation), Some(targets)) => {
                let (kd, hint) = self.distil(distillation, &output, &targets, (mode, &task.total))?;
                (Some(kd), hint)
            }
            _ => (None, None),
        };
        let or_absent = |part: Option<Tensor>| part.unwrap_or_else(|| absent(&task.kl));
        let (total, distilled) = match kd {
            Some(VgaeKd { latent, reconstruction, kd, total }) => (total, [Some(kd), latent, Some(reconstruction)]),
            None => (task.total.shallow_clone(), [None, None, None]),
        };
        let mut parts = vec![task.total];
        parts.extend(distilled.map(or_absent));
        parts.extend([task.features, task.categories, task.edges].map(or_absent));
        parts.push(task.kl.shallow_clone());
        parts.extend(hint.map(|hint| hint.distance));
        Ok(Losses { total, parts })
    }

    fn rows(&self, part: &Part) -> f64 {
        // All losses are means over nodes, that of edges over the graphs by their nodes.
        (part.nodes.end - part.nodes.start) as f64
    }

    fn weight(&self, batch: &Batch) -> f64 {
        batch.num_nodes() as f64
    }
}

impl Student for GraphVgaeObjective {
    fn teacher(&self) -> &TeacherLink {
        &self.teacher
    }

    fn teacher_mut(&mut self) -> &mut TeacherLink {
        &mut self.teacher
    }

    fn capture_obstacle(&self) -> Option<&'static str> {
        Some("a VGAE of graphs copies the scaling of features and the drawn pairs to the GPU in every step")
    }
}

#[cfg(test)]
mod tests {
    use kdgat_graph::{FeatureSet, NodeScaling};
    use kdgat_nn::attention::Backend;
    use kdgat_nn::{Architecture, FreshParameters, GnnKind, GraphVgaeConfig, Scope};
    use tch::{Device, Kind};

    use super::*;
    use crate::alpha::Alpha;
    use crate::frozen::{self, Asked, TeacherVocabulary, probe_batch};
    use crate::hints::Hints;
    use crate::losses::Projection;
    use crate::model::WeightViews;
    use crate::objective::Translation;

    /// A ring with ten features, two of them a category.
    fn batch() -> Batch {
        let row = |node: usize| {
            let continuous = (0..8).map(move |column| ((node * 8 + column) as f32).sin());
            [f32::from(node == 0), f32::from(node > 0)].into_iter().chain(continuous)
        };
        let continuous = Tensor::from_slice(&(0..3).flat_map(row).collect::<Vec<_>>()).view([3, 10]);
        Batch { continuous, ..probe_batch(1, FeatureSet::Window).unwrap() }
    }

    fn config(kind: GnnKind, latent: i64, deviation: f32) -> GraphVgaeConfig {
        let scaling = NodeScaling { mean: vec![0.0; 10], deviation: [vec![1.0; 2], vec![deviation; 8]].concat() };
        let config = GraphVgaeConfig::new(kind, scaling, [2 * latent, 2, latent]);
        GraphVgaeConfig { categories: std::iter::once(0..2).collect(), decodes_edges: true, ..config }
    }

    /// The teacher gives, layer by layer, what its model computes, and the distances to it are those of plain operations.
    #[test]
    fn distances_are_to_what_the_teachers_model_computes() {
        let (batch, taught) = (batch(), config(GnnKind::Gat, 5, 0.5));
        let mut parameters = FreshParameters::new(3, Device::Cpu);
        let model = GraphVgae::new(Scope::root(&mut parameters), &taught, Backend::Auto).unwrap();
        let expected = tch::no_grad(|| model.forward(&batch, Mode::Evaluation).unwrap());
        let mut views = WeightViews::default();
        for named in parameters.into_tensors() {
            views.insert(named.name, named.tensor.detach());
        }
        let architecture = Architecture::GraphVgae(taught.clone());
        let teacher =
            frozen::model(architecture, TeacherVocabulary::Shared, Backend::Auto, Asked::OUTPUTS_AND_HINTS).unwrap();
        let targets = teacher.forward(&views, &batch).unwrap();
        let wanted = reconstruction(&expected.decoded, &taught).unwrap();
        assert!(targets.get(TargetName::Latent).unwrap().equal(&expected.mean));
        assert!(targets.get(TargetName::Reconstruction).unwrap().equal(&wanted));
        assert!(targets.get(TargetName::HiddenNodes).unwrap().equal(&expected.hidden));

        let own = config(GnnKind::Gin, 3, 2.0);
        let mut parameters = FreshParameters::new(4, Device::Cpu);
        let student = GraphVgae::new(Scope::root(&mut parameters), &own, Backend::Auto).unwrap();
        let projection = Projection::new(Scope::root(&mut parameters), 3, 5).unwrap();
        let hints = Hints::new(Scope::root(&mut parameters), [6, 10], 0.3).unwrap();
        let distillation = VgaeDistillation {
            projection: Some(projection),
            latent_weight: 0.7,
            reconstruction_weight: 0.2,
            translation: taught.scaling.translation(&own.scaling).map(Translation::new),
            hints,
        };
        let link = TeacherLink::new(None, 1, Alpha::constant(0.4));
        let objective = GraphVgaeObjective::new(student, link, Some(distillation), 1);
        let output = objective.model.forward(&batch, Mode::Evaluation).unwrap();
        let task = task_loss(&output, &own, &batch, Draw::FIXED).unwrap().total;
        let distillation = objective.distillation.as_ref().unwrap();
        let (kd, hint) =
            objective.distil(distillation, &output, &targets.into_rows(), (Mode::Evaluation, &task)).unwrap();

        let named = parameters.tensors();
        let tensor = |name: &str| &named.iter().find(|named| named.name == name).unwrap().tensor;
        let mapped = |rows: &Tensor, name: &str| {
            rows.matmul(&tensor(&format!("{name}.weight")).tr()) + tensor(&format!("{name}.bias"))
        };
        let distance = |one: &Tensor, other: &Tensor| (one - other).square().mean(Kind::Float);
        let latent = distance(&mapped(&output.latent, "projection"), &expected.mean);
        // Values on the student's scale, probabilities as they are.
        let scaled = Tensor::cat(&[wanted.narrow(1, 0, 2), wanted.narrow(1, 2, 8) * 0.5 / 2.0], 1);
        let own =
            Tensor::cat(&[output.decoded.narrow(1, 0, 2).softmax(-1, Kind::Float), output.decoded.narrow(1, 2, 8)], 1);
        let values = distance(&own, &scaled);
        let hidden = distance(&mapped(&output.hidden, "hint.projection"), &expected.hidden);
        let total = (&latent * 0.7 + &values * 0.2 + &hidden * 0.3) * 0.4 + &task * 0.6;
        let found = [kd.latent.unwrap(), kd.reconstruction, hint.unwrap().distance, kd.total];
        for (found, expected) in found.iter().zip([&latent, &values, &hidden, &total]) {
            let (found, expected) = (found.double_value(&[]), expected.double_value(&[]));
            assert!(expected > 1e-3 && (found - expected).abs() < 1e-5 * expected.max(1.0), "{found} {expected}");
        }
        let gradients = |loss: &Tensor| {
            let trained: Vec<&Tensor> =
                named.iter().map(|named| &named.tensor).filter(|tensor| tensor.requires_grad()).collect();
            Tensor::run_backward(&[loss], &trained, true, false)
        };
        for (found, expected) in gradients(&found[3]).iter().zip(gradients(&total)) {
            assert!(found.allclose(&expected, 1e-4, 1e-6, false), "{found} {expected}");
        }
    }
}
