//! The documents refer only to existing files, commands and flags.

use std::fs;
use std::path::{Path, PathBuf};

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn documents() -> Vec<PathBuf> {
    let docs = fs::read_dir(repository().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = docs.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.chain([repository().join("README.md")]).collect()
}

#[test]
fn links_lead_somewhere() {
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for part in text.split("](").skip(1) {
            let link = part.split([')', '#']).next().unwrap();
            if !link.is_empty() && !link.contains("://") {
                let target = document.parent().unwrap().join(link);
                assert!(target.exists(), "{} links to {link}, which does not exist", document.display());
            }
        }
    }
}

#[test]
fn every_page_is_in_the_summary() {
    let summary = fs::read_to_string(repository().join("docs/SUMMARY.md")).unwrap();
    for document in documents() {
        let name = document.file_name().unwrap().to_string_lossy().into_owned();
        // The README is not a page of the book: mdBook would write a page outside of its folder.
        let is_no_page = ["SUMMARY.md", "README.md"].contains(&name.as_str());
        assert!(is_no_page || summary.contains(&format!("({name})")), "docs/SUMMARY.md does not list {name}");
    }
}

/// Code lines of a page with their line numbers: fenced, or indented by four blanks. Output in `console` blocks is left out.
fn code(text: &str) -> Vec<(usize, &str)> {
    let mut fence = None;
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        match (line.strip_prefix("```"), fence) {
            (Some(language), None) => fence = Some(language),
            (Some(_), Some(_)) => fence = None,
            (None, Some("console")) if !line.starts_with("$ ") => {}
            (None, Some(_)) => lines.push((number, line)),
            (None, None) if line.starts_with("    ") => lines.push((number, line.trim())),
            (None, None) => {}
        }
    }
    lines
}

/// Arguments of kdgat in a line, if it runs kdgat: as `./scripts/kdgat`, at a prompt, or after a pipe; up to a comment, a pipe or
/// a redirection.
fn arguments(line: &str) -> Option<Vec<String>> {
    let line = line.strip_prefix("$ ").unwrap_or(line);
    let line = line.strip_prefix("candump -L can0 | ").unwrap_or(line);
    let line = line.strip_prefix("./scripts/").unwrap_or(line).strip_prefix("kdgat ")?;
    let ends = ["  ", " #", " | ", " > ", " 2>", " &&"].map(|end| line.find(end).unwrap_or(line.len()));
    let words = line[..ends.into_iter().min().unwrap_or(line.len())].split_whitespace();
    Some(words.map(|word| word.trim_matches(['"', '\'']).to_owned()).collect())
}

/// Expands alternatives: `status|cancel FOLDER` is two commands.
fn alternatives(words: &[String]) -> Vec<Vec<String>> {
    let Some((word, rest)) = words.split_first() else { return vec![Vec::new()] };
    let tails = alternatives(rest);
    let with =
        |choice: &str| tails.iter().map(|tail| [&[choice.to_owned()], tail.as_slice()].concat()).collect::<Vec<_>>();
    word.split('|').flat_map(with).collect()
}

/// Command lines such as `kdgat autoencoder --preset vgae,student` parse, and their presets load.
#[test]
fn commands_in_the_documents_parse() {
    let mut found = 0;
    for document in documents() {
        // Usage lines, not commands; they are generated from the parser.
        if document.ends_with("docs/commands.md") {
            continue;
        }
        let text = fs::read_to_string(&document).unwrap();
        for (number, line) in code(&text) {
            let Some(words) = arguments(line) else { continue };
            // Commands of several lines are checked by the tests that run them.
            if words.last().is_some_and(|word| word == "\\") {
                continue;
            }
            for words in alternatives(&words) {
                let line = ["kdgat"].into_iter().chain(words.iter().map(String::as_str)).map(std::ffi::OsString::from);
                let place = format!("{}:{number}: kdgat {}", document.display(), words.join(" "));
                if words == ["--version"] {
                    continue;
                }
                let cli = kdgat::cli::parse(line).unwrap_or_else(|error| panic!("{place}\n{error}"));
                if let kdgat::cli::Command::Autoencoder(settings) = cli.command {
                    let loaded =
                        kdgat::config::load(&settings.sources()).unwrap_or_else(|error| panic!("{place}\n{error}"));
                    kdgat::config::check_stage(&loaded, kdgat::config::Stage::Autoencoder)
                        .unwrap_or_else(|error| panic!("{place}\n{error}"));
                }
                found += 1;
            }
        }
    }
    assert!(found >= 60, "only {found} commands found");
}
