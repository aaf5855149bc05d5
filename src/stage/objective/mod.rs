//! The losses of the stages, as the epoch loop asks for them.

mod vgae;

use tch::{Kind, Tensor};

use crate::distill::{StepReport, Teacher};

pub use vgae::{VgaeDistillation, VgaeObjective};

/// Columns that a teacher adds to `steps.csv`.
pub const TEACHER_COLUMNS: &[&str] = &[
    "teacher_mode",
    "teacher_bytes",
    "copy_ms",
    "copy_exposed_ms",
    "teacher_forward_ms",
    "student_wait_ms",
    "cache_hit_rows",
    "cache_miss_rows",
    "device_bytes_teacher",
];

/// Their values.
pub fn teacher_values(report: &StepReport) -> Vec<String> {
    vec![
        report.teacher_mode.clone(),
        report.teacher_bytes.to_string(),
        format!("{:.3}", report.copy_ms),
        format!("{:.3}", report.copy_exposed_ms),
        format!("{:.3}", report.teacher_forward_ms),
        format!("{:.3}", report.student_wait_ms),
        report.cache_hit_rows.to_string(),
        report.cache_miss_rows.to_string(),
        report.device_bytes_teacher.to_string(),
    ]
}

/// What the bar says of a teacher.
pub fn teacher_status(report: &StepReport) -> String {
    let rows = report.cache_hit_rows + report.cache_miss_rows;
    let hits = if rows == 0 { 0.0 } else { 100.0 * report.cache_hit_rows as f64 / rows as f64 };
    format!("teacher {}, {hits:.0} % cached, waited {:.0} ms", report.teacher_mode, report.student_wait_ms)
}

/// Announces batches to the teacher, if there is one.
pub fn announce(teacher: Option<&Teacher>, batches: &[crate::graph::Batch]) {
    if let Some(teacher) = teacher {
        teacher.submit(batches.iter().map(crate::graph::Batch::shallow_clone).collect());
    }
}

/// The scalar that stands for a part of the loss that a run does not have: an empty field in its logs.
pub fn absent(like: &Tensor) -> Tensor {
    Tensor::full([0i64; 0].as_slice(), f64::NAN, (Kind::Float, like.device()))
}
