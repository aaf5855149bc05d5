//! Rules that divide training logs into training and validation: blocks of time, whole logs, or whole kinds of attack.
//!
//! Blocks of a log that also trains are easy to predict: they have the same drive, and the same attack. Whole logs are another drive;
//! whole kinds of attack are attacks that the model has never seen. The held-out logs or kinds are the smallest ones by the bytes of their
//! files, as many as make up the validation fraction, at least one and never all. So the division is a property of the dataset, the same for
//! every seed.

use kdgat_can::{Role, SyntheticKind};
use serde::{Deserialize, Serialize};

use crate::split::FileSplit;

/// Rule that chooses the validation data among the training logs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Validation {
    /// Blocks of time of every log.
    #[default]
    Blocks,
    /// Whole logs.
    Logs,
    /// Whole kinds of attack, and blocks of time of the attack-free logs.
    Attacks,
}

impl Validation {
    /// True for blocks of time, the default.
    pub fn is_blocks(&self) -> bool {
        *self == Self::Blocks
    }

    /// Its name in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Blocks => "blocks",
            Self::Logs => "logs",
            Self::Attacks => "attacks",
        }
    }

    /// The rule of this name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Blocks, Self::Logs, Self::Attacks].into_iter().find(|rule| rule.name() == name)
    }
}

/// Properties of a log that decide on its use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogFacts<'a> {
    /// Folder within the dataset.
    pub folder: &'a str,
    /// File name.
    pub name: &'a str,
    /// Role of the folder.
    pub role: Role,
    /// Size of the file.
    pub bytes: u64,
    /// True if it has an attack frame.
    pub has_attacks: bool,
    /// True for a log of synthetic attacks.
    pub is_synthetic: bool,
}

impl LogFacts<'_> {
    /// True for a recorded training log with attacks.
    fn is_recorded_attack(&self) -> bool {
        self.role == Role::TrainWithAttacks && self.has_attacks && !self.is_synthetic
    }
}

/// Use of a log's windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogUse {
    /// Blocks of time train, others validate; those of a synthetic log as in its source.
    Blocks,
    /// All windows train; of a synthetic log those from its source's training blocks.
    Training,
    /// All windows validate; of a synthetic log those from its source's validation blocks.
    Validation,
    /// All windows test.
    Test,
}

impl LogUse {
    /// Division of a recorded log with `graphs` windows; see [`FileSplit::new`].
    pub fn split(self, graphs: u64, window: usize, stride: usize, validation_fraction: f64) -> FileSplit {
        let all = || std::iter::once(0..graphs).filter(|stretch| !stretch.is_empty()).collect();
        match self {
            Self::Blocks => FileSplit::new(graphs, window, stride, validation_fraction),
            Self::Training => FileSplit { train: all(), ..FileSplit::default() },
            Self::Validation => FileSplit { validation: all(), ..FileSplit::default() },
            Self::Test => FileSplit::default(),
        }
    }

    /// Restricts the division of a synthetic log by its blocks.
    pub fn of_synthetic(self, blocks: FileSplit) -> FileSplit {
        match self {
            Self::Blocks => blocks,
            Self::Training => FileSplit { validation: Vec::new(), ..blocks },
            Self::Validation => FileSplit { train: Vec::new(), ..blocks },
            Self::Test => FileSplit::default(),
        }
    }
}

