//! Words of commands that are shown to be copied into a shell.

use std::path::Path;

/// One word, whatever is in it.
pub fn quoted(text: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+%=:,".contains(letter);
    if text.chars().all(plain) && !text.is_empty() {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// A path as one word.
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
}
