//! Detectors exported as C.

mod car_export;
mod car_program;
mod compiler;
mod forward;
mod fuzz;
mod models;
mod windows;
