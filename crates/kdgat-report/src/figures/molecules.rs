//! Test molecules with a model's errors: balls and sticks, projected on the plane in which the molecule is widest, coloured by the error of the
//! force on each atom.

use kdgat_evaluate::graph_runs::RunResult;
use kdgat_evaluate::molecules::{DrawnGraph, Rank};
use plotters::prelude::*;

use super::{Drawn, Figure, significant};
use crate::ReportError;
use crate::chart::palette::{self, AXIS, GRID, INK};
use crate::chart::{SMALL_TEXT, Svg, TEXT, WIDTH, fill, px, stroke, write, write_centered};
use crate::files::GraphEvaluation;
use crate::html::slug;

/// Size of the drawing area of a molecule.
const SIDE: i32 = 300;
/// Margin around it.
const MARGIN: i32 = 34;
/// Top of the drawing.
const TOP: i32 = 20;
/// Most atoms whose symbols and errors are written.
const MOST_LABELS: usize = 40;
/// Most models whose molecules are drawn.
const MOST_MODELS: usize = 6;

/// Draws the molecules of an evaluation; nothing for models that read no positions.
///
/// # Errors
/// Those of drawing.
pub fn draw(evaluation: &GraphEvaluation) -> Result<Vec<Drawn>, ReportError> {
    let drawn = evaluation.runs.iter().filter(|run| !run.drawn.is_empty());
    let mut figures = Vec::new();
    for run in drawn.take(MOST_MODELS) {
        for graph in &run.drawn {
            figures.push(figure(evaluation, run, graph)?.into());
        }
    }
    Ok(figures)
}

fn figure(evaluation: &GraphEvaluation, run: &RunResult, graph: &DrawnGraph) -> Result<Figure, ReportError> {
    let rank = match graph.rank {
        Rank::Worst => "worst",
        Rank::Median => "median",
    };
    let unit = |unit: &Option<String>| unit.as_ref().map_or(String::new(), |unit| format!(" {unit}"));
    let error = format!("{} off by {}{}", graph.target, significant(graph.error.abs()), unit(&graph.energy_unit));
    let largest = graph.force_errors.iter().copied().fold(0.0, f32::max);
    let of_forces = match (&graph.energy_unit, &graph.length_unit) {
        (Some(energy), Some(length)) => format!(" {energy}/{length}"),
        _ => String::new(),
    };
    let (measure, forces) = match graph.force_errors.is_empty() {
        true => ("error of its value", String::new()),
        false => {
            let text = format!(", forces off by at most {}{of_forces}", significant(f64::from(largest)));
            ("root mean square of the errors of its forces", text)
        }
    };
    Ok(Figure {
        slug: slug(&format!("molecule {} {} {rank}", evaluation.dataset, run.model)),
        title: format!("{}: {rank} test molecule: {error}{forces}", run.model),
        reading: format!(
            "Graph {} of the dataset, counted from 0: the {rank} one by the {measure}. Seen from the side where it is widest; nearer atoms are \
             drawn over others. The darker an atom, the larger the error of the force on it, which stands below its symbol.",
            graph.graph
        ),
        sources: vec![evaluation.path()],
        svg: svg(graph, largest, &of_forces)?,
    })
}

/// An atom on the page.
struct Ball {
    at: (i32, i32),
    /// Towards the reader.
    height: f64,
    radius: i32,
    atom: usize,
}

