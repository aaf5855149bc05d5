//! Colours, or none: then what colours tell apart is told by signs.

use ratatui::style::{Color, Modifier, Style};

/// Of stacked bars: signs where there are no colours, and sixteen-colour names, which follow the terminal's own scheme.
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

/// How things look.
#[derive(Clone, Copy, Debug)]
pub struct Theme {
    colors: bool,
}

impl Theme {
    /// With colours unless `NO_COLOR` is set to something (no-color.org).
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

    /// A block's title.
    pub fn title(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// What is read last.
    pub fn quiet(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    /// What must not be overlooked.
    pub fn alert(self) -> Style {
        self.colored(Color::Red).add_modifier(Modifier::BOLD)
    }

    pub fn progress(self) -> Style {
        self.colored(Color::Green)
    }

    pub fn training(self) -> Style {
        self.colored(Color::Cyan)
    }

    pub fn validation(self) -> Style {
        self.colored(Color::Yellow)
    }

    /// The sign and the style of a part of a stacked bar.
    pub fn fill(self, place: usize) -> (&'static str, Style) {
        let (sign, color) = FILLS[place % FILLS.len()];
        (if self.colors { "█" } else { sign }, self.colored(color))
    }
}
