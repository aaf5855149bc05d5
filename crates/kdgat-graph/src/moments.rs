//! Mean and standard deviation of many features at once, accumulated in parts that can be merged.

/// Running means and sums of squared deviations of `width` features (Welford 1962): no cancellation for any number of rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Moments {
    count: f64,
    mean: Vec<f64>,
    squares: Vec<f64>,
}

/// Deviations below this count as those of a constant feature.
const SMALLEST_DEVIATION: f64 = 1e-12;

impl Moments {
    /// Moments of `width` features without any rows.
    pub fn new(width: usize) -> Self {
        Self { count: 0.0, mean: vec![0.0; width], squares: vec![0.0; width] }
    }

    /// Adds `rows`, a flat array of `[rows, width]`.
    pub fn add_rows(&mut self, rows: &[f32]) {
        for row in rows.chunks_exact(self.mean.len()) {
            self.count += 1.0;
            for ((mean, squares), &value) in self.mean.iter_mut().zip(&mut self.squares).zip(row) {
                let difference = f64::from(value) - *mean;
                *mean += difference / self.count;
                *squares += difference * (f64::from(value) - *mean);
            }
        }
    }

    /// Adds the rows of another part (Chan et al. 1979). The last digits depend on the order of merging, so a store merges its
    /// shards in order.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0.0 {
            return;
        }
        let count = self.count + other.count;
        let own = self.mean.iter_mut().zip(&mut self.squares);
        for ((mean, squares), (other_mean, other_squares)) in own.zip(other.mean.iter().zip(&other.squares)) {
            let difference = other_mean - *mean;
            *mean += difference * (other.count / count);
            *squares += other_squares + difference * difference * (self.count * other.count / count);
        }
        self.count = count;
    }

    /// Mean of each feature; 0 without rows.
    pub fn mean(&self) -> &[f64] {
        &self.mean
    }

    /// Population standard deviation of each feature; 1 for a constant feature.
    pub fn deviation(&self) -> Vec<f64> {
        let deviation = |squares: &f64| {
            let deviation = (squares / self.count.max(1.0)).sqrt();
            if deviation > SMALLEST_DEVIATION { deviation } else { 1.0 }
        };
        self.squares.iter().map(deviation).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_put_together_equal_the_whole(
            values in prop::collection::vec(-1000.0f32..1000.0, 3..300),
            cuts in prop::collection::vec(0usize..100, 0..4),
            offset in prop::sample::select(vec![0.0f32, 1e6]),
        ) {
            let values: Vec<f32> = values.iter().map(|value| value + offset).collect();
            let rows: Vec<&[f32]> = values.chunks_exact(3).collect();
            let mut parts = Moments::new(3);
            let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (rows.len() + 1)).chain([rows.len()]).collect();
            ends.sort_unstable();
            let mut begin = 0;
            for end in ends {
                let mut part = Moments::new(3);
                rows[begin..end].iter().for_each(|row| part.add_rows(row));
                parts.merge(&part);
                begin = end;
            }
            for feature in 0..3 {
                let column: Vec<f64> = rows.iter().map(|row| f64::from(row[feature])).collect();
                let mean = column.iter().sum::<f64>() / column.len() as f64;
                let squares = column.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
                let deviation = (squares / column.len() as f64).sqrt();
                prop_assert!((parts.mean()[feature] - mean).abs() <= 1e-9 * mean.abs().max(1.0));
                // The deviation of a single row or of equal rows is only rounding error.
                let expected = if deviation > 1e-9 { deviation } else { parts.deviation()[feature] };
                prop_assert!((parts.deviation()[feature] - expected).abs() <= 1e-6 * expected.max(1e-3));
            }
        }
    }

    #[test]
    fn constant_features_have_deviation_one() {
        let mut moments = Moments::new(2);
        moments.add_rows(&[7.0, 1.0, 7.0, 2.0, 7.0, 3.0]);
        assert_eq!((moments.mean(), moments.deviation()[0]), (&[7.0, 2.0][..], 1.0));
        assert!((moments.deviation()[1] - (2.0f64 / 3.0).sqrt()).abs() < 1e-15);
    }
}
