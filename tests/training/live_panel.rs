//! `--live` on a pseudo-terminal: its content, and that the terminal is restored however the run ends.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use support::process::only_test;

use kdgat::exit;
use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use support::cli::{SMALL_STUDENT, Workplace};

/// Longer than anything here takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";
/// Settings with more epochs than any test waits for.
const ENDLESS: [&str; 6] = ["--max-epochs", "100000", "--patience", "100000", "--run-dir", "live"];

/// A program on a pseudo-terminal.
struct Terminal {
    child: Child,
    keyboard: File,
    /// The program's side of the terminal; its mode can be read after the program has ended.
    device: File,
    written: Receiver<Vec<u8>>,
    bytes: Vec<u8>,
    screen: vt100::Parser,
}

impl Terminal {
    fn start(mut command: Command, (columns, rows): (u16, u16)) -> Self {
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&keyboard).unwrap();
        unlockpt(&keyboard).unwrap();
        let name = ptsname(&keyboard, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let device = File::from(open(&name, flags, Mode::empty()).unwrap());
        let keyboard = File::from(keyboard);
        set_size(&keyboard, (columns, rows));
        command.stdin(device.try_clone().unwrap());
        command.stdout(device.try_clone().unwrap()).stderr(device.try_clone().unwrap());
        let child = command.env("TERM", "xterm-256color").spawn().unwrap();
        let (sender, written) = channel();
        let mut reader = keyboard.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 1 << 16];
            while let Ok(count) = reader.read(&mut buffer) {
                if sender.send(buffer[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self { child, keyboard, device, written, bytes: Vec::new(), screen: vt100::Parser::new(rows, columns, 0) }
    }

    /// Starts `kdgat` with these arguments on a terminal of 100 columns.
    fn of<S: AsRef<OsStr>>(workplace: &Workplace, arguments: &[S]) -> Self {
        let mut command = workplace.command(arguments);
        command.env_remove("NO_COLOR");
        Self::start(command, (100, 30))
    }

    fn press(&mut self, keys: &[u8]) {
        self.keyboard.write_all(keys).unwrap();
    }

    fn resize(&mut self, (columns, rows): (u16, u16)) {
        set_size(&self.keyboard, (columns, rows));
        self.screen.screen_mut().set_size(rows, columns);
    }

    fn text(&self) -> String {
        self.screen.screen().contents()
    }

    fn has_panel(&self) -> bool {
        self.screen.screen().alternate_screen()
    }

    /// Waits until the panel shows all of these texts.
    fn shows(&mut self, expected: &[&str]) {
        let deadline = Instant::now() + PATIENCE;
        while !(self.has_panel() && expected.iter().all(|text| self.text().contains(text))) {
            assert!(Instant::now() < deadline, "{expected:?} are not all shown:\n{}", self.text());
            self.read();
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("ended ({status}) before {expected:?} were shown:\n{}", self.transcript());
            }
        }
    }

    fn read(&mut self) {
        match self.written.recv_timeout(Duration::from_millis(50)) {
            Ok(bytes) => {
                self.screen.process(&bytes);
                self.bytes.extend(bytes);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(Duration::from_millis(10)),
        }
    }

    /// Waits for the end. Returns the exit status and the text on the terminal after the panel.
    fn end(&mut self) -> (ExitStatus, String) {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            assert!(Instant::now() < deadline, "does not end:\n{}", self.text());
            self.read();
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
        };
        let quiet = Instant::now() + Duration::from_millis(300);
        while Instant::now() < quiet {
            self.read();
        }
        let transcript = self.transcript();
        assert!(transcript.contains(ENTER), "the panel was never opened:\n{transcript}");
        assert!(!self.has_panel(), "the panel is still there:\n{transcript}");
        assert!(!self.screen.screen().hide_cursor(), "the cursor is still hidden");
        let modes = tcgetattr(&self.device).unwrap().local_modes;
        let usual = LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
        assert!(modes.contains(usual), "the terminal's mode is not what it was: {modes:?}");
        let after = transcript.rsplit(LEAVE).next().unwrap().to_owned();
        (status, after)
    }

    fn transcript(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A failed test must not leave a process running.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn set_size(of: &File, (columns, rows): (u16, u16)) {
    tcsetwinsize(of, Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}

fn student<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["autoencoder"], SMALL_STUDENT, &["--live"], more].concat()
}

/// Number of epochs in a run's `metrics.csv`.
fn epochs(workplace: &Workplace) -> usize {
    std::fs::read_to_string(workplace.path().join("live/metrics.csv")).unwrap().lines().count() - 1
}

#[test]
fn a_run_is_shown_stopped_with_ctrl_c_and_gone_on_with() {
    let workplace = Workplace::with_teacher();
    let mut terminal = Terminal::of(&workplace, &student(&ENDLESS));
    terminal.shows(&["vgae student on small", "last epoch", "kd_loss", "at peak", "limit", "forwards", "graphs/s"]);
    terminal.resize((40, 10));
    terminal.shows(&["train 0", "memory", "q or Ctrl-C"]);
    terminal.resize((100, 30));
    terminal.shows(&["memory of tensors", "last epoch"]);
    terminal.press(b"\x03");
    let (status, after) = terminal.end();
    assert_eq!(status.code(), Some(exit::INTERRUPTED.into()), "{after}");
    for expected in ["stopping after this step", "interrupted (continue with --resume)", "peak memory", "run: live"] {
        assert!(after.contains(expected), "'{expected}' is not said after the panel:\n{after}");
    }
    assert!(workplace.path().join("live/last/state.safetensors").exists());
    let config = std::fs::read_to_string(workplace.path().join("live/config.json")).unwrap();
    assert!(config.contains("\"live\": false"), "a repeated run would open a panel:\n{config}");

    let before = epochs(&workplace);
    let mut terminal = Terminal::of(&workplace, &student(&[&ENDLESS[..], &["--resume"]].concat()));
    terminal.shows(&["none better for"]);
    while epochs(&workplace) < before + 3 {
        terminal.read();
    }
    terminal.press(b"xq");
    let (status, after) = terminal.end();
    assert_eq!(status.code(), Some(exit::INTERRUPTED.into()), "{after}");
    assert!(after.contains("interrupted (continue with --resume)"), "{after}");
    let text = std::fs::read_to_string(workplace.path().join("live/metrics.csv")).unwrap();
    let numbers: Vec<usize> = text.lines().skip(1).map(|row| row.split(',').next().unwrap().parse().unwrap()).collect();
    assert!(numbers.iter().copied().eq(0..numbers.len()), "epochs are missing or there twice: {numbers:?}");
}

#[test]
fn a_run_that_ends_says_what_it_always_says() {
    let workplace = Workplace::with_teacher();
    let mut terminal = Terminal::of(&workplace, &student(&["--max-epochs", "5"]));
    let (status, after) = terminal.end();
    assert!(status.success(), "{after}");
    for expected in ["all epochs done", "losses (training, validation)", "visits", "peak memory", "run: runs/small"] {
        assert!(after.contains(expected), "'{expected}' is not said after the panel:\n{after}");
    }
    let log = workplace.run_folder("vgae_student_autoencoder_kd", 1).join("log.txt");
    assert_eq!(std::fs::read_to_string(log).unwrap().matches("epoch  ").count(), 5, "an epoch is missing in log.txt");
}

#[test]
fn no_color_is_respected() {
    let workplace = Workplace::with_teacher();
    for (no_color, expected) in [("1", false), ("", true)] {
        let mut command = workplace.command(&student(&ENDLESS[..4]));
        command.env("NO_COLOR", no_color);
        let mut terminal = Terminal::start(command, (100, 30));
        terminal.shows(&["last epoch", "at peak", "teacher wait"]);
        terminal.press(b"q");
        terminal.end();
        assert_eq!(has_colors(&terminal.transcript()), expected, "with NO_COLOR={no_color}");
    }
}

/// True if any escape sequence sets a colour; a reset to the terminal's default does not count.
fn has_colors(transcript: &str) -> bool {
    let sequences = transcript.split("\x1b[").skip(1);
    let styles = sequences.filter_map(|text| {
        let end = text.find(|sign: char| !(sign.is_ascii_digit() || sign == ';'))?;
        text[end..].starts_with('m').then(|| &text[..end])
    });
    let mut numbers = styles.flat_map(|style| style.split(';')).filter_map(|number| number.parse::<u8>().ok());
    numbers.any(|number| matches!(number, 30..=38 | 40..=48 | 90..=107))
}

#[test]
fn a_termination_signal_gives_the_terminal_back() {
    let workplace = Workplace::with_teacher();
    let mut terminal = Terminal::of(&workplace, &student(&ENDLESS));
    terminal.shows(&["last epoch"]);
    let killed = Command::new("kill").args(["-TERM", &terminal.child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let (status, after) = terminal.end();
    assert_eq!(status.code(), Some(exit::INTERRUPTED.into()), "{after}");
    assert!(after.contains("interrupted (continue with --resume)"), "{after}");
}

#[test]
fn a_second_ctrl_c_gives_the_terminal_back_too() {
    let workplace = Workplace::with_teacher();
    let mut terminal = Terminal::of(&workplace, &student(&ENDLESS));
    terminal.shows(&["last epoch"]);
    terminal.press(b"\x03\x03");
    let (status, after) = terminal.end();
    // Between the two key presses the run may already have ended normally.
    assert!(matches!(status.code(), Some(130 | 75)), "{status}: {after}");
}

#[test]
fn an_error_gives_the_terminal_back() {
    let workplace = Workplace::with_teacher();
    let mut terminal = Terminal::of(&workplace, &student(&ENDLESS));
    terminal.shows(&["last epoch"]);
    let folder = workplace.path().join("live/last");
    // A checkpoint may be written between the two calls; then they are repeated.
    while std::fs::remove_dir_all(&folder).and_then(|()| std::fs::write(&folder, "in the way")).is_err() {}
    let (status, after) = terminal.end();
    assert!(!status.success(), "{after}");
    assert!(after.contains("error: ") && after.contains("last"), "{after}");
}

#[test]
fn a_panic_gives_the_terminal_back() {
    let mut command = only_test(module_path!(), "panics_with_a_panel");
    command.args(["--ignored", "--nocapture"]);
    let mut terminal = Terminal::start(command, (100, 30));
    terminal.shows(&["a test on nothing", "the first epoch is not done yet"]);
    let (status, after) = terminal.end();
    assert!(!status.success());
    assert!(after.contains("as it was meant to"), "the panic's message is lost:\n{after}");
}

#[test]
#[ignore = "started by another test, on a terminal"]
fn panics_with_a_panel() {
    use kdgat::train::console::{Console, Heading, LoopFacts};
    let heading = Heading { what: "a test on nothing".into(), run: "nowhere".into() };
    let mut console = Console::new(None).unwrap().with_panel(heading);
    console.begin(&LoopFacts { device: tch::Device::Cpu, patience: 1, metrics: "nowhere".as_ref() });
    console.start_epoch(0, 1, 2, 0);
    std::thread::sleep(Duration::from_secs(2));
    panic!("as it was meant to");
}

#[test]
fn without_a_terminal_there_are_plain_lines() {
    let workplace = Workplace::with_teacher();
    let said = workplace.success(&student(&["--max-epochs", "3"]));
    assert_eq!(said.matches("--live needs a terminal").count(), 1, "{said}");
    for expected in ["epoch   1/3", "epoch   3/3", "all epochs done"] {
        assert!(said.contains(expected), "'{expected}' is not said:\n{said}");
    }
    assert!(!said.contains('\x1b'), "escape sequences in plain lines:\n{said}");
}
