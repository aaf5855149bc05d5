//! The generated references in `docs/` are up to date.

use std::path::Path;

fn is_current(page: &str, expected: &str, command: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let difference = found.lines().zip(expected.lines()).position(|(found, expected)| found != expected);
    assert!(
        found == expected,
        "{page} is out of date (first at line {}); make it anew with\n  scripts/{command} > {page}",
        difference.unwrap_or(found.lines().count().min(expected.lines().count())) + 1
    );
}

#[test]
fn the_configuration_reference_is_current() {
    is_current("docs/configuration.md", &kdgat::config::reference(), "kdgat config --reference");
}

#[test]
fn the_reference_of_commands_is_current() {
    is_current("docs/commands.md", &kdgat::cli::reference(), "kdgat commands");
}
