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

/// Its trees are written by a script on the page.
#[test]
fn the_tutorial_on_trees() {
    follow("docs/tutorial-trees.md", &[]);
}

/// Its graph is written by a script on the page.
#[test]
fn the_tutorial_on_nodes() {
    follow("docs/tutorial-nodes.md", &[]);
}

/// Its molecules are written by a script on the page.
#[test]
fn the_tutorial_on_molecules() {
    follow("docs/tutorial-molecules.md", &[]);
}

/// True if detectors can be compiled on this machine; says so otherwise.
fn can_compile(page: &str) -> bool {
    let works =
        |program: &str| Command::new(program).arg("--version").output().is_ok_and(|found| found.status.success());
    let can = cfg!(target_os = "linux") && works("cc") && works("make");
    if !can {
        println!("skipped: {page} needs Linux, a C compiler `cc`, and make");
    }
    can
}

/// Compiles an exported detector with the machine's compiler.
#[test]
fn the_page_on_detection_in_the_car() {
    if can_compile("docs/car.md") {
        follow("docs/car.md", &[]);
    }
}

/// From two drives of a simulated car to alarms of the exported program, and to another car.
#[test]
fn the_tutorial_on_drives() {
    if can_compile("docs/tutorial-drives.md") {
        follow("docs/tutorial-drives.md", &[]);
    }
}

/// Trains for minutes, on data outside the repository.
#[test]
#[ignore = "takes minutes: scripts/tutorials runs it"]
fn the_tutorial_on_real_data() {
    let Some(data) = candata("hcrl_sa") else { return };
    follow("docs/tutorial-real.md", &[("DATA", data)]);
}
