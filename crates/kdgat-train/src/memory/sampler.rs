//! `memory.csv`: memory of the process and its tensors, sampled by a thread of its own.

use std::cell::Cell;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use kdgat_torch::allocator::Phase;
use kdgat_torch::device;
use tch::Device;

use super::{Meter, ProcessMemory, activity, gpu};
use crate::logs::{CsvLog, LogError};

/// Sampler of memory. Dropping it writes the last sample and stops it.
#[derive(Debug)]
pub struct Sampler {
    /// Dropping it stops the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    /// Writes a first row at once and then one each `interval`. Appends to an existing file.
    ///
    /// # Errors
    /// If the file cannot be written, or the thread cannot be started.
    pub fn start(path: &Path, device: Device, interval: Duration) -> Result<Self, LogError> {
        let header = header();
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        // The seconds of a resumed run continue from its last row.
        let earlier = Cell::new(0.0f64);
        let log = CsvLog::resume(path, &header, |row| match row[0].parse::<f64>() {
            Ok(seconds) => {
                earlier.set(earlier.get().max(seconds));
                true
            }
            Err(_) => false,
        })?;
        let earlier_seconds = earlier.get();
        let mut samples = Samples { log, device, start: Instant::now(), earlier_seconds, failed: false };
        samples.write();
        let (stop, stopped) = bounded::<()>(0);
        let run = move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(interval) {
                samples.write();
            }
            samples.write();
        };
        let thread = std::thread::Builder::new().name("memory sampler".to_owned()).spawn(run);
        let thread = thread.map_err(|source| LogError::new(path, "start the sampler thread", source))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // Nothing in the thread should panic; if it did, only the log would end early.
            let _ = thread.join();
        }
    }
}

struct Samples {
    log: CsvLog,
    device: Device,
    start: Instant,
    earlier_seconds: f64,
    failed: bool,
}

impl Samples {
    fn write(&mut self) {
        if self.failed {
            return;
        }
        let row = row(self.device, self.earlier_seconds + self.start.elapsed().as_secs_f64());
        if let Err(error) = self.log.write(&row) {
            // Training continues; a full disk fails the run at its next checkpoint.
            tracing::warn!("memory.csv is no longer written: {error}");
            self.failed = true;
        }
    }
}

fn header() -> Vec<String> {
    let mut header: Vec<String> =
        ["seconds", "epoch", "phase", "process_bytes", "anonymous_bytes", "tensor_bytes", "tensor_peak_bytes"]
            .map(str::to_owned)
            .into();
    header.push("tensor_kept_bytes".to_owned());
    header.extend(Phase::ALL.iter().map(|phase| format!("{}_bytes", phase.name())));
    header.extend(["gpu_tensor_bytes", "gpu_reserved_bytes", "gpu_used_bytes"].map(str::to_owned));
    header
}

fn row(device: Device, seconds: f64) -> Vec<String> {
    let (epoch, activity) = activity::now();
    let process = ProcessMemory::now();
    let host = Meter::new(Device::Cpu).read();
    let mut row = vec![
        format!("{seconds:.3}"),
        epoch.to_string(),
        activity.name().to_owned(),
        process.resident_bytes.to_string(),
        process.anonymous_bytes.to_string(),
        host.current_bytes.to_string(),
        host.peak_bytes.to_string(),
        (host.reserved_bytes - host.host.in_use.min(host.reserved_bytes)).to_string(),
    ];
    row.extend(Phase::ALL.iter().map(|&phase| host.phase_bytes(phase).to_string()));
    match device.is_cuda().then(|| device::device_memory(device)) {
        Some(Ok(memory)) => {
            let used = gpu::used_bytes(device).map_or(String::new(), |bytes| bytes.to_string());
            row.extend([memory.allocated.to_string(), memory.reserved.to_string(), used]);
        }
        _ => row.extend([const { String::new() }; 3]),
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_written_at_the_start_at_each_interval_and_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memory.csv");
        let rows = || {
            let mut reader = csv::Reader::from_path(&path).unwrap();
            reader.records().map(|row| row.unwrap()[0].parse::<f64>().unwrap()).collect::<Vec<_>>()
        };
        let sampler = Sampler::start(&path, Device::Cpu, Duration::from_secs(3600)).unwrap();
        assert_eq!(rows().len(), 1);
        let start = Instant::now();
        drop(sampler);
        assert!(start.elapsed() < Duration::from_secs(5), "stopping waits for the interval");
        assert_eq!(rows().len(), 2);

        let sampler = Sampler::start(&path, Device::Cpu, Duration::from_millis(10)).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        drop(sampler);
        let seconds = rows();
        assert!(seconds.len() > 5, "{} rows", seconds.len());
        assert!(seconds.is_sorted(), "{seconds:?}");
    }
}
