//! Trainings in several processes: the losses of one, failures, resuming with another number of processes, and strangers.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use kdgat::exit;
use kdgat::nn::weights::StateDict;
use kdgat::train::checkpoint;
use kdgat::train::state::Position;
use rustix::process::{Pid, Signal, kill_process};
use support::cli::{SMALL_STUDENT, SMALL_TEACHER, Workplace, loss_columns, said};
use support::starter;
use support::stops::{children, end_of, send, wait_for};

/// A classifier whose batches have an odd number of graphs, the last few: with four processes, some have none of the last batch.
const CLASSIFIER: &[&str] = &[
    "classifier",
    "--preset",
    "gat,student",
    "--use-kd",
    "false",
    "--hidden",
    "4",
    "--heads",
    "2",
    "--embedding",
    "2",
    "--task-loss",
    "weighted",
    "--batch-size",
    "33",
    "--min-steps-per-epoch",
    "1",
    "--max-epochs",
    "2",
];

fn student<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["autoencoder"], SMALL_STUDENT, &["--batch-size", "50", "--min-steps-per-epoch", "1"], more].concat()
}

/// `kdgat launch` with these processes.
fn launched<'a>(processes: &'a str, command: &[&'a str]) -> Vec<&'a str> {
    [&["launch", "--processes", processes, "--"], command].concat()
}

/// Columns of a run's `metrics.csv` by name, without speeds.
fn losses(run: &Path) -> Vec<Vec<(String, f64)>> {
    let mut reader = csv::Reader::from_path(run.join("metrics.csv")).unwrap();
    let header = reader.headers().unwrap().clone();
    let is_loss = |name: &str| !["graphs_per_second", "peak_memory_bytes", "seconds"].contains(&name);
    let row = |row: csv::StringRecord| {
        let fields = header.iter().zip(&row).filter(|(name, _)| is_loss(name));
        fields.map(|(name, value)| (name.to_owned(), value.parse().unwrap_or(f64::NAN))).collect()
    };
    reader.records().map(|record| row(record.unwrap())).collect()
}

/// Training losses are equal to 1e-5. Validation reads running statistics, which follow the biases before a batch norm: their gradients
/// are zero but for rounding, which Adam enlarges to whole steps.
#[track_caller]
fn assert_close(found: &Path, expected: &Path) {
    /// Epochs after which rounding alone may have grown.
    const EPOCHS: usize = 8;
    let (mut found, mut expected) = (losses(found), losses(expected));
    assert_eq!(found.len(), expected.len());
    assert!(!found.is_empty());
    found.truncate(EPOCHS);
    expected.truncate(EPOCHS);
    for ((name, found), (_, expected)) in found.iter().flatten().zip(expected.iter().flatten()) {
        // One graph or node more or less that is classified rightly is much of such a share.
        if ["val_accuracy", "val_teacher_agreement"].contains(&&**name) {
            continue;
        }
        let allowed = if name.starts_with("val_") { 2e-3 } else { 1e-5 };
        let is_close = (found - expected).abs() <= allowed * expected.abs().max(1.0);
        assert!(is_close || (found.is_nan() && expected.is_nan()), "{name}: {found} instead of {expected}");
    }
}

#[test]
fn several_processes_have_the_losses_of_one() {
    let workplace = Workplace::with_teacher();
    // Distilled, with dropout, noise of the latent and batch norm; 2 processes twice, bit by bit.
    let run = |processes: Option<&str>, folder: &str, command: &[&str]| {
        let command = [command, &["--run-dir", folder]].concat();
        let said = match processes {
            Some(processes) => workplace.success(&launched(processes, &command)),
            None => workplace.success(&command),
        };
        (workplace.path().join(folder), said)
    };
    let distilled = student(&["--max-epochs", "2", "--dropout", "0.2"]);
    let (one, _) = run(None, "one", &distilled);
    let (two, said) = run(Some("2"), "two", &distilled);
    assert!(said.contains("in 2 processes"), "{said}");
    assert!(said.contains("the teacher's weights are in host memory once for 2 processes"), "{said}");
    assert_eq!(said.matches("all epochs done").count(), 1, "{said}");
    assert_close(&two, &one);
    let (again, _) = run(Some("2"), "again", &distilled);
    assert_eq!(loss_columns(&again), loss_columns(&two));
    for name in ["config.json", "summary.json", "best.safetensors", "last/state.safetensors", "steps.csv"] {
        assert!(two.join(name).exists(), "{name}");
    }

    let (one, _) = run(None, "gat-one", CLASSIFIER);
    for processes in ["2", "4"] {
        let (several, _) = run(Some(processes), &format!("gat-{processes}"), CLASSIFIER);
        assert_close(&several, &one);
    }
}

/// Writes `chains.xyz`: 60 molecules of three or four atoms, with forces that differ among molecules of different sizes or without.
fn chains(workplace: &Workplace, has_forces: bool) {
    let columns = if has_forces { ":forces:R:3" } else { "" };
    let molecule = |molecule: usize| {
        let step = 1.0 + 0.3 * (molecule % 7) as f64 / 7.0;
        let force = match has_forces {
            true => format!(" {} {} 0", 0.2 * (molecule % 2) as f64 + 0.1, 0.05 * (molecule % 5) as f64),
            false => String::new(),
        };
        let atom = |atom: usize| format!("{} {} 0 0{force}\n", ["C", "O"][(atom + molecule) % 2], step * atom as f64);
        let atoms = 3 + molecule % 2;
        format!(
            "{atoms}\nProperties=species:S:1:pos:R:3{columns} energy={step}\n{}",
            (0..atoms).map(atom).collect::<String>()
        )
    };
    fs::write(workplace.path().join("chains.xyz"), (0..60).map(molecule).collect::<String>()).unwrap();
}

/// Adam's moments are divided, the checkpoint has all of them, and any number of processes resumes from it.
#[test]
fn each_process_has_the_optimizer_states_of_its_share() {
    let workplace = Workplace::new();
    chains(&workplace, false);
    let command = |run: &'static str, epochs: &'static str| {
        let model =
            ["train", "--data", "chains.xyz", "--preset", "painn,student", "--use-kd", "false", "--layers", "2"];
        let batches = ["--hidden", "192", "--batch-size", "30", "--optimize-batch-size", "false"];
        [&model[..], &batches, &["--max-epochs", epochs, "--run-dir", run]].concat()
    };
    let place = |run: &str| workplace.path().join(run);
    let bytes = |run: &Path| -> u64 {
        let text = fs::read_to_string(run.join("summary.json")).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["optimizer_bytes"].as_u64().unwrap()
    };
    let moments = |run: &Path| {
        let (tensors, _): (StateDict, Position) = checkpoint::read(&run.join("last/state.safetensors")).unwrap();
        ["mean", "mean_square"].map(|name| Vec::<f32>::try_from(&tensors[&format!("optimizer.{name}")]).unwrap())
    };
    workplace.success(&command("one", "2"));
    workplace.success(&launched("2", &command("two", "2")));
    let (one, two) = (place("one"), place("two"));
    assert_close(&two, &one);
    let [whole, half] = [&one, &two].map(|run| bytes(run));
    assert!(half >= whole / 2 && half as f64 <= 1.05 * whole as f64 / 2.0, "{half} of {whole} bytes");
    for (found, expected) in moments(&two).iter().zip(&moments(&one)) {
        assert_eq!(found.len() as u64, whole / 8);
        let largest = expected.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        assert!(found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() <= 1e-3 * largest));
    }
    workplace.success(&command("whole", "40"));
    let mut launcher = workplace.command(&launched("2", &command("stopped", "40")));
    let launcher = launcher.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("a checkpoint", || place("stopped").join("last/state.safetensors").exists());
    kill_process(process_of_rank(&launcher, 1), Signal::KILL).unwrap();
    assert!(!end_of(launcher).status.success());
    workplace.success(&launched("3", &[&command("stopped", "40")[..], &["--resume"]].concat()));
    assert_close(&place("stopped"), &place("whole"));
    assert!(bytes(&place("stopped")) as f64 <= 1.05 * whole as f64 / 3.0);
}

