//! Products of a node's representations with spherical harmonics: which give which, and their coefficients.
//!
//! The paths, their order and their norms are those of e3nn's `FullyConnectedTensorProduct` with the harmonics as second input (Geiger & Smidt
//! 2022, "e3nn: Euclidean Neural Networks").

use super::representations::{Irrep, Irreps, Part};

/// A coefficient of a path: it adds `Σ_(harmonic, factor) factor · Y[harmonic] · x[from]` to component `to`.
#[derive(Debug, Clone, PartialEq)]
pub struct Term {
    /// Component of the input.
    pub from: usize,
    /// Component of the product.
    pub to: usize,
    /// Harmonics, of all degrees, and their factors.
    pub factors: Vec<(usize, f32)>,
}

/// The product of one part of the input with the harmonics of one degree.
#[derive(Debug, Clone)]
pub struct Path {
    /// First column of the part of the input.
    pub column: usize,
    /// Number of features of that part.
    pub count: usize,
    /// First of the products of this path in a component of the block.
    pub first: usize,
    /// The coefficients, by `to`.
    pub terms: Vec<Term>,
}

/// All products that one part of the output is made of: `[components, fan]` numbers for an edge.
#[derive(Debug, Clone)]
pub struct Block {
    /// Components of the part of the output.
    pub components: usize,
    /// Products of a component.
    pub fan: usize,
    /// Features of the part of the output.
    pub outputs: usize,
    /// First column of the part of the output.
    pub column: usize,
    /// First row of its weights, which are `[outputs, fan]` rows.
    pub row: usize,
    /// The paths, whose products stand one after the other.
    pub paths: Vec<Path>,
}

impl Block {
    /// Products of an edge.
    pub fn products(&self) -> usize {
        self.components * self.fan
    }

    /// Rows of its weights.
    pub fn rows(&self) -> usize {
        self.outputs * self.fan
    }
}

/// The products of a layer.
#[derive(Debug, Clone)]
pub struct Coupling {
    /// Columns of a row of the input.
    pub inputs: usize,
    /// Columns of a row of the output.
    pub outputs: usize,
    /// One for each part of the output that has a path, in their order.
    pub blocks: Vec<Block>,
    /// For each row of weights, in order of block, output and product: its row in e3nn's order.
    pub order: Vec<i64>,
}

impl Coupling {
    /// The products of `input` with the spherical harmonics that `output` can be made of.
    pub fn new(input: &Irreps, output: &Irreps) -> Self {
        let harmonics = Irreps::harmonics();
        let parts: Vec<(usize, Part)> = output.parts().collect();
        let mut blocks: Vec<Block> = parts.iter().map(|&(column, part)| empty_block(column, part)).collect();
        // e3nn's first row of each path of each block.
        let mut first_rows: Vec<Vec<usize>> = vec![Vec::new(); blocks.len()];
        let mut next_row = 0;
        for (column, Part { count, irrep }) in input.parts() {
            for (first_harmonic, harmonic) in harmonics.parts() {
                for (index, &(_, part)) in parts.iter().enumerate() {
                    if !gives(irrep, harmonic.irrep, part.irrep) {
                        continue;
                    }
                    let block = &mut blocks[index];
                    let degrees = [irrep.degree, harmonic.irrep.degree, part.irrep.degree];
                    let terms = terms(degrees, first_harmonic);
                    block.paths.push(Path { column, count, first: block.fan, terms });
                    block.fan += count;
                    first_rows[index].push(next_row);
                    next_row += count * part.count;
                }
            }
        }
        let mut order = Vec::with_capacity(next_row);
        for (block, first_rows) in blocks.iter_mut().zip(&first_rows) {
            block.row = order.len();
            normalize(block);
            for output in 0..block.outputs {
                for (path, first_row) in block.paths.iter().zip(first_rows) {
                    order.extend((0..path.count).map(|feature| (first_row + feature * block.outputs + output) as i64));
                }
            }
        }
        blocks.retain(|block| block.fan > 0);
        Self { inputs: input.columns(), outputs: output.columns(), blocks, order }
    }
}

fn empty_block(column: usize, Part { count, irrep }: Part) -> Block {
    Block { components: irrep.components(), fan: 0, outputs: count, column, row: 0, paths: Vec::new() }
}

/// True if a product of the first two has a part like the third.
fn gives(left: Irrep, right: Irrep, product: Irrep) -> bool {
    let degrees = left.degree.abs_diff(right.degree)..=left.degree + right.degree;
    degrees.contains(&product.degree) && product.odd == (left.odd != right.odd)
}

/// Multiplies the coefficients by √((2 l + 1) / fan): with inputs and weights of variance 1 the outputs have variance 1, too.
fn normalize(block: &mut Block) {
    let norm = (block.components as f64 / block.fan.max(1) as f64).sqrt();
    for term in block.paths.iter_mut().flat_map(|path| &mut path.terms) {
        term.factors.iter_mut().for_each(|(_, factor)| *factor = (f64::from(*factor) * norm) as f32);
    }
}

fn terms([left, right, product]: [usize; 3], first_harmonic: usize) -> Vec<Term> {
    let size = |degree: usize| 2 * degree + 1;
    let mut terms = Vec::new();
    for to in 0..size(product) {
        for from in 0..size(left) {
            let of = |harmonic| (harmonic, wigner([left, right, product], [from, harmonic, to]));
            let factors: Vec<(usize, f32)> = (0..size(right))
                .map(of)
                .filter(|(_, value)| value.abs() > 1e-9)
                .map(|(harmonic, value)| (first_harmonic + harmonic, value as f32))
                .collect();
            if !factors.is_empty() {
                terms.push(Term { from, to, factors });
            }
        }
    }
    terms
}

