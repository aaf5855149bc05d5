//! Periodic cells, and the edges between atoms and the images of others.
//!
//! An image of an atom is the atom moved by `n₁ a₁ + n₂ a₂ + n₃ a₃`, with integers `nₖ` and the vectors `aₖ` of the periodic axes. A store has
//! at most one edge from a node to another, so of several images within the cutoff the nearest one makes the edge.

use super::radius::Neighbour;

type Vector = [f64; 3];

/// Vectors whose volume is a smaller share of the product of their lengths lie in a plane or on a line.
const SMALLEST_VOLUME: f64 = 1e-6;
/// Images of one frame: beyond that, its cell is far smaller than the cutoff.
const MOST_IMAGES: f64 = 4e6;
/// Share of the cutoff by which candidates may miss it because of rounding; exact lengths decide.
const ROUNDING: f64 = 1e-6;

/// The periodic axes of a frame.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cell {
    axes: Vec<Axis>,
}

/// A periodic axis.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Axis {
    vector: Vector,
    /// The vector of the plane's normal whose product with a position is the coordinate along this axis, in cells.
    reciprocal: Vector,
}

/// Edges between atoms and the nearest images.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct PeriodicNeighbours {
    /// By target, then by source.
    pub near: Vec<Neighbour>,
    /// Further images within the cutoff, in both directions.
    pub further_images: u64,
    /// Images of the atom itself within the cutoff.
    pub own_images: u64,
}

/// Reason why there are no edges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoEdges {
    /// The cell has more images within the cutoff than can be counted.
    TooManyImages,
    /// More edges than the most.
    TooManyEdges,
    /// An atom that is so many cells away that its position within one is lost.
    FarAtom,
}

/// Cells from the origin beyond which an atom's position within a cell has less than half of the digits of a double.
const MOST_CELLS: f64 = 1e8;

impl Cell {
    /// A cell that is periodic along these vectors; `None` if they lie in a plane or on a line. Without vectors nothing is periodic.
    pub fn new(vectors: &[Vector]) -> Option<Self> {
        let axes = |reciprocals: &[Vector]| {
            let axes = vectors.iter().zip(reciprocals).map(|(&vector, &reciprocal)| Axis { vector, reciprocal });
            Some(Self { axes: axes.collect() })
        };
        match *vectors {
            [] => axes(&[]),
            [a] => {
                let square = dot(a, a);
                (square > 0.0).then_some(())?;
                axes(&[scaled(a, 1.0 / square)])
            }
            [a, b] => {
                let normal = cross(a, b);
                axes(&reciprocals([a, b, normal])?[..2])
            }
            [a, b, c] => axes(&reciprocals([a, b, c])?),
            _ => None,
        }
    }

    /// The vector of each axis.
    pub fn vectors(&self) -> impl Iterator<Item = Vector> {
        self.axes.iter().map(|axis| axis.vector)
    }

    /// Position along each axis, in cells.
    fn coordinates(&self, position: Vector) -> Vec<f64> {
        self.axes.iter().map(|axis| dot(position, axis.reciprocal)).collect()
    }

    /// The displacement of an image.
    fn shift(&self, image: &[i64]) -> Vector {
        self.axes.iter().zip(image).fold([0.0; 3], |sum, (axis, &count)| add(sum, scaled(axis.vector, count as f64)))
    }

