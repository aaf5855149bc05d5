//! The configuration: one [`Config`] of sections, merged from defaults, presets, files, variables and flags.
//!
//! [`fields`] defines every field once, with all that depends on it; [`load()`] merges the layers, [`check()`] refuses contradictions.

#![warn(missing_docs)]

mod check;
mod conditions;
mod curriculum;
mod data_kind;
mod error;
mod fields;
mod frozen;
mod layer;
mod load;
mod origin;
mod presets;
mod print;
mod reads;
mod reference;
mod rules;
pub mod run_settings;
mod setting;
mod table;
mod text;
mod values;

pub use check::{Stage, capture_obstacles, check, check_stage};
pub use conditions::{VIEWS_SEED, displacement, has_bonds, trains_on_graphs, views};
pub use curriculum::{DifficultyOf, difficulty_of, has_graph_curriculum};
pub use data_kind::DataKind;
pub use error::{ConfigError, Problem};
pub use fields::*;
pub use frozen::{CONFIG_KEY, freeze};
pub use kdgat_base::nearest;
pub use layer::{field, fields, nearest_field};
pub use load::{Loaded, Sources, load};
pub use origin::Origin;
pub use presets::BUILT_IN as BUILT_IN_PRESETS;
pub use print::{to_json, to_toml};
pub use reads::{Reader, check_reads};
pub use reference::reference;
pub use rules::{loss_fields, may_read};
pub use table::{Field, Limit, Section, running_text};
pub use values::*;
