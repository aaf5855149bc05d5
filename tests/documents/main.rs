//! Commands of the tutorials, and pages of reports.

mod documents;
mod pages;
mod proteins;
mod python_teacher;
mod python_wheel;
mod report_graphs;
mod report_pages;
mod tutorial;
