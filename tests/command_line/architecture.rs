//! Compares the table of rooms in docs/dev/architecture.md with the imports of the code.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Rooms that each room uses.
type Arrows = BTreeMap<String, BTreeSet<String>>;

/// Names in `crate::` of the root package that stand for a crate or for a module of one (see src/lib.rs).
const SHORT_NAMES: &[(&str, &str)] = &[
    ("can", "kdgat-can"),
    ("car", "kdgat-car"),
    ("config", "kdgat-config"),
    ("curriculum", "kdgat-curriculum"),
    ("detect", "kdgat-detect"),
    ("distill", "kdgat-distill"),
    ("evaluate", "kdgat-evaluate"),
    ("exit", "kdgat-base"),
    ("files", "kdgat-base"),
    ("fusion", "kdgat-fusion"),
    ("graph", "kdgat-graph"),
    ("interrupt", "kdgat-train"),
    ("memory", "kdgat-train"),
    ("nn", "kdgat-nn"),
    ("nodes", "kdgat-nodes"),
    ("onnx", "kdgat-onnx"),
    ("notices", "kdgat-train"),
    ("random", "kdgat-base"),
    ("report", "kdgat-report"),
    ("shell", "kdgat-base"),
    ("sweep", "kdgat-sweep"),
    ("terminal", "kdgat-train"),
    ("torch", "kdgat-torch"),
    ("train", "kdgat-train"),
];

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_below(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let is_rust = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "rs");
    files_below(folder).into_iter().filter(is_rust).collect()
}

/// Code of a file without comments and without its module of unit tests.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let program = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    program.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Identifiers that follow `prefix` in `code`, including those in `prefix{a, b::c}`.
fn named_after<'a>(code: &'a str, prefix: &str) -> Vec<&'a str> {
    let identifier = |text: &'a str| {
        let end = text.find(|letter: char| !(letter.is_alphanumeric() || letter == '_')).unwrap_or(text.len());
        &text[..end]
    };
    let mut found = Vec::new();
    for rest in code.split(prefix).skip(1) {
        match rest.strip_prefix('{') {
            Some(list) => {
                let mut depth = 1;
                let mut start = true;
                for (position, letter) in list.char_indices() {
                    match letter {
                        '{' => depth += 1,
                        '}' => depth -= 1,
                        ',' if depth == 1 => start = true,
                        letter if depth == 1 && start && !letter.is_whitespace() => {
                            found.push(identifier(&list[position..]));
                            start = false;
                        }
                        _ => {}
                    }
                    if depth == 0 {
                        break;
                    }
                }
            }
            None => found.push(identifier(rest)),
        }
    }
    found
}

/// Crates that the sources of the crate `of` use; `kdgat_config.h` is a file.
fn crates_named_in(code: &str, of: &str) -> BTreeSet<String> {
    let is_path = |name: &&str| [" as ", "::"].iter().any(|end| code.contains(&format!("kdgat_{name}{end}")));
    let named =
        named_after(code, "kdgat_").into_iter().filter(is_path).map(|name| format!("kdgat-{}", name.replace('_', "-")));
    named.filter(|name| name != of && repository().join("crates").join(name).is_dir()).collect()
}

fn arrows_of_crates() -> Arrows {
    let crates = fs::read_dir(repository().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let crates = crates.filter(|path| path.is_dir()).map(|path| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let used = sources(&path.join("src")).iter().flat_map(|file| crates_named_in(&code(file), &name)).collect();
        (name, used)
    });
    crates.collect()
}

fn arrows_of_the_program() -> Arrows {
    let src = repository().join("src");
    let mut arrows = Arrows::new();
    for file in sources(&src) {
        let inside = file.strip_prefix(&src).unwrap();
        let room = inside.components().next().unwrap().as_os_str().to_string_lossy().trim_end_matches(".rs").to_owned();
        if room == "lib" || room == "main" {
            continue;
        }
        let code = code(&file);
        let mut used = crates_named_in(&code, "kdgat");
        for name in named_after(&code, "crate::") {
            let short = SHORT_NAMES.iter().find(|(short, _)| *short == name);
            used.insert(short.map_or(name, |(_, room)| room).to_owned());
        }
        used.remove(&room);
        arrows.entry(room).or_default().extend(used);
    }
    arrows
}

