//! Every format and the recognition of formats and compressions, as a file.
#![no_main]

#[path = "../checks.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::logs(bytes));
