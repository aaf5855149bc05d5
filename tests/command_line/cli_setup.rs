//! `scripts/setup` and `scripts/kdgat` on machines with missing tools, simulated by a PATH of fake programs.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// Tools that the scripts call besides cargo, the compiler, Python and df.
const TOOLS: &[&str] = &[
    "bash", "env", "dirname", "realpath", "sed", "awk", "mkdir", "mktemp", "sort", "head", "cat", "paste", "uname",
    "rm", "mv", "ln", "flock", "find", "grep", "touch", "sleep", "chmod", "tail", "tr",
];

const CARGO: &str = r#"
[ "$1" = --version ] && { echo "cargo 1.95.0 (2026-01-01)"; exit 0; }
echo "cargo $*" >> "$LOG"
[ -f "$LOG.broken" ] && { echo "error: it does not compile" >&2; exit 101; }
target=target
while [ $# -gt 0 ]; do [ "$1" = --target-dir ] && target=$2; shift; done
mkdir -p "$target/release"
printf '#!/usr/bin/env bash\necho "in $PWD with $*"\n' > "$target/release/kdgat"
chmod +x "$target/release/kdgat"
"#;

/// Fake Python: a download of pip leaves a marker file; unpacking writes the files that the scripts check.
const PYTHON: &str = r#"
case "$1 $2 $3" in
  "-m pip --version") echo "pip 25" ;;
  "-m pip download") echo "download $*" >> "$LOG" ;;
  "- "*)
    mkdir -p "$3/torch/lib" "$3/torch/include/torch/headeronly"
    printf '#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 11\n#define TORCH_VERSION_PATCH 0\n' \
      > "$3/torch/include/torch/headeronly/version.h" ;;
esac
"#;

const DF: &str = r#"echo header; echo "disk 100000000 0 ${FREE_KIB:-99999999} 0% /""#;

/// A clone of the repository's scripts on a simulated machine.
struct Machine {
    folder: TempDir,
}

impl Machine {
    fn new() -> Machine {
        let machine = Machine { folder: tempfile::tempdir().unwrap() };
        fs::create_dir(machine.path("bin")).unwrap();
        for tool in TOOLS {
            let found = std::env::split_paths(&std::env::var_os("PATH").unwrap())
                .map(|folder| folder.join(tool))
                .find(|path| path.exists());
            symlink(found.unwrap_or_else(|| panic!("{tool} is not on the PATH")), machine.path("bin").join(tool))
                .unwrap();
        }
        for (name, body) in [("cargo", CARGO), ("c++", ""), ("python3", PYTHON), ("df", DF)] {
            machine.install(name, body);
        }
        machine.clone_repository("clone");
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn install(&self, name: &str, body: &str) {
        let path = self.path("bin").join(name);
        write_executable(&path, &format!("#!/usr/bin/env bash\n{body}\n"));
    }

    fn without(self, tool: &str) -> Machine {
        fs::remove_file(self.path("bin").join(tool)).unwrap();
        self
    }

    fn clone_repository(&self, name: &str) {
        let clone = self.path(name);
        for folder in ["scripts", "src", "crates", "presets"] {
            fs::create_dir_all(clone.join(folder)).unwrap();
        }
        for script in ["setup", "kdgat"] {
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(script);
            write_executable(&clone.join("scripts").join(script), &fs::read_to_string(source).unwrap());
        }
        for file in ["Cargo.toml", "Cargo.lock", "src/main.rs"] {
            fs::write(clone.join(file), "").unwrap();
        }
    }

    fn command(&self, script: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.path(script));
        command
            .args(arguments)
            .env_clear()
            .env("PATH", self.path("bin"))
            .env("HOME", self.path("home"))
            .env("XDG_CACHE_HOME", self.path("cache"))
            .env("LOG", self.path("log"));
        command
    }

