//! Exit codes of the program. Scripts, sweeps and batch systems decide by them what to do next; no one has to read a log.
//!
//! 75 and 76 are what the jobs of a sweep have to tell apart: start me again, or start me again with more memory. 75 is `EX_TEMPFAIL` of
//! sysexits.h, which job scripts and service managers read as "try again" (`RestartForceExitStatus=75`). Neither collides with codes below 64,
//! which are for single commands, nor with 126 and above, which shells use for signals.

/// Any failure without a code of its own: a full disk, a bug.
pub const FAILURE: u8 = 1;
/// Wrong usage or input: the same command fails in the same way until arguments, files or settings change.
pub const INPUT: u8 = 2;
/// A log with alarms (`kdgat detect --alarms`); not an error.
pub const ALARMS: u8 = 3;
/// Interrupted by Ctrl-C or SIGTERM, with everything saved: the same command continues, a training with `--resume`.
pub const INTERRUPTED: u8 = 75;
/// Out of memory: a limit was reached, the system or a GPU had no more, or a plan does not fit. The same command needs more memory, or
/// settings that need less.
pub const OUT_OF_MEMORY: u8 = 76;
/// Ended at once by a second Ctrl-C, with what the last checkpoint has: 128 and the number of SIGINT, as a shell shows it.
pub const STOPPED_AT_ONCE: u8 = 130;
