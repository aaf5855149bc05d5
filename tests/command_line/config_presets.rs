//! Every preset loads, and the values that papers and users rely on are pinned.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use kdgat::config::{self, BUILT_IN_PRESETS, Config, ModelKind, MonitorChoice, Sources};

fn load_in(folder: &Path, presets: &str) -> Result<Config, String> {
    let presets = presets.split(',').map(str::to_string).collect();
    let sources = Sources { presets, working_folder: folder.to_path_buf(), ..Sources::default() };
    config::load(&sources).map(|loaded| loaded.config).map_err(|error| error.to_string())
}

/// Loads presets outside the repository, so that those of the binary are used.
fn load(presets: &str) -> Config {
    let folder = tempfile::tempdir().unwrap();
    load_in(folder.path(), presets).unwrap_or_else(|error| panic!("--preset {presets}: {error}"))
}

fn preset_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("presets")
}

#[test]
fn the_binary_carries_every_preset_of_the_folder() {
    let files: BTreeSet<String> = fs::read_dir(preset_folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    let built_in: BTreeSet<String> = BUILT_IN_PRESETS.iter().map(|(name, _)| name.to_string()).collect();
    assert_eq!(files, built_in, "presets/ (left) and BUILT_IN of crates/kdgat-config/src/presets.rs (right) differ");
    for (name, text) in BUILT_IN_PRESETS {
        assert_eq!(fs::read_to_string(preset_folder().join(format!("{name}.toml"))).unwrap(), *text, "{name}");
    }
}

#[test]
fn every_preset_and_size_loads_and_is_sound() {
    for (name, text) in BUILT_IN_PRESETS {
        let table: toml::Table = text.parse().unwrap();
        let sizes = table.get("size").and_then(toml::Value::as_table);
        for size in sizes.iter().flat_map(|sizes| sizes.keys()) {
            let config = load(&format!("{name},{size}"));
            config::check(&config).unwrap_or_else(|error| panic!("--preset {name},{size}: {error}"));
            assert_eq!(&config.model.size, size, "[size.{size}] of presets/{name}.toml sets another size");
            assert_eq!(config.model.model.as_str(), *name);
        }
        if sizes.is_none() {
            for base in ["vgae,student", "gat,teacher"] {
                config::check(&load(&format!("{base},{name}"))).unwrap();
            }
        }
    }
}

/// An overlay may change one size of a model; the names must be right.
#[test]
fn an_overlay_changes_a_size() {
    let depth = |presets: &str| {
        let model = load(presets).model;
        (model.layers, model.fc_layers, model.dropout)
    };
    assert_eq!(depth("gat,teacher,profile"), (2, 3, 0.1));
    assert_eq!(depth("gat,teacher"), (2, 3, 0.1));
    assert_eq!(depth("gat,student,profile"), depth("gat,student"));
    let learning_rate = |presets: &str| load(presets).training.lr;
    assert_eq!([learning_rate("gat,teacher,profile"), learning_rate("gat,student,profile")], [0.003, 0.003]);
    assert_eq!([learning_rate("dqn,teacher,profile"), learning_rate("dqn,student,profile")], [0.001, 0.001]);
    assert_eq!(learning_rate("dqn,profile,teacher"), 0.003, "left to right: the size comes later");
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("presets")).unwrap();
    let file = folder.path().join("presets/deep.toml");
    fs::write(&file, "lr = 0.01\n\n[size-of-gat.tutor]\nlayers = 5\n").unwrap();
    let error = load_in(folder.path(), "gat,teacher,deep").unwrap_err();
    assert!(error.contains("presets/deep.toml:4") && error.contains("no preset gat has a size tutor"), "{error}");
    fs::write(&file, "[size-of-gat.teacher]\nlayers = 5\n").unwrap();
    assert_eq!(load_in(folder.path(), "gat,teacher,deep").unwrap().model.layers, 5);
}

#[test]
fn vgae_presets() {
    for (size, hidden, latent, heads, embedding, dropout) in [
        ("teacher", vec![480, 240, 48], 48, 4, 32, 0.15),
        ("student", vec![80, 40, 16], 16, 1, 4, 0.1),
        ("teacher-xl", vec![1024, 512, 96], 96, 4, 64, 0.15),
    ] {
        let config = load(&format!("vgae,{size}"));
        assert_eq!(config.model.model, ModelKind::Vgae);
        assert_eq!(config.model.hidden, hidden, "{size}");
        assert_eq!(
            (config.model.latent, config.model.heads, config.model.embedding, config.model.dropout),
            (latent, heads, embedding, dropout),
            "{size}"
        );
        assert_eq!((config.training.lr, config.training.max_epochs, config.training.patience), (0.002, 300, 100));
        assert_eq!(config.distillation.use_kd, size == "student");
    }
    let weights = |presets: &str| {
        let distillation = load(presets).distillation;
        [distillation.kd_vgae_latent_weight, distillation.kd_vgae_recon_weight]
    };
    assert_eq!(["vgae,student", "vgae,student,profile"].map(weights), [[0.0, 1.0]; 2]);
    assert_eq!(load("vgae,teacher").memory.safety_factor, 0.5);
    assert_eq!(load("vgae,student").memory.safety_factor, 0.6);
}

