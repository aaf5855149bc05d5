//! Selection of the graphs of an epoch: all attacks, and normals drawn by difficulty or by a baseline method. A dataset of other graphs
//! has no attacks, and all of its graphs count as normals.

use std::collections::HashMap;

use super::Schedule;
use kdgat_base::random::{self, Purpose};

/// Losses of graphs that a network knows by heart are nearly 0: those below this share of the highest are one bin.
const SMALLEST_OF_HARDEST: f64 = 1e-4;

/// Method that chooses normal graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Random among those at or above the scheduled percentile of difficulty, topped up with the next hardest.
    Difficulty,
    /// The hardest, in every epoch.
    Hardest,
    /// The easiest, in every epoch.
    Easiest,
    /// Random among all.
    Random,
    /// All of them, regardless of the schedule.
    All,
}

/// Draws the graphs of each epoch, as a pure function of the epoch.
#[derive(Debug, Clone)]
pub struct Sampler {
    choice: Choice,
    schedule: Schedule,
    seed: u64,
    attacks: Vec<u64>,
    /// Hardest first; in the order given if they are not scored.
    normals: Vec<Normal>,
    scored: bool,
    /// True for a dataset of graphs without attacks: an epoch's size is a share of the graphs.
    is_share: bool,
    /// Classes of the graphs of such a dataset; empty if it has none.
    classes: HashMap<u64, u32>,
}

/// A graph that an epoch may leave out.
#[derive(Debug, Clone, Copy)]
struct Normal {
    /// Position in the store.
    graph: u64,
    difficulty: f32,
    /// Number by which graphs are ordered: the difficulty, or its quantile within the graph's class.
    rank: f32,
}

/// Graphs drawn for an epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct Selection {
    /// Positions of attacks and normals, ascending.
    pub graphs: Vec<u64>,
    /// Number of normals among them.
    pub normals: usize,
    /// Normals per attack, or share of the graphs.
    pub ratio: f64,
    /// Percentile they were drawn from; `None` unless drawn by difficulty.
    pub percentile: Option<f64>,
    /// Number of normals below that percentile, drawn because too few are above it.
    pub topped_up: usize,
    /// Mean difficulty of the normals, if scored.
    pub mean_difficulty: Option<f64>,
}

/// Histogram bin of normals by difficulty.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bin {
    /// Lowest difficulty of the bin.
    pub low: f64,
    /// Highest difficulty of the bin, where the next one begins.
    pub high: f64,
    /// Number of normal graphs in the bin.
    pub normals: u64,
    /// Number of them drawn for an epoch.
    pub chosen: u64,
}

impl Sampler {
    /// Creates a sampler of `normals` (positions in the store) beside all of `attacks`. `difficulty` gives the score of each of
    /// `normals`; without it, [`Choice::Difficulty`] and [`Choice::Hardest`] assume `normals` are sorted hardest first.
    pub fn new(
        choice: Choice,
        schedule: Schedule,
        seed: u64,
        attacks: &[u64],
        normals: &[u64],
        difficulty: Option<&[f32]>,
    ) -> Self {
        let mut sampler = Self {
            choice,
            schedule,
            seed,
            attacks: attacks.to_vec(),
            normals: normals.iter().map(|&graph| Normal { graph, difficulty: 0.0, rank: 0.0 }).collect(),
            scored: false,
            is_share: false,
            classes: HashMap::new(),
        };
        if let Some(difficulty) = difficulty {
            sampler.rescore(normals, difficulty);
        }
        sampler
    }

    /// Creates a sampler of a share of `graphs` (positions in the store), at least one; the schedule's ratios are shares. With `classes`,
    /// one for each graph, difficulty is compared within a class, so that each class has its share: the easiest graphs of all are often
    /// those of one class. Until they are scored, graphs are drawn at random.
    pub fn of_share(choice: Choice, schedule: Schedule, seed: u64, graphs: &[u64], classes: &[u32]) -> Self {
        let classes = graphs.iter().copied().zip(classes.iter().copied()).collect();
        Self { is_share: true, classes, ..Self::new(choice, schedule, seed, &[], graphs, None) }
    }

    /// True if an epoch has a share of the graphs; false if it has normals in a ratio to attacks.
    pub fn is_share(&self) -> bool {
        self.is_share
    }

