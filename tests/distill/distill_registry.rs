//! Registered teachers: written completely or not at all, verified by digest; and PyTorch files as teachers.

use std::path::Path;

use kdgat::can::{Dataset, SimulationOptions, simulate};
use kdgat::distill::Weights;
use kdgat::distill::registry::{FORMAT_VERSION, Registered, Registry, RegistryError, TeacherConfig, TrainedOn};
use kdgat::graph::{BuildOptions, open_or_build};
use serde_json::{Map, json};
use support::distill::Perceptron;
use support::parity::parity_file;

fn config() -> TeacherConfig {
    let Ok(serde_json::Value::Object(architecture)) = Ok::<_, ()>(json!({"hidden": [32, 24, 16], "latent": 4})) else {
        unreachable!()
    };
    TeacherConfig {
        format_version: FORMAT_VERSION,
        model: "vgae".to_string(),
        architecture,
        vocabulary: vec![0x100, 0x7ff],
        foreign_ids: None,
        weights_digest: String::new(),
        dataset: TrainedOn { name: "hcrl_ch".to_string(), digest: "d1".to_string() },
        metrics: Map::from_iter([("validation_loss".to_string(), json!(0.25))]),
        created_by_version: "0.1.0".to_string(),
    }
}

fn weights(seed: u64) -> Weights {
    Perceptron::classifier().weights(seed)
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// If only the way of computing the digest has changed, write the new one into `config.json` and `card.md` of the teacher.
#[test]
fn the_shipped_teacher_belongs_to_the_simulated_dataset() {
    let teachers = Path::new(env!("CARGO_MANIFEST_DIR")).join("teachers");
    let teacher = Registry::new(&teachers).find("sim", "vgae").unwrap().config;
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("sim");
    simulate(&SimulationOptions::default(), &root).unwrap();
    let (options, stores) = (BuildOptions::default(), folder.path().join("stores"));
    let store = open_or_build(&Dataset::open(&root).unwrap(), &options, &stores, &()).unwrap();
    assert_eq!(teacher.dataset.digest, store.digest());
    let metric = |name: &str| &teacher.metrics[name];
    assert_eq!([metric("window"), metric("stride")], [&json!(options.window), &json!(options.stride)]);
    assert_eq!(metric("validation_fraction"), &json!(options.validation_fraction));
    assert_eq!(metric("validation"), &json!(options.validation.name()));
}

#[test]
fn a_teacher_is_registered_whole_found_and_verified() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::new(&folder.path().join("teachers"));
    assert!(registry.list().unwrap().is_empty());
    let registered = registry.register(&config(), &weights(1), false).unwrap();
    assert_eq!(names(&folder.path().join("teachers/hcrl_ch")), [".lock", "vgae"]);
    assert_eq!(names(&folder.path().join("teachers/hcrl_ch/vgae")), ["card.md", "config.json", "weights.safetensors"]);
    let found = registry.find("hcrl_ch", "vgae").unwrap();
    assert_eq!(found, registered);
    assert_eq!(found.config.weights_digest, weights(1).digest());
    let loaded = found.load().unwrap();
    assert_eq!(loaded.digest(), weights(1).digest());
    assert_eq!(loaded.source(), Some(found.weights_path.as_path()));
    let card = found.card().unwrap();
    for text in
        ["VGAE teacher for hcrl_ch", "validation_loss | 0.25", "latent | 4", found.config.weights_digest.as_str()]
    {
        assert!(card.contains(text), "{text} in {card}");
    }
    found.verify(&[("layers.0.weight".to_string(), vec![32, 10])]).unwrap();
    let shape = found.verify(&[("layers.0.weight".to_string(), vec![64, 10])]).unwrap_err().to_string();
    assert!(shape.contains("layers.0.weight") && shape.contains("[32, 10]") && shape.contains("[64, 10]"), "{shape}");
    let missing = found.verify(&[("mu.weight".to_string(), vec![1])]).unwrap_err().to_string();
    assert!(missing.contains("'mu.weight' is missing"), "{missing}");
}

#[test]
fn another_teacher_takes_the_place_only_when_told_to() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::new(folder.path());
    registry.register(&config(), &weights(1), false).unwrap();
    registry.register(&config(), &weights(1), false).unwrap();
    let refused = registry.register(&config(), &weights(2), false).unwrap_err().to_string();
    assert!(refused.contains("--replace"), "{refused}");
    assert_eq!(registry.find("hcrl_ch", "vgae").unwrap().load().unwrap().digest(), weights(1).digest());
    registry.register(&config(), &weights(2), true).unwrap();
    assert_eq!(registry.find("hcrl_ch", "vgae").unwrap().load().unwrap().digest(), weights(2).digest());
    assert_eq!(names(&folder.path().join("hcrl_ch")), [".lock", "vgae"], "nothing is left behind");
    // Interrupted between the two renames of a replacement: the previous teacher is still available.
    std::fs::rename(folder.path().join("hcrl_ch/vgae"), folder.path().join("hcrl_ch/.vgae.17.previous")).unwrap();
    assert_eq!(registry.find("hcrl_ch", "vgae").unwrap().load().unwrap().digest(), weights(2).digest());
}

