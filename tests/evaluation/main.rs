//! Evaluation, calibration, detection and fusion of trained models.

mod compare_runs;
mod detect_alarms;
mod detect_calibration;
mod detect_stream;
mod evaluate_laws;
mod evaluate_models;
mod evaluate_rules;
mod fusion_runs;
mod gone_ids;
mod operator_figures;
