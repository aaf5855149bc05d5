//! A training run from its folder to its summary: the steps that all training stages share.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

use super::StageError;
use super::outcome::Outcome;
use super::resume;
use super::setup::Origin;
use super::sizing::Decided;
use super::teacher::{self, TeacherIdentity};
use super::together::{Scratch, share_run};
use super::training::{self, RunInputs};
use crate::config::run_settings::INITIAL_WEIGHTS;
use crate::config::{self, Config, MonitorChoice, Stage};
use crate::distill::Teacher;
use crate::distill::objective::Student;
use crate::distill::registry::Registry;
use crate::files;
use crate::graph::{Loader, Vocabulary};
use crate::memory::{Meter, retry_on_oom};
use crate::nn::{Architecture, BatchNeeds, ModelDescription};
use crate::train::checkpoint;
use crate::train::console::{Console, Heading};
use crate::train::fit::{BEST, BatchPlan, Ending, Fit, FitOptions, LAST, fit};
use crate::train::optimizer::Share;
use crate::train::processes::Processes;
use crate::train::run_directory::RunDirectory;
use crate::train::state::Position;
use crate::train::trainable::Trainable;

/// True if a tensor is part of the student. False for projections and hints, which are only used in training.
fn is_deployed(name: &str) -> bool {
    !name.starts_with("projection.") && !name.starts_with("hint.")
}

/// True if a run's model is registered as the teacher of its dataset.
fn becomes_teacher(config: &Config, stage: Stage) -> bool {
    config.model.size.starts_with("teacher") && !config.distillation.use_kd && stage != Stage::Pretrain
}

/// A run that is about to start or to be resumed.
pub struct Run<'a> {
    pub(super) config: &'a Config,
    pub(super) stage: Stage,
    origin: Origin,
    pub(super) directory: RunDirectory,
    pub(super) console: Console,
    /// Data, teacher and batch size, for `config.json` and `summary.json`.
    inputs: Map<String, Value>,
    /// For a resumed run: the sizes that it decided when it started.
    pub(super) decided: Option<Decided>,
    teacher_digest: Option<String>,
    /// The architectures of the teacher's networks; none if its outputs come from a file.
    pub(super) teachers: Vec<Architecture>,
    /// The processes that train together; `None` if this one trains alone.
    pub(super) processes: Option<Arc<Processes>>,
    /// The folder of a process that does not write the run's.
    _scratch: Option<Scratch>,
}

/// Everything that a training needs besides the student, its tensors and the plan of batches.
pub struct Prepared {
    pub training_loader: Loader,
    pub validation_loader: Loader,
    pub options: FitOptions,
    /// True if the backward pass recomputes activations.
    pub recomputes: bool,
    pub description: ModelDescription,
    /// Graphs, or nodes of one large graph, per batch.
    pub batch_graphs: usize,
    /// Amounts of training and validation data, for the first line.
    pub amounts: String,
    /// Further lines for the user.
    pub notes: Vec<String>,
    /// The predicted peak of tensors, in bytes, if there is a prediction.
    pub expected_peak_bytes: Option<u64>,
    /// Makes lines for the user at the end of the training.
    pub closing: Box<dyn Fn() -> Vec<String>>,
}

