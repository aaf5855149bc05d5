//! Ranking metrics: areas under the ROC and precision-recall curves, and detection rates at given false-positive rates.
//!
//! Exact with ties: equal scores are one step of a curve, whatever their order. Graphs have weights, so a bootstrap resample is
//! another set of weights over the same order.

/// False-positive rates at which detection rates are reported.
pub const FALSE_POSITIVE_RATES: [f64; 3] = [0.05, 0.01, 0.001];

/// Graphs in descending order of score.
#[derive(Debug, Clone)]
pub struct Ranking {
    /// Graphs with their labels, by descending score.
    order: Vec<Ranked>,
}

#[derive(Debug, Clone, Copy)]
struct Ranked {
    graph: u32,
    attack: bool,
    /// True if the next graph has a lower score.
    ends_tie: bool,
}

/// Metrics of a ranking; NaN unless there are both attacks and normal graphs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankMetrics {
    /// P(score of an attack > score of a normal graph) + ½ P(equal) (Mann & Whitney 1947).
    pub roc_auc: f64,
    /// Average precision: Σ over distinct scores of (recall step) · precision.
    pub pr_auc: f64,
    /// Highest true-positive rate of any threshold whose false-positive rate is at most 5 %, 1 %, 0.1 %.
    pub detection: [f64; 3],
}

/// Minimum distance of two points of a curve, as a sum of absolute differences of rates; closer points are merged.
const LEAST_DISTANCE: f64 = 0.01;

/// A point of the ROC and precision-recall curves, from one threshold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CurvePoint {
    /// Share of the normal graphs with a score above the threshold, from 0 to 1.
    pub false_positive_rate: f64,
    /// Share of the attacks with a score above the threshold, from 0 to 1; the recall.
    pub true_positive_rate: f64,
    /// Share of attacks among the graphs with a score above the threshold, from 0 to 1.
    pub precision: f64,
}

impl CurvePoint {
    fn distance(self, other: Self) -> f64 {
        (self.false_positive_rate - other.false_positive_rate).abs()
            + (self.true_positive_rate - other.true_positive_rate).abs()
            + (self.precision - other.precision).abs()
    }
}

impl Ranking {
    /// Sorts graphs by score.
    ///
    /// # Panics
    /// Panics if there are 2³² graphs or more, or if the number of labels differs.
    pub fn new(scores: &[f64], labels: &[bool]) -> Self {
        assert_eq!(scores.len(), labels.len(), "a label for each score");
        let count = u32::try_from(scores.len()).expect("fewer than 2^32 graphs");
        let mut order: Vec<u32> = (0..count).collect();
        let score = |graph: u32| scores[graph as usize];
        order.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
        let ranked = |place: usize| Ranked {
            graph: order[place],
            attack: labels[order[place] as usize],
            ends_tie: order.get(place + 1).is_none_or(|&next| score(next) < score(order[place])),
        };
        Self { order: (0..order.len()).map(ranked).collect() }
    }

    /// Points of the ROC and precision-recall curves, from the highest threshold to the lowest, without points too close to
    /// distinguish. Empty unless there are both attacks and normal graphs.
    pub fn curve(&self) -> Vec<CurvePoint> {
        let attacks = self.order.iter().filter(|ranked| ranked.attack).count();
        let normals = self.order.len() - attacks;
        if attacks == 0 || normals == 0 {
            return Vec::new();
        }
        let mut points = vec![CurvePoint { false_positive_rate: 0.0, true_positive_rate: 0.0, precision: 1.0 }];
        let (mut true_positives, mut false_positives, mut last) = (0usize, 0usize, points[0]);
        for ranked in &self.order {
            *(if ranked.attack { &mut true_positives } else { &mut false_positives }) += 1;
            if !ranked.ends_tie {
                continue;
            }
            let point = CurvePoint {
                false_positive_rate: false_positives as f64 / normals as f64,
                true_positive_rate: true_positives as f64 / attacks as f64,
                precision: true_positives as f64 / (true_positives + false_positives) as f64,
            };
            let kept = points[points.len() - 1];
            if point.distance(kept) > LEAST_DISTANCE {
                // Keep the point before a step as well: a step curve must not cut corners.
                if last != kept && point.distance(last) > LEAST_DISTANCE {
                    points.push(last);
                }
                points.push(point);
            }
            last = point;
        }
        if points[points.len() - 1] != last {
            points.push(last);
        }
        points
    }

    /// Metrics with each graph counted once.
    pub fn metrics(&self) -> RankMetrics {
        self.weighted(&vec![1; self.order.len()])
    }

