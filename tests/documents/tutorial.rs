//! Runs the commands of a page and compares their output with the one shown.
//!
//! In a block fenced as `console`, a line that begins with `$ ` is a command (`> ` continues it). The lines below are its
//! output, standard output and standard error together. A command without lines below may print anything. In the output
//!
//! - `...` matches any text, and alone on a line any lines;
//! - numbers with a decimal point, numbers before a unit, and digests are not compared, because they depend on the machine;
//! - several blanks count as one.
//!
//! A block fenced with a language and the name of a file (`awk shapes.awk`) is written to that file, in the folder of the
//! commands around it.

use std::fmt::Write;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::starter;

/// Command of a page and its output.
struct Example {
    /// Line of the command in the page, from 1.
    line: usize,
    command: String,
    /// Lines of its output in the page, from 0.
    output: Range<usize>,
}

/// Units; a number before one of them depends on the machine.
const UNITS: &[&str] = &["%", "s", "ms", "graphs/s", "frames/s", "B", "kB", "MB", "GB", "KiB", "MiB", "GiB"];

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs all commands of a page in one shell, which starts in a copy of the repository's layout. Panics if a command fails or
/// prints something else. With the variable KDGAT_WRITE_TUTORIALS it writes the actual output into the page.
pub fn follow(page: &str, variables: &[(&str, PathBuf)]) {
    follow_prepared(page, variables, |_| {});
}

/// Like [`follow`], after `prepare` has written files into the folder above the repository's.
pub fn follow_prepared(page: &str, variables: &[(&str, PathBuf)], prepare: impl FnOnce(&Path)) {
    let path = repository().join(page);
    let text = fs::read_to_string(&path).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let examples = examples(&lines);
    assert!(examples.len() >= 10, "{page}: only {} commands found", examples.len());

    let place = tempfile::tempdir().unwrap();
    prepare(place.path());
    let printed = run(page, &examples, place.path(), variables);
    let writes = std::env::var_os("KDGAT_WRITE_TUTORIALS").is_some();
    let mut differences = String::new();
    for (example, printed) in examples.iter().zip(&printed) {
        let printed: Vec<&str> = printed.lines().collect();
        let shown: Vec<&str> = lines[example.output.clone()].iter().map(String::as_str).collect();
        if shown.is_empty() {
            continue;
        }
        match matched(&shown, &printed, writes) {
            Ok(places) => {
                for (line, place) in example.output.clone().zip(places) {
                    if let (true, Some(place), false) = (writes, place, lines[line].contains("...")) {
                        lines[line] = printed[place].trim_end().to_owned();
                    }
                }
            }
            Err(first) => {
                let Example { command, output, .. } = example;
                let (line, missing) = (output.start + first + 1, shown[first]);
                let _ = writeln!(
                    differences,
                    "{page}:{line}: `{command}` does not print this line where it should:\n  {missing}\nwhat it prints:\n{}\n",
                    printed.join("\n")
                );
            }
        }
    }
    if writes {
        fs::write(&path, lines.join("\n") + "\n").unwrap();
    }
    let advice = "`scripts/tutorials --write` puts the numbers of today into the page";
    assert!(differences.is_empty(), "{differences}{advice}");
}

/// Content of a fenced block.
#[derive(Clone, Copy, PartialEq)]
enum Block {
    Commands,
    File,
    Other,
}

/// Commands of the fenced blocks, with one that writes the file of a block with a name.
fn examples(lines: &[String]) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    let mut block = None;
    for (number, line) in lines.iter().enumerate() {
        if let Some(info) = line.strip_prefix("```") {
            if block == Some(Block::File) {
                examples.last_mut().unwrap().command += "\nEND_OF_FILE";
            }
            block = match (block, info, info.split_once(' ')) {
                (Some(_), _, _) => None,
                (None, "console", _) => Some(Block::Commands),
                (None, _, Some((_, name))) => {
                    let command = format!("cat > {name} <<'END_OF_FILE'");
                    examples.push(Example { line: number + 1, command, output: number + 1..number + 1 });
                    Some(Block::File)
                }
                (None, _, None) => Some(Block::Other),
            };
        } else if block == Some(Block::File) {
            let file = &mut examples.last_mut().unwrap().command;
            *file = format!("{file}\n{line}");
        } else if block != Some(Block::Commands) {
            continue;
        } else if let Some(command) = line.strip_prefix("$ ") {
            let command = command.to_owned();
            examples.push(Example { line: number + 1, command, output: number + 1..number + 1 });
        } else {
            let example = examples.last_mut().unwrap_or_else(|| panic!("line {}: output of no command", number + 1));
            match line.strip_prefix("> ") {
                Some(more) if example.output.is_empty() => {
                    example.command = format!("{}\n{more}", example.command);
                    example.output = number + 1..number + 1;
                }
                _ => example.output.end = number + 1,
            }
        }
    }
    examples
}

/// Runs the commands and returns the output of each.
fn run(page: &str, examples: &[Example], place: &Path, variables: &[(&str, PathBuf)]) -> Vec<String> {
    let (scripts, outputs) = (place.join("kdgat/scripts"), place.join("outputs"));
    fs::create_dir_all(&scripts).unwrap();
    fs::create_dir(&outputs).unwrap();
    let variable = starter::put_into(&scripts);

    let mut script = "set -o pipefail\n".to_owned();
    for (number, example) in examples.iter().enumerate() {
        let output = outputs.join(number.to_string());
        let _ = writeln!(script, "{{ {}\n}} > {} 2>&1 || exit 1", example.command, output.display());
    }
    let mut shell = Command::new("bash");
    shell.args(["-c", &script]).current_dir(place.join("kdgat")).stdin(Stdio::null());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("KDGAT_")) {
        shell.env_remove(name);
    }
    // Same settings as when the pages were written; one thread also keeps the time independent of the machine's load.
    shell
        .env("KDGAT_DEVICE", "cpu")
        .env("KDGAT_THREADS", "1")
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .envs(variable);
    let status = shell.status().unwrap();

    let read = |number: usize| fs::read_to_string(outputs.join(number.to_string())).ok();
    let printed: Vec<String> = (0..examples.len()).map_while(read).collect();
    if !status.success() {
        let last = printed.len().saturating_sub(1);
        let Example { line, command, .. } = &examples[last];
        panic!("{page}:{line}: `{command}` failed:\n{}", printed.get(last).map_or("", String::as_str));
    }
    printed
}

