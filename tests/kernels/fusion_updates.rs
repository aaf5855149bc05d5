//! Updates of the DQN and of LinUCB equal a simple implementation in plain loops, on random transitions.

use std::collections::BTreeMap;

use kdgat::fusion::dqn::{Dqn, DqnOptions, Next, Transitions};
use kdgat::fusion::linucb::LinUcb;
use kdgat::nn::QNetworkConfig;
use kdgat::nn::attention::Backend;
use kdgat::random::{self, Purpose};
use kdgat::train::optimizer::AdamOptions;
use tch::{Device, Kind, Tensor};

const INPUTS: usize = 3;
const HIDDEN: [usize; 2] = [5, 4];
const ACTIONS: usize = 3;
const BATCH: usize = 7;
const LR: f64 = 0.01;
const GAMMA: f64 = 0.9;
const ALPHA: f64 = 0.3;
const RENEWED_AFTER: u64 = 2;

/// Random number between -1 and 1.
fn draw(place: u64, index: usize) -> f64 {
    2.0 * random::unit(11, Purpose::Step, place, index as u64) - 1.0
}

type Weights = BTreeMap<String, Vec<f64>>;

fn weights(state: &BTreeMap<String, Tensor>, prefix: &str) -> Weights {
    let strip = |(name, tensor): (&String, &Tensor)| {
        let values = Vec::<f64>::try_from(tensor.to_kind(Kind::Double).flatten(0, -1)).unwrap();
        Some((name.strip_prefix(prefix)?.to_owned(), values))
    };
    state.iter().filter_map(strip).collect()
}

/// Linear, layer norm, ReLU, …, linear.
fn values(weights: &Weights, state: &[f64]) -> Vec<f64> {
    let linear = |name: &str, x: &[f64]| -> Vec<f64> {
        let (weight, bias) = (&weights[&format!("{name}.weight")], &weights[&format!("{name}.bias")]);
        (0..bias.len())
            .map(|row| bias[row] + (0..x.len()).map(|k| weight[row * x.len() + k] * x[k]).sum::<f64>())
            .collect()
    };
    let mut x = state.to_vec();
    for layer in 0..HIDDEN.len() {
        let y = linear(&format!("layers.{layer}"), &x);
        let mean = y.iter().sum::<f64>() / y.len() as f64;
        let variance = y.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / y.len() as f64;
        let (scale, shift) = (&weights[&format!("norms.{layer}.weight")], &weights[&format!("norms.{layer}.bias")]);
        x = (0..y.len()).map(|k| (scale[k] * (y[k] - mean) / (variance + 1e-5).sqrt() + shift[k]).max(0.0)).collect();
    }
    linear("head", &x)
}

struct Batch {
    states: Vec<Vec<f64>>,
    next: Vec<Vec<f64>>,
    actions: Vec<usize>,
    rewards: Vec<f64>,
    continues: Vec<bool>,
    teacher: Vec<Vec<f64>>,
}

impl Batch {
    fn new(place: u64) -> Self {
        let rows = |at: u64, columns: usize, scale: f64| -> Vec<Vec<f64>> {
            // Rounded to f32, so that both implementations get the same numbers.
            let value =
                |row: usize, column: usize| f64::from((scale * draw(10 * place + at, row * 100 + column)) as f32);
            (0..BATCH).map(|row| (0..columns).map(|column| value(row, column)).collect()).collect()
        };
        Self {
            states: rows(0, INPUTS, 2.0),
            next: rows(1, INPUTS, 2.0),
            actions: (0..BATCH).map(|row| ((draw(10 * place + 2, row) + 1.0) * 1.49) as usize).collect(),
            // Large enough to cover both parts of the Huber loss.
            rewards: rows(3, 1, 4.0).concat(),
            continues: (0..BATCH).map(|row| row % 3 != 0).collect(),
            teacher: rows(4, ACTIONS, 1.0),
        }
    }

    fn tensors(&self) -> Transitions {
        let matrix = |rows: &[Vec<f64>]| {
            let flat: Vec<f32> = rows.concat().iter().map(|value| *value as f32).collect();
            Tensor::from_slice(&flat).view([BATCH as i64, -1])
        };
        let floats = |values: &[f64]| Tensor::from_slice(&values.iter().map(|value| *value as f32).collect::<Vec<_>>());
        let continues: Vec<f64> = self.continues.iter().map(|continues| f64::from(u8::from(*continues))).collect();
        Transitions {
            states: matrix(&self.states),
            actions: Tensor::from_slice(&self.actions.iter().map(|action| *action as i64).collect::<Vec<_>>()),
            rewards: floats(&self.rewards),
            next: Some(Next { states: matrix(&self.next), continues: floats(&continues) }),
            teacher: Some(matrix(&self.teacher)),
        }
    }