    /// All ordered pairs of an atom and the nearest image of another one at most `cutoff` apart.
    ///
    /// # Errors
    /// More edges than `most`, or too many images to look at.
    pub fn neighbours(&self, positions: &[Vector], cutoff: f64, most: usize) -> Result<PeriodicNeighbours, NoEdges> {
        let images = self.images(positions, cutoff)?;
        let axis = widest_axis(images.iter().map(|image| image.position));
        let mut order: Vec<u32> = (0..).take(images.len()).collect();
        let along = |image: u32| images[image as usize].position[axis];
        order.sort_unstable_by(|&one, &other| along(one).total_cmp(&along(other)));
        let reach = cutoff * (1.0 + ROUNDING);
        let mut pairs: Vec<Neighbour> = Vec::new();
        let mut found = PeriodicNeighbours::default();
        let mut first = 0;
        for &target in &order {
            let atom = &images[target as usize];
            while along(order[first]) < atom.position[axis] - reach {
                first += 1;
            }
            if !atom.is_original {
                continue;
            }
            let begin = pairs.len();
            let within = order[first..].iter().take_while(|&&source| along(source) <= atom.position[axis] + reach);
            for &source in within.filter(|&&source| source != target) {
                let image = &images[source as usize];
                let squared = self.squared_distance(positions, atom, image);
                if squared <= cutoff * cutoff {
                    match atom.node == image.node {
                        true => found.own_images += 1,
                        false => {
                            pairs.push(Neighbour { target: atom.node, source: image.node, length: squared.sqrt() })
                        }
                    }
                }
            }
            // The nearest image of each source.
            pairs[begin..]
                .sort_unstable_by(|one, other| one.source.cmp(&other.source).then(one.length.total_cmp(&other.length)));
            let before = pairs.len();
            let mut last = None;
            let mut kept = begin;
            for at in begin..before {
                if last != Some(pairs[at].source) {
                    last = Some(pairs[at].source);
                    pairs[kept] = pairs[at];
                    kept += 1;
                }
            }
            pairs.truncate(kept);
            found.further_images += (before - kept) as u64;
            if pairs.len() > most {
                return Err(NoEdges::TooManyEdges);
            }
        }
        pairs.sort_unstable_by_key(|pair| (pair.target, pair.source));
        found.near = pairs;
        Ok(found)
    }

    /// The atoms, moved into one cell, and their images at most the cutoff away from that cell.
    fn images(&self, positions: &[Vector], cutoff: f64) -> Result<Vec<Image>, NoEdges> {
        // Two planes of a cell are 1/|b| apart, so the cutoff covers c·|b| cells.
        let reach: Vec<f64> = self
            .axes
            .iter()
            .map(|axis| cutoff * (1.0 + ROUNDING) * dot(axis.reciprocal, axis.reciprocal).sqrt() + ROUNDING)
            .collect();
        let expected = reach.iter().map(|reach| 1.0 + 2.0 * reach).product::<f64>() * positions.len() as f64;
        if expected.is_nan() || expected > MOST_IMAGES {
            return Err(NoEdges::TooManyImages);
        }
        let mut images = Vec::new();
        for (node, &position) in (0..).zip(positions) {
            let coordinates = self.coordinates(position);
            if !coordinates.iter().all(|coordinate| coordinate.abs() < MOST_CELLS) {
                return Err(NoEdges::FarAtom);
            }
            let home: Vec<i64> = coordinates.iter().map(|coordinate| -(coordinate.floor() as i64)).collect();
            let mut counts: Vec<Vec<i64>> = vec![Vec::new()];
            for (axis, &coordinate) in coordinates.iter().enumerate() {
                let lowest = (-reach[axis] - coordinate).ceil() as i64;
                let highest = (1.0 + reach[axis] - coordinate).floor() as i64;
                let further = |count: &Vec<i64>| {
                    (lowest..=highest).map(|last| [&count[..], &[last]].concat()).collect::<Vec<_>>()
                };
                counts = counts.iter().flat_map(further).collect();
            }
            images.extend(counts.into_iter().map(|count| Image {
                node,
                position: add(position, self.shift(&count)),
                is_original: count == home,
                count,
            }));
        }
        Ok(images)
    }

    /// Squared distance of two images. The same for both directions, bit by bit: it is computed from the difference of the original
    /// positions and the difference of the images' numbers, and rounding does not depend on signs.
    fn squared_distance(&self, positions: &[Vector], one: &Image, other: &Image) -> f64 {
        let count: Vec<i64> = other.count.iter().zip(&one.count).map(|(other, one)| other - one).collect();
        let apart = add(positions[other.node as usize], scaled(positions[one.node as usize], -1.0));
        let apart = add(apart, self.shift(&count));
        dot(apart, apart)
    }
}