/// A step over the whole of one graph: each process computes the rows of its nodes, with all kinds of dropout and batch norm, and the targets of
/// a teacher.
#[test]
fn a_whole_graph_is_divided_by_its_nodes() {
    let workplace = Workplace::new();
    let sizes = ["--nodes", "400", "--edges", "1600", "--classes", "4", "--columns", "24"];
    workplace.success(&[&["data", "simulate", "--kind", "citations"], &sizes[..], &["net"]].concat());
    let train = |processes: Option<&str>, model: &[&str], run: &str| {
        let common = ["--data", "net.kdgat-nodes", "--hidden", "8", "--max-epochs", "4", "--run-dir", run];
        let command = [&["train"], model, &common[..]].concat();
        workplace.success(&processes.map_or(command.clone(), |processes| launched(processes, &command)));
        workplace.path().join(run)
    };
    let teacher = ["--preset", "sage,teacher", "--norm", "batch"];
    let attention =
        ["--preset", "gat,teacher", "--dropout", "0.4", "--attention-dropout", "0.3", "--input-dropout", "0.2"];
    let student = ["--preset", "gcn,student", "--norm", "batch", "--dropout", "0.3", "--teacher-path", "sage-one"];
    for (name, model) in [("sage", &teacher[..]), ("gat", &attention), ("gcn", &student)] {
        let one = train(None, model, &format!("{name}-one"));
        for processes in ["2", "3"] {
            assert_close(&train(Some(processes), model, &format!("{name}-{processes}")), &one);
        }
    }
    let clusters =
        ["train", "--data", "net.kdgat-nodes", "--preset", "sage,teacher", "--clusters", "4", "--run-dir", "parts"];
    let refused = workplace.refused(&launched("2", &clusters));
    assert!(refused.contains("batches of clusters cannot be divided"), "{refused}");
}

