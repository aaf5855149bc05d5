//! Teachers: registry, threads, residency, cached targets, and the losses of their students.

#[path = "../../benches/common/mod.rs"]
mod common;

mod batch_invariance;
mod distill_cache;
mod distill_losses;
mod distill_processes;
mod distill_registry;
mod distill_teacher;
mod evaluate_teachers;
mod several_teachers;
mod teacher_cache;
mod teacher_views;
