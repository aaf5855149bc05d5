//! An interaction: a network applied to each path's seven vectors, summed at the path's first node.
//!
//! The vectors of a path i→j→k→p are the embeddings of its four nodes and three encodings: of |ij|; of |jk| and the angle at j; of |jp|, the
//! angle between ij and jp, and the torsion. Each encoding is two linear layers with ReLU between them on an expansion in Gaussians.

use std::sync::Arc;

use kdgat_graph::paths::{Cursor, Piece};
use kdgat_torch::autocast;
use kdgat_torch::checkpoint::checkpoint;
use tch::{Device, Kind, TchError, Tensor};

use super::geometry::Bases;
use super::sums::{PathGraph, WEIGHTS, path_sums};
use crate::ModelError;
use crate::attention::Backend;
use crate::fused;
use crate::layers::Linear;
use crate::parameters::{Init, Scope};

/// Vectors of a path.
const VECTORS: i64 = 7;
/// Paths computed at a time by torch's operations.
const COMPOSED_PIECE: usize = 1 << 15;

/// The layers of an interaction of `width` columns.
#[derive(Debug)]
pub struct Interaction {
    width: i64,
    /// Two layers each: of edges, pairs and paths.
    encodings: [[Linear; 2]; 3],
    /// Three layers, of which the first reads the seven vectors beside each other.
    combine: [Linear; 3],
}

impl Interaction {
    /// Requests the tensors; names are those of the published code.
    pub fn new(mut scope: Scope, width: i64, bases: &Bases) -> Result<Self, ModelError> {
        let columns = bases.columns().map(|columns| columns as i64);
        let mut encoding = |level: usize| {
            let mut scope = scope.sub("mlps_dist");
            let mut scope = scope.sub(level);
            Ok::<_, ModelError>([
                Linear::with_init(scope.sub(0), columns[level], width, Init::Glorot)?,
                Linear::new(scope.sub(2), width, width)?,
            ])
        };
        let encodings = [encoding(0)?, encoding(1)?, encoding(2)?];
        let mut combine = scope.sub("combine");
        let combine = [
            Linear::with_init(combine.sub(0), VECTORS * width, 4 * width, Init::Glorot)?,
            Linear::with_init(combine.sub(2), 4 * width, 2 * width, Init::Glorot)?,
            Linear::with_init(combine.sub(4), 2 * width, width, Init::Glorot)?,
        ];
        Ok(Self { width, encodings, combine })
    }

    /// The sums of the network over the paths that begin at each node, `[num_nodes, width]` → `[num_nodes, width]`.
    pub fn forward(
        &self,
        x: &Tensor,
        graph: &Arc<PathGraph>,
        bases: Bases,
        kernel: Backend,
    ) -> Result<Tensor, ModelError> {
        if fused::applies(kernel, &[x]) && !autocast::is_in_force(Device::Cpu)? {
            return Ok(path_sums(graph, bases, [x, &self.of_nodes()?], &self.of_paths()?)?);
        }
        let sums = self.composed_sums(x, graph, bases)?;
        let counts: Vec<f32> = graph.paths.iter().map(|&count| count as f32).collect();
        let counts = Tensor::f_from_slice(&counts)?.f_unsqueeze(1)?.f_to_device(x.device())?;
        let [weight, bias] = self.combine[2].parameters();
        Ok(sums.f_matmul(&weight.f_transpose(0, 1)?)?.f_add(&counts.f_mul(bias)?)?)
    }

    /// The columns of the first combining layer that read one of the seven vectors, `[4 width, width]`.
    fn block(&self, vector: i64) -> Result<Tensor, TchError> {
        self.combine[0].parameters()[0].f_narrow(1, vector * self.width, self.width)
    }

    /// The first combining layer's columns for a node as first, second, third and fourth of a path, `[16 width, width]`.
    fn of_nodes(&self) -> Result<Tensor, TchError> {
        let blocks: Vec<Tensor> = (0..4).map(|vector| self.block(vector)).collect::<Result<_, _>>()?;
        Tensor::f_cat(&blocks, 0)
    }