    fn run(&self, script: &str, arguments: &[&str]) -> Output {
        self.command(script, arguments).output().unwrap()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    fn cargo_config(&self) -> String {
        fs::read_to_string(self.path("clone/.cargo/config.toml")).unwrap_or_default()
    }
}

/// Writes an executable file in a separate process. If this process wrote it, a child forked by another test in the meantime
/// could inherit the open file, and executing it would fail with "Text file busy".
fn write_executable(path: &Path, text: &str) {
    let mut shell = Command::new("sh")
        .args(["-c", "cat > \"$1\" && chmod 755 \"$1\"", "sh"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    shell.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(shell.wait().unwrap().success(), "cannot write {}", path.display());
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Asserts exit code 2, this message, and that nothing was downloaded or configured.
fn assert_refused(machine: &Machine, output: &Output, message: &str) {
    assert_eq!(output.status.code(), Some(2), "{}", stderr(output));
    assert!(stderr(output).contains(message), "`{message}` is missing in: {}", stderr(output));
    assert_eq!(machine.log(), "", "something was downloaded or built all the same");
    assert_eq!(machine.cargo_config(), "");
}

#[test]
fn what_is_missing_is_named_before_any_download() {
    for (tool, message) in [
        ("cargo", "cargo is not on the PATH; install Rust"),
        ("c++", "no C++ compiler ('c++') on the PATH; install g++ or clang++"),
        ("python3", "python3 is not on the PATH"),
    ] {
        let machine = Machine::new().without(tool);
        assert_refused(&machine, &machine.run("clone/scripts/setup", &[]), message);
        assert_refused(&machine, &machine.run("clone/scripts/kdgat", &["--version"]), message);
    }
}

#[test]
fn python_without_pip_and_old_rust_are_named() {
    let machine = Machine::new();
    machine.install("python3", "echo No module named pip >&2; exit 1");
    assert_refused(&machine, &machine.run("clone/scripts/setup", &[]), "python3 has no pip");
    let machine = Machine::new();
    machine.install("cargo", "echo cargo 1.75.0");
    assert_refused(&machine, &machine.run("clone/scripts/setup", &[]), "cargo is version 1.75, kdgat needs Rust 1.89");
}

#[test]
fn too_little_disk_space_is_named() {
    let machine = Machine::new();
    let output = machine.command("clone/scripts/setup", &[]).env("FREE_KIB", "1000000").output().unwrap();
    assert_refused(&machine, &output, "976 MiB free, building kdgat needs 3072 MiB");
    fs::create_dir_all(machine.path("clone/target/release")).unwrap();
    let output = machine.command("clone/scripts/setup", &[]).env("FREE_KIB", "1000000").output().unwrap();
    assert_refused(&machine, &output, "976 MiB free, libtorch needs 2048 MiB");
    let output = machine.command("clone/scripts/setup", &["--cuda"]).env("FREE_KIB", "9000000").output().unwrap();
    assert_refused(&machine, &output, "libtorch needs 12288 MiB");
}

#[test]
fn a_libtorch_of_another_version_is_named() {
    let machine = Machine::new();
    let libtorch = machine.path("libtorch");
    let run = || machine.command("clone/scripts/setup", &[]).env("LIBTORCH", &libtorch).output().unwrap();
    assert_refused(&machine, &run(), "has no lib/ and include/");
    fs::create_dir_all(libtorch.join("lib")).unwrap();
    fs::create_dir_all(libtorch.join("include/torch/headeronly")).unwrap();
    assert_refused(&machine, &run(), "is libtorch of an unknown version, kdgat needs 2.11.0");
    let header = |minor: u32| {
        let text = format!(
            "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR {minor}\n#define TORCH_VERSION_PATCH 0\n"
        );
        fs::write(libtorch.join("include/torch/headeronly/version.h"), text).unwrap();
    };
    header(5);
    assert_refused(&machine, &run(), "is libtorch 2.5.0, kdgat needs 2.11.0; unset LIBTORCH");
    header(11);
    let output = run();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(machine.cargo_config().contains(&format!("LIBTORCH = \"{}\"", libtorch.display())));
    assert_eq!(machine.log(), "", "a libtorch of the user's needs no download");
}

#[test]
fn a_failed_download_leaves_nothing_behind() {
    let machine = Machine::new();
    machine.install("python3", "[ \"$3\" = --version ] && exit 0; echo no network >&2; exit 1");
    let output = machine.run("clone/scripts/setup", &[]);
    assert_refused(&machine, &output, "the download failed; check the network");
    let left: Vec<_> =
        fs::read_dir(machine.path("cache/kdgat")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["setup.lock"]);
}

#[test]
fn libtorch_is_downloaded_once_for_all_clones() {
    let machine = Machine::new();
    machine.clone_repository("second");
    for script in ["clone/scripts/setup", "clone/scripts/setup", "second/scripts/setup"] {
        let output = machine.run(script, &[]);
        assert!(output.status.success(), "{script}: {}", stderr(&output));
    }
    assert_eq!(machine.log().lines().count(), 1, "{}", machine.log());
    assert!(machine.log().contains("torch==2.11.0"));
    let torch = machine.path("cache/kdgat/libtorch-2.11.0-cpu/torch");
    assert!(machine.cargo_config().contains(&format!("LIBTORCH = \"{}\"", torch.display())));
    assert!(machine.run("clone/scripts/setup", &["--help"]).status.success());
    assert_eq!(machine.run("clone/scripts/setup", &["--gpu"]).status.code(), Some(2));
}

/// pip alone decides which platform tags this system can run. Regression: a hand-written list of tags missed that of one wheel.
#[test]
fn a_dry_run_names_the_packages_that_have_no_wheel_for_this_system() {
    let machine = Machine::new();
    let pip = r#"
case "$*" in
  "-m pip --version") echo "pip 25" ;;
  *--platform*) echo "ERROR: platform tags are pip's to choose" >&2; exit 1 ;;
  "-m pip index versions"*nvidia-nccl-cu13) echo "ERROR: No matching distribution found for nvidia-nccl-cu13" >&2; exit 1 ;;
  "-m pip index versions"*torch) printf 'torch (2.12.0)\nAvailable versions: 2.12.0, 2.11.0\n' ;;
  "-m pip index versions"*) printf 'Available versions: 13.0.96, 13.0.85, 13.1.0.3, 13.0.88, 9.19.0.56, 12.0.0.61, 1.15.1.6, 10.4.0.35, 12.0.4.66, 12.6.3.3, 0.8.0, 3.4.5\n' ;;
  *) exit 1 ;;
