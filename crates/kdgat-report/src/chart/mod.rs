//! Charts as SVG: drawing primitives for all figures.
//!
//! Axes, ticks and series come from the crate plotters. It rounds positions to whole pixels, so charts are drawn [`SCALE`] times
//! larger and scaled down by a `viewBox`. Sizes in this module are display sizes, before scaling, unless stated otherwise.

pub mod axes;
mod line;
pub mod palette;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

pub use line::{LineChart, Series, Way};

/// Drawn pixels per displayed pixel.
const SCALE: i32 = 4;
/// Default width of a chart: its text is readable on a phone, where it fills the page.
pub const WIDTH: i32 = 480;
/// Default height of a chart.
pub const HEIGHT: i32 = 300;
/// Default text size.
pub const TEXT: i32 = 14;
/// Text size of labels.
pub const SMALL_TEXT: i32 = 12;

/// Drawing area of a chart.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// Error of drawing.
pub type DrawError = DrawingAreaErrorKind<std::io::Error>;

/// A drawn chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Svg {
    width: i32,
    height: i32,
    /// Inner elements, without the enclosing `svg`.
    body: String,
}

impl Svg {
    /// Draws a chart of this display size.
    pub fn draw(
        width: i32,
        height: i32,
        paint: impl FnOnce(&Area) -> Result<(), DrawError>,
    ) -> Result<Self, DrawError> {
        let mut text = String::new();
        {
            let size = ((width * SCALE) as u32, (height * SCALE) as u32);
            let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
            paint(&area)?;
            area.present()?;
        }
        let body = text.split_once('>').map_or("", |(_, rest)| rest);
        Ok(Self { width, height, body: body.trim().trim_end_matches("</svg>").to_owned() })
    }

    /// Formats it for a page whose style sheet has the palette's rules; its width adapts to the page.
    pub fn inline(&self, label: &str) -> String {
        let (width, height) = (self.width * SCALE, self.height * SCALE);
        let label = super::html::escaped(label);
        format!("<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{label}\">{}</svg>", self.body)
    }

    /// Formats it as a separate file, on a white background.
    pub fn standalone(&self, title: &str) -> String {
        let (width, height) = (self.width * SCALE, self.height * SCALE);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" viewBox=\"0 0 {width} {height}\">\
             <title>{}</title><style>{}</style><rect width=\"{width}\" height=\"{height}\" fill=\"#FFFFFF\"/>{}</svg>\n",
            self.width,
            self.height,
            super::html::escaped(title),
            palette::style(),
            self.body
        )
    }

    /// Counts the elements that show data: all but texts and straight lines, which an empty chart has too.
    #[cfg(test)]
    pub fn marks(&self) -> usize {
        let is_mark =
            |element: &&str| !element.starts_with("text") && !element.starts_with("line ") && !element.starts_with('/');
        self.body.split('<').skip(1).filter(is_mark).count()
    }
}

/// Converts a display length to drawn pixels.
pub fn px(length: i32) -> i32 {
    length * SCALE
}

/// Creates a text style. `horizontal` and `vertical` select the anchor point of the text.
pub fn text_style(size: i32, color: RGBColor, horizontal: HPos, vertical: VPos) -> TextStyle<'static> {
    // The SVG backend divides font sizes by 1.24.
    let size = f64::from(px(size)) * 1.24;
    let style = TextStyle::from(("sans-serif", size).into_font()).pos(Pos::new(horizontal, vertical));
    TextStyle { color: color.to_backend_color(), ..style }
}

/// Writes left-aligned text at a display position, vertically centred.
pub fn write(area: &Area, text: &str, (x, y): (i32, i32), size: i32, color: RGBColor) -> Result<(), DrawError> {
    area.draw_text(text, &text_style(size, color, HPos::Left, VPos::Center), (px(x), px(y)))
}

/// Writes text centred at a display position.
pub fn write_centered(
    area: &Area,
    text: &str,
    (x, y): (i32, i32),
    size: i32,
    color: RGBColor,
) -> Result<(), DrawError> {
    area.draw_text(text, &text_style(size, color, HPos::Center, VPos::Center), (px(x), px(y)))
}

/// Writes right-aligned text at a display position, vertically centred.
pub fn write_right(area: &Area, text: &str, (x, y): (i32, i32), size: i32, color: RGBColor) -> Result<(), DrawError> {
    area.draw_text(text, &text_style(size, color, HPos::Right, VPos::Center), (px(x), px(y)))
}

/// Fills a rectangle between two display positions.
pub fn fill(area: &Area, from: (i32, i32), to: (i32, i32), color: RGBColor) -> Result<(), DrawError> {
    area.draw(&Rectangle::new([(px(from.0), px(from.1)), (px(to.0), px(to.1))], color.filled()))
}

/// Draws a line through display positions.
pub fn stroke(area: &Area, places: &[(i32, i32)], width: f64, color: RGBColor) -> Result<(), DrawError> {
    let places: Vec<(i32, i32)> = places.iter().map(|&(x, y)| (px(x), px(y))).collect();
    area.draw(&PathElement::new(places, color.stroke_width((width * f64::from(SCALE)).round().max(1.0) as u32)))
}

