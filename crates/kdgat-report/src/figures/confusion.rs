//! Confusion matrix of a model by attack: one row per attack, with shares and counts.

use super::{Drawn, Figure, folder_words};
use crate::ReportError;
use crate::chart::palette::{self, AXIS, INK};
use crate::chart::{SMALL_TEXT, Svg, TEXT, WIDTH, fill, fitted, write, write_centered, write_right};
use crate::files::{Evaluation, Model};
use crate::html::slug;
use kdgat_evaluate::calibration::is_unknown_vehicle;

const ROW: i32 = 26;
const TOP: i32 = 44;
const LEFT: i32 = 150;
/// Maximum rows by attack; with more, the files of each folder are combined.
const MOST_ROWS: usize = 24;

/// Counts of windows for one attack in one test folder.
#[derive(Debug, Clone, PartialEq)]
pub struct Attack {
    pub name: String,
    pub folder: String,
    pub found: u64,
    pub missed: u64,
    pub false_alarms: u64,
    pub quiet: u64,
}

pub fn draw(evaluation: &Evaluation, model: &Model) -> Result<Drawn, ReportError> {
    let attacks = attacks(model);
    if attacks.is_empty() {
        let why = "the evaluation has no counts by file.";
        return Ok(Drawn::missing(format!("confusion per attack of {}", model.model), why));
    }
    let method = model.results.first().map_or("", |row| row.threshold_method.as_str());
    Ok(Figure {
        slug: slug(&format!("confusion {} {}", evaluation.dataset, model.model)),
        title: format!("{} finds {}", model.model, counts(&attacks)),
        reading: format!(
            "One row per attack (test files of the same name are combined), not calibrated, at the threshold {method}. Found and missed are shares \
             of the windows with an attack, false alarm and quiet of those without."
        ),
        sources: vec![evaluation.folder.join("metrics.json")],
        svg: svg(&attacks)?,
    }
    .into())
}

/// Sentence with the counts over all attacks. Cars in the training data and unknown ones are counted apart: a threshold that fits
/// the former need not fit the latter.
fn counts(attacks: &[Attack]) -> String {
    let (unknown, known): (Vec<&Attack>, Vec<&Attack>) =
        attacks.iter().partition(|attack| is_unknown_vehicle(&attack.folder));
    let counted = |attacks: &[&Attack]| {
        let sum = |count: fn(&Attack) -> u64| attacks.iter().map(|attack| count(attack)).sum::<u64>();
        let (found, alarms) = (sum(|attack| attack.found), sum(|attack| attack.false_alarms));
        let (all, normals) = (found + sum(|attack| attack.missed), alarms + sum(|attack| attack.quiet));
        format!("{found} of {all} attack windows and raises {alarms} false alarms on {normals} normal ones")
    };
    match (known.is_empty(), unknown.is_empty()) {
        (false, false) => {
            format!("{} on known cars, and {} on unknown cars, not calibrated", counted(&known), counted(&unknown))
        }
        (true, false) => format!("{} on unknown cars, not calibrated", counted(&unknown)),
        _ => counted(&known),
    }
}

/// Counts windows by attack: test files whose names differ only by a number are one attack.
pub fn attacks(model: &Model) -> Vec<Attack> {
    let mut attacks = gathered(model, attack_of);
    if attacks.len() > MOST_ROWS {
        attacks = gathered(model, |_| "all files".to_owned());
    }
    attacks
}

fn gathered(model: &Model, name_of: impl Fn(&str) -> String) -> Vec<Attack> {
    let mut attacks: Vec<Attack> = Vec::new();
    for row in model.files() {
        let (name, folder) = (name_of(row.file.as_deref().unwrap_or("")), &row.folder);
        let place = attacks.iter().position(|attack| attack.name == name && attack.folder == *folder);
        let place = place.unwrap_or_else(|| {
            let folder = folder.clone();
            attacks.push(Attack { name, folder, found: 0, missed: 0, false_alarms: 0, quiet: 0 });
            attacks.len() - 1
        });
        let attack = &mut attacks[place];
        attack.found += row.confusion.true_positives;
        attack.missed += row.confusion.false_negatives;
        attack.false_alarms += row.confusion.false_positives;
        attack.quiet += row.confusion.true_negatives;
    }
    attacks
}

