//! The results of a trained agent and its baselines, and the files with them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::StageError;
use super::fusion_models::Pair;
use super::setup::Data;
use crate::config::Config;
use crate::evaluate::bootstrap::Bootstrap;
use crate::evaluate::judge::TestFile;
use crate::evaluate::tables::{ModelReport, Report};
use crate::files;
use crate::fusion::agent::Agent;
use crate::fusion::baselines::{Contender, FixedWeight};
use crate::fusion::fit::FitSummary;
use crate::fusion::report::{FusionReport, Judge, verdict};
use crate::fusion::{Observations, World};
use crate::train::fit::BEST;
use crate::train::run_directory::RunDirectory;
use crate::train::run_name::RunName;

/// The inputs of the verdict.
pub struct Judged<'a> {
    pub config: &'a Config,
    pub data: &'a Data,
    pub pair: &'a Pair,
    pub world: &'a World,
    pub files: &'a [TestFile],
    pub tests: &'a [Observations],
    pub resamples: u64,
}

impl Judged<'_> {
    /// Evaluates all contenders, the agent first, and makes the verdict.
    pub fn report(
        &self,
        directory: &RunDirectory,
        agent: &Agent,
        baselines: Vec<Contender>,
        fixed: FixedWeight,
    ) -> Result<FusionReport, StageError> {
        let RunName { group, name } = RunName::of(directory.path());
        let scores = |of: &Observations| agent.scores(&self.world.states, of);
        let learned = Contender {
            name,
            kind: "agent",
            parameters: agent.num_parameters(),
            needs: [true, true],
            validation: scores(&self.world.validation)?,
            test: self.tests.iter().map(scores).collect::<Result<_, _>>()?,
        };
        let bootstrap = Bootstrap { resamples: self.resamples, seed: self.config.training.seed };
        let threshold = self.config.evaluation.threshold;
        let judge = Judge { validation: &self.world.validation, files: self.files, threshold, bootstrap };
        let mut models = Vec::new();
        for (index, contender) in std::iter::once(&learned).chain(&baselines).enumerate() {
            let of_agent = (index == 0).then_some((directory.path(), agent, group.as_str()));
            models.push(judge.judge(contender, self.describe(contender, of_agent)?)?);
        }
        let verdict = verdict(&models, &format!("fixed weight {}", fixed.weight));
        let manifest = self.data.store.manifest();
        let report = Report {
            dataset: self.data.dataset.name.clone(),
            data_digest: self.data.dataset.digest.clone(),
            window: manifest.options.window,
            stride: manifest.options.stride,
            bootstrap,
            models,
            teachers: Vec::new(),
        };
        Ok(FusionReport { report, verdict, fixed, weights: self.mean_weights(agent)? })
    }

    fn describe(&self, contender: &Contender, agent: Option<(&Path, &Agent, &str)>) -> Result<ModelReport, StageError> {
        let [needs_vgae, needs_gat] = contender.needs;
        let needed = [(needs_vgae, &self.pair.vgae), (needs_gat, &self.pair.gat)];
        let models: Vec<_> = needed.into_iter().filter(|(needed, _)| *needed).map(|(_, model)| model).collect();
        let mut paths: Vec<PathBuf> = models.iter().map(|model| model.path.clone()).collect();
        let mut weights_digests: Vec<String> = models.iter().map(|model| model.weights_digest.clone()).collect();
        let mut file_bytes: u64 = models.iter().map(|model| model.file_bytes).sum();
        if let Some((run, agent, _)) = agent {
            let path = run.join(BEST);
            let error = files::failed("read the size", &path);
            file_bytes += fs::metadata(&path).map_err(error)?.len();
            paths.insert(0, path);
            weights_digests.insert(0, agent.digest.clone());
        }
        Ok(ModelReport {
            name: contender.name.clone(),
            group: agent.map_or(contender.name.as_str(), |(.., group)| group).to_owned(),
            kind: match agent {
                Some(_) => self.config.fusion.fusion.as_str().to_owned(),
                None => contender.kind.to_owned(),
            },
            features: None,
            settings: Vec::new(),
            size: self.config.model.size.clone(),
            distilled: agent.is_some() && self.config.distillation.use_kd,
            seed: Some(self.config.training.seed),
            paths,
            weights_digests,
            parameters: contender.parameters + models.iter().map(|model| model.parameters).sum::<usize>(),
            file_bytes,
            speed: None,
            validation_roc_auc: f64::NAN,
            rows: Vec::new(),
            gone: Vec::new(),
        })
    }

    /// The agent's mean fusion weight in each test folder.
    fn mean_weights(&self, agent: &Agent) -> Result<Vec<(String, f64)>, StageError> {
        let mut sums: BTreeMap<&str, (f64, usize)> = BTreeMap::new();
        for (file, of) in self.files.iter().zip(self.tests) {
            let sum = sums.entry(&file.folder).or_default();
            let weights = agent.weights(&self.world.states, &of.graphs)?;
            *sum = (sum.0 + weights.iter().sum::<f64>(), sum.1 + weights.len());
        }
        Ok(sums.into_iter().map(|(folder, (sum, count))| (folder.to_owned(), sum / count as f64)).collect())
    }
}

/// Writes `fusion.json` and `fusion.csv`.
pub fn write_results(directory: &RunDirectory, report: &FusionReport) -> Result<(), StageError> {
    directory.write_json("fusion.json", &report.json())?;
    let path = directory.file("fusion.csv");
    let csv = report.report.csv().map_err(std::io::Error::other);
    Ok(csv.and_then(|csv| files::write_atomically(&path, &csv)).map_err(files::failed("write", &path))?)
}

/// The content of `summary.json`.
pub fn summary_json(
    run: &Path,
    summary: &FitSummary,
    agent: &Agent,
    report: &FusionReport,
    inputs: &Map<String, Value>,
) -> Value {
    json!({
        "run": run,
        "ending": summary.ending,
        "epochs": summary.epochs,
        "best_epoch": summary.progress.best_epoch + 1,
        "best_val_loss": summary.progress.best_loss,
        "best": summary.best,
        "peak_memory_bytes": summary.peak_memory_bytes,
        "num_parameters": agent.num_parameters(),
        "weights_digest": agent.digest,
        "beats_best_fixed_weight": report.verdict.agent_wins(),
        "inputs": inputs,
    })
}
