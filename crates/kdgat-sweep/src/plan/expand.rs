//! Expansion of a sweep file to tasks and trials. Merges and checks the configuration of every combination before anything
//! runs.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::path::PathBuf;

use super::axis::{Axis, Choice, split};
use super::combine::{Combination, combinations};
use super::file::{Combine, MOST_PROCESSES, Step, StepCommand, SweepFile, text_of};
use super::task::{Input, Places, Plan, Task, TaskKind, Trial, describe, trial_id};
use super::{metric, shared};
use crate::SweepError;
use crate::early::EarlyStopping;
use crate::state::table::COLUMNS;
use kdgat_config::{self, Config, Sources, nearest};
use kdgat_train::memory::limits::LEAST_PROCESS_BYTES;

/// Sources of configuration besides the sweep file.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// Folder with `kdgat.toml` and `presets/`; empty for the process's working directory.
    pub working_folder: PathBuf,
    /// Environment variables; only those that start with `KDGAT_` are read.
    pub variables: Vec<(OsString, OsString)>,
}

impl Surroundings {
    /// Returns the process's environment and working directory.
    pub fn of_process() -> Self {
        Self { working_folder: PathBuf::new(), variables: std::env::vars_os().collect() }
    }
}

/// Fields that may take the weights of another step.
const WEIGHT_FIELDS: &[&str] = &["teacher_path", "more_teachers", "difficulty_model", "fusion_vgae", "fusion_gat"];
/// Sections whose fields `kdgat evaluate` reads.
pub const EVALUATED_SECTIONS: [&str; 2] = ["data", "evaluation"];
/// Key in `from` of an evaluation: the runs to evaluate.
const RUNS: &str = "runs";

/// Expands a sweep file to a plan. `name` is the sweep's name, `shown` the file's name in errors.
///
/// # Errors
/// All problems of the file together, or the first invalid combination.
pub fn expand(file: &SweepFile, name: &str, shown: &str, surroundings: &Surroundings) -> Result<Plan, SweepError> {
    let invalid = |problems: Vec<String>| SweepError::Invalid { file: shown.to_owned(), problems };
    let axes = axes(file).map_err(invalid)?;
    let problems = step_problems(file).into_iter().chain(metric::problems(file)).chain(axis_problems(file, &axes));
    let problems = problems.chain(file.early_stopping.iter().flat_map(EarlyStopping::problems));
    let problems: Vec<String> = problems.chain(file.resources.problems()).chain(file.slurm.problems()).collect();
    if !problems.is_empty() {
        return Err(invalid(problems));
    }
    let varied = &axes[..axes.len() - usize::from(!file.seeds.is_empty())];
    let combinations = combinations(file, varied).map_err(invalid)?;

    let mut expansion = Expansion { file, axes: &axes, shown, surroundings, tasks: Vec::new(), known: HashSet::new() };
    let mut trials: Vec<Trial> = Vec::new();
    let mut known: HashSet<String> = HashSet::new();
    for combination in &combinations {
        let trial = expansion.trial(combination)?;
        // Two combinations with the same settings are one trial.
        if known.insert(trial.id.clone()) {
            trials.push(trial);
        }
    }
    let (metric, direction) = file.metric();
    Ok(Plan {
        name: name.to_owned(),
        metric: metric.to_owned(),
        direction,
        retries: file.retries,
        early_stopping: file.early_stopping.clone(),
        resources: file.resources.clone(),
        slurm: file.slurm.clone(),
        axes: axes.iter().map(|axis| axis.name.clone()).collect(),
        fields: axes.iter().map(|axis| axis.field().map(|field| field.name.to_owned())).collect(),
        tasks: expansion.tasks,
        trials,
        places: Places::default(),
    })
}