/// Writes tables of 60 chains of three or four nodes with positions, of which some have targets.
fn chains_of_nodes(workplace: &Workplace) {
    let folder = workplace.path().join("chain-nodes");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("kdgat-graphs.toml"), "task = \"node-regression\"\n").unwrap();
    let graphs = (0..60).map(|graph| format!("g{graph}\n")).collect::<String>();
    fs::write(folder.join("graphs.csv"), format!("graph_id\n{graphs}")).unwrap();
    let node = |graph: usize, node: usize| {
        let x = (1.0 + 0.3 * (graph % 7) as f64 / 7.0) * node as f64;
        let target =
            if node > 0 && node % 2 == graph % 2 { String::new() } else { format!("{}", x + 0.1 * node as f64) };
        format!("g{graph},n{node},{},{x},0,0,{target}\n", ["C", "O"][(graph + node) % 2])
    };
    let nodes = (0..60).flat_map(|graph| (0..3 + graph % 2).map(move |index| node(graph, index))).collect::<String>();
    fs::write(folder.join("nodes.csv"), format!("graph_id,node_id,c_element,pos_x,pos_y,pos_z,y\n{nodes}")).unwrap();
}

/// Losses of forces and of rows of nodes are means over the nodes of the whole batch, of which each process has others.
#[test]
fn networks_in_space_are_divided() {
    let workplace = Workplace::new();
    chains(&workplace, true);
    chains_of_nodes(&workplace);
    let small = ["--layers", "2", "--batch-size", "17", "--optimize-batch-size", "false"];
    let train = |processes: Option<&str>, model: &[&str], run: &str| {
        let command = [&["train"], model, &small[..], &["--max-epochs", "3", "--run-dir", run]].concat();
        workplace.success(&processes.map_or(command.clone(), |processes| launched(processes, &command)));
        workplace.path().join(run)
    };
    let painn = ["--preset", "painn,student", "--hidden", "8"];
    let irreps = ["--preset", "irreps,student", "--irreps", "4x0e + 2x1o"];
    // Each process averages its share of the weights, or all of them.
    let alone = ["--use-kd", "false", "--ema-decay", "0.9"];
    for (name, data, model) in [("forces", "chains.xyz", painn), ("irreps", "chains.xyz", irreps)] {
        let model = [&["--data", data], &model[..], &alone].concat();
        let [one, three] = [("one", None), ("three", Some("3"))]
            .map(|(run, processes)| train(processes, &model, &format!("{name}-{run}")));
        assert!(losses(&one)[0].iter().any(|(name, _)| name == "force_error"), "{:?}", losses(&one)[0]);
        assert_close(&three, &one);
    }
    // Rows and vectors of nodes of a teacher, with targets of graphs and of some of the nodes.
    for data in ["chains.xyz", "chain-nodes"] {
        let data = ["--data", data];
        // Without the preset's average: after three epochs that is so far from a student that rounding grows to 1.1e-5.
        let teacher = [&data[..], &["--preset", "painn,teacher", "--hidden", "12", "--ema-decay", "0"]].concat();
        train(None, &teacher, &format!("{}-teacher", data[1]));
        let taught = [&data[..], &painn, &["--kd-hint-weight", "0.5"]].concat();
        let [one, three] = [("one", None), ("three", Some("3"))]
            .map(|(run, processes)| train(processes, &taught, &format!("{}-{run}", data[1])));
        assert_close(&three, &one);
    }
}

