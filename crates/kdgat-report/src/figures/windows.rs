//! Single windows of traffic as graphs, with the model's attention.

use std::f64::consts::TAU;

use plotters::prelude::*;

use super::{Drawn, Figure, folder_words};
use crate::ReportError;
use crate::chart::palette::{self, AXIS, INK};
use crate::chart::{SMALL_TEXT, Svg, WIDTH, px, text_width, write_centered};
use crate::files::Evaluation;
use crate::html::slug;
use kdgat_evaluate::windows::{ModelWindows, Node, Why, Window};

const HEIGHT: i32 = 420;
const RADIUS: f64 = 162.0;
/// Number of strongest edges, which are drawn bold with an arrow.
const STRONG: usize = 12;

/// Draws the example windows of one model of an evaluation.
pub fn draw(evaluation: &Evaluation, model: &str) -> Result<Vec<Drawn>, ReportError> {
    let Some(found) = evaluation.windows.iter().find(|windows| windows.model == model) else {
        let what = format!("example windows of {model}");
        let why = "the evaluation has no windows.json with this model; evaluate again.";
        return Ok(vec![Drawn::missing(what, why)]);
    };
    let of_window = |window: &Window| Ok(figure(evaluation, found, window)?.into());
    found.windows.iter().filter(|window| !window.nodes.is_empty()).map(of_window).collect()
}

fn figure(evaluation: &Evaluation, model: &ModelWindows, window: &Window) -> Result<Figure, ReportError> {
    let name = match window.why {
        Why::ClearestAttack => "The clearest attack",
        Why::MissedAttack => "The worst miss",
        Why::FalseAlarm => "The worst false alarm",
        Why::NearestToAlarm => "The normal window closest to a false alarm",
        Why::Usual => "A typical window",
    };
    let highest = window.nodes.iter().max_by(|left, right| left.contribution.total_cmp(&right.contribution));
    let most = highest.map_or(String::new(), |node| format!("; ID {} adds most to the score", node.id));
    let place = format!("{} of {}", window.file, folder_words(&window.folder));
    Ok(Figure {
        slug: slug(&format!("window {} {} {:?}", evaluation.dataset, model.model, window.why)),
        title: format!("{name}: score {}, threshold {}{most}", decimal(window.score), decimal(window.threshold)),
        reading: format!(
            "{place}, from frame {}; {}. Discs are CAN IDs; larger ones add more to the score (grey: nothing). An edge goes from an \
             ID to the one that follows it; the {STRONG} with the most attention (mean over layers and heads) have arrows, \
             wider for more attention.",
            window.first_frame,
            if window.attack { "with an attack" } else { "without an attack" },
        ),
        sources: vec![evaluation.folder.join("windows.json")],
        svg: svg(window)?,
    })
}

fn decimal(value: f64) -> String {
    if value != 0.0 && value.abs() < 1e-3 { format!("{value:.1e}") } else { format!("{value:.3}") }
}

