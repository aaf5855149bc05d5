//! Baselines of learned fusion: each model alone, the best fixed weight, logistic regression, a small perceptron.

use super::scaling::VALUES;
use super::small_mlp::SmallMlp;
use super::{ACTIONS, FusionError, Observations, World, weight};
use kdgat_evaluate::logistic::Logistic;
use kdgat_evaluate::ranking::Ranking;

/// A scaled state, and true if its graph has an attack.
type Labelled = ([f32; VALUES], bool);

/// A method that scores graphs, with its scores.
#[derive(Debug, Clone, PartialEq)]
pub struct Contender {
    /// Name in the report's tables.
    pub name: String,
    /// `agent`, `model`, `fixed weight`, `logistic regression`, `mlp`.
    pub kind: &'static str,
    /// Number of trained parameters in addition to those of the two models.
    pub parameters: usize,
    /// Set if it needs the VGAE (first) and the GAT (second).
    pub needs: [bool; 2],
    /// Scores of the validation graphs.
    pub validation: Vec<f64>,
    /// Scores of the graphs of each test file.
    pub test: Vec<Vec<f64>>,
}

/// A fusion weight used for all graphs.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct FixedWeight {
    /// Weight of the classifier's probability, from 0 to 1.
    pub weight: f64,
    /// Area under the precision–recall curve on the validation graphs.
    pub validation_pr_auc: f64,
    /// Brier score on the validation graphs: mean squared difference of score and label.
    pub validation_brier: f64,
}

/// The weight with the largest area under the precision–recall curve on the held-out validation graphs; the lowest Brier score
/// breaks ties.
///
/// # Errors
/// Fails if all validation graphs have the same label.
pub fn best_fixed_weight(validation: &Observations) -> Result<FixedWeight, FusionError> {
    validation.check_labels("held-out validation graphs")?;
    let judged = |action: usize| {
        let scores = validation.fused_by(weight(action));
        let error = |(score, attack): (&f64, &bool)| (score - f64::from(u8::from(*attack))).powi(2);
        FixedWeight {
            weight: weight(action),
            validation_pr_auc: Ranking::new(&scores, &validation.attack).metrics().pr_auc,
            validation_brier: scores.iter().zip(&validation.attack).map(error).sum::<f64>() / scores.len() as f64,
        }
    };
    let better = |best: FixedWeight, other: FixedWeight| {
        let (of_best, of_other) =
            ((best.validation_pr_auc, -best.validation_brier), (other.validation_pr_auc, -other.validation_brier));
        if of_other > of_best { other } else { best }
    };
    Ok((1..ACTIONS).map(judged).fold(judged(0), better))
}

/// All baselines; `None` if interrupted.
pub fn all(
    world: &World,
    tests: &[Observations],
    fixed: FixedWeight,
    seed: u64,
) -> Result<Option<Vec<Contender>>, FusionError> {
    let of_weight = |name: String, kind, needs, weight: f64| Contender {
        name,
        kind,
        parameters: 0,
        needs,
        validation: world.validation.fused_by(weight),
        test: tests.iter().map(|of| of.fused_by(weight)).collect(),
    };
    let mut contenders = vec![
        of_weight("VGAE alone".to_owned(), "model", [true, false], 0.0),
        of_weight("GAT alone".to_owned(), "model", [false, true], 1.0),
        of_weight(format!("fixed weight {}", fixed.weight), "fixed weight", [true, true], fixed.weight),
    ];

    let logistic = Logistic::fit(VALUES, || labelled(world, &world.training));
    let odds = |of: &Observations| labelled(world, of).map(|(state, _)| logistic.log_odds(&state)).collect();
    contenders.push(Contender {
        name: "logistic regression".to_owned(),
        kind: "logistic regression",
        parameters: logistic.weights.len(),
        needs: [true, true],
        validation: odds(&world.validation),
        test: tests.iter().map(odds).collect(),
    });

    let Some(mlp) = SmallMlp::fit(world, seed)? else { return Ok(None) };
    contenders.push(Contender {
        name: "small MLP".to_owned(),
        kind: "mlp",
        parameters: mlp.num_parameters(),
        needs: [true, true],
        validation: mlp.log_odds(world, &world.validation)?,
        test: tests.iter().map(|of| mlp.log_odds(world, of)).collect::<Result<_, _>>()?,
    });
    Ok(Some(contenders))
}

fn labelled<'a>(world: &'a World, of: &'a Observations) -> impl Iterator<Item = Labelled> + 'a {
    of.graphs.iter().zip(&of.attack).map(|(&graph, &attack)| (world.scaling.apply(world.states.row(graph)), attack))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observations(probability: &[f64], anomaly: &[f64], attack: &[bool]) -> Observations {
        Observations {
            graphs: (0..attack.len() as u64).collect(),
            attack: attack.to_vec(),
            probability: probability.to_vec(),
            anomaly: anomaly.to_vec(),
            continues: vec![false; attack.len()],
        }
    }

    #[test]
    fn the_weight_that_ranks_best_is_chosen_and_then_the_surest() {
        let attack = [false, false, true, true];
        // The classifier is right, the autoencoder wrong.
        let found = best_fixed_weight(&observations(&[0.0, 0.0, 1.0, 1.0], &[0.9, 0.8, 0.2, 0.1], &attack)).unwrap();
        assert_eq!((found.weight, found.validation_pr_auc, found.validation_brier), (1.0, 1.0, 0.0));
        // Both rank correctly, the autoencoder with more confidence.
        let found = best_fixed_weight(&observations(&[0.4, 0.4, 0.6, 0.6], &[0.1, 0.1, 0.9, 0.9], &attack)).unwrap();
        assert_eq!((found.weight, found.validation_pr_auc), (0.0, 1.0));
        assert!(best_fixed_weight(&observations(&[0.5], &[0.5], &[true])).unwrap_err().is_input());
    }
}
