//! Figures: each module draws one kind of chart from the files of runs, with a title that states its result.

pub mod comparison;
pub mod confusion;
pub mod curves;
pub mod difficulty;
pub mod fusion;
pub mod graphs;
pub mod growth;
pub mod intervals;
pub mod losses;
pub mod memory;
pub mod molecules;
pub mod sweep;
pub mod teacher;
pub mod trade_off;
pub mod windows;

use std::path::PathBuf;

use super::chart::Svg;

/// A chart with its texts.
#[derive(Debug, Clone)]
pub struct Figure {
    /// Name of the figure's file, and its HTML id.
    pub slug: String,
    /// Title that states the result, with units.
    pub title: String,
    /// Reading instructions.
    pub reading: String,
    /// Files that it was drawn from.
    pub sources: Vec<PathBuf>,
    pub svg: Svg,
}

/// A figure, or the reason for its absence.
#[derive(Debug, Clone)]
pub enum Drawn {
    Figure(Box<Figure>),
    /// No data for the figure: its subject, the reason, and how to get the data.
    Missing {
        what: String,
        why: String,
    },
}

impl Drawn {
    pub fn missing(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Missing { what: what.into(), why: why.into() }
    }
}

impl From<Figure> for Drawn {
    fn from(figure: Figure) -> Self {
        Self::Figure(Box::new(figure))
    }
}

/// Formats bytes with a decimal unit.
pub fn bytes(bytes: f64) -> String {
    match bytes {
        _ if bytes >= 1e9 => format!("{:.2} GB", bytes / 1e9),
        _ if bytes >= 1e6 => format!("{:.1} MB", bytes / 1e6),
        _ => format!("{:.1} kB", bytes / 1e3),
    }
}

/// Formats a loss with four significant digits.
pub fn significant(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let digits = (3 - value.abs().log10().floor() as i32).clamp(0, 9) as usize;
    format!("{value:.digits$}")
}

/// Formats the name of a test folder for display: `test_01_known_attack` as "known attack".
pub fn folder_words(folder: &str) -> String {
    let rest = folder.strip_prefix("test_").unwrap_or(folder);
    let rest = rest.trim_start_matches(|letter: char| letter.is_ascii_digit()).trim_start_matches('_');
    if rest.is_empty() { folder.to_owned() } else { rest.replace('_', " ") }
}

/// Thins points to at most `most`, evenly spaced, keeping the first and the last.
pub fn thinned<T: Copy>(points: &[T], most: usize) -> Vec<T> {
    if points.len() <= most || most < 2 {
        return points.to_vec();
    }
    let last = points.len() - 1;
    (0..most).map(|place| points[place * last / (most - 1)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_in_words_and_thin_lines() {
        assert_eq!(folder_words("test_02_unknown_attack"), "unknown attack");
        assert_eq!(folder_words("test_01"), "test_01");
        assert_eq!(folder_words("others"), "others");
        let thin = thinned(&(0..1000).collect::<Vec<_>>(), 11);
        assert_eq!((thin.len(), thin[0], thin[10]), (11, 0, 999));
        assert_eq!(thinned(&[1, 2], 10), [1, 2]);
        assert_eq!(
            [0.0, 0.000_139_6, 0.16449, 1.5154, 1234.5].map(significant),
            ["0", "0.0001396", "0.1645", "1.515", "1234"]
        );
        assert_eq!((bytes(2.5e9), bytes(1.5e6), bytes(900.0)), ("2.50 GB".into(), "1.5 MB".into(), "0.9 kB".into()));
    }
}
