//! Parsers of the fields of a row: numbers, IDs and payloads, directly from bytes.

use crate::frame::PAYLOAD_BYTES;
use crate::report::RejectReason;

/// The largest arbitration ID: 29 bits.
pub const MAX_CAN_ID: u32 = 0x1FFF_FFFF;
/// Largest payload of a classic frame, in bytes.
pub const CLASSIC_BYTES: usize = 8;
/// Largest payload of a CAN FD frame, in bytes.
pub const FD_BYTES: usize = 64;

/// Fields of a row that are stored; further ones are only counted.
pub const MAX_FIELDS: usize = 80;

/// Longest number with a decimal comma that is read, in characters.
const LONGEST_NUMBER: usize = 64;

/// Marks bytes that are not hexadecimal digits in [`NIBBLE`].
const NOT_HEX: u8 = 0xF0;

/// Value of each hexadecimal digit.
const NIBBLE: [u8; 256] = {
    let mut table = [NOT_HEX; 256];
    let mut value = 0;
    while value < 16 {
        table[b"0123456789abcdef"[value] as usize] = value as u8;
        table[b"0123456789ABCDEF"[value] as usize] = value as u8;
        value += 1;
    }
    table
};

/// Powers of ten that `f64` holds exactly.
const POWERS_OF_TEN: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
    1e21, 1e22,
];

/// A payload's first eight bytes and its full length.
pub type Payload = ([u8; PAYLOAD_BYTES], u8);

/// Parses a plain decimal number such as `1513920189.391211` at the beginning of `text`; returns it and the rest.
///
/// `None` for anything that this fast path cannot convert exactly: [`timestamp`] then uses the slow path.
/// A mantissa of at most 2^53 divided by an exact power of ten is rounded once, so the value is the nearest `f64`.
#[inline]
pub fn leading_decimal(text: &[u8]) -> Option<(f64, &[u8])> {
    let mut mantissa = 0u64;
    let mut position = 0;
    let mut digits = |text: &[u8], position: &mut usize| {
        let first = *position;
        while let Some(digit) = text.get(*position).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit < 10) {
            mantissa = mantissa.wrapping_mul(10).wrapping_add(u64::from(digit));
            *position += 1;
        }
        *position - first
    };
    let whole = digits(text, &mut position);
    let mut fraction = 0;
    if text.get(position) == Some(&b'.') {
        position += 1;
        fraction = digits(text, &mut position);
    }
    // Nineteen digits never overflow 64 bits.
    if whole == 0 || whole + fraction > 19 || mantissa > 1 << 53 {
        return None;
    }
    Some((mantissa as f64 / POWERS_OF_TEN[fraction], &text[position..]))
}

/// Parses a timestamp in seconds, in any notation of a floating-point number.
pub fn timestamp(text: &[u8]) -> Result<f64, RejectReason> {
    if let Some((seconds, [])) = leading_decimal(text) {
        return Ok(seconds);
    }
    let text = std::str::from_utf8(text).map_err(|_| RejectReason::TimestampNotANumber)?;
    let seconds: f64 = text.parse().map_err(|_| RejectReason::TimestampNotANumber)?;
    if seconds.is_finite() { Ok(seconds) } else { Err(RejectReason::TimestampNotFinite) }
}

/// Parses a timestamp whose decimal mark may be a comma, as spreadsheets of some countries write it.
pub fn timestamp_with_comma(text: &[u8]) -> Result<f64, RejectReason> {
    let Some(comma) = text.iter().position(|byte| *byte == b',') else { return timestamp(text) };
    let mut copy = [0; LONGEST_NUMBER];
    let copy = copy.get_mut(..text.len()).ok_or(RejectReason::TimestampNotANumber)?;
    copy.copy_from_slice(text);
    copy[comma] = b'.';
    timestamp(copy)
}

/// Parses one to eight hexadecimal digits at the beginning of `text`; returns their value and the rest.
#[inline]
pub fn leading_hex(text: &[u8]) -> Option<(u32, &[u8])> {
    let mut value = 0u32;
    let mut position = 0;
    while let Some(nibble) = text.get(position).map(|byte| NIBBLE[usize::from(*byte)]).filter(|nibble| *nibble < 16) {
        value = value << 4 | u32::from(nibble);
        position += 1;
        if position > 8 {
            return None;
        }
    }
    if position == 0 { None } else { Some((value, &text[position..])) }
}

