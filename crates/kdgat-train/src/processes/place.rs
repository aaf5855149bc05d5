//! The place of this process among those that train together, from the environment: the variables of PyTorch's launchers, and those of
//! Slurm and Open MPI translated to them.

use super::error::ProcessError;

/// Port of the store if no variable names one and the launcher gives every process the same environment.
const PORT: u16 = 29500;
/// Ports for the jobs of Slurm, which may share a machine: the first, and their number.
const SLURM_PORTS: (u64, u64) = (20_000, 20_000);

/// The place of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Number of this process, from 0.
    pub rank: usize,
    /// Number of processes.
    pub size: usize,
    /// Number of this process among those of its machine.
    pub local_rank: usize,
    /// Number of processes on this machine.
    pub local_size: usize,
    /// Host at which the processes meet.
    pub host: String,
    /// Port at which they meet.
    pub port: u16,
    /// True if the launcher hosts the store already.
    pub is_hosted: bool,
    /// Number of times that the launcher has started the processes anew.
    pub restarts: u64,
    /// CPU threads of this process if its launcher binds it to cores; otherwise the machine's cores are divided.
    pub own_threads: Option<usize>,
}

/// The place of this process; `None` if it trains alone.
///
/// # Errors
/// Variables of which some are missing or that are no numbers.
pub fn from_environment() -> Result<Option<Place>, ProcessError> {
    find(&|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
}

/// CPU threads for computation unless the user says otherwise: the cores, divided among the processes of this machine.
pub fn default_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, |count| count.get());
    match from_environment() {
        Ok(Some(place)) => place.own_threads.unwrap_or((cores / place.local_size.max(1)).max(1)).min(cores),
        _ => cores,
    }
}

type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

fn find(variable: Variable) -> Result<Option<Place>, ProcessError> {
    let place = if variable("RANK").is_some() || variable("WORLD_SIZE").is_some() {
        Some(of_torch(variable)?)
    } else if variable("OMPI_COMM_WORLD_SIZE").is_some() {
        Some(of_open_mpi(variable)?)
    } else if variable("SLURM_STEP_ID").is_some() && variable("SLURM_PROCID").is_some() {
        Some(of_slurm(variable)?)
    } else {
        None
    };
    if let Some(Place { rank, size, .. }) = place.as_ref().filter(|place| place.rank >= place.size) {
        return Err(ProcessError::Variables(format!(
            "this is process {rank} of {size}, but processes are counted from 0; check RANK and WORLD_SIZE"
        )));
    }
    Ok(place.filter(|place| place.size > 1))
}

