//! Foreign weights: a safetensors file, a PyTorch archive, and the pickle inside one.
#![no_main]

#[path = "../checks.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::weights(bytes));