/// Parses an arbitration ID in hexadecimal, with or without `0x`.
pub fn can_id(text: &[u8]) -> Result<u32, RejectReason> {
    let digits = text.strip_prefix(b"0x").or_else(|| text.strip_prefix(b"0X")).unwrap_or(text);
    if digits.is_empty() || !is_hex(digits) {
        return Err(RejectReason::IdNotHex);
    }
    let significant = &digits[digits.iter().take_while(|digit| **digit == b'0').count()..];
    match leading_hex(significant) {
        _ if significant.is_empty() => Ok(0),
        Some((value, [])) if value <= MAX_CAN_ID => Ok(value),
        _ => Err(RejectReason::IdTooLarge),
    }
}

/// Parses hexadecimal digits without separators, two per byte, at most `limit_bytes` bytes.
#[inline]
pub fn packed_payload(digits: &[u8], limit_bytes: usize) -> Result<Payload, RejectReason> {
    let mut payload = [0u8; PAYLOAD_BYTES];
    let mut not_hex = 0;
    let (pairs, rest) = digits.as_chunks::<2>();
    for (position, pair) in pairs.iter().enumerate() {
        let (high, low) = (NIBBLE[usize::from(pair[0])], NIBBLE[usize::from(pair[1])]);
        not_hex |= high | low;
        if let Some(byte) = payload.get_mut(position) {
            *byte = high << 4 | low;
        }
    }
    if not_hex >= 16 || !is_hex(rest) {
        return Err(RejectReason::DataNotHex);
    }
    if !rest.is_empty() {
        return Err(RejectReason::OddDigits);
    }
    if pairs.len() > limit_bytes {
        return Err(RejectReason::TooManyBytes);
    }
    Ok((payload, pairs.len() as u8))
}

/// Parses base64 (RFC 4648, padded) of `length` bytes.
pub fn base64_payload(text: &[u8], length: usize) -> Result<Payload, RejectReason> {
    if text.len() != base64_characters(length) {
        return Err(RejectReason::LengthMismatch);
    }
    if length > FD_BYTES {
        return Err(RejectReason::TooManyBytes);
    }
    let mut payload = [0u8; PAYLOAD_BYTES];
    for (group, four) in text.chunks_exact(4).enumerate() {
        let mut bits = 0u32;
        for (position, &character) in four.iter().enumerate() {
            let at = 4 * group + position;
            // Eight bits a byte, six a character.
            let value = match at * 6 < length * 8 {
                true => base64_value(character).ok_or(RejectReason::DataNotBase64)?,
                false if character == b'=' => 0,
                false => return Err(RejectReason::DataNotBase64),
            };
            bits = bits << 6 | u32::from(value);
        }
        for (position, byte) in bits.to_be_bytes()[1..].iter().enumerate() {
            let at = 3 * group + position;
            if at < length && at < PAYLOAD_BYTES {
                payload[at] = *byte;
            }
        }
    }
    Ok((payload, length as u8))
}

/// Characters of base64 for this many bytes.
pub fn base64_characters(bytes: usize) -> usize {
    bytes.div_ceil(3) * 4
}

