//! CAN traffic: frames, the log formats they are read from, datasets on disk, and the simulator.

pub mod dataset;
pub mod error;
pub mod formats;
pub mod frame;
pub mod report;
pub mod simulator;

pub use dataset::{Dataset, Role, SourceFile};
pub use error::CanError;
pub use formats::{Format, LogReader, open_log};
pub use frame::Frame;
pub use report::{ReadReport, RejectReason};
pub use simulator::{SimulationOptions, ensure_simulated, simulate};
