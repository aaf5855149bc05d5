//! Time of the student's steps on the device: from the moment a step gets its targets to the request for the next ones.
//!
//! On a GPU, the host has only queued the step by then. So both ends are events in the student's stream, read once the device has
//! passed them.

use std::collections::VecDeque;
use std::time::Duration;

use tch::Device;

use kdgat_torch::device::{DeviceError, Event, Stream};

/// Limit for the steps that the device has not finished: steps beyond it are not timed.
const MOST_RUNNING: usize = 64;

/// Measures steps; used on the student's thread only.
#[derive(Debug)]
pub(super) struct StepClock {
    device: Device,
    answered: Option<Event>,
    running: VecDeque<(Event, Event)>,
}

impl StepClock {
    pub fn new(device: Device) -> Self {
        Self { device, answered: None, running: VecDeque::new() }
    }

    /// Starts a step: the student has its targets.
    pub fn start_step(&mut self) -> Result<(), DeviceError> {
        self.answered = Some(self.mark()?);
        Ok(())
    }

    /// Ends a step: the student requests the next targets. Returns the times of the steps that the device has finished.
    pub fn end_step(&mut self) -> Result<Vec<Duration>, DeviceError> {
        if let Some(start) = self.answered.take()
            && self.running.len() < MOST_RUNNING
        {
            let end = self.mark()?;
            self.running.push_back((start, end));
        }
        let mut finished = Vec::new();
        while let Some((start, end)) = self.running.front() {
            if !end.is_done()? {
                break;
            }
            finished.push(end.elapsed(start)?);
            self.running.pop_front();
        }
        Ok(finished)
    }

    /// Forgets the steps so far, whether they are finished or not.
    pub fn forget(&mut self) {
        self.answered = None;
        self.running.clear();
    }

    fn mark(&self) -> Result<Event, DeviceError> {
        let mut event = Event::new(self.device, true)?;
        event.record(&Stream::current(self.device)?)?;
        Ok(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_lasts_from_an_answer_to_the_next_question() {
        let mut clock = StepClock::new(Device::Cpu);
        assert!(clock.end_step().unwrap().is_empty(), "no step before the first answer");
        clock.start_step().unwrap();
        std::thread::sleep(Duration::from_millis(3));
        let steps = clock.end_step().unwrap();
        assert!(steps.len() == 1 && steps[0] >= Duration::from_millis(3), "{steps:?}");
        assert!(clock.end_step().unwrap().is_empty());
        clock.start_step().unwrap();
        clock.forget();
        assert!(clock.end_step().unwrap().is_empty(), "a step that was forgotten");
    }
}
