//! The tutorials are true: every command in them is run, in order, in a folder of its own, and prints what they show.
//!
//! What `scripts/tutorials` does more: it runs the one on real data, too, and `--write` puts today's output into the pages.

mod documents_support;

use documents_support::{follow, shared};

#[test]
fn the_tutorial_on_simulated_data() {
    follow("docs/tutorial-sim.md", &[]);
}

/// Trains for minutes on data that is not part of the repository.
#[test]
#[ignore = "takes minutes: scripts/tutorials runs it"]
fn the_tutorial_on_real_data() {
    let data = shared().join("candata/hcrl_sa");
    if !data.is_dir() {
        eprintln!("skipped: the tutorial on real data needs candata/hcrl_sa in ../shared, or where KDGAT_SHARED says");
        return;
    }
    follow("docs/tutorial-real.md", &[("DATA", data)]);
}
