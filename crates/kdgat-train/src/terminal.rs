//! The terminal while a panel uses it: alternate screen, raw keys, and captured standard error, because other output would
//! overwrite the panel. Restored on every way out of the program.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use parking_lot::Mutex;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::layout::Rect;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{fcntl_dupfd_cloexec, ioctl_fionbio};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::stdio::{dup2_stderr, stderr, stdin};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr,
};

/// Size assumed for a terminal that does not report it.
const UNKNOWN_SIZE: (u16, u16) = (80, 24);
/// Longest wait for a blocked terminal on the way out.
const PATIENCE: Duration = Duration::from_secs(1);
/// Maximum number of bytes of standard error read at a time.
const CAUGHT_BYTES: usize = 1 << 16;

static TAKEN: Mutex<Option<Taken>> = Mutex::new(None);

/// State of the terminal to restore.
struct Taken {
    /// The original standard error.
    output: File,
    /// The original mode of the terminal.
    mode: Option<Termios>,
    keys: bool,
}

/// Restores the terminal, if it is in use. Can be called anywhere and at any time: the screen draws nothing after that.
pub fn give_back() {
    if let Some(mut taken) = TAKEN.try_lock_for(PATIENCE)
        && let Some(taken) = taken.take()
    {
        taken.restore();
    }
}

impl Taken {
    /// Restores everything, ignoring errors: nobody is left to report them to.
    fn restore(self) {
        let _ = dup2_stderr(&self.output);
        if let Some(mode) = &self.mode {
            let _ = tcsetattr(self.mode_of(), OptionalActions::Now, mode);
        }
        let _ = leave(&self.output);
    }

    /// The file whose terminal mode is changed: standard input, or standard error if standard input is no terminal.
    fn mode_of(&self) -> BorrowedFd<'_> {
        if self.keys { stdin() } else { self.output.as_fd() }
    }

    /// Delivers keys one by one, without echo.
    fn set_mode(&mut self) -> io::Result<()> {
        let before = tcgetattr(self.mode_of())?;
        let mut mode = before.clone();
        mode.local_modes -= LocalModes::ECHO | LocalModes::ICANON;
        if self.keys {
            // Ctrl-C then arrives as a key; the signal would not arrive if this is not the foreground process of the terminal.
            mode.local_modes -= LocalModes::ISIG;
        } else {
            // Ctrl-C stays a signal, since no keys are read. Ctrl-Z is disabled: it would leave the alternate screen to the
            // shell.
            mode.special_codes[SpecialCodeIndex::VSUSP] = 0;
        }
        mode.special_codes[SpecialCodeIndex::VMIN] = 1;
        mode.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(self.mode_of(), OptionalActions::Now, &mode)?;
        self.mode = Some(before);
        Ok(())
    }
}

/// The terminal in use; dropping it restores the terminal.
#[derive(Debug)]
pub struct Screen {
    caught: File,
    /// Beginning of an incomplete line.
    unfinished: Vec<u8>,
    reads_keys: bool,
}

impl Screen {
    /// Takes over the terminal of standard error.
    ///
    /// # Errors
    /// If it is already in use, or its mode cannot be set.
    pub fn take() -> io::Result<Self> {
        let mut place = TAKEN.lock();
        if place.is_some() {
            return Err(io::Error::other("the terminal is already in use"));
        }
        let (caught, catching) = pipe_with(PipeFlags::CLOEXEC)?;
        ioctl_fionbio(&caught, true)?;
        let output = File::from(fcntl_dupfd_cloexec(stderr(), 3)?);
        let keys = isatty(stdin());
        let mut taken = Taken { output, mode: None, keys };
        let set = taken.set_mode().and_then(|()| Ok(dup2_stderr(&catching)?)).and_then(|()| enter(&taken.output));
        if let Err(error) = set {
            taken.restore();
            return Err(error);
        }
        *place = Some(taken);
        Ok(Self { caught: File::from(caught), unfinished: Vec::new(), reads_keys: keys })
    }

    /// Present size in cells.
    pub fn size(&self) -> Rect {
        let place = TAKEN.lock();
        let size = place.as_ref().and_then(|taken| tcgetwinsize(&taken.output).ok());
        let (width, height) = size.map_or((0, 0), |size| (size.ws_col, size.ws_row));
        let (width, height) = if width == 0 || height == 0 { UNKNOWN_SIZE } else { (width, height) };
        Rect::new(0, 0, width, height)
    }

    /// Bytes of the keys pressed within `wait`, which is below one second; returns as soon as there are some.
    pub fn keys(&mut self, wait: Duration) -> Vec<u8> {
        if !self.reads_keys {
            std::thread::sleep(wait);
            return Vec::new();
        }
        let input = stdin();
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(wait.subsec_nanos()) };
        if !matches!(poll(&mut [PollFd::new(&input, PollFlags::IN)], Some(&timeout)), Ok(ready) if ready > 0) {
            return Vec::new();
        }
        let mut keys = [0; 64];
        match rustix::io::read(input, &mut keys) {
            Ok(count) if count > 0 => keys[..count].to_vec(),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => Vec::new(),
            // The terminal is gone; no more keys will come.
            _ => {
                self.reads_keys = false;
                Vec::new()
            }
        }
    }

    /// Lines written to standard error since the last call.
    pub fn caught_lines(&mut self) -> Vec<String> {
        let mut buffer = vec![0; CAUGHT_BYTES];
        // Reading from the pipe never blocks; an error also means that there is nothing more now.
        while let Ok(count) = self.caught.read(&mut buffer) {
            self.unfinished.extend(&buffer[..count]);
            if count < buffer.len() {
                break;
            }
        }
        let Some(end) = self.unfinished.iter().rposition(|&byte| byte == b'\n') else { return Vec::new() };
        let whole: Vec<u8> = self.unfinished.drain(..=end).collect();
        printable_lines(&whole)
    }

    /// Restores the terminal and returns the lines that were not shown yet.
    pub fn close(mut self) -> Vec<String> {
        give_back();
        let mut lines = self.caught_lines();
        lines.extend(printable_lines(&std::mem::take(&mut self.unfinished)));
        lines
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn enter(mut output: impl Write) -> io::Result<()> {
    execute!(output, EnterAlternateScreen, Hide)
}

fn leave(mut output: impl Write) -> io::Result<()> {
    execute!(output, LeaveAlternateScreen, Show)
}

/// Splits bytes into lines without control characters; drops empty lines.
fn printable_lines(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let lines = text.lines().map(|line| line.replace('\t', "    ").replace(|sign: char| sign.is_control(), ""));
    lines.filter(|line| !line.trim().is_empty()).collect()
}

/// Output of the panel: each flush writes one frame to the terminal, or discards it if the terminal was restored.
#[derive(Debug, Default)]
pub struct Output {
    frame: Vec<u8>,
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.frame.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let frame = std::mem::take(&mut self.frame);
        match TAKEN.lock().as_mut() {
            Some(taken) => taken.output.write_all(&frame),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_lines_have_no_control_characters() {
        assert_eq!(
            printable_lines(b"\nwarning: \x1b[31mred\x1b[0m\tx\r\n  \nlast"),
            ["warning: [31mred[0m    x", "last"]
        );
    }

    #[test]
    fn restoring_an_unused_terminal_does_nothing() {
        give_back();
        let mut output = Output::default();
        output.write_all(b"not shown").unwrap();
        output.flush().unwrap();
        assert!(output.frame.is_empty());
    }
}
