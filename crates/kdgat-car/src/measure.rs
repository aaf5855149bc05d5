//! Figures of an exported detector on this machine: flash, memory, and time a window.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::CarError;

/// Measured figures of an export.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Bytes of code and constants, compiled with `-Os`.
    pub flash_small: u64,
    /// The same, compiled with `-O2`.
    pub flash_fast: u64,
    /// Bytes of `kdgat_state`.
    pub state: u64,
    /// Sizes of a calibration; none for two models together.
    pub calibration: Option<CalibrationBytes>,
    /// Mean number of nodes of the windows of the test vectors.
    pub mean_nodes: f64,
    /// Their largest number of nodes.
    pub most_nodes: u64,
    /// Microseconds of processor time a window, compiled with `-O2`.
    pub microseconds: f64,
    /// The same with the IDs that weigh most.
    pub microseconds_explained: f64,
}

/// Bytes of a calibration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CalibrationBytes {
    /// Bytes of `kdgat_calibration`, which only a calibration in progress needs.
    pub in_progress: u64,
    /// Bytes of a saved calibration.
    pub saved: u64,
}

/// Compiles the export in `folder` with `cc` into a temporary folder, runs it on its test vectors, and returns its figures.
///
/// # Errors
/// Fails if there is no compiler or no `size`, or one of them fails.
pub fn measure(folder: &Path) -> Result<Measured, CarError> {
    let build = tempfile::tempdir()
        .map_err(|error| CarError::Tool { command: "temporary folder".to_owned(), problem: error.to_string() })?;
    // The compiler runs in the folder of the objects.
    let folder = &std::path::absolute(folder).map_err(|error| of_folder(folder, &error))?;
    let sources = sources(folder)?;
    let flash_small = flash(&objects(folder, &sources, "-Os", build.path())?)?;
    let fast = objects(folder, &sources, "-O2", build.path())?;
    let flash_fast = flash(&fast)?;
    let program = build.path().join("measure");
    let mut compile = Command::new("cc");
    compile.args(["-std=c99", "-O2", "-I"]).arg(folder).arg(folder.join("test/kdgat_measure.c"));
    run(compile.args(&fast).arg("-o").arg(&program).arg("-lm"))?;
    let figures = run(&mut Command::new(&program))?;
    let number = |name: &str| -> Result<f64, CarError> {
        let value = figures.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let missing = || CarError::Tool { command: "kdgat_measure".to_owned(), problem: format!("prints no {name}") };
        value.and_then(|value| value.parse().ok()).ok_or_else(missing)
    };
    Ok(Measured {
        flash_small,
        flash_fast,
        state: number("state")? as u64,
        calibration: match figures.contains("calibration ") {
            true => {
                Some(CalibrationBytes { in_progress: number("calibration")? as u64, saved: number("saved")? as u64 })
            }
            false => None,
        },
        mean_nodes: number("mean_nodes")?,
        most_nodes: number("most_nodes")? as u64,
        microseconds: number("microseconds")?,
        microseconds_explained: number("microseconds_explained")?,
    })
}

/// C files of the detector itself.
fn sources(folder: &Path) -> Result<Vec<PathBuf>, CarError> {
    let problem = |error: std::io::Error| of_folder(folder, &error);
    let mut sources = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(problem)? {
        let path = entry.map_err(problem)?.path();
        if path.extension().is_some_and(|extension| extension == "c") {
            sources.push(path);
        }
    }
    sources.sort();
    Ok(sources)
}

fn of_folder(folder: &Path, error: &std::io::Error) -> CarError {
    CarError::Tool { command: folder.display().to_string(), problem: error.to_string() }
}

/// Compiles each source into an object of the folder `build`.
fn objects(folder: &Path, sources: &[PathBuf], level: &str, build: &Path) -> Result<Vec<PathBuf>, CarError> {
    let mut compile = Command::new("cc");
    run(compile.current_dir(build).args(["-std=c99", level, "-I"]).arg(folder).arg("-c").args(sources))?;
    let object = |source: &PathBuf| build.join(source.file_stem().unwrap_or_default()).with_extension("o");
    Ok(sources.iter().map(object).collect())
}

/// Bytes of code and constants.
fn flash(objects: &[PathBuf]) -> Result<u64, CarError> {
    let table = run(Command::new("size").args(objects))?;
    // Lines after the first: text, data, bss, their sum twice, and the file.
    let bytes = |line: &str| -> Option<u64> {
        let mut fields = line.split_whitespace();
        Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
    };
    let sums: Option<Vec<u64>> = table.lines().skip(1).map(bytes).collect();
    let problem = || CarError::Tool { command: "size".to_owned(), problem: format!("unexpected output: {table}") };
    sums.map(|sums| sums.iter().sum()).ok_or_else(problem)
}

/// Runs a command; returns its standard output.
fn run(command: &mut Command) -> Result<String, CarError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let failed = |problem: String| CarError::Tool { command: name.clone(), problem };
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    String::from_utf8(output.stdout).map_err(|error| failed(error.to_string()))
}
