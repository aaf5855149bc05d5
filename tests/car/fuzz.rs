//! Bad input: any frames and any saved calibrations give defined results, and nothing outside the state is touched. Replays inputs that
//! fuzzing found to reach new code (tests/car/corpus), and frames with extreme values; see fuzz.c. `scripts/car-check --only fuzz` fuzzes the
//! same models.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::compiler::{self, can_compile};
use crate::models::{description, random_state, rich, scaling, vocabulary, write_export};
use kdgat_car::Precision;
use kdgat_graph::ForeignIds;
use kdgat_graph::profile::{ByteProfile, CarProfile, IdProfile, Partner, Place, Relation, SignalRange};
use kdgat_nn::{Architecture, GatConfig, IdHash, InputConfig, VgaeConfig};

const EXTREME_TIMES: [f64; 10] =
    [0.0, -1.0, 1e-300, 1e9, -1e300, 1.7e308, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e-9];

/// A detector so small that a fuzzer tries hundreds of inputs a second.
struct FuzzModel {
    name: &'static str,
    architecture: Architecture,
    precision: Precision,
    window: usize,
    stride: usize,
    /// True if unknown IDs are evidence of an attack.
    has_list: bool,
}

/// A model for each kind of code: two architectures, all sets of features, both precisions, windows that overlap, meet and leave frames out.
fn models() -> Vec<FuzzModel> {
    let hashed = InputConfig { id_hash: Some(IdHash { probes: 2, buckets: 5 }), ..rich() };
    let model = |name, architecture, precision, stride| FuzzModel {
        name,
        architecture,
        precision,
        window: 8,
        stride,
        has_list: false,
    };
    vec![
        model("gat-profile", gat(false, with_profile()), Precision::F32, 5),
        model("vgae-profile", vgae(false, with_profile()), Precision::Int8, 11),
        FuzzModel { has_list: true, ..model("gatv2-window", gat(true, InputConfig::default()), Precision::Int8, 8) },
        model("vgae-rich", vgae(true, hashed), Precision::F32, 3),
    ]
}

/// Nine columns: a tile of the C code's loops and the rest of one.
fn gat(edges: bool, input: InputConfig) -> Architecture {
    Architecture::Gat(GatConfig {
        hidden: 9,
        layers: 2,
        heads: 2,
        embedding: 2,
        fc_layers: 2,
        vocabulary_size: vocabulary().len() as i64,
        dropout: 0.1,
        edge_scaling: edges.then(scaling),
        input,
    })
}

fn vgae(edges: bool, input: InputConfig) -> Architecture {
    Architecture::Vgae(VgaeConfig {
        hidden: vec![9],
        latent: 4,
        heads: 1,
        embedding: 2,
        vocabulary_size: vocabulary().len() as i64,
        dropout: 0.1,
        edge_scaling: edges.then(scaling),
        input,
    })
}

/// A profile of eight IDs, of which one is rare, one irregular and one never had a gap, with relations between their first bytes.
fn with_profile() -> InputConfig {
    let id = |index: u32| {
        let gap = 0.001 * (1 + index) as f32;
        let (gaps, low, high) = match index {
            5 => (7, 0.9, 1.1),
            6 => (400, 0.1, 9.0),
            7 => (0, 0.0, 0.0),
            _ => (400, 0.9, 1.1),
        };
        let byte = |byte: u32| ByteProfile {
            seen: [u64::MAX, u64::from(byte % 2) * u64::MAX, 0, 1 << byte],
            change_high: (byte * index) as u8,
            change_most: (2 * byte * index) as u8,
            repeats: !byte.is_multiple_of(3),
        };
        IdProfile {
            can_id: 0x100 + 3 * index,
            frames: gaps + 1,
            gaps,
            gap_low_seconds: low * gap,
            gap_median_seconds: if gaps > 0 { gap } else { 0.0 },
            gap_mean_seconds: if gaps > 0 { gap } else { 0.0 },
            gap_high_seconds: high * gap,
            watched_seconds: if gaps > 0 { gap * gaps as f32 } else { 0.0 },
            longest_silence_seconds: 2.0 * high * gap,
            repeats: 0.1 * index as f32,
            returns: 0.01 * index as f32,
            changed_bytes: index as f32,
            longest_standstill: 20 * index as u8,
            lengths: 1 << 8,
            bytes: (0..8).map(byte).collect(),
        }
    };
    let [byte, word] = [Place { high: None, low: 0 }, Place { high: Some(1), low: 2 }];
    let place = |index: u32| if index.is_multiple_of(2) { byte } else { word };
    let range = |place: Place| SignalRange { least: 0.0, most: if place == byte { 120.0 } else { 40_000.0 } };
    let partner = |index: u32, slope: f32| Partner {
        can_id: 0x100 + 3 * (index % 8),
        place: place(index),
        range: range(place(index)),
        slope,
        offset: 1.5,
        error: 2.0,
    };
    let relations = (0..6).map(|index| Relation {
        can_id: 0x100 + 3 * index,
        place: place(index),
        range: range(place(index)),
        usual: 1.0 + index as f32,
        partners: vec![partner(index + 1, if index % 2 == 0 { 1.0 / 256.0 } else { 256.0 }), partner(index + 2, 1.0)],
    });
    let profile = CarProfile::new((0..8).map(id).collect(), relations.collect());
    InputConfig { profile: Some(profile), ..InputConfig::default() }
}

