//! Tasks and trials of a sweep, each identified by a digest of everything that its result depends on.

use std::collections::HashMap;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use super::file::{Direction, Resources};
use super::metric;
use crate::early::EarlyStopping;
use crate::slurm::SlurmSettings;
use kdgat_config::{self, Config, Field, Stage};
use kdgat_graph::Share;

/// An expanded sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// File name without extension.
    pub name: String,
    /// Metric that trials are compared by; empty for a plan without trials.
    pub metric: String,
    /// Direction in which the metric improves.
    pub direction: Direction,
    pub(crate) retries: u32,
    pub(crate) early_stopping: Option<EarlyStopping>,
    pub(crate) resources: Resources,
    pub(crate) slurm: SlurmSettings,
    /// Names of the axes, in the order of the trials' labels.
    pub axes: Vec<String>,
    /// Field that each axis varies, if it varies a single field.
    pub(crate) fields: Vec<Option<String>>,
    /// Tasks in topological order: each comes after those that it needs.
    pub tasks: Vec<Task>,
    /// Trials in the order of the file; none in the plan of a [build in parts](crate::parts).
    pub trials: Vec<Trial>,
    #[serde(skip)]
    pub(crate) places: Places,
}

/// Index of the tasks by ID, built on the first lookup.
#[derive(Debug, Default)]
pub struct Places(OnceLock<HashMap<String, usize>>);

impl Clone for Places {
    /// Returns an empty index: the tasks of the copy may change before its first lookup.
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for Places {
    /// Always true: the index is derived from the tasks.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// One command, run once however many trials need it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Digest of everything that the result depends on: settings, input tasks and, after [`Plan::bind`], the content of the
    /// data and of registered teachers.
    pub id: String,
    /// Command that the task runs.
    pub kind: TaskKind,
    /// Step of the file, or `store` or `targets` for tasks that are added as needed.
    pub step: String,
    /// Settings that distinguish it from the step's other tasks, for display.
    pub label: String,
    /// Merged configuration. Fields that `inputs` provides are unset, since their paths are known only once those tasks are done.
    pub config: Config,
    /// IDs of tasks that must be done before.
    pub needs: Vec<String>,
    /// Fields that take the output of other tasks.
    pub inputs: Vec<Input>,
    /// Processes that run the command together. The result does not depend on their number, but for rounding.
    pub processes: u32,
}

/// A field that takes the weights or the run of another task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Input {
    /// Configuration field that takes the weights, or `runs` for the runs of an evaluation.
    pub field: String,
    /// ID of the other task.
    pub task: String,
}

/// Command of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskKind {
    /// `kdgat data build`
    Store,
    /// `kdgat data build --part`
    Part(Share),
    /// `kdgat teachers cache`
    Targets,
    /// `kdgat teachers cache --part`
    TargetsPart(Share),
    /// `kdgat autoencoder`
    Autoencoder,
    /// `kdgat classifier`
    Classifier,
    /// `kdgat curriculum`
    Curriculum,
    /// `kdgat train`
    Train,
    /// `kdgat fusion`
    Fusion,
    /// `kdgat evaluate`
    Evaluate,
}

impl TaskKind {
    /// Returns the stage that the task trains; `None` if it trains nothing.
    pub fn stage(self) -> Option<Stage> {
        match self {
            Self::Autoencoder => Some(Stage::Autoencoder),
            Self::Classifier => Some(Stage::Classifier),
            Self::Curriculum => Some(Stage::Curriculum),
            Self::Train => Some(Stage::Train),
            Self::Fusion => Some(Stage::Fusion),
            Self::Store | Self::Part(_) | Self::Targets | Self::TargetsPart(_) | Self::Evaluate => None,
        }
    }

    /// True if it trains a model on graphs, rather than a fusion agent on states.
    pub fn trains_on_graphs(self) -> bool {
        self.stage().is_some_and(|stage| stage != Stage::Fusion)
    }

    /// Returns the part that the task makes; `None` if it makes no part of anything.
    pub fn share(self) -> Option<Share> {
        match self {
            Self::Part(share) | Self::TargetsPart(share) => Some(share),
            _ => None,
        }
    }

    /// Returns the command's words.
    pub fn words(self) -> &'static [&'static str] {
        match self {
            Self::Store | Self::Part(_) => &["data", "build"],
            Self::Targets | Self::TargetsPart(_) => &["teachers", "cache"],
            Self::Autoencoder => &["autoencoder"],
            Self::Classifier => &["classifier"],
            Self::Curriculum => &["curriculum"],
            Self::Train => &["train"],
            Self::Fusion => &["fusion"],
            Self::Evaluate => &["evaluate"],
        }
    }
}

