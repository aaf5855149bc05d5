//! The search for pairs of near nodes, with periodic cells or without.
//!
//! Points are sorted into a grid of cubes at least as wide as the cutoff, so that the neighbours of a point are in its cube and the 26
//! around it. In a periodic cell the points are the images of the nodes within the cutoff of the cell.

use super::cell::{Cell, Count, Image, ROUNDING, Vector, add, dot, scaled};

/// An ordered pair of near nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Pair {
    pub target: u32,
    pub source: u32,
    /// Added to the source's position for the image that is meant.
    pub shift: Vector,
    /// Squared distance: the same for both directions of a pair, bit by bit.
    pub squared: f64,
}

/// Reason why there are no pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoPairs {
    /// The cell has more images within the cutoff than can be counted.
    TooManyImages,
    /// More pairs than the most.
    TooMany,
    /// An atom that is so many cells away that its position within one is lost.
    FarAtom,
}

impl NoPairs {
    /// The problem of a graph, and the remedy.
    pub fn text(self, cutoff: f64) -> (String, &'static str) {
        match self {
            Self::TooManyImages => (
                format!("millions of periodic images within cutoff {cutoff}"),
                "a smaller cutoff, or a larger cell: are both in the same unit of length?",
            ),
            Self::TooMany => (
                format!("more pairs of nodes within cutoff {cutoff} than fit into the memory limit"),
                "a smaller cutoff: is it in the unit of the positions?",
            ),
            Self::FarAtom => {
                ("an atom more than a hundred million cells from the origin".to_owned(), "positions near the cell")
            }
        }
    }
}

/// Searches graph by graph; reuses its buffers.
#[derive(Debug, Default)]
pub(crate) struct PairSearch {
    images: Vec<Image>,
    /// The image of each node whose neighbours are looked for.
    originals: Vec<u32>,
    grid: Grid,
    /// Source, cells moved and squared distance of each neighbour of a node.
    found: Vec<(u32, Count, f64)>,
}

impl PairSearch {
    /// Hands over all ordered pairs of nodes, and of nodes and images, at most `cutoff` apart: by target, then by source, then by image.
    ///
    /// # Errors
    /// Too many images to look at, an atom too far away, or an error of `each`.
    pub fn each_pair(
        &mut self,
        positions: &[Vector],
        cell: Option<&Cell>,
        cutoff: f64,
        mut each: impl FnMut(Pair) -> Result<(), NoPairs>,
    ) -> Result<(), NoPairs> {
        let Self { images, originals, grid, found } = self;
        images.clear();
        match cell {
            Some(cell) => cell.append_images(positions, cutoff, images)?,
            None => images.extend((0..).zip(positions).map(|(node, &position)| Image {
                node,
                count: [0; 3],
                position,
                is_original: true,
            })),
        }
        originals.clear();
        originals.extend((0..).zip(images.iter()).filter(|(_, image)| image.is_original).map(|(at, _)| at));
        grid.sort(images, cutoff * (1.0 + ROUNDING));
        for (target, &original) in (0..).zip(originals.iter()) {
            let atom = images[original as usize];
            found.clear();
            grid.each_near(atom.position, |at| {
                let image = &images[at as usize];
                // From the difference of the original positions and that of the images' numbers: rounding does not depend on signs.
                let apart = add(positions[image.node as usize], scaled(positions[atom.node as usize], -1.0));
                let count = [0, 1, 2].map(|axis| image.count[axis] - atom.count[axis]);
                let apart = cell.map_or(apart, |cell| add(apart, cell.shift(count)));
                let squared = dot(apart, apart);
                if squared <= cutoff * cutoff && at != original {
                    found.push((image.node, count, squared));
                }
            });
            found.sort_unstable_by_key(|&(source, count, _)| (source, count));
            for &(source, count, squared) in found.iter() {
                let shift = cell.map_or([0.0; 3], |cell| cell.shift(count));
                each(Pair { target, source, shift, squared })?;
            }
        }
        Ok(())
    }
}

/// Points by the cube that they are in.
#[derive(Debug, Default)]
struct Grid {
    lowest: Vector,
    /// Width of a cube, at least the radius of a search.
    width: f64,
    /// Number of cubes along each axis.
    cubes: [usize; 3],
    /// `[number of cubes + 1]`: points of cube `c` are `points[starts[c]..starts[c + 1]]`.
    starts: Vec<u32>,
    points: Vec<u32>,
}

/// Most cubes along an axis; 128 cubed are as many as a graph has points at most, within its images.
const MOST_CUBES: f64 = 128.0;

