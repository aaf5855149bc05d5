//! (under construction)
pub mod losses;
