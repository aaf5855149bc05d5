//! Vector's ASC logs: `   2.501000 1  C8              Rx   d 8 09 08 07 06 05 04 03 02`.
//!
//! The preamble sets whether numbers are hexadecimal or decimal (`base`) and whether timestamps count from the
//! beginning or from the previous row (`timestamps`). CAN frames (`d`), remote frames (`r`) and CAN FD frames
//! (`CANFD`) are read; error frames are counted; rows of other buses, statistics, comments, and messages of several frames (`J1939TP`)
//! are skipped. Timestamps are in seconds since the start of the measurement. The channel is the interface. The format has no labels.

use super::fields::{self, CLASSIC_BYTES, FD_BYTES, MAX_CAN_ID};
use super::{LineFormat, Row};
use crate::frame::Frame;
use crate::report::{FrameKind, RejectReason};

/// Beginnings of lines that are not rows.
const PREAMBLE: [&[u8]; 8] = [
    b"date ",
    b"base ",
    b"//",
    b"internal events",
    b"no internal events",
    b"begin trigger",
    b"end trigger",
    b"no triggers",
];
/// Words after the timestamp of an event that is not a frame on a CAN bus.
const EVENTS: [&[u8]; 12] =
    [b"start", b"can", b"log", b"sv:", b"lin", b"fr", b"eth", b"most", b"gps:", b"trigger", b"begin", b"end"];

/// Words in the place of the ID in an event of a CAN channel that is not a frame: a statistic, or a message whose frames have rows of their
/// own.
const NO_FRAMES: [&[u8]; 2] = [b"statistic", b"j1939tp"];

/// Parser of this format.
pub struct Asc {
    /// Base of IDs and data: 16 or 10.
    radix: u32,
    relative: bool,
    /// Time of the last row in seconds; relative timestamps count from it.
    now: f64,
}

impl Default for Asc {
    fn default() -> Self {
        Self { radix: 16, relative: false, now: 0.0 }
    }
}

impl LineFormat for Asc {
    fn parse_line(&mut self, line: &[u8]) -> Row {
        let text = line.trim_ascii();
        if PREAMBLE.iter().any(|word| begins_with(text, word)) {
            self.read_base(text);
            return Row::Skipped;
        }
        self.parse(text).unwrap_or_else(|reason| Row::Rejected(fields::diagnose(line, reason)))
    }

    fn interface<'a>(&self, line: &'a [u8]) -> Option<&'a [u8]> {
        let mut words = fields::words(line).skip(1);
        words.next().and_then(|word| if word.eq_ignore_ascii_case(b"canfd") { words.next() } else { Some(word) })
    }
}

impl Asc {
    /// Reads a line such as `base hex  timestamps absolute`.
    fn read_base(&mut self, text: &[u8]) {
        let words: Vec<Vec<u8>> = fields::words(text).map(<[u8]>::to_ascii_lowercase).collect();
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        if let [b"base", base, rest @ ..] = words.as_slice() {
            self.radix = if *base == b"dec" { 10 } else { 16 };
            self.relative = matches!(rest, [b"timestamps", b"relative", ..]);
        }
    }

    fn parse(&mut self, text: &[u8]) -> Result<Row, RejectReason> {
        let mut words = fields::words(text);
        let stamp = fields::timestamp(words.next().ok_or(RejectReason::FieldCount)?)?;
        let channel = words.next().ok_or(RejectReason::FieldCount)?;
        let now = if self.relative { self.now + stamp } else { stamp };
        // Finite steps can add up to infinity.
        if !now.is_finite() {
            return Err(RejectReason::TimestampNotFinite);
        }
        self.now = now;
        if channel.eq_ignore_ascii_case(b"canfd") {
            return self.flexible(words);
        }
        if fields::small_number(channel).is_some() {
            return self.classic(words);
        }
        let known = EVENTS.iter().any(|event| begins_with(channel, event));
        if known { Ok(Row::Skipped) } else { Err(RejectReason::NotARow) }
    }