fn svg(graph: &DrawnGraph, largest: f32, unit: &str) -> Result<Svg, ReportError> {
    let balls = balls(graph);
    let place = |atom: usize| balls.iter().find(|ball| ball.atom == atom).map(|ball| ball.at);
    let share = |atom: usize| match graph.force_errors.get(atom) {
        Some(&error) if largest > 0.0 => f64::from(error / largest),
        _ => 0.0,
    };
    let bottom = TOP + SIDE + 14;
    Ok(Svg::draw(WIDTH, bottom + if graph.force_errors.is_empty() { 6 } else { 40 }, |area| {
        for bond in &graph.bonds {
            if let [Some(one), Some(other)] = bond.map(place) {
                stroke(area, &[one, other], 4.0, GRID)?;
                stroke(area, &[one, other], 1.5, AXIS)?;
            }
        }
        for ball in &balls {
            let (x, y) = (px(ball.at.0), px(ball.at.1));
            let color = palette::heat(share(ball.atom));
            area.draw(&Circle::new((x, y), px(ball.radius), color.filled()))?;
            area.draw(&Circle::new((x, y), px(ball.radius), AXIS.stroke_width(px(1) as u32)))?;
            if balls.len() <= MOST_LABELS {
                let ink = palette::ink_on_heat(share(ball.atom));
                let size = SMALL_TEXT.min(ball.radius + 2);
                write_centered(area, &graph.kinds[ball.atom], ball.at, size, ink)?;
                if let Some(&error) = graph.force_errors.get(ball.atom) {
                    let below = (ball.at.0, ball.at.1 + ball.radius + 8);
                    write_centered(area, &significant(f64::from(error)), below, SMALL_TEXT - 2, INK)?;
                }
            }
        }
        if !graph.force_errors.is_empty() {
            let (left, width, steps) = (WIDTH / 2 - 100, 200, 10);
            for step in 0..steps {
                let from = left + width * step / steps;
                let color = palette::heat((f64::from(step) + 0.5) / f64::from(steps));
                fill(area, (from, bottom + 8), (left + width * (step + 1) / steps, bottom + 20), color)?;
            }
            write_centered(area, "0", (left - 12, bottom + 14), SMALL_TEXT, AXIS)?;
            let end = format!("{}{unit}", significant(f64::from(largest)));
            write(area, &end, (left + width + 8, bottom + 14), SMALL_TEXT, AXIS)?;
            write_centered(area, "error of the force", (WIDTH / 2, bottom + 32), TEXT - 2, INK)?;
        }
        Ok(())
    })?)
}

/// The atoms on the page, the farthest first.
fn balls(graph: &DrawnGraph) -> Vec<Ball> {
    let flat = projected(&graph.positions);
    let extent = flat.iter().fold(1e-9_f64, |extent, place| extent.max(place[0].abs()).max(place[1].abs()));
    let scale = f64::from(SIDE / 2 - MARGIN / 2) / extent;
    let crowd = (60.0 / (graph.positions.len() as f64).sqrt()).clamp(4.0, 15.0);
    let ball = |(atom, place): (usize, &[f64; 3])| Ball {
        at: (WIDTH / 2 + (scale * place[0]).round() as i32, TOP + SIDE / 2 - (scale * place[1]).round() as i32),
        height: place[2],
        radius: if graph.kinds[atom] == "H" { 0.75 * crowd } else { crowd }.round() as i32,
        atom,
    };
    let mut balls: Vec<Ball> = flat.iter().enumerate().map(ball).collect();
    balls.sort_by(|one, other| one.height.total_cmp(&other.height).then(one.atom.cmp(&other.atom)));
    balls
}

/// Positions from their middle, along the axes of the largest, the second and the smallest spread.
fn projected(positions: &[[f32; 3]]) -> Vec<[f64; 3]> {
    let count = positions.len().max(1) as f64;
    let middle = [0, 1, 2].map(|axis| positions.iter().map(|place| f64::from(place[axis])).sum::<f64>() / count);
    let centred: Vec<[f64; 3]> =
        positions.iter().map(|place| [0, 1, 2].map(|axis| f64::from(place[axis]) - middle[axis])).collect();
    let first = widest(&centred, &[]);
    let second = widest(&centred, &[first]);
    let third = cross(first, second);
    centred.iter().map(|place| [first, second, third].map(|axis| dot(*place, axis))).collect()
}

