//! CAN traffic: frames, the log formats they are read from, datasets on disk, and the simulator.

pub mod frame;

pub use frame::Frame;