    /// Replaces the normals and their scores.
    pub fn rescore(&mut self, normals: &[u64], difficulty: &[f32]) {
        let scored = normals.iter().zip(difficulty);
        self.normals = scored.map(|(&graph, &difficulty)| Normal { graph, difficulty, rank: difficulty }).collect();
        self.sort();
        if !self.classes.is_empty() {
            self.rank_within_classes();
            self.sort();
        }
        self.scored = true;
    }

    /// Sorts by rank, the highest first. Ties are in store order, so the order is unique. Other graphs may be stored class by class: there
    /// the seed decides.
    fn sort(&mut self) {
        let (seed, is_share) = (self.seed, self.is_share);
        let tie = |graph: u64| {
            let place = if is_share { random::bits(seed, Purpose::Curriculum, u64::MAX, graph) } else { 0 };
            (place, graph)
        };
        self.normals.sort_by(|left, right| {
            right.rank.total_cmp(&left.rank).then_with(|| tie(left.graph).cmp(&tie(right.graph)))
        });
    }

    /// Sets the ranks of sorted graphs to quantiles within their classes, (i + 1/2) / n for the i-th easiest of n.
    fn rank_within_classes(&mut self) {
        let mut sizes: HashMap<u32, u32> = HashMap::new();
        self.classes.values().for_each(|&class| *sizes.entry(class).or_default() += 1);
        let mut before = sizes.clone();
        for normal in &mut self.normals {
            let class = self.classes.get(&normal.graph).copied().unwrap_or_default();
            let (Some(left), Some(&size)) = (before.get_mut(&class), sizes.get(&class)) else { continue };
            *left = left.saturating_sub(1);
            normal.rank = (f64::from(*left) + 0.5) as f32 / size as f32;
        }
    }

    /// Number of graphs in an epoch.
    pub fn epoch_graphs(&self, epoch: u64) -> usize {
        self.attacks.len() + self.wanted(epoch)
    }

    /// Draws the graphs of an epoch.
    pub fn select(&self, epoch: u64) -> Selection {
        let wanted = self.wanted(epoch);
        let choice = if self.is_share && !self.scored { Choice::Random } else { self.choice };
        let percentile = (choice == Choice::Difficulty).then(|| self.schedule.at(epoch).percentile);
        let pool = match choice {
            Choice::Difficulty => self.at_or_above(self.schedule.at(epoch).percentile),
            Choice::Hardest | Choice::Easiest => wanted,
            Choice::Random | Choice::All => self.normals.len(),
        };
        // The hardest come first, so a pool that is too small grows by the next hardest.
        let mut drawn = match choice {
            Choice::Easiest => self.normals[self.normals.len() - wanted..].to_vec(),
            _ => self.normals[..pool.max(wanted)].to_vec(),
        };
        if wanted < drawn.len() {
            let key =
                |normal: &Normal| (random::bits(self.seed, Purpose::Curriculum, epoch, normal.graph), normal.graph);
            drawn.select_nth_unstable_by_key(wanted, key);
            drawn.truncate(wanted);
        }
        drawn.sort_unstable_by_key(|normal| normal.graph);
        let sum: f64 = drawn.iter().map(|normal| f64::from(normal.difficulty)).sum();
        let mut graphs: Vec<u64> =
            self.attacks.iter().copied().chain(drawn.iter().map(|normal| normal.graph)).collect();
        graphs.sort_unstable();
        Selection {
            graphs,
            normals: wanted,
            ratio: wanted as f64 / self.unit().max(1) as f64,
            percentile,
            topped_up: wanted.saturating_sub(pool),
            mean_difficulty: (self.scored && wanted > 0).then(|| sum / wanted as f64),
        }
    }

    /// Histogram of all normals, and of those in `selection`, by difficulty: `bins` bins of equal ratio between the lowest and the
    /// highest difficulty. Empty without scores.
    pub fn distribution(&self, selection: &Selection, bins: usize) -> Vec<Bin> {
        let difficulties = || self.normals.iter().map(|normal| f64::from(normal.difficulty));
        if !self.scored || bins == 0 || self.normals.is_empty() {
            return Vec::new();
        }
        let hardest = difficulties().fold(f64::NEG_INFINITY, f64::max);
        let smallest = if self.is_share { hardest * SMALLEST_OF_HARDEST } else { 0.0 };
        let low = difficulties().fold(f64::INFINITY, f64::min).max(smallest).max(f64::from(f32::MIN_POSITIVE));
        let step = (hardest.max(low) / low).ln() / bins as f64;
        let edge = |bin: usize| low * (step * bin as f64).exp();
        let mut found: Vec<Bin> =
            (0..bins).map(|bin| Bin { low: edge(bin), high: edge(bin + 1), normals: 0, chosen: 0 }).collect();
        for Normal { graph, difficulty, .. } in &self.normals {
            let place = (f64::from(*difficulty).max(low) / low).ln() / step.max(f64::MIN_POSITIVE);
            let bin = &mut found[(place as usize).min(bins - 1)];
            bin.normals += 1;
            bin.chosen += u64::from(selection.graphs.binary_search(graph).is_ok());
        }
        found
    }