/// Rooms of the table in order, and the rooms that each uses.
fn table() -> (Vec<String>, Arrows) {
    let text = fs::read_to_string(repository().join("docs/dev/architecture.md")).unwrap();
    let rows =
        text.lines().skip_while(|line| !line.starts_with("| room |")).skip(2).take_while(|line| line.starts_with('|'));
    let mut order = Vec::new();
    let mut arrows = Arrows::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let room = cells[0].trim_matches('`').to_owned();
        let used = cells[2].split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
        order.push(room.clone());
        assert!(arrows.insert(room, used).is_none(), "{row}: the room stands twice in the table");
    }
    (order, arrows)
}

#[test]
fn the_table_lists_every_room_and_every_arrow() {
    let mut found = arrows_of_crates();
    found.extend(arrows_of_the_program());
    let (_, listed) = table();
    assert_eq!(found.keys().collect::<Vec<_>>(), listed.keys().collect::<Vec<_>>(), "rooms found, rooms in the table");
    for (room, used) in &found {
        let forbidden: Vec<_> = used.difference(&listed[room]).collect();
        assert!(forbidden.is_empty(), "{room} uses {forbidden:?}, which docs/dev/architecture.md does not allow");
        let unused: Vec<_> = listed[room].difference(used).collect();
        assert!(unused.is_empty(), "{room} does not use {unused:?}: remove it from docs/dev/architecture.md");
    }
}

#[test]
fn a_room_uses_only_rooms_further_down_so_that_there_is_no_circle() {
    let (order, arrows) = table();
    assert!(order.len() > 15, "the table was not read: {order:?}");
    for (position, room) in order.iter().enumerate() {
        for used in &arrows[room] {
            let below = order[position + 1..].contains(used);
            assert!(below, "{room} uses {used}, which does not stand below it in docs/dev/architecture.md");
        }
    }
}

/// CUDA kernels (`.cu`) are beside the layers that they compute; kdgat-torch compiles them. The C files of kdgat-car are text that it exports.
#[test]
fn unsafe_code_lies_in_two_crates_and_cpp_in_one() {
    // Readers of stores need maps of files, and no libtorch.
    const MAPPED: &str = "crates/kdgat-mapped/src/lib.rs";
    let mut cpp = 0;
    for folder in ["src", "crates"] {
        for file in files_below(&repository().join(folder)) {
            let inside = file.strip_prefix(repository()).unwrap();
            let extension = file.extension().unwrap_or_default();
            let is_cpp = ["cc", "cpp", "cxx", "h", "hpp"].iter().any(|known| extension == *known);
            let is_unsafe = extension == "rs" && code(&file).contains("allow(unsafe_code)");
            cpp += usize::from(is_cpp);
            let is_exported = inside.starts_with("crates/kdgat-car/c");
            if (is_cpp && !is_exported) || (is_unsafe && inside != Path::new(MAPPED)) {
                assert!(inside.starts_with("crates/kdgat-torch"), "{}: belongs to kdgat-torch", inside.display());
            }
        }
    }
    assert!(cpp > 0, "no C++ file was found");
    let manifest = fs::read_to_string(repository().join("Cargo.toml")).unwrap();
    assert!(manifest.contains("unsafe_code = \"deny\""), "Cargo.toml no longer denies unsafe code");
    for name in arrows_of_crates().keys() {
        let manifest = fs::read_to_string(repository().join("crates").join(name).join("Cargo.toml")).unwrap();
        assert!(manifest.contains("[lints]\nworkspace = true"), "{name} does not take the lints of the workspace");
    }
}

#[test]
fn imports_are_read_as_they_are_written() {
    let code = "use crate::{torch, graph::{Batch, Store}, sweep::plan};\nlet x = crate::nn::Vgae::new();";
    assert_eq!(named_after(code, "crate::"), ["torch", "graph", "sweep", "nn"]);
}