/// Exports a model into a new folder in `parent`.
fn export(model: FuzzModel, parent: &Path) -> PathBuf {
    let folder = parent.join(model.name);
    let state = random_state(&model.architecture);
    let mut described = description(model.architecture);
    described.window = model.window;
    described.foreign_ids = model.has_list.then_some(ForeignIds { of_attacks: 0.5, of_normals: 0.001 });
    write_export(&folder, model.name, (&described, &state), None, model.precision, model.stride);
    folder
}

/// Inputs of frames with extreme times, IDs and lengths.
fn extreme_inputs(folder: &Path) -> Vec<PathBuf> {
    let ids = [0, 0x7ff, 0x800, 0x1fff_ffff, 0x2000_0000, u32::MAX];
    let mut paths = Vec::new();
    for variant in 0..12_usize {
        // Flags: names IDs and calibrates.
        let mut bytes = vec![6_u8];
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
            // Time, ID, payload and length as they follow.
            bytes.push(0x7f);
            bytes.extend(time.to_le_bytes());
            bytes.extend(id.to_le_bytes());
            bytes.extend([(at * at) as u8; 8]);
            bytes.push([0, 1, 8, 9, 64, 255][(at * variant) % 6]);
        }
        paths.push(folder.join(format!("extreme-{variant}")));
        std::fs::write(&paths[variant], bytes).unwrap();
    }
    paths
}

/// Compiles fuzz.c with an export, with the sanitizers if the compiler has them.
fn compiled(folder: &Path) -> PathBuf {
    let main = [Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/car/fuzz.c")];
    let sizes = ["-DKDGAT_HISTORY_IDS=16u", "-DKDGAT_CALIBRATION_WINDOWS=40u", "-DKDGAT_CALIBRATION_IDS=8u"];
    let options = [&["-O1", "-DKDGAT_FUZZ_MAIN"], &sizes[..]].concat();
    let sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    compiler::compile(folder, &main, "fuzz", &[&options[..], &sanitizers].concat()).unwrap_or_else(|_| {
        println!("without sanitizers: `cc` does not have them");
        compiler::compiled(folder, &main, "fuzz", &options)
    })
}

#[test]
fn bad_input_gives_defined_results() {
    if !can_compile() {
        return;
    }
    let corpus = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/car/corpus")).unwrap();
    let corpus: Vec<PathBuf> = corpus.map(|entry| entry.unwrap().path()).collect();
    assert!(!corpus.is_empty());
    let parent = tempfile::tempdir().unwrap();
    for model in models() {
        let name = model.name;
        let folder = export(model, parent.path());
        let output = Command::new(compiled(&folder)).args(extreme_inputs(&folder)).args(&corpus).output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Writes the models for `scripts/car-check --only fuzz` to the folder that KDGAT_FUZZ_MODELS names.
#[test]
#[ignore = "only writes files"]
fn write_models() {
    let parent = std::env::var_os("KDGAT_FUZZ_MODELS").expect("KDGAT_FUZZ_MODELS is not set");
    for model in models() {
        export(model, Path::new(&parent));
    }
}