    /// r + γ·Q⁻(s′, argmax Q(s′, ·)), row by row.
    fn targets(&self, online: &Weights, target: &Weights) -> Vec<f64> {
        let of_row = |row: usize| {
            let own = values(online, &self.next[row]);
            let best = (0..ACTIONS).max_by(|&a, &b| own[a].total_cmp(&own[b])).unwrap();
            let follows = if self.continues[row] { values(target, &self.next[row])[best] } else { 0.0 };
            self.rewards[row] + GAMMA * follows
        };
        (0..BATCH).map(of_row).collect()
    }

    fn loss(&self, online: &Weights, targets: &[f64]) -> [f64; 3] {
        let (mut td, mut kd) = (0.0, 0.0);
        for row in 0..BATCH {
            let found = values(online, &self.states[row]);
            let error = (found[self.actions[row]] - targets[row]).abs();
            td += if error <= 1.0 { 0.5 * error * error } else { error - 0.5 } / BATCH as f64;
            let squares = found.iter().zip(&self.teacher[row]).map(|(a, b)| (a - b).powi(2));
            kd += squares.sum::<f64>() / (BATCH * ACTIONS) as f64;
        }
        [ALPHA * kd + (1.0 - ALPHA) * td, td, kd]
    }

    /// Gradient by central differences.
    fn gradient(&self, online: &Weights, targets: &[f64]) -> Weights {
        const STEP: f64 = 1e-6;
        let mut gradient = online.clone();
        let mut moved = online.clone();
        for (name, values) in online {
            for (index, &value) in values.iter().enumerate() {
                let mut at = |value: f64| {
                    moved.get_mut(name).unwrap()[index] = value;
                    self.loss(&moved, targets)[0]
                };
                let slope = (at(value + STEP) - at(value - STEP)) / (2.0 * STEP);
                at(value);
                gradient.get_mut(name).unwrap()[index] = slope;
            }
        }
        gradient
    }
}

#[test]
fn double_dqn_with_a_teacher_equals_the_reference() {
    let adam = AdamOptions {
        weight_decay: 0.0,
        gradient_clip: 0.0,
        offload: false,
        kernel: Backend::Composed,
        ..AdamOptions::PLAIN
    };
    let options = DqnOptions { gamma: GAMMA, target_update_steps: RENEWED_AFTER, kd_alpha: ALPHA, adam };
    let hidden = HIDDEN.iter().map(|width| *width as i64).collect();
    let config = QNetworkConfig { inputs: INPUTS as i64, hidden, actions: ACTIONS as i64 };
    let mut dqn = Dqn::new(&config, 7, options, Device::Cpu).unwrap();

    let state = dqn.state().unwrap();
    let (mut online, mut target) = (weights(&state, "model."), weights(&state, "target."));
    assert_eq!(online, target, "both networks begin equal");
    let zeros = |of: &Weights| of.iter().map(|(name, values)| (name.clone(), vec![0.0; values.len()])).collect();
    let (mut mean, mut square): (Weights, Weights) = (zeros(&online), zeros(&online));

    for update in 1..=5u64 {
        let batch = Batch::new(update);
        let transitions = batch.tensors();
        let targets = batch.targets(&online, &target);
        let found = Vec::<f64>::try_from(dqn.targets(&transitions).unwrap().to_kind(Kind::Double)).unwrap();
        for (row, (found, expected)) in found.iter().zip(&targets).enumerate() {
            assert!((found - expected).abs() < 1e-4, "update {update}, target {row}: {found} instead of {expected}");
        }
        let expected_loss = batch.loss(&online, &targets);
        let gradient = batch.gradient(&online, &targets);
        let loss = dqn.update(&transitions, LR).unwrap();
        let found_loss = [&loss.total, &loss.td, loss.kd.as_ref().unwrap()].map(|loss| loss.double_value(&[]));
        for (found, expected) in found_loss.iter().zip(expected_loss) {
            assert!((found - expected).abs() < 1e-4, "update {update}: loss {found} instead of {expected}");
        }
        // Adam (Kingma & Ba 2015).
        for (name, values) in &mut online {
            for (index, value) in values.iter_mut().enumerate() {
                let slope = gradient[name][index];
                let (first, second) =
                    (&mut mean.get_mut(name).unwrap()[index], &mut square.get_mut(name).unwrap()[index]);
                *first = 0.9 * *first + 0.1 * slope;
                *second = 0.999 * *second + 0.001 * slope * slope;
                let (first, second) =
                    (*first / (1.0 - 0.9f64.powi(update as i32)), *second / (1.0 - 0.999f64.powi(update as i32)));
                *value -= LR * first / (second.sqrt() + 1e-8);
            }
        }
        if update % RENEWED_AFTER == 0 {
            target = online.clone();
        }
        let state = dqn.state().unwrap();
        for (what, expected, found) in
            [("online", &online, weights(&state, "model.")), ("target", &target, weights(&state, "target."))]
        {
            for (name, expected) in expected {
                for (found, expected) in found[name].iter().zip(expected) {
                    let difference = (found - expected).abs();
                    assert!(difference < 2e-4, "update {update}, {what} {name}: {found} instead of {expected}");
                }
            }
        }
    }
}

