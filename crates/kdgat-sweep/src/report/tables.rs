//! Tables of a sweep's report, for Markdown and for the HTML page.

use super::analysis::{Comparison, Effect, Group, TESTS, best, effects, groups};
use super::statistics::Summary;
use crate::plan::{Plan, metric};
use crate::state::Row;

/// A table with a title; the first columns are texts.
#[derive(Clone, Debug)]
pub struct Table {
    /// Heading of the table.
    pub title: String,
    /// Explanation below the title; may be empty.
    pub note: String,
    /// Names of the columns.
    pub header: Vec<String>,
    /// Rows with one text per column; empty where a value is unknown.
    pub rows: Vec<Vec<String>>,
}

/// Builds all tables of a report.
pub fn tables(plan: &Plan, rows: &[Row], comparisons: &[Comparison]) -> Vec<Table> {
    let groups = groups(plan, rows);
    let mut tables = vec![table_of_groups(plan, &groups), table_of_best(plan, &groups)];
    tables.extend(effects(plan, rows).iter().map(|effect| table_of_effect(plan, effect)));
    tables.push(table_of_front(plan, &groups));
    if !comparisons.is_empty() {
        tables.push(table_of_comparisons(plan, comparisons));
    }
    tables
}

fn table_of_groups(plan: &Plan, groups: &[Group]) -> Table {
    let axes = plan.axes.iter().filter(|axis| *axis != "seed").cloned();
    let columns = [&plan.metric, "trials", "failed", "seconds", "peak MiB", "parameters", "ms per graph"];
    Table {
        title: "All settings".to_owned(),
        note: format!("Mean ± standard deviation over seeds of {} ({}).", plan.metric, plan.direction.as_str()),
        header: axes.chain(columns.iter().map(|&name| name.to_owned())).collect(),
        rows: groups.iter().map(group_row).collect(),
    }
}

fn group_row(group: &Group) -> Vec<String> {
    let mut row: Vec<String> = group.settings.iter().map(|(_, value)| value.clone()).collect();
    row.extend([
        mean(group.metric),
        group.trials.to_string(),
        group.failed.to_string(),
        group.seconds.map_or(String::new(), |seconds| format!("{:.1}", seconds.mean)),
        format!("{:.1}", group.peak_memory_bytes as f64 / (1 << 20) as f64),
        group.parameters.map_or(String::new(), |count| format!("{count:.0}")),
        group.latency.map_or(String::new(), |latency| format!("{latency:.4}")),
    ]);
    row
}

/// Builds the table of the best settings per dataset, with their test metrics unless they were selected on the test folders.
fn table_of_best(plan: &Plan, groups: &[Group]) -> Table {
    let is_tested = |group: &Group| group.tests.iter().any(Option::is_some);
    let shows_tests = !metric::is_of_tests(&plan.metric) && groups.iter().any(is_tested);
    let tests = |group: &Group| if shows_tests { group.tests.map(mean).to_vec() } else { Vec::new() };
    let row = |(dataset, group): (String, &Group)| {
        [vec![dataset, group.describe(), mean(group.metric)], tests(group)].concat()
    };
    let mut header = vec!["dataset".to_owned(), "settings".to_owned(), plan.metric.clone()];
    header.extend(TESTS.iter().filter(|_| shows_tests).map(|name| format!("test {name}")));
    let note = match plan.caveat() {
        Some(caveat) => format!("{} is {caveat}.", plan.metric),
        None if shows_tests => format!("Selected by {}; the test folders were not used.", plan.metric),
        None => String::new(),
    };
    Table {
        title: "Best per dataset".to_owned(),
        note,
        header,
        rows: best(plan, groups).into_iter().map(row).collect(),
    }
}

fn table_of_effect(plan: &Plan, effect: &Effect) -> Table {
    let row =
        |(value, summary): &(String, Summary)| vec![value.clone(), mean(Some(*summary)), summary.count.to_string()];
    Table {
        title: format!("Effect of {}", effect.axis),
        note: format!("Mean over all other settings; the means span {:.5}.", effect.spread),
        header: vec![effect.axis.clone(), plan.metric.clone(), "trials".to_owned()],
        rows: effect.values.iter().map(row).collect(),
    }
}

fn table_of_front(plan: &Plan, groups: &[Group]) -> Table {
    let mut front: Vec<&Group> = groups.iter().filter(|group| group.on_front).collect();
    front.sort_by(|a, b| a.parameters.unwrap_or(0.0).total_cmp(&b.parameters.unwrap_or(0.0)));
    let row = |group: &&Group| {
        vec![
            group.describe(),
            group.parameters.map_or(String::new(), |count| format!("{count:.0}")),
            group.latency.map_or(String::new(), |latency| format!("{latency:.4}")),
            mean(group.metric),
        ]
    };
    Table {
        title: "Pareto front".to_owned(),
        note: format!(
            "No other setting is smaller, faster (if evaluated) and better at once.{}",
            plan.caveat().map_or(String::new(), |caveat| format!(" {} is {caveat}.", plan.metric))
        ),
        header: ["settings", "parameters", "ms per graph", &plan.metric].map(str::to_owned).to_vec(),
        rows: front.iter().map(row).collect(),
    }
}

fn table_of_comparisons(plan: &Plan, comparisons: &[Comparison]) -> Table {
    let row = |found: &Comparison| {
        vec![
            found.first.clone(),
            found.second.clone(),
            mean(Some(found.difference)),
            found.difference.count.to_string(),
            found.second_better.to_string(),
            format!("{:.4}", found.p_value),
        ]
    };
    let difference = format!("difference of {}", plan.metric);
    Table {
        title: "Pairs".to_owned(),
        note: "Difference: second − first, over trials that differ in nothing else; two-sided paired permutation test."
            .to_owned(),
        header: ["first", "second", &difference, "pairs", "second better", "p"].map(str::to_owned).to_vec(),
        rows: comparisons.iter().map(row).collect(),
    }
}

fn mean(summary: Option<Summary>) -> String {
    match summary {
        None => String::new(),
        Some(Summary { mean, deviation: None, .. }) => format!("{mean:.5}"),
        Some(Summary { mean, deviation: Some(deviation), .. }) => format!("{mean:.5} ± {deviation:.5}"),
    }
}

/// Formats all tables as Markdown.
pub fn markdown(title: &str, tables: &[Table]) -> String {
    let mut text = format!("# {title}\n");
    for table in tables {
        text += &format!("\n## {}\n\n", table.title);
        if !table.note.is_empty() {
            text += &format!("{}\n\n", table.note);
        }
        let line =
            |cells: &[String]| format!("| {} |\n", cells.iter().map(|text| cell(text)).collect::<Vec<_>>().join(" | "));
        text += &line(&table.header);
        text += &format!("|{}\n", "---|".repeat(table.header.len()));
        text.extend(table.rows.iter().map(|row| line(row)));
    }
    text
}

/// Escapes a text for a cell of a Markdown table: on one line, `|` escaped.
fn cell(text: &str) -> String {
    text.replace("\r\n", " ").replace(['\n', '\r'], " ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_on_one_line() {
        let rows = vec![vec!["two\nlines\r\nand | a bar".to_owned(), "1".to_owned()]];
        let header = vec!["case".to_owned(), "val_loss".to_owned()];
        let table = Table { title: "All".to_owned(), note: String::new(), header, rows };
        let text = markdown("Sweep", &[table]);
        assert!(text.ends_with("|---|---|\n| two lines and \\| a bar | 1 |\n"), "{text}");
    }
}
