//! Choice of the score above which a window is called an attack, on validation data.

use kdgat_config::Threshold;

use super::bootstrap::quantile;

/// Distance of a chosen threshold above the score it was chosen at, in units in the last place, so that rounding to decimal
/// digits and back cannot move it below that score.
const GUARD: u64 = 4;
/// Probability of calling a car different from those that a threshold was chosen on when it is not. Small, because the threshold that is
/// chosen then rests on few windows.
const SIGNIFICANCE: f64 = 0.01;
/// Expected counts from which a Poisson distribution is taken as a normal one.
const MANY_EXPECTED: f64 = 100.0;
/// 99 % quantile of the standard normal distribution.
const NORMAL_QUANTILE: f64 = 2.326_347_874_040_840_8;

/// Chooses a threshold from validation scores; windows with a higher score are called attacks.
///
/// - `fpr:RATE`: the smallest score exceeded by at most that share of the benign scores.
/// - `youden`: between the two neighbouring scores where true-positive minus false-positive rate is largest
///   (Youden 1950).
/// - a number: that number.
///
/// # Errors
/// Says which windows are missing.
pub fn choose(method: Threshold, scores: &[f64], labels: &[bool]) -> Result<f64, String> {
    match method {
        Threshold::Score(value) => Ok(value),
        Threshold::FalsePositiveRate(rate) => {
            let benign = scores.iter().zip(labels).filter(|(_, attack)| !**attack).map(|(score, _)| *score);
            at_false_positive_rate(benign.collect(), rate)
                .ok_or_else(|| format!("{method} needs attack-free windows, and there are none"))
        }
        Threshold::Youden => {
            youden(scores, labels).ok_or_else(|| format!("{method} needs windows with and without attacks"))
        }
    }
}

/// The smallest of the scores that at most a share `rate` of them exceeds.
pub fn at_false_positive_rate(mut benign: Vec<f64>, rate: f64) -> Option<f64> {
    let exceeding = (rate * benign.len() as f64).floor() as usize;
    let place = exceeding.min(benign.len().checked_sub(1)?);
    let (_, score, _) = benign.select_nth_unstable_by(place, |a, b| b.total_cmp(a));
    Some(guarded(*score))
}

/// Threshold for another car, from a `model` threshold and the scores of this car's attack-free windows: the model's, unless significantly
/// more of the windows exceed it than `rate` asks for; then [`at_false_positive_rate`] of the windows. One unusual window in a few seconds
/// of traffic says little about the rate, and would hide attacks. Never lower than the model's. `None` without windows.
pub fn for_car(model: Option<f64>, benign: Vec<f64>, rate: f64) -> Option<f64> {
    let by_chance = exceeding_by_chance(benign.len(), rate);
    let is_kept = |threshold: &f64| benign.iter().filter(|score| *score > threshold).count() <= by_chance;
    match model.filter(is_kept) {
        Some(model) if !benign.is_empty() => Some(model),
        _ => at_false_positive_rate(benign, rate),
    }
}

/// Like [`for_car`], where windows with attacks are known, too: a threshold that the attack-free windows contradict is raised into the
/// middle between these and the least attacks, if there is room between them. Least attacks: the 5 % quantile of the scores of `attacks`.
pub fn between(model: Option<f64>, benign: Vec<f64>, mut attacks: Vec<f64>, rate: f64) -> Option<f64> {
    /// Share of the attack windows that may lie below the middle: they hardly differ from attack-free ones.
    const HARDLY_ATTACKS: f64 = 0.05;
    let at_rate = at_false_positive_rate(benign.clone(), rate)?;
    let chosen = for_car(model, benign, rate)?;
    attacks.sort_unstable_by(f64::total_cmp);
    let least_attack = quantile(&attacks, HARDLY_ATTACKS);
    let is_kept = Some(chosen) == model;
    Some(if !is_kept && least_attack > at_rate { at_rate + 0.5 * (least_attack - at_rate) } else { chosen })
}