impl Grid {
    /// Sorts the points into cubes of at least this width.
    fn sort(&mut self, images: &[Image], width: f64) {
        let bound = |start: f64, choose: fn(f64, f64) -> f64| {
            images
                .iter()
                .fold([start; 3], |bound, image| [0, 1, 2].map(|axis| choose(bound[axis], image.position[axis])))
        };
        let (lowest, highest) = (bound(f64::INFINITY, f64::min), bound(f64::NEG_INFINITY, f64::max));
        let extent = [0, 1, 2].map(|axis| highest[axis] - lowest[axis]).into_iter().fold(0.0, f64::max);
        // Not many more cubes than points: about their cube root along each axis.
        let most = (images.len() as f64).cbrt().ceil().clamp(1.0, MOST_CUBES);
        self.lowest = lowest;
        self.width = width.max(extent / most);
        self.cubes = [0, 1, 2].map(|axis| ((highest[axis] - lowest[axis]) / self.width).max(0.0) as usize + 1);
        let cubes: usize = self.cubes.iter().product();
        self.starts.clear();
        self.starts.resize(cubes + 1, 0);
        for image in images {
            let cube = self.cube_of(image.position);
            self.starts[cube + 1] += 1;
        }
        for cube in 0..cubes {
            self.starts[cube + 1] += self.starts[cube];
        }
        self.points.clear();
        self.points.resize(images.len(), 0);
        // Filled from the back, which moves each end to its start.
        for (at, image) in images.iter().enumerate().rev() {
            let cube = self.cube_of(image.position);
            let place = &mut self.starts[cube + 1];
            *place -= 1;
            // There are at most some million images.
            self.points[*place as usize] = at as u32;
        }
        // The ends have become starts; those of the next cube are the ends.
        self.starts.remove(0);
        self.starts.push(images.len() as u32);
    }

    /// The cube of a point along an axis.
    fn along(&self, position: Vector, axis: usize) -> usize {
        (((position[axis] - self.lowest[axis]) / self.width) as usize).min(self.cubes[axis] - 1)
    }

    fn cube_of(&self, position: Vector) -> usize {
        let [x, y, z] = [0, 1, 2].map(|axis| self.along(position, axis));
        (x * self.cubes[1] + y) * self.cubes[2] + z
    }