impl<'a> Run<'a> {
    /// Opens the run's folder; of several processes, only process 0 does. `extra_inputs` identify inputs that only this stage reads.
    ///
    /// # Errors
    /// If the run cannot be resumed with this configuration; nothing in its folder has changed then.
    pub fn open(
        (config, stage): (&'a Config, Stage),
        origin: Origin,
        teacher: Option<TeacherIdentity>,
        extra_inputs: Map<String, Value>,
        processes: Option<Arc<Processes>>,
    ) -> Result<Self, StageError> {
        let (teacher_digest, teachers) = teacher.map(|teacher| (teacher.digest, teacher.architectures)).unzip();
        let teachers = teachers.unwrap_or_default();
        let follows = processes.as_ref().filter(|processes| !processes.is_first());
        let (scratch, directory) = match follows {
            Some(processes) => {
                let (scratch, directory) = Scratch::new(processes.place())?;
                (Some(scratch), directory)
            }
            None => (None, training::run_directory(config, &origin.dataset.name, stage)?),
        };
        let mut resumes = config.output.resume && directory.file(LAST).exists();
        if let Some(processes) = &processes {
            resumes = share_run(processes, &directory, resumes)?;
        }
        let run_inputs = RunInputs {
            dataset: &origin.dataset,
            teacher: teacher_digest.as_deref(),
            split: extra_inputs.get("split"),
            initial_weights: extra_inputs.get(INITIAL_WEIGHTS),
        };
        let decided = resumes.then(|| resume::check(config, stage, &run_inputs, &directory)).transpose()?;
        if becomes_teacher(config, stage) && follows.is_none() {
            Registry::new(&config.distillation.teachers_dir).check_writable(&origin.dataset.name)?;
        }
        let log = directory.file("log.txt");
        let mut console = Console::new(Some(&log)).map_err(files::failed("write", &log))?;
        if origin.counts_nodes {
            console = console.counting_nodes();
        }
        if follows.is_some() {
            console = console.silent();
        } else if config.output.live {
            let what = format!("{} {} on {}", config.model.model, config.model.size, origin.dataset.name);
            console = console.with_panel(Heading { what, run: directory.path().display().to_string() });
        }
        if config.output.resume && !resumes {
            console.line(&format!(
                "{}: there is nothing to resume; the run starts from the beginning",
                directory.path().display()
            ));
        }
        let mut inputs = Map::new();
        inputs.insert("dataset".into(), json!(origin.dataset));
        inputs.insert("teacher_digest".into(), json!(teacher_digest));
        inputs.extend(extra_inputs);
        let _scratch = scratch;
        Ok(Self {
            config,
            stage,
            origin,
            directory,
            console,
            inputs,
            decided,
            teacher_digest,
            teachers,
            processes,
            _scratch,
        })
    }

    /// True if this process writes the run's folder.
    pub fn writes(&self) -> bool {
        self.processes.as_ref().is_none_or(|processes| processes.is_first())
    }

    /// The run's folder.
    pub fn directory(&self) -> &RunDirectory {
        &self.directory
    }

    /// Parts of a batch that the run's teachers read.
    pub fn needs_of_teachers(&self) -> BatchNeeds {
        BatchNeeds::of_all(self.teachers.iter().map(Architecture::needs))
    }

    /// Shows a line to the user and writes it to the run's log.
    pub fn line(&mut self, text: &str) {
        self.console.line(text);
    }

    /// True if the run resumes from a checkpoint.
    pub fn resumes(&self) -> bool {
        self.decided.is_some()
    }

    /// The settings of the training loop for this student.
    pub fn fit_options(&self, student: &impl Student) -> FitOptions {
        let mut options = training::fit_options(self.config, self.origin.device);
        // Some operations of graph networks are composed of libtorch's.
        options.uses_own_threads &= !config::trains_on_graphs(self.config, self.stage);
        let is_capturable = student.capture_obstacle().is_none();
        options.processes.clone_from(&self.processes);
        options.adam.share = self.processes.as_deref().map_or(Share::WHOLE, Share::of);
        // A captured step cannot exchange sums.
        let is_capturable = is_capturable && self.processes.is_none();
        options.records_steps = is_capturable && training::captures_steps(self.config, self.origin.device.is_cuda());
        if self.config.training.monitor == MonitorChoice::Metric
            && let Some(metric) = student.metric()
        {
            options.monitor = metric;
        }
        options
    }

    /// Why steps of this student are not captured as CUDA graphs on a GPU; `None` if they can be, or are not asked for.
    fn capture_obstacle(&self, student: &impl Student) -> Option<String> {
        if !self.origin.device.is_cuda() || self.config.training.cuda_graphs == Some(false) {
            return None;
        }
        let of_processes = self.processes.as_ref().map(|_| "several processes exchange sums in a step");
        let obstacle = of_processes.or_else(|| student.capture_obstacle()).map(str::to_owned);
        obstacle.or_else(|| training::capture_obstacle(self.config))
    }

    /// Trains, saves the results, and registers the model as the dataset's teacher if its size says so.
    pub fn fit(
        mut self,
        mut student: impl Student,
        mut trainable: Trainable,
        plan: &mut impl BatchPlan,
        prepared: Prepared,
    ) -> Result<Outcome, StageError> {
        let Prepared { training_loader, validation_loader, mut options, mut description, batch_graphs, .. } = prepared;
        let num_parameters = trainable.count_parameters(is_deployed);
        options.identity = self.freeze(batch_graphs, prepared.recomputes, options.records_steps)?;
        if let Some(processes) = &self.processes {
            processes.expect_same("identity of data, teacher and settings", &options.identity)?;
        }
        let line = self.describe(num_parameters, &prepared.amounts, batch_graphs, student.teacher().digest());
        self.console.line(&line);
        for decision in student.teacher().decisions().iter().chain(&prepared.notes) {
            self.console.line(decision);
        }
        if let Some(obstacle) = self.capture_obstacle(&student).filter(|_| !options.records_steps) {
            self.console.line(&format!("steps are not captured as CUDA graphs: {obstacle}"));
        }

        // Fit.
        let best_path = self.directory.file(BEST);
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

        if let Some(processes) = &self.processes {
            processes.finish()?;
        }

        // Save. An error of the teacher after its last answer is reported once the results are saved.
        let (teacher_summary, teacher_error) = match student.into_teacher().into_teacher().map(Teacher::finish) {
            Some(Err(error)) => (None, Some(error)),
            summary => (summary.and_then(Result::ok), None),
        };
        let digest =
            retry_on_oom(Meter::new(self.origin.device), || Ok::<_, StageError>(trainable.digest(is_deployed)?))?;
        let path = self.directory.path().to_owned();
        let mut outcome = Outcome::new(path, &summary, num_parameters, digest, teacher_summary, self.inputs.clone());
        outcome.expected_peak_memory_bytes = prepared.expected_peak_bytes;
        self.console.finish();
        if !self.writes() {
            return teacher_error.map_or(Ok(outcome), |error| Err(error.into()));
        }
        if summary.ending != Ending::Interrupted {
            // The summary is written last: a folder with a summary is completely finished.
            if becomes_teacher(self.config, self.stage) {
                let folder = teacher::register(self.config, &self.directory.file(BEST), &outcome)?;
                let dataset = &self.origin.dataset.name;
                self.console.line(&format!("registered as the teacher of {dataset}: {}", folder.display()));
            }
            self.directory.write_json("summary.json", &outcome)?;
        }
        (prepared.closing)().iter().for_each(|line| self.console.line(line));
        outcome.print(&mut self.console, &summary);
        teacher_error.map_or(Ok(outcome), |error| Err(error.into()))
    }

    /// Writes the frozen configuration and the identifying inputs, now that the batch size is known. Returns the digest of everything
    /// that the losses depend on.
    fn freeze(&mut self, batch_graphs: usize, recomputes: bool, captures_steps: bool) -> Result<String, StageError> {
        let inputs = RunInputs {
            dataset: &self.origin.dataset,
            teacher: self.teacher_digest.as_deref(),
            split: self.inputs.get("split"),
            initial_weights: self.inputs.get(INITIAL_WEIGHTS),
        };
        let identity = training::identity(self.config, self.stage, batch_graphs, &inputs);
        self.inputs.insert("batch_graphs".into(), json!(batch_graphs));
        self.inputs.insert("recomputes".into(), json!(recomputes));
        self.inputs.insert("captures_steps".into(), json!(captures_steps));
        self.inputs.insert("identity".into(), json!(identity));
        if self.decided.is_none() {
            let frozen = config::freeze(self.config, self.stage.command(), &self.inputs);
            self.directory.write_json("config.json", &frozen)?;
        }
        Ok(identity)
    }

    /// The description saved with the weights; the epoch is set when they are saved.
    pub fn description(&self, architecture: Architecture, vocabulary: Vocabulary) -> ModelDescription {
        ModelDescription {
            architecture,
            vocabulary,
            foreign_ids: None,
            dataset: self.origin.dataset.clone(),
            window: self.config.data.window,
            size: self.config.model.size.clone(),
            epoch: 0,
            val_loss: None,
            teacher_digest: self.teacher_digest.clone(),
            created_by_version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    fn describe(&self, num_parameters: i64, amounts: &str, batch_graphs: usize, teacher: Option<&str>) -> String {
        let Config { model, distillation, .. } = self.config;
        let teacher = teacher.map_or(String::new(), |digest| {
            format!("; teacher {}, residency {}", &digest[..12], distillation.residency())
        });
        let processes =
            self.processes.as_ref().map_or(String::new(), |processes| format!(" in {} processes", processes.size()));
        format!(
            "{} {}: {num_parameters} parameters, {amounts} of {}, batches of {batch_graphs}{processes}{teacher}",
            model.model, model.size, self.origin.dataset.name,
        )
    }
}