    /// The weights of [`path_sums`]: the second layers of the encodings are linear and become one with the first combining layer.
    fn of_paths(&self) -> Result<[Tensor; WEIGHTS], TchError> {
        let mut bias = self.combine[0].parameters()[1].shallow_clone();
        let mut folded = |level: usize| {
            let [weight, offset] = self.encodings[level][1].parameters();
            let block = self.block(4 + level as i64)?;
            bias = bias.f_add(&block.f_mv(offset)?)?;
            block.f_matmul(weight)
        };
        let [edge, pair, path] = [folded(0)?, folded(1)?, folded(2)?];
        let [first, second, third] = self.encodings.each_ref().map(|layers| &layers[0]);
        let layers = [first, second, third, &self.combine[1], &self.combine[2]];
        let [one, two, three, four, five] = layers.map(|layer| layer.parameters().map(Tensor::shallow_clone));
        let ([one, of_one], [two, of_two], [three, of_three]) = (one, two, three);
        let ([four, of_four], [five, of_five]) = (four, five);
        Ok([edge, pair, path, bias, one, of_one, two, of_two, three, of_three, four, of_four, five, of_five])
    }

    /// The same sums by the definition, with torch's operations: for other devices, mixed precision, and as a reference.
    fn composed_sums(&self, x: &Tensor, graph: &Arc<PathGraph>, bases: Bases) -> Result<Tensor, ModelError> {
        let mut sums = Tensor::f_zeros([x.size()[0], 2 * self.width], (Kind::Float, x.device()))?;
        let (mut piece, mut cursor) = (Piece::default(), Cursor::at(0));
        loop {
            piece.fill(&graph.neighbours, &mut cursor, graph.neighbours.num_edges(), COMPOSED_PIECE);
            if piece.paths[0].is_empty() {
                return Ok(sums);
            }
            let (nodes, expansions) = described(&piece, graph, bases, x.device())?;
            let firsts = nodes[0].shallow_clone();
            let layers: Vec<Linear> =
                self.encodings.iter().flatten().chain(&self.combine[..2]).map(Linear::shallow_clone).collect();
            let body = move |inputs: &[Tensor]| {
                let relu_of = |layer: &Linear, x: &Tensor| linear(layer, x)?.f_relu();
                let mut vectors = Vec::new();
                for index in &nodes {
                    vectors.push(inputs[0].f_index_select(0, index)?);
                }
                for (expansion, layers) in expansions.iter().zip(layers.chunks_exact(2)) {
                    vectors.push(linear(&layers[1], &relu_of(&layers[0], expansion)?)?);
                }
                let combined = relu_of(&layers[6], &Tensor::f_cat(&vectors, 1)?)?;
                Ok(vec![relu_of(&layers[7], &combined)?])
            };
            let parameters = self.encodings.iter().flatten().chain(&self.combine[..2]).flat_map(Linear::parameters);
            let rows = checkpoint(body, &[x], &parameters.collect::<Vec<_>>())?.swap_remove(0);
            sums = sums.f_index_add(0, &firsts, &autocast::widened(&rows)?)?;
        }
    }
}

fn linear(layer: &Linear, x: &Tensor) -> Result<Tensor, TchError> {
    let [weight, bias] = layer.parameters();
    x.f_linear(weight, Some(bias))
}

