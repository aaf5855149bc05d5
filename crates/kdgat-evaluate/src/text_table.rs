//! Tables as text, for a terminal.

use std::fmt::Write;

/// Characters of a line of the tables for a terminal; where model names make a table wider, they have lines of their own.
pub(crate) const LINE_WIDTH: usize = 120;

/// A table with aligned columns: the first flush left, the others flush right.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these heads.
    pub fn new(heads: &[&str]) -> Self {
        Self { rows: vec![heads.iter().map(|head| (*head).to_owned()).collect()] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The lines.
    pub fn text(&self) -> String {
        let widths = self.widths();
        self.rows.iter().map(|row| line(row, &widths, "")).collect()
    }

    /// The lines; if they are longer than `most` characters, the first cells have lines of their own.
    pub fn text_within(&self, most: usize) -> String {
        let widths = self.widths();
        if widths.iter().sum::<usize>() + 2 * (widths.len() - 1) <= most {
            return self.text();
        }
        let mut text = line(&self.rows[0][1..], &widths[1..], "  ");
        let mut name = None;
        for row in &self.rows[1..] {
            if name.replace(&row[0]) != Some(&row[0]) {
                text += &format!("{}\n", row[0]);
            }
            text += &line(&row[1..], &widths[1..], "  ");
        }
        text
    }

    fn widths(&self) -> Vec<usize> {
        let cell_width = |row: &Vec<String>, column: usize| row.get(column).map_or(0, |cell| cell.chars().count());
        let width = |column| self.rows.iter().map(|row| cell_width(row, column)).max().unwrap_or(0);
        (0..self.rows[0].len()).map(width).collect()
    }
}

/// Cells with these widths as a line, after `indent`: the first flush left.
fn line(cells: &[String], widths: &[usize], indent: &str) -> String {
    let mut text = indent.to_owned();
    for (index, (cell, &width)) in cells.iter().zip(widths).enumerate() {
        // Writing to a String cannot fail.
        let _ = if index == 0 { write!(text, "{cell:<width$}") } else { write!(text, "  {cell:>width$}") };
    }
    text.truncate(text.trim_end_matches(' ').len());
    text.push('\n');
    text
}