/// Use of each log of a dataset.
///
/// # Errors
/// Says which logs or kinds of attack are missing for this rule.
pub fn uses_of(logs: &[LogFacts<'_>], rule: Validation, validation_fraction: f64) -> Result<Vec<LogUse>, String> {
    let mut uses = attack_free_uses(logs, rule, validation_fraction);
    match rule {
        Validation::Blocks => {}
        Validation::Logs => hold_out_logs(logs, validation_fraction, &mut uses)?,
        Validation::Attacks => hold_out_kinds(logs, validation_fraction, &mut uses)?,
    }
    Ok(uses)
}

/// Use of each log before those with attacks are considered: of the attack-free logs it is final, all others have blocks.
pub fn attack_free_uses(logs: &[LogFacts<'_>], rule: Validation, validation_fraction: f64) -> Vec<LogUse> {
    let of_role = |log: &LogFacts<'_>| if log.role == Role::Test { LogUse::Test } else { LogUse::Blocks };
    let mut uses: Vec<LogUse> = logs.iter().map(of_role).collect();
    if rule == Validation::Logs {
        hold_out(logs, |log| log.role == Role::TrainAttackFree, validation_fraction, &mut uses);
    }
    uses
}

/// Holds out whole logs. Synthetic logs keep the blocks of their sources.
fn hold_out_logs(logs: &[LogFacts<'_>], fraction: f64, uses: &mut [LogUse]) -> Result<(), String> {
    hold_out(logs, |log| log.is_recorded_attack(), fraction, uses);
    // Logs of a folder with attacks that have none.
    let is_plain = |log: &LogFacts<'_>| log.role == Role::TrainWithAttacks && !log.has_attacks && !log.is_synthetic;
    uses.iter_mut().zip(logs).filter(|(_, log)| is_plain(log)).for_each(|(one, _)| *one = LogUse::Training);

    let held_out = |wanted: &dyn Fn(&LogFacts<'_>) -> bool| {
        uses.iter().zip(logs).any(|(one, log)| *one == LogUse::Validation && wanted(log))
    };
    let count = |wanted: &dyn Fn(&LogFacts<'_>) -> bool| logs.iter().filter(|log| wanted(log)).count();
    let is_attack_free = |log: &LogFacts<'_>| log.role == Role::TrainAttackFree;
    let is_attack = |log: &LogFacts<'_>| log.is_recorded_attack();
    let (attack_free, attacks) = (count(&is_attack_free), count(&is_attack));
    let copies = count(&|log| log.is_synthetic);
    let has_attack = held_out(&is_attack) || (copies > 0 && held_out(&is_attack_free));
    if !held_out(&|_| true) || (attacks + copies > 0 && !has_attack) {
        return Err(format!(
            "expected at least two training logs with attacks, or two attack-free ones and synthetic attacks (or no attacks at all), found \
             {attacks} with attacks, {attack_free} attack-free and {copies} with synthetic attacks"
        ));
    }
    Ok(())
}

/// Holds out whole kinds of recorded attacks, and whole kinds of synthetic ones.
fn hold_out_kinds(logs: &[LogFacts<'_>], fraction: f64, uses: &mut [LogUse]) -> Result<(), String> {
    let recorded: Vec<Option<String>> =
        logs.iter().map(|log| log.is_recorded_attack().then(|| kind_of(log.name))).collect();
    let synthetic: Vec<Option<String>> =
        logs.iter().map(|log| log.is_synthetic.then(|| synthetic_kind_of(log.name))).collect();
    let mut found = Vec::new();
    for kinds in [recorded, synthetic] {
        let mut sizes: Vec<(u64, &str)> = Vec::new();
        for (log, kind) in logs.iter().zip(&kinds) {
            let Some(kind) = kind else { continue };
            match sizes.iter_mut().find(|(_, known)| known == kind) {
                Some((bytes, _)) => *bytes += log.bytes,
                None => sizes.push((log.bytes, kind)),
            }
        }
        sizes.sort_unstable();
        let held_out: Vec<&str> = smallest(&sizes, fraction).iter().map(|(_, kind)| *kind).collect();
        for (one, kind) in uses.iter_mut().zip(&kinds) {
            let Some(kind) = kind else { continue };
            *one = if held_out.contains(&kind.as_str()) { LogUse::Validation } else { LogUse::Training };
        }
        found.extend(sizes.iter().map(|(_, kind)| (*kind).to_owned()));
    }
    if uses.contains(&LogUse::Validation) {
        return Ok(());
    }
    let found = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
    Err(format!("expected at least two kinds of attack in the training logs, recorded or synthetic, found {found}"))
}

/// Divides the logs for which `wanted` is true into training and validation, if there are two.
fn hold_out(logs: &[LogFacts<'_>], wanted: impl Fn(&LogFacts<'_>) -> bool, fraction: f64, uses: &mut [LogUse]) {
    let mut sizes: Vec<(u64, (&str, &str, usize))> = Vec::new();
    for (position, log) in logs.iter().enumerate().filter(|(_, log)| wanted(log)) {
        uses[position] = LogUse::Training;
        sizes.push((log.bytes, (log.folder, log.name, position)));
    }
    sizes.sort_unstable();
    smallest(&sizes, fraction).iter().for_each(|(_, (_, _, position))| uses[*position] = LogUse::Validation);
}

/// The first ones that together have at least the share `fraction` of all bytes, but not all of them.
fn smallest<T>(ascending: &[(u64, T)], fraction: f64) -> &[(u64, T)] {
    let wanted = fraction * ascending.iter().map(|(bytes, _)| *bytes as f64).sum::<f64>();
    let mut sum = 0.0;
    let enough = ascending.iter().position(|(bytes, _)| {
        sum += *bytes as f64;
        sum >= wanted
    });
    let count = enough.map_or(ascending.len(), |last| last + 1).min(ascending.len().saturating_sub(1));
    &ascending[..count]
}

/// Kind of the attacks in a recorded log, in lower case: the file's name up to its last hyphen, or without a number at its end.
fn kind_of(name: &str) -> String {
    let stem = name.split('.').next().unwrap_or(name);
    let kind = match stem.rsplit_once('-') {
        Some((kind, _)) => kind,
        None => stem.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '_'),
    };
    (if kind.is_empty() { stem } else { kind }).to_ascii_lowercase()
}

/// Kind of the attacks in a synthetic log: its file's name ends with it.
fn synthetic_kind_of(name: &str) -> String {
    let stem = name.split('.').next().unwrap_or(name);
    let kind = SyntheticKind::ALL.into_iter().find(|kind| stem.ends_with(&format!("-{kind}")));
    kind.map_or_else(|| stem.to_owned(), |kind| kind.name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use LogUse::{Blocks, Test, Training, Validation as Held};
    use proptest::prelude::*;

    fn log(name: &str, role: Role, bytes: u64, has_attacks: bool) -> LogFacts<'_> {
        LogFacts { folder: "train", name, role, bytes, has_attacks, is_synthetic: false }
    }

    fn free(name: &str, bytes: u64) -> LogFacts<'_> {
        log(name, Role::TrainAttackFree, bytes, false)
    }

    fn attack(name: &str, bytes: u64) -> LogFacts<'_> {
        log(name, Role::TrainWithAttacks, bytes, true)
    }

    fn synthetic(name: &str) -> LogFacts<'_> {
        LogFacts { is_synthetic: true, ..attack(name, 50) }
    }

    #[test]
    fn names_tell_the_kind() {
        for (name, kind) in [
            ("DoS-kia.csv.gz", "dos"),
            ("rpm-accessory-3.csv", "rpm-accessory"),
            ("fuzzing_12.log", "fuzzing"),
            ("Fuzzy_dataset.csv", "fuzzy_dataset"),
            ("7.csv", "7"),
            ("-1.csv", "-1"),
        ] {
            assert_eq!(kind_of(name), kind, "{name}");
        }
        assert_eq!(synthetic_kind_of("drive-1-spoofing-plausible.csv.gz"), "spoofing-plausible");
        assert_eq!(synthetic_kind_of("attack-free-kia-fuzzing.csv.gz"), "fuzzing");
    }

    #[test]
    fn whole_logs_are_held_out_of_each_role() {
        let logs = [
            free("big", 800),
            free("small", 300),
            attack("DoS-1", 600),
            attack("fuzzing-1", 500),
            log("copy", Role::TrainWithAttacks, 10, false),
            log("test", Role::Test, 1, true),
        ];
        let uses = uses_of(&logs, Validation::Logs, 0.2).unwrap();
        assert_eq!(uses, [Training, Held, Training, Held, Training, Test]);
        // Half of the bytes of three logs: the two smallest. Of two logs never both.
        let three = [free("c", 900), free("b", 500), free("a", 500)];
        assert_eq!(uses_of(&three, Validation::Logs, 0.5).unwrap(), [Training, Held, Held]);
        assert_eq!(uses_of(&three[1..], Validation::Logs, 0.99).unwrap(), [Training, Held]);
        // The attack-free log is the only one; the synthetic logs follow their source.
        let logs = [free("only", 100), attack("DoS-1", 5), attack("DoS-2", 9), synthetic("only-replay.csv.gz")];
        assert_eq!(uses_of(&logs, Validation::Logs, 0.2).unwrap(), [Training, Held, Training, Blocks]);
    }

    #[test]
    fn whole_kinds_are_held_out_of_recorded_and_of_synthetic_attacks() {
        let logs = [
            free("big", 800),
            free("small", 300),
            attack("DoS-1.csv", 200),
            attack("DoS-2.csv", 200),
            attack("fuzzing-1.csv", 300),
            synthetic("big-replay.csv.gz"),
            synthetic("small-replay.csv.gz"),
            synthetic("big-flooding.csv.gz"),
        ];
        let uses = uses_of(&logs, Validation::Attacks, 0.2).unwrap();
        assert_eq!(uses, [Blocks, Blocks, Training, Training, Held, Training, Training, Held]);
        // One recorded kind trains; a synthetic one validates.
        let uses = uses_of(&[logs[0], logs[2], logs[5], logs[7]], Validation::Attacks, 0.2).unwrap();
        assert_eq!(uses, [Blocks, Training, Training, Held]);
    }

    #[test]
    fn what_cannot_be_divided_says_what_it_lacks() {
        let refused = |logs: &[LogFacts<'_>], rule, text: &str| {
            let error = uses_of(logs, rule, 0.2).unwrap_err();
            assert!(error.contains(text), "{error}");
        };
        let one_kind = [free("a", 5), attack("DoS-1.csv", 5), attack("DoS-2.csv", 6)];
        refused(
            &one_kind,
            Validation::Attacks,
            "at least two kinds of attack in the training logs, recorded or synthetic, found dos",
        );
        refused(&one_kind[..1], Validation::Attacks, "found none");
        assert!(uses_of(&one_kind, Validation::Logs, 0.2).is_ok());
        refused(&one_kind[..2], Validation::Logs, "found 1 with attacks, 1 attack-free and 0 with synthetic attacks");
        refused(&one_kind[..1], Validation::Logs, "found 0 with attacks, 1 attack-free");
        let attacks_in_training_alone = [free("a", 5), free("b", 5), attack("DoS-1.csv", 5)];
        refused(&attacks_in_training_alone, Validation::Logs, "found 1 with attacks, 2 attack-free");
        assert!(uses_of(&attacks_in_training_alone[..2], Validation::Logs, 0.2).is_ok());
        assert!(uses_of(&one_kind[..1], Validation::Blocks, 0.2).is_ok());
    }

    proptest! {
        /// Both sides of a group have a log, the held-out logs have at least the share, and without any one of them less.
        #[test]
        fn held_out_logs_make_up_the_share(bytes in prop::collection::vec(1u64..1000, 2..12), fraction in 0.01f64..0.99) {
            let names: Vec<String> = (0..bytes.len()).map(|log| format!("{log:02}")).collect();
            let logs: Vec<LogFacts<'_>> = names.iter().zip(&bytes).map(|(name, bytes)| free(name, *bytes)).collect();
            let uses = uses_of(&logs, Validation::Logs, fraction).unwrap();
            let held: Vec<u64> = bytes.iter().zip(&uses).filter(|(_, one)| **one == Held).map(|(bytes, _)| *bytes).collect();
            prop_assert!(!held.is_empty() && held.len() < bytes.len());
            let (sum, wanted) = (held.iter().sum::<u64>() as f64, fraction * bytes.iter().sum::<u64>() as f64);
            prop_assert!(sum >= wanted || held.len() + 1 == bytes.len());
            let largest = held.iter().max().copied().unwrap_or(0) as f64;
            prop_assert!(sum - largest < wanted);
        }
    }

    #[test]
    fn a_use_is_a_split() {
        let split = |train: &[(u64, u64)], validation: &[(u64, u64)]| {
            let ranges = |ends: &[(u64, u64)]| ends.iter().map(|&(begin, end)| begin..end).collect();
            FileSplit { train: ranges(train), validation: ranges(validation) }
        };
        assert_eq!(Training.split(10, 100, 50, 0.2), split(&[(0, 10)], &[]));
        assert_eq!(Held.split(10, 100, 50, 0.2), split(&[], &[(0, 10)]));
        assert_eq!(Blocks.split(10, 100, 50, 0.2), FileSplit::new(10, 100, 50, 0.2));
        assert_eq!(Training.split(0, 100, 50, 0.2), FileSplit::default());
        assert_eq!(Test.split(10, 100, 50, 0.2), FileSplit::default());
        let blocks = split(&[(0, 5)], &[(7, 9)]);
        assert_eq!(Training.of_synthetic(blocks.clone()), split(&[(0, 5)], &[]));
        assert_eq!(Held.of_synthetic(blocks.clone()), split(&[], &[(7, 9)]));
        assert_eq!(Blocks.of_synthetic(blocks.clone()), blocks);
    }
}
