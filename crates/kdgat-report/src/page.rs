//! The page: a single self-contained file with all charts, tables, styles and scripts.

use std::path::{Path, PathBuf};

use super::chart::palette;
use super::figures::{Drawn, Figure};
use super::html::{Names, escaped, slug};
use super::table::Table;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
const DARK: &str = ":root{--paper:#101317;--ink:#e8eaed;--soft:#a4adb7;--line:#2f353c;--card:#16191d;--link:#7cc0f0}";
/// Maximum sources listed under a chart; further ones are only counted.
const MOST_SOURCES: usize = 4;

/// Part of a section.
#[derive(Debug, Clone)]
pub enum Block {
    Table(Table),
    /// Charts, side by side.
    Charts(Vec<Drawn>),
    /// Charts that unfold on a click.
    Folded {
        title: String,
        charts: Vec<Drawn>,
        open: bool,
    },
}

/// A section with its title and content.
#[derive(Debug, Clone)]
pub struct Section {
    pub title: String,
    pub blocks: Vec<Block>,
}

/// A report before it is written.
#[derive(Debug, Clone)]
pub struct Page {
    pub title: String,
    /// Summary lines at the top.
    pub findings: Vec<String>,
    pub sections: Vec<Section>,
    /// Folder that the paths of sources are relative to.
    pub folder: PathBuf,
}

impl Page {
    /// Returns all its figures.
    pub fn figures(&self) -> impl Iterator<Item = &Figure> {
        let drawn = self.sections.iter().flat_map(|section| &section.blocks).flat_map(|block| match block {
            Block::Table(_) => [].as_slice(),
            Block::Charts(charts) | Block::Folded { charts, .. } => charts.as_slice(),
        });
        drawn.filter_map(|drawn| match drawn {
            Drawn::Figure(figure) => Some(figure.as_ref()),
            Drawn::Missing { .. } => None,
        })
    }

    /// Makes the names of figures unique: runs on two datasets may have the same name.
    pub fn name_apart(&mut self) {
        let mut names = Names::default();
        for block in self.sections.iter_mut().flat_map(|section| &mut section.blocks) {
            let (Block::Charts(charts) | Block::Folded { charts, .. }) = block else { continue };
            for drawn in charts {
                if let Drawn::Figure(figure) = drawn {
                    figure.slug = names.apart(&figure.slug);
                }
            }
        }
    }