#[test]
fn gat_presets() {
    for (size, hidden, layers, heads, embedding, fc_layers, dropout, lr, patience) in
        [("teacher", 48, 2, 8, 16, 3, 0.1, 0.003, 100), ("student", 24, 2, 4, 8, 3, 0.1, 0.001, 50)]
    {
        let config = load(&format!("gat,{size}"));
        assert_eq!(config.model.model, ModelKind::Gat);
        assert_eq!(config.model.hidden, vec![hidden], "{size}");
        assert_eq!(
            (config.model.layers, config.model.heads, config.model.embedding, config.model.fc_layers),
            (layers, heads, embedding, fc_layers),
            "{size}"
        );
        assert_eq!((config.model.dropout, config.training.lr, config.training.patience), (dropout, lr, patience));
        assert_eq!(config.training.max_epochs, 50, "{size}");
        assert_eq!(config.distillation.use_kd, size == "student");
    }
}

/// A size has other values for a dataset of graphs, and for one large graph, than for CAN windows.
#[test]
fn a_size_follows_the_data() {
    let folder = tempfile::tempdir().unwrap();
    let file = |path: &str, text: &str| {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    file("shapes/SHAPES_graph_indicator.txt", "1\n");
    file("net/kdgat-graphs.toml", "task = \"node-class\"\n");
    file("can/train_01/normal.csv", "");
    let training = |model: &str, size: &str, data: &str| {
        let sources = Sources {
            presets: vec![model.into(), size.into()],
            working_folder: folder.path().to_owned(),
            flags: vec![("data".into(), data.into())],
            ..Sources::default()
        };
        let training = config::load(&sources).unwrap().config.training;
        (training.monitor, training.max_epochs, training.patience, training.lr)
    };
    for model in ["gin", "gcn", "sage", "gat", "mlp"] {
        for (size, lr) in [("teacher", 0.001), ("student", 0.002)] {
            let lr = if model == "gat" { 0.001 } else { lr };
            if (model, size) != ("mlp", "teacher") {
                assert_eq!(training(model, size, "shapes"), (MonitorChoice::Metric, 200, 100, lr), "{model},{size}");
            }
            if !["gin", "mlp"].contains(&model) {
                assert_eq!(training(model, size, "net"), (MonitorChoice::Metric, 200, 50, 0.01), "{model},{size}");
            }
        }
    }
    assert_eq!(training("gat", "student", "can"), (MonitorChoice::Loss, 50, 50, 0.001));
    assert_eq!(training("gat", "teacher", "nowhere"), (MonitorChoice::Loss, 50, 100, 0.003));
}

#[test]
fn overlays_come_after_the_model() {
    let config = load("vgae,student,quick");
    assert_eq!((config.training.max_epochs, config.training.patience), (20, 10));
    assert_eq!(config.model.hidden, vec![80, 40, 16]);
    assert_eq!(load("quick,vgae,student").training.max_epochs, 300, "merged left to right");
}

#[test]
fn a_preset_of_the_working_directory_wins_and_may_be_new() {
    let folder = tempfile::tempdir().unwrap();
    let presets = folder.path().join("presets");
    fs::create_dir_all(presets.join("sweeps")).unwrap();
    fs::write(presets.join("quick.toml"), "max_epochs = 2\n").unwrap();
    fs::write(presets.join("van.toml"), "[data]\nwindow = 50\n").unwrap();
    fs::write(
        presets.join("sage.toml"),
        "[model]\nmodel = \"vgae\"\n[size.tiny]\nsize = \"tiny\"\n[size.tiny.model]\nhidden = [8]\n",
    )
    .unwrap();
    assert_eq!(load_in(folder.path(), "vgae,student,quick,van").unwrap().training.max_epochs, 2);
    assert_eq!(load_in(folder.path(), "vgae,student,quick,van").unwrap().data.window, 50);
    assert_eq!(load_in(folder.path(), "sage,tiny").unwrap().model.hidden, vec![8]);
}

#[test]
fn wrong_presets_are_named_with_the_way_out() {
    let folder = tempfile::tempdir().unwrap();
    let error = |presets: &str| load_in(folder.path(), presets).unwrap_err();
    assert_eq!(error("student"), "--preset: `student` is a size; name its model first: --preset vgae,student");
    assert!(
        error("vgea,student").contains("unknown preset `vgea`; the nearest is `vgae`"),
        "{}",
        error("vgea,student")
    );
    assert!(error("vgae,studnet").contains("the nearest is `student`"));
    assert!(error("gat,teacher-xl").contains("gat has no size `teacher-xl`; the nearest is `teacher`"));
    assert!(error("vgae,teacher,student").contains("`student` and `teacher` are both sizes"));
    assert!(error("vgae,gat").contains("`gat` and `vgae` are both models"));

    fs::create_dir(folder.path().join("presets")).unwrap();
    fs::write(folder.path().join("presets/mine.toml"), "\nlearning_rte = 1\nlr = \"fast\"\n").unwrap();
    let message = error("vgae,mine");
    assert!(message.contains("preset mine (presets/mine.toml:2): unknown field `learning_rte`"), "{message}");
    assert!(
        message.contains("preset mine (presets/mine.toml:3): `fast` is not a valid value for lr; expected a number"),
        "{message}"
    );
}
