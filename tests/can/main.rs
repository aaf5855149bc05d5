//! Logs and datasets of CAN frames: formats, damaged input, the simulated car, synthetic attacks.

mod can_bad_input;
mod can_formats;
mod can_manifest;
mod can_memory;
mod can_parquet;
mod can_simulator;
mod can_speed;
mod data_check;
mod foreign_ids;
mod fuzz_corpus;
mod reading;
mod synthetic_attacks;