/// The direction of the largest spread across `others`, by power iteration.
fn widest(places: &[[f64; 3]], others: &[[f64; 3]]) -> [f64; 3] {
    let across = |mut vector: [f64; 3]| {
        for other in others {
            let along = dot(vector, *other);
            (0..3).for_each(|axis| vector[axis] -= along * other[axis]);
        }
        vector
    };
    let start = [[1.0, 0.1, 0.01], [0.01, 1.0, 0.1], [0.1, 0.01, 1.0]].map(across);
    let mut direction = start
        .into_iter()
        .max_by(|one, other| dot(*one, *one).total_cmp(&dot(*other, *other)))
        .map_or([1.0, 0.0, 0.0], unit);
    for _ in 0..200 {
        let mut next = [0.0; 3];
        for place in places {
            let along = dot(*place, direction);
            (0..3).for_each(|axis| next[axis] += along * place[axis]);
        }
        let next = across(next);
        // Places on a line, or in one point, have no spread across it.
        if dot(next, next) < 1e-24 {
            break;
        }
        direction = unit(next);
    }
    direction
}

fn unit(vector: [f64; 3]) -> [f64; 3] {
    let length = dot(vector, vector).sqrt().max(1e-300);
    vector.map(|value| value / length)
}

fn dot(one: [f64; 3], other: [f64; 3]) -> f64 {
    (0..3).map(|axis| one[axis] * other[axis]).sum()
}

fn cross(one: [f64; 3], other: [f64; 3]) -> [f64; 3] {
    [
        one[1] * other[2] - one[2] * other[1],
        one[2] * other[0] - one[0] * other[2],
        one[0] * other[1] - one[1] * other[0],
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn water(force_errors: Vec<f32>) -> DrawnGraph {
        DrawnGraph {
            rank: Rank::Worst,
            graph: 7,
            kinds: ["O", "H", "H"].map(String::from).to_vec(),
            // Upright in space.
            positions: vec![[5.0, 0.0, 0.0], [5.0, 0.76, 0.59], [5.0, -0.76, 0.59]],
            bonds: vec![[0, 1], [0, 2]],
            force_errors,
            error: -0.25,
            target: "energy".to_owned(),
            energy_unit: Some("eV".to_owned()),
            length_unit: Some("Å".to_owned()),
        }
    }

    #[test]
    fn a_molecule_is_seen_from_its_widest_side() {
        for place in projected(&water(Vec::new()).positions) {
            assert!(place[2].abs() < 1e-9, "flat: {place:?}");
        }
        let distance =
            |one: [f64; 3], other: [f64; 3]| (0..3).map(|axis| (one[axis] - other[axis]).powi(2)).sum::<f64>();
        let flat = projected(&water(Vec::new()).positions);
        assert!((distance(flat[1], flat[2]) - 1.52_f64.powi(2)).abs() < 1e-6, "lengths stay");
        // Atoms on a line and a single atom have no second direction.
        for places in [vec![[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]], vec![[3.0, 2.0, 1.0]], Vec::new()] {
            assert!(projected(&places).iter().flatten().all(|value| value.is_finite()));
        }
    }

    #[test]
    fn the_error_of_each_atom_is_drawn() {
        let with = svg(&water(vec![0.5, 0.125, 0.25]), 0.5, " eV/Å").unwrap().standalone("water");
        for text in ["0.5000", "0.1250", "0.2500", "eV/Å", ">\nO\n", "error of the force"] {
            assert!(with.contains(text), "{text}: {with}");
        }
        assert_eq!(with.matches("<circle").count(), 6);
        let darkest = palette::heat(1.0);
        assert!(with.contains(&format!("#{:02X}{:02X}{:02X}", darkest.0, darkest.1, darkest.2)));
        let without = svg(&water(Vec::new()), 0.0, "").unwrap().standalone("water");
        assert!(!without.contains("error of the force") && without.matches("<circle").count() == 6);
    }
}
