//! `--syslog`: events in the system's log, through its local datagram socket.
//!
//! A message is `<PRIORITY>kdgat[PID]: JSON`, the form that the C library's `syslog` sends, without the time: the daemon (systemd-journald,
//! rsyslog, syslog-ng, busybox) adds it. The facility is `daemon`.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use super::Severity;
use super::event::{Alarm, AlarmChange, Event};

/// The local socket of the system's log.
pub const DEV_LOG: &str = "/dev/log";
/// Facility `daemon`, in the bits above the level.
const DAEMON: u8 = 3 << 3;

/// A connection to the system's log.
#[derive(Debug)]
pub struct Syslog {
    path: PathBuf,
    socket: UnixDatagram,
    lost: u64,
}

impl Syslog {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// Fails if nobody listens there.
    pub fn connect(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), socket: connected(path)?, lost: 0 })
    }

    /// Sends an event, which `json` holds as a line. Never waits: a message that the daemon cannot take now is lost and counted. A
    /// daemon that was restarted is connected to again.
    pub fn send(&mut self, event: &Event, json: &str) {
        let message = format!("<{}>kdgat[{}]: {json}", DAEMON + level(event), std::process::id());
        let sent = self.socket.send(message.as_bytes()).or_else(|error| match error.kind() {
            io::ErrorKind::WouldBlock => Err(error),
            _ => {
                self.socket = connected(&self.path)?;
                self.socket.send(message.as_bytes())
            }
        });
        self.lost += u64::from(sent.is_err());
    }

    /// Messages that were lost.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

fn connected(path: &Path) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(path)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Level of an event (RFC 5424, section 6.2.1): critical 2, error 3, warning 4, notice 5, informational 6.
fn level(event: &Event) -> u8 {
    match event {
        Event::Alarm(Alarm { severity, .. }) | Event::AlarmChange(AlarmChange { severity, .. }) => match severity {
            Severity::High => 2,
            Severity::Medium => 3,
            Severity::Low => 4,
        },
        Event::Silence(_) => 4,
        Event::AlarmEnd(_) | Event::SilenceEnd(_) => 5,
        Event::Heartbeat(_) => 6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alarm::{Silence, SilenceEnd};

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 1000];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn events_are_sent_with_their_level_and_again_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        assert!(Syslog::connect(&path).is_err(), "nobody listens");
        let daemon = UnixDatagram::bind(&path).unwrap();
        let mut log = Syslog::connect(&path).unwrap();
        let silence = Event::Silence(Silence { time: None, limit_seconds: 0.5 });
        log.send(&silence, "{a}");
        log.send(&Event::SilenceEnd(SilenceEnd { time: 1.0, seconds: 2.0 }), "{b}");
        let process = std::process::id();
        assert_eq!(received(&daemon), format!("<28>kdgat[{process}]: {{a}}"));
        assert_eq!(received(&daemon), format!("<29>kdgat[{process}]: {{b}}"));

        drop(daemon);
        std::fs::remove_file(&path).unwrap();
        log.send(&silence, "{lost}");
        assert_eq!(log.lost(), 1);
        let daemon = UnixDatagram::bind(&path).unwrap();
        log.send(&silence, "{c}");
        assert_eq!(received(&daemon), format!("<28>kdgat[{process}]: {{c}}"));
        assert_eq!(log.lost(), 1);
    }

    #[test]
    fn a_daemon_that_reads_nothing_holds_up_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let _daemon = UnixDatagram::bind(&path).unwrap();
        let mut log = Syslog::connect(&path).unwrap();
        let silence = Event::Silence(Silence { time: None, limit_seconds: 0.5 });
        // More than any queue of datagrams holds.
        (0..100_000).for_each(|_| log.send(&silence, "{}"));
        assert!(log.lost() > 0);
    }
}
