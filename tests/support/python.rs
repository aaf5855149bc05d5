//! Python programs that the tests run beside kdgat.

use std::path::PathBuf;
use std::process::Command;

/// Python with `modules`: the system's, or that of the environment `name`, which clones share.
pub fn python_with(modules: &str, name: &str, remedy: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let shared = cache.map(|cache| cache.join("kdgat").join(name).join("bin/python"));
    let has_modules = |python: &PathBuf| {
        let tried = Command::new(python).args(["-c", &format!("import {modules}")]).output();
        tried.is_ok_and(|output| output.status.success())
    };
    let found = [PathBuf::from("python3")].into_iter().chain(shared).find(has_modules);
    if found.is_none() {
        println!("skipped: a test in Python: no Python has {modules} ({remedy})");
    }
    found
}
