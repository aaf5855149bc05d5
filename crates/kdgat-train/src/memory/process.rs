//! Memory of this process and of the machine, as Linux tells it.

use std::fs;

/// Memory of this process. Bytes; 0 where the system does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessMemory {
    /// In physical memory: what a control group counts, mapped files included.
    pub resident_bytes: u64,
    /// The part of it that is no file's: heap, stacks, tensors.
    pub anonymous_bytes: u64,
}

impl ProcessMemory {
    /// This process now.
    pub fn now() -> Self {
        let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self { resident_bytes: field(&text, "VmRSS:"), anonymous_bytes: field(&text, "RssAnon:") }
    }
}

/// Bytes of host memory that are free or can be freed at once (`MemAvailable`); 0 where that cannot be read.
pub fn available_bytes() -> u64 {
    field(&fs::read_to_string("/proc/meminfo").unwrap_or_default(), "MemAvailable:")
}

/// Bytes of host memory that the machine has (`MemTotal`); 0 where that cannot be read.
pub fn physical_bytes() -> u64 {
    field(&fs::read_to_string("/proc/meminfo").unwrap_or_default(), "MemTotal:")
}

/// The bytes of a line such as `VmRSS:   123 kB`.
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
