//! Pauses of a recording, in which no ID sends.
//!
//! Joined drives, a logger that was stopped, a car that slept: nothing was watched meanwhile, so that a pause is no ID's silence.

use crate::GraphView;
use crate::rich::LONGEST_GAP_SECONDS;

/// Most seconds from one frame of the bus to the next, or from one window's end to the next one's, that are no pause.
pub const LONGEST_STEP_SECONDS: f64 = 1.0;

/// A pause of a recording.
#[derive(Debug, Clone, Copy)]
struct Pause {
    /// Time of the frame that ends it.
    end: f64,
    /// Time since the frame before it.
    seconds: f64,
}

/// Follows all windows of a drive, in order, and takes the pauses out of durations.
#[derive(Debug, Clone, Default)]
pub struct Pauses {
    drive: Option<Drive>,
}

/// The windows of the drive so far.
#[derive(Debug, Clone)]
struct Drive {
    file: u32,
    /// Time of the first frame that is known: what came before may have been a pause.
    begin: f64,
    /// Time of the last window's last frame.
    latest: f64,
    /// Position of the frame after the last window's.
    next_frame: u64,
    /// In order of time.
    pauses: Vec<Pause>,
}

impl Pauses {
    /// Takes the next window. One of another file, or from more than a second before the last one, begins another drive.
    pub fn push(&mut self, view: &GraphView<'_>) {
        let (begin, file) = (view.start_time, view.file);
        let end = begin + f64::from(view.frames.duration_seconds());
        if self.drive.as_ref().is_none_or(|drive| drive.file != file || end < drive.latest - LONGEST_STEP_SECONDS) {
            self.drive = Some(Drive { file, begin, latest: begin, next_frame: view.first_frame, pauses: Vec::new() });
        }
        let Some(drive) = &mut self.drive else { return };
        // Of frames between two windows only the number is known.
        let unknown = view.first_frame.saturating_sub(drive.next_frame);
        drive.next_frame = view.first_frame + view.frames.times.len() as u64;
        if end - drive.latest > LONGEST_STEP_SECONDS {
            let mut times: Vec<f64> = view.frames.times.iter().map(|&time| begin + f64::from(time)).collect();
            times.sort_unstable_by(f64::total_cmp);
            let (mut latest, mut steps) = (drive.latest, (unknown + 1) as f64);
            for time in times.into_iter().filter(|&time| time > drive.latest) {
                if time - latest > LONGEST_STEP_SECONDS * steps {
                    drive.pauses.push(Pause { end: time, seconds: time - latest });
                }
                (latest, steps) = (time, 1.0);
            }
        }
        drive.latest = drive.latest.max(end);
        // No silence that ends in this window or a later one began before.
        let first = begin - LONGEST_GAP_SECONDS;
        drive.pauses.retain(|pause| pause.end > first);
    }

    /// Seconds without pauses of a silence of `seconds` up to the time `end` in the last window, from the first known frame on.
    pub fn without_pauses(&self, seconds: f32, end: f64) -> f32 {
        let Some(drive) = self.drive.as_ref().filter(|_| f64::from(seconds) > LONGEST_STEP_SECONDS) else {
            return seconds;
        };
        let begin = (end - f64::from(seconds)).max(drive.begin);
        // Times of a frame differ by rounding from one window to another, and pauses are longer than a second.
        let half = LONGEST_STEP_SECONDS / 2.0;
        let within = |pause: &&Pause| begin < pause.end - half && pause.end - half < end;
        let paused: f64 = drive.pauses.iter().filter(within).map(|pause| pause.seconds).sum();
        if paused == 0.0 && begin > drive.begin { seconds } else { (end - begin - paused).max(0.0) as f32 }
    }
}