/// Starts `work` in a thread and gives it a moment in which it must not finish.
fn waiting<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> std::thread::JoinHandle<T> {
    let thread = std::thread::spawn(work);
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(!thread.is_finished(), "it did not wait");
    thread
}

#[test]
fn who_reads_or_registers_waits_for_another_replacement() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::new(folder.path());
    let place = folder.path().join("hcrl_ch");
    registry.register(&config(), &weights(1), false).unwrap();
    let other = Registry::new(&folder.path().join("other"));
    other.register(&config(), &weights(2), false).unwrap();
    // Simulates another process between its two renames.
    let lock = std::fs::File::open(place.join(".lock")).unwrap();
    lock.lock().unwrap();
    std::fs::rename(place.join("vgae"), place.join(".vgae.17.previous")).unwrap();
    let (reading, registering) = (registry.clone(), registry.clone());
    let reader = waiting(move || reading.find("hcrl_ch", "vgae").map(|_| ()));
    let writer = waiting(move || registering.register(&config(), &weights(3), true).map(|_| ()));
    std::fs::rename(folder.path().join("other/hcrl_ch/vgae"), place.join("vgae")).expect("the place was taken");
    std::fs::remove_dir_all(place.join(".vgae.17.previous")).unwrap();
    drop(lock);
    reader.join().unwrap().unwrap();
    writer.join().unwrap().unwrap();
    assert_eq!(registry.find("hcrl_ch", "vgae").unwrap().load().unwrap().digest(), weights(3).digest());
    assert_eq!(names(&place), [".lock", "vgae"]);
}

#[test]
fn what_killed_processes_left_is_no_hindrance() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::new(folder.path());
    let place = folder.path().join("hcrl_ch");
    registry.register(&config(), &weights(1), false).unwrap();
    let own = place.join(format!(".vgae.{}.previous", std::process::id()));
    for left in [&own, &place.join(".vgae.17.previous")] {
        std::fs::create_dir(left).unwrap();
        std::fs::write(left.join("config.json"), "{}").unwrap();
    }
    registry.register(&config(), &weights(2), true).unwrap();
    assert_eq!(names(&place), [".lock", "vgae"]);
    // If neither the lock can be written nor a folder renamed, the previous teacher is read where it is.
    std::fs::rename(place.join("vgae"), place.join(".vgae.17.previous")).unwrap();
    std::fs::remove_file(place.join(".lock")).unwrap();
    std::fs::create_dir(place.join(".lock")).unwrap();
    assert_eq!(registry.find("hcrl_ch", "vgae").unwrap().load().unwrap().digest(), weights(2).digest());
    assert_eq!(names(&place), [".lock", ".vgae.17.previous"]);
}

#[test]
fn only_old_folders_of_killed_processes_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::new(folder.path());
    let place = folder.path().join("hcrl_ch");
    let days_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(2 * 86_400);
    let age = |path: &Path| std::fs::File::open(path).unwrap().set_modified(days_ago).unwrap();
    for left in [".vgae.17.partial", ".vgae.AbCdEf.partial", ".vgae.live.partial", ".gat.17.partial"] {
        let left = place.join(left);
        std::fs::create_dir_all(&left).unwrap();
        std::fs::write(left.join("weights.safetensors"), "half").unwrap();
        // Another host without a shared lock may be writing into one of them.
        if !left.ends_with(".vgae.live.partial") {
            age(&left.join("weights.safetensors"));
        }
        age(&left);
    }
    registry.register(&config(), &weights(1), false).unwrap();
    assert_eq!(names(&place), [".gat.17.partial", ".lock", ".vgae.live.partial", "vgae"]);
}

