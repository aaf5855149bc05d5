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
        assert!(name == "SUMMARY.md" || summary.contains(&name), "docs/SUMMARY.md does not list {name}");
    }
}

/// Lines such as `./scripts/kdgat autoencoder --preset vgae,student` parse, and their presets load.
#[test]
fn commands_in_the_readme_parse() {
    let text = fs::read_to_string(repository().join("README.md")).unwrap();
    let mut found = 0;
    for line in text.lines().map(str::trim).filter_map(|line| line.strip_prefix("./scripts/kdgat ")) {
        let arguments = line.split('#').next().unwrap().split_whitespace();
        let line = ["kdgat"].into_iter().chain(arguments).map(std::ffi::OsString::from);
        let cli = kdgat::cli::parse(line).unwrap_or_else(|error| panic!("{error}"));
        if let kdgat::cli::Command::Autoencoder(settings) = cli.command {
            let loaded = kdgat::config::load(&settings.sources()).unwrap();
            kdgat::config::check_stage(&loaded, kdgat::config::Stage::Autoencoder).unwrap();
        }
        found += 1;
    }
    assert!(found >= 3, "only {found} commands found");
}
