//! Tasks and trials: what is to be done, each known by a digest of what its result depends on.

use std::collections::HashMap;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use super::file::{Direction, Resources};
use super::metric;
use crate::config::{self, Config, Field, Stage};
use crate::graph::Share;
use crate::sweep::early::EarlyStopping;
use crate::sweep::slurm::SlurmSettings;

/// A sweep, expanded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The file's name without its ending.
    pub name: String,
    pub metric: String,
    pub direction: Direction,
    pub retries: u32,
    pub early_stopping: Option<EarlyStopping>,
    pub resources: Resources,
    pub slurm: SlurmSettings,
    /// Names of the axes, in the order of the trials' labels.
    pub axes: Vec<String>,
    /// The field that the values of each axis are of, where they are of one.
    #[serde(default)]
    pub fields: Vec<Option<String>>,
    /// In an order in which whatever a task needs comes before it.
    pub tasks: Vec<Task>,
    pub trials: Vec<Trial>,
    #[serde(skip)]
    pub places: Places,
}

/// Where each task stands in the plan; found out when the first one is looked for.
#[derive(Debug, Default)]
pub struct Places(OnceLock<HashMap<String, usize>>);

impl Clone for Places {
    /// A copy may be changed before it is looked into.
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for Places {
    /// They follow from the tasks.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// One command, done once however many trials need it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Digest of what the result depends on: settings, other tasks, and once [`Plan::bind`] was called the content of the
    /// data and of registered teachers.
    pub id: String,
    pub kind: TaskKind,
    /// The step of the file; `store` and `targets` are made where trials need them.
    pub step: String,
    /// The settings by which it differs from the step's other tasks, for people.
    pub label: String,
    pub config: Config,
    /// Tasks that have to be done before.
    pub needs: Vec<String>,
    /// What it takes from them.
    pub inputs: Vec<Input>,
}

/// A field that takes the weights, or the run, that another task made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Input {
    pub field: String,
    pub task: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskKind {
    /// `kdgat data build`
    Store,
    /// `kdgat data build --part`
    Part(Share),
    /// `kdgat teachers cache`
    Targets,
    Autoencoder,
    Normal,
    Curriculum,
    Fusion,
    Evaluate,
}

impl TaskKind {
    /// The stage that it trains, if it trains.
    pub fn stage(self) -> Option<Stage> {
        match self {
            Self::Autoencoder => Some(Stage::Autoencoder),
            Self::Normal => Some(Stage::Normal),
            Self::Curriculum => Some(Stage::Curriculum),
            Self::Fusion => Some(Stage::Fusion),
            Self::Store | Self::Part(_) | Self::Targets | Self::Evaluate => None,
        }
    }

    /// Whether it trains a model that reads graphs, and not an agent that reads states.
    pub fn trains_on_graphs(self) -> bool {
        self.stage().is_some_and(|stage| stage != Stage::Fusion)
    }

    /// The command's words.
    pub fn words(self) -> &'static [&'static str] {
        match self {
            Self::Store | Self::Part(_) => &["data", "build"],
            Self::Targets => &["teachers", "cache"],
            Self::Autoencoder => &["autoencoder"],
            Self::Normal => &["normal"],
            Self::Curriculum => &["curriculum"],
            Self::Fusion => &["fusion"],
            Self::Evaluate => &["evaluate"],
        }
    }
}

/// One combination: a row of `sweep.csv`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    pub id: String,
    /// One for each axis.
    pub labels: Vec<String>,
    /// Its steps' tasks; several trials may share some.
    pub tasks: Vec<String>,
    /// The one whose metric is compared.
    pub measured: String,
}

impl Plan {
    /// What its tables are headed: `Sweep` and its name, or the name alone where nothing varies, as in a pipeline.
    pub fn title(&self) -> String {
        if self.trials.len() > 1 {
            return format!("Sweep {}", self.name);
        }
        let mut letters = self.name.chars();
        letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
    }

