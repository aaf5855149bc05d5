//! A training run from its folder to its summary: the steps that all training stages share.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::StageError;
use super::outcome::Outcome;
use super::resume;
use super::setup::Data;
use super::sizing::{Decided, Sizing};
use super::teacher::{self, TeacherIdentity};
use super::training::{self, Graphs, StagePlan};
use crate::config::{self, Config, MonitorChoice, Stage};
use crate::distill::Teacher;
use crate::distill::objective::Student;
use crate::distill::registry::Registry;
use crate::graph::{ForeignCounts, ForeignIds};
use crate::memory::{Meter, retry_on_oom};
use crate::nn::{Architecture, FreshParameters, ModelDescription};
use crate::train::checkpoint;
use crate::train::console::{Console, Heading};
use crate::train::fit::{BEST, Ending, Fit, LAST, fit};
use crate::train::run_directory::RunDirectory;
use crate::train::state::Position;
use crate::train::trainable::Trainable;

/// True if a tensor is part of the student. False for projections and hints, which are only used in training.
fn is_deployed(name: &str) -> bool {
    !name.starts_with("projection.") && !name.starts_with("hint.")
}

/// A run that is about to start or to be resumed.
pub struct Run<'a> {
    config: &'a Config,
    stage: Stage,
    data: &'a Data,
    directory: RunDirectory,
    console: Console,
    /// Data, teacher and batch size, for `config.json` and `summary.json`.
    inputs: Map<String, Value>,
    /// For a resumed run: the sizes that it decided when it started.
    decided: Option<Decided>,
    teacher_digest: Option<String>,
    /// The teacher's architecture; `None` if its outputs come from a file.
    teacher: Option<Architecture>,
}

impl<'a> Run<'a> {
    /// Opens the run's folder. `extra_inputs` identify inputs that only this stage reads.
    ///
    /// # Errors
    /// If the run cannot be resumed with this configuration; nothing in its folder has changed then.
    pub fn open(
        config: &'a Config,
        stage: Stage,
        data: &'a Data,
        teacher: Option<TeacherIdentity>,
        extra_inputs: Map<String, Value>,
    ) -> Result<Self, StageError> {
        let (teacher_digest, teacher) = teacher.map(|teacher| (teacher.digest, teacher.architecture)).unzip();
        let teacher = teacher.flatten();
        let directory = training::run_directory(config, &data.dataset.name, stage)?;
        let resumes = config.output.resume && directory.file(LAST).exists();
        let decided = resumes.then(|| resume::check(config, stage, data, teacher_digest.as_deref(), &directory));
        let decided = decided.transpose()?;
        if config.model.size.starts_with("teacher") && !config.distillation.use_kd {
            Registry::new(&config.distillation.teachers_dir).check_writable(&data.dataset.name)?;
        }
        let log = directory.file("log.txt");
        let mut console =
            Console::new(Some(&log)).map_err(|source| StageError::File { path: log, action: "write", source })?;
        if config.output.live {
            let what = format!("{} {} on {}", config.model.model, config.model.size, data.dataset.name);
            console = console.with_panel(Heading { what, run: directory.path().display().to_string() });
        }
        if config.output.resume && !resumes {
            console.line(&format!(
                "{}: there is nothing to resume; the run starts from the beginning",
                directory.path().display()
            ));
        }
        let mut inputs = Map::new();
        inputs.insert("dataset".into(), json!(data.dataset));
        inputs.insert("teacher_digest".into(), json!(teacher_digest));
        inputs.extend(extra_inputs);
        Ok(Self { config, stage, data, directory, console, inputs, decided, teacher_digest, teacher })
    }

    /// The run's folder.
    pub fn directory(&self) -> &RunDirectory {
        &self.directory
    }

    /// True if the run resumes from a checkpoint.
    pub fn resumes(&self) -> bool {
        self.decided.is_some()
    }

