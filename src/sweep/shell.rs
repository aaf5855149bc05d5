//! Words for a shell.

/// One word, whatever is in it.
pub fn quoted(text: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+%=:,".contains(letter);
    if text.chars().all(plain) && !text.is_empty() {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_the_shell() {
        assert_eq!(quoted("/a/b-1.log"), "/a/b-1.log");
        assert_eq!(quoted("/a b/c"), "'/a b/c'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
