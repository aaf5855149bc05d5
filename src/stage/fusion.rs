//! Trains an agent that fuses a VGAE and a GAT, and compares it with simpler ways to fuse them.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use tch::Tensor;

use super::evaluate::test_files;
use super::fusion_models::{self, Pair};
use super::fusion_report::{Judged, summary_json, write_results};
use super::setup::{self, Data};
use super::{StageError, resume, training};
use crate::config::{self, Config, FusionKind, Stage};
use crate::evaluate::judge::TestFile;
use crate::files;
use crate::fusion::agent::{self, Agent, AgentDescription};
use crate::fusion::bandit_learner::{BanditLearner, BanditOptions};
use crate::fusion::baselines;
use crate::fusion::dqn::DqnOptions;
use crate::fusion::dqn_learner::{DqnLearner, DqnLearnerOptions, Exploration};
use crate::fusion::fit::{FitOptions, fit};
use crate::fusion::learner::Learner;
use crate::fusion::report::FusionReport;
use crate::fusion::states::difficulty;
use crate::fusion::{ACTIONS, AnomalyScale, FusionError, Observations, Reward, STATE, StateScaling, World};
use crate::nn::QNetworkConfig;
use crate::train::console::{Console, Heading};
use crate::train::fit::{BEST, Ending, LAST};
use crate::train::run_directory::RunDirectory;

/// The result of `kdgat fusion`.
#[derive(Debug)]
pub struct FusionOutcome {
    pub run: PathBuf,
    /// The report; none after an interruption, from which `--resume` continues.
    pub report: Option<FusionReport>,
}

/// The teacher of an agent: its Q-values for the training graphs, `[graphs, actions]`, and its digest.
struct QTeacher {
    values: Tensor,
    digest: String,
}

