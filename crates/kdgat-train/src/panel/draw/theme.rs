//! Colours, or none: then signs distinguish the parts of a bar.

use ratatui::style::{Color, Modifier, Style};

/// Fills of stacked bars: signs for use without colours, and the sixteen named colours, which follow the terminal's own scheme.
const FILLS: [(&str, Color); 8] = [
    ("░", Color::Gray),
    ("+", Color::Blue),
    ("▓", Color::Green),
    ("=", Color::LightYellow),
    ("▒", Color::Magenta),
    ("█", Color::Cyan),
    ("#", Color::Yellow),
    ("o", Color::LightBlue),
];

/// Appearance of the panel.
#[derive(Clone, Copy, Debug)]
pub struct Theme {
    colors: bool,
}

impl Theme {
    /// Uses colours unless `NO_COLOR` is set to a value (no-color.org).
    pub fn of_environment() -> Self {
        Self { colors: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) }
    }

    #[cfg(test)]
    pub fn new(colors: bool) -> Self {
        Self { colors }
    }

    fn colored(self, color: Color) -> Style {
        if self.colors { Style::new().fg(color) } else { Style::new() }
    }

    /// Style of a block's title.
    pub fn title(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// Style of secondary text.
    pub fn quiet(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    /// Style of alerts.
    pub fn alert(self) -> Style {
        self.colored(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// Style of progress bars.
    pub fn progress(self) -> Style {
        self.colored(Color::Green)
    }

    /// Style of training values.
    pub fn training(self) -> Style {
        self.colored(Color::Cyan)
    }

    /// Style of validation values.
    pub fn validation(self) -> Style {
        self.colored(Color::Yellow)
    }

    /// Sign and style of a part of a stacked bar.
    pub fn fill(self, place: usize) -> (&'static str, Style) {
        let (sign, color) = FILLS[place % FILLS.len()];
        (if self.colors { "█" } else { sign }, self.colored(color))
    }
}