#[test]
fn a_dqn_goes_on_from_its_state_with_the_same_numbers() {
    let adam = AdamOptions {
        weight_decay: 1e-4,
        gradient_clip: 1.0,
        offload: false,
        kernel: Backend::Auto,
        ..AdamOptions::PLAIN
    };
    let options = DqnOptions { gamma: 0.5, target_update_steps: 3, kd_alpha: 0.5, adam };
    let config = QNetworkConfig { inputs: INPUTS as i64, hidden: vec![6], actions: ACTIONS as i64 };
    let mut whole = Dqn::new(&config, 1, options, Device::Cpu).unwrap();
    for update in 0..4 {
        whole.update(&Batch::new(update).tensors(), LR).unwrap();
    }
    let mut resumed = Dqn::new(&config, 2, options, Device::Cpu).unwrap();
    resumed.load(&whole.state().unwrap()).unwrap();
    for update in 4..8 {
        whole.update(&Batch::new(update).tensors(), LR).unwrap();
        resumed.update(&Batch::new(update).tensors(), LR).unwrap();
    }
    assert_eq!(whole.state().unwrap(), resumed.state().unwrap());
}

/// Solves a linear system by Gaussian elimination.
fn solve(mut matrix: Vec<Vec<f64>>, mut vector: Vec<f64>) -> Vec<f64> {
    let count = vector.len();
    for pivot in 0..count {
        let best = (pivot..count).max_by(|&a, &b| matrix[a][pivot].abs().total_cmp(&matrix[b][pivot].abs())).unwrap();
        matrix.swap(pivot, best);
        vector.swap(pivot, best);
        for row in pivot + 1..count {
            let factor = matrix[row][pivot] / matrix[pivot][pivot];
            let above = matrix[pivot].clone();
            matrix[row].iter_mut().zip(above).skip(pivot).for_each(|(value, above)| *value -= factor * above);
            vector[row] -= factor * vector[pivot];
        }
    }
    for row in (0..count).rev() {
        let known: f64 = (row + 1..count).map(|column| matrix[row][column] * vector[column]).sum();
        vector[row] = (vector[row] - known) / matrix[row][row];
    }
    vector
}

#[test]
fn linucb_equals_regressions_that_are_solved_anew() {
    const COLUMNS: usize = 6;
    const RIDGE: f64 = 0.5;
    const EXPLORATION: f64 = 0.7;
    let mut agent = LinUcb::new(ACTIONS as i64, COLUMNS as i64, RIDGE, EXPLORATION).unwrap();
    let identity = |row: usize, column: usize| if row == column { RIDGE } else { 0.0 };
    let one = || -> Vec<Vec<f64>> {
        (0..COLUMNS).map(|row| (0..COLUMNS).map(|column| identity(row, column)).collect()).collect()
    };
    let (mut grams, mut moments) = (vec![one(); ACTIONS], vec![vec![0.0; COLUMNS]; ACTIONS]);
    let features = |place: u64| -> Vec<f64> { (0..COLUMNS).map(|column| draw(500 + place, column)).collect() };
    let (mut all_features, mut all_actions, mut all_rewards) = (Vec::new(), Vec::new(), Vec::new());

    for step in 0..60 {
        let x = features(step);
        let bounds = agent.bounds(&Tensor::from_slice(&x).view([1, -1])).unwrap();
        for action in 0..ACTIONS {
            let theta = solve(grams[action].clone(), moments[action].clone());
            let spread = solve(grams[action].clone(), x.clone());
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let expected = dot(&theta, &x) + EXPLORATION * dot(&spread, &x).sqrt();
            let found = bounds.double_value(&[0, action as i64]);
            assert!((found - expected).abs() < 1e-9, "step {step}, action {action}: {found} instead of {expected}");
        }
        let (action, reward) = (step as usize % 7 % ACTIONS, draw(900, step as usize));
        agent.observe(action, &Tensor::from_slice(&x), reward).unwrap();
        for row in 0..COLUMNS {
            (0..COLUMNS).for_each(|column| grams[action][row][column] += x[row] * x[column]);
            moments[action][row] += reward * x[row];
        }
        all_features.extend(x);
        all_actions.push(action);
        all_rewards.push(reward);
    }

    // Rebuilt from all observations, it is the same.
    let mut rebuilt = LinUcb::new(ACTIONS as i64, COLUMNS as i64, RIDGE, EXPLORATION).unwrap();
    let mut sums = rebuilt.sums().unwrap();
    let rows = Tensor::from_slice(&all_features).view([-1, COLUMNS as i64]);
    for part in [0..25usize, 25..60] {
        let of_part = rows.narrow(0, part.start as i64, part.len() as i64);
        sums.add(&of_part, &all_actions[part.clone()], &all_rewards[part]).unwrap();
    }
    rebuilt.rebuild(&sums).unwrap();
    let apart = |a: &Tensor, b: &Tensor| (a - b).abs().max().double_value(&[]);
    assert!(apart(agent.theta(), rebuilt.theta()) < 1e-9 && apart(agent.inverse(), rebuilt.inverse()) < 1e-9);
}