#[test]
fn a_killed_process_ends_all_and_the_run_resumes_with_another_number() {
    let workplace = Workplace::new();
    let settings = [CLASSIFIER, &["--max-epochs", "40", "--run-dir"]].concat();
    workplace.success(&[&settings[..], &["whole"]].concat());
    let command = [&settings[..], &["run"]].concat();
    let run = workplace.path().join("run");
    for killed in [1, 0] {
        let resume: &[&str] = if run.exists() { &["--resume"] } else { &[] };
        let mut launcher = workplace.command(&launched("2", &[&command[..], resume].concat()));
        let launcher = launcher.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let before = fs::read(run.join("last/state.safetensors")).ok();
        wait_for("a checkpoint", || fs::read(run.join("last/state.safetensors")).ok() != before);
        let process = process_of_rank(&launcher, killed);
        let was_there = kill_process(process, Signal::KILL).is_ok();
        let output = end_of(launcher);
        let said = said(&output);
        assert!(was_there, "{said}");
        assert_eq!(output.status.code(), Some(128 + 9), "as a shell says it of a process of its own: {said}");
        assert_eq!(said.matches("error:").count(), 1, "{said}");
        assert!(said.contains(&format!("process {killed} of 2 was ended by signal 9")), "{said}");
    }
    workplace.success(&launched("3", &[&command[..], &["--resume"]].concat()));
    assert_close(&run, &workplace.path().join("whole"));
}

/// The process of this rank that a launcher has started.
fn process_of_rank(launcher: &Child, rank: usize) -> Pid {
    let is_of_rank = |process: &u32| {
        let variables = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        let wanted = format!("RANK={rank}");
        variables.split(|&byte| byte == 0).any(|variable| variable == wanted.as_bytes())
    };
    let found = children(launcher.id()).into_iter().find(is_of_rank).unwrap();
    Pid::from_raw(i32::try_from(found).unwrap()).unwrap()
}

/// The store of process 0 does not answer while that process is stopped, and nothing breaks its connections.
#[test]
fn a_stopped_process_is_named_after_the_time_out() {
    let workplace = Workplace::new();
    let expected = ["process 0 ended or lost its connection: its store at", "process 1 has given no sign of life for"];
    for (rank, expected) in expected.into_iter().enumerate() {
        let run = format!("run-{rank}");
        let command = [&["autoencoder"], SMALL_TEACHER, &["--max-epochs", "500", "--process-timeout", "2"]].concat();
        let command = [&command[..], &["--run-dir", &run]].concat();
        let mut launcher = workplace.command(&launched("2", &command));
        let launcher = launcher.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for("a checkpoint", || workplace.path().join(&run).join("last/state.safetensors").exists());
        kill_process(process_of_rank(&launcher, rank), Signal::STOP).unwrap();
        let output = end_of(launcher);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(exit::FAILURE.into()), "{said}");
        assert!(said.contains(&format!("error: {expected}")), "{said}");
        assert_eq!(said.matches("error:").count(), 1, "{said}");
    }
}

