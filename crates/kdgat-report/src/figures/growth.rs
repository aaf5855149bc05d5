//! A test tree in its two widest axes, with the steps that a pre-trained network predicts beside the real ones.

use super::{Drawn, Figure, thinned};
use crate::ReportError;
use crate::chart::palette::{self, AXIS, INK};
use crate::chart::{SMALL_TEXT, Svg, WIDTH, short, stroke, write};
use crate::files::{GrownModel, Growth, NodeGrowth, Tree};
use crate::html::slug;

const SIZE: i32 = 460;
const MARGIN: i32 = 16;
/// Most nodes whose predicted step is drawn.
const MOST_STEPS: usize = 120;
/// Most models that are drawn.
const MOST_MODELS: usize = 3;
const REAL: usize = 0;
const PREDICTED: usize = 1;

type Vector = [f64; 3];

/// Draws the tree of each model, of the first few.
pub fn draw(growth: &Growth) -> Result<Vec<Drawn>, ReportError> {
    growth.models.iter().take(MOST_MODELS).map(|model| Ok(figure(growth, model)?.into())).collect()
}

fn figure(growth: &Growth, GrownModel { model, tree }: &GrownModel) -> Result<Figure, ReportError> {
    let count = tree.growth.len().max(1) as f64;
    let error =
        |at: usize| tree.growth.iter().map(|node| (node.predicted[at] - node.real[at]).abs()).sum::<f64>() / count;
    let unit = growth.length_unit.as_ref().map_or(String::new(), |unit| format!(" {unit}"));
    Ok(Figure {
        slug: slug(&format!("growth {model}")),
        title: format!(
            "Growth of a test tree by {model}: mean error {}{unit} and {}°",
            short(error(0)),
            short(error(1).to_degrees())
        ),
        reading: format!(
            "The first test tree in its two widest axes, {} points. Blue: real edges. Orange: at some of the points, the step to a child that was \
             predicted from the way to the point alone, its mean length at its mean angle, turned to the side on which the child is.",
            tree.positions.len()
        ),
        sources: vec![growth.path.clone()],
        svg: svg(tree)?,
    })
}

/// The two axes along which the tree extends farthest, the wider one first.
fn axes(tree: &Tree) -> [usize; 2] {
    let mut axes = [0, 1, 2];
    let extent = |axis: usize| {
        let values = tree.positions.iter().map(|place| place[axis]);
        let (low, high) =
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        high - low
    };
    axes.sort_by(|&one, &other| extent(other).total_cmp(&extent(one)));
    [axes[0], axes[1]]
}

fn minus(one: Vector, other: Vector) -> Vector {
    [0, 1, 2].map(|axis| one[axis] - other[axis])
}

fn length(vector: Vector) -> f64 {
    vector.iter().map(|value| value * value).sum::<f64>().sqrt()
}

fn unit(vector: Vector) -> Vector {
    let length = length(vector).max(1e-12);
    vector.map(|value| value / length)
}

/// The place where the predicted step from a node leads.
fn predicted(tree: &Tree, at: &NodeGrowth, child: usize) -> Option<Vector> {
    let (place, from) = (tree.positions[at.node], tree.positions[tree.parents[at.node]?]);
    let along = unit(minus(place, from));
    let real = minus(tree.positions[child], place);
    let share: f64 = real.iter().zip(along).map(|(one, other)| one * other).sum();
    let across = minus(real, along.map(|value| value * share));
    // A child straight ahead is on no side.
    let across = if length(across) > 1e-9 { unit(across) } else { unit([-along[1], along[0], 0.0]) };
    let [step, angle] = at.predicted;
    Some([0, 1, 2].map(|axis| place[axis] + step * (angle.cos() * along[axis] + angle.sin() * across[axis])))
}

fn svg(tree: &Tree) -> Result<Svg, ReportError> {
    let [horizontal, vertical] = axes(tree);
    let ends = |axis: usize| {
        let values = tree.positions.iter().map(|place| place[axis]);
        values.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], value| [low.min(value), high.max(value)])
    };
    let ([left, right], [low, high]) = (ends(horizontal), ends(vertical));
    let room = f64::from(SIZE - 2 * MARGIN) / (right - left).max(high - low).max(1e-9);
    let pixel = |place: Vector| {
        let x = (place[horizontal] - left) * room;
        let y = (high - place[vertical]) * room;
        (MARGIN + x.round() as i32, MARGIN + y.round() as i32)
    };
    let mut first_child = vec![None; tree.positions.len()];
    for (node, parent) in tree.parents.iter().enumerate() {
        if let Some(parent) = parent {
            first_child[*parent].get_or_insert(node);
        }
    }
    let bottom = MARGIN + ((high - low) * room).round() as i32 + MARGIN;
    let step = ((right - left).max(1e-9) / 4.0).log10().floor();
    let bar = 10f64.powf(step);
    Ok(Svg::draw(WIDTH, bottom + 30, |area| {
        for (node, parent) in tree.parents.iter().enumerate() {
            if let Some(parent) = parent {
                let places = [pixel(tree.positions[*parent]), pixel(tree.positions[node])];
                stroke(area, &places, 1.5, palette::series(REAL))?;
            }
        }
        for at in thinned(&tree.growth.iter().collect::<Vec<_>>(), MOST_STEPS) {
            if let Some(place) = first_child[at.node].and_then(|child| predicted(tree, at, child)) {
                stroke(area, &[pixel(tree.positions[at.node]), pixel(place)], 1.5, palette::series(PREDICTED))?;
            }
        }
        stroke(area, &[(MARGIN, bottom + 14), (MARGIN + (bar * room).round() as i32, bottom + 14)], 2.0, AXIS)?;
        write(area, &short(bar), (MARGIN + (bar * room).round() as i32 + 6, bottom + 14), SMALL_TEXT, INK)
    })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_and_predicted_steps_are_drawn() {
        // A way that turns by a right angle, and a prediction that it goes on straight.
        let tree = Tree {
            positions: vec![[0.0; 3], [3.0, 0.0, 0.0], [3.0, 2.0, 0.0]],
            parents: vec![None, Some(0), Some(1)],
            growth: vec![NodeGrowth { node: 1, predicted: [1.0, 0.0], real: [2.0, std::f64::consts::FRAC_PI_2] }],
        };
        assert_eq!(predicted(&tree, &tree.growth[0], 2), Some([4.0, 0.0, 0.0]));
        let right = NodeGrowth { predicted: [2.0, std::f64::consts::FRAC_PI_2], ..tree.growth[0].clone() };
        let place = predicted(&tree, &right, 2).unwrap();
        assert!(length(minus(place, tree.positions[2])) < 1e-9, "{place:?}");
        let growth = Growth {
            length_unit: Some("µm".to_owned()),
            models: vec![GrownModel { model: "grown".to_owned(), tree }],
            path: "growth.json".into(),
        };
        let Drawn::Figure(figure) = draw(&growth).unwrap().remove(0) else { panic!("no figure") };
        assert_eq!(figure.title, "Growth of a test tree by grown: mean error 1 µm and 90°");
        // Two edges, one step, and the bar of the scale.
        assert_eq!(
            figure.svg.inline("").matches("<line").count() + figure.svg.inline("").matches("<polyline").count(),
            4
        );
    }
}