    /// What has to be said beside the best of several trials; `None` where it was not selected on the test folders.
    pub fn caveat(&self) -> Option<&'static str> {
        let evaluates = |trial: &Trial| self.task(&trial.measured).is_some_and(|task| task.kind == TaskKind::Evaluate);
        let selects = self.trials.len() > 1 && self.trials.first().is_some_and(evaluates);
        (selects && metric::is_of_tests(&self.metric)).then_some(metric::SELECTED_ON_TEST)
    }

    /// The task of this digest.
    pub fn task(&self, id: &str) -> Option<&Task> {
        let places = || self.tasks.iter().enumerate().map(|(at, task)| (task.id.clone(), at)).collect();
        let at = *self.places.0.get_or_init(places).get(id)?;
        self.tasks.get(at).filter(|task| task.id == id)
    }

    /// Makes the digest of each task one of what it reads besides its settings and other tasks, too: `content` tells that, or
    /// `None` where there is nothing else. Tasks and trials that follow from others get other digests with them, so that
    /// results of another content are no results of theirs.
    ///
    /// # Errors
    /// What `content` says.
    pub fn bind<E>(&mut self, mut content: impl FnMut(&Task) -> Result<Option<String>, E>) -> Result<(), E> {
        let mut bound: HashMap<String, String> = HashMap::new();
        let renew = |id: &mut String, bound: &HashMap<String, String>| {
            if let Some(new) = bound.get(id) {
                id.clone_from(new);
            }
        };
        for task in &mut self.tasks {
            // Whatever it needs comes before it.
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

    /// The field that the values of this axis are of.
    pub fn field(&self, axis: usize) -> Option<&'static Field> {
        config::field(self.fields.get(axis)?.as_deref()?)
    }

    /// `kd_alpha=0.5 seed=42`.
    pub fn describe(&self, trial: &Trial) -> String {
        describe(self.axes.iter().map(String::as_str).zip(trial.labels.iter().map(String::as_str)))
    }
}

/// `name=value name=value`.
pub fn describe<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let texts: Vec<String> = pairs.map(|(name, value)| format!("{name}={value}")).collect();
    if texts.is_empty() { "as configured".to_owned() } else { texts.join(" ") }
}

impl Task {
    /// A task, known by its digest.
    pub fn new(
        kind: TaskKind,
        step: &str,
        label: String,
        config: Config,
        needs: Vec<String>,
        inputs: Vec<Input>,
    ) -> Self {
        let id = digest(kind, &config, &inputs);
        Self { id, kind, step: step.to_owned(), label, config, needs, inputs }
    }

    /// Folder of the task below the sweep's `tasks/`.
    pub fn folder_name(&self) -> String {
        format!("{}-{}", self.step, self.id)
    }

    /// Whether `kdgat` would make what this task trains a teacher of its dataset.
    pub fn registers(&self) -> bool {
        self.kind.trains_on_graphs()
            && self.config.model.size.starts_with("teacher")
            && !self.config.distillation.use_kd
    }
}

/// Fields that say where and with what a run is done, not what comes of it. The sweep sets them itself.
const PLACES: &[&str] = &["threads", "memory_limit", "gpu_memory_limit", "runs_dir", "run_dir", "resume", "live"];

/// Of the command, of every field that differs from its default, and of the tasks that it takes something from. A new
/// version of the program that adds fields leaves it as it is, where its default is what was done before.
fn digest(kind: TaskKind, config: &Config, inputs: &[Input]) -> String {
    let defaults = Config::default();
    let mut hasher = blake3::Hasher::new();
    let mut add = |text: &str| {
        // The length keeps two texts from running into each other.
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    kind.words().iter().for_each(|word| add(word));
    if let TaskKind::Part(share) = kind {
        add(&share.to_string());
    }
    for field in config::fields().filter(|field| !PLACES.contains(&field.name)) {
        let text = (field.show)(config);
        if config::does_new(field, config, kind.stage()).unwrap_or_else(|| text != (field.show)(&defaults)) {
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

/// Digest of a trial: of all its tasks.
pub fn trial_id(tasks: &[String]) -> String {
    blake3::hash(tasks.join(" ").as_bytes()).to_hex()[..12].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_found_however_many_there_are() {
        const COUNT: usize = 20_000;
        let mut plan = crate::sweep::parts::plan("store", &Config::default(), 1, &Default::default());
        let task = plan.tasks.remove(0);
        plan.tasks = (0..COUNT).map(|at| Task { id: task_id(at), ..task.clone() }).collect();
        assert!(plan.tasks.iter().all(|task| plan.task(&task.id).is_some_and(|found| std::ptr::eq(found, task))));
        assert!(plan.task("none").is_none());
        // Each was looked up, not looked for among the others.
        assert_eq!(plan.places.0.get().map(HashMap::len), Some(COUNT));
        let mut copy = plan.clone();
        copy.tasks.swap(0, 1);
        assert_eq!(copy.task(&task_id(0)).map(|task| task.id.clone()), Some(task_id(0)), "a copy has its own places");
        plan.tasks.swap(0, 1);
        assert!(plan.task(&task_id(0)).is_none(), "another task at that place is not taken for it");
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
        let teacher = task("teacher", TaskKind::Normal, &[&store.id], &[]);
        let student = task("student", TaskKind::Normal, &[&store.id, &teacher.id], &[&teacher.id]);
        let mut plan = crate::sweep::parts::plan("store", &Config::default(), 1, &Default::default());
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
        assert_eq!(first.3, plan.trials[0].id, "nothing else is read: the digests stay");
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