/// Wigner's 3j symbol in the basis of the real spherical harmonics, for degrees up to 2: the one number that stays when all three turn. The
/// squares of all of them sum to 1.
///
/// A vector has the components x, y, z, and degree 2 stands for the symmetric matrices S below:
///
/// ```text
/// (0, l, l): δ          (1, 1, 1): ε_ijk             (1, 1, 2): S_k[i, j]
/// (2, 2, 2): tr(S_i S_j S_k)      (1, 2, 2): −Σ_ab ε_iab (S_j S_k)[b, a]
/// ```
pub fn wigner(degrees: [usize; 3], components: [usize; 3]) -> f64 {
    let rotated = |by: usize| {
        let of = |values: [usize; 3]| [0, 1, 2].map(|index| values[(index + by) % 3]);
        (of(degrees), of(components))
    };
    // Each form stays the same when its arguments are turned around.
    let turned = (0..3).map(rotated);
    let Some((sorted, [i, j, k])) = turned.filter(|(degrees, _)| degrees[0] <= degrees[1].min(degrees[2])).min_by_key(
        // (1, 1, 2) before (1, 2, 1).
        |(degrees, _)| *degrees,
    ) else {
        return 0.0;
    };
    match sorted {
        [0, left, right] if left == right => f64::from(u8::from(j == k)) / ((2 * left + 1) as f64).sqrt(),
        [1, 1, 1] => levi_civita(i, j, k) / 6.0_f64.sqrt(),
        [1, 1, 2] => matrix(k)[i][j] / 5.0_f64.sqrt(),
        [1, 2, 2] => {
            let product = times(&matrix(j), &matrix(k));
            let sum: f64 =
                (0..9).map(|place| levi_civita(i, place / 3, place % 3) * product[place % 3][place / 3]).sum();
            -sum * (2.0_f64 / 15.0).sqrt()
        }
        [2, 2, 2] => {
            let product = times(&times(&matrix(i), &matrix(j)), &matrix(k));
            (0..3).map(|place| product[place][place]).sum::<f64>() * (12.0_f64 / 35.0).sqrt()
        }
        _ => 0.0,
    }
}

type Matrix = [[f64; 3]; 3];

/// The symmetric matrix without a trace that component `index` of degree 2 stands for: xz, xy, y² − ½(x² + z²), yz, z² − x².
fn matrix(index: usize) -> Matrix {
    let (half, sixth) = (0.5_f64.sqrt(), (1.0_f64 / 6.0).sqrt());
    match index {
        0 => [[0.0, 0.0, half], [0.0; 3], [half, 0.0, 0.0]],
        1 => [[0.0, half, 0.0], [half, 0.0, 0.0], [0.0; 3]],
        2 => [[-sixth, 0.0, 0.0], [0.0, 2.0 * sixth, 0.0], [0.0, 0.0, -sixth]],
        3 => [[0.0; 3], [0.0, 0.0, half], [0.0, half, 0.0]],
        _ => [[-half, 0.0, 0.0], [0.0; 3], [0.0, 0.0, half]],
    }
}

fn times(left: &Matrix, right: &Matrix) -> Matrix {
    let of = |row: usize, column: usize| (0..3).map(|inner| left[row][inner] * right[inner][column]).sum();
    [0, 1, 2].map(|row| [0, 1, 2].map(|column| of(row, column)))
}

/// ε_ijk: 1 for even orders of 0, 1, 2, −1 for odd ones, else 0.
fn levi_civita(i: usize, j: usize, k: usize) -> f64 {
    match [i, j, k] {
        [0, 1, 2] | [1, 2, 0] | [2, 0, 1] => 1.0,
        [0, 2, 1] | [2, 1, 0] | [1, 0, 2] => -1.0,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_of_all_symbols_sum_to_one() {
        for degrees in (0..27).map(|place| [place / 9, place / 3 % 3, place % 3]) {
            let [left, right, product] = degrees;
            let sizes = degrees.map(|degree| 2 * degree + 1);
            let all = (0..sizes[0] * sizes[1] * sizes[2])
                .map(|place| [place / (sizes[1] * sizes[2]), place / sizes[2] % sizes[1], place % sizes[2]]);
            let sum: f64 = all.map(|components| wigner(degrees, components).powi(2)).sum();
            let exists = (left.abs_diff(right)..=left + right).contains(&product);
            assert!((sum - f64::from(u8::from(exists))).abs() < 1e-12, "{degrees:?}: {sum}");
        }
    }

    #[test]
    fn the_products_of_a_layer_are_counted() {
        let irreps = |text: &str| text.parse::<Irreps>().unwrap();
        let coupling = Coupling::new(&irreps("32x0e + 16x1o + 8x2e"), &irreps("56x0e + 16x1o + 8x2e"));
        assert_eq!(coupling.order.len(), 4800, "weights of an edge");
        assert_eq!(coupling.blocks.iter().map(Block::products).sum::<usize>(), 592);
        let mut rows = coupling.order.clone();
        rows.sort_unstable();
        assert!(rows.into_iter().eq(0..4800), "each row of e3nn's once");
        let none = Coupling::new(&irreps("2x0e"), &irreps("2x0e + 1x0o + 1x1e"));
        assert_eq!(none.blocks.len(), 1, "scalars alone give no pseudoscalars");
    }
}
