//! Shell quoting for commands shown to the user, and the command line of this process.

use std::ffi::OsString;
use std::path::Path;
use std::sync::OnceLock;

static COMMAND: OnceLock<String> = OnceLock::new();

/// Records the command line, program name first. Only the program itself calls it: in another process, such as a test
/// binary, the arguments mean something else.
pub fn note_command(arguments: impl Iterator<Item = OsString>) {
    // Drop the path of the executable: it is not part of the command's meaning.
    let words = std::iter::once("kdgat".to_owned())
        .chain(arguments.skip(1).map(|argument| quoted(&argument.to_string_lossy())))
        .collect::<Vec<_>>();
    // Only the first call counts.
    let _ = COMMAND.set(words.join(" "));
}

/// The command line of this process, if it was recorded.
pub fn command() -> Option<&'static str> {
    COMMAND.get().map(String::as_str)
}

/// Quotes a text as one shell word.
pub fn quoted(text: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+%=:,".contains(letter);
    if text.chars().all(plain) && !text.is_empty() {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// Quotes a path as one shell word.
pub fn quoted_path(path: &Path) -> String {
    quoted(&path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_blanks_are_one_word() {
        assert_eq!(quoted_path(Path::new("/a/b-1.log")), "/a/b-1.log");
        assert_eq!(quoted_path(Path::new("/my data/car")), "'/my data/car'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn the_command_is_noted_once_and_can_be_copied() {
        let arguments = ["target/kdgat", "autoencoder", "--data", "my car", "--lr=0.1"];
        note_command(arguments.into_iter().map(OsString::from));
        note_command(["kdgat", "doctor"].into_iter().map(OsString::from));
        assert_eq!(command(), Some("kdgat autoencoder --data 'my car' --lr=0.1"));
    }
}
