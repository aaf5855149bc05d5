//! (under construction)

pub mod attention;