    /// Metrics with graph `g` counted `weights[g]` times: one pass over the order.
    pub fn weighted(&self, weights: &[u32]) -> RankMetrics {
        let (mut attacks, mut normals) = (0u64, 0u64);
        for ranked in &self.order {
            let weight = u64::from(weights[ranked.graph as usize]);
            *(if ranked.attack { &mut attacks } else { &mut normals }) += weight;
        }
        let allowed = FALSE_POSITIVE_RATES.map(|rate| (rate * normals as f64).floor() as u64);
        let (mut true_positives, mut false_positives) = (0u64, 0u64);
        // Weights of the graphs at the current distinct score.
        let (mut more_true, mut more_false) = (0u64, 0u64);
        // Twice the area, in graphs times graphs: integers, so the result does not depend on the order of ties.
        let (mut double_area, mut precision_sum) = (0u128, 0.0);
        let mut detected = [0u64; 3];
        for ranked in &self.order {
            let weight = u64::from(weights[ranked.graph as usize]);
            *(if ranked.attack { &mut more_true } else { &mut more_false }) += weight;
            if !ranked.ends_tie {
                continue;
            }
            double_area += u128::from(more_false) * u128::from(2 * true_positives + more_true);
            true_positives += more_true;
            false_positives += more_false;
            if more_true > 0 {
                precision_sum += more_true as f64 * (true_positives as f64 / (true_positives + false_positives) as f64);
            }
            for (detected, allowed) in detected.iter_mut().zip(allowed) {
                if false_positives <= allowed {
                    *detected = true_positives;
                }
            }
            (more_true, more_false) = (0, 0);
        }
        if attacks == 0 || normals == 0 {
            return RankMetrics { roc_auc: f64::NAN, pr_auc: f64::NAN, detection: [f64::NAN; 3] };
        }
        RankMetrics {
            roc_auc: double_area as f64 / (2.0 * attacks as f64 * normals as f64),
            pr_auc: precision_sum / attacks as f64,
            detection: detected.map(|detected| detected as f64 / attacks as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(scores: &[f64], labels: &[u8]) -> RankMetrics {
        let labels: Vec<bool> = labels.iter().map(|label| *label == 1).collect();
        Ranking::new(scores, &labels).metrics()
    }

    #[test]
    fn known_answers() {
        // The example of scikit-learn's documentation: ROC AUC 0.75, average precision 0.8333.
        let found = metrics(&[0.1, 0.4, 0.35, 0.8], &[0, 0, 1, 1]);
        assert_eq!(found.roc_auc, 0.75);
        assert!((found.pr_auc - 0.833_333_333_333).abs() < 1e-12, "{found:?}");
        assert_eq!(found.detection, [0.5; 3]);
        let perfect = metrics(&[0.1, 0.2, 0.8, 0.9], &[0, 0, 1, 1]);
        assert_eq!(perfect, RankMetrics { roc_auc: 1.0, pr_auc: 1.0, detection: [1.0; 3] });
        let reversed = metrics(&[0.9, 0.8, 0.1], &[0, 0, 1]);
        assert_eq!((reversed.roc_auc, reversed.detection), (0.0, [0.0; 3]));
        assert!((reversed.pr_auc - 1.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn equal_scores_are_one_step() {
        let tied = metrics(&[0.5; 8], &[1, 0, 0, 1, 0, 0, 0, 0]);
        assert_eq!((tied.roc_auc, tied.pr_auc, tied.detection), (0.5, 0.25, [0.0; 3]));
        // Two attacks at 0.9, one tied with a normal graph at 0.5, one normal graph at 0.1.
        let some = metrics(&[0.9, 0.9, 0.5, 0.5, 0.1], &[1, 1, 1, 0, 0]);
        assert!((some.roc_auc - (2.0 + 2.0 + 0.5 + 1.0) / 6.0).abs() < 1e-15);
        assert!((some.pr_auc - (2.0 / 3.0 + 0.75 / 3.0)).abs() < 1e-15);
    }

    #[test]
    fn detection_rates_count_what_the_false_positive_rate_allows() {
        // 1000 normal graphs at 0..1, and attacks just above the 100th, 30th, 5th and highest of the normal scores.
        let mut scores: Vec<f64> = (0..1000).map(|index| f64::from(index) / 1000.0).collect();
        let mut labels = vec![0u8; 1000];
        for above in [900, 970, 995, 999] {
            scores.push((f64::from(above) + 0.5) / 1000.0);
            labels.push(1);
        }
        // Normal graphs above the attacks: 99 above 0.9005, 29 above 0.9705, 4 above 0.9955, none above 0.9995.
        assert_eq!(metrics(&scores, &labels).detection, [0.75, 0.5, 0.25]);
    }

    #[test]
    fn curves_have_the_area_of_the_ranking_and_few_points() {
        let mut scores: Vec<f64> = (0..5000).map(|index| f64::from(index * 7919 % 5000) / 5000.0).collect();
        let labels: Vec<bool> = (0..5000).map(|index| index % 3 == 0).collect();
        scores.iter_mut().zip(&labels).for_each(|(score, attack)| *score += if *attack { 0.4 } else { 0.0 });
        let ranking = Ranking::new(&scores, &labels);
        let curve = ranking.curve();
        assert!(curve.len() < 400, "{} points", curve.len());
        let area: f64 = curve
            .windows(2)
            .map(|pair| {
                let width = pair[1].false_positive_rate - pair[0].false_positive_rate;
                width * (pair[0].true_positive_rate + pair[1].true_positive_rate) / 2.0
            })
            .sum();
        assert!((area - ranking.metrics().roc_auc).abs() < 2e-3, "{area} {}", ranking.metrics().roc_auc);
        let last = curve[curve.len() - 1];
        assert_eq!((last.false_positive_rate, last.true_positive_rate), (1.0, 1.0));
        assert!((last.precision - 1667.0 / 5000.0).abs() < 1e-12);
    }

    #[test]
    fn one_class_has_no_ranking() {
        assert!(Ranking::new(&[0.5, 0.6], &[true, true]).curve().is_empty());
        assert!(metrics(&[0.5, 0.6], &[1, 1]).roc_auc.is_nan());
        assert!(metrics(&[], &[]).pr_auc.is_nan());
    }

    #[test]
    fn weights_count_graphs_several_times() {
        let (scores, labels) = ([0.1, 0.4, 0.35, 0.8], [false, false, true, true]);
        let weighted = Ranking::new(&scores, &labels).weighted(&[2, 0, 3, 1]);
        let repeated = metrics(&[0.1, 0.1, 0.35, 0.35, 0.35, 0.8], &[0, 0, 1, 1, 1, 1]);
        assert_eq!(weighted, repeated);
    }
}
