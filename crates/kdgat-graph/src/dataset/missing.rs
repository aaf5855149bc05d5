//! Texts that stand for a value that is not there.

/// Texts that other programs write for a missing value, besides an empty field: pandas' list, R's `NA`, and the `?` of UCI's tables.
/// `Na` and `none` are not among them: sodium and a class of that name are values.
const MISSING: [&str; 13] =
    ["NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "NULL", "null", "None", "NaT", "?", "1.#IND", "1.#QNAN"];

/// True if a text stands for no value: empty, NaN in any case, or one of the usual marks.
pub fn is_missing(text: &str) -> bool {
    let text = text.trim();
    text.is_empty() || text.trim_start_matches(['-', '+']).eq_ignore_ascii_case("nan") || MISSING.contains(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_other_programs_are_no_values() {
        for text in ["", " ", "nan", "NaN", "NAN", "-nan", "NA", "N/A", "<NA>", "null", "None", "?"] {
            assert!(is_missing(text), "{text:?}");
        }
        for text in ["Na", "none", "0", "-", "nano", "inf", "NAB", "a"] {
            assert!(!is_missing(text), "{text:?}");
        }
    }
}
