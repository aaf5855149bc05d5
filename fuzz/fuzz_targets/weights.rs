//! Weights that others saved: a safetensors file, an archive of PyTorch, and the pickle in one.
#![no_main]

#[path = "../checks.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::weights(bytes));
