//! Rows of results: printed as a table or as JSON, and saved in files named by the hardware.

use std::fmt::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use kdgat::doctor;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tch::Device;

use super::Error;

/// Value and the value of its peer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    pub bench: String,
    pub row: String,
    pub metric: String,
    pub value: f64,
    pub unit: String,
    pub peer: Option<String>,
    pub peer_value: Option<f64>,
    /// Above 1 if better than the peer.
    pub ratio: Option<f64>,
}

/// Prints each row when it is added, or all of them as a table at the end.
#[derive(Debug)]
pub struct Rows {
    bench: &'static str,
    json: bool,
    rows: Vec<Row>,
}

impl Rows {
    pub fn new(bench: &'static str, json: bool) -> Self {
        Self { bench, json, rows: Vec::new() }
    }

    /// Adds a value and, if there is a peer, the peer's name, value and ratio.
    pub fn add(
        &mut self,
        row: &str,
        (metric, unit): (&'static str, &'static str),
        value: f64,
        peer: Option<(&str, f64, f64)>,
    ) {
        let row = Row {
            bench: self.bench.to_owned(),
            row: row.to_owned(),
            metric: metric.to_owned(),
            value,
            unit: unit.to_owned(),
            peer: peer.map(|(name, ..)| name.to_owned()),
            peer_value: peer.map(|(_, value, _)| value),
            ratio: peer.map(|(.., ratio)| ratio),
        };
        if self.json
            && let Ok(line) = serde_json::to_string(&row)
        {
            println!("{line}");
        }
        self.rows.push(row);
    }

    /// Keeps the file's rows of other measurements if this version wrote them on this day.
    fn keep_others(&mut self, path: &Path) {
        let text = std::fs::read(path).unwrap_or_default();
        let before: Value = serde_json::from_slice(&text).unwrap_or_default();
        if before["date"] != json!(today()) || before["version"] != json!(env!("CARGO_PKG_VERSION")) {
            return;
        }
        let rows: Vec<Row> = serde_json::from_value(before["rows"].clone()).unwrap_or_default();
        let is_new = |row: &Row| self.rows.iter().any(|new| new.row == row.row && new.metric == row.metric);
        let others: Vec<Row> = rows.into_iter().filter(|row| !is_new(row)).collect();
        self.rows.splice(0..0, others);
    }

    /// Prints the table, and writes `NAME-HARDWARE.json` and `.md` into `results`, if given.
    pub fn finish(mut self, device: Device, results: Option<&Path>) -> Result<(), Error> {
        let table = self.table();
        if !self.json {
            print!("{table}");
        }
        let Some(folder) = results else { return Ok(()) };
        std::fs::create_dir_all(folder)?;
        let hardware = hardware(device);
        let name = format!("{}-{}", self.bench, slug(hardware["name"].as_str().unwrap_or("unknown")));
        self.keep_others(&folder.join(format!("{name}.json")));
        let table = self.table();
        let document = json!({
            "bench": self.bench,
            "date": today(),
            "version": env!("CARGO_PKG_VERSION"),
            "hardware": hardware,
            "rows": self.rows,
        });
        let json = serde_json::to_string_pretty(&document)? + "\n";
        std::fs::write(folder.join(format!("{name}.json")), json)?;
        let heading = format!(
            "# {}\n\n{}, kdgat {}, {}\n\n",
            self.bench,
            today(),
            env!("CARGO_PKG_VERSION"),
            hardware["description"].as_str().unwrap_or("")
        );
        std::fs::write(folder.join(format!("{name}.md")), heading + &table)?;
        eprintln!("written: {}", folder.join(name).display());
        Ok(())
    }

    fn table(&self) -> String {
        let number = |value: f64| {
            if value.abs() >= 100.0 { format!("{value:.0}") } else { format!("{value:.3}") }
        };
        let optional = |value: Option<f64>| value.map_or(String::new(), number);
        let mut text = String::from(
            "| row | metric | value | unit | peer | peer's value | ratio |\n|---|---|--:|---|---|--:|--:|\n",
        );
        for row in &self.rows {
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} |",
                row.row,
                row.metric,
                number(row.value),
                row.unit,
                row.peer.as_deref().unwrap_or(""),
                optional(row.peer_value),
                row.ratio.map_or(String::new(), |ratio| format!("{ratio:.3}")),
            );
        }
        text
    }
}

/// Hardware of the measurement.
pub fn hardware(device: Device) -> Value {
    let (processor, threads) = (doctor::processor(), tch::get_num_threads());
    let cores = std::thread::available_parallelism().map_or(1, |count| count.get());
    let gpu = match device {
        Device::Cuda(index) => doctor::driver().gpus.into_iter().nth(index).map(|gpu| gpu.name),
        _ => None,
    };
    let host = format!("{processor}, {cores} cores, {threads} threads");
    json!({
        "name": gpu.clone().unwrap_or_else(|| format!("{processor} {threads} threads")),
        "description": gpu.map_or(host.clone(), |gpu| format!("{gpu}; {host}")),
        "processor": processor,
        "cores": cores,
        "threads": threads,
        "device": format!("{device:?}").to_lowercase(),
    })
}

/// Converts a text to a part of a file name.
fn slug(text: &str) -> String {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect::<Vec<_>>().join("-")
}

/// Current date (UTC), such as `2026-11-21`.
pub fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    // Days since 0000-03-01, in eras of 400 years (Howard Hinnant's civil_from_days).
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = 400 * era + year_of_era + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}