/// Runs `kdgat fusion`, with `resamples` bootstrap resamples for the confidence intervals.
pub fn fusion(config: &Config, resamples: u64) -> Result<FusionOutcome, StageError> {
    // Data, frozen models, and the states of all graphs.
    let data = setup::open(config)?;
    let files = test_files(&data.store, None)?;
    let pair = fusion_models::find(config, &data)?;
    let (world, anomaly) = world(config, &data, &pair)?;
    let fixed = baselines::best_fixed_weight(&world.validation)?;
    let teacher = teacher(config, &data, &world)?;

    // The agent.
    let directory = training::run_directory(config, &data.dataset.name, Stage::Fusion)?;
    let path = directory.path().to_owned();
    let resumes = config.output.resume && directory.file(LAST).exists();
    let teacher_digest = teacher.as_ref().map(|teacher| teacher.digest.clone());
    let identity = identity(config, &data, &pair, teacher_digest.as_deref());
    if resumes {
        check(config, &data, &pair, teacher_digest.as_deref(), (&directory, &identity))?;
    }
    let log = directory.file("log.txt");
    let console = Console::new(Some(&log)).map_err(files::failed("write", &log));
    let mut console = console?;
    if config.output.live {
        let what = format!("{} {} on {}", config.fusion.fusion, config.model.size, data.dataset.name);
        console = console.with_panel(Heading { what, run: path.display().to_string() });
    }
    let inputs = inputs(&data, &pair, teacher_digest.as_deref(), &identity);
    if !resumes {
        directory.write_json("config.json", &config::freeze(config, Stage::Fusion.command(), &inputs))?;
    }
    let network = network_config(config);
    let mut learner = learner(config, &network, teacher, &world)?;
    console.line(&describe(config, &data, &pair, learner.num_parameters(), &world, teacher_digest.as_deref()));

    // Fit.
    let mut description = AgentDescription {
        fusion: config.fusion.fusion.as_str().to_owned(),
        network,
        scaling: world.scaling.clone(),
        reward: world.reward,
        vgae: pair.vgae.fused(),
        gat: pair.gat.fused(),
        dataset: data.dataset.clone(),
        window: config.data.window,
        size: config.model.size.clone(),
        epoch: 0,
        val_loss: None,
        teacher_digest,
        created_by_version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let best_path = directory.file(BEST);
    let mut save_best = |weights: &_, epoch, regret| {
        (description.epoch, description.val_loss) = (epoch, Some(regret));
        agent::write(&best_path, weights, &anomaly, &description)
    };
    let options = fit_options(config, &data, identity);
    let summary = fit(learner.as_mut(), &world, &directory, &mut console, &options, resumes, &mut save_best)?;
    console.finish();
    if summary.ending == Ending::Interrupted {
        console.line(&format!("interrupted after {} epochs; continue with --resume", summary.epochs));
        return Ok(FusionOutcome { run: path, report: None });
    }

    // Baselines, and the verdict.
    let agent = Agent::read(&best_path, data.device)?;
    let tests = observations_of_tests(&data, &world, &anomaly, &files)?;
    let Some(contenders) = baselines::all(&world, &tests, fixed, config.training.seed)? else {
        console.line("interrupted before the baselines; continue with --resume");
        return Ok(FusionOutcome { run: path, report: None });
    };
    let judged = Judged { config, data: &data, pair: &pair, world: &world, files: &files, tests: &tests, resamples };
    let report = judged.report(&directory, &agent, contenders, fixed)?;
    write_results(&directory, &report)?;
    directory.write_json("summary.json", &summary_json(&path, &summary, &agent, &report, &inputs))?;
    console.note(&report.verdict.text());
    Ok(FusionOutcome { run: path, report: Some(report) })
}

/// Collects the graphs with their states, rewards and scales. The fused models have fitted their training graphs: there, errors are
/// too small and probabilities too certain. So the agent is trained on one half of the validation graphs and selected on the other.
fn world(config: &Config, data: &Data, pair: &Pair) -> Result<(World, AnomalyScale), StageError> {
    let store = &data.store;
    let states = Arc::new(pair.states(config, data)?);
    let [training, held_out] = store.validation_halves();
    let mut errors = Vec::new();
    for &graph in &training {
        if !store.try_graph(graph)?.attack {
            errors.push(difficulty(states.row(graph)));
        }
    }
    let anomaly = AnomalyScale::of(errors)?;
    let observations = |graphs| Observations::new(store, &states, &anomaly, graphs);
    let (training, validation) = (observations(training)?, observations(held_out)?);
    training.check_labels("validation graphs to train the agent on")?;
    validation.check_labels("held-out validation graphs")?;
    let scaling = StateScaling::of(&states, &training.graphs)?;
    let settings = &config.fusion;
    let reward = Reward {
        correctness: settings.reward_correctness,
        agreement: settings.reward_agreement,
        confidence: settings.reward_confidence,
        balance: settings.reward_balance,
    };
    Ok((World { training, validation, states, scaling, reward, device: data.device }, anomaly))
}

/// The teacher agent, if any: given by path, or the dataset's newest finished one of size teacher. It gets its states from the
/// models that it was trained with.
fn teacher(config: &Config, data: &Data, world: &World) -> Result<Option<QTeacher>, StageError> {
    if !config.distillation.use_kd {
        return Ok(None);
    }
    let path = match &config.distillation.teacher_path {
        Some(path) => path.clone(),
        None => fusion_models::newest_teacher(config, &data.dataset.name)?,
    };
    let agent = Agent::read(&path, data.device)?;
    if agent.description.network.actions != ACTIONS as i64 {
        let found = agent.description.network.actions;
        let text = format!("{}: an agent with {found} weights, expected {ACTIONS}", path.display());
        return Err(StageError::Input(text));
    }
    let states = fusion_models::teacher_pair(config, data, &agent.description)?.states(config, data)?;
    let values = agent.values(&states, &world.training.graphs)?;
    Ok(Some(QTeacher { values, digest: agent.digest }))
}

fn network_config(config: &Config) -> QNetworkConfig {
    let hidden = config.model.hidden.iter().map(|&width| width as i64).collect();
    QNetworkConfig { inputs: STATE.len() as i64, hidden, actions: ACTIONS as i64 }
}

fn learner(
    config: &Config,
    network: &QNetworkConfig,
    teacher: Option<QTeacher>,
    world: &World,
) -> Result<Box<dyn Learner>, StageError> {
    let (settings, training_settings) = (&config.fusion, &config.training);
    let adam = training::fit_options(config, world.device).adam;
    let (kd_alpha, seed) = (config.distillation.kd_alpha, training_settings.seed);
    let (batch, replay_capacity) = (training_settings.batch_size, settings.replay_capacity);
    let values = teacher.map(|teacher| teacher.values);
    Ok(match settings.fusion {
        FusionKind::Dqn => {
            let target_update_steps = settings.target_update_steps as u64;
            let dqn = DqnOptions { gamma: settings.fusion_gamma, target_update_steps, kd_alpha, adam };
            let exploration = Exploration {
                start: settings.epsilon_start,
                end: settings.epsilon_end,
                epochs: settings.epsilon_epochs as u64,
            };
            let options = DqnLearnerOptions { dqn, batch, replay_capacity, exploration, seed };
            Box::new(DqnLearner::new(network, options, values, world)?)
        }
        FusionKind::Bandit => {
            let (ridge, exploration) = (settings.bandit_ridge, settings.bandit_exploration);
            let options = BanditOptions { ridge, exploration, replay_capacity, batch, kd_alpha, adam, seed };
            Box::new(BanditLearner::new(network, options, values, world)?)
        }
    })
}

fn fit_options(config: &Config, data: &Data, identity: String) -> FitOptions {
    let shared = training::fit_options(config, data.device);
    FitOptions {
        max_epochs: shared.max_epochs,
        patience: shared.patience,
        lr: shared.lr,
        schedule: shared.schedule,
        identity,
    }
}

/// The digest of everything that the result depends on; a run can only be resumed with the same digest.
fn identity(config: &Config, data: &Data, pair: &Pair, teacher: Option<&str>) -> String {
    let content = json!({
        "data": data.dataset.digest,
        "models": [pair.vgae.digest, pair.gat.digest],
        "teacher": teacher,
        "batch_size": config.training.batch_size,
        "fields": config::loss_fields(config, Stage::Fusion),
    });
    blake3::hash(content.to_string().as_bytes()).to_hex()[..16].to_owned()
}

/// Checks that the run can be resumed with this configuration; the error names the differences.
fn check(
    config: &Config,
    data: &Data,
    pair: &Pair,
    teacher: Option<&str>,
    (directory, identity): (&RunDirectory, &str),
) -> Result<(), StageError> {
    let frozen = resume::frozen(directory)?;
    let inputs = &frozen["inputs"];
    if inputs["identity"] == identity {
        return Ok(());
    }
    let digests = [
        ("the data", &inputs["dataset"]["digest"], Some(data.dataset.digest.as_str())),
        ("the VGAE", &inputs["vgae"]["digest"], Some(pair.vgae.digest.as_str())),
        ("the GAT", &inputs["gat"]["digest"], Some(pair.gat.digest.as_str())),
        ("the teacher", &inputs["teacher_digest"], teacher),
    ];
    let now = config::freeze(config, Stage::Fusion.command(), &Map::new());
    Err(resume::refusal(directory, &frozen, &now, &digests, &["batch_size"]))
}

fn inputs(data: &Data, pair: &Pair, teacher: Option<&str>, identity: &str) -> Map<String, Value> {
    let mut inputs = Map::new();
    inputs.insert("dataset".into(), json!(data.dataset));
    inputs.insert("teacher_digest".into(), json!(teacher));
    inputs.insert("vgae".into(), json!(pair.vgae.fused()));
    inputs.insert("gat".into(), json!(pair.gat.fused()));
    inputs.insert("identity".into(), json!(identity));
    inputs
}

fn describe(
    config: &Config,
    data: &Data,
    pair: &Pair,
    parameters: i64,
    world: &World,
    teacher: Option<&str>,
) -> String {
    let short = |digest: &str| digest.get(..12).unwrap_or(digest).to_owned();
    let teacher = teacher.map_or(String::new(), |digest| format!("; teacher {}", short(digest)));
    format!(
        "{} {}: {parameters} parameters, fuses {} and {}, trained on {} validation graphs of {}, selected on {} others{teacher}",
        config.fusion.fusion,
        config.model.size,
        pair.vgae.name,
        pair.gat.name,
        world.training.len(),
        data.dataset.name,
        world.validation.len(),
    )
}

fn observations_of_tests(
    data: &Data,
    world: &World,
    anomaly: &AnomalyScale,
    files: &[TestFile],
) -> Result<Vec<Observations>, FusionError> {
    let of_file =
        |file: &TestFile| Observations::new(&data.store, &world.states, anomaly, file.graphs.clone().collect());
    files.iter().map(of_file).collect()
}