/// Estimates the width of a text in wide common fonts, so that it is rarely too small.
pub fn text_width(text: &str, size: i32) -> i32 {
    let share = |letter: char| match letter {
        'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | ';' | '\'' | '|' | ' ' | '(' | ')' | '/' | '-' => 0.38,
        'm' | 'w' | 'M' | 'W' | '%' | '…' => 0.98,
        '+' | '=' | '<' | '>' => 0.84,
        letter if letter.is_uppercase() => 0.72,
        _ => 0.63,
    };
    (text.chars().map(share).sum::<f64>() * f64::from(size)).ceil() as i32
}

/// Shortens a text in the middle until it is no wider than `width`.
pub fn fitted(text: &str, width: i32, size: i32) -> String {
    let mut letters = text.chars().count();
    let mut fitted = text.to_owned();
    while letters > 3 && text_width(&fitted, size) > width {
        letters -= 1;
        fitted = shortened(text, letters);
    }
    fitted
}

/// Shortens a text in the middle to at most `letters` characters.
pub fn shortened(text: &str, letters: usize) -> String {
    let all: Vec<char> = text.chars().collect();
    if all.len() <= letters {
        return text.to_owned();
    }
    let end = (letters.saturating_sub(1)) / 2;
    let begin = letters.saturating_sub(1) - end;
    let head: String = all[..begin].iter().collect();
    let tail: String = all[all.len() - end..].iter().collect();
    format!("{head}…{tail}")
}

/// Formats a number for an axis: about three digits, with k, M or G for large values.
pub fn short(value: f64) -> String {
    let size = value.abs();
    let (scaled, unit) = match size {
        _ if size >= 1e9 => (value / 1e9, "G"),
        _ if size >= 1e6 => (value / 1e6, "M"),
        _ if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    if value != 0.0 && size < 1e-3 {
        return format!("{value:.0e}");
    }
    let digits = match scaled.abs() {
        scaled if scaled >= 100.0 || scaled == 0.0 => 0,
        scaled if scaled >= 10.0 => 1,
        scaled if scaled >= 1.0 => 2,
        scaled if scaled >= 0.1 => 3,
        _ => 4,
    };
    let text = format!("{scaled:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

/// Returns about `count` round numbers within a range, for axes that plotters does not draw.
pub fn ticks(low: f64, high: f64, count: usize) -> Vec<f64> {
    let rough = (high - low) / count.max(1) as f64;
    if !rough.is_finite() || rough <= 0.0 {
        return vec![low];
    }
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|step| *step >= rough * 0.999);
    let step = step.unwrap_or(rough);
    let first = (low / step - 1e-9).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    (first..=last).map(|place| place as f64 * step).collect()
}

/// Moves positions apart until neighbours are at least `gap` apart, within `low..=high` if possible.
pub fn spread(places: &mut [i32], gap: i32, low: i32, high: i32) {
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by_key(|&index| (places[index], index));
    let mut next = low;
    for &index in &order {
        places[index] = places[index].max(next);
        next = places[index] + gap;
    }
    let mut last = high;
    for &index in order.iter().rev() {
        places[index] = places[index].min(last);
        last = places[index] - gap;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, 0.5, 0.1234, 1.0, 12.34, 1234.0, 86_290.0, 1_640_000.0, 0.000_31, -0.25].map(short);
        assert_eq!(shown, ["0", "0.5", "0.123", "1", "12.3", "1234", "86.3k", "1.64M", "3e-4", "-0.25"]);
    }

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(ticks(0.0, 1410.0, 5), [0.0, 500.0, 1000.0]);
        assert_eq!(ticks(0.31, 0.62, 3), [0.4, 0.6000000000000001]);
        assert_eq!(ticks(-1.0, 1.0, 4), [-1.0, -0.5, 0.0, 0.5, 1.0]);
        assert_eq!(ticks(2.0, 2.0, 4), [2.0]);
    }

    #[test]
    fn labels_are_moved_apart_and_stay_inside() {
        let mut places = [50, 52, 51, 10, 98];
        spread(&mut places, 10, 0, 100);
        let mut sorted = places;
        sorted.sort_unstable();
        assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] >= 10), "{places:?}");
        assert!(sorted[0] >= 0 && sorted[4] <= 100, "{places:?}");
        assert!(places[0] < places[2] && places[2] < places[1], "the order stays: {places:?}");
    }

    #[test]
    fn long_names_keep_both_ends() {
        assert_eq!(shortened("gat_student_curriculum_kd/1", 13), "gat_st…m_kd/1");
        assert_eq!(shortened("short", 13), "short");
        let narrow = fitted("gat_student_curriculum_kd/1", 90, 12);
        assert!(text_width(&narrow, 12) <= 90 && narrow.starts_with("gat_") && narrow.ends_with("/1"), "{narrow}");
        assert_eq!(fitted("short", 90, 12), "short");
    }

    #[test]
    fn texts_are_escaped_and_elements_closed() {
        let svg = Svg::draw(100, 50, |area| write(area, "<b>&\"'", (10, 10), TEXT, palette::INK)).unwrap();
        for text in [svg.inline("a<b"), svg.standalone("a<b")] {
            let parsed = roxmltree::Document::parse(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
            let found = parsed.descendants().find(|node| node.has_tag_name("text")).map(|node| node.text().unwrap());
            // An inline SVG has no namespace.
            let found = found.or_else(|| parsed.descendants().find(|n| n.tag_name().name() == "text")?.text());
            assert_eq!(found.map(str::trim), Some("<b>&\"'"));
        }
        assert_eq!(svg.marks(), 0, "a text is no data");
    }
}
