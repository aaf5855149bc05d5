//! C source text of constants.

use std::fmt::Write;

/// Maximum length of a line of numbers.
const MOST_COLUMNS: usize = 120;

/// C source code under construction. Every method appends.
#[derive(Debug, Default)]
pub struct CText {
    text: String,
}

impl CText {
    /// Appends a line.
    pub fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Appends a comment of one or more lines.
    pub fn comment(&mut self, comment: &str) {
        let body = comment.lines().collect::<Vec<_>>().join("\n * ");
        // The text may contain names that a user chose.
        self.line(&format!("/* {} */", body.replace("*/", "* /")));
    }

    /// Appends `#define name value`.
    pub fn define(&mut self, name: &str, value: impl std::fmt::Display) {
        self.line(&format!("#define {name} {value}"));
    }

    /// Appends a constant array of single-precision numbers. An empty array gets one zero: C99 has no empty arrays.
    pub fn floats(&mut self, name: &str, values: &[f32]) {
        self.array("float", name, values.iter().map(|&value| float(value)));
    }

    /// Appends a constant array of double-precision numbers; see [`CText::floats`].
    pub fn doubles(&mut self, name: &str, values: &[f64]) {
        self.array("double", name, values.iter().map(|&value| double(value)));
    }

    /// Appends a constant array of integers of type `kind`, such as `uint32_t`; see [`CText::floats`].
    pub fn integers(&mut self, kind: &str, name: &str, values: impl IntoIterator<Item = i64>) {
        let suffix = if kind.starts_with('u') { "u" } else { "" };
        self.array(kind, name, values.into_iter().map(|value| format!("{value}{suffix}")));
    }

    /// Like [`CText::floats`], for an array that only this file uses.
    pub fn local_floats(&mut self, name: &str, values: &[f32]) {
        self.text.push_str("static ");
        self.floats(name, values);
    }

    /// Like [`CText::integers`], for an array that only this file uses.
    pub fn local_integers(&mut self, kind: &str, name: &str, values: impl IntoIterator<Item = i64>) {
        self.text.push_str("static ");
        self.integers(kind, name, values);
    }

    fn array(&mut self, kind: &str, name: &str, values: impl Iterator<Item = String>) {
        let (mut lines, mut line, mut count) = (String::new(), String::from("   "), 0);
        for value in values {
            if line.len() + value.len() + 2 > MOST_COLUMNS {
                lines.push_str(&line);
                lines.push('\n');
                line = String::from("   ");
            }
            // Writing to a string cannot fail.
            let _ = write!(line, " {value},");
            count += 1;
        }
        if count == 0 {
            line.push_str(" 0,");
        }
        let _ = write!(self.text, "const {kind} {name}[{}] = {{\n{lines}{line}\n}};\n", count.max(1));
    }

    /// The text so far.
    pub fn into_string(self) -> String {
        self.text
    }
}

/// A C literal with exactly this value: the shortest decimal that reads back as the same number.
pub fn float(value: f32) -> String {
    if value.is_nan() || value.is_infinite() {
        return non_finite(f64::from(value)).to_owned();
    }
    format!("{value:e}f")
}

/// A C literal with exactly this value; see [`float`].
pub fn double(value: f64) -> String {
    if value.is_nan() || value.is_infinite() {
        return non_finite(value).to_owned();
    }
    format!("{value:e}")
}

fn non_finite(value: f64) -> &'static str {
    match value {
        value if value.is_nan() => "NAN",
        value if value > 0.0 => "INFINITY",
        _ => "(-INFINITY)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_exact_and_typed() {
        assert_eq!((float(0.1), float(-1.0), float(0.0)), ("1e-1f".into(), "-1e0f".into(), "0e0f".into()));
        assert_eq!(
            (double(1.0 / 3.0), float(f32::NEG_INFINITY)),
            ("3.333333333333333e-1".into(), "(-INFINITY)".into())
        );
        for value in [f32::MIN_POSITIVE, f32::MAX, 1.000_000_1, 1e-45] {
            assert_eq!(float(value).trim_end_matches('f').parse(), Ok(value));
        }
    }

    #[test]
    fn arrays_are_wrapped_and_never_empty() {
        let mut text = CText::default();
        text.floats("kdgat_none", &[]);
        text.integers("uint8_t", "kdgat_bytes", (0..100).map(|_| 255));
        text.comment("a */ b\nc");
        let text = text.into_string();
        assert!(text.starts_with("const float kdgat_none[1] = {\n    0,\n};\n"), "{text}");
        assert!(text.contains("const uint8_t kdgat_bytes[100] = {\n    255u, 255u,"), "{text}");
        assert!(text.ends_with("/* a * / b\n * c */\n"), "{text}");
        assert!(text.lines().all(|line| line.len() <= MOST_COLUMNS), "{text}");
    }
}