/// The four nodes of each path of a piece, and the expansions of its encodings' inputs.
fn described(
    piece: &Piece,
    graph: &PathGraph,
    bases: Bases,
    device: Device,
) -> Result<([Tensor; 4], [Tensor; 3]), TchError> {
    let mut nodes: [Vec<i64>; 4] = Default::default();
    let columns = bases.columns();
    let mut values = columns.map(|columns| vec![0.0f32; piece.paths[0].len() * columns]);
    for (path, (&pair, &fourth)) in piece.paths[0].iter().zip(&piece.paths[1]).enumerate() {
        let edge = piece.pairs[0][pair as usize] as usize;
        let path_nodes = [piece.edges[0][edge], piece.edges[1][edge], piece.pairs[1][pair as usize], fourth];
        let [i, j, k, p] = path_nodes.map(|node| graph.positions[node as usize]);
        let [of_edge, of_pair, of_path] = &mut values;
        bases.edge([i, j], &mut of_edge[path * columns[0]..][..columns[0]]);
        bases.pair([i, j, k], &mut of_pair[path * columns[1]..][..columns[1]]);
        bases.path([i, j, k, p], &mut of_path[path * columns[2]..][..columns[2]]);
        nodes.iter_mut().zip(path_nodes).for_each(|(list, node)| list.push(i64::from(node)));
    }
    let tensor = |values: &[f32], columns: usize| {
        Tensor::f_from_slice(values)?.f_view([-1, columns as i64])?.f_to_device(device)
    };
    let [one, two, three, four] = nodes.map(|list| Tensor::f_from_slice(&list)?.f_to_device(device));
    let [of_edge, of_pair, of_path] = [0, 1, 2].map(|level| tensor(&values[level], columns[level]));
    Ok(([one?, two?, three?, four?], [of_edge?, of_pair?, of_path?]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::FreshParameters;
    use kdgat_graph::paths::Neighbours;

    /// Graphs of `nodes` scattered nodes with `degree` neighbours each, the nearest ones.
    fn scattered(graphs: usize, nodes: usize, degree: usize) -> PathGraph {
        let mut state = 1u64;
        let mut number = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f64 / f64::from(1 << 24) * 10.0
        };
        let positions: Vec<[f64; 3]> = (0..graphs * nodes).map(|_| [number(), number(), number()]).collect();
        let (mut pointers, mut sources) = (vec![0], Vec::new());
        for node in 0..graphs * nodes {
            let first = node / nodes * nodes;
            let squared =
                |other: usize| (0..3).map(|axis| (positions[node][axis] - positions[other][axis]).powi(2)).sum::<f64>();
            let mut others: Vec<usize> = (first..first + nodes).filter(|&other| other != node).collect();
            others.sort_by(|&one, &other| squared(one).total_cmp(&squared(other)));
            let mut near: Vec<i32> = others[..degree].iter().map(|&other| other as i32).collect();
            near.sort_unstable();
            sources.extend(near);
            pointers.push(sources.len() as i32);
        }
        let neighbours = Neighbours::of_incoming(&pointers, &sources);
        PathGraph::new(neighbours, positions)
    }

    fn step(
        interaction: &Interaction,
        graph: &Arc<PathGraph>,
        parameters: &FreshParameters,
        kernel: Backend,
    ) -> Vec<Tensor> {
        let nodes = graph.paths.len() as i64;
        let bases = Bases::new(10.0, [50, 6, 12]);
        let x = (Tensor::arange(nodes * interaction.width, (Kind::Float, Device::Cpu)) * 0.7)
            .sin()
            .view([nodes, -1])
            .set_requires_grad(true);
        let output = interaction.forward(&x, graph, bases, kernel).unwrap();
        let weights =
            (Tensor::arange(nodes * interaction.width, (Kind::Float, Device::Cpu)) * 0.3).cos().view([nodes, -1]);
        let loss = (&output * weights).sum(Kind::Float);
        let inputs: Vec<&Tensor> =
            std::iter::once(&x).chain(parameters.tensors().iter().map(|named| &named.tensor)).collect();
        let gradients = Tensor::run_backward(&[loss], &inputs, false, false);
        std::iter::once(output).chain(gradients).collect()
    }

    #[test]
    fn sums_and_gradients_are_those_of_the_definition() {
        // Some have so many paths that several blocks share a graph, the last many nodes with few.
        for (graphs, nodes, degree, width) in
            [(3, 30, 6, 16), (1, 40, 3, 7), (9, 4, 3, 5), (2, 60, 8, 6), (1500, 4, 2, 4)]
        {
            let graph = Arc::new(scattered(graphs, nodes, degree));
            let bases = Bases::new(10.0, [50, 6, 12]);
            let mut parameters = FreshParameters::new(3, Device::Cpu);
            let interaction = Interaction::new(Scope::root(&mut parameters), width, &bases).unwrap();
            let expected = step(&interaction, &graph, &parameters, Backend::Composed);
            let found = step(&interaction, &graph, &parameters, Backend::Auto);
            for (found, expected) in found.iter().zip(&expected) {
                let scale = f64::try_from(expected.abs().max()).unwrap().max(1.0);
                let off = f64::try_from((found - expected).abs().max()).unwrap() / scale;
                assert!(off < 1e-5, "{off} of {scale}, shape {:?}", expected.size());
            }
        }
    }
}
