//! Difficulty of the graphs that a curriculum chooses from, and its choice of them in each epoch.

use super::{Drawn, Figure};
use crate::ReportError;
use crate::chart::palette::{self, AXIS, INK};
use crate::chart::{
    LineChart, SMALL_TEXT, Series, Svg, TEXT, WIDTH, Way, fill, short, write, write_centered, write_right,
};
use crate::files::Run;
use crate::html::slug;

/// Ratio of the highest difficulty to the lowest above which the axis is logarithmic.
const LOGARITHMIC: f64 = 30.0;

/// Words of a curriculum on CAN windows, or on a dataset of graphs.
struct Words {
    /// Column of `curriculum.csv` with the number of graphs.
    column: &'static str,
    /// The graphs that are chosen from.
    graphs: &'static str,
    /// All of them, in a legend.
    all: &'static str,
    difficulty: &'static str,
}

const OF_WINDOWS: Words = Words {
    column: "normals",
    graphs: "normal graphs",
    all: "all normal",
    difficulty: "Difficulty is the scoring VGAE's reconstruction error plus 0.1 times its cross entropy of the IDs.",
};
const OF_GRAPHS: Words = Words {
    column: "graphs",
    graphs: "training graphs",
    all: "all training graphs",
    difficulty: "Difficulty is a model's task loss on a graph, or its number of nodes.",
};

/// A bin of difficulties: the numbers of graphs in it and of those that an epoch chose.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bin {
    low: f64,
    high: f64,
    normals: f64,
    chosen: f64,
}

/// An epoch (from 1) with its bins, from easy to hard.
type Epoch = (f64, Vec<Bin>);

pub fn draw(run: &Run) -> Result<Vec<Drawn>, ReportError> {
    let what = format!("difficulty and the curriculum's choice of {}", run.name);
    let words = match run.stage() {
        "curriculum" => OF_WINDOWS,
        _ if run.has_graph_curriculum() => OF_GRAPHS,
        _ => return Ok(Vec::new()),
    };
    let epochs = epochs(run, &words);
    let Some(choices) = run.choices.as_ref().filter(|_| !epochs.is_empty()) else {
        let why = match run.config["config"]["curriculum"]["curriculum"].as_str() {
            Some(kind @ ("random" | "none")) => {
                format!("graphs are not scored with --curriculum {kind}; use difficulty, static or easiest.")
            }
            _ => format!("the run has no curriculum.csv, which `kdgat {}` writes.", run.stage()),
        };
        return Ok(vec![Drawn::missing(what, why)]);
    };
    let sources = vec![choices.path.clone(), run.metrics.path.clone()];
    let mut drawn = Vec::new();
    let chart = distribution(&epochs, &words);
    if let Some(svg) = chart.draw()? {
        let axis = if chart.log_x { " Its axis is logarithmic." } else { "" };
        let (first, last) = (&epochs[0], &epochs[epochs.len() - 1]);
        drawn.push(
            Figure {
                slug: slug(&format!("difficulty {}", run.name)),
                title: format!(
                    "Difficulty of the {}: {} of {} are chosen in epoch {}, {} in epoch {}",
                    words.graphs,
                    chosen(first),
                    first.1.iter().map(|bin| bin.normals).sum::<f64>(),
                    first.0,
                    chosen(last),
                    last.0
                ),
                reading: format!("{}{axis} Easy graphs are on the left.", words.difficulty),
                sources: sources.clone(),
                svg,
            }
            .into(),
        );
    }
    drawn.push(
        Figure {
            slug: slug(&format!("choice {}", run.name)),
            title: "Curriculum: share of graphs chosen, by difficulty and epoch".to_owned(),
            reading: format!(
                "Dark: most graphs of that difficulty are chosen; light: few. The right column has the number of {} in the epoch.",
                words.graphs
            ),
            sources,
            svg: heat_map(&epochs)?,
        }
        .into(),
    );
    Ok(drawn)
}

fn chosen(epoch: &Epoch) -> f64 {
    epoch.1.iter().map(|bin| bin.chosen).sum()
}

