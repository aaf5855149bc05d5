//! The models of a detection: each scores a window, and the verdict combines them as an evaluation does.

use tch::Device;

use super::SeparateScores;
use kdgat_evaluate::ensemble::mean;
use kdgat_evaluate::scores::Explained;
use kdgat_evaluate::{CarScale, EvaluateError, Scale, ScoreKind, Scorer, TrainedModel};
use kdgat_graph::assemble::Assembler;
use kdgat_graph::{AssembleOptions, Batch, CarProfile, Columns, FeatureSet};
use kdgat_nn::attention::Backend;
use kdgat_train::memory::{Meter, retry_on_oom};

/// One model of a detection.
#[derive(Debug)]
struct Member {
    scorer: Scorer,
    /// The car's own scale, if the model was calibrated for it.
    car: Option<CarScale>,
    assemble: AssembleOptions,
    assembler: Assembler,
}

impl Member {
    fn batch(&mut self, columns: &Columns) -> Result<Batch, EvaluateError> {
        let assembled = || Ok::<_, EvaluateError>(self.assembler.assemble_columns(columns, &self.assemble)?);
        retry_on_oom(Meter::new(Device::Cpu), assembled)
    }

    fn explain(&self, batch: &Batch) -> Result<Explained, EvaluateError> {
        retry_on_oom(Meter::new(self.scorer.device()), || self.scorer.explain(batch, self.car.as_ref()))
    }

    /// True if the classifier's own ID list adds evidence of an attack, even if a car's list decides.
    fn has_unknown_id(&self, explained: &Explained) -> bool {
        let unlisted = self.scorer.id_list().zip(explained.window.unlisted.as_ref());
        unlisted.is_some_and(|(list, window)| list.of_window(&window.can_ids) > 0.0)
    }
}

/// A second model, with the scales on which both models' scores are standardised.
#[derive(Debug)]
struct Second {
    member: Member,
    scales: [Scale; 2],
    /// True if both models read the same batch.
    shares_batch: bool,
}

/// The models of a detection: one, or a classifier and an autoencoder.
#[derive(Debug)]
pub struct Members {
    first: Member,
    second: Option<Second>,
}

/// Result of all models for one window.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged {
    pub score: f64,
    /// Separate scores of two models.
    pub scores: Option<SeparateScores>,
    /// Mean of the models' deviations, if they are calibrated.
    pub deviations: Option<f64>,
    /// ID that contributes most, by the model to which the window is the more unusual.
    pub can_id: u32,
    pub contribution: f32,
    pub has_unknown_id: bool,
}

impl Members {
    /// Builds the scorers.
    ///
    /// # Errors
    /// Fails if the weights do not fit, there are neither one nor two models, or they lack a scale.
    pub fn new(
        models: &[&TrainedModel],
        cars: Vec<CarScale>,
        scales: Vec<Scale>,
        device: Device,
    ) -> Result<Self, EvaluateError> {
        let count = models.len();
        let has_cars = cars.is_empty() || cars.len() == count;
        let mut cars = cars.into_iter();
        let mut member = |model: &TrainedModel| {
            let scorer = Scorer::new(model, device, Backend::Auto)?;
            let (car, mut assemble) = (cars.next(), scorer.assemble_options());
            if let Some(profile) = car.as_ref().and_then(CarScale::profile) {
                assemble.profile = Some(profile.clone());
            }
            Ok::<_, EvaluateError>(Member { scorer, car, assemble, assembler: Assembler::default() })
        };
        match (models, scales.as_slice(), has_cars) {
            ([only], [], true) => Ok(Self { first: member(only)?, second: None }),
            ([one, other], &[of_one, of_other], true) => {
                let (mut first, second) = (member(one)?, member(other)?);
                let shared = first.assemble.shared_with(&second.assemble);
                let shares_batch = shared.is_some();
                first.assemble = shared.unwrap_or(first.assemble);
                Ok(Self { first, second: Some(Second { member: second, scales: [of_one, of_other], shares_batch }) })
            }
            (models, scales, _) => Err(EvaluateError::Input(format!(
                "{} models with {} scales: expected one model, or a classifier and an autoencoder with a scale and, if calibrated, a car's \
                 scale each",
                models.len(),
                scales.len()
            ))),
        }
    }

    /// Scores the window in `columns`, the only one there.
    ///
    /// # Errors
    /// Fails on errors of libtorch.
    pub fn judge(&mut self, columns: &Columns) -> Result<Judged, EvaluateError> {
        let Self { first, second } = self;
        let batch = first.batch(columns)?;
        let explained = first.explain(&batch)?;
        let (kind, raw) = (first.scorer.kind(), explained.window.raw);
        let deviations = first.car.as_ref().map(|car| car.deviations(&explained.window));
        let has_unknown_id = first.has_unknown_id(&explained);
        let Some(Second { member: second, scales, shares_batch }) = second else {
            let Explained { can_id, contribution, .. } = explained;
            let score = kind.score(raw);
            return Ok(Judged { score, scores: None, deviations, can_id, contribution, has_unknown_id });
        };

        let batch = if *shares_batch { batch } else { second.batch(columns)? };
        let of_second = second.explain(&batch)?;
        let (other_kind, other_raw) = (second.scorer.kind(), of_second.window.raw);
        let standardised = [scales[0].standardise(kind, raw), scales[1].standardise(other_kind, other_raw)];
        let on_car = deviations.zip(second.car.as_ref().map(|car| car.deviations(&of_second.window)));
        let (of_one, of_other) = on_car.unwrap_or(standardised.into());
        let telling = if of_other > of_one { &of_second } else { &explained };
        Ok(Judged {
            score: mean(standardised.into_iter()),
            scores: Some(SeparateScores { gat: kind.score(raw), vgae: other_kind.score(other_raw) }),
            deviations: on_car.map(|(one, other)| mean([one, other].into_iter())),
            can_id: telling.can_id,
            contribution: telling.contribution,
            has_unknown_id,
        })
    }

    /// Features of the windows' graphs.
    pub fn features(&self) -> FeatureSet {
        self.first.scorer.features()
    }

    /// The profile in use, for models of the profile set.
    pub fn profile(&self) -> Option<&CarProfile> {
        self.first.assemble.profile.as_ref()
    }

    /// Meaning of the scores; `None`: the mean of two models' standardised scores.
    pub fn kind(&self) -> Option<ScoreKind> {
        self.second.is_none().then(|| self.first.scorer.kind())
    }

    /// True if the car's own scales are in use.
    pub fn is_calibrated(&self) -> bool {
        self.first.car.is_some()
    }
}
