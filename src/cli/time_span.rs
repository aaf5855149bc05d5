//! Durations on the command line: `500ms`, `10s`, `5min`, `1h`.

use std::time::Duration;

/// Longest duration that is accepted: a day.
const LONGEST_SECONDS: f64 = 86_400.0;
/// Units and their seconds.
const UNITS: [(&str, f64); 4] = [("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("h", 3600.0)];

/// Parses a duration from 0 to 24h.
pub fn parse(text: &str) -> Result<Duration, String> {
    let expected =
        || "expected a duration up to 24h with its unit (ms, s, min or h), such as 500ms, 10s or 5min".to_owned();
    let text = text.trim();
    let begin = text.find(|letter: char| letter.is_ascii_alphabetic()).ok_or_else(expected)?;
    let (number, unit) = text.split_at(begin);
    let number = number.trim_end();
    let per_unit = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(expected)?.1;
    // Plain decimals only: no sign, and no exponent, which would look like a unit.
    if !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(expected());
    }
    let seconds = number.parse::<f64>().map_err(|_| expected())? * per_unit;
    if seconds <= LONGEST_SECONDS { Ok(Duration::from_secs_f64(seconds)) } else { Err(expected()) }
}

/// Parses a duration above 0, up to 24h.
pub fn parse_positive(text: &str) -> Result<Duration, String> {
    let duration = parse(text)?;
    if duration.is_zero() { Err("expected a duration above 0, such as 500ms".to_owned()) } else { Ok(duration) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        for (text, milliseconds) in [
            ("500ms", 500),
            ("10s", 10_000),
            ("0.5s", 500),
            (" 1.5 min ", 90_000),
            ("24h", 86_400_000),
            ("0s", 0),
            ("1440min", 86_400_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in [
            "",
            "10",
            "s",
            "ms",
            "-1s",
            "+1s",
            "1e3s",
            "1m",
            "5 minutes",
            "10S",
            "25h",
            "NaNs",
            "inf s",
            "1.2.3s",
            "1s1s",
            "١s",
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains("such as 500ms, 10s or 5min"), "{text}: {error}");
        }
        assert!(parse_positive("0ms").unwrap_err().contains("above 0"));
        assert_eq!(parse_positive("1ms"), Ok(Duration::from_millis(1)));
    }
}
