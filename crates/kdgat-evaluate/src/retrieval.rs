//! Retrieval: how well a model's embedding of a graph finds the teacher's embedding of the same graph among those of all test graphs.

use tch::{Kind, TchError, Tensor};

use super::graphs::Metric;

/// Numbers of first places that are counted.
const TOP: [usize; 3] = [1, 5, 10];
/// Rows that are compared with all teacher rows at a time.
const CHUNK_ROWS: i64 = 1024;
/// Beginning of the metrics' names.
const NAME: &str = "embedding";

/// Rank of each graph's teacher row among all teacher rows, by cosine with the model's row; 1 is the best, and equal cosines share
/// their ranks' mean. `own` and `teacher` are `[num_graphs, columns]`. Also returns the cosine with the graph's own teacher row.
///
/// # Errors
/// Those of libtorch.
pub fn ranks(own: &Tensor, teacher: &Tensor) -> Result<Vec<(f64, f64)>, TchError> {
    let (own, teacher) = (unit_rows(own)?, unit_rows(teacher)?);
    let mut found = Vec::new();
    let mut first = 0;
    while first < own.size()[0] {
        let rows = CHUNK_ROWS.min(own.size()[0] - first);
        let cosines = own.f_narrow(0, first, rows)?.f_matmul(&teacher.f_transpose(0, 1)?)?;
        let matching = cosines.f_narrow(1, first, rows)?.f_diagonal(0, 0, 1)?.f_unsqueeze(1)?;
        let above = cosines.f_gt_tensor(&matching)?.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Double)?;
        let equal = cosines.f_eq_tensor(&matching)?.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Double)?;
        // Its own row is among the equal ones.
        let rank = above.f_add(&equal.f_add_scalar(1.0)?.f_div_scalar(2.0)?)?;
        let ranks = Vec::<f64>::try_from(&rank)?;
        let cosines = Vec::<f64>::try_from(&matching.f_squeeze_dim(1)?.f_to_kind(Kind::Double)?)?;
        found.extend(ranks.into_iter().zip(cosines));
        first += rows;
    }
    Ok(found)
}

fn unit_rows(rows: &Tensor) -> Result<Tensor, TchError> {
    let (smallest, columns) = (1e-8, [1i64]);
    let rows = rows.f_to_kind(Kind::Float)?;
    rows.f_div(&rows.f_norm_scalaropt_dim(2.0, columns, true)?.f_clamp_min(smallest)?)
}

/// Shares of graphs whose teacher row is among the first, median rank, and mean cosine.
pub fn metrics(ranks: &[(f64, f64)]) -> Vec<Metric> {
    let count = ranks.len() as f64;
    let within = |top: usize| ranks.iter().filter(|(rank, _)| *rank <= top as f64).count() as f64 / count;
    let mut sorted: Vec<f64> = ranks.iter().map(|(rank, _)| *rank).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let median = match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
        _ => sorted[middle],
    };
    let cosine = ranks.iter().map(|(_, cosine)| cosine).sum::<f64>() / count;
    named(TOP.map(within), median, cosine)
}

/// The metrics of embeddings that say nothing about their graphs.
pub fn chance(graphs: usize) -> Vec<Metric> {
    let within = |top: usize| top.min(graphs) as f64 / graphs as f64;
    named(TOP.map(within), (graphs as f64 + 1.0) / 2.0, 0.0)
}

fn named(within: [f64; TOP.len()], median_rank: f64, cosine: f64) -> Vec<Metric> {
    let metric = |name: String, value| Metric { name, value, interval: None };
    let mut metrics: Vec<Metric> =
        TOP.iter().zip(within).map(|(top, share)| metric(format!("{NAME} top-{top}"), share)).collect();
    metrics.push(metric(format!("{NAME} median rank"), median_rank));
    metrics.push(metric(format!("{NAME} cosine"), cosine));
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_counted_among_all_graphs() {
        let teacher = Tensor::from_slice2(&[[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, 1.0]]);
        let own = Tensor::from_slice2(&[[2.0, 0.0], [0.6, 0.8], [0.0, 3.0], [0.0, 1.0]]);
        let found = ranks(&own, &teacher).unwrap();
        // The second row is nearest to the equal rows 1 and 3; the third is last but for nothing: rows 1, 3 and 0 and 2 tie.
        assert_eq!(found.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), [1.0, 1.5, 3.5, 1.5]);
        assert!((found[1].1 - 0.8).abs() < 1e-6);
        let value = |metrics: &[Metric], name: &str| metrics.iter().find(|metric| metric.name == name).unwrap().value;
        let metrics = metrics(&found);
        assert_eq!(value(&metrics, "embedding top-1"), 0.25);
        assert_eq!((value(&metrics, "embedding top-5"), value(&metrics, "embedding median rank")), (1.0, 1.5));
        let chance = chance(4);
        assert_eq!((value(&chance, "embedding top-1"), value(&chance, "embedding median rank")), (0.25, 2.5));
    }
}