fn base64_value(character: u8) -> Option<u8> {
    match character {
        b'A'..=b'Z' => Some(character - b'A'),
        b'a'..=b'z' => Some(character - b'a' + 26),
        b'0'..=b'9' => Some(character - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

/// Parses one byte per token: in hexadecimal with one or two digits, or in decimal with `radix` 10.
pub fn listed_payload<'a>(
    tokens: impl Iterator<Item = &'a [u8]>,
    radix: u32,
    limit_bytes: usize,
) -> Result<Payload, RejectReason> {
    let mut payload = [0u8; PAYLOAD_BYTES];
    let mut length = 0usize;
    for token in tokens {
        let value = match (radix, token) {
            (16, [_] | [_, _]) => leading_hex(token).filter(|(_, rest)| rest.is_empty()).map(|(value, _)| value as u8),
            (10, _) => small_number(token).and_then(|value| u8::try_from(value).ok()),
            _ => None,
        };
        let value = value.ok_or(RejectReason::DataNotHex)?;
        if let Some(byte) = payload.get_mut(length) {
            *byte = value;
        }
        length += 1;
        if length > limit_bytes {
            return Err(RejectReason::TooManyBytes);
        }
    }
    Ok((payload, length as u8))
}

/// A row's fields between separators, without surrounding blanks and quotes.
pub struct Fields<'a> {
    fields: [&'a [u8]; MAX_FIELDS],
    /// Number of fields of the row; [`Fields::get`] returns the first [`MAX_FIELDS`].
    pub count: usize,
}

impl<'a> Fields<'a> {
    /// Splits `row` at every `separator`.
    pub fn split(row: &'a [u8], separator: u8) -> Fields<'a> {
        let mut fields = Fields { fields: [&[]; MAX_FIELDS], count: 0 };
        for field in row.split(|byte| *byte == separator) {
            if let Some(slot) = fields.fields.get_mut(fields.count) {
                *slot = unquote(field.trim_ascii());
            }
            fields.count += 1;
        }
        fields
    }

    /// The fields, at most [`MAX_FIELDS`].
    pub fn get(&self) -> &[&'a [u8]] {
        &self.fields[..self.count.min(MAX_FIELDS)]
    }
}

/// Words of a row, separated by whitespace.
pub fn words(row: &[u8]) -> impl Iterator<Item = &[u8]> {
    row.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

/// Parses a decimal number of one to three digits, such as a data length code.
pub fn small_number(text: &[u8]) -> Option<usize> {
    let digits = text.iter().all(u8::is_ascii_digit) && (1..=3).contains(&text.len());
    digits.then(|| text.iter().fold(0, |value, digit| value * 10 + usize::from(digit - b'0')))
}

/// The reason why a row was rejected: a NUL byte or invalid UTF-8 if there is one, else `reason`.
#[cold]
pub fn diagnose(row: &[u8], reason: RejectReason) -> RejectReason {
    if row.contains(&0) {
        RejectReason::NulByte
    } else if std::str::from_utf8(row).is_err() {
        RejectReason::InvalidUtf8
    } else {
        reason
    }
}

/// True if all bytes of `text` are hexadecimal digits.
pub fn is_hex(text: &[u8]) -> bool {
    text.iter().all(|byte| NIBBLE[usize::from(*byte)] < 16)
}

fn unquote(field: &[u8]) -> &[u8] {
    match field {
        [b'"', inner @ .., b'"'] => inner.trim_ascii(),
        _ => field,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn decimals_are_exact() {
        for text in ["0", "1513920189.391211", "1672531200.0", "0.000001", "9007199254740991", "12.", "1.10"] {
            let (value, rest) = leading_decimal(text.as_bytes()).unwrap();
            assert_eq!((value, rest), (text.parse::<f64>().unwrap(), &b""[..]), "{text}");
        }
        for text in ["", ".5", "-1", "nan", "99999999999999999999", "9007199254740993"] {
            assert_eq!(leading_decimal(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn timestamps_take_any_notation_of_a_finite_number() {
        assert_eq!(timestamp(b"1.5e3"), Ok(1500.0));
        assert_eq!(timestamp(b"-2"), Ok(-2.0));
        assert_eq!(timestamp(b"NaN"), Err(RejectReason::TimestampNotFinite));
        assert_eq!(timestamp(b"inf"), Err(RejectReason::TimestampNotFinite));
        assert_eq!(timestamp(b"1e999"), Err(RejectReason::TimestampNotFinite));
        assert_eq!(timestamp(b""), Err(RejectReason::TimestampNotANumber));
        assert_eq!(timestamp(b"12:30"), Err(RejectReason::TimestampNotANumber));
        assert_eq!(timestamp_with_comma(b"1513920189,391211"), Ok(1513920189.391211));
        assert_eq!(timestamp_with_comma(b"1.5"), Ok(1.5));
        for text in [&b"1,5,2"[..], b"1.000,5", &[b','; 100]] {
            assert_eq!(timestamp_with_comma(text), Err(RejectReason::TimestampNotANumber));
        }
    }

    #[test]
    fn ids_are_hexadecimal_always() {
        assert_eq!(can_id(b"100"), Ok(0x100));
        assert_eq!(can_id(b"0x7df"), Ok(0x7DF));
        assert_eq!(can_id(b"1FFFFFFF"), Ok(0x1FFF_FFFF));
        assert_eq!(can_id(b"0000000000012A"), Ok(0x12A));
        assert_eq!(can_id(b"0"), Ok(0));
        assert_eq!(can_id(b"20000000"), Err(RejectReason::IdTooLarge));
        assert_eq!(can_id(b"123456789"), Err(RejectReason::IdTooLarge));
        for text in ["", "0x", "12G", "-1", "1 2", "1.0"] {
            assert_eq!(can_id(text.as_bytes()), Err(RejectReason::IdNotHex), "{text}");
        }
    }

    #[test]
    fn payloads_name_what_is_wrong() {
        assert_eq!(packed_payload(b"", 8), Ok(([0; 8], 0)));
        assert_eq!(packed_payload(b"01aB", 8), Ok(([1, 0xAB, 0, 0, 0, 0, 0, 0], 2)));
        assert_eq!(packed_payload(b"012", 8), Err(RejectReason::OddDigits));
        assert_eq!(packed_payload(b"01 2", 8), Err(RejectReason::DataNotHex));
        assert_eq!(packed_payload(b"01Z", 8), Err(RejectReason::DataNotHex));
        assert_eq!(packed_payload(b"001122334455667788", 8), Err(RejectReason::TooManyBytes));
        assert_eq!(packed_payload(b"001122334455667788", 64).unwrap().1, 9);
        assert_eq!(listed_payload(words(b"1 ff 03"), 16, 8), Ok(([1, 255, 3, 0, 0, 0, 0, 0], 3)));
        assert_eq!(listed_payload(words(b"100"), 16, 8), Err(RejectReason::DataNotHex));
        assert_eq!(listed_payload(words(b"255"), 10, 8).unwrap().0[0], 255);
    }

    #[test]
    fn base64_is_that_of_rfc_4648() {
        // The test vectors of section 10.
        for (text, bytes) in [
            ("", ""),
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9vYg==", "foob"),
            ("Zm9vYmE=", "fooba"),
            ("Zm9vYmFy", "foobar"),
        ] {
            let mut expected = [0; PAYLOAD_BYTES];
            expected[..bytes.len()].copy_from_slice(bytes.as_bytes());
            assert_eq!(base64_payload(text.as_bytes(), bytes.len()), Ok((expected, bytes.len() as u8)), "{text}");
        }
        let long = base64_payload(b"AAECAwQFBgcICQoL", 12);
        assert_eq!(long, Ok(([0, 1, 2, 3, 4, 5, 6, 7], 12)));
        assert_eq!(base64_payload(b"+/8=", 2), Ok(([0xFB, 0xFF, 0, 0, 0, 0, 0, 0], 2)));
        assert_eq!(base64_payload(b"Zm8=", 3), Err(RejectReason::DataNotBase64));
        assert_eq!(base64_payload(b"Zm9v", 2), Err(RejectReason::DataNotBase64));
        assert_eq!(base64_payload(b"Zm9-", 3), Err(RejectReason::DataNotBase64));
        assert_eq!(base64_payload(b"Zm9v", 4), Err(RejectReason::LengthMismatch));
    }

    proptest! {
        #[test]
        fn any_decimal_text_gives_the_nearest_number(whole in 0u64..4_000_000_000, fraction in "[0-9]{0,9}") {
            let text = format!("{whole}.{fraction}");
            prop_assert_eq!(timestamp(text.as_bytes()), Ok(text.parse::<f64>().unwrap()));
        }

        #[test]
        fn no_text_makes_the_parsers_panic(text in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = (timestamp(&text), can_id(&text), packed_payload(&text, 8), listed_payload(words(&text), 16, 8));
            let _ = (Fields::split(&text, b',').count, small_number(&text), diagnose(&text, RejectReason::NotARow));
        }
    }
}