/// One combination: a row of `sweep.csv`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Digest of the IDs of its tasks.
    pub id: String,
    /// Label of the choice for each axis.
    pub labels: Vec<String>,
    /// IDs of its steps' tasks, which trials may share.
    pub tasks: Vec<String>,
    /// ID of the task whose metric is compared.
    pub measured: String,
}

impl Plan {
    /// Returns the title of its tables: `Sweep` and its name, or the name alone if nothing varies, as in a pipeline.
    pub fn title(&self) -> String {
        if self.trials.len() > 1 {
            return format!("Sweep {}", self.name);
        }
        let mut letters = self.name.chars();
        letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
    }

    /// Returns the caveat to show next to the best of several trials; `None` unless it is selected on the test folders.
    pub fn caveat(&self) -> Option<&'static str> {
        let evaluates = |trial: &Trial| self.task(&trial.measured).is_some_and(|task| task.kind == TaskKind::Evaluate);
        let selects = self.trials.len() > 1 && self.trials.first().is_some_and(evaluates);
        (selects && metric::is_of_tests(&self.metric)).then_some(metric::SELECTED_ON_TEST)
    }

    /// Returns the task with this ID.
    pub fn task(&self, id: &str) -> Option<&Task> {
        let places = || self.tasks.iter().enumerate().map(|(at, task)| (task.id.clone(), at)).collect();
        let at = *self.places.0.get_or_init(places).get(id)?;
        self.tasks.get(at).filter(|task| task.id == id)
    }

    /// Adds the content of other inputs, such as data and registered teachers, to the ID of each task. `content` returns a
    /// digest of them, or `None` if a task has no other inputs. The IDs of dependent tasks and of trials change too, so results
    /// for a different content are not reused.
    ///
    /// # Errors
    /// The first error of `content`.
    pub fn bind<E>(&mut self, mut content: impl FnMut(&Task) -> Result<Option<String>, E>) -> Result<(), E> {
        let mut bound: HashMap<String, String> = HashMap::new();
        let renew = |id: &mut String, bound: &HashMap<String, String>| {
            if let Some(new) = bound.get(id) {
                id.clone_from(new);
            }
        };
        for task in &mut self.tasks {
            // The tasks that it needs come before it.
            task.needs.iter_mut().for_each(|need| renew(need, &bound));
            task.inputs.iter_mut().for_each(|input| renew(&mut input.task, &bound));
            let settings = digest(task.kind, &task.config, &task.inputs);
            let id = match content(task)? {
                None => settings,
                Some(content) => blake3::hash(format!("{settings} {content}").as_bytes()).to_hex()[..16].to_owned(),
            };
            bound.insert(std::mem::replace(&mut task.id, id.clone()), id);
        }
        for trial in &mut self.trials {
            trial.tasks.iter_mut().for_each(|task| renew(task, &bound));
            renew(&mut trial.measured, &bound);
            trial.id = trial_id(&trial.tasks);
        }
        self.places = Places::default();
        Ok(())
    }

    /// Returns the field that this axis varies.
    pub fn field(&self, axis: usize) -> Option<&'static Field> {
        kdgat_config::field(self.fields.get(axis)?.as_deref()?)
    }

    /// Formats a trial's settings: `kd_alpha=0.5 seed=42`.
    pub fn describe(&self, trial: &Trial) -> String {
        describe(self.axes.iter().map(String::as_str).zip(trial.labels.iter().map(String::as_str)))
    }
}

/// Formats pairs as `name=value name=value`.
pub fn describe<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let texts: Vec<String> = pairs.map(|(name, value)| format!("{name}={value}")).collect();
    if texts.is_empty() { "as configured".to_owned() } else { texts.join(" ") }
}

impl Task {
    /// Creates a task and computes its ID.
    pub fn new(
        kind: TaskKind,
        step: &str,
        label: String,
        config: Config,
        needs: Vec<String>,
        inputs: Vec<Input>,
    ) -> Self {
        let id = digest(kind, &config, &inputs);
        Self { id, kind, step: step.to_owned(), label, config, needs, inputs, processes: 1 }
    }

    /// Returns the name of the task's folder below the sweep's `tasks/`.
    pub fn folder_name(&self) -> String {
        format!("{}-{}", self.step, self.id)
    }

    /// True if `kdgat`, run outside a sweep, would register the trained model as a teacher of its dataset.
    pub fn registers(&self) -> bool {
        self.kind.trains_on_graphs()
            && self.config.model.size.starts_with("teacher")
            && !self.config.distillation.use_kd
    }
}

/// Fields that affect where and with which resources a task runs, but not its result. They are not part of its ID.
const PLACES: &[&str] = &["threads", "memory_limit", "gpu_memory_limit", "runs_dir", "run_dir", "resume", "live"];

