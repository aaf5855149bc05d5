//! Memory limits: configured, granted by the system, and available on the machine.

use std::fmt;
use std::path::Path;

/// Host memory that a process needs besides its tensors, in bytes: libtorch's code and data, threads, buffers of the loader.
pub const PROCESS_BYTES: u64 = 400 << 20;
/// Least memory of a process: without tensors, and a quarter as much for tensors.
pub const LEAST_PROCESS_BYTES: u64 = PROCESS_BYTES + PROCESS_BYTES / 4;

/// Source of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitSource {
    /// `--memory-limit` or `--gpu-memory-limit`.
    Configured,
    /// Limit of the control group of the process.
    ControlGroup,
    /// Value of this variable of Slurm.
    Slurm(&'static str),
    /// Memory of the machine.
    Physical,
    /// Memory that was free on the GPU at the start.
    FreeOnGpu,
}

impl fmt::Display for LimitSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Configured => "as configured",
            Self::ControlGroup => "of the control group",
            Self::Slurm(variable) => variable,
            Self::Physical => "of the machine",
            Self::FreeOnGpu => "free on the GPU",
        })
    }
}

/// A memory limit and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Limit of tensors in bytes.
    pub bytes: u64,
    /// Source of the limit.
    pub source: LimitSource,
}

/// Limit for tensors in host memory: the smallest of control group, Slurm's allocation and physical memory, minus what a
/// process needs besides its tensors. A configured limit counts tensors only and is used as it is.
pub fn host_limit(configured: Option<u64>) -> Limit {
    if let Some(bytes) = configured {
        return Limit { bytes, source: LimitSource::Configured };
    }
    let slurm = slurm(|name| std::env::var(name).ok());
    let physical = Some((super::physical_bytes(), LimitSource::Physical)).filter(|(bytes, _)| *bytes > 0);
    let group = control_group(Path::new("/")).map(|bytes| (bytes, LimitSource::ControlGroup));
    let (bytes, source) = [group, slurm, physical]
        .into_iter()
        .flatten()
        .min_by_key(|(bytes, _)| *bytes)
        // Nothing is known: assume a small machine.
        .unwrap_or((4 << 30, LimitSource::Physical));
    Limit { bytes: bytes.saturating_sub(PROCESS_BYTES).max(PROCESS_BYTES / 4), source }
}

/// Limit for tensors on a GPU: the configured one, but at most the free memory. `free_bytes` is `None` without a GPU; then the
/// configured limit counts, as in a plan for another machine.
pub fn gpu_limit(configured: Option<u64>, free_bytes: Option<u64>) -> Limit {
    match (configured, free_bytes) {
        (Some(bytes), free) if free.is_none_or(|free| bytes <= free) => {
            Limit { bytes, source: LimitSource::Configured }
        }
        (_, free) => Limit { bytes: free.unwrap_or(0), source: LimitSource::FreeOnGpu },
    }
}

/// Slurm's allocation on this node, given in MiB per node or per CPU.
fn slurm(variable: impl Fn(&str) -> Option<String>) -> Option<(u64, LimitSource)> {
    let number = |name: &str| variable(name)?.trim().parse::<u64>().ok().filter(|number| *number > 0);
    if let Some(mebibytes) = number("SLURM_MEM_PER_NODE") {
        return Some((mebibytes << 20, LimitSource::Slurm("SLURM_MEM_PER_NODE")));
    }
    let mebibytes = number("SLURM_MEM_PER_CPU")?;
    let cpus = number("SLURM_CPUS_ON_NODE").or_else(|| number("SLURM_CPUS_PER_TASK")).unwrap_or(1);
    Some(((mebibytes * cpus) << 20, LimitSource::Slurm("SLURM_MEM_PER_CPU")))
}

/// Smallest limit of the process's control groups, version 2 or 1.
fn control_group(root: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    text.lines().filter_map(|line| limit_of_line(root, line)).min()
}

/// Smallest limit on the path of a line of `/proc/self/cgroup`: `0::/path` is version 2, `N:memory,...:/path` version 1.
/// Inside a container the path may be the host's; the container's own root then has the limit, which is an ancestor of the
/// path.
fn limit_of_line(root: &Path, line: &str) -> Option<u64> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let (mount, file) = match controllers {
        "" => ("sys/fs/cgroup", "memory.max"),
        named if named.split(',').any(|name| name == "memory") => ("sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        _ => return None,
    };
    let mount = root.join(mount);
    let folder = mount.join(path.trim_start_matches('/'));
    let folders = folder.ancestors().take_while(|folder| folder.starts_with(&mount));
    let read = |folder: &Path| {
        let text = std::fs::read_to_string(folder.join(file)).ok()?;
        // "max", or a number near 2^63, means no limit.
        text.trim().parse::<u64>().ok().filter(|bytes| *bytes < 1 << 60)
    };
    folders.filter_map(read).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(root: &Path, name: &str, text: &str) {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn the_tightest_control_group_counts() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        assert_eq!(control_group(root), None);
        file(root, "proc/self/cgroup", "0::/user.slice/job\n");
        assert_eq!(control_group(root), None);
        file(root, "sys/fs/cgroup/user.slice/job/memory.max", "max\n");
        assert_eq!(control_group(root), None);
        file(root, "sys/fs/cgroup/user.slice/memory.max", "2147483648\n");
        assert_eq!(control_group(root), Some(2 << 30));
        file(root, "sys/fs/cgroup/memory.max", "1073741824\n");
        assert_eq!(control_group(root), Some(1 << 30));
    }

    #[test]
    fn version_1_is_read_too() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        file(root, "proc/self/cgroup", "12:cpu,cpuacct:/a\n5:memory:/docker/abc\n");
        file(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(control_group(root), None);
        file(root, "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "536870912\n");
        assert_eq!(control_group(root), Some(512 << 20));
    }

    #[test]
    fn slurm_limits_by_node_or_by_cpu() {
        let of = |pairs: &'static [(&'static str, &'static str)]| {
            slurm(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string()))
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("SLURM_MEM_PER_NODE", "2048")]).unwrap().0, 2 << 30);
        assert_eq!(of(&[("SLURM_MEM_PER_NODE", "0")]), None);
        let by_cpu = of(&[("SLURM_MEM_PER_CPU", "512"), ("SLURM_CPUS_ON_NODE", "8")]);
        assert_eq!(by_cpu, Some((4 << 30, LimitSource::Slurm("SLURM_MEM_PER_CPU"))));
    }

    #[test]
    fn a_configured_limit_is_taken_as_it_is() {
        assert_eq!(host_limit(Some(123)), Limit { bytes: 123, source: LimitSource::Configured });
        assert!(host_limit(None).bytes > 0);
    }

    #[test]
    fn a_gpu_grants_at_most_its_free_memory() {
        let free = |bytes| Limit { bytes, source: LimitSource::FreeOnGpu };
        let configured = |bytes| Limit { bytes, source: LimitSource::Configured };
        assert_eq!(gpu_limit(None, Some(7)), free(7));
        assert_eq!(gpu_limit(Some(5), Some(7)), configured(5));
        assert_eq!(gpu_limit(Some(9), Some(7)), free(7), "another program uses the rest");
        assert_eq!(gpu_limit(Some(9), None), configured(9), "planned for another machine");
        assert_eq!(gpu_limit(None, None), free(0));
    }
}
