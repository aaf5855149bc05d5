//! The errors of a VGAE of graphs on the test graphs of its fold, beside a baseline that knows the means of the training graphs alone.

use std::sync::Arc;

use tch::{Device, Kind, Tensor};

use super::StageError;
use super::graph_autoencoder::is_of_classes;
use super::graphs::schema;
use super::tested_batches::{given, mean_row, rows_of_graphs};
use crate::evaluate::graphs::{Metric, interval};
use crate::evaluate::ranking::Ranking;
use crate::evaluate::{EvaluateError, TrainedModel};
use crate::graph::dataset::GraphSplit;
use crate::graph::{Batch, Store};
use crate::nn::attention::Backend;
use crate::nn::graph_vgae::{features, graph_errors};
use crate::nn::layers::Mode;
use crate::nn::{Architecture, Draw, GraphVgae, GraphVgaeConfig, GraphVgaeOutput, ModelError, Scope, weights};

/// Names of the terms of the error, in the order of [`Errors`].
const TERMS: [&str; 4] = ["error", "features MSE", "categories CE", "edges BCE"];

/// The weighted sum of the terms, and each of them; NaN for a term that the model lacks.
type Errors = [f64; 4];

/// Errors of the test graphs.
pub(super) struct Reconstructions {
    model: Vec<Errors>,
    baseline: Vec<Errors>,
    /// True for graphs like those trained on, whose errors are reported.
    is_normal: Vec<bool>,
    /// True for graphs that the error should be higher for, if there are two classes or the model was trained on some alone.
    is_anomaly: Option<Vec<bool>>,
}

impl Reconstructions {
    /// Reconstructs the test graphs of a division whose training graphs are those that the model was trained on.
    pub fn new(
        model: &TrainedModel,
        architecture: &GraphVgaeConfig,
        store: &Arc<Store>,
        split: &GraphSplit,
        device: Device,
        kernel: Backend,
    ) -> Result<Self, StageError> {
        let mut given = given(model, device)?;
        let network = GraphVgae::new(Scope::root(&mut given), architecture, kernel)?;
        given.check_all_used(|_| false)?;
        let test = Test { store, graphs: &split.test, architecture, device };
        let (is_normal, is_anomaly) = test.labels()?;
        Ok(Self {
            model: test.errors(&|batch| network.forward(batch, Mode::Evaluation))?,
            baseline: test.errors(&test.baseline(split)?)?,
            is_normal,
            is_anomaly,
        })
    }

    /// Metrics of the model, the error first, and of the baseline. `resamples` of the graphs give the model's error its interval.
    pub fn metrics(&self, resamples: u64, seed: u64) -> [Vec<Metric>; 2] {
        [(&self.model, resamples), (&self.baseline, 0)]
            .map(|(errors, resamples)| self.metrics_of(errors, resamples, seed))
    }

    fn metrics_of(&self, errors: &[Errors], resamples: u64, seed: u64) -> Vec<Metric> {
        let normal: Vec<&Errors> =
            errors.iter().zip(&self.is_normal).filter(|(_, normal)| **normal).map(|(row, _)| row).collect();
        let mean = |of: &mut dyn Iterator<Item = f64>| of.sum::<f64>() / normal.len() as f64;
        let metric = |(term, name): (usize, &&str)| {
            let value = mean(&mut normal.iter().map(|row| row[term]));
            Metric { name: (*name).to_owned(), value, interval: None }
        };
        let mut metrics: Vec<Metric> = TERMS.iter().enumerate().map(metric).collect();
        metrics[0].interval =
            interval(normal.len(), resamples, seed, |drawn| mean(&mut drawn.iter().map(|&graph| normal[graph][0])));
        metrics.retain(|metric| !metric.value.is_nan());
        if let Some(labels) = &self.is_anomaly {
            let scores: Vec<f64> = errors.iter().map(|row| row[0]).collect();
            let value = Ranking::new(&scores, labels).metrics().roc_auc;
            metrics.push(Metric { name: "roc_auc".to_owned(), value, interval: None });
        }
        metrics
    }
}

/// The test graphs of a model.
struct Test<'a> {
    store: &'a Arc<Store>,
    graphs: &'a [u64],
    architecture: &'a GraphVgaeConfig,
    device: Device,
}

impl Test<'_> {
    /// See [`Reconstructions::is_normal`] and [`Reconstructions::is_anomaly`].
    fn labels(&self) -> Result<(Vec<bool>, Option<Vec<bool>>), StageError> {
        let (schema, all) = (schema(self.store)?, vec![true; self.graphs.len()]);
        let of = |classes: &[String]| -> Result<Vec<bool>, StageError> {
            self.graphs.iter().map(|&graph| is_of_classes(self.store, graph, classes)).collect()
        };
        match &self.architecture.classes[..] {
            [] if schema.has_classes() && schema.targets[0].classes.len() == 2 => {
                Ok((all, Some(of(&schema.targets[0].classes[1..])?)))
            }
            [] => Ok((all, None)),
            classes => {
                let is_normal = of(classes)?;
                let others = is_normal.iter().map(|normal| !normal).collect();
                Ok((is_normal, Some(others)))
            }
        }
    }

    /// Reconstructs each graph alike: means for continuous features, frequencies for categories, one half for edges.
    fn baseline(
        &self,
        split: &GraphSplit,
    ) -> Result<impl Fn(&Batch) -> Result<GraphVgaeOutput, ModelError>, StageError> {
        let row = mean_row(self.store, &split.training, &self.architecture.categories, self.device)?;
        let architecture = self.architecture.clone();
        Ok(move |batch: &Batch| {
            let features = features(&architecture, batch)?;
            let zeros = || Tensor::f_zeros([batch.num_nodes(), 1], (Kind::Float, features.device()));
            let decoded = row.f_expand([batch.num_nodes(), -1], false)?;
            Ok(GraphVgaeOutput {
                decoded,
                hidden: zeros()?,
                latent: zeros()?,
                mean: zeros()?,
                log_variance: zeros()?,
                features,
            })
        })
    }

    /// The errors of each graph by these outputs.
    fn errors(
        &self,
        forward: &dyn Fn(&Batch) -> Result<GraphVgaeOutput, ModelError>,
    ) -> Result<Vec<Errors>, StageError> {
        let needs = Architecture::GraphVgae(self.architecture.clone()).needs();
        rows_of_graphs(self.store, self.graphs, needs, self.device, &mut |batch| self.errors_of_batch(batch, forward))
    }

    fn errors_of_batch(
        &self,
        batch: &Batch,
        forward: &dyn Fn(&Batch) -> Result<GraphVgaeOutput, ModelError>,
    ) -> Result<Vec<Errors>, EvaluateError> {
        let errors = graph_errors(&forward(batch)?, self.architecture, batch, Draw::FIXED)?;
        let column = |term: &Option<Tensor>| match term {
            Some(term) => Ok(weights::floats(term)?.into_iter().map(f64::from).collect()),
            None => Ok::<_, EvaluateError>(vec![f64::NAN; batch.num_graphs()]),
        };
        let columns = [
            column(&Some(errors.total))?,
            column(&errors.features)?,
            column(&errors.categories)?,
            column(&errors.edges)?,
        ];
        Ok((0..batch.num_graphs()).map(|graph| columns.each_ref().map(|column: &Vec<f64>| column[graph])).collect())
    }
}