/// Returns the digest of the command, of every field that differs from its default, and of the input tasks.
fn digest(kind: TaskKind, config: &Config, inputs: &[Input]) -> String {
    let defaults = Config::default();
    let mut hasher = blake3::Hasher::new();
    let mut add = |text: &str| {
        // The length prefix keeps consecutive texts apart.
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    kind.words().iter().for_each(|word| add(word));
    if let Some(share) = kind.share() {
        add(&share.to_string());
    }
    for field in kdgat_config::fields().filter(|field| !PLACES.contains(&field.name)) {
        let text = (field.show)(config);
        if text != (field.show)(&defaults) {
            add(field.name);
            add(&text);
        }
    }
    for input in inputs {
        add(&input.field);
        add(&input.task);
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

/// Returns the ID of a trial: a digest of the IDs of its tasks.
pub fn trial_id(tasks: &[String]) -> String {
    blake3::hash(tasks.join(" ").as_bytes()).to_hex()[..12].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_found_however_many_there_are() {
        const COUNT: usize = 20_000;
        let mut plan = crate::parts::plan("store", &Config::default(), 1, &Default::default());
        let task = plan.tasks.remove(0);
        plan.tasks = (0..COUNT).map(|at| Task { id: task_id(at), ..task.clone() }).collect();
        assert!(plan.tasks.iter().all(|task| plan.task(&task.id).is_some_and(|found| std::ptr::eq(found, task))));
        assert!(plan.task("none").is_none());
        // The tasks were found through the index, not by a linear search.
        assert_eq!(plan.places.0.get().map(HashMap::len), Some(COUNT));
        let mut copy = plan.clone();
        copy.tasks.swap(0, 1);
        assert_eq!(copy.task(&task_id(0)).map(|task| task.id.clone()), Some(task_id(0)), "a copy has its own index");
        plan.tasks.swap(0, 1);
        assert!(plan.task(&task_id(0)).is_none(), "another task at that index is not returned");
    }

    #[test]
    fn another_content_makes_other_tasks_of_all_that_follow_from_it() {
        let task = |step: &str, kind, needs: &[&str], inputs: &[&str]| {
            let mut config = Config::default();
            config.model.size = step.to_owned();
            let inputs = inputs.iter().map(|id| Input { field: "teacher_path".to_owned(), task: (*id).to_owned() });
            let needs = needs.iter().map(|id| (*id).to_owned()).collect();
            Task::new(kind, step, String::new(), config, needs, inputs.collect())
        };
        let store = task("store", TaskKind::Store, &[], &[]);
        let teacher = task("teacher", TaskKind::Classifier, &[&store.id], &[]);
        let student = task("student", TaskKind::Classifier, &[&store.id, &teacher.id], &[&teacher.id]);
        let mut plan = crate::parts::plan("store", &Config::default(), 1, &Default::default());
        let ids = vec![teacher.id.clone(), student.id.clone()];
        let trial = Trial { id: trial_id(&ids), labels: Vec::new(), measured: student.id.clone(), tasks: ids };
        (plan.tasks, plan.trials) = (vec![store, teacher, student], vec![trial]);

        let bound = |content: &dyn Fn(&Task) -> Option<String>| {
            let mut plan = plan.clone();
            plan.bind(|task| Ok::<_, ()>(content(task))).unwrap();
            let [store, teacher, student] = &plan.tasks[..] else { panic!("three tasks") };
            assert_eq!(student.needs, [store.id.clone(), teacher.id.clone()]);
            assert_eq!((&student.inputs[0].task, &teacher.needs[..]), (&teacher.id, &[store.id.clone()][..]));
            let [trial] = &plan.trials[..] else { panic!("one trial") };
            assert_eq!((&trial.measured, &trial.tasks[0]), (&student.id, &teacher.id));
            assert!(plan.task(&trial.measured).is_some());
            (store.id.clone(), teacher.id.clone(), student.id.clone(), trial.id.clone())
        };
        let first = bound(&|_| None);
        assert_eq!(first.3, plan.trials[0].id, "no other inputs: the IDs stay");
        let of_teacher = bound(&|task| (task.step == "teacher").then(|| "other".to_owned()));
        assert_eq!(of_teacher.0, first.0);
        assert!(of_teacher.1 != first.1 && of_teacher.2 != first.2 && of_teacher.3 != first.3, "{of_teacher:?}");
        let [one, other] = ["one", "other"].map(|content| bound(&|_| Some(content.to_owned())));
        assert!(one.0 != other.0 && one.1 != other.1 && one.2 != other.2 && one.3 != other.3);
        assert_eq!(one, bound(&|_| Some("one".to_owned())));
    }

    fn task_id(at: usize) -> String {
        format!("{at:016x}")
    }
}
