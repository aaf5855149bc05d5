//! Fake server of Ray's Jobs API that runs the jobs as processes on this machine.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

/// Server that runs until the test's process ends.
pub struct JobsServer {
    pub address: String,
    jobs: Arc<Mutex<Vec<Job>>>,
}

struct Job {
    name: String,
    request: Value,
    process: Child,
    log: PathBuf,
}

impl JobsServer {
    /// Starts the server. The first job of the step `doomed` is killed by signal 9 when it starts.
    pub fn start(folder: &Path, doomed: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self {
            address: format!("http://{}", listener.local_addr().unwrap()),
            jobs: Arc::new(Mutex::new(Vec::new())),
        };
        let (jobs, folder) = (Arc::clone(&server.jobs), folder.to_owned());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                serve(stream.unwrap(), &mut jobs.lock().unwrap(), &folder, doomed);
            }
        });
        server
    }

    /// Submit requests of a step's jobs.
    pub fn requests(&self, step: &str) -> Vec<Value> {
        let jobs = self.jobs.lock().unwrap();
        jobs.iter().map(|job| job.request.clone()).filter(|request| request["metadata"]["step"] == step).collect()
    }

    /// Output of a job.
    pub fn log(&self, name: &str) -> String {
        let jobs = self.jobs.lock().unwrap();
        std::fs::read_to_string(&jobs.iter().find(|job| job.name == name).unwrap().log).unwrap()
    }
}

fn serve(mut stream: TcpStream, jobs: &mut Vec<Job>, folder: &Path, doomed: &str) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let (method, path) = line.split_once(' ').map(|(method, rest)| (method, rest.split(' ').next().unwrap())).unwrap();
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).unwrap();
        if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if header.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let answer = match (method, path.trim_start_matches("/api/jobs/").split_once('/')) {
        ("GET", None) => jobs.iter_mut().map(described).collect(),
        ("POST", None) => {
            let job = begin(serde_json::from_slice(&body).unwrap(), jobs.len(), folder, doomed);
            let name = job.name.clone();
            jobs.push(job);
            json!({ "submission_id": name })
        }
        ("GET", Some((name, "logs"))) => {
            let job = jobs.iter().find(|job| job.name == name).unwrap();
            json!({ "logs": String::from_utf8_lossy(&std::fs::read(&job.log).unwrap()) })
        }
        asked => panic!("unexpected request: {asked:?}"),
    };
    let text = answer.to_string();
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}", text.len()).unwrap();
}

fn begin(request: Value, number: usize, folder: &Path, doomed: &str) -> Job {
    let name = request["submission_id"].as_str().unwrap().to_owned();
    let is_doomed = request["metadata"]["step"] == doomed && name.ends_with("-1");
    let entrypoint = if is_doomed { "kill -9 $$" } else { request["entrypoint"].as_str().unwrap() };
    let log = folder.join(format!("job-{number}.log"));
    let output = File::create(&log).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", entrypoint]).stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
    let process = command.spawn().unwrap();
    Job { name, request, process, log }
}

fn described(job: &mut Job) -> Value {
    let ended = job.process.try_wait().unwrap();
    let status = match ended {
        None => "RUNNING",
        Some(status) if status.success() => "SUCCEEDED",
        Some(_) => "FAILED",
    };
    // Same as in Python's subprocess: negative for a signal.
    let exit_code = ended.and_then(|status| status.code().or(status.signal().map(|signal| -signal)));
    let message = exit_code.filter(|&code| code != 0).map(|code| format!("it ended with exit code {code}"));
    json!({ "submission_id": job.name, "status": status, "message": message, "driver_exit_code": exit_code })
}