    /// Formats the page as HTML.
    pub fn html(&self) -> String {
        let title = escaped(&self.title);
        let mut html = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
             script-src 'unsafe-inline'; img-src data:\">\n<link rel=\"icon\" href=\"data:,\">\n<title>{title}</title>\n\
             <style>\n{STYLE}{}\n@media (prefers-color-scheme: dark){{{DARK}{}}}\n</style>\n</head>\n<body>\n<header>\n\
             <h1>{title}</h1>\n",
            palette::style(),
            palette::dark_style(),
        );
        if !self.findings.is_empty() {
            html += &list("ul", self.findings.iter().map(|finding| escaped(finding)));
        }
        html += &format!(
            "<p class=\"note\">Made by kdgat {}. Every chart names its source.</p>\n",
            env!("CARGO_PKG_VERSION")
        );
        let mut names = Names::default();
        let anchor = |section: &Section| names.apart(&format!("section-{}", slug(&section.title)));
        let anchors: Vec<String> = self.sections.iter().map(anchor).collect();
        let sections = || self.sections.iter().zip(&anchors);
        if self.sections.len() > 1 {
            let link = |(section, anchor): (&Section, &String)| {
                format!("<a href=\"#{anchor}\">{}</a>", escaped(&section.title))
            };
            html += &format!("<nav aria-label=\"Sections\">{}</nav>\n", list("ul", sections().map(link)));
        }
        html += "</header>\n<main>\n";
        for (section, anchor) in sections() {
            html += &format!("<section id=\"{anchor}\">\n<h2>{}</h2>\n", escaped(&section.title));
            html.extend(section.blocks.iter().map(|block| self.block(block)));
            html += "</section>\n";
        }
        html + &format!("</main>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n")
    }

    fn block(&self, block: &Block) -> String {
        match block {
            Block::Table(table) => self.table(table),
            Block::Charts(charts) => self.charts(charts),
            Block::Folded { title, charts, open } => format!(
                "<details{}>\n<summary>{}</summary>\n{}</details>\n",
                if *open { " open=\"\"" } else { "" },
                escaped(title),
                self.charts(charts)
            ),
        }
    }

    fn charts(&self, charts: &[Drawn]) -> String {
        let mut html = "<div class=\"charts\">\n".to_owned();
        for drawn in charts {
            html += &match drawn {
                Drawn::Figure(figure) => self.figure(figure),
                Drawn::Missing { what, why } => {
                    format!("<div class=\"missing\">\n<p>Not shown: {}: {}</p>\n</div>\n", escaped(what), escaped(why))
                }
            };
        }
        html + "</div>\n"
    }

    fn figure(&self, figure: &Figure) -> String {
        format!(
            "<figure id=\"{}\">\n<h3>{}</h3>\n{}\n<p>{}</p>\n<figcaption>Source: {}</figcaption>\n</figure>\n",
            escaped(&figure.slug),
            escaped(&figure.title),
            figure.svg.inline(&figure.title),
            escaped(&figure.reading),
            self.sources(&figure.sources)
        )
    }

    fn sources(&self, sources: &[PathBuf]) -> String {
        let name = |path: &PathBuf| format!("<code>{}</code>", escaped(&relative(path, &self.folder)));
        let named: Vec<String> = sources.iter().take(MOST_SOURCES).map(name).collect();
        let more = sources.len().saturating_sub(MOST_SOURCES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{}{more}", named.join(", "))
    }

    fn table(&self, table: &Table) -> String {
        if table.rows.is_empty() {
            return String::new();
        }
        let head = |name: &String| format!("<th scope=\"col\"><button type=\"button\">{}</button></th>", escaped(name));
        let heads: String = table.header.iter().map(head).collect();
        let mut html = format!("<h3>{}</h3>\n", escaped(&table.title));
        if !table.note.is_empty() {
            html += &format!("<p class=\"note\">{}</p>\n", escaped(&table.note));
        }
        let label = escaped(&table.title);
        html += &format!(
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{label}\">\n<table>\n<thead><tr>{heads}</tr></thead>\n\
             <tbody>\n"
        );
        for row in &table.rows {
            html += "<tr>";
            for cell in row {
                // Names of runs are long words: a narrow column may break them there.
                let text = escaped(&cell.text).replace('_', "_<wbr>");
                html += &match cell.number {
                    Some(number) => format!("<td class=\"number\" data-value=\"{number}\">{text}</td>"),
                    None => format!("<td>{text}</td>"),
                };
            }
            html += "</tr>\n";
        }
        html + &format!("</tbody>\n</table>\n</div>\n<p class=\"note\">Source: {}</p>\n", self.sources(&table.sources))
    }
}

fn list(kind: &str, items: impl Iterator<Item = String>) -> String {
    let items: String = items.map(|item| format!("<li>{item}</li>\n")).collect();
    format!("<{kind}>\n{items}</{kind}>\n")
}

