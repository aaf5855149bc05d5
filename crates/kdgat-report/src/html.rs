//! Text for HTML: escaping, and unique names.

use std::collections::HashSet;

/// Escapes text for use between tags and in attributes.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // Control characters are not allowed in HTML.
            letter if letter.is_control() && letter != '\n' => safe.push('\u{FFFD}'),
            letter => safe.push(letter),
        }
    }
    safe
}

/// Converts text to the name of a file or an HTML id: lower-case letters, digits and hyphens.
pub fn slug(text: &str) -> String {
    let mut slug = String::new();
    for letter in text.chars() {
        match letter {
            letter if letter.is_ascii_alphanumeric() => slug.push(letter.to_ascii_lowercase()),
            _ if !slug.is_empty() && !slug.ends_with('-') => slug.push('-'),
            _ => {}
        }
    }
    slug.trim_end_matches('-').to_owned()
}

/// Generator of unique names: a repeated name gets a number.
#[derive(Debug, Default)]
pub struct Names {
    given: HashSet<String>,
}

impl Names {
    /// Returns the name, with the first free number from 2 on if it is taken.
    pub fn apart(&mut self, name: &str) -> String {
        let numbered = (2..).map(|number| format!("{name}-{number}"));
        let free = std::iter::once(name.to_owned()).chain(numbered).find(|name| !self.given.contains(name));
        let free = free.unwrap_or_default();
        self.given.insert(free.clone());
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_gets_out_of_its_place() {
        assert_eq!(escaped("<script>\"a\" & 'b'\u{7}"), "&lt;script&gt;&quot;a&quot; &amp; &#39;b&#39;\u{FFFD}");
        assert_eq!(slug("../GAT student (KD)/1"), "gat-student-kd-1");
        assert_eq!(slug("\"><x"), "x");
    }

    #[test]
    fn no_name_is_given_twice() {
        let mut names = Names::default();
        let given = ["losses-a-1", "losses-a-1", "losses-a-1-2", "losses-a-1", "b"].map(|name| names.apart(name));
        assert_eq!(given, ["losses-a-1", "losses-a-1-2", "losses-a-1-2-2", "losses-a-1-3", "b"]);
    }
}
