//! The command line, configuration, documents and scripts.

mod architecture;
mod cli_commands;
mod cli_documents;
mod cli_setup;
mod config_errors;
mod config_layers;
mod config_presets;
mod config_reference;
mod damaged_files;
mod doctor;
mod examples;
mod known_inputs;
mod run_settings;
