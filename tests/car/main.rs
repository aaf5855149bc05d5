//! Detectors exported as C.

mod car_export;
mod car_program;
mod forward;
mod fuzz;
mod models;
mod windows;