esac
"#;
    machine.install("python3", pip);
    let output = machine.run("clone/scripts/setup", &["--dry-run"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let cpu = "torch==2.11.0\nnvidia-cuda-runtime==13.0.96\nnvidia-cuda-cupti==13.0.85\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), cpu);
    let output = machine.run("clone/scripts/setup", &["--cuda", "--dry-run"]);
    assert_refused(
        &machine,
        &output,
        "no wheel of nvidia-nccl-cu13==2.28.9 for this system: ERROR: No matching distribution",
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 15, "{}", stderr(&output));
}

#[test]
fn the_program_is_built_when_sources_change_and_only_then() {
    let machine = Machine::new();
    let elsewhere = machine.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let run = || {
        let mut command = machine.command("clone/scripts/kdgat", &["config", "--seed", "a b"]);
        command.current_dir(&elsewhere).output().unwrap()
    };
    let builds = || machine.log().lines().filter(|line| line.starts_with("cargo build --release")).count();
    let output = run();
    assert!(output.status.success(), "{}", stderr(&output));
    let expected = format!("in {} with config --seed a b\n", elsewhere.display());
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    assert_eq!(builds(), 1);
    assert_eq!(stderr(&run()), "", "nothing is said when there is nothing to do");
    assert_eq!(builds(), 1);

    std::thread::sleep(std::time::Duration::from_millis(20));
    fs::write(machine.path("clone/src/main.rs"), "// changed").unwrap();
    assert!(run().status.success());
    assert_eq!(builds(), 2);

    std::thread::sleep(std::time::Duration::from_millis(20));
    fs::remove_file(machine.path("clone/src/main.rs")).unwrap();
    fs::write(machine.path("log.broken"), "").unwrap();
    let output = run();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("error: it does not compile"), "{}", stderr(&output));
    assert!(output.stdout.is_empty(), "the old program must not run after a failed build");
    fs::remove_file(machine.path("log.broken")).unwrap();
    assert!(run().status.success());
    assert_eq!(builds(), 4);

    let mut command = machine.command("clone/scripts/kdgat", &["--version"]);
    let output = command.current_dir(&elsewhere).env("CARGO_TARGET_DIR", "mine").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(elsewhere.join("mine/release/kdgat").exists());
}

