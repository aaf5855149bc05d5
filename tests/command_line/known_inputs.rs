//! Inputs as other tools and people write them: `tests/data/cases/cases.csv` says what each command answers.
//!
//! A row has the `input` (a file or folder of `tests/data/cases`; several are separated by spaces), a `setup` (a shell command that runs first, in the
//! workplace; may be empty), the `command` (arguments of `kdgat`, separated by spaces), its `exit_code`, and `says`: fragments that the output
//! contains, in this order, separated by ` … `. A fragment that begins with `!` must not appear at all.

use std::path::{Path, PathBuf};
use std::process::Command;

use support::cli::{Workplace, copy_folder, said};

/// One row of the table.
#[derive(serde::Deserialize)]
struct Case {
    input: String,
    setup: String,
    command: String,
    exit_code: i32,
    says: String,
}

fn cases_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/cases")
}

fn cases() -> Vec<Case> {
    let path = cases_folder().join("cases.csv");
    let mut reader = csv::Reader::from_path(&path).unwrap();
    reader.deserialize().map(|row| row.unwrap_or_else(|error| panic!("{}: {error}", path.display()))).collect()
}

/// Copies an input into the workplace, under the same relative path.
fn copy_input(input: &str, workplace: &Workplace) {
    let (from, to) = (cases_folder().join(input), workplace.path().join(input));
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    if from.is_dir() {
        copy_folder(&from, &to);
    } else {
        std::fs::copy(&from, &to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    }
}

/// Describes what differs from the row, or returns `None`.
fn difference(case: &Case, exit_code: Option<i32>, said: &str) -> Option<String> {
    if exit_code != Some(case.exit_code) {
        return Some(format!("exit code {exit_code:?} instead of {}", case.exit_code));
    }
    let mut rest = said;
    for fragment in case.says.split(" … ").filter(|fragment| !fragment.is_empty()) {
        if let Some(forbidden) = fragment.strip_prefix('!') {
            if said.contains(forbidden) {
                return Some(format!("'{forbidden}' must not be said"));
            }
            continue;
        }
        let Some(at) = rest.find(fragment) else { return Some(format!("'{fragment}' is missing, or out of order")) };
        rest = &rest[at + fragment.len()..];
    }
    None
}

fn run(case: &Case) -> Option<String> {
    let workplace = if case.command.contains("{teacher}") { Workplace::with_teacher() } else { Workplace::new() };
    case.input.split_whitespace().for_each(|input| copy_input(input, &workplace));
    if !case.setup.is_empty() {
        let status = Command::new("sh").args(["-c", &case.setup]).current_dir(workplace.path()).status().unwrap();
        assert!(status.success(), "setup of '{}' failed: {}", case.input, case.setup);
    }
    let command = case.command.replace("{teacher}", "teachers/small/vgae");
    let arguments: Vec<&str> = command.split_whitespace().collect();
    let output = workplace.run(&arguments);
    let said = said(&output);
    let difference = difference(case, output.status.code(), &said)?;
    Some(format!("{}: kdgat {command}\n  {difference}; it said:\n{said}", case.input))
}

#[test]
fn inputs_of_other_tools_are_read_or_refused_as_the_table_says() {
    let failures: Vec<String> = cases().iter().filter_map(run).collect();
    assert!(failures.is_empty(), "{} cases differ:\n\n{}", failures.len(), failures.join("\n\n"));
}

#[test]
fn every_input_has_a_row() {
    let rows = cases();
    for kind in ["can", "graphs", "hostile"] {
        for entry in std::fs::read_dir(cases_folder().join(kind)).unwrap() {
            let name = format!("{kind}/{}", entry.unwrap().file_name().to_str().unwrap());
            let named = |case: &Case| case.input.split_whitespace().any(|input| input == name);
            assert!(rows.iter().any(named), "{name} has no row in cases.csv");
        }
    }
}
