//! A CSV read in byte ranges gives the same frames as the whole CSV.
#![no_main]

#[path = "../checks.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::pieces(bytes));
