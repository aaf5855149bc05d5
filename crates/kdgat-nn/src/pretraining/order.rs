//! Order of related nodes, and distance of unrelated ones, in a tree's embedding.

use tch::{Kind, TchError, Tensor};

use super::NodeValues;
use super::trees::Trees;
use crate::Draw;

/// The distance that unrelated nodes should have.
const MARGIN: f64 = 1.0;

/// For each node with a parent, Σ max(0, h_child − h_parent) over the columns of `h`, `[num_nodes, columns]`; and a 1 where that is less than
/// the same with child and parent exchanged.
pub(super) fn order(h: &Tensor, trees: &Trees) -> Result<(NodeValues, Tensor), TchError> {
    let related = (0i64..).zip(&trees.parents).filter_map(|(node, parent)| Some((node, i64::from((*parent)?))));
    let (children, parents): (Vec<i64>, Vec<i64>) = related.unzip();
    let index = |nodes: &[i64]| Tensor::f_from_slice(nodes)?.f_to_device(h.device());
    let nodes = index(&children)?;
    let above = h.f_index_select(0, &nodes)?.f_sub(&h.f_index_select(0, &index(&parents)?)?)?;
    let sum = |rows: Tensor| rows.f_relu()?.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Float);
    let (values, reverse) = (sum(above.shallow_clone())?, sum(above.f_neg()?)?);
    let is_ordered = values.f_lt_tensor(&reverse)?.f_to_kind(Kind::Float)?;
    Ok((NodeValues { nodes, values }, is_ordered))
}

/// For each node with a drawn unrelated one, max(0, 1 − ‖h_i − h_j‖).
pub(super) fn distance(h: &Tensor, trees: &Trees, graphs: &[u64], draw: Draw) -> Result<NodeValues, TchError> {
    let pairs = trees.unrelated(graphs, draw);
    let index = |end: usize| {
        let nodes: Vec<i64> = pairs.iter().map(|pair| i64::from(pair[end])).collect();
        Tensor::f_from_slice(&nodes)?.f_to_device(h.device())
    };
    let nodes = index(0)?;
    let between = h.f_index_select(0, &nodes)?.f_sub(&h.f_index_select(0, &index(1)?)?)?;
    let squared = between.f_square()?.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Float)?;
    // The root has no gradient at 0.
    let values = squared.f_add_scalar(1e-12)?.f_sqrt()?.f_neg()?.f_add_scalar(MARGIN)?.f_relu()?;
    Ok(NodeValues { nodes, values })
}

#[cfg(test)]
mod tests {
    use super::super::trees::tests::forest;
    use super::*;
    use crate::test_graphs::graphs;

    #[test]
    fn terms_are_those_of_their_formulas() {
        // A root with two children, of which the second has one, too.
        let (neighbours, _) = forest(&[vec![0, 0, 2]]);
        let edges: Vec<(i64, i64)> =
            (0..4).flat_map(|to| neighbours.of(to).iter().map(move |&from| (i64::from(from), to as i64))).collect();
        let trees = Trees::of(&graphs(&edges, &[0, 4])).unwrap();
        let h = Tensor::from_slice2(&[[2.0_f32, 1.0], [1.0, 1.5], [1.5, 0.5], [1.7, 1.5]]);
        let (found, is_ordered) = order(&h, &trees).unwrap();
        let close = |tensor: &Tensor, expected: &[f32]| {
            let found = Vec::<f32>::try_from(tensor).unwrap();
            found.len() == expected.len() && found.iter().zip(expected).all(|(one, other)| (one - other).abs() < 1e-5)
        };
        assert_eq!(Vec::<i64>::try_from(&found.nodes).unwrap(), [1, 2, 3]);
        assert!(close(&found.values, &[0.5, 0.0, 1.2]), "{}", found.values);
        assert!(close(&is_ordered, &[1.0, 1.0, 0.0]), "{is_ordered}");
        let apart = distance(&h, &trees, &[0], Draw { seed: 1, epoch: 0 }).unwrap();
        // Node 1 is unrelated to 2 and 3; those to 1 alone, at distances √1.25 and 0.7.
        let nodes = Vec::<i64>::try_from(&apart.nodes).unwrap();
        assert_eq!(nodes, [1, 2, 3]);
        let values = Vec::<f32>::try_from(&apart.values).unwrap();
        assert!(values[1] == 0.0 && (values[2] - 0.3).abs() < 1e-5 && [values[1], values[2]].contains(&values[0]));
    }
}
