//! Timeline of the teacher's thread and the student's steps.

use super::{Drawn, Figure};
use crate::ReportError;
use crate::chart::palette::{self, AXIS, GRID, INK};
use crate::chart::{SMALL_TEXT, Svg, TEXT, WIDTH, fill, short, stroke, ticks, write, write_centered, write_right};
use crate::files::{Columns, Run};
use crate::html::slug;

/// Number of steps of an epoch that are shown.
const STEPS: f64 = 36.0;
const LEFT: i32 = 118;
const TOP: i32 = 52;
const ROW: i32 = 30;

/// Rows of the chart: `who` and `work` of `timeline.csv`, name, colour index.
const LANES: [(&str, &str, &str, usize); 6] = [
    ("student", "step", "step", 0),
    ("student", "optimizer", "optimiser", 4),
    ("student", "wait", "waits for targets", 1),
    ("teacher", "forward", "forward", 2),
    ("teacher", "copy", "weight copy", 3),
    ("teacher", "wait", "waits for weights", 1),
];

/// An interval: row of the chart, start and end in milliseconds.
type Stretch = (usize, f64, f64);

pub fn draw(run: &Run) -> Result<Vec<Drawn>, ReportError> {
    let what = format!("timeline of the teacher of {}", run.name);
    // A fusion agent's teacher values are all computed before the first epoch.
    if !run.is_distilled() || run.stage() == "fusion" {
        return Ok(Vec::new());
    }
    let Some(table) = run.timeline.as_ref().filter(|table| !table.is_empty()) else {
        let why = "the run has no timeline.csv, which distilled runs write.";
        return Ok(vec![Drawn::missing(what, why)]);
    };
    let mut recorded = table.numbers("epoch");
    recorded.dedup();
    let mut epochs = vec![recorded[0]];
    // The first epoch computes targets; later epochs may read cached ones.
    epochs.extend(recorded.last().filter(|last| **last != recorded[0]));
    epochs.iter().filter_map(|epoch| one(run, table, *epoch).transpose()).collect()
}

fn one(run: &Run, table: &Columns, epoch: f64) -> Result<Option<Drawn>, ReportError> {
    let (stretches, steps) = stretches(table, epoch);
    let Some(end) = stretches.iter().map(|stretch| stretch.2).max_by(f64::total_cmp) else { return Ok(None) };
    let share = |lane: usize| {
        let spent: f64 = stretches.iter().filter(|stretch| stretch.0 == lane).map(|(_, start, end)| end - start).sum();
        100.0 * spent / end.max(1e-9)
    };
    let seen = match stretches.iter().any(|stretch| LANES[stretch.0].0 == "teacher") {
        true => {
            format!("the student waits {:.0} % of the time, the teacher's forwards take {:.0} %", share(2), share(3))
        }
        false => {
            format!("all targets are cached, the teacher is idle, and the student waits {:.0} % of the time", share(2))
        }
    };
    let gpu = "On a GPU, the student's times are those of queueing its work.";
    Ok(Some(
        Figure {
            slug: slug(&format!("teacher {} epoch {}", run.name, epoch + 1.0)),
            title: format!("Teacher and student in epoch {}: {seen}", epoch + 1.0),
            reading: format!("The first {steps} steps of the epoch, {end:.0} ms. {gpu}"),
            sources: vec![table.path.clone()],
            svg: svg(&stretches, end)?,
        }
        .into(),
    ))
}

/// Returns the intervals of an epoch's first [`STEPS`] steps, relative to the first one, and the number of steps.
fn stretches(table: &Columns, epoch: f64) -> (Vec<Stretch>, usize) {
    let (epochs, steps) = (table.numbers("epoch"), table.numbers("step"));
    let (who, work) = (table.texts("who"), table.texts("work"));
    let (start, duration) = (table.numbers("start_ms"), table.numbers("duration_ms"));
    let rows: Vec<usize> = (0..table.len()).filter(|&row| epochs[row] == epoch).collect();
    let shown = |row: &&usize| steps[**row] < STEPS;
    let last = rows.iter().filter(shown).map(|&row| start[row] + duration[row]).fold(0.0, f64::max);
    let lane = |row: usize| LANES.iter().position(|lane| (lane.0, lane.1) == (who[row], work[row]));
    let first = rows.iter().map(|&row| start[row]).fold(f64::INFINITY, f64::min);
    let stretch = |&row: &usize| {
        let end = (start[row] + duration[row]).min(last);
        Some((lane(row)?, start[row] - first, end - first)).filter(|_| start[row] < last)
    };
    let count = rows.iter().filter(shown).filter(|&&row| work[row] == "step").count();
    (rows.iter().filter_map(stretch).collect(), count)
}

fn svg(stretches: &[Stretch], end: f64) -> Result<Svg, ReportError> {
    let height = TOP + ROW * LANES.len() as i32 + 18 + 40;
    // A gap between student and teacher.
    let top = |lane: usize| TOP + ROW * lane as i32 + if LANES[lane].0 == "teacher" { 18 } else { 0 };
    let width = WIDTH - LEFT - 10;
    let x = |time: f64| LEFT + (f64::from(width) * (time / end.max(1e-9)).clamp(0.0, 1.0)).round() as i32;
    Ok(Svg::draw(WIDTH, height, |area| {
        write(area, "student", (4, TOP - 12), TEXT, INK)?;
        write(area, "teacher's thread", (4, top(3) - 10), TEXT, INK)?;
        let bottom = top(LANES.len() - 1) + ROW;
        for time in ticks(0.0, end, 5) {
            stroke(area, &[(x(time), TOP), (x(time), bottom)], 1.0, GRID)?;
            write_centered(area, &short(time), (x(time).min(WIDTH - 16), bottom + 12), SMALL_TEXT, AXIS)?;
        }
        write_centered(area, "time since the epoch's first step (ms)", (LEFT + width / 2, height - 10), TEXT, INK)?;
        for (lane, (_, _, name, color)) in LANES.iter().enumerate() {
            let middle = top(lane) + ROW / 2;
            write_right(area, name, (LEFT - 8, middle), SMALL_TEXT, INK)?;
            let of_lane: Vec<&Stretch> = stretches.iter().filter(|stretch| stretch.0 == lane).collect();
            if of_lane.is_empty() {
                write(area, "none", (LEFT + 6, middle), SMALL_TEXT, AXIS)?;
            }
            for (_, start, end) in of_lane {
                // Intervals that are too short to see are drawn one pixel wide.
                let (from, to) = (x(*start), x(*end).max(x(*start) + 1));
                fill(area, (from, middle - 10), (to, middle + 10), palette::series(*color))?;
            }
        }
        Ok(())
    })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_begins_at_nought_and_ends_with_its_last_shown_step() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("timeline.csv");
        let mut text =
            "epoch,step,who,work,start_ms,duration_ms\n1,0,student,wait,100,10\n1,,teacher,forward,101,8\n".to_owned();
        for step in 0..40 {
            text += &format!("1,{step},student,step,{},5\n", 110 + 10 * step);
        }
        std::fs::write(&path, text).unwrap();
        let (stretches, steps) = stretches(&Columns::read(&path).unwrap().unwrap(), 1.0);
        assert_eq!(steps, 36);
        assert_eq!(stretches[0], (2, 0.0, 10.0));
        assert_eq!(stretches[1], (3, 1.0, 9.0));
        assert_eq!(stretches.last(), Some(&(0, 360.0, 365.0)));
        assert!(svg(&stretches, 365.0).unwrap().marks() >= 38);
    }
}