/// Runs scripts/gpu-check with fakes of torch, of the packed programs, and (for a machine with a GPU) of nvidia-smi.
fn gpu_check(folder: &Path, has_gpu: bool, arguments: &[&str]) -> Output {
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        write_executable(&path, text);
    };
    write("python/torch/__init__.py", "");
    write(
        "pack/kdgat",
        "#!/bin/sh\necho \"kdgat $*\" >> \"$LOG\"\necho '{\"cuda_library\": {\"works\": false, \"detail\": \"no driver\"}}'\n",
    );
    let tests = "#!/bin/sh\ncase $1 in attention_gpu::) echo 'skipped: no GPU' ;; esac\necho 'test result: ok. 7 passed; 0 failed'\n";
    write("pack/test-gpu", tests);
    if has_gpu {
        let card = "#!/bin/sh\ncase $1 in -L) echo 'GPU 0: Fake (UUID: GPU-0)' ;; *) echo 'Fake, 580.1, 8.6, 24576 MiB' ;; esac\n";
        write("bin/nvidia-smi", card);
    }
    let path = format!("{}:{}", folder.join("bin").display(), std::env::var("PATH").unwrap());
    Command::new("python3")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/gpu-check"))
        .args(arguments)
        .current_dir(folder)
        .env("PATH", path)
        .env("PYTHONPATH", folder.join("python"))
        .env("LOG", folder.join("calls"))
        .output()
        .unwrap()
}

#[test]
fn the_gpu_check_prints_its_plan_and_says_without_a_gpu_that_it_needs_one() {
    let folder = tempfile::tempdir().unwrap();
    let plan = gpu_check(folder.path(), false, &["--plan"]);
    let plan = String::from_utf8_lossy(&plan.stdout).into_owned();
    assert!(plan.starts_with(" 1. driver (30 s at most)"), "{plan}");
    assert_eq!(plan.matches("must print: ").count(), 26, "{plan}");
    // What shows most comes first: a card may be there for minutes only.
    let steps: Vec<&str> =
        plan.lines().step_by(2).filter_map(|line| Some(line.get(4..)?.split_once(" (")?.0)).collect();
    let expected = [
        "driver",
        "doctor",
        "graphs-on-device",
        "test-torch-device",
        "test-distill-cuda",
        "test-attention-gpu",
        "sanitizer",
        "test-recorded-steps",
        "teacher-and-student",
        "memory-limit",
        "out-of-memory",
        "cuda-graphs",
        "cuda-graphs-limit",
        "profile-features",
        "page-locking-refused",
        "wall-clock",
        "residencies",
        "own-graphs",
        "own-graphs-captured",
        "points",
        "one-large-graph",
        "evaluate",
        "bench-step",
        "bench-teacher",
        "bench-attention",
        "second-card",
    ];
    assert_eq!(steps, expected, "{plan}");
    let output = gpu_check(folder.path(), false, &["pack", "results"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("gpu-check: 0 ok, 0 failed, 26 skipped"), "{text}");
    assert!(folder.path().join("results/doctor.json").exists(), "what needs no GPU was done");
}

#[test]
fn the_gpu_check_goes_on_after_a_failure_and_ends_with_a_table() {
    let folder = tempfile::tempdir().unwrap();
    let output = gpu_check(folder.path(), true, &["pack", "results", "--quick"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    let table = fs::read_to_string(folder.path().join("results/table.txt")).unwrap();
    let row =
        |name: &str| table.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {table}"));
    assert!(row("driver ").contains("ok") && row("driver ").contains("Fake, 580.1"), "{table}");
    assert!(row("doctor ").contains("FAILED") && row("doctor ").contains("no driver"), "{table}");
    assert!(row("test-torch-device").contains("ok") && row("test-torch-device").contains("7 tests passed"), "{table}");
    assert!(row("test-attention-gpu").contains("FAILED"), "tests that found no GPU did not pass: {table}");
    assert!(row("residencies").contains("FAILED"), "{table}");
    assert!(row("second-card").contains("skipped") && row("second-card").contains("1 GPU(s)"), "{table}");
    assert!(text.trim_end().ends_with("results"), "{text}");
    let calls = fs::read_to_string(folder.path().join("calls")).unwrap();
    assert!(calls.contains("--gpu-memory-limit 700MiB"), "{calls}");
}