/// The variables that `torchrun` and `kdgat launch` set.
fn of_torch(variable: Variable) -> Result<Place, ProcessError> {
    const NEEDED: [&str; 4] = ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"];
    let missing: Vec<&str> = NEEDED.into_iter().filter(|name| variable(name).is_none()).collect();
    let is_alone = variable("WORLD_SIZE").as_deref() == Some("1") && variable("RANK").is_none_or(|rank| rank == "0");
    if !missing.is_empty() && !is_alone {
        let given: Vec<&str> = NEEDED.into_iter().filter(|name| variable(name).is_some()).collect();
        return Err(ProcessError::Variables(format!(
            "{} set, but {} missing: set all of {} to train in several processes, or none of them to train in one",
            are(&given),
            are(&missing),
            NEEDED.join(", ")
        )));
    }
    let (rank, size) = (number(variable, "RANK", 0)?, number(variable, "WORLD_SIZE", 1)?);
    let host = variable("MASTER_ADDR").unwrap_or_else(|| "127.0.0.1".to_owned());
    let local_size = number(variable, "LOCAL_WORLD_SIZE", if is_loopback(&host) { size } else { 1 })?;
    Ok(Place {
        rank,
        size,
        local_rank: number(variable, "LOCAL_RANK", rank % local_size.max(1))?,
        local_size,
        host,
        port: port(variable)?.unwrap_or(PORT),
        is_hosted: variable("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value.eq_ignore_ascii_case("true")),
        restarts: number(variable, "TORCHELASTIC_RESTART_COUNT", 0)? as u64,
        own_threads: None,
    })
}

/// The variables of Open MPI's `mpirun`. On one machine they suffice; on several, the host is not among them.
fn of_open_mpi(variable: Variable) -> Result<Place, ProcessError> {
    let (rank, size) = (number(variable, "OMPI_COMM_WORLD_RANK", 0)?, number(variable, "OMPI_COMM_WORLD_SIZE", 1)?);
    let local_size = number(variable, "OMPI_COMM_WORLD_LOCAL_SIZE", size)?;
    let host = match variable("MASTER_ADDR") {
        Some(host) => host,
        None if local_size == size => "127.0.0.1".to_owned(),
        None => {
            return Err(ProcessError::Variables(
                "mpirun started processes on several machines, and MASTER_ADDR is missing: give the host of process 0, as in mpirun -x \
                 MASTER_ADDR=HOST -x MASTER_PORT=29500"
                    .to_owned(),
            ));
        }
    };
    Ok(Place {
        rank,
        size,
        local_rank: number(variable, "OMPI_COMM_WORLD_LOCAL_RANK", 0)?,
        local_size,
        host,
        port: port(variable)?.unwrap_or(PORT),
        is_hosted: false,
        restarts: 0,
        own_threads: None,
    })
}

/// The variables of a step of Slurm's `srun`.
fn of_slurm(variable: Variable) -> Result<Place, ProcessError> {
    let (rank, size) = (number(variable, "SLURM_PROCID", 0)?, number(variable, "SLURM_NTASKS", 1)?);
    let tasks = variable("SLURM_STEP_TASKS_PER_NODE").or_else(|| variable("SLURM_TASKS_PER_NODE"));
    let node = number(variable, "SLURM_NODEID", 0)?;
    let nodes = variable("SLURM_STEP_NODELIST").or_else(|| variable("SLURM_NODELIST"));
    let host = match variable("MASTER_ADDR").or_else(|| nodes.as_deref().and_then(first_node)) {
        Some(host) => host,
        None => {
            return Err(ProcessError::Variables(
                "srun started several processes, but SLURM_STEP_NODELIST is missing: set MASTER_ADDR to the host of process 0".to_owned(),
            ));
        }
    };
    let job = number(variable, "SLURM_JOB_ID", 0)? as u64 + number(variable, "SLURM_STEP_ID", 0)? as u64;
    let own_threads =
        variable("SLURM_CPUS_PER_TASK").map(|_| number(variable, "SLURM_CPUS_PER_TASK", 1)).transpose()?;
    Ok(Place {
        rank,
        size,
        local_rank: number(variable, "SLURM_LOCALID", 0)?,
        local_size: tasks.and_then(|tasks| tasks_of_node(&tasks, node)).unwrap_or(size),
        host,
        // Lossless: below 40,000.
        port: port(variable)?.unwrap_or((SLURM_PORTS.0 + job % SLURM_PORTS.1) as u16),
        is_hosted: false,
        restarts: number(variable, "SLURM_RESTART_COUNT", 0)? as u64,
        own_threads,
    })
}

/// Tasks of a node from Slurm's list by node, such as `4(x2),3`.
fn tasks_of_node(text: &str, node: usize) -> Option<usize> {
    let mut before = 0;
    for group in text.split(',') {
        let (tasks, nodes) = match group.trim().split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.strip_suffix(')')?.parse().ok()?),
            None => (group.trim(), 1),
        };
        before += nodes;
        if node < before {
            return tasks.parse().ok().filter(|&tasks: &usize| tasks > 0);
        }
    }
    None
}

/// The first host of Slurm's compact list, such as `gpu[03-05,9],login`.
fn first_node(list: &str) -> Option<String> {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let prefix = &list[..end];
    let Some(numbers) = list[end..].strip_prefix('[') else {
        return Some(prefix.to_owned()).filter(|host| !host.is_empty());
    };
    let first = numbers.split([',', '-', ']']).next()?;
    let after = numbers.split_once(']')?.1.split(',').next()?;
    Some(format!("{prefix}{first}{after}"))
}

/// True for an address of this machine alone.
pub fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn number(variable: Variable, name: &str, missing: usize) -> Result<usize, ProcessError> {
    let Some(text) = variable(name) else { return Ok(missing) };
    text.trim()
        .parse()
        .map_err(|_| ProcessError::Variables(format!("{name}={text}: expected a whole number; correct or unset it")))
}