/// Returns the path relative to a folder, or only its last three components if it is elsewhere: a report may be shared and must
/// not reveal where its author's files are.
fn relative(path: &Path, folder: &Path) -> String {
    let absolute = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let (path, folder) = (absolute(path), absolute(folder));
    if let Ok(inside) = path.strip_prefix(&folder) {
        return inside.display().to_string();
    }
    let parts: Vec<String> = path.iter().rev().take(3).map(|part| part.to_string_lossy().into_owned()).collect();
    let end: Vec<&str> = parts.iter().rev().map(String::as_str).collect();
    format!("…/{}", end.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::{LineChart, Series};
    use crate::table::Cell;

    fn page(text: &str) -> Page {
        let chart =
            LineChart { series: vec![Series::new(text, 0, vec![(0.0, 1.0), (1.0, 2.0)])], ..LineChart::default() };
        let figure = Figure {
            slug: slug(text),
            title: text.to_owned(),
            reading: text.to_owned(),
            sources: vec![PathBuf::from(text)],
            svg: chart.draw().unwrap().unwrap(),
        };
        let table = Table {
            title: text.to_owned(),
            note: text.to_owned(),
            header: vec![text.to_owned()],
            rows: vec![vec![Cell::text(text)], vec![Cell::number(Some(0.5), 2)]],
            sources: vec![PathBuf::from(text)],
        };
        let charts = vec![Drawn::from(figure), Drawn::missing(text, text)];
        let blocks = vec![
            Block::Table(table),
            Block::Charts(charts.clone()),
            Block::Folded { title: text.to_owned(), charts, open: true },
        ];
        let section = |title: &str| Section { title: title.to_owned(), blocks: blocks.clone() };
        Page {
            title: text.to_owned(),
            findings: vec![text.to_owned()],
            sections: vec![section("one"), section("two")],
            folder: PathBuf::from("."),
        }
    }

    /// Closes the void elements, which makes the page well-formed XML.
    pub fn as_xml(html: &str) -> String {
        let html = html.replacen("<!DOCTYPE html>\n", "", 1);
        let html = html.split_inclusive('>').map(|piece| {
            let is_void = piece.contains("<meta ") || piece.contains("<link ");
            if is_void { piece.trim_end_matches('>').to_owned() + "/>" } else { piece.to_owned() }
        });
        let html: String = html.collect();
        let script = html.find("<script>").unwrap();
        let (before, script) = html.split_at(script);
        let end = script.find("</script>").unwrap();
        before.to_owned() + "<script>" + &script[end..]
    }

    #[test]
    fn every_element_is_closed_and_no_text_gets_out() {
        let evil = "</script><script>alert(1)</script><img src=x onerror='alert(1)'> & \"quoted\"";
        let html = page(evil).html();
        let xml = as_xml(&html);
        let parsed = roxmltree::Document::parse(&xml).unwrap_or_else(|error| panic!("{error}"));
        let count = |name: &str| parsed.descendants().filter(|node| node.tag_name().name() == name).count();
        assert_eq!((count("script"), count("img"), count("figure"), count("table"), count("svg")), (1, 0, 4, 2, 4));
        let is_handler = |node: roxmltree::Node| node.attributes().any(|attribute| attribute.name().starts_with("on"));
        assert!(!parsed.descendants().any(is_handler));
        let title = parsed.descendants().find(|node| node.has_tag_name("h1")).unwrap();
        assert_eq!(title.text(), Some(evil));
    }

    #[test]
    fn every_place_has_a_name_of_its_own() {
        let mut page = page("losses of a/1");
        page.sections[1].title = "one".to_owned();
        page.name_apart();
        let html = page.html();
        let names = |before: &str| -> Vec<String> {
            html.split(before).skip(1).map(|rest| rest.split('"').next().unwrap_or_default().to_owned()).collect()
        };
        let mut places = [names("<figure id=\""), names("<section id=\"")].concat();
        assert_eq!(names("<a href=\"#"), names("<section id=\""));
        assert_eq!(places.len(), 6);
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 6, "{places:?}");
    }

    #[test]
    fn nothing_is_loaded_from_elsewhere() {
        let html = page("plain").html();
        for scheme in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!html.contains(scheme), "{scheme}");
        }
    }

    #[test]
    fn sources_are_named_from_the_report() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("1").join("metrics.csv");
        std::fs::create_dir(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "").unwrap();
        assert_eq!(relative(&file, folder.path()), "1/metrics.csv");
        let elsewhere = relative(Path::new("/a/b/c/d/metrics.csv"), folder.path());
        assert_eq!(elsewhere, "…/c/d/metrics.csv");
    }
}
