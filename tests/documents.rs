//! The tutorials are true: every command in them is run, in order, in a folder of its own, and prints what they show.
//!
//! What `scripts/tutorials` does more: it runs the one on real data, too, and `--write` puts today's output into the pages.

mod documents_support;
#[path = "support/real_data.rs"]
mod real_data;

use documents_support::follow;
use real_data::candata;

#[test]
fn the_tutorial_on_simulated_data() {
    follow("docs/tutorial-sim.md", &[]);
}

/// Trains for minutes on data that is not part of the repository.
#[test]
#[ignore = "takes minutes: scripts/tutorials runs it"]
fn the_tutorial_on_real_data() {
    let Some(data) = candata("hcrl_sa") else { return };
    follow("docs/tutorial-real.md", &[("DATA", data)]);
}