fn port(variable: Variable) -> Result<Option<u16>, ProcessError> {
    let Some(text) = variable("MASTER_PORT") else { return Ok(None) };
    match text.trim().parse() {
        Ok(port) if port > 0 => Ok(Some(port)),
        _ => Err(ProcessError::Variables(format!("MASTER_PORT={text}: expected a port from 1 to 65535"))),
    }
}

fn are(names: &[&str]) -> String {
    format!("{} {}", names.join(", "), if names.len() == 1 { "is" } else { "are" })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn found(variables: &[(&str, &str)]) -> Result<Option<Place>, String> {
        let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
        find(&|name| variables.get(name).map(|&value| value.to_owned())).map_err(|error| error.to_string())
    }

    const TORCH: [(&str, &str); 4] =
        [("RANK", "3"), ("WORLD_SIZE", "8"), ("MASTER_ADDR", "node7"), ("MASTER_PORT", "1234")];

    #[test]
    fn variables_of_torchrun_are_read() {
        let local = [("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2"), ("TORCHELASTIC_USE_AGENT_STORE", "True")];
        let all: Vec<_> = TORCH.into_iter().chain(local).chain([("TORCHELASTIC_RESTART_COUNT", "2")]).collect();
        let place = found(&all).unwrap().unwrap();
        assert_eq!((place.rank, place.size, place.local_rank, place.local_size), (3, 8, 1, 2));
        assert_eq!((place.host.as_str(), place.port, place.is_hosted, place.restarts), ("node7", 1234, true, 2));
        assert_eq!(found(&[]).unwrap(), None);
        assert_eq!(found(&[("WORLD_SIZE", "1")]).unwrap(), None);
        assert_eq!(found(&[("MASTER_PORT", "1234")]).unwrap(), None, "set for another program");
    }

    #[test]
    fn half_set_variables_are_one_error() {
        for missing in TORCH.map(|(name, _)| name) {
            let some: Vec<_> = TORCH.into_iter().filter(|(name, _)| *name != missing).collect();
            let error = found(&some).unwrap_err();
            assert!(error.contains(&format!("{missing} is missing")), "{error}");
        }
        let with = |name: &'static str, value: &'static str| {
            let others = TORCH.into_iter().filter(|(other, _)| *other != name);
            found(&others.chain([(name, value)]).collect::<Vec<_>>()).unwrap_err()
        };
        assert!(with("RANK", "x").contains("RANK=x: expected a whole number"));
        assert!(with("RANK", "8").contains("process 8 of 8"));
        assert!(with("MASTER_PORT", "70000").contains("MASTER_PORT=70000"));
    }

    #[test]
    fn variables_of_open_mpi_are_translated() {
        let one = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_LOCAL_RANK", "1")];
        let place = found(&one).unwrap().unwrap();
        assert_eq!((place.rank, place.size, place.local_rank, place.host.as_str()), (1, 2, 1, "127.0.0.1"));
        let several: Vec<_> = one.into_iter().chain([("OMPI_COMM_WORLD_LOCAL_SIZE", "1")]).collect();
        assert!(found(&several).unwrap_err().contains("MASTER_ADDR is missing"));
    }

    #[test]
    fn variables_of_a_slurm_step_are_translated() {
        let step = [
            ("SLURM_STEP_ID", "1"),
            ("SLURM_JOB_ID", "41000"),
            ("SLURM_PROCID", "5"),
            ("SLURM_NTASKS", "11"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_NODEID", "1"),
            ("SLURM_STEP_TASKS_PER_NODE", "4(x2),3"),
            ("SLURM_STEP_NODELIST", "gpu[03-05]"),
            ("SLURM_CPUS_PER_TASK", "6"),
        ];
        let place = found(&step).unwrap().unwrap();
        assert_eq!((place.rank, place.size, place.local_rank, place.local_size), (5, 11, 1, 4));
        assert_eq!((place.host.as_str(), place.port, place.own_threads), ("gpu03", 21_001, Some(6)));
        // The variables of a batch script, which is no step.
        assert_eq!(found(&step[1..]).unwrap(), None);
        for (list, first) in [("a,b", "a"), ("n[1-3,9],m", "n1"), ("n[7]-ib,m", "n7-ib"), ("localhost", "localhost")] {
            assert_eq!(first_node(list).as_deref(), Some(first), "{list}");
        }
        assert_eq!(["4(x2),3", "7"].map(|text| tasks_of_node(text, 2)), [Some(3), None]);
    }
}