#[test]
fn ctrl_c_saves_once_and_any_number_of_processes_resumes() {
    let workplace = Workplace::new();
    let command = [&["autoencoder"], SMALL_TEACHER, &["--max-epochs", "300", "--run-dir", "run"]].concat();
    let launcher = starter::shared(workplace.command(&launched("2", &command))).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("a checkpoint", || workplace.path().join("run/last/state.safetensors").exists());
    send(&launcher, Signal::INT);
    let output = end_of(launcher);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(exit::INTERRUPTED.into()), "{said}");
    assert_eq!(said.matches("interrupted (continue with --resume)").count(), 1, "{said}");
    let done = loss_columns(&workplace.path().join("run")).len();
    let resumed = [&["autoencoder"], SMALL_TEACHER, &["--run-dir", "run", "--resume", "--max-epochs", "300"]].concat();
    let launcher = starter::shared(workplace.command(&resumed)).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("another epoch", || loss_columns(&workplace.path().join("run")).len() > done);
    send(&launcher, Signal::INT);
    assert_eq!(end_of(launcher).status.code(), Some(exit::INTERRUPTED.into()));
}

/// Processes of a run that a test starts itself, as `torchrun` would.
fn started(workplace: &Workplace, command: &[&str], ranks: &[(&str, &[(&str, &str)])]) -> Vec<Output> {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port().to_string();
    drop(free);
    let start = |(rank, variables): &(&str, &[(&str, &str)])| {
        let mut process: Command = workplace.command(command);
        process.env("RANK", rank).env("WORLD_SIZE", "2").env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
        process.envs(variables.iter().copied()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let processes: Vec<Child> = ranks.iter().map(start).collect();
    processes.into_iter().map(end_of).collect()
}

#[test]
fn strangers_are_refused_by_name() {
    let workplace = Workplace::new();
    let command = [&["autoencoder"], SMALL_TEACHER, &["--max-epochs", "1", "--process-timeout", "20"]].concat();
    for (variables, what) in [(("KDGAT_TOKEN", "other"), "token"), (("KDGAT_SEED", "7"), "configuration")] {
        let token = ("KDGAT_TOKEN", "secret");
        let outputs = started(&workplace, &command, &[("0", &[token]), ("1", &[token, variables])]);
        let [first, other] = [0, 1].map(|rank| said(&outputs[rank]));
        assert_eq!(outputs[0].status.code(), Some(exit::INPUT.into()), "{first}");
        assert!(first.contains(&format!("process 1 is refused by process 0: it has another {what}")), "{first}");
        assert_ne!(outputs[1].status.code(), Some(0), "{other}");
    }
    assert!(!workplace.path().join("runs").exists());
}

#[test]
fn a_process_that_does_not_come_is_named() {
    let workplace = Workplace::new();
    let command = [&["autoencoder"], SMALL_TEACHER, &["--max-epochs", "1", "--process-timeout", "1"]].concat();
    let outputs = started(&workplace, &command, &[("0", &[])]);
    let text = said(&outputs[0]);
    assert_eq!(outputs[0].status.code(), Some(exit::FAILURE.into()), "{text}");
    assert!(text.contains("process 1 of 2 did not come within 1 s"), "{text}");
}

#[test]
fn half_set_variables_and_other_commands_are_refused() {
    let workplace = Workplace::new();
    let mut half: Command = workplace.command(&["autoencoder", "--preset", "vgae,teacher"]);
    let output = half.env("RANK", "0").env("WORLD_SIZE", "2").output().unwrap();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(exit::INPUT.into()), "{text}");
    assert!(text.contains("MASTER_ADDR, MASTER_PORT are missing"), "{text}");
    let text = workplace.refused(&["launch", "--processes", "2", "--", "evaluate", "run"]);
    assert!(text.contains("several processes train together with autoencoder"), "{text}");
    // A configuration that is wrong in every process is one error.
    let text = workplace.refused(&["launch", "--processes", "2", "--", "autoencoder", "--lr", "x"]);
    assert_eq!(text.matches("--lr").count(), 1, "{text}");
}
