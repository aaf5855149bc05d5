//! Times that are written as dates: `2023-11-14 22:13:20.001344`.

use super::fields;
use crate::report::RejectReason;

const SECONDS_A_DAY: f64 = 86_400.0;

/// Parses the time of a row of a table: a number, or a date with its time as other programs write it (ISO 8601). With another separator than a
/// comma, the decimal mark may be a comma.
///
/// # Errors
/// Any other text.
pub fn time_of_row(text: &[u8], separator: u8) -> Result<f64, RejectReason> {
    let number = match separator {
        b',' => fields::timestamp(text),
        _ => fields::timestamp_with_comma(text),
    };
    number.or_else(|reason| date_and_time(text).ok_or(reason))
}

/// Seconds since 1970 of `2023-11-14 22:13:20.001344` or `2023-11-14T22:13:20.001344Z`; the zone may also be `+01:00`. Without a zone, the time
/// is read as UTC.
#[cold]
fn date_and_time(text: &[u8]) -> Option<f64> {
    let (date, [_, rest @ ..]) = text.split_at_checked(text.iter().position(|byte| b" T".contains(byte))?)? else {
        return None;
    };
    let (time, offset) = match rest.iter().rposition(|byte| b"+-Z".contains(byte)) {
        None => (rest, 0.0),
        Some(at) => (&rest[..at], zone(&rest[at..])?),
    };
    Some(seconds(date, time)? - offset)
}

/// Seconds by which a zone is ahead of UTC: `Z`, `+01:00` or `-0530`.
fn zone(text: &[u8]) -> Option<f64> {
    let (sign, hours, minutes) = match text {
        b"Z" => return Some(0.0),
        [sign @ (b'+' | b'-'), hours @ .., b':', m, n] => (sign, hours, [*m, *n]),
        [sign @ (b'+' | b'-'), hours @ .., m, n] if hours.len() == 2 => (sign, hours, [*m, *n]),
        _ => return None,
    };
    let seconds = 3600 * number(hours, 0, 23)? + 60 * number(&minutes, 0, 59)?;
    Some(if *sign == b'-' { -(seconds as f64) } else { seconds as f64 })
}

fn number(text: &[u8], least: u64, most: u64) -> Option<u64> {
    let text = std::str::from_utf8(text).ok().filter(|text| text.bytes().all(|digit| digit.is_ascii_digit()))?;
    text.parse::<u64>().ok().filter(|number| (least..=most).contains(number))
}

/// Seconds since 1970 of a date such as `2023-11-14` and a time such as `22:13:20.001344`, as if in UTC; `None` for any other text.
pub fn seconds(date: &[u8], time: &[u8]) -> Option<f64> {
    let mut parts = date.split(|byte| *byte == b'-');
    let mut part = |least, most| number(parts.next()?, least, most);
    let (year, month, day) = (part(1970, 9999)?, part(1, 12)?, part(1, 31)?);
    let mut clock = time.split(|byte| *byte == b':');
    let (hours, minutes) = (number(clock.next()?, 0, 23)?, number(clock.next()?, 0, 59)?);
    let seconds = fields::timestamp(clock.next()?).ok().filter(|seconds| (0.0..61.0).contains(seconds))?;
    if parts.next().is_some() || clock.next().is_some() {
        return None;
    }
    // The year begins in March, so that the leap day is its last one.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year / 4 - year / 100 + year / 400;
    let days = 365 * year + leap_days + (153 * month + 2) / 5 + day - 1;
    // Days from 1 March of the year 0 to 1970.
    let days = days - 719_468;
    Some(days as f64 * SECONDS_A_DAY + (hours * 3600 + minutes * 60) as f64 + seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_seconds_since_1970() {
        // As `date -u -d '…' +%s` says.
        for (text, expected) in [
            ("1970-01-01 00:00:00.000000", 0.0),
            ("2000-02-29 23:59:59.5", 951_868_799.5),
            ("2000-03-01 00:00:00", 951_868_800.0),
            ("2023-11-14 22:13:20.001344", 1_700_000_000.001_344),
            ("2023-11-14T22:13:20.001344Z", 1_700_000_000.001_344),
            ("2023-11-14 22:13:20.5+00:00", 1_700_000_000.5),
            ("2023-11-14T23:13:20.5+01:00", 1_700_000_000.5),
            ("2023-11-14T16:43:20.5-0530", 1_700_000_000.5),
            ("2100-12-31 12:00:00", 4_133_937_600.0),
        ] {
            assert_eq!(time_of_row(text.as_bytes(), b','), Ok(expected), "{text}");
        }
        for text in [
            "2023-13-01 00:00:00",
            "2023-01-01 24:00:00",
            "2023-01-01 00:00",
            "23-1-1-1 0:0:0",
            "a-b-c d",
            "2023-01-01",
            "22:13:20.5",
            "2023-01-01 00:00:00+1",
            "2023-01-01 00:00:00+25:00",
            " ",
            "",
        ] {
            assert_eq!(time_of_row(text.as_bytes(), b';'), Err(RejectReason::TimestampNotANumber), "{text}");
        }
    }

    #[test]
    fn numbers_are_read_as_before() {
        assert_eq!((time_of_row(b"1.5", b','), time_of_row(b"1,5", b';')), (Ok(1.5), Ok(1.5)));
        assert_eq!(time_of_row(b"nan", b','), Err(RejectReason::TimestampNotFinite));
    }
}
