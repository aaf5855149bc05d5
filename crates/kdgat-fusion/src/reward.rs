//! The reward of a fusion weight on a graph whose label is known.
//!
//! With the fused score f of weight a, P = P(attack), A = the anomaly, and c = +1 if (f > ½) is the label, else −1:
//!
//! ```text
//! r = w₁·c + w₂·c·(1 − |P − A|) + w₃·c·|2f − 1| − w₄·|2a − 1|
//! ```
//!
//! *Correctness* rewards the right decision. *Agreement* weighs it more where both models agree. *Confidence* weighs it more
//! where the score is far from ½. *Balance* charges a small price for relying on one model alone.

use serde::{Deserialize, Serialize};

use super::fused;

/// Fused scores above it count as attacks in the reward. (`kdgat fusion` reports use a threshold chosen on validation data.)
const DECISION: f64 = 0.5;

/// Weights w₁ to w₄ of the reward's terms.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Reward {
    /// Weight w₁ of the correctness term.
    pub correctness: f64,
    /// Weight w₂ of the agreement term.
    pub agreement: f64,
    /// Weight w₃ of the confidence term.
    pub confidence: f64,
    /// Weight w₄ of the balance term.
    pub balance: f64,
}

impl Reward {
    /// Reward of `weight` on a graph.
    pub fn of(&self, weight: f64, probability: f64, anomaly: f64, attack: bool) -> f64 {
        let score = fused(weight, probability, anomaly);
        let correct = if (score > DECISION) == attack { 1.0 } else { -1.0 };
        let agreement = 1.0 - (probability - anomaly).abs();
        let confidence = (2.0 * score - 1.0).abs();
        correct * (self.correctness + self.agreement * agreement + self.confidence * confidence)
            - self.balance * (2.0 * weight - 1.0).abs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_by_hand() {
        let none = Reward { correctness: 0.0, agreement: 0.0, confidence: 0.0, balance: 0.0 };
        let close = |reward: Reward, weight, attack, expected: f64| {
            let found = reward.of(weight, 0.9, 0.5, attack);
            assert!((found - expected).abs() < 1e-12, "{reward:?} {weight} {attack}: {found}");
        };
        // Weight 0.5: f = 0.7.
        close(Reward { correctness: 2.0, ..none }, 0.5, true, 2.0);
        close(Reward { correctness: 2.0, ..none }, 0.5, false, -2.0);
        close(Reward { agreement: 1.0, ..none }, 0.5, true, 0.6);
        close(Reward { confidence: 1.0, ..none }, 0.5, true, 0.4);
        close(Reward { confidence: 1.0, ..none }, 0.5, false, -0.4);
        close(Reward { balance: 1.0, ..none }, 1.0, true, -1.0);
        close(Reward { balance: 1.0, ..none }, 0.25, false, -0.5);
        // A score of exactly one half does not count as an attack.
        close(Reward { correctness: 1.0, ..none }, 0.0, false, 1.0);
    }
}
