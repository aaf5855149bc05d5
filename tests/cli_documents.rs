//! What the documents name is there: files behind links, commands, flags.

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
        // The book begins with a page of its own: what mdBook makes of a page outside of it lands outside, too.
        let is_no_page = ["SUMMARY.md", "README.md"].contains(&name.as_str());
        assert!(is_no_page || summary.contains(&format!("({name})")), "docs/SUMMARY.md does not list {name}");
    }
}

/// The blocks of code of a page, without what sessions (`console`) print: lines that are fenced, or indented by four blanks; each
/// with its number.
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

/// What a line says to kdgat, if it is a command: `./scripts/kdgat`, at a prompt, behind a pipe; up to a comment, a pipe, or what
/// is written to.
fn arguments(line: &str) -> Option<Vec<String>> {
    let line = line.strip_prefix("$ ").unwrap_or(line);
    let line = line.strip_prefix("candump -L can0 | ").unwrap_or(line);
    let line = line.strip_prefix("./scripts/").unwrap_or(line).strip_prefix("kdgat ")?;
    let ends = ["  ", " #", " | ", " > ", " 2>", " &&"].map(|end| line.find(end).unwrap_or(line.len()));
    let words = line[..ends.into_iter().min().unwrap_or(line.len())].split_whitespace();
    Some(words.map(|word| word.trim_matches(['"', '\'']).to_owned()).collect())
}

/// `status|cancel FOLDER` is two commands.
fn alternatives(words: &[String]) -> Vec<Vec<String>> {
    let Some((word, rest)) = words.split_first() else { return vec![Vec::new()] };
    let tails = alternatives(rest);
    let with =
        |choice: &str| tails.iter().map(|tail| [&[choice.to_owned()], tail.as_slice()].concat()).collect::<Vec<_>>();
    word.split('|').flat_map(with).collect()
}

/// Lines such as `kdgat autoencoder --preset vgae,student` parse, and their presets load.
#[test]
fn commands_in_the_documents_parse() {
    let mut found = 0;
    for document in documents() {
        // Usages, not commands; they are made from what parses.
        if document.ends_with("docs/commands.md") {
            continue;
        }
        let text = fs::read_to_string(&document).unwrap();
        for (number, line) in code(&text) {
            let Some(words) = arguments(line) else { continue };
            // What goes on in the next line is checked by who runs it.
            if words.last().is_some_and(|word| word == "\\") {
                continue;
            }
            for words in alternatives(&words) {
                let line = ["kdgat"].into_iter().chain(words.iter().map(String::as_str)).map(std::ffi::OsString::from);
                let place = format!("{}:{number}: kdgat {}", document.display(), words.join(" "));
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
