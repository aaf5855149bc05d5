//! CAN traffic: frames, the log formats they are read from, datasets on disk, the simulator, and synthetic attacks.

#![warn(missing_docs)]

pub mod catalogue;
pub mod check;
pub mod dataset;
pub mod error;
pub mod formats;
pub mod frame;
pub mod plausible;
pub mod report;
pub mod simulator;
pub mod synthetic;
mod whole_folder;

pub use dataset::{Dataset, Role, SourceFile};
pub use error::CanError;
pub use formats::{
    Format, LogReader, Piece, ReadOptions, TimeUnit, format_of_pieces, open_log, open_log_with, read_piece,
};
pub use frame::Frame;
pub use report::{ReadReport, RejectReason};
pub use simulator::{SimulationOptions, ensure_simulated, simulate};
pub use synthetic::{SyntheticKind, SyntheticOptions, SyntheticOrigin, ensure_synthetic, has_synthetic};
