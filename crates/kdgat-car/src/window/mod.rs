//! Constants of the C code that turns frames into the graph of a window, and of a car's calibration.

use crate::{CText, CarError, CarModel};

/// Appends the constants of windows, features and calibration: `#define`s to `config` (kdgat_config.h), arrays to `tables`
/// (kdgat_tables.c).
///
/// # Errors
/// Fails if the C code does not support the model's features.
pub fn write(model: &CarModel, config: &mut CText, tables: &mut CText) -> Result<(), CarError> {
    let _ = (model, config, tables);
    Ok(())
}

/// C files of this part, by name.
pub const FILES: &[(&str, &str)] = &[];
