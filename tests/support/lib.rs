//! Helpers of the test programs. A library of its own, so that they are compiled once and not for each program.
#![allow(clippy::new_without_default)] // A workplace is a temporary folder: a test says that it makes one.

pub mod attention;
pub mod cli;
pub mod comparison;
pub mod distill;
pub mod evaluate;
pub mod fixture;
pub mod graph;
pub mod parity;
pub mod process;
pub mod program;
pub mod python;
pub mod real_data;
pub mod stage;
pub mod starter;
pub mod stops;
