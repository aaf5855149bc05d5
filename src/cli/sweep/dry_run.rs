//! The output of `kdgat sweep --dry-run`.

use std::fmt::Write;

use anyhow::Result;

use super::{Executor, SweepArgs, counts, local_slots};
use crate::sweep::plan::{self, Found, Plan};
use crate::sweep::state::SweepFolder;
use crate::sweep::{ray, slurm};

/// Describes the tasks that would run, and how: in parallel on this machine, or with which resources on a cluster.
pub fn described(args: &SweepArgs, found: &Found, plan: &Plan, folder: &SweepFolder) -> Result<String> {
    let (how, asked) = match args.executor {
        Executor::Local => (local_slots(args, plan)?.reason, Vec::new()),
        Executor::Slurm => {
            let asked = slurm::asked(folder, plan)?;
            (format!("{} job arrays on Slurm, one element per task", asked.len()), asked)
        }
        Executor::Ray => {
            let asked = ray::asked(folder, plan)?;
            ("jobs on Ray, one per task".to_owned(), asked)
        }
    };
    let mut text = String::new();
    // Writing into a String cannot fail.
    let _ = writeln!(text, "sweep {}: {}", plan.name, found.file.description);
    if let Some(caveat) = plan.caveat() {
        let _ = writeln!(
            text,
            "the best trial will be {caveat}; `metric = \"{}\"` selects on validation data",
            plan::metric::OF_VALIDATION
        );
    }
    let _ = writeln!(text, "{} {}; folder {}", plan.direction.as_str(), plan.metric, folder.path().display());
    let _ = writeln!(text, "{} trials, {}; {how}", plan.trials.len(), counts(plan));
    for line in asked {
        let _ = writeln!(text, "  {line}");
    }
    for task in &plan.tasks {
        let needs: Vec<&str> =
            task.needs.iter().filter_map(|id| plan.task(id)).map(|task| task.step.as_str()).collect();
        let after = if needs.is_empty() { String::new() } else { format!("  after {}", needs.join(", ")) };
        let _ =
            writeln!(text, "  {}  kdgat {}  {}{after}", task.folder_name(), task.kind.words().join(" "), task.label);
    }
    Ok(text)
}

/// The scripts or requests that a cluster would be sent.
pub fn requests(executor: Executor, folder: &SweepFolder, plan: &Plan) -> Result<Vec<String>> {
    Ok(match executor {
        Executor::Local => Vec::new(),
        Executor::Slurm => slurm::scripts(folder, plan)?,
        Executor::Ray => ray::requests(folder, plan)?.iter().map(|request| format!("{request:#}\n")).collect(),
    })
}