    /// Parses `C8 Rx d 8 09 08 …`, or another event of a CAN channel.
    fn classic<'a>(&self, mut words: impl Iterator<Item = &'a [u8]>) -> Result<Row, RejectReason> {
        let mut word = || words.next().ok_or(RejectReason::FieldCount);
        let id = word()?;
        if id.eq_ignore_ascii_case(b"errorframe") || id.eq_ignore_ascii_case(b"overloadframe") {
            return Ok(Row::ErrorFrame);
        }
        if NO_FRAMES.iter().any(|event| begins_with(id, event)) {
            return Ok(Row::Skipped);
        }
        let can_id = self.id(id)?;
        direction(word()?)?;
        match word()? {
            kind if kind.eq_ignore_ascii_case(b"r") => {
                Ok(Row::Frame(self.frame(can_id, Default::default()), FrameKind::Remote))
            }
            kind if kind.eq_ignore_ascii_case(b"d") => {
                let length = self.number(word()?).ok_or(RejectReason::LengthMismatch)?;
                // A length code of 9 to 15 means 8 bytes (ISO 11898-1).
                let length = if length <= 15 { length.min(CLASSIC_BYTES) } else { length };
                let payload = self.payload(words, length, CLASSIC_BYTES)?;
                Ok(Row::Frame(self.frame(can_id, payload), FrameKind::Data))
            }
            _ => Err(RejectReason::NotARow),
        }
    }

    /// Parses `3 Rx 300 Name 1 0 8 8 01 02 …`: channel, direction, ID, an optional name, bit rate switch, error state, length
    /// code, length, data.
    fn flexible<'a>(&self, mut words: impl Iterator<Item = &'a [u8]>) -> Result<Row, RejectReason> {
        let mut word = || words.next().ok_or(RejectReason::FieldCount);
        fields::small_number(word()?).ok_or(RejectReason::NotARow)?;
        direction(word()?)?;
        let id = word()?;
        if id.eq_ignore_ascii_case(b"errorframe") {
            return Ok(Row::ErrorFrame);
        }
        let can_id = self.id(id)?;
        let mut switch = word()?;
        if !matches!(switch, b"0" | b"1") {
            switch = word()?; // the previous word was the message's name
        }
        let (_error_state, _length_code) = (word()?, word()?);
        let length = fields::small_number(word()?).ok_or(RejectReason::LengthMismatch)?;
        if !matches!(switch, b"0" | b"1") {
            return Err(RejectReason::NotARow);
        }
        let payload = self.payload(words, length, FD_BYTES)?;
        Ok(Row::Frame(self.frame(can_id, payload), FrameKind::FlexibleDataRate))
    }

    fn frame(&self, can_id: u32, (payload, payload_length): fields::Payload) -> Frame {
        Frame { timestamp: self.now, can_id, payload, payload_length, attack: false }
    }

    /// Parses the first `length` words as bytes; others (`Length = …`, `BitCount = …`) may follow.
    fn payload<'a>(
        &self,
        words: impl Iterator<Item = &'a [u8]>,
        length: usize,
        limit_bytes: usize,
    ) -> Result<fields::Payload, RejectReason> {
        if length > limit_bytes {
            return Err(RejectReason::TooManyBytes);
        }
        let payload = fields::listed_payload(words.take(length), self.radix, limit_bytes)?;
        if usize::from(payload.1) == length { Ok(payload) } else { Err(RejectReason::LengthMismatch) }
    }

    /// Parses an ID; a trailing `x` marks 29 bits.
    fn id(&self, word: &[u8]) -> Result<u32, RejectReason> {
        let digits = word.strip_suffix(b"x").or_else(|| word.strip_suffix(b"X")).unwrap_or(word);
        if self.radix == 16 {
            return fields::can_id(digits);
        }
        let text = std::str::from_utf8(digits).ok().filter(|text| !text.starts_with('+'));
        match text.and_then(|text| text.parse::<u64>().ok()) {
            Some(id) if id <= u64::from(MAX_CAN_ID) => Ok(id as u32),
            Some(_) => Err(RejectReason::IdTooLarge),
            None => Err(RejectReason::IdNotHex),
        }
    }

    /// Parses a length code in the file's base.
    fn number(&self, word: &[u8]) -> Option<usize> {
        let text = std::str::from_utf8(word).ok().filter(|text| !text.starts_with('+') && text.len() <= 2)?;
        usize::from_str_radix(text, self.radix).ok()
    }
}