    /// Number of normals in an epoch: as the ratio asks for, but at most all.
    fn wanted(&self, epoch: u64) -> usize {
        if self.choice == Choice::All {
            return self.normals.len();
        }
        let wanted = self.schedule.at(epoch).ratio * self.unit() as f64;
        (wanted.round() as usize).max(usize::from(self.is_share)).min(self.normals.len())
    }

    /// Number of graphs that the schedule's ratio refers to.
    fn unit(&self) -> usize {
        if self.is_share { self.normals.len() } else { self.attacks.len() }
    }

    /// Number of normals at or above the percentile of difficulty (interpolated linearly, as in NumPy).
    fn at_or_above(&self, percentile: f64) -> usize {
        let Some(last) = self.normals.len().checked_sub(1) else { return 0 };
        let rank = percentile / 100.0 * last as f64;
        let ascending = |rank: f64| f64::from(self.normals[last - (rank as usize).min(last)].rank);
        let (below, above) = (ascending(rank.floor()), ascending(rank.ceil()));
        let threshold = below + (rank - rank.floor()) * (above - below);
        self.normals.partition_point(|normal| f64::from(normal.rank) >= threshold)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const SCHEDULE: Schedule = Schedule { start_ratio: 1.0, end_ratio: 10.0, start_percentile: 50.0, max_epochs: 10 };

    /// Sampler with attacks 0.. and normals 1000.., whose difficulty rises with their position.
    fn sampler(choice: Choice, attacks: u64, normals: u64) -> Sampler {
        let attacks: Vec<u64> = (0..attacks).collect();
        let normals: Vec<u64> = (1000..1000 + normals).collect();
        let difficulty: Vec<f32> = normals.iter().map(|&graph| graph as f32 / 1000.0).collect();
        Sampler::new(choice, SCHEDULE, 7, &attacks, &normals, Some(&difficulty))
    }

    fn normals(selection: &Selection) -> Vec<u64> {
        selection.graphs.iter().copied().filter(|&graph| graph >= 1000).collect()
    }

    #[test]
    fn normals_come_from_above_the_percentile() {
        // 101 normals: percentile q is graph 1000 + q. At epoch 0, two attacks ask for 2 normals from 1050 on.
        let sampler = sampler(Choice::Difficulty, 2, 101);
        for epoch in 0..10 {
            let selection = sampler.select(epoch);
            let lowest = 1000 + (50.0 + 4.5 * epoch as f64).ceil() as u64;
            assert_eq!(selection.percentile, Some(50.0 + 4.5 * epoch as f64));
            if selection.topped_up == 0 {
                assert!(normals(&selection).iter().all(|&graph| graph >= lowest), "epoch {epoch}: {selection:?}");
            }
        }
        assert_ne!(sampler.select(0).graphs, sampler.select(1).graphs);
    }

    #[test]
    fn too_small_a_pool_is_topped_up_by_the_next_hardest() {
        // At epoch 5, 5.5 · 8 = 44 of 101 normals are wanted, and 28 are at or above percentile 72.5.
        let selection = sampler(Choice::Difficulty, 8, 101).select(5);
        assert_eq!((selection.normals, selection.topped_up), (44, 16));
        assert_eq!(normals(&selection), (1057..1101).collect::<Vec<_>>());
    }

    #[test]
    fn the_distribution_counts_all_and_the_chosen() {
        let sampler = sampler(Choice::Difficulty, 8, 101);
        let selection = sampler.select(5);
        let bins = sampler.distribution(&selection, 10);
        assert_eq!(bins.iter().map(|bin| bin.normals).sum::<u64>(), 101);
        assert_eq!(bins.iter().map(|bin| bin.chosen).sum::<u64>(), 44);
        assert!((bins[0].low - 1.0).abs() < 1e-6 && (bins[9].high - 1.1).abs() < 1e-6, "{bins:?}");
        assert_eq!(bins[0].chosen, 0, "the easiest are not chosen in epoch 5");
        assert_eq!(bins[9].chosen, bins[9].normals);
        let equal = Sampler::new(Choice::Random, SCHEDULE, 1, &[100], &[1, 2], Some(&[0.5; 2]));
        assert_eq!(equal.distribution(&equal.select(0), 4).iter().map(|bin| bin.normals).sum::<u64>(), 2);
    }

    #[test]
    fn the_other_choices_take_the_hardest_a_random_part_or_all() {
        let hardest = sampler(Choice::Hardest, 5, 100).select(0);
        assert_eq!(normals(&hardest), (1095..1100).collect::<Vec<_>>());
        let random = sampler(Choice::Random, 20, 200);
        let drawn: BTreeSet<u64> = (0..10).flat_map(|epoch| normals(&random.select(epoch))).collect();
        assert!(drawn.iter().any(|&graph| graph < 1050), "easy graphs are drawn too: {drawn:?}");
        let easiest = sampler(Choice::Easiest, 5, 100).select(0);
        assert_eq!(normals(&easiest), (1000..1005).collect::<Vec<_>>());
        let all = sampler(Choice::All, 5, 100).select(0);
        assert_eq!((all.graphs.len(), all.normals, all.percentile), (105, 100, None));
    }

    #[test]
    fn equal_difficulties_are_all_in_the_pool() {
        let normals: Vec<u64> = (0..50).collect();
        let sampler = Sampler::new(Choice::Difficulty, SCHEDULE, 1, &[100], &normals, Some(&[0.5; 50]));
        let drawn: BTreeSet<u64> = (0..10).flat_map(|epoch| sampler.select(epoch).graphs).collect();
        assert!(drawn.len() > 20, "{drawn:?}");
    }

    /// Shares of 100 graphs from 0.2 to all of them after 10 epochs, unscored.
    fn of_share(choice: Choice, seed: u64) -> Sampler {
        let schedule = Schedule { start_ratio: 0.2, end_ratio: 1.0, start_percentile: 50.0, max_epochs: 10 };
        Sampler::of_share(choice, schedule, seed, &(0..100).collect::<Vec<_>>(), &[])
    }

    #[test]
    fn a_share_of_the_graphs_grows_to_all_of_them() {
        let difficulty: Vec<f32> = (0..100u8).map(f32::from).collect();
        for choice in [Choice::Difficulty, Choice::Hardest, Choice::Easiest, Choice::Random] {
            let mut sampler = of_share(choice, 3);
            sampler.rescore(&(0..100).collect::<Vec<_>>(), &difficulty);
            let sizes: Vec<usize> = (0..12).map(|epoch| sampler.select(epoch).graphs.len()).collect();
            assert_eq!(sizes, [20, 28, 36, 44, 52, 60, 68, 76, 84, 92, 100, 100], "{choice:?}");
            assert_eq!(sampler.select(1).ratio, 0.28);
        }
        let mut easiest = of_share(Choice::Easiest, 3);
        easiest.rescore(&(0..100).collect::<Vec<_>>(), &difficulty);
        assert_eq!(easiest.select(0).graphs, (0..20).collect::<Vec<_>>());
        assert_eq!(easiest.select(0).mean_difficulty, Some(9.5));
    }

    #[test]
    fn the_seed_alone_decides_between_equally_difficult_or_unscored_graphs() {
        let graphs: Vec<u64> = (0..100).collect();
        for scored in [false, true] {
            let drawn = |seed| {
                let mut sampler = of_share(Choice::Easiest, seed);
                if scored {
                    sampler.rescore(&graphs, &[1.0; 100]);
                }
                sampler.select(0).graphs
            };
            assert_eq!(drawn(1), drawn(1));
            assert_ne!(drawn(1), drawn(2));
            assert!(drawn(1).iter().any(|&graph| graph > 50), "graphs of the last classes are drawn, too");
        }
    }

    #[test]
    fn each_class_has_its_share() {
        // 60 graphs of class 0, all easier than the 40 of class 1.
        let graphs: Vec<u64> = (0..100).collect();
        let classes: Vec<u32> = graphs.iter().map(|&graph| u32::from(graph >= 60)).collect();
        let difficulty: Vec<f32> = (0..100u8).map(f32::from).collect();
        let schedule = Schedule { start_ratio: 0.2, end_ratio: 1.0, start_percentile: 80.0, max_epochs: 10 };
        for (choice, first, second) in [
            (Choice::Easiest, 0..12, 60..68),
            (Choice::Hardest, 48..60, 92..100),
            (Choice::Difficulty, 48..60, 92..100),
        ] {
            let mut sampler = Sampler::of_share(choice, schedule, 3, &graphs, &classes);
            sampler.rescore(&graphs, &difficulty);
            assert_eq!(sampler.select(0).graphs, first.chain(second).collect::<Vec<u64>>(), "{choice:?}");
            assert_eq!(sampler.select(10).graphs, graphs);
        }
    }

    #[test]
    fn losses_of_nearly_zero_are_one_bin() {
        let mut sampler = of_share(Choice::Easiest, 1);
        let difficulty: Vec<f32> = (0..100u8).map(|graph| if graph < 50 { 1e-30 } else { 1.0 }).collect();
        sampler.rescore(&(0..100).collect::<Vec<_>>(), &difficulty);
        let bins = sampler.distribution(&sampler.select(0), 8);
        assert_eq!((bins[0].normals, bins[0].chosen, bins[7].normals), (50, 20, 50), "{bins:?}");
        assert!((bins[0].low - 1e-4).abs() < 1e-9, "{bins:?}");
    }

    #[test]
    fn a_small_share_has_one_graph() {
        let schedule = Schedule { start_ratio: 0.01, end_ratio: 1.0, start_percentile: 0.0, max_epochs: 10 };
        assert_eq!(Sampler::of_share(Choice::Random, schedule, 1, &[5, 7], &[]).select(0).graphs.len(), 1);
    }

    fn any_choice() -> impl Strategy<Value = Choice> {
        let by_difficulty = prop_oneof![Just(Choice::Difficulty), Just(Choice::Hardest), Just(Choice::Easiest)];
        prop_oneof![by_difficulty, Just(Choice::Random), Just(Choice::All)]
    }

    proptest! {
        #[test]
        fn an_epoch_has_each_graph_once_all_attacks_and_the_ratio(
            choice in any_choice(),
            attacks in 1usize..40,
            difficulty in prop::collection::vec(0.0f32..1.0, 0..200),
            start_ratio in 0.1f64..3.0,
            end_ratio in 0.1f64..12.0,
            start_percentile in 0.0f64..95.0,
            seed: u64,
            epoch in 0u64..20,
        ) {
            let schedule = Schedule { start_ratio, end_ratio, start_percentile, max_epochs: 20 };
            // Attacks and normals alternate, as in a store.
            let normals: Vec<u64> = (0..difficulty.len() as u64).map(|index| 2 * index).collect();
            let attacks: Vec<u64> = (0..attacks as u64).map(|index| 2 * index + 1).collect();
            let sampler = Sampler::new(choice, schedule, seed, &attacks, &normals, Some(&difficulty));
            let selection = sampler.select(epoch);

            prop_assert!(selection.graphs.windows(2).all(|pair| pair[0] < pair[1]), "a graph twice: {selection:?}");
            prop_assert_eq!(selection.graphs.len(), sampler.epoch_graphs(epoch));
            let (drawn, kept): (Vec<u64>, Vec<u64>) = selection.graphs.iter().partition(|&graph| graph % 2 == 0);
            prop_assert_eq!(kept, attacks.clone());
            prop_assert!(drawn.iter().all(|graph| normals.contains(graph)));
            if choice != Choice::All {
                let wanted = (schedule.at(epoch).ratio * attacks.len() as f64).round() as usize;
                prop_assert_eq!(drawn.len(), wanted.min(normals.len()));
            }
            // No graph left out is harder than a graph drawn to top up.
            if selection.topped_up > 0 || choice == Choice::Hardest {
                let of = |graph: &u64| difficulty[*graph as usize / 2];
                let easiest = drawn.iter().map(of).fold(f32::INFINITY, f32::min);
                let left_out = normals.iter().filter(|graph| !drawn.contains(graph));
                prop_assert!(left_out.map(of).all(|difficulty| difficulty <= easiest));
            }
            if choice == Choice::Easiest {
                let of = |graph: &u64| difficulty[*graph as usize / 2];
                let hardest = drawn.iter().map(of).fold(f32::NEG_INFINITY, f32::max);
                let left_out = normals.iter().filter(|graph| !drawn.contains(graph));
                prop_assert!(left_out.map(of).all(|difficulty| difficulty >= hardest));
            }
            // A pure function of the epoch: a new sampler draws the same.
            let again = Sampler::new(choice, schedule, seed, &attacks, &normals, Some(&difficulty));
            prop_assert_eq!(again.select(epoch), selection);
        }
    }
}