    /// Trains the student, saves the results, and registers the model as the dataset's teacher if its size says so.
    pub fn train(
        mut self,
        mut student: impl Student,
        architecture: Architecture,
        parameters: FreshParameters,
        plan: &mut impl StagePlan,
    ) -> Result<Outcome, StageError> {
        let mut trainable = Trainable::new(parameters.into_tensors(), self.data.device)?;
        let num_parameters = trainable.count_parameters(is_deployed);
        let vocabulary = Arc::new(self.data.store.vocabulary().clone());
        let teacher = self.teacher.as_ref();
        let edge_features =
            teacher.is_some_and(Architecture::reads_edge_features) || architecture.reads_edge_features();
        let (training_loader, validation_loader) =
            training::loaders(self.config, &self.data.store, &vocabulary, edge_features);
        let mut options = training::fit_options(self.config, self.data.device);
        // Some operations of graph networks are composed of libtorch's.
        options.uses_own_threads &= self.stage != Stage::Train;
        if self.config.training.monitor == MonitorChoice::Metric
            && let Some(metric) = student.metric()
        {
            options.monitor = metric;
        }
        let sizing = Sizing {
            config: self.config,
            data: self.data,
            architecture: &architecture,
            teacher,
            directory: &self.directory,
            decided: self.decided,
            loader: &training_loader,
            console: &mut self.console,
        };
        let recomputes = sizing.settle(&mut student, &mut trainable, plan, &mut options)?;
        options.identity = self.freeze(plan.graphs().batch_graphs, recomputes)?;
        let line = self.describe(num_parameters, plan.graphs(), student.teacher().digest());
        self.console.line(&line);
        for decision in student.teacher().decisions() {
            self.console.line(&decision);
        }

        // Fit.
        let best_path = self.directory.file(BEST);
        // Deviations from a profile include unknown IDs.
        let has_profile = architecture.input().profile.is_some();
        let is_listed = matches!(architecture, Architecture::Gat(_)) && self.config.model.foreign_ids && !has_profile;
        let mut description = self.description(architecture);
        if is_listed {
            description.foreign_ids = self.count_foreign_ids(&plan.graphs().validation)?;
        }
        let mut save_best = |trainable: &Trainable, position: &Position| {
            let deployed: BTreeMap<_, _> =
                trainable.state_dict()?.into_iter().filter(|(name, _)| is_deployed(name)).collect();
            description.epoch = position.progress.best_epoch;
            description.val_loss = position.progress.best_loss;
            checkpoint::write(&best_path, &deployed, &description)
        };
        let summary = fit(
            Fit {
                objective: &mut student,
                trainable: &mut trainable,
                training_loader: &training_loader,
                validation_loader: &validation_loader,
                plan,
                run: &self.directory,
                console: &mut self.console,
                save_best: &mut save_best,
            },
            &options,
            self.decided.is_some(),
        )?;

        // Save. An error of the teacher after its last answer is reported once the results are saved.
        let (teacher_summary, teacher_error) = match student.into_teacher().into_teacher().map(Teacher::finish) {
            Some(Err(error)) => (None, Some(error)),
            summary => (summary.and_then(Result::ok), None),
        };
        let digest =
            retry_on_oom(Meter::new(self.data.device), || Ok::<_, StageError>(trainable.digest(is_deployed)?))?;
        let path = self.directory.path().to_owned();
        let outcome = Outcome::new(path, &summary, num_parameters, digest, teacher_summary, self.inputs.clone());
        self.console.finish();
        if summary.ending != Ending::Interrupted {
            // The summary is written last: a folder with a summary is completely finished.
            if self.config.model.size.starts_with("teacher") && !self.config.distillation.use_kd {
                let folder = teacher::register(self.config, &self.directory.file(BEST), &outcome)?;
                let dataset = &self.data.dataset.name;
                self.console.line(&format!("registered as the teacher of {dataset}: {}", folder.display()));
            }
            self.directory.write_json("summary.json", &outcome)?;
        }
        outcome.print(&mut self.console, &summary);
        teacher_error.map_or(Ok(outcome), |error| Err(error.into()))
    }

    /// Writes the frozen configuration and the identifying inputs, now that the batch size is known. Returns the digest of everything
    /// that the losses depend on.
    fn freeze(&mut self, batch_graphs: usize, recomputes: bool) -> Result<String, StageError> {
        let identity =
            training::identity(self.config, self.stage, batch_graphs, self.data, self.teacher_digest.as_deref());
        self.inputs.insert("batch_graphs".into(), json!(batch_graphs));
        self.inputs.insert("recomputes".into(), json!(recomputes));
        self.inputs.insert("identity".into(), json!(identity));
        if self.decided.is_none() {
            let frozen = config::freeze(self.config, self.stage.as_str(), &self.inputs);
            self.directory.write_json("config.json", &frozen)?;
        }
        Ok(identity)
    }

    /// The description saved with the weights; the epoch is set when they are saved.
    fn description(&self, architecture: Architecture) -> ModelDescription {
        ModelDescription {
            architecture,
            vocabulary: self.data.store.vocabulary().clone(),
            foreign_ids: None,
            dataset: self.data.dataset.clone(),
            window: self.config.data.window,
            size: self.config.model.size.clone(),
            epoch: 0,
            val_loss: None,
            teacher_digest: self.teacher_digest.clone(),
            created_by_version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Counts the validation windows with IDs outside the vocabulary.
    fn count_foreign_ids(&mut self, validation: &[u64]) -> Result<Option<ForeignIds>, StageError> {
        let counts = ForeignCounts::of(&self.data.store, validation)?;
        self.console.line(&counts.text());
        Ok(counts.shares())
    }

    fn describe(&self, num_parameters: i64, graphs: &Graphs, teacher: Option<&str>) -> String {
        let Config { model, distillation, .. } = self.config;
        let teacher = teacher.map_or(String::new(), |digest| {
            format!("; teacher {}, residency {}", &digest[..12], distillation.residency())
        });
        format!(
            "{} {}: {num_parameters} parameters, {} training and {} validation graphs of {}, batches of {}{teacher}",
            model.model,
            model.size,
            graphs.training.len(),
            graphs.validation.len(),
            self.data.dataset.name,
            graphs.batch_graphs,
        )
    }
}