fn begins_with(text: &[u8], word: &[u8]) -> bool {
    text.get(..word.len()).is_some_and(|head| head.eq_ignore_ascii_case(word))
}

fn direction(word: &[u8]) -> Result<(), RejectReason> {
    let known = [&b"rx"[..], b"tx", b"txrq"].iter().any(|name| word.eq_ignore_ascii_case(name));
    if known { Ok(()) } else { Err(RejectReason::NotARow) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::tests::{frame, rows_of};

    #[test]
    fn hexadecimal_and_absolute() {
        let rows = rows_of::<Asc>(&[
            "date Sam Sep 30 15:06:13.191 2017",
            "base hex  timestamps absolute",
            "internal events logged",
            "   0.000000 Start of measurement",
            "   2.5010 1  C8              Tx   d 3 09 08 ff  Length = 0 BitCount = 0 ID = 200",
            "   3.0000 1  54C5638x        Rx   r",
            "   3.1000 2  ErrorFrame",
            "  30.5    CANFD   3 Rx        300  Generic_Name_12  1 0 8  8 01 02 03 04 05 06 07 08 102203 133 303000",
            "  31.0 1  Statistic: D 0 R 0 XD 0 XR 0 E 0 O 0 B 0.00%",
            "  31.5 1  J1939TP FEE3p 6 0 0 - Rx d 23 A0 0F A6 60 3B D1 40 1F DE 80 41 32 A0 0F A6 60 3B D1 40 1F DE 80 41",
        ]);
        let expected = [
            Row::Frame(frame(2.501, 0xC8, &[9, 8, 255], false), FrameKind::Data),
            Row::Frame(frame(3.0, 0x054C_5638, &[], false), FrameKind::Remote),
            Row::ErrorFrame,
            Row::Frame(frame(30.5, 0x300, &[1, 2, 3, 4, 5, 6, 7, 8], false), FrameKind::FlexibleDataRate),
        ];
        assert_eq!(rows, [&[Row::Skipped; 4], &expected[..], &[Row::Skipped; 2]].concat());
        let format = Asc::default();
        assert_eq!(format.interface(b"   2.5010 1  C8  Tx   d 1 09"), Some(&b"1"[..]));
        assert_eq!(format.interface(b"  30.5    CANFD   3 Rx  300  1 0 8  1 01"), Some(&b"3"[..]));
    }

    #[test]
    fn decimal_and_relative() {
        let rows = rows_of::<Asc>(&["base dec  timestamps relative", "0.5 1 200 Rx d 2 255 16", "0.25 1 2000x Rx d 0"]);
        assert_eq!(rows[1], Row::Frame(frame(0.5, 200, &[255, 16], false), FrameKind::Data));
        assert_eq!(rows[2], Row::Frame(frame(0.75, 2000, &[], false), FrameKind::Data));
    }

    #[test]
    fn relative_times_that_add_up_to_infinity_are_rejected() {
        let header = "base dec  timestamps relative";
        let rows = rows_of::<Asc>(&[header, "1e308 1 200 Rx d 0", "1e308 1 200 Rx d 0", "-1e308 1 200 Rx d 0"]);
        assert_eq!(rows[2], Row::Rejected(RejectReason::TimestampNotFinite));
        assert_eq!(
            rows[3],
            Row::Frame(frame(0.0, 200, &[], false), FrameKind::Data),
            "the rejected row counts for nothing"
        );
    }

    #[test]
    fn wrong_rows_name_their_reason() {
        for (row, reason) in [
            ("0.5", RejectReason::FieldCount),
            ("x 1 200 Rx d 0", RejectReason::TimestampNotANumber),
            ("0.5 1 Name Rx d 0", RejectReason::IdNotHex),
            ("0.5 1 200 Up d 0", RejectReason::NotARow),
            ("0.5 1 200 Rx d 2 01", RejectReason::LengthMismatch),
            ("0.5 1 200 Rx d 1 0102", RejectReason::DataNotHex),
            ("0.5 CANFD 1 Rx 200 1 0 f 65 00", RejectReason::TooManyBytes),
        ] {
            assert_eq!(rows_of::<Asc>(&[row]), [Row::Rejected(reason)], "{row:?}");
        }
    }
}
