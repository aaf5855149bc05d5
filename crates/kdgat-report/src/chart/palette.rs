//! Colours of charts: the palette of Okabe & Ito (2008), which colour-blind readers can distinguish. Each colour has its own
//! dash pattern, so that lines do not differ by colour alone.
//!
//! Charts are drawn in the colours of a light page. The style sheet replaces them by value on a dark page; a chart in a
//! separate file stays as drawn.

use std::fmt::Write;

use plotters::style::RGBColor;

/// Colours of series, in order of use.
pub const SERIES: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xB2),
    RGBColor(0xD5, 0x5E, 0x00),
    RGBColor(0x00, 0x9E, 0x73),
    RGBColor(0xE6, 0x9F, 0x00),
    RGBColor(0xCC, 0x79, 0xA7),
    RGBColor(0x56, 0xB4, 0xE9),
    RGBColor(0x7A, 0x5C, 0x3E),
];
/// Colour of texts.
pub const INK: RGBColor = RGBColor(0x1B, 0x1F, 0x24);
/// Colour of axes and of secondary elements.
pub const AXIS: RGBColor = RGBColor(0x6B, 0x72, 0x7B);
/// Colour of grid lines.
pub const GRID: RGBColor = RGBColor(0xE3, 0xE6, 0xEA);
/// Colour of the page's background.
pub const PAPER: RGBColor = RGBColor(0xFD, 0xFD, 0xFE);

/// RGB colour of the share 0 in a heat map.
const HEAT_LOW: [f64; 3] = [237.0, 243.0, 248.0];
/// RGB colour of the share 1 in a heat map.
const HEAT_HIGH: [f64; 3] = [0.0, 83.0, 130.0];
/// Number of steps of a heat map's scale.
const HEAT_STEPS: usize = 10;

/// Pairs of a colour on a light page and its replacement on a dark page.
const DARK: [(RGBColor, &str); 11] = [
    (SERIES[0], "#4DA3DB"),
    (SERIES[1], "#F08A3C"),
    (SERIES[2], "#2BC79A"),
    (SERIES[3], "#F2B632"),
    (SERIES[4], "#E39CC4"),
    (SERIES[5], "#9AD6F7"),
    (SERIES[6], "#C3A585"),
    (INK, "#E8EAED"),
    (AXIS, "#9AA3AD"),
    (GRID, "#343A41"),
    (PAPER, "#16191D"),
];
/// Dash pattern of each series' lines, in drawn pixels; empty for a solid line.
const DASHES: [&str; 7] = ["", "36 16", "8 12", "48 14 10 14", "22 12", "4 10 24 10", "60 20"];

/// Returns the colour of series number `index`; colours repeat.
pub fn series(index: usize) -> RGBColor {
    SERIES[index % SERIES.len()]
}

/// Returns the colour of a share from 0 to 1 in a heat map.
pub fn heat(share: f64) -> RGBColor {
    heat_step((share.clamp(0.0, 1.0) * HEAT_STEPS as f64).round() as usize)
}

/// Returns a text colour that is readable on [`heat`].
pub fn ink_on_heat(share: f64) -> RGBColor {
    if share > 0.55 { RGBColor(0xFF, 0xFF, 0xFF) } else { RGBColor(0x1B, 0x1F, 0x23) }
}

fn heat_step(step: usize) -> RGBColor {
    let share = step as f64 / HEAT_STEPS as f64;
    let mix = |channel: usize| (HEAT_LOW[channel] + share * (HEAT_HIGH[channel] - HEAT_LOW[channel])).round() as u8;
    RGBColor(mix(0), mix(1), mix(2))
}

/// Formats a colour for SVG.
fn hex(color: RGBColor) -> String {
    format!("#{:02X}{:02X}{:02X}", color.0, color.1, color.2)
}

/// Returns the style rules for every page: font and dashes.
pub fn style() -> String {
    let mut style = String::from("svg text{font-family:system-ui,sans-serif}");
    for (color, dashes) in SERIES.iter().zip(DASHES).filter(|(_, dashes)| !dashes.is_empty()) {
        // Writing into a String cannot fail.
        let _ = write!(style, "svg polyline[stroke=\"{}\"]{{stroke-dasharray:{dashes}}}", hex(*color));
    }
    style
}

/// Returns the style rules for a dark page.
pub fn dark_style() -> String {
    let mut style = String::new();
    for (light, dark) in DARK {
        let light = hex(light);
        let _ = write!(style, "svg [fill=\"{light}\"]{{fill:{dark}}}svg [stroke=\"{light}\"]{{stroke:{dark}}}");
    }
    style
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_colour_has_its_own_look_on_both_pages() {
        let dark = dark_style();
        for color in SERIES.into_iter().chain([INK, AXIS, GRID, PAPER]) {
            assert_eq!(dark.matches(&format!("stroke=\"{}\"", hex(color))).count(), 1, "{}", hex(color));
        }
        let mut dashes = DASHES.to_vec();
        dashes.sort_unstable();
        dashes.dedup();
        assert_eq!(dashes.len(), SERIES.len());
        assert_eq!(hex(heat(0.0)), "#EDF3F8");
        assert_eq!(hex(heat(1.0)), "#005382");
    }
}
