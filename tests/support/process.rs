//! Tests that need a process, or what belongs to it, for themselves.

use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// True under `scripts/test --soak`.
pub fn is_soak() -> bool {
    std::env::var_os("SOAK_TESTS").is_some()
}

/// Number of repetitions: a sample, or all of them under `scripts/test --soak`.
pub fn rounds(sample: u64, all: u64) -> u64 {
    if is_soak() { all } else { sample }
}

/// Number of tests that the harness runs at once, and so of the processes that a test may keep busy.
pub fn tests_at_once() -> usize {
    let given = std::env::var("RUST_TEST_THREADS").ok().and_then(|text| text.parse().ok());
    given.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Keeps other tests with this lock from running at the same time. For tests that use what belongs to the process and can be set anew:
/// torch's generator, the allocator and its limits, a GPU.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Full name of a test of the module `module`, as the harness knows it. `module` is `module_path!()`, which begins with the program's name.
pub fn test_name(module: &str, test: &str) -> String {
    match module.split_once("::") {
        Some((_, module)) => format!("{module}::{test}"),
        None => test.to_owned(),
    }
}

/// This program, which runs only this test.
pub fn only_test(module: &str, test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &test_name(module, test)]).stdin(Stdio::null());
    command
}

/// Standard output and standard error.
pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Panics unless a process from [`only_test`] ran one test and it passed: a name without a test is no error for the harness.
#[track_caller]
pub fn assert_passed(output: &Output) {
    let text = text(output);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// Variable that names the test that has the process for itself.
const ALONE: &str = "KDGAT_TEST_ALONE";

/// Runs a test again in a process in which no other test runs, and panics if it fails there. Returns true in that process: only there the
/// test goes on. For tests of what belongs to a process: its peak memory, the names of its threads, a setting that is made once.
pub fn runs_alone(module: &str, test: &str) -> bool {
    let name = test_name(module, test);
    if std::env::var_os(ALONE).is_some_and(|alone| alone == name.as_str()) {
        return true;
    }
    let output =
        only_test(module, test).env(ALONE, &name).args(["--test-threads", "1", "--show-output"]).output().unwrap();
    assert_passed(&output);
    print!("{}", text(&output));
    false
}
