//! `kdgat doctor`: examines this machine.

use std::process::ExitCode;

use anyhow::Result;

use super::output;
use crate::distill::planner::format_bytes;
use crate::doctor::{self, DeviceReport, Exchange, Report};
use crate::stage::StageError;

/// Examines the machine and prints what was found. Processes that a launcher has started measure their exchange, and the first one prints.
pub fn print(json: bool, threads: Option<i32>) -> Result<ExitCode> {
    if let Some(threads) = threads {
        tch::set_num_threads(threads);
    }
    let exchange = doctor::examine_exchange().map_err(StageError::from)?;
    if exchange.as_ref().is_some_and(|(_, reports)| !reports) {
        return Ok(ExitCode::SUCCESS);
    }
    let report = Report { exchange: exchange.map(|(exchange, _)| exchange), ..doctor::examine() };
    let text = if json { serde_json::to_string_pretty(&report)? + "\n" } else { describe(&report) };
    output::write(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn describe(report: &Report) -> String {
    let host = &report.host;
    let folder = report.libtorch_folder.as_ref().map_or("unknown folder".to_owned(), |path| path.display().to_string());
    let mut lines = vec![
        ("kdgat", report.kdgat_version.clone()),
        ("libtorch", format!("{} in {folder}", report.libtorch_version)),
        ("CUDA", report.cuda_library.detail.clone()),
        ("driver", driver(report)),
    ];
    // The kernel compiler matters only with a GPU.
    if report.cuda_library.works {
        lines.push(("kernels", report.kernel_compiler.detail.clone()));
    }
    for gpu in &report.driver.gpus {
        let (free, total) = (format_bytes(gpu.memory_free_bytes), format_bytes(gpu.memory_total_bytes));
        let capability =
            gpu.compute_capability.as_ref().map_or(String::new(), |text| format!(", compute capability {text}"));
        lines.push(("GPU", format!("{}, {free} free of {total}{capability}", gpu.name)));
        if let Some(reason) = &gpu.unusable {
            lines.push(("GPU", format!("{} cannot be used: {reason}", gpu.name)));
        }
    }
    for device in &report.devices {
        lines.extend(describe_device(device));
    }
    if let Some(reason) = &report.no_cuda_device {
        lines.push(("devices", format!("cpu; no GPU for libtorch: {reason}")));
    }
    lines.extend([
        ("processor", format!("{}, {} cores, libtorch uses {} threads", host.processor, host.cores, host.threads)),
        ("vectors", format!("{} in kdgat, {} in libtorch", host.vectors, host.libtorch_vectors)),
        ("memory", format!("{} available", format_bytes(host.memory_available_bytes))),
        ("copies", format!("memory to memory {}", host.copy_bytes_per_second.map_or("unknown".to_owned(), rate))),
    ]);
    lines.extend(report.exchange.iter().flat_map(describe_exchange));
    lines.into_iter().map(|(name, value)| format!("{name:<12} {value}\n")).collect()
}

fn driver(report: &Report) -> String {
    let driver = &report.driver;
    match (&driver.missing, &driver.version) {
        (Some(reason), _) => reason.clone(),
        (None, version) => {
            let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "unknown".to_owned());
            format!("NVIDIA {}, CUDA up to {}", known(version), known(&driver.cuda_version))
        }
    }
}

fn describe_device(device: &DeviceReport) -> Vec<(&'static str, String)> {
    let (free, total) = (format_bytes(device.memory_free_bytes), format_bytes(device.memory_total_bytes));
    let locked = &device.page_locked_memory;
    let mut lines = vec![
        ("device", format!("{}, {free} free of {total}", device.name)),
        ("page-locked", if locked.works { "works".to_owned() } else { format!("no: {}", locked.detail) }),
    ];
    match &device.copies {
        Err(reason) => lines.push(("copies", format!("could not be measured: {reason}"))),
        Ok(copies) => {
            let locked = copies.page_locked_bytes_per_second.map_or("not possible".to_owned(), rate);
            let pageable = rate(copies.pageable_bytes_per_second);
            lines.push(("copies", format!("host to {}: page-locked {locked}, pageable {pageable}", device.name)));
            if let Some(overlap) = &copies.overlap {
                lines.push(("overlap", describe_overlap(overlap)));
            }
        }
    }
    lines
}

fn describe_exchange(exchange: &Exchange) -> [(&'static str, String); 2] {
    let Exchange { processes, address, meeting_seconds, small_sum_ms, .. } = exchange;
    let place = if exchange.shares_memory { "in shared memory" } else { "over Gloo" };
    let large = rate(exchange.sum_bytes_per_second);
    [
        ("processes", format!("{processes} have met at {address} within {meeting_seconds:.1} s")),
        ("sums", format!("one number in {small_sum_ms:.2} ms {place}, 4 MiB at {large}")),
    ]
}

fn describe_overlap(overlap: &doctor::Overlap) -> String {
    let verdict =
        if overlap.hidden_share > 0.5 { "copies overlap with computation" } else { "copies wait for computation" };
    format!(
        "{verdict}: {:.0} % of {:.1} ms hidden (computation alone {:.1} ms, both {:.1} ms)",
        100.0 * overlap.hidden_share,
        overlap.copy_ms,
        overlap.computation_ms,
        overlap.both_ms
    )
}

fn rate(bytes_per_second: f64) -> String {
    format!("{}/s", format_bytes(bytes_per_second as u64))
}