#[test]
fn no_teacher_says_how_to_train_one() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::new(folder.path());
    let error = registry.find("hcrl_ch", "vgae").unwrap_err().to_string();
    assert!(error.contains("kdgat autoencoder --preset vgae,teacher --data"), "{error}");
    // An unknown name, for the simulated dataset, which has no path.
    let error = registry.find(kdgat::can::catalogue::SIMULATED, "vgea").unwrap_err().to_string();
    assert!(error.ends_with("train one with: kdgat autoencoder --preset vgae,teacher"), "{error}");
    let error = registry.find("my car", "GAT").unwrap_err().to_string();
    assert!(error.ends_with("kdgat curriculum --preset gat,teacher --data 'PATH_OF_MY CAR'"), "{error}");
    registry.register(&config(), &weights(1), false).unwrap();
    let error = registry.find("hcrl_sa", "vgae").unwrap_err().to_string();
    assert!(error.contains("the nearest one is hcrl_ch/vgae"), "{error}");
    for bad in ["", "../up", ".hidden", "a/b"] {
        assert!(matches!(registry.find(bad, "vgae").unwrap_err(), RegistryError::BadName { .. }), "{bad}");
    }
}

#[test]
fn damaged_teachers_are_listed_with_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::new(folder.path());
    let teacher = registry.register(&config(), &weights(1), false).unwrap();
    weights(2).write_safetensors(&teacher.weights_path).unwrap();
    let error = registry.find("hcrl_ch", "vgae").unwrap().load().unwrap_err().to_string();
    assert!(error.contains(weights(2).digest()) && error.contains(weights(1).digest()), "{error}");
    std::fs::write(&teacher.weights_path, b"cut").unwrap();
    let error = registry.find("hcrl_ch", "vgae").unwrap().load().unwrap_err().to_string();
    assert!(error.contains("weights.safetensors"), "{error}");
    let config_path = teacher.weights_path.with_file_name("config.json");
    let text = std::fs::read_to_string(&config_path).unwrap();
    std::fs::write(&config_path, text.replace("\"format_version\": 1", "\"format_version\": 7")).unwrap();
    let listed = registry.list().unwrap();
    let error = listed[0].teacher.as_ref().unwrap_err().to_string();
    assert!(error.contains("format_version is 7, this program reads 1"), "{error}");
    std::fs::remove_file(&config_path).unwrap();
    let error = registry.find("hcrl_ch", "vgae").unwrap_err().to_string();
    assert!(error.contains("config.json") && error.contains("vocabulary"), "{error}");
}

#[test]
fn files_of_pytorch_and_lightning_hold_the_same_weights_as_safetensors() {
    for (model, files) in [
        ("vgae_student", ["vgae_student_state.pt", "vgae_student_lightning.ckpt"].as_slice()),
        ("gat_student", &["gat_student_state.pt"]),
    ] {
        let expected = Weights::read(&parity_file(&format!("{model}_state.safetensors"))).unwrap();
        for file in files {
            let found = Weights::read(&parity_file(file)).unwrap();
            let list =
                |weights: &Weights| weights.iter().map(|(name, t)| (name.to_string(), t.size())).collect::<Vec<_>>();
            assert_eq!(list(&found), list(&expected), "{file}");
            assert_eq!(found.digest(), expected.digest(), "{file}");
        }
    }
}

#[test]
fn a_file_of_pytorch_is_a_teacher_when_config_json_lies_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let weights = folder.path().join("epoch=3.ckpt");
    std::fs::copy(parity_file("vgae_student_lightning.ckpt"), &weights).unwrap();
    assert!(matches!(Registered::open(&weights).unwrap_err(), RegistryError::NoConfig { .. }));
    let json = r#"{"format_version": 1, "model": "vgae", "architecture": {"latent": 16}, "vocabulary": [1, 2]}"#;
    std::fs::write(folder.path().join("config.json"), json).unwrap();
    let teacher = Registered::open(&weights).unwrap();
    let loaded = teacher.verify(&[("z_mean.weight".to_string(), vec![16, 40])]).unwrap();
    // It can be registered from there, and is stored as safetensors.
    let registry = Registry::new(&folder.path().join("teachers"));
    let config =
        TeacherConfig { dataset: TrainedOn { name: "set".to_string(), digest: String::new() }, ..teacher.config };
    let registered = registry.register(&config, &loaded, false).unwrap();
    assert_eq!(registered.load().unwrap().digest(), loaded.digest());
}

#[test]
fn what_is_no_file_of_weights_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let text = |name: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, b"not weights").unwrap();
        let error = Weights::read(&path).unwrap_err();
        format!("{error}: {}", std::error::Error::source(&error).map_or(String::new(), ToString::to_string))
    };
    assert!(text("old.pt").contains("old.pt") && text("old.pt").contains("not a zip archive"), "{}", text("old.pt"));
    assert!(text("x.onnx").contains(".safetensors, .pt, .pth, .bin or .ckpt"));
    assert!(text("x.safetensors").contains("x.safetensors"));
}
