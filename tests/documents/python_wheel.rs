//! The wheel: `kdgat` in a Python environment with PyTorch.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use support::process::is_soak;
use support::python::python_with;

const PROGRAM: &str = env!("CARGO_BIN_EXE_kdgat");

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn success(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{command:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap() + &String::from_utf8_lossy(&stderr)
}

/// Makes a wheel of the program, and installs it into a folder.
fn installed(python: &Path, folder: &Path) -> PathBuf {
    let output = folder.join("dist");
    let make = root().join("scripts/wheel");
    let mut command = Command::new(make);
    // scripts/test builds it together with the program.
    if let Some(module) = std::env::var_os("BUILT_MODULE") {
        command.arg("--module").arg(module);
    }
    let wheel = success(command.args(["--program", PROGRAM, "--output"]).arg(&output));
    let name = wheel.lines().find_map(|line| line.strip_prefix(output.to_str()?)?.strip_prefix('/')).unwrap_or(&wheel);
    assert!(name.contains("-py3-none-manylinux_2_") && name.ends_with(".whl"), "{name}");
    let site = folder.join("site");
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--target"];
    success(Command::new(python).args(pip).arg(&site).arg(output.join(name)));
    site
}

/// In an empty folder, the installed program trains a student of the teacher that the package brings along, on PyTorch's libtorch. Its
/// compiled sampler draws the samples of the program.
#[test]
fn the_installed_package_trains_on_the_libtorch_of_pytorch_and_samples() {
    let Some(python) = python_with("torch, numpy, pip", "peer", "scripts/test --all installs it") else { return };
    let folder = tempfile::tempdir().unwrap();
    let site = installed(&python, folder.path());
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let kdgat = |arguments: &[&str]| {
        let mut command = Command::new(site.join("bin/kdgat"));
        // The program's own libtorch must not be found.
        command.args(arguments).current_dir(&empty).env("PYTHONPATH", &site).env_remove("LD_LIBRARY_PATH");
        command
    };
    let said = success(&mut kdgat(&["doctor"]));
    assert!(said.contains("site-packages/torch/lib"), "{said}");
    let arguments = ["autoencoder", "--preset", "vgae,student", "--offload-teacher", "--max-epochs", "1"];
    let said = success(&mut kdgat(&[&arguments[..], &["--threads", "1", "--device", "cpu"]].concat()));
    assert!(said.contains("all epochs done") && said.contains("residency forward"), "{said}");
    let refused = kdgat(&["autoencoder", "--presets", "vgae"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));

    let said = run_tests(&python, &site, &empty, &["test_data.Orders", "test_data.Nodes"]);
    assert!(!said.contains("skipped"), "{said}");
}

/// Runs tests of the package that is installed in `site`, whose samples must be those of the compiled sampler. Returns what was said.
fn run_tests(python: &Path, site: &Path, folder: &Path, tests: &[&str]) -> String {
    let path = std::env::join_paths([site.to_owned(), root().join("python/tests")]).unwrap();
    let mut command = Command::new(python);
    command.args(["-W", "ignore::DeprecationWarning", "-m", "unittest"]).args(tests).current_dir(folder);
    command.env_remove("SOAK_TESTS").env("KDGAT_SAMPLER", "program").env("PYTHONDONTWRITEBYTECODE", "1");
    let said = success(command.env("PYTHONPATH", path));
    assert!(said.contains("\nOK") && !said.contains("Ran 0 tests"), "{said}");
    said
}

/// PyTorch 2.4 is the oldest that the package works with, beside NumPy 1: its module is imported there, stores and samples are tensors, and
/// teachers teach.
#[test]
fn the_package_works_beside_the_oldest_pytorch() {
    if !is_soak() {
        println!("skipped: the Python package beside PyTorch 2.4 (scripts/test --soak downloads 2 GB for it)");
        return;
    }
    let python = success(Command::new(root().join("benches/peer/install")).arg("oldest").stderr(Stdio::inherit()));
    let python = Path::new(python.trim());
    let version = success(Command::new(python).args(["-c", "import torch; print(torch.__version__)"]));
    assert!(version.starts_with("2.4."), "{version}");
    let folder = tempfile::tempdir().unwrap();
    let modules = ["test_data", "test_store", "test_teacher", "test_behaviour", "test_residency"];
    run_tests(python, &installed(python, folder.path()), folder.path(), &modules);
}

/// The program that `pip` puts into place says which PyTorch it needs; the one of another version would crash.
#[test]
fn without_its_pytorch_the_program_says_what_to_install() {
    let package = root().join("python");
    // In a clone, a program in PATH would be started.
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    let others = std::env::split_paths(&on_path).filter(|folder| !folder.join("kdgat").exists());
    let on_path = std::env::join_paths(others).unwrap();
    for (version, expected) in [(None, "has none"), (Some("2.4.1"), "has 2.4.1")] {
        let folder = tempfile::tempdir().unwrap();
        if let Some(version) = version {
            for path in ["torch/__init__.py".to_owned(), format!("torch-{version}.dist-info/METADATA")] {
                let path = folder.path().join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, format!("Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")).unwrap();
            }
        }
        let path = std::env::join_paths([package.clone(), folder.path().to_owned()]).unwrap();
        // Without the packages of this machine.
        let output = Command::new("python3")
            .args(["-S", "-m", "kdgat"])
            .env("PATH", &on_path)
            .env("PYTHONPATH", path)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(expected) && said.contains("pip install 'torch==2.11.*'"), "{said}");
        assert_eq!(output.status.code(), Some(2), "{said}");
    }
}