fn svg(window: &Window) -> Result<Svg, ReportError> {
    let count = window.nodes.len();
    let place = |node: usize, radius: f64| {
        let angle = TAU * node as f64 / count as f64 - TAU / 4.0;
        (f64::from(WIDTH) / 2.0 + radius * angle.cos(), f64::from(HEIGHT) / 2.0 + radius * angle.sin())
    };
    let pixel = |(x, y): (f64, f64)| ((x * f64::from(px(1))) as i32, (y * f64::from(px(1))) as i32);
    // Every node has a self-loop, which is not drawn.
    let mut edges: Vec<(usize, usize, f64)> = window
        .edges
        .iter()
        .filter(|edge| edge.source != edge.target && edge.source < count && edge.target < count)
        .map(|edge| (edge.source, edge.target, f64::from(edge.attention)))
        .collect();
    edges.sort_by(|left, right| left.2.total_cmp(&right.2));
    let strongest = edges.last().map_or(1.0, |edge| edge.2).max(1e-9);
    let first_strong = edges.len().saturating_sub(STRONG);
    let highest = window.nodes.iter().map(|node| f64::from(node.contribution)).fold(1e-9, f64::max);
    let share = |node: &Node| (f64::from(node.contribution) / highest).clamp(0.0, 1.0);
    Ok(Svg::draw(WIDTH, HEIGHT, |area| {
        for (index, (source, target, attention)) in edges.iter().enumerate() {
            let (from, to) = (place(*source, RADIUS), place(*target, RADIUS));
            let line = vec![pixel(from), pixel(to)];
            if index < first_strong {
                let style = AXIS.mix(0.15 + 0.35 * attention / strongest).stroke_width(px(1) as u32 / 2);
                area.draw(&PathElement::new(line, style))?;
            } else {
                let width = 1.0 + 2.0 * attention / strongest;
                area.draw(&PathElement::new(line, INK.mix(0.75).stroke_width((width * f64::from(px(1))) as u32)))?;
                let arrow: Vec<(i32, i32)> = arrow(from, to).into_iter().map(pixel).collect();
                area.draw(&Polygon::new(arrow, INK.filled()))?;
            }
        }
        for (index, node) in window.nodes.iter().enumerate() {
            let share = share(node);
            let color = if share > 0.02 { palette::series(1) } else { AXIS };
            let radius = ((3.5 + 6.5 * share.sqrt()) * f64::from(px(1))) as i32;
            area.draw(&Circle::new(pixel(place(index, RADIUS)), radius, color.filled()))?;
        }
        // Labels are placed in order of contribution; one that would overlap another is omitted.
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by(|&left, &right| share(&window.nodes[right]).total_cmp(&share(&window.nodes[left])));
        let mut named: Vec<(i32, i32, i32)> = Vec::new();
        for index in order {
            let (x, y) = place(index, RADIUS + 24.0);
            let (x, y, width) = (x as i32, y as i32, text_width(&window.nodes[index].id, SMALL_TEXT) + 4);
            let lies_over = |other: &(i32, i32, i32)| {
                (x - other.0).abs() < (width + other.2) / 2 && (y - other.1).abs() < SMALL_TEXT + 1
            };
            if !named.iter().any(lies_over) {
                write_centered(area, &window.nodes[index].id, (x, y), SMALL_TEXT, INK)?;
                named.push((x, y, width));
            }
        }
        Ok(())
    })?)
}

/// Returns the corners of an arrowhead shortly before the end of a line.
fn arrow(from: (f64, f64), to: (f64, f64)) -> [(f64, f64); 3] {
    let (x, y) = (to.0 - from.0, to.1 - from.1);
    let length = (x * x + y * y).sqrt().max(1e-9);
    let (x, y) = (x / length, y / length);
    // Just outside the largest disc around the node.
    let tip = (to.0 - 10.5 * x, to.1 - 10.5 * y);
    let back = (tip.0 - 9.0 * x, tip.1 - 9.0 * y);
    [tip, (back.0 - 4.0 * y, back.1 + 4.0 * x), (back.0 + 4.0 * y, back.1 - 4.0 * x)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use kdgat_evaluate::windows::Edge;

    #[test]
    fn nodes_edges_and_arrows_are_drawn() {
        let node = |id: &str, contribution| Node { id: id.to_owned(), contribution };
        let edge = |source, target, attention| Edge { source, target, attention };
        let window = Window {
            why: Why::ClearestAttack,
            folder: "test_01_known_attack".to_owned(),
            file: "<script>.csv".to_owned(),
            first_frame: 100,
            attack: true,
            score: 0.98,
            threshold: 0.5,
            nodes: vec![node("0A0", 2.0), node("1F3", -0.5), node("2B0", 0.0)],
            edges: vec![edge(0, 1, 0.5), edge(1, 2, 0.25), edge(0, 0, 0.5), edge(7, 0, 0.1)],
        };
        // Two edges with arrows, three discs; the self-loop and the edge from nowhere are left out.
        assert_eq!(svg(&window).unwrap().marks(), 2 * 2 + 3);
        let [tip, ..] = arrow((0.0, 0.0), (100.0, 0.0));
        assert_eq!(tip, (89.5, 0.0));
    }
}
