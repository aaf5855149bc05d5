//! Runs every command of the tutorials, in order, in a new folder, and compares the output with the pages.
//!
//! `scripts/tutorials` also runs the tutorial on real data; its `--write` replaces the output in the pages.

use std::process::Command;

use crate::proteins;
use crate::tutorial::{follow, follow_prepared};
use support::real_data::candata;

#[test]
fn the_tutorial_on_simulated_data() {
    follow("docs/tutorial-sim.md", &[]);
}

#[test]
fn the_tutorial_on_attack_free_traffic() {
    follow("docs/tutorial-attack-free.md", &[]);
}

/// Its own dataset is written by a script on the page; a made-up archive stands for PROTEINS.zip.
#[test]
fn the_tutorial_on_graphs() {
    follow_prepared("docs/tutorial-graphs.md", &[], |place| {
        let folder = place.join("graphs");
        std::fs::create_dir(&folder).unwrap();
        proteins::write(&folder.join("PROTEINS.zip"));
    });
}

/// Its graph is written by a script on the page.
#[test]
fn the_tutorial_on_nodes() {
    follow("docs/tutorial-nodes.md", &[]);
}

/// Compiles an exported detector with the machine's compiler.
#[test]
fn the_page_on_detection_in_the_car() {
    let works =
        |program: &str| Command::new(program).arg("--version").output().is_ok_and(|found| found.status.success());
    if !cfg!(target_os = "linux") || !works("cc") || !works("make") {
        println!("skipped: docs/car.md needs Linux, a C compiler `cc`, and make");
        return;
    }
    follow("docs/car.md", &[]);
}

/// Trains for minutes, on data outside the repository.
#[test]
#[ignore = "takes minutes: scripts/tutorials runs it"]
fn the_tutorial_on_real_data() {
    let Some(data) = candata("hcrl_sa") else { return };
    follow("docs/tutorial-real.md", &[("DATA", data)]);
}