/// Reads the axes of the file, seeds last.
fn axes(file: &SweepFile) -> Result<Vec<Axis>, Vec<String>> {
    let draws = file.combine == Combine::Random;
    let (mut axes, mut problems) = (Vec::new(), Vec::new());
    for entry in &file.axis {
        match Axis::new(entry, draws) {
            Ok(axis) => axes.push(axis),
            Err(problem) => problems.push(problem),
        }
    }
    axes.extend(Axis::of_seeds(&file.seeds));
    if problems.is_empty() { Ok(axes) } else { Err(problems) }
}

/// Fields of a run that the sweep sets itself, so that a step's value would have no effect.
const SET_BY_THE_SWEEP: [&str; 4] = ["run_dir", "runs_dir", "resume", "live"];

fn step_problems(file: &SweepFile) -> Vec<String> {
    let mut problems = Vec::new();
    if file.step.is_empty() {
        problems.push("there is no [[step]], so nothing would run; add one with `name` and `command`".to_owned());
    }
    for (at, step) in file.step.iter().enumerate() {
        let (name, before) = (&step.name, &file.step[..at]);
        let fits =
            !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_".contains(letter));
        if !fits || ["store", "targets"].contains(&name.as_str()) {
            problems.push(format!(
                "`{name}` is not a valid step name; use letters, digits, - and _ (not `store` or `targets`)"
            ));
        }
        if before.iter().any(|other| other.name == *name) {
            problems.push(format!("two steps are named `{name}`; rename one"));
        }
        for field in step.set.keys().filter(|field| SET_BY_THE_SWEEP.contains(&field.as_str())) {
            problems.push(format!("step `{name}` sets `{field}`, which the sweep sets itself; remove it"));
        }
        if !(1..=MOST_PROCESSES).contains(&step.processes) {
            let processes = step.processes;
            problems.push(format!("step `{name}`: processes = {processes} must be from 1 to {MOST_PROCESSES}"));
        }
        let needed = u64::from(step.processes) * LEAST_PROCESS_BYTES;
        if step.processes > 1 && file.resources.memory_per_trial.0 < needed {
            problems.push(format!(
                "step `{name}`: {} processes need at least {} MiB, and [resources] memory_per_trial is {} MiB; raise it",
                step.processes,
                needed >> 20,
                file.resources.memory_per_trial.0 >> 20
            ));
        }
        if step.processes > 1 && matches!(step.command, StepCommand::Evaluate | StepCommand::Fusion) {
            problems.push(format!("step `{name}`: this command runs in one process; remove `processes`"));
        }
        let fields = if step.command == StepCommand::Evaluate { &[RUNS][..] } else { WEIGHT_FIELDS };
        for (field, others) in &step.from {
            if !fields.contains(&field.as_str()) {
                problems.push(format!("step `{name}`: `from` accepts {} here (got `{field}`)", fields.join(", ")));
            }
            for other in split(others).iter().filter(|other| !before.iter().any(|step| step.name == **other)) {
                problems.push(format!("step `{name}` takes {field} from `{other}`; no step before it has this name"));
            }
        }
        let is_train = |other: &str| before.iter().any(|step| step.name == other && step.command == StepCommand::Train);
        let evaluated = step.from.get(RUNS).filter(|_| step.command == StepCommand::Evaluate);
        if evaluated.is_some_and(|others| split(others).iter().any(|other| is_train(other))) {
            problems.push(format!(
                "step `{name}` evaluates a step that runs `train`; a sweep compares such runs by their validation, e.g. metric = \
                 \"val_accuracy\", and `kdgat evaluate` scores them on their test graphs afterwards"
            ));
        }
        if step.command == StepCommand::Evaluate && !step.from.contains_key(RUNS) {
            problems.push(format!("step `{name}` has no runs to evaluate; add from = {{ runs = \"STEP\" }}"));
        }
    }
    if let Some(measure) = file.measure.as_ref().filter(|measure| !file.step.iter().any(|step| step.name == **measure))
    {
        let near = nearest(measure, file.step.iter().map(|step| step.name.as_str()));
        problems.push(format!("measure: there is no step `{measure}`; the nearest is `{near}`"));
    }
    problems
}

