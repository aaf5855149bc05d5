//! Bad input: any frames and any saved calibrations give defined results, and nothing outside the state is touched. Replays inputs that
//! fuzzing found to reach new code (tests/corpus), and frames with extreme values; see fuzz.c. `scripts/car-check` fuzzes.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{can_compile, export, gat, random_state, rich, vgae};
use kdgat_car::Precision;
use kdgat_graph::CarProfile;
use kdgat_nn::InputConfig;

const EXTREME_TIMES: [f64; 10] =
    [0.0, -1.0, 1e-300, 1e9, -1e300, 1.7e308, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e-9];

/// Inputs of frames with extreme times, IDs and lengths.
fn extreme_inputs(folder: &Path) -> Vec<PathBuf> {
    let ids = [0, 0x7ff, 0x800, 0x1fff_ffff, 0x2000_0000, u32::MAX];
    let mut paths = Vec::new();
    for variant in 0..12_usize {
        let mut bytes = vec![0_u8];
        for at in 0..103_usize {
            let time = match variant {
                0 => EXTREME_TIMES[at % EXTREME_TIMES.len()],
                1 => -(at as f64),
                2..6 => EXTREME_TIMES[variant + 3],
                _ => 1e-3 * at as f64 * 10_f64.powi(variant as i32),
            };
            let id = match variant % 3 {
                0 => ids[at % ids.len()],
                1 => 0x100,
                _ => (at * 0x0101_0101) as u32,
            };
            bytes.extend(time.to_le_bytes());
            bytes.extend(id.to_le_bytes());
            bytes.push([0, 1, 8, 9, 64, 255][(at * variant) % 6]);
            bytes.extend([(at * at) as u8; 8]);
        }
        paths.push(folder.join(format!("extreme-{variant}")));
        std::fs::write(&paths[variant], bytes).unwrap();
    }
    paths
}

/// Compiles fuzz.c with an export, with the sanitizers if the compiler has them.
fn compiled(folder: &Path) -> PathBuf {
    let program = folder.join("fuzz");
    let compile = |sanitizers: &[&str]| {
        let sources = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        Command::new("cc")
            .args(["-std=c99", "-O1", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror", "-DKDGAT_FUZZ_MAIN"])
            .args(["-DKDGAT_HISTORY_IDS=16u", "-DKDGAT_CALIBRATION_WINDOWS=40u", "-DKDGAT_CALIBRATION_IDS=8u", "-I"])
            .arg(folder)
            .args(sanitizers)
            .args(sources.filter(|path| path.extension().is_some_and(|extension| extension == "c")))
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz.c"))
            .arg("-o")
            .arg(&program)
            .arg("-lm")
            .output()
            .unwrap()
    };
    if !compile(&["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]).status.success() {
        println!("without sanitizers: `cc` does not have them");
        let output = compile(&[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    program
}

#[test]
fn bad_input_gives_defined_results() {
    if !can_compile() {
        return;
    }
    let corpus = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")).unwrap();
    let corpus: Vec<PathBuf> = corpus.map(|entry| entry.unwrap().path()).collect();
    assert!(!corpus.is_empty());
    let profile = InputConfig { profile: Some(CarProfile::default()), ..InputConfig::default() };
    for (name, architecture, precision) in [
        ("gat", gat(false, InputConfig::default(), 2), Precision::Int8),
        ("gatv2, rich", gat(true, rich(), 2), Precision::F32),
        ("vgae, rich", vgae(false, rich(), &[16, 8]), Precision::F32),
        ("gat, profile", gat(true, profile.clone(), 1), Precision::F32),
        ("vgae, profile", vgae(false, profile, &[16, 8]), Precision::Int8),
    ] {
        let state = random_state(&architecture);
        let (folder, _) = export(name, architecture, &state, precision, common::WINDOW);
        let program = compiled(folder.path());
        let output = Command::new(program).args(extreme_inputs(folder.path())).args(&corpus).output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