/// An atom moved by whole cells.
struct Image {
    node: u32,
    /// Cells moved along each axis.
    count: Vec<i64>,
    position: Vector,
    /// True for the one image of each atom whose edges are looked for.
    is_original: bool,
}

/// The reciprocal vectors of three; `None` if these lie in a plane.
fn reciprocals([a, b, c]: [Vector; 3]) -> Option<[Vector; 3]> {
    let volume = dot(a, cross(b, c));
    let largest = [a, b, c].iter().map(|&vector| dot(vector, vector).sqrt()).product::<f64>();
    let is_flat = volume.abs() <= SMALLEST_VOLUME * largest;
    (!is_flat && volume.is_finite())
        .then(|| [cross(b, c), cross(c, a), cross(a, b)].map(|vector| scaled(vector, 1.0 / volume)))
}

/// The axis with the largest extent.
fn widest_axis(positions: impl Iterator<Item = Vector> + Clone) -> usize {
    let extent = |axis: usize| {
        let values = || positions.clone().map(move |position| position[axis]);
        values().fold(f64::NEG_INFINITY, f64::max) - values().fold(f64::INFINITY, f64::min)
    };
    (0..3).max_by(|&one, &other| extent(one).total_cmp(&extent(other))).unwrap_or(0)
}

fn add(one: Vector, other: Vector) -> Vector {
    [one[0] + other[0], one[1] + other[1], one[2] + other[2]]
}

fn scaled(vector: Vector, factor: f64) -> Vector {
    vector.map(|value| value * factor)
}

fn dot(one: Vector, other: Vector) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