fn axis_problems(file: &SweepFile, axes: &[Axis]) -> Vec<String> {
    let mut problems = Vec::new();
    for (at, axis) in axes.iter().enumerate() {
        if COLUMNS.contains(&axis.name.as_str()) {
            problems
                .push(format!("axis `{0}` has the name of a column of sweep.csv; give it another `name`", axis.name));
        }
        if axes[..at].iter().any(|other| other.name == axis.name) {
            problems.push(format!("two axes are named `{}`; give one of them another `name`", axis.name));
        }
        for step in axis.steps.iter().filter(|step| !file.step.iter().any(|known| known.name == **step)) {
            let near = nearest(step, file.step.iter().map(|step| step.name.as_str()));
            problems.push(format!("axis `{}`: there is no step `{step}`; the nearest is `{near}`", axis.name));
        }
    }
    problems
}

/// State of the expansion: the tasks so far.
struct Expansion<'a> {
    file: &'a SweepFile,
    axes: &'a [Axis],
    shown: &'a str,
    surroundings: &'a Surroundings,
    tasks: Vec<Task>,
    /// IDs of `tasks`.
    known: HashSet<String>,
}

impl Expansion<'_> {
    fn trial(&mut self, combination: &Combination) -> Result<Trial, SweepError> {
        let mut made: BTreeMap<&str, String> = BTreeMap::new();
        let mut ids = Vec::new();
        for step in &self.file.step {
            let id = self.step(step, combination, &made)?;
            made.insert(&step.name, id.clone());
            ids.push(id);
        }
        // Files without a step were rejected before.
        let measured = self.file.measure.as_deref().and_then(|name| made.get(name)).or(ids.last()).cloned();
        Ok(Trial {
            id: trial_id(&ids),
            labels: combination.iter().map(|choice| choice.label.clone()).collect(),
            measured: measured.unwrap_or_default(),
            tasks: ids,
        })
    }

    /// Adds the task of a step for a combination, and the tasks that it needs, unless they exist. Returns the task's ID.
    fn step(
        &mut self,
        step: &Step,
        combination: &Combination,
        made: &BTreeMap<&str, String>,
    ) -> Result<String, SweepError> {
        let holds = |axis: &Axis| axis.steps.is_empty() || axis.steps.contains(&step.name);
        let chosen: Vec<(&Axis, &Choice)> = self.axes.iter().zip(combination).filter(|(axis, _)| holds(axis)).collect();
        let label = describe(chosen.iter().map(|(axis, choice)| (axis.name.as_str(), choice.label.as_str())));
        let inputs: Vec<Input> = step
            .from
            .iter()
            .flat_map(|(field, others)| split(others).into_iter().map(move |other| (field, other)))
            .filter_map(|(field, other)| Some(Input { field: field.clone(), task: made.get(other.as_str())?.clone() }))
            .collect();

        let failed = |source| SweepError::Settings {
            file: self.shown.to_owned(),
            step: step.name.clone(),
            combination: label.clone(),
            source,
        };
        let mut config = self.config(step, &chosen).map_err(failed)?;
        let mut needs = Vec::new();
        // `kdgat train` builds the store of its dataset itself, once for all trials, and has another teacher for each fold.
        let is_of_can = step.command != StepCommand::Train;
        if is_of_can {
            let store = shared::store(&config);
            needs.push(store.id.clone());
            self.add(store);
        }
        needs.extend(inputs.iter().map(|input| input.task.clone()));
        let kind = match step.command {
            StepCommand::Autoencoder => TaskKind::Autoencoder,
            StepCommand::Classifier => TaskKind::Classifier,
            StepCommand::Curriculum => TaskKind::Curriculum,
            StepCommand::Train => TaskKind::Train,
            StepCommand::Fusion => TaskKind::Fusion,
            StepCommand::Evaluate => TaskKind::Evaluate,
        };
        if is_of_can && kind.trains_on_graphs() && shared::shares_targets(&mut config) {
            let teaches = |input: &&Input| ["teacher_path", "more_teachers"].contains(&input.field.as_str());
            let teachers = inputs.iter().filter(teaches).cloned().collect();
            let targets = shared::targets(&config, &needs[0], teachers);
            needs.push(targets.id.clone());
            self.add(targets);
        }
        let task = Task { processes: step.processes, ..Task::new(kind, &step.name, label, config, needs, inputs) };
        self.refuse_registry(&task)?;
        let id = task.id.clone();
        self.add(task);
        Ok(id)
    }

    fn add(&mut self, task: Task) {
        if self.known.insert(task.id.clone()) {
            self.tasks.push(task);
        }
    }

    fn config(&self, step: &Step, chosen: &[(&Axis, &Choice)]) -> Result<Config, kdgat_config::ConfigError> {
        let mut presets = split(&step.preset);
        let mut flags: BTreeMap<String, String> = BTreeMap::new();
        for (name, value) in &step.set {
            let name = kdgat_config::field(name).map_or(name.as_str(), |field| field.name);
            flags.insert(name.to_owned(), text_of(value));
        }
        for (_, choice) in chosen {
            presets.extend(choice.presets.iter().cloned());
            flags.extend(choice.settings.iter().cloned());
        }
        if step.command == StepCommand::Evaluate {
            // An evaluation ignores the axes of trainings.
            flags.retain(|name, _| {
                kdgat_config::field(name).is_none_or(|field| EVALUATED_SECTIONS.contains(&field.section.name))
            });
        }
        // A placeholder, so that a step that would not read the field is rejected; the path is known once the other step is done.
        let weights = step.from.iter().filter(|_| step.command != StepCommand::Evaluate);
        flags.extend(weights.map(|(field, other)| (field.clone(), format!("of step {other}"))));
        let mut sources = Sources {
            run: None,
            presets,
            working_folder: self.surroundings.working_folder.clone(),
            variables: self.surroundings.variables.clone(),
            config_file: None,
            flags: flags.into_iter().collect(),
            one_graph: false,
        };
        let loaded = kdgat_config::load(&sources)?;
        let mut config = match step.command.stage() {
            Some(stage) => {
                kdgat_config::check_stage(&loaded, stage)?;
                loaded.config
            }
            None => {
                // Presets choose the data of an evaluation; what they say about trainings it ignores, like the axes.
                let Config { data, evaluation, .. } = loaded.config;
                sources.presets.clear();
                let config = Config { data, evaluation, ..kdgat_config::load(&sources)?.config };
                kdgat_config::check(&config)?;
                config
            }
        };
        if step.from.contains_key("teacher_path") {
            config.distillation.teacher_path = None;
        }
        if step.from.contains_key("more_teachers") {
            config.distillation.more_teachers = None;
        }
        if step.from.contains_key("difficulty_model") {
            config.curriculum.difficulty_model = None;
        }
        if step.from.contains_key("fusion_vgae") {
            config.fusion.fusion_vgae = None;
        }
        if step.from.contains_key("fusion_gat") {
            config.fusion.fusion_gat = None;
        }
        Ok(config)
    }

    /// Rejects a curriculum teacher without a difficulty model: trained teachers stay out of the user's registry, so the task
    /// cannot read its difficulty model from there either.
    fn refuse_registry(&self, task: &Task) -> Result<(), SweepError> {
        let scores = task.config.curriculum.curriculum.scores();
        let given = task.config.curriculum.difficulty_model.is_some()
            || task.inputs.iter().any(|input| input.field == "difficulty_model");
        if task.registers() && task.kind == TaskKind::Curriculum && scores && !given {
            let problem = format!(
                "step `{}` trains a teacher on a curriculum and needs a VGAE to score its graphs: set difficulty_model, or \
                 from = {{ difficulty_model = \"STEP\" }}",
                task.step
            );
            return Err(SweepError::Invalid { file: self.shown.to_owned(), problems: vec![problem] });
        }
        Ok(())
    }
}