fn epochs(run: &Run, words: &Words) -> Vec<Epoch> {
    let Some(table) = &run.choices else { return Vec::new() };
    let columns =
        ["epoch", "difficulty_low", "difficulty_high", words.column, "chosen"].map(|name| table.numbers(name));
    let [epoch, low, high, normals, chosen] = &columns;
    let mut epochs: Vec<Epoch> = Vec::new();
    for row in 0..table.len() {
        let bin = Bin { low: low[row], high: high[row], normals: normals[row], chosen: chosen[row] };
        match epochs.last_mut().filter(|(last, _)| *last == epoch[row] + 1.0) {
            Some((_, bins)) => bins.push(bin),
            None => epochs.push((epoch[row] + 1.0, vec![bin])),
        }
    }
    epochs
}

fn distribution(epochs: &[Epoch], words: &Words) -> LineChart {
    let line = |bins: &[Bin], count: fn(&Bin) -> f64| {
        let mut points: Vec<(f64, f64)> = bins.iter().map(|bin| (bin.low, count(bin))).collect();
        points.extend(bins.last().map(|bin| (bin.high, count(bin))));
        points
    };
    let (first, last) = (&epochs[0], &epochs[epochs.len() - 1]);
    let mut series = vec![
        Series { way: Way::Steps, ..Series::new(words.all, 5, line(&last.1, |bin| bin.normals)) },
        Series { way: Way::Steps, ..Series::new(format!("epoch {}", first.0), 1, line(&first.1, |bin| bin.chosen)) },
    ];
    if last.0 != first.0 {
        let name = format!("epoch {}", last.0);
        series.push(Series { way: Way::Steps, ..Series::new(name, 0, line(&last.1, |bin| bin.chosen)) });
    }
    let bounds = || epochs.iter().flat_map(|(_, bins)| bins);
    let low = bounds().map(|bin| bin.low).fold(f64::INFINITY, f64::min);
    let high = bounds().map(|bin| bin.high).fold(0.0, f64::max);
    LineChart {
        x: "difficulty of the graph".to_owned(),
        y: format!("{} of that difficulty", words.graphs),
        series,
        x_range: (high > low).then_some(low..high),
        log_x: low > 0.0 && high / low > LOGARITHMIC,
        ..LineChart::default()
    }
}

fn heat_map(epochs: &[Epoch]) -> Result<Svg, ReportError> {
    const LEFT: i32 = 50;
    const RIGHT: i32 = 52;
    const TOP: i32 = 26;
    const BOTTOM: i32 = 44;
    let row = (240 / epochs.len() as i32).clamp(8, 22);
    let height = TOP + row * epochs.len() as i32 + BOTTOM;
    let bins = epochs.iter().map(|(_, bins)| bins.len()).max().unwrap_or(1).max(1) as i32;
    let width = WIDTH - LEFT - RIGHT;
    let x = |bin: i32| LEFT + width * bin / bins;
    let named = (epochs.len() as i32 * row / 14).max(1);
    let every = (epochs.len() as i32 + named - 1) / named;
    Ok(Svg::draw(WIDTH, height, |area| {
        write(area, "epoch", (4, 12), TEXT, INK)?;
        write_right(area, "graphs", (WIDTH - 4, 12), TEXT, INK)?;
        for (index, epoch) in epochs.iter().enumerate() {
            let y = TOP + row * index as i32;
            for (bin, cell) in epoch.1.iter().enumerate().filter(|(_, cell)| cell.normals > 0.0) {
                let color = palette::heat(cell.chosen / cell.normals);
                fill(area, (x(bin as i32), y), (x(bin as i32 + 1), y + row - 1), color)?;
            }
            if index as i32 % every == 0 {
                write_right(area, &epoch.0.to_string(), (LEFT - 6, y + row / 2), SMALL_TEXT, AXIS)?;
                write_right(area, &short(chosen(epoch)), (WIDTH - 4, y + row / 2), SMALL_TEXT, AXIS)?;
            }
        }
        let last = &epochs[epochs.len() - 1].1;
        let below = height - BOTTOM + 12;
        for quarter in 0..=4 {
            let bin = ((last.len() - 1) * quarter / 4).min(last.len() - 1);
            let value = if quarter == 4 { last[bin].high } else { last[bin].low };
            let place = LEFT + width * quarter as i32 / 4;
            write_centered(area, &short(value), (place, below), SMALL_TEXT, AXIS)?;
        }
        write_centered(area, "difficulty of the graph", (LEFT + width / 2, height - 10), TEXT, INK)
    })?)
}
