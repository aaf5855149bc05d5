//! Periodic cells, and the images of atoms in them.
//!
//! An image of an atom is the atom moved by `n₁ a₁ + n₂ a₂ + n₃ a₃`, with integers `nₖ` and the vectors `aₖ` of the periodic axes.

use super::search::NoPairs;

pub(crate) type Vector = [f64; 3];
/// Cells moved along each axis; 0 along an axis that is not periodic.
pub(crate) type Count = [i64; 3];

/// Vectors whose volume is a smaller share of the product of their lengths lie in a plane or on a line.
const SMALLEST_VOLUME: f64 = 1e-6;
/// Images of one frame: beyond that, its cell is far smaller than the cutoff.
const MOST_IMAGES: f64 = 4e6;
/// Share of the cutoff by which candidates may miss it because of rounding; exact lengths decide.
pub(super) const ROUNDING: f64 = 1e-6;
/// Cells from the origin beyond which an atom's position within a cell has less than half of the digits of a double.
const MOST_CELLS: f64 = 1e8;

/// The periodic axes of a graph: one, two or three of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Cell {
    /// The vector of each axis, and zeros after the last periodic one.
    vectors: [Vector; 3],
    /// The vectors of the planes' normals whose products with a position are its coordinates, in cells.
    reciprocals: [Vector; 3],
    axes: usize,
}

/// An atom moved by whole cells.
#[derive(Debug, Clone, Copy)]
pub(super) struct Image {
    pub node: u32,
    pub count: Count,
    pub position: Vector,
    /// True for the one image of each atom whose neighbours are looked for.
    pub is_original: bool,
}

impl Cell {
    /// A cell that is periodic along these vectors; `None` if there are none or more than three, or they lie in a plane or on a line.
    pub fn new(vectors: &[Vector]) -> Option<Self> {
        let reciprocals = match *vectors {
            [a] => {
                let square = dot(a, a);
                (square > 0.0 && square.is_finite()).then_some(())?;
                [scaled(a, 1.0 / square), [0.0; 3], [0.0; 3]]
            }
            [a, b] => {
                let [one, other, _] = reciprocals([a, b, cross(a, b)])?;
                [one, other, [0.0; 3]]
            }
            [a, b, c] => reciprocals([a, b, c])?,
            _ => return None,
        };
        let mut all = [[0.0; 3]; 3];
        all[..vectors.len()].copy_from_slice(vectors);
        Some(Self { vectors: all, reciprocals, axes: vectors.len() })
    }

    /// The cell that a store holds as nine numbers; `Ok(None)` for a graph without one, whose numbers are zeros.
    ///
    /// # Errors
    /// Numbers that make no cell.
    pub fn stored(numbers: &[f64]) -> Result<Option<Self>, String> {
        let (vectors, _) = numbers.as_chunks::<3>();
        let axes = vectors.iter().take_while(|&&vector| vector != [0.0; 3]).count();
        match axes {
            0 => Ok(None),
            _ => Self::new(&vectors[..axes]).map(Some).ok_or_else(|| format!("its cell {numbers:?} has no volume")),
        }
    }

    /// The nine numbers of the cell in a store: the vectors of the periodic axes, then zeros.
    pub fn numbers(&self) -> [f64; 9] {
        let [a, b, c] = self.vectors;
        [a[0], a[1], a[2], b[0], b[1], b[2], c[0], c[1], c[2]]
    }

    /// The vector of each axis.
    pub fn vectors(&self) -> &[Vector] {
        &self.vectors[..self.axes]
    }

    /// The displacement of an image.
    pub fn shift(&self, count: Count) -> Vector {
        self.vectors().iter().zip(count).fold([0.0; 3], |sum, (&vector, count)| add(sum, scaled(vector, count as f64)))
    }

    /// The position moved by whole cells into the cell at the origin.
    pub fn wrapped(&self, position: Vector) -> Vector {
        let home = self.reciprocals.map(|reciprocal| -(dot(position, reciprocal).floor() as i64));
        add(position, self.shift(home))
    }

