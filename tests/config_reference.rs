//! The reference in `docs/` says what the program does.

use std::path::Path;

#[test]
fn the_configuration_reference_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let expected = kdgat::config::reference();
    let difference = found.lines().zip(expected.lines()).position(|(found, expected)| found != expected);
    assert!(
        found == expected,
        "docs/configuration.md is out of date (first at line {}); make it anew with\n  \
         scripts/kdgat config --reference > docs/configuration.md",
        difference.unwrap_or(found.lines().count().min(expected.lines().count())) + 1
    );
}
