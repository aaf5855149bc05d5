//! A CSV cut into byte ranges is the CSV.
#![no_main]

#[path = "../checks.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::pieces(bytes));
