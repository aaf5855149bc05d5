//! Numbers and bars as text.

/// Blocks that fill none to seven eighths of a cell.
const EIGHTHS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];

/// Bar of `width` cells of which `share` is filled, to an eighth of a cell.
pub fn bar(width: usize, share: f64) -> String {
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    let eighths = (share * width as f64 * 8.0).round() as usize;
    // A share above zero is always visible.
    let eighths = if share > 0.0 && width > 0 { eighths.max(1) } else { eighths };
    let mut text = "█".repeat(eighths / 8);
    if !eighths.is_multiple_of(8) {
        text.push(EIGHTHS[eighths % 8]);
    }
    let filled = text.chars().count();
    text + &" ".repeat(width.saturating_sub(filled))
}

/// Divides `width` cells among the shares; every boundary is exact to half a cell.
pub fn cells(width: usize, shares: &[f64]) -> Vec<usize> {
    let mut sum = 0.0;
    let mut before = 0;
    let cells = shares.iter().map(|share| {
        sum += if share.is_finite() { share.max(0.0) } else { 0.0 };
        let end = ((sum.min(1.0) * width as f64).round() as usize).max(before);
        let count = end - before;
        before = end;
        count
    });
    cells.collect()
}

/// Formats bytes with about three digits.
pub fn bytes(count: u64) -> String {
    let mebibytes = count as f64 / f64::from(1 << 20);
    match mebibytes {
        small if small < 9.95 => format!("{small:.1} MiB"),
        middle if middle < 999.5 => format!("{middle:.0} MiB"),
        large if large < 10_230.0 => format!("{:.2} GiB", large / 1024.0),
        huge => format!("{:.0} GiB", huge / 1024.0),
    }
}

/// Formats a duration in its two largest units.
pub fn duration(seconds: f64) -> String {
    if seconds < 9.95 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        3600..86_400 => format!("{} h {:02} min", whole / 3600, whole / 60 % 60),
        _ => format!("{} d {:02} h", whole / 86_400, whole / 3600 % 24),
    }
}

/// Formats a loss in about eight characters.
pub fn loss(value: f64) -> String {
    match value.abs() {
        _ if value.is_nan() => "–".to_owned(),
        0.0 => "0".to_owned(),
        size if (1e-3..1e4).contains(&size) => {
            let digits = (5 - size.log10().floor().max(0.0) as usize).min(5);
            format!("{value:.digits$}")
        }
        _ => format!("{value:.2e}"),
    }
}

/// Formats a rate.
pub fn rate(value: f64) -> String {
    if value < 99.95 { format!("{value:.1}") } else { grouped(value.round() as u64) }
}

/// Formats a number with commas between thousands.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let places = digits.len();
    let signs = digits.chars().enumerate().flat_map(|(place, digit)| {
        let comma = (place > 0 && (places - place).is_multiple_of(3)).then_some(',');
        comma.into_iter().chain([digit])
    });
    signs.collect()
}

/// Formats a fraction in per cent.
pub fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    if percent > 0.0 && percent < 9.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

/// The end of a text that is longer than `width`, with an ellipsis.
pub fn tail(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width {
        return text.to_owned();
    }
    let rest: String = text.chars().skip(count - width.saturating_sub(1)).collect();
    format!("…{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_numbers() {
        assert_eq!(bar(4, 0.0), "    ");
        assert_eq!(bar(4, 0.5), "██  ");
        assert_eq!(bar(4, 0.5 + 1.0 / 32.0), "██▏ ");
        assert_eq!(bar(4, 1.0), "████");
        assert_eq!(bar(4, 7.0), "████");
        assert_eq!(bar(4, 1e-6), "▏   ");
        assert_eq!(bar(4, f64::NAN), "    ");
        for width in 0..40 {
            for share in 0..=100 {
                assert_eq!(bar(width, f64::from(share) / 100.0).chars().count(), width);
            }
        }
    }

    #[test]
    fn stacked_cells_add_up() {
        assert_eq!(cells(10, &[0.25, 0.25, 0.5]), [3, 2, 5]);
        assert_eq!(cells(10, &[0.04, 0.04, 0.04]), [0, 1, 0]);
        assert_eq!(cells(10, &[0.9, 0.9]), [9, 1]);
        assert_eq!(cells(10, &[f64::NAN, -1.0, 0.5]), [0, 0, 5]);
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(bytes(0), "0.0 MiB");
        assert_eq!(bytes(123 << 20), "123 MiB");
        assert_eq!(bytes(1 << 31), "2.00 GiB");
        assert_eq!(bytes(139 << 30), "139 GiB");
        assert_eq!(duration(3.21), "3.2 s");
        assert_eq!(duration(59.7), "1 min 00 s");
        assert_eq!(duration(3720.0), "1 h 02 min");
        assert_eq!(duration(200_000.0), "2 d 07 h");
        assert_eq!(loss(0.123456), "0.12346");
        assert_eq!(loss(123.456789), "123.457");
        assert_eq!(loss(1e-7), "1.00e-7");
        assert_eq!(loss(f64::NAN), "–");
        assert_eq!(rate(12_345.6), "12,346");
        assert_eq!(grouped(7), "7");
        assert_eq!(percent(0.004), "0.4 %");
        assert_eq!(percent(0.83), "83 %");
        assert_eq!(tail("runs/sim/x/1", 6), "…m/x/1");
    }
}
