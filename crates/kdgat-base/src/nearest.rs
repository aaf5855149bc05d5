//! The known name that a mistyped one was meant to be.

/// The one of `known` that is most like `name`, whatever the case; the first of equals.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> &'a str {
    let name = name.to_lowercase();
    let mut best = ("", -1.0);
    for candidate in known {
        let likeness = strsim::normalized_damerau_levenshtein(&name, &candidate.to_lowercase());
        if likeness > best.1 {
            best = (candidate, likeness);
        }
    }
    best.0
}