    /// Appends the atoms, moved into one cell, and their images at most the cutoff away from that cell.
    ///
    /// # Errors
    /// Too many images to look at, or an atom too far away.
    pub(super) fn append_images(
        &self,
        positions: &[Vector],
        cutoff: f64,
        images: &mut Vec<Image>,
    ) -> Result<(), NoPairs> {
        // Two planes of a cell are 1/|b| apart, so the cutoff covers c·|b| cells.
        let reach = self
            .reciprocals
            .map(|reciprocal| cutoff * (1.0 + ROUNDING) * dot(reciprocal, reciprocal).sqrt() + ROUNDING);
        let of_atom: f64 = reach[..self.axes].iter().map(|reach| 1.0 + 2.0 * reach).product();
        let expected = of_atom * positions.len() as f64;
        if expected.is_nan() || expected > MOST_IMAGES {
            return Err(NoPairs::TooManyImages);
        }
        for (node, &position) in (0..).zip(positions) {
            let coordinates = self.reciprocals.map(|reciprocal| dot(position, reciprocal));
            if !coordinates.iter().all(|coordinate| coordinate.abs() < MOST_CELLS) {
                return Err(NoPairs::FarAtom);
            }
            let home = coordinates.map(|coordinate| -(coordinate.floor() as i64));
            let range = |axis: usize| match axis < self.axes {
                true => {
                    let lowest = (-reach[axis] - coordinates[axis]).ceil() as i64;
                    lowest..=(1.0 + reach[axis] - coordinates[axis]).floor() as i64
                }
                false => 0..=0,
            };
            for x in range(0) {
                for y in range(1) {
                    for z in range(2) {
                        let count = [x, y, z];
                        let position = add(position, self.shift(count));
                        images.push(Image { node, count, position, is_original: count == home });
                    }
                }
            }
        }
        Ok(())
    }
}

/// The reciprocal vectors of three; `None` if these lie in a plane.
fn reciprocals([a, b, c]: [Vector; 3]) -> Option<[Vector; 3]> {
    let volume = dot(a, cross(b, c));
    let largest = [a, b, c].iter().map(|&vector| dot(vector, vector).sqrt()).product::<f64>();
    let is_flat = volume.abs() <= SMALLEST_VOLUME * largest;
    (!is_flat && volume.is_finite())
        .then(|| [cross(b, c), cross(c, a), cross(a, b)].map(|vector| scaled(vector, 1.0 / volume)))
}

pub(super) fn add(one: Vector, other: Vector) -> Vector {
    [one[0] + other[0], one[1] + other[1], one[2] + other[2]]
}

pub(super) fn scaled(vector: Vector, factor: f64) -> Vector {
    vector.map(|value| value * factor)
}

pub(super) fn dot(one: Vector, other: Vector) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

fn cross(a: Vector, b: Vector) -> Vector {
    [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flat_cells_are_refused() {
        assert!(Cell::new(&[[1.0, 0.0, 0.0], [2.0, 0.0, 0.0]]).is_none());
        assert!(Cell::new(&[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0]]).is_none());
        assert!(Cell::new(&[[0.0; 3]]).is_none());
        assert!(Cell::new(&[]).is_none());
    }

    #[test]
    fn a_stored_cell_is_the_one_that_was_written() {
        for vectors in [
            &[[1.0, 0.5, 0.0]][..],
            &[[3.0, 0.0, 0.0], [0.5, 0.0, 2.0]],
            &[[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 1.0, 3.0]],
        ] {
            let cell = Cell::new(vectors).unwrap();
            assert_eq!(Cell::stored(&cell.numbers()), Ok(Some(cell)));
        }
        assert_eq!(Cell::stored(&[0.0; 9]), Ok(None));
        assert_eq!(Cell::stored(&[]), Ok(None));
        let flat = Cell::stored(&[1.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert!(flat.is_err_and(|detail| detail.ends_with("has no volume")));
    }
}
