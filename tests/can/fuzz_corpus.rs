//! Replays the corpus of fuzz/ on every target, and mutates it for KDGAT_FUZZ_SECONDS seconds.

#[path = "../../fuzz/checks.rs"]
mod checks;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

type Target = (&'static str, fn(&[u8]));
const TARGETS: [Target; 6] = [
    ("stream", checks::stream),
    ("logs", checks::logs),
    ("pieces", checks::pieces),
    ("road", checks::road),
    ("manifest", checks::manifest),
    ("weights", checks::weights),
];

/// True if a corpus file has the kind of data that the target reads.
fn is_for(path: &str, target: &str) -> bool {
    let folder = Path::new(path).parent().and_then(Path::file_name);
    match target {
        "weights" => folder == Some("weights".as_ref()),
        "road" | "manifest" => path.ends_with(".json"),
        _ => folder == Some("logs".as_ref()),
    }
}

fn corpus() -> Vec<(String, Vec<u8>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let mut files = Vec::new();
    for folder in fs::read_dir(root).unwrap() {
        for file in fs::read_dir(folder.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            files.push((path.display().to_string(), fs::read(path).unwrap()));
        }
    }
    files.sort();
    assert!(files.len() > 15, "the corpus has {} files", files.len());
    files
}

#[test]
fn the_corpus_passes_every_target() {
    for (path, bytes) in corpus() {
        for (name, target) in TARGETS {
            let outcome = catch_unwind(AssertUnwindSafe(|| target(&bytes)));
            assert!(outcome.is_ok(), "{path} fails in {name}");
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound.max(1)
    }
}

/// Tokens of valid rows, and invalid ones.
const WORDS: [&str; 44] = [
    ",",
    "\n",
    "\r\n",
    "\n\n",
    "#",
    "##",
    "(",
    ")",
    "\"",
    " ",
    "\t",
    ".",
    "-",
    "+",
    "0x",
    "NaN",
    "inf",
    "-inf",
    "1e999",
    "1e-400",
    "\0",
    "R",
    "T",
    "DLC: ",
    "ID: ",
    "Timestamp: ",
    "base hex",
    "base dec",
    "timestamps relative",
    "Rx",
    "CANFD",
    "ErrorFrame",
    "x ",
    "[8]",
    "[64]",
    "remote request",
    "20000000",
    "1FFFFFFF",
    "FFFFFFFFFFFFFFFFFF",
    "9007199254740993",
    "18446744073709551616",
    "attack",
    "Attack",
    "\u{feff}",
];

fn mutate(random: &mut Random, bytes: &mut Vec<u8>, others: &[(String, Vec<u8>)]) {
    let place = random.below(bytes.len() + 1);
    let end = (place + random.below(40)).min(bytes.len());
    match random.below(8) {
        0 if place < bytes.len() => bytes[place] ^= 1 << random.below(8),
        1 if place < bytes.len() => bytes[place] = random.below(256) as u8,
        2 => drop(bytes.drain(place..end)),
        3 => {
            let copy = bytes[place..end].to_vec();
            let target = random.below(bytes.len() + 1);
            bytes.splice(target..target, copy);
        }
        4 => {
            let other = &others[random.below(others.len())].1;
            let begin = random.below(other.len() + 1);
            let length = random.below(other.len() - begin + 1);
            bytes.splice(place..end, other[begin..begin + length].iter().copied());
        }
        5 => bytes.truncate(place),
        // Occasionally, a line longer than allowed.
        6 if random.below(300) == 0 => drop(bytes.splice(place..place, std::iter::repeat_n(b'7', 66_000))),
        _ => drop(bytes.splice(place..place, WORDS[random.below(WORDS.len())].bytes())),
    }
}

#[test]
fn mutations_of_the_corpus_pass_every_target() {
    let seconds = std::env::var("KDGAT_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1.0);
    let seed = std::env::var("KDGAT_FUZZ_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let corpus = corpus();
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (seed << 1 | 1));
    let start = Instant::now();
    let mut inputs = 0u64;
    while start.elapsed() < Duration::from_secs_f64(seconds) {
        let (path, seed_bytes) = &corpus[random.below(corpus.len())];
        let mut bytes = seed_bytes.clone();
        for _ in 0..=random.below(6) {
            mutate(&mut random, &mut bytes, &corpus);
        }
        for (name, target) in TARGETS.into_iter().filter(|(name, _)| is_for(path, name)) {
            if catch_unwind(AssertUnwindSafe(|| target(&bytes))).is_err() {
                let kept = std::env::temp_dir().join(format!("kdgat-fuzz-{name}-{inputs}"));
                fs::write(&kept, &bytes).unwrap();
                panic!("{name} fails on a mutation of {path}, kept as {}", kept.display());
            }
        }
        inputs += 1;
    }
    println!("{inputs} inputs in {:.0} s", start.elapsed().as_secs_f64());
}
