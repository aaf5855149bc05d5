//! Loader threads do not use the training loop's threads. In a process of its own, because threads of other tests have the same names.

use std::sync::Arc;
use support::process::runs_alone;

use kdgat::graph::{Loader, LoaderOptions};
use support::graph::{options, store};

/// libtorch's threads for the loops of a loader thread have that thread's name.
#[test]
#[cfg(target_os = "linux")]
fn loader_threads_start_no_others() {
    if !runs_alone(module_path!(), "loader_threads_start_no_others") {
        return;
    }
    tch::set_num_threads(4);
    let store = store();
    // Large enough for libtorch loops on several threads.
    let batch: Vec<u64> = (0..4000).map(|index| index % store.num_graphs()).collect();
    let options = LoaderOptions { assemble: options(&store), workers: 1, prefetch_batches: 1 };
    let mut epoch = Loader::start(Arc::clone(&store), options).epoch(vec![batch; 6], 0);
    let made = epoch.next().unwrap().unwrap();
    assert!(made.continuous.numel() > 1 << 17, "{} elements", made.continuous.numel());
    let names = std::fs::read_dir("/proc/self/task").unwrap().filter_map(|thread| {
        let name = std::fs::read_to_string(thread.unwrap().path().join("comm"));
        // A thread may have ended in the meantime.
        name.ok().map(|name| name.trim_end().to_owned())
    });
    let names: Vec<String> = names.filter(|name| name.starts_with("kdgat-loader")).collect();
    assert_eq!(names, ["kdgat-loader-0"]);
}