    /// Hands over the points in the cube of a position and those around it.
    fn each_near(&self, position: Vector, mut each: impl FnMut(u32)) {
        let range = |axis: usize| {
            let cube = self.along(position, axis);
            cube.saturating_sub(1)..(cube + 2).min(self.cubes[axis])
        };
        let (within, last) = (range(2), self.cubes[2]);
        for x in range(0) {
            for y in range(1) {
                let row = (x * self.cubes[1] + y) * last;
                let points = self.starts[row + within.start] as usize..self.starts[row + within.end] as usize;
                self.points[points].iter().for_each(|&point| each(point));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Target, source and shift of each pair, in the order of the search; and its squared distance.
    type Found = Vec<((u32, u32, Vector), f64)>;

    fn found(positions: &[Vector], cell: Option<&Cell>, cutoff: f64) -> Result<Found, NoPairs> {
        let mut pairs = Vec::new();
        let mut search = PairSearch::default();
        // Buffers of an earlier search must not matter.
        let _ = search.each_pair(&[[0.5; 3], [0.0; 3]], cell, 1.0, |_| Ok(()));
        search.each_pair(positions, cell, cutoff, |pair| {
            pairs.push(((pair.target, pair.source, pair.shift), pair.squared));
            Ok(())
        })?;
        Ok(pairs)
    }

    /// The definition: all images of all atoms up to `most` cells away are compared.
    fn all_images(positions: &[Vector], vectors: &[Vector], cutoff: f64, most: i64) -> Found {
        let range = |axis: usize| if axis < vectors.len() { -most..=most } else { 0..=0 };
        let mut pairs = Vec::new();
        for (target, one) in (0..).zip(positions) {
            for (source, other) in (0..).zip(positions) {
                for x in range(0) {
                    for y in range(1) {
                        for z in range(2) {
                            let mut shift = [0.0; 3];
                            for (vector, count) in vectors.iter().zip([x, y, z]) {
                                shift = [0, 1, 2].map(|axis| shift[axis] + vector[axis] * count as f64);
                            }
                            let apart = [0, 1, 2].map(|axis| other[axis] - one[axis]);
                            let apart = [0, 1, 2].map(|axis| apart[axis] + shift[axis]);
                            let squared = apart.iter().map(|value| value * value).sum::<f64>();
                            if squared <= cutoff * cutoff && (source != target || [x, y, z] != [0; 3]) {
                                pairs.push(((target, source, shift), squared));
                            }
                        }
                    }
                }
            }
        }
        pairs
    }

    prop_compose! {
        /// A coarse grid, with many nodes at the same place and many distances that equal the cutoff, and nodes anywhere.
        fn places(most: usize)(
            grid in prop::collection::vec((-2i8..3, -2i8..3, -1i8..2), 0..most),
            scattered in prop::collection::vec(prop::array::uniform3(-2.5f64..2.5), 0..most),
        ) -> Vec<Vector> {
            grid.into_iter().map(|(x, y, z)| [x, y, z].map(f64::from)).chain(scattered).collect()
        }
    }

    proptest! {
        #[test]
        fn pairs_are_those_of_all_nodes(
            positions in places(60),
            stretch in prop::array::uniform3(prop_oneof![Just(1.0), Just(0.0), Just(40.0)]),
            cutoff in prop_oneof![Just(1.0), Just(2.0), Just(5.0), 0.01f64..8.0],
        ) {
            // Nodes on a line or in a plane, too.
            let positions: Vec<Vector> =
                positions.into_iter().map(|place| [0, 1, 2].map(|axis| place[axis] * stretch[axis])).collect();
            prop_assert_eq!(found(&positions, None, cutoff), Ok(all_images(&positions, &[], cutoff, 0)));
        }
    }

    proptest! {
        // The definition takes a while.
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn pairs_are_those_of_all_images(
            // Skewed cells, periodic along one to three axes; atoms outside of them, too.
            skew in prop::array::uniform3(-0.8f64..0.8),
            lengths in prop::array::uniform3(1.5f64..5.0),
            axes in 1usize..=3,
            positions in places(5),
            cutoff in prop_oneof![Just(1.0), Just(2.0), 0.1f64..4.0],
        ) {
            let vectors = [
                [lengths[0], 0.0, 0.0],
                [skew[0] * lengths[1], lengths[1], 0.0],
                [skew[1] * lengths[2], skew[2] * lengths[2], lengths[2]],
            ];
            let vectors = &vectors[..axes];
            let expected = all_images(&positions, vectors, cutoff, 14);
            prop_assert_eq!(found(&positions, Cell::new(vectors).as_ref(), cutoff), Ok(expected));
        }

        /// Moving atoms by whole cells changes no distance: all numbers here are eighths, so that nothing is rounded.
        #[test]
        fn atoms_may_be_in_any_cell(
            atoms in prop::collection::vec((prop::array::uniform3(0i16..40), prop::array::uniform3(-9i16..10)), 0..12),
            cutoff in 0.1f64..6.0,
        ) {
            let vectors = [[3.0, 0.125, 0.0], [-1.0, 2.5, 0.25], [0.375, 0.25, 4.0]];
            let cell = Cell::new(&vectors).unwrap();
            let home: Vec<Vector> = atoms.iter().map(|(place, _)| place.map(|eighths| f64::from(eighths) / 8.0)).collect();
            let moved: Vec<Vector> =
                home.iter().zip(&atoms).map(|(&place, (_, cells))| add(place, cell.shift(cells.map(i64::from)))).collect();
            let sorted = |positions: &[Vector]| {
                let mut pairs = Vec::new();
                PairSearch::default().each_pair(positions, Some(&cell), cutoff, |pair| {
                    pairs.push((pair.target, pair.source, pair.squared.to_bits()));
                    Ok(())
                }).unwrap();
                pairs.sort_unstable();
                pairs
            };
            prop_assert_eq!(sorted(&home), sorted(&moved));
            prop_assert_eq!(sorted(&home), sorted(&moved.iter().map(|&place| cell.wrapped(place)).collect::<Vec<_>>()));
        }

        /// A pair has its reverse at the same distance, bit by bit, with the opposite shift.
        #[test]
        fn pairs_are_symmetric(
            positions in prop::collection::vec(prop::array::uniform3(-9.0f64..9.0), 0..12),
            cutoff in 0.1f64..4.0,
        ) {
            let cell = Cell::new(&[[3.0, 0.1, 0.0], [-1.0, 2.5, 0.2], [0.3, 0.2, 4.0]]).unwrap();
            let pairs = found(&positions, Some(&cell), cutoff).unwrap();
            for ((target, source, shift), squared) in &pairs {
                let reverse = ((*source, *target, shift.map(|value| -value)), *squared);
                prop_assert!(pairs.contains(&reverse), "{reverse:?}");
            }
        }
    }

    #[test]
    fn cells_far_smaller_than_the_cutoff_and_atoms_far_away_are_refused() {
        let cell = Cell::new(&[[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]]).unwrap();
        assert_eq!(found(&[[0.0; 3], [1.0; 3]], Some(&cell), 1e4), Err(NoPairs::TooManyImages));
        assert_eq!(found(&[[1e300, 0.0, 0.0]], Some(&cell), 1.0), Err(NoPairs::FarAtom));
    }
}
