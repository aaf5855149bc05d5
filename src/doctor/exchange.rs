//! The exchange between processes that a launcher has started: whether they meet, and how fast they add up.

use std::time::{Duration, Instant};

use serde::Serialize;
use tch::{Device, Kind, Tensor};

use crate::train::processes::place;
use crate::train::processes::{Meeting, ProcessError, Processes};

/// Numbers of a large sum: 4 MiB.
const LARGE: i64 = 1 << 20;
/// Sums of each size, after one that warms up.
const ROUNDS: usize = 11;
/// Time for the other processes to come.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Measurements of the processes that meet.
#[derive(Debug, Serialize)]
pub struct Exchange {
    /// Number of processes.
    pub processes: usize,
    /// The place of process 0's store.
    pub address: String,
    /// True if all are on one machine, where small sums go through shared memory; others go over Gloo.
    pub shares_memory: bool,
    /// Time from the start of this process's search until all had met.
    pub meeting_seconds: f64,
    /// Median time of a sum of one number over all processes.
    pub small_sum_ms: f64,
    /// Bytes of a tensor of 4 MiB, divided by the median time of its sum over all processes.
    pub sum_bytes_per_second: f64,
}

/// Meets the other processes and measures; `None` for a process without a launcher. The flag is true for the process that reports.
///
/// # Errors
/// Variables that contradict each other, or processes that do not come or do not belong to these.
pub fn examine() -> Result<Option<(Exchange, bool)>, ProcessError> {
    let Some(place) = place::from_environment()? else { return Ok(None) };
    let (start, address) = (Instant::now(), format!("{}:{}", place.host, place.port));
    let processes = Processes::join(place, &Meeting { run: "doctor", timeout: TIMEOUT })?;
    processes.wait_for_all()?;
    let meeting_seconds = start.elapsed().as_secs_f64();
    let small_seconds = median_seconds(&processes, 1)?;
    let large_seconds = median_seconds(&processes, LARGE)?;
    let exchange = Exchange {
        processes: processes.size(),
        address,
        shares_memory: processes.shares_memory(),
        meeting_seconds,
        small_sum_ms: 1e3 * small_seconds,
        sum_bytes_per_second: (4 * LARGE) as f64 / large_seconds,
    };
    processes.finish()?;
    Ok(Some((exchange, processes.is_first())))
}

/// Median time of a sum of so many numbers, which is checked.
fn median_seconds(processes: &Processes, numbers: i64) -> Result<f64, ProcessError> {
    let (rank, size) = (processes.rank() as f64, processes.size() as f64);
    let mut seconds = Vec::with_capacity(ROUNDS);
    for round in 0..=ROUNDS {
        let mut tensor = Tensor::f_full([numbers], rank + 1.0, (Kind::Float, Device::Cpu))?;
        processes.wait_for_all()?;
        let start = Instant::now();
        processes.sum(&mut tensor)?;
        if round > 0 {
            seconds.push(start.elapsed().as_secs_f64());
        }
        let (found, expected) = (tensor.f_mean(Kind::Double)?.f_double_value(&[])?, size * (size + 1.0) / 2.0);
        if found != expected {
            return Err(ProcessError::Meeting(format!(
                "the sum of 1 to {size} over {size} processes is {found}, expected {expected}"
            )));
        }
    }
    seconds.sort_unstable_by(f64::total_cmp);
    Ok(seconds[ROUNDS / 2])
}
