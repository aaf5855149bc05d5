//! Memory of this process and of the machine, as reported by Linux.

use std::fs;

/// Memory of this process in bytes; 0 where the system does not report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Resident memory, mapped files included: what a control group counts.
    pub resident_bytes: u64,
    /// Resident memory that is not mapped from a file: heap, stacks, tensors.
    pub anonymous_bytes: u64,
}

impl ProcessMemory {
    /// Reads the memory of this process.
    pub fn now() -> Self {
        let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self { resident_bytes: field(&text, "VmRSS:"), anonymous_bytes: field(&text, "RssAnon:") }
    }
}

/// Host memory that is free or can be freed at once (`MemAvailable`), in bytes; 0 if it cannot be read.
pub fn available_bytes() -> u64 {
    field(&fs::read_to_string("/proc/meminfo").unwrap_or_default(), "MemAvailable:")
}

/// Host memory of the machine (`MemTotal`), in bytes; 0 if it cannot be read.
pub fn physical_bytes() -> u64 {
    field(&fs::read_to_string("/proc/meminfo").unwrap_or_default(), "MemTotal:")
}

/// Parses a line such as `VmRSS:   123 kB`; returns bytes.
fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kibibytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_memory_and_the_machine_more() {
        let process = ProcessMemory::now();
        assert!(process.anonymous_bytes > 0 && process.resident_bytes >= process.anonymous_bytes, "{process:?}");
        assert!(physical_bytes() > process.resident_bytes);
        assert!(available_bytes() > 0);
        assert_eq!(field("VmRSS:\t  12 kB\n", "VmRSS:"), 12 * 1024);
        assert_eq!(field("nothing", "VmRSS:"), 0);
    }
}
