//! `kdgat sweep --executor ray` with a real Ray on this machine.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::jobs_server::JobsServer;
use support::cli::{Workplace, contents, only_store, said};
use support::stops::wait_for;

const START_SECONDS: u64 = 120;

/// Runs Ray until standard input closes, which it also does when a test program is killed: Ray's agents have fixed ports, so that one that is
/// left running keeps the next from starting. Ray stops its own processes; those that remain are in the process group.
const UNTIL_THE_TEST_ENDS: &str = r#"
"$@" < /dev/null &
ray=$!
cat > /dev/null
kill -TERM $ray
for _ in $(seq 200); do kill -0 $ray 2> /dev/null || break; sleep 0.1; done
kill -KILL 0
"#;

/// A Ray cluster that is stopped at the end of the test.
struct Ray {
    /// The shell that runs it.
    shell: Child,
    address: String,
    _folder: tempfile::TempDir,
}

/// The `ray` program that `scripts/test --all` installs, or the one on the path.
fn program() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))?;
    let installed = cache.join("kdgat/ray/bin/ray");
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    let others = std::env::split_paths(&on_path).map(|folder| folder.join("ray")).collect::<Vec<_>>();
    [installed].into_iter().chain(others).find(|path| path.is_file())
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Ray {
    /// Starts Ray; without it, prints the reason and returns `None`.
    fn start() -> Option<Self> {
        let Some(program) = program() else {
            println!("skipped: tests of Ray (it is not installed; scripts/test --all installs it)");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let (port, dashboard) = (free_port(), free_port());
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", UNTIL_THE_TEST_ENDS, "sh"]).arg(program).args([
            "start",
            "--head",
            "--block",
            "--num-cpus=4",
            "--disable-usage-stats",
            "--dashboard-host=127.0.0.1",
        ]);
        command.arg(format!("--port={port}")).arg(format!("--dashboard-port={dashboard}"));
        command.arg("--node-ip-address=127.0.0.1").arg(format!("--temp-dir={}", folder.path().join("ray").display()));
        command.stdin(Stdio::piped()).stdout(log.try_clone().unwrap()).stderr(log).process_group(0);
        let shell = command.spawn().unwrap();
        let ray = Self { shell, address: format!("http://127.0.0.1:{dashboard}"), _folder: folder };
        let start = Instant::now();
        while !ray.answers() {
            let log = std::fs::read_to_string(ray._folder.path().join("log")).unwrap_or_default();
            assert!(start.elapsed() < Duration::from_secs(START_SECONDS), "Ray does not start:\n{log}");
            std::thread::sleep(Duration::from_millis(300));
        }
        Some(ray)
    }

    fn answers(&self) -> bool {
        use std::io::{Read, Write};
        let host = self.address.trim_start_matches("http://");
        let Ok(mut stream) = std::net::TcpStream::connect(host) else { return false };
        let asked = write!(stream, "GET /api/jobs/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let mut answer = String::new();
        asked.and_then(|()| stream.read_to_string(&mut answer)).is_ok() && answer.starts_with("HTTP/1.1 200")
    }
}