/// Returns the printed line for each shown line (`None` for `...`), or the first shown line without a match.
fn matched(shown: &[&str], printed: &[&str], any_number: bool) -> Result<Vec<Option<usize>>, usize> {
    let mut places = Vec::new();
    let mut furthest = 0;
    match match_from(shown, printed, (0, 0), any_number, &mut places, &mut furthest) {
        true => Ok(places),
        false => Err(furthest.min(shown.len() - 1)),
    }
}

fn match_from(
    shown: &[&str],
    printed: &[&str],
    (first_shown, first_printed): (usize, usize),
    any_number: bool,
    places: &mut Vec<Option<usize>>,
    furthest: &mut usize,
) -> bool {
    *furthest = (*furthest).max(first_shown);
    let Some(line) = shown.get(first_shown) else {
        return first_printed == printed.len();
    };
    if line.trim() == "..." {
        places.push(None);
        let found = (first_printed..=printed.len())
            .any(|next| match_from(shown, printed, (first_shown + 1, next), any_number, places, furthest));
        if !found {
            places.truncate(first_shown);
        }
        return found;
    }
    if !printed.get(first_printed).is_some_and(|printed| is_like(line, printed, any_number)) {
        return false;
    }
    places.push(Some(first_printed));
    let found = match_from(shown, printed, (first_shown + 1, first_printed + 1), any_number, places, furthest);
    if !found {
        places.truncate(first_shown);
    }
    found
}

/// True if a printed line matches the shown line.
fn is_like(shown: &str, printed: &str, any_number: bool) -> bool {
    let (shown, printed) = (stable(shown, any_number), stable(printed, any_number));
    let parts: Vec<&str> = shown.split("...").map(str::trim).collect();
    let [first, middle @ .., last] = parts.as_slice() else {
        return shown == printed;
    };
    let Some(mut rest) = printed.strip_prefix(first) else { return false };
    for part in middle {
        let Some(place) = rest.find(part) else { return false };
        rest = &rest[place + part.len()..];
    }
    rest.ends_with(last)
}

/// The line with machine-dependent words replaced.
fn stable(line: &str, any_number: bool) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let bare = |word: &str| word.trim_matches([',', ';', ':', '(', ')', '~']).to_owned();
    let replaced = words.iter().enumerate().map(|(index, word)| {
        let core = bare(word);
        let has_digit = core.contains(|letter: char| letter.is_ascii_digit());
        let is_number = has_digit && core.chars().all(|letter| letter.is_ascii_digit() || ".e+-–".contains(letter));
        let is_digest = has_digit && core.len() >= 12 && core.chars().all(|letter| letter.is_ascii_hexdigit());
        let has_unit = words.get(index + 1).is_some_and(|next| UNITS.contains(&bare(next).as_str()));
        let varies = is_digest || (is_number && (any_number || core.contains('.') || has_unit));
        if varies { word.replace(&core, "#") } else { (*word).to_owned() }
    });
    replaced.collect::<Vec<_>>().join(" ")
}

#[test]
fn what_varies_is_not_compared_and_all_else_is() {
    for (shown, printed) in [
        ("built 7780 graphs in 0.1 s", "built 7780  graphs in 12.5 s"),
        ("peak  66 MiB, waited 3 ms", "peak 5 MiB, waited 30 ms"),
        ("digest 9ceb57031e8a, of sim", "digest 0a1b2c3d4e5f, of sim"),
        ("epoch 1/8 ... val 0.3 ...", "epoch 1/8  train 0.1  val 0.25 *  lr 1e-3"),
    ] {
        assert!(is_like(shown, printed, false), "{shown} | {printed}");
    }
    for (shown, printed) in [
        ("built 7780 graphs in 0.1 s", "built 7781 graphs in 0.1 s"),
        ("peak 66 MiB", "peak 66 GiB"),
        ("epoch 1/8 ... val 0.3", "epoch 1/8 loss 0.3"),
        ("epoch 1/8", "epoch 1/8 and more"),
    ] {
        assert!(!is_like(shown, printed, false), "{shown} | {printed}");
    }
    assert_eq!(matched(&["a", "...", "d"], &["a", "b", "c", "d"], false), Ok(vec![Some(0), None, Some(3)]));
    assert_eq!(matched(&["a", "d"], &["a", "b", "d"], false), Err(1));
    assert_eq!(matched(&["a", "..."], &["a"], false), Ok(vec![Some(0), None]));
    assert!(matched(&["a"], &["a", "b"], false).is_err());
}

#[test]
fn a_block_with_a_name_is_a_file() {
    let page =
        ["```awk a.awk", "$1 > 2", "```", "text", "```sh", "not run", "```", "```console", "$ ls", "a.awk", "```"];
    let found = examples(&page.map(str::to_owned));
    let commands: Vec<&str> = found.iter().map(|example| example.command.as_str()).collect();
    assert_eq!(commands, ["cat > a.awk <<'END_OF_FILE'\n$1 > 2\nEND_OF_FILE", "ls"]);
    assert_eq!(found[1].output, 9..10);
}