/// Returns the attack of a file: "flooding" for `flooding-2.csv.gz`.
fn attack_of(file: &str) -> String {
    let stem = file.split('.').next().unwrap_or(file);
    let name = stem.trim_end_matches(|letter: char| letter.is_ascii_digit()).trim_end_matches(['-', '_']);
    if name.is_empty() { stem.to_owned() } else { name.replace(['-', '_'], " ") }
}

fn svg(attacks: &[Attack]) -> Result<Svg, ReportError> {
    let folders = attacks.chunk_by(|left, right| left.folder == right.folder).count() as i32;
    let height = TOP + ROW * (attacks.len() as i32 + folders) + 6;
    let column = (WIDTH - LEFT - 8) / 4;
    Ok(Svg::draw(WIDTH, height, |area| {
        let middle = |index: i32| LEFT + column * index + column / 2;
        for (place, head) in ["windows with an attack", "windows without"].into_iter().enumerate() {
            write_centered(area, head, (LEFT + column * (1 + 2 * place as i32), 12), SMALL_TEXT, AXIS)?;
        }
        for (index, head) in ["found", "missed", "false alarm", "quiet"].into_iter().enumerate() {
            write_centered(area, head, (middle(index as i32), 30), SMALL_TEXT, INK)?;
        }
        let mut y = TOP;
        for of_folder in attacks.chunk_by(|left, right| left.folder == right.folder) {
            write(
                area,
                &fitted(&folder_words(&of_folder[0].folder), WIDTH - 8, SMALL_TEXT),
                (4, y + ROW / 2),
                SMALL_TEXT,
                AXIS,
            )?;
            y += ROW;
            for attack in of_folder {
                write_right(area, &fitted(&attack.name, LEFT - 12, TEXT), (LEFT - 8, y + ROW / 2), TEXT, INK)?;
                let (attacks, normals) = (attack.found + attack.missed, attack.false_alarms + attack.quiet);
                let cells = [
                    (attack.found, attacks),
                    (attack.missed, attacks),
                    (attack.false_alarms, normals),
                    (attack.quiet, normals),
                ];
                for (index, (count, of)) in cells.into_iter().enumerate() {
                    let left = LEFT + column * index as i32;
                    let share = if of == 0 { 0.0 } else { count as f64 / of as f64 };
                    fill(area, (left, y), (left + column - 2, y + ROW - 2), palette::heat(share))?;
                    let text = if of == 0 { "none".to_owned() } else { format!("{:.0} % ({count})", 100.0 * share) };
                    let place = (middle(index as i32) - 1, y + ROW / 2 - 1);
                    write_centered(area, &text, place, SMALL_TEXT, palette::ink_on_heat(share))?;
                }
                y += ROW;
            }
        }
        Ok(())
    })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_and_unknown_cars_are_counted_apart() {
        let attack = |folder: &str, found: u64| Attack {
            name: "flooding".to_owned(),
            folder: folder.to_owned(),
            found,
            missed: 1,
            false_alarms: 2,
            quiet: 7,
        };
        let known = attack("test_01_known_vehicle", 5);
        let counted = "5 of 6 attack windows and raises 2 false alarms on 9 normal ones";
        assert_eq!(counts(std::slice::from_ref(&known)), counted);
        let both = counts(&[known, attack("test_02_unknown_vehicle", 3), attack("test_04_unknown_vehicle", 0)]);
        let unknown =
            "3 of 5 attack windows and raises 4 false alarms on 18 normal ones on unknown cars, not calibrated";
        assert_eq!(both, format!("{counted} on known cars, and {unknown}"));
    }

    #[test]
    fn files_of_one_attack_are_one() {
        assert_eq!(attack_of("flooding-2.csv.gz"), "flooding");
        assert_eq!(attack_of("gear_spoofing_01.log"), "gear spoofing");
        assert_eq!(attack_of("DoS.csv"), "DoS");
        assert_eq!(attack_of("17.csv"), "17");
    }
}