/// True if `count` of `windows` attack-free windows may be chance at this false-positive rate, but for one case in a hundred.
pub fn is_chance(count: usize, windows: usize, rate: f64) -> bool {
    count <= exceeding_by_chance(windows, rate)
}

/// Number of `windows` attack-free windows that exceed a threshold with this false-positive rate at most, but for one case in a hundred:
/// the 99 % quantile of a Poisson distribution.
fn exceeding_by_chance(windows: usize, rate: f64) -> usize {
    let expected = rate * windows as f64;
    if expected > MANY_EXPECTED {
        return (expected + NORMAL_QUANTILE * expected.sqrt()).ceil() as usize;
    }
    let mut probability = (-expected).exp();
    let (mut count, mut sum) = (0, probability);
    while sum < 1.0 - SIGNIFICANCE {
        count += 1;
        probability *= expected / count as f64;
        sum += probability;
    }
    count
}

/// The smallest false-positive rate that `windows` attack-free windows can resolve (one of them), in two significant digits.
pub fn smallest_rate(windows: u64) -> f64 {
    let exact = 1.0 / windows as f64;
    let rounded = |exact: f64| format!("{exact:.1e}").parse().unwrap_or(exact);
    let (nearest, step) = (rounded(exact), 10f64.powi(exact.log10().floor() as i32 - 1));
    if nearest >= exact { nearest } else { rounded(exact + step) }
}

fn youden(scores: &[f64], labels: &[bool]) -> Option<f64> {
    let mut ordered: Vec<(f64, bool)> = scores.iter().copied().zip(labels.iter().copied()).collect();
    ordered.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
    let attacks = labels.iter().filter(|attack| **attack).count();
    let benign = labels.len() - attacks;
    if attacks == 0 || benign == 0 {
        return None;
    }
    let (mut true_positives, mut false_positives) = (0, 0);
    // Above the highest score no window is called an attack, and the index is 0.
    let (mut best, mut threshold) = (0.0, ordered[0].0);
    for (place, &(score, attack)) in ordered.iter().enumerate() {
        true_positives += usize::from(attack);
        false_positives += usize::from(!attack);
        let Some(&(next, _)) = ordered.get(place + 1) else { break };
        let index = true_positives as f64 / attacks as f64 - false_positives as f64 / benign as f64;
        if next < score && index > best {
            best = index;
            threshold = next + 0.5 * (score - next);
        }
    }
    Some(guarded(threshold))
}

