//! The greeting of processes that join: each proves that it knows the token, is the same program and computes the same run.

use std::time::Instant;

use kdgat_torch::process_group::Store;
use parking_lot::Mutex;
use tch::TchError;

use super::place::Place;
use super::watch::key;
use super::{Meeting, PAUSE, ProcessError, TOKEN, first_line};

/// Exchanges proofs that all processes know the token, are the same program and compute the same run.
pub(super) fn greet(place: &Place, store: &Store, meeting: &Meeting) -> Result<(), ProcessError> {
    let token = std::env::var(TOKEN).unwrap_or_default();
    let started = Instant::now();
    let wait = |key: &str| -> Result<Option<Vec<u8>>, ProcessError> {
        let failed = |error: TchError| {
            ProcessError::Meeting(format!(
                "the store at {}:{} ended before all processes had met: {}; see the error of process 0",
                place.host,
                place.port,
                first_line(&error)
            ))
        };
        while !store.has(key).map_err(failed)? {
            if started.elapsed() > meeting.timeout {
                return Ok(None);
            }
            std::thread::sleep(PAUSE);
        }
        store.get(key).map(Some).map_err(failed)
    };
    let set = |key: &str, value: &[u8]| {
        store
            .set(key, value)
            .map_err(|error| ProcessError::Meeting(format!("the store failed: {}", first_line(&error))))
    };
    let missing = |ranks: &[usize]| {
        let names: Vec<String> = ranks.iter().map(ToString::to_string).collect();
        ProcessError::Meeting(format!(
            "process {} of {} did not come within {:.0} s (--process-timeout); see why it did not start, or raise the time",
            names.join(", "),
            place.size,
            meeting.timeout.as_secs_f64()
        ))
    };
    if place.rank == 0 {
        let nonce = nonce().map_err(|error| ProcessError::Meeting(format!("no random numbers: {error}")))?;
        set("nonce", nonce.as_bytes())?;
    }
    let Some(nonce) = wait("nonce")? else { return Err(missing(&[0])) };
    let greeting = |rank: usize| Greeting::new(&token, &nonce, rank, meeting.run);
    set(&key("greeting", place.rank), greeting(place.rank)?.text().as_bytes())?;
    let mut late = Vec::new();
    for rank in 0..place.size {
        let Some(found) = wait(&key("greeting", rank))? else {
            late.push(rank);
            continue;
        };
        let found = String::from_utf8_lossy(&found).into_owned();
        if let Some(difference) = greeting(rank)?.difference(&found) {
            return Err(ProcessError::Refused(refusal(place.rank, rank, difference)));
        }
    }
    if late.is_empty() { Ok(()) } else { Err(missing(&late)) }
}

/// The error for a process that does not belong to this run.
fn refusal(own: usize, other: usize, difference: Difference) -> String {
    let (what, advice) = match difference {
        Difference::Token => ("token", "give all processes the same KDGAT_TOKEN"),
        Difference::Program => ("program", "start the same build of kdgat everywhere"),
        Difference::Run => ("configuration", "start all processes with the same command"),
    };
    format!("process {other} is refused by process {own}: it has another {what}; {advice}")
}

/// Proof and description that a process shows when it joins.
struct Greeting {
    proof: String,
    program: String,
    run: String,
}

/// The part of a greeting that differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Difference {
    Token,
    Program,
    Run,
}

impl Greeting {
    fn new(token: &str, nonce: &[u8], rank: usize, run: &str) -> Result<Self, ProcessError> {
        let key = blake3::derive_key("kdgat 2026 token of processes that train together", token.as_bytes());
        let program = program()?;
        let shown = [nonce, rank.to_string().as_bytes()].concat();
        let proof = blake3::keyed_hash(&key, &shown).to_hex().to_string();
        Ok(Self { proof, program, run: run.to_owned() })
    }

    fn text(&self) -> String {
        [self.proof.as_str(), &self.program, &self.run].join(" ")
    }

    /// The first difference from the text of another greeting.
    fn difference(&self, text: &str) -> Option<Difference> {
        let mut parts = text.split(' ');
        let mut differs = |own: &str| parts.next() != Some(own);
        let (token, program, run) = (differs(&self.proof), differs(&self.program), differs(&self.run));
        match (token, program, run) {
            (true, ..) => Some(Difference::Token),
            (_, true, _) => Some(Difference::Program),
            (.., true) => Some(Difference::Run),
            _ => None,
        }
    }
}

/// The version of the program, and the digest of its file.
fn program() -> Result<String, ProcessError> {
    static PROGRAM: Mutex<Option<String>> = Mutex::new(None);
    let mut program = PROGRAM.lock();
    if let Some(program) = &*program {
        return Ok(program.clone());
    }
    let read = || -> std::io::Result<String> {
        let mut hasher = blake3::Hasher::new();
        std::io::copy(&mut std::fs::File::open("/proc/self/exe")?, &mut hasher)?;
        Ok(format!("{}-{}", env!("CARGO_PKG_VERSION"), &hasher.finalize().to_hex()[..16]))
    };
    let found =
        read().map_err(|error| ProcessError::Meeting(format!("cannot read the program's own file: {error}")))?;
    Ok(program.insert(found).clone())
}

/// A number that is used once.
fn nonce() -> std::io::Result<String> {
    Ok(format!("{}-{}", std::process::id(), random_token()?))
}

/// A new token, from the system's random numbers.
///
/// # Errors
/// If the system has none.
pub fn random_token() -> std::io::Result<String> {
    let mut bytes = [0_u8; 16];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_differ_in_token_program_and_run() {
        let greeting = |token: &str, rank| Greeting::new(token, b"nonce", rank, "run").unwrap();
        let own = greeting("secret", 1);
        assert_eq!(own.difference(&greeting("secret", 1).text()), None);
        assert_eq!(own.difference(&greeting("other", 1).text()), Some(Difference::Token));
        assert_eq!(
            own.difference(&greeting("secret", 2).text()),
            Some(Difference::Token),
            "a proof of another process"
        );
        let other = Greeting { program: "0".to_owned(), ..greeting("secret", 1) };
        assert_eq!(own.difference(&other.text()), Some(Difference::Program));
        let other = Greeting { run: "0".to_owned(), ..greeting("secret", 1) };
        assert_eq!(own.difference(&other.text()), Some(Difference::Run));
        assert_eq!(own.difference(""), Some(Difference::Token));
    }
}