impl Drop for Ray {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

const TWELVE: &str = "seeds = [1, 2]\n[[axis]]\nfield = \"kd_alpha\"\nvalues = [0.3, 0.5, 0.7]\n\
                      [[axis]]\nfield = \"lr\"\nvalues = [0.002, 0.004]\n";

fn write_file(workplace: &Workplace, epochs: u64) {
    let text = format!(
        "metric = \"val_task_loss\"\n{TWELVE}[resources]\nmemory_per_trial = \"700MiB\"\nthreads = 1\n\
         [[step]]\nname = \"student\"\ncommand = \"autoencoder\"\npreset = \"vgae,student\"\n\
         set = {{ hidden = [8, 8, 4], latent = 4, embedding = 2, max_epochs = {epochs} }}\n"
    );
    std::fs::write(workplace.path().join("small.toml"), text).unwrap();
}

/// Trial, state and metric of every row.
fn metrics(workplace: &Workplace, folder: &str) -> Vec<[String; 3]> {
    let mut reader = csv::Reader::from_path(workplace.path().join(folder).join("sweep.csv")).unwrap();
    let header = reader.headers().unwrap().clone();
    let columns = ["trial", "state", "metric"].map(|name| header.iter().position(|found| found == name).unwrap());
    reader.records().map(|row| row.map(|row| columns.map(|at| row[at].to_owned())).unwrap()).collect()
}

fn on_ray(workplace: &Workplace, ray: &Ray) -> Child {
    let mut command = workplace.command(&["sweep", "small.toml", "--executor", "ray", "--output", "ray"]);
    command.env("RAY_ADDRESS", &ray.address).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
}

#[test]
fn ray_gives_the_metrics_of_this_machine() {
    let Some(ray) = Ray::start() else { return };
    let workplace = Workplace::with_teacher();
    write_file(&workplace, 8);
    workplace.success(&["sweep", "small.toml", "--output", "local"]);
    // The submitting process is killed; the jobs continue, and another process monitors them.
    let mut first = on_ray(&workplace, &ray);
    let begun = || metrics(&workplace, "ray").iter().any(|row| row[1] == "running");
    wait_for("a trial", || workplace.path().join("ray/sweep.csv").exists() && begun());
    first.kill().unwrap();
    first.wait().unwrap();
    let output = on_ray(&workplace, &ray).wait_with_output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(metrics(&workplace, "ray"), metrics(&workplace, "local"), "{}", said(&output));

    // The folder of a task has the complete output of its job.
    for task in std::fs::read_dir(workplace.path().join("ray/tasks")).unwrap().map(|entry| entry.unwrap().path()) {
        let log = std::fs::read_to_string(task.join("ray-1.log")).unwrap();
        assert!(log.contains("done     "), "{}: {log}", task.display());
    }

    // Parts of a store and of a teacher's targets are jobs, too.
    let arguments = ["data", "build", "--executor", "ray", "--parts", "3", "--stores-dir", "parts"];
    let output = workplace.command(&arguments).env("RAY_ADDRESS", &ray.address).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let [merged, single] = ["parts", "stores"].map(|stores| only_store(&workplace.path().join(stores)));
    assert!(contents(&merged) == contents(&single), "other bytes: {}", said(&output));
    let cache = ["teachers", "cache", "--preset", "vgae,student", "--batch-size", "16", "--teacher-cache-dir"];
    let parts = [&cache[..], &["eight", "--parts", "8", "--executor", "ray"]].concat();
    let output = workplace.command(&parts).env("RAY_ADDRESS", &ray.address).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    workplace.success(&[&cache[..], &["one"]].concat());
    let [eight, one] = ["eight", "one"].map(|folder| contents(&workplace.path().join(folder)));
    assert!(eight == one && one.len() == 1, "other bytes: {}", said(&output));
}

/// With a fake Ray server: the log of a running job can be followed in the sweep's folder, and a job
/// killed for memory is submitted again with more memory.
#[test]
fn logs_are_copied_while_jobs_run_and_memory_grows() {
    let workplace = Workplace::with_teacher();
    let text = "metric = \"val_task_loss\"\n[resources]\nmemory_per_trial = \"700MiB\"\nthreads = 1\n\
                more_memory = { factor = 3.0, at_most = \"1400MiB\" }\n\
                [[step]]\nname = \"student\"\ncommand = \"autoencoder\"\npreset = \"vgae,student\"\n\
                set = { hidden = [8, 8, 4], latent = 4, embedding = 2, max_epochs = 60 }\n";
    std::fs::write(workplace.path().join("small.toml"), text).unwrap();
    let logs = tempfile::tempdir().unwrap();
    let server = JobsServer::start(logs.path(), "student");
    let mut command = workplace.command(&["sweep", "small.toml", "--executor", "ray", "--output", "ray"]);
    command.env("RAY_ADDRESS", &server.address).stderr(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    let task = |step: &str| {
        let folders = std::fs::read_dir(workplace.path().join("ray/tasks")).ok()?.map(|entry| entry.unwrap().path());
        folders.into_iter().find(|path| path.file_name().unwrap().to_string_lossy().starts_with(step))
    };
    let mut seen_while_running = String::new();
    while child.try_wait().unwrap().is_none() {
        let Some(task) = task("student") else { continue };
        let state = std::fs::read_to_string(task.join("state.json")).unwrap_or_default();
        if state.contains("\"running\"") {
            seen_while_running = std::fs::read_to_string(task.join("ray-2.log")).unwrap_or_default();
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(seen_while_running.lines().count() > 2, "the log came too late: {seen_while_running:?}\n{}", said(&output));
    let requests = server.requests("student");
    let memory: Vec<_> = requests.iter().map(|request| request["entrypoint_memory"].as_u64().unwrap() >> 20).collect();
    assert_eq!(memory, [700, 1400], "{}", said(&output));
    let name = requests[1]["submission_id"].as_str().unwrap();
    let copied = std::fs::read_to_string(task("student").unwrap().join("ray-2.log")).unwrap();
    assert_eq!(copied, server.log(name));
    assert!(copied.starts_with(&seen_while_running) && copied.contains("done     student"), "{copied}");
    assert!(said(&output).contains("is FAILED: it ended with exit code -9"), "{}", said(&output));
    assert!(said(&output).contains(&format!("job {name} is RUNNING")), "{}", said(&output));
}

#[test]
fn a_dry_run_prints_the_requests_and_a_missing_cluster_is_told() {
    let workplace = Workplace::with_teacher();
    write_file(&workplace, 1);
    let said_dry = workplace.success(&["sweep", "small.toml", "--executor", "ray", "--dry-run"]);
    assert_eq!(said_dry.matches("entrypoint_num_cpus").count(), 14, "{said_dry}");
    assert!(said_dry.contains("\"entrypoint_memory\": 734003200"), "{said_dry}");
    assert!(said_dry.contains("; jobs on Ray, one per task\n") && !said_dry.contains("at once"), "{said_dry}");
    assert!(said_dry.contains("\n  12 student: 1 CPUs, 0.0 GPUs, 700 MiB each\n"), "{said_dry}");
    let nowhere = format!("http://127.0.0.1:{}", free_port());
    let mut command = workplace.command(&["sweep", "small.toml", "--executor", "ray"]);
    let output = command.env("RAY_ADDRESS", &nowhere).output().unwrap();
    assert!(!output.status.success() && said(&output).contains(&nowhere), "{}", said(&output));
    let mut command = workplace.command(&["sweep", "small.toml", "--executor", "ray"]);
    let output = command.env("RAY_ADDRESS", "ray://127.0.0.1:10001").output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
}