fn guarded(score: f64) -> f64 {
    if !score.is_finite() || score == 0.0 {
        return score;
    }
    let bits = score.to_bits();
    f64::from_bits(if score > 0.0 { bits.saturating_add(GUARD) } else { bits - GUARD.min(bits) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn above(scores: &[f64], threshold: f64) -> usize {
        scores.iter().filter(|score| **score > threshold).count()
    }

    #[test]
    fn a_false_positive_rate_is_kept() {
        let benign: Vec<f64> = (0..1000).map(|index| f64::from(index) / 1000.0).collect();
        for (rate, expected) in [(0.05, 50), (0.01, 10), (0.001, 1), (0.0005, 0)] {
            let threshold = at_false_positive_rate(benign.clone(), rate).unwrap();
            assert_eq!(above(&benign, threshold), expected, "rate {rate}");
        }
    }

    /// Quantiles of the Poisson distribution, from its probabilities by the logarithm of the gamma function (Python's `math.lgamma`).
    #[test]
    fn chance_follows_the_poisson_distribution() {
        for (windows, expected) in
            [(0, 0), (10, 0), (11, 1), (148, 1), (149, 2), (436, 2), (437, 3), (1000, 4), (5000, 11), (100_000, 124)]
        {
            assert_eq!(exceeding_by_chance(windows, 0.001), expected, "{windows} windows");
        }
        assert!(exceeding_by_chance(1_000_000, 0.001).abs_diff(1074) <= 1);
    }

    #[test]
    fn a_car_keeps_the_threshold_until_its_windows_contradict_it() {
        let usual = |windows: u32, unusual: usize| -> Vec<f64> {
            (0..windows).map(|index| f64::from(index) / 1e6).chain(vec![0.9; unusual]).collect()
        };
        assert_eq!(for_car(Some(0.5), usual(260, 1), 0.001), Some(0.5), "one of 261 windows");
        assert!(for_car(Some(0.5), usual(260, 3), 0.001).unwrap() > 0.9, "three of 263");
        assert_eq!(for_car(Some(0.5), usual(2000, 4), 0.001), Some(0.5), "four of 2004");
        assert_eq!(for_car(None, usual(260, 1), 0.001), at_false_positive_rate(usual(260, 1), 0.001));
        assert_eq!(for_car(Some(1e-9), usual(260, 0), 0.001), at_false_positive_rate(usual(260, 0), 0.001));
        assert_eq!(for_car(Some(0.5), Vec::new(), 0.001), None);
    }

    #[test]
    fn a_contradicted_threshold_lies_between_windows_without_and_with_attacks() {
        let benign = || (0..200).map(|index| f64::from(index) / 10.0).collect::<Vec<f64>>();
        let attacks = || (0..100).map(|index| 100.0 + f64::from(index)).collect::<Vec<f64>>();
        let placed = between(Some(15.0), benign(), attacks(), 0.001).unwrap();
        assert!((placed - 0.5 * (19.9 + 104.95)).abs() < 1e-9, "{placed}");
        assert_eq!(between(Some(50.0), benign(), attacks(), 0.001), Some(50.0), "nothing contradicts it");
        let below: Vec<f64> = attacks().iter().map(|score| score - 95.0).collect();
        assert_eq!(between(Some(15.0), benign(), below, 0.001), for_car(Some(15.0), benign(), 0.001), "no room");
        assert_eq!(between(None, benign(), Vec::new(), 0.001), for_car(None, benign(), 0.001));
        assert_eq!(between(Some(1.0), Vec::new(), attacks(), 0.001), None);
    }

    #[test]
    fn the_smallest_rate_is_one_window() {
        for (windows, expected) in [(3660, 0.00028), (1000, 0.001), (999, 0.0011), (640, 0.0016), (1, 1.0), (7, 0.15)] {
            let rate = smallest_rate(windows);
            assert_eq!(rate, expected, "{windows} windows");
            assert!(rate * windows as f64 >= 1.0);
        }
    }

    #[test]
    fn ties_never_raise_the_rate() {
        let benign = vec![0.5; 100];
        let threshold = at_false_positive_rate(benign.clone(), 0.1).unwrap();
        assert_eq!(above(&benign, threshold), 0);
        assert_eq!(at_false_positive_rate(Vec::new(), 0.1), None);
    }

    #[test]
    fn youden_separates_what_can_be_separated() {
        let scores = [0.1, 0.2, 0.3, 0.8, 0.9];
        let labels = [false, false, false, true, true];
        let threshold = choose(Threshold::Youden, &scores, &labels).unwrap();
        assert!((threshold - 0.55).abs() < 1e-9, "{threshold}");
        assert!(choose(Threshold::Youden, &scores, &[true; 5]).is_err());
        assert_eq!(choose(Threshold::Score(0.25), &scores, &labels), Ok(0.25));
    }

    #[test]
    fn a_threshold_survives_its_file() {
        let mut state = 7u64;
        for _ in 0..2000 {
            state = kdgat_base::random::mix(state);
            let score = f64::from_bits((state >> 12) | 0x3FE0_0000_0000_0000) * 10f64.powi((state % 30) as i32 - 28);
            let threshold = guarded(score);
            let read: f64 = serde_json::from_str(&serde_json::to_string(&threshold).unwrap()).unwrap();
            assert!(read >= score, "{score:e} was read back as {read:e}");
            assert!((threshold - score) / score < 1e-14);
        }
    }
}