fn cross(a: Vector, b: Vector) -> Vector {
    [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use proptest::prelude::*;

    /// The definition: all images of all atoms up to `most` cells away are compared.
    fn all_images(vectors: &[Vector], positions: &[Vector], cutoff: f64, most: i64) -> PeriodicNeighbours {
        let range = |axis: usize| if axis < vectors.len() { -most..=most } else { 0..=0 };
        let mut nearest: BTreeMap<(u32, u32), f64> = BTreeMap::new();
        let mut found = PeriodicNeighbours::default();
        for (target, &one) in (0..).zip(positions) {
            for (source, &other) in (0..).zip(positions) {
                for x in range(0) {
                    for y in range(1) {
                        for z in range(2) {
                            let mut apart = [0, 1, 2].map(|axis| other[axis] - one[axis]);
                            let mut shift = [0.0; 3];
                            for (vector, count) in vectors.iter().zip([x, y, z]) {
                                shift = [0, 1, 2].map(|axis| shift[axis] + vector[axis] * count as f64);
                            }
                            apart = [0, 1, 2].map(|axis| apart[axis] + shift[axis]);
                            let squared = apart.iter().map(|value| value * value).sum::<f64>();
                            if squared > cutoff * cutoff || (source == target && [x, y, z] == [0, 0, 0]) {
                                continue;
                            }
                            if source == target {
                                found.own_images += 1;
                                continue;
                            }
                            let length = nearest.entry((target, source)).or_insert(f64::INFINITY);
                            found.further_images += u64::from(length.is_finite());
                            *length = length.min(squared.sqrt());
                        }
                    }
                }
            }
        }
        found.near =
            nearest.into_iter().map(|((target, source), length)| Neighbour { target, source, length }).collect();
        found
    }

    proptest! {
        // The definition takes a while.
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn neighbours_are_those_of_all_images(
            // Skewed cells, periodic along one to three axes; atoms outside of them, too.
            skew in prop::array::uniform3(-0.8f64..0.8),
            lengths in prop::array::uniform3(1.5f64..5.0),
            axes in 1usize..=3,
            grid in prop::collection::vec((-2i8..3, -2i8..3, -1i8..2), 0..4),
            scattered in prop::collection::vec(prop::array::uniform3(-2.5f64..2.5), 0..5),
            cutoff in prop_oneof![Just(1.0), Just(2.0), 0.1f64..4.0],
        ) {
            let vectors = [
                [lengths[0], 0.0, 0.0],
                [skew[0] * lengths[1], lengths[1], 0.0],
                [skew[1] * lengths[2], skew[2] * lengths[2], lengths[2]],
            ];
            let vectors = &vectors[..axes];
            let mut positions: Vec<Vector> = grid.into_iter().map(|(x, y, z)| [x, y, z].map(f64::from)).collect();
            positions.extend(scattered);
            let found = Cell::new(vectors).unwrap().neighbours(&positions, cutoff, usize::MAX);
            let expected = all_images(vectors, &positions, cutoff, 14);
            prop_assert_eq!(found, Ok(expected));
        }
    }

    proptest! {
        /// Moving atoms by whole cells changes nothing: all numbers here are eighths, so that nothing is rounded.
        #[test]
        fn atoms_may_be_in_any_cell(
            atoms in prop::collection::vec((prop::array::uniform3(0i16..40), prop::array::uniform3(-9i16..10)), 0..12),
            cutoff in 0.1f64..6.0,
        ) {
            let vectors = [[3.0, 0.125, 0.0], [-1.0, 2.5, 0.25], [0.375, 0.25, 4.0]];
            let cell = Cell::new(&vectors).unwrap();
            let home: Vec<Vector> = atoms.iter().map(|(place, _)| place.map(|eighths| f64::from(eighths) / 8.0)).collect();
            let moved: Vec<Vector> = home.iter().zip(&atoms).map(|(&place, (_, cells))| {
                vectors.iter().zip(cells).fold(place, |place, (&vector, &count)| add(place, scaled(vector, count.into())))
            }).collect();
            prop_assert_eq!(cell.neighbours(&home, cutoff, usize::MAX), cell.neighbours(&moved, cutoff, usize::MAX));
        }

        /// An edge has its reverse of the same length, bit by bit.
        #[test]
        fn edges_are_symmetric(
            positions in prop::collection::vec(prop::array::uniform3(-9.0f64..9.0), 0..12),
            cutoff in 0.1f64..4.0,
        ) {
            let cell = Cell::new(&[[3.0, 0.1, 0.0], [-1.0, 2.5, 0.2], [0.3, 0.2, 4.0]]).unwrap();
            let near = cell.neighbours(&positions, cutoff, usize::MAX).unwrap().near;
            let lengths: BTreeMap<(u32, u32), u64> =
                near.iter().map(|pair| ((pair.target, pair.source), pair.length.to_bits())).collect();
            prop_assert!(lengths.iter().all(|(&(target, source), length)| lengths.get(&(source, target)) == Some(length)));
        }
    }

    #[test]
    fn a_cubic_lattice_has_its_known_neighbours() {
        // Two atoms of caesium chloride: each corner has eight centres at a·√3/2, and six own images at a.
        let cell = Cell::new(&[[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]]).unwrap();
        let positions = [[0.0; 3], [1.0; 3]];
        let found = cell.neighbours(&positions, 1.8, 10).unwrap();
        assert_eq!((found.near.len(), found.further_images, found.own_images), (2, 14, 0));
        assert!(found.near.iter().all(|pair| (pair.length - 3f64.sqrt()).abs() < 1e-12));
        let found = cell.neighbours(&positions, 2.0, 10).unwrap();
        assert_eq!((found.near.len(), found.further_images, found.own_images), (2, 14, 12));
        assert_eq!(cell.neighbours(&positions, 2.0, 1), Err(NoEdges::TooManyEdges));
        assert_eq!(cell.neighbours(&positions, 1e4, 10), Err(NoEdges::TooManyImages));
        assert_eq!(cell.neighbours(&[[1e300, 0.0, 0.0]], 1.0, 10), Err(NoEdges::FarAtom));
    }

    #[test]
    fn flat_cells_are_refused() {
        assert!(Cell::new(&[[1.0, 0.0, 0.0], [2.0, 0.0, 0.0]]).is_none());
        assert!(Cell::new(&[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0]]).is_none());
        assert!(Cell::new(&[[0.0; 3]]).is_none());
        assert!(Cell::new(&[]).is_some());
    }
}
