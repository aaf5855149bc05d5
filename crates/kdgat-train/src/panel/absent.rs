//! No panel: the program was built without the feature `live`.

use std::io;

use tch::Device;

use super::State;

/// A panel that cannot be opened.
#[derive(Debug)]
pub enum Panel {}

impl Panel {
    /// Fails, and says what to build.
    ///
    /// # Errors
    /// Always.
    pub fn open(_: State, _: Device) -> io::Result<Self> {
        let text = "this program was built without the panel; build it with `cargo build --release --features live`";
        Err(io::Error::new(io::ErrorKind::Unsupported, text))
    }

    /// Changes the state that is shown.
    pub fn update(&self, _: impl FnOnce(&mut State)) {
        match *self {}
    }

    /// Shows a line to the user.
    pub fn line(&self, _: &str) {
        match *self {}
    }
}
