//! All errors of a configuration are reported together, with their places and the nearest valid names.

use std::fs;

use kdgat::config::{self, Config, Loaded, Sources, Stage};
use proptest::prelude::*;

fn load(toml: &str, variables: &[(&str, &str)], flags: &[(&str, &str)]) -> Result<Loaded, String> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("kdgat.toml"), toml).unwrap();
    let sources = Sources {
        working_folder: folder.path().to_path_buf(),
        variables: variables.iter().map(|(name, text)| (name.into(), text.into())).collect(),
        flags: flags.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect(),
        ..Sources::default()
    };
    config::load(&sources).map_err(|error| error.to_string())
}

fn error(toml: &str) -> String {
    load(toml, &[], &[]).unwrap_err()
}

#[test]
fn an_unknown_field_is_answered_with_the_nearest() {
    assert_eq!(error("a_b = 1\npatienc = 3\n").lines().count(), 3);
    assert_eq!(error("patienc = 3"), "kdgat.toml:1: unknown field `patienc`; the nearest is `patience`");
    assert_eq!(
        error("[training]\n\nmax_epoch = 3"),
        "kdgat.toml:3: unknown field `max_epoch`; the nearest is `max_epochs`"
    );
    assert_eq!(error("[trainig]\nlr = 1"), "kdgat.toml:1: unknown field `[trainig]`; the nearest is `[training]`");
    assert!(error("[training.lr]\nx = 1").contains("unknown field `training.lr`"));
    let variable = load("", &[("KDGAT_LR_STEP_EPOCH", "3")], &[]).unwrap_err();
    assert!(
        variable.starts_with("KDGAT_LR_STEP_EPOCH: no field has this variable; the nearest is KDGAT_LR_STEP_EPOCHS")
    );
}

#[test]
fn variables_of_others_are_left_alone() {
    let others = [
        ("KDGAT_CANDATA", "/data"),
        ("KDGAT_SHARED", "/somewhere"),
        ("KDGAT_LOG", "debug"),
        ("LR", "x"),
        ("kdgat_lr", "x"),
    ];
    load("", &others, &[]).unwrap();
}

#[test]
fn a_field_in_the_wrong_section_is_told_the_right_one() {
    assert_eq!(
        error("[model]\nlr = 0.1"),
        "kdgat.toml:2: `lr` belongs to the section [training], not to [model]; move it there or to the top of the file"
    );
}

#[test]
fn a_field_given_twice_is_refused() {
    let message = error("lr = 0.1\n[training]\nlr = 0.2");
    assert_eq!(message, "kdgat.toml:3: `lr` is set twice (first: kdgat.toml:1); remove one of them");
    assert!(error("offload_teacher = true\noffload_teacher_to_cpu = true").contains("is set twice"));
}

#[test]
fn a_bad_value_is_told_what_is_expected() {
    for (assignment, expected) in [
        ("lr = \"fast\"", "`fast` is not a valid value for lr; expected a number"),
        ("window = 10.5", "`10.5` is not a valid value for window; expected a whole number"),
        ("seed = -1", "`-1` is not a valid value for seed; expected a whole number"),
        ("use_kd = \"maybe\"", "`maybe` is not a valid value for use_kd; expected true or false"),
        (
            "hidden = [80, \"wide\"]",
            "`80,wide` is not a valid value for hidden; expected whole numbers separated by commas",
        ),
        ("hidden = []", "`` is not a valid value for hidden"),
        ("conv = \"gatv3\"", "expected one of gat, gatv2; the nearest is gatv2"),
        ("memory_limit = \"6 gigs\"", "expected a size such as 6GiB or 512MB, or none"),
        ("device = \"gpu\"", "expected auto, cpu, cuda or cuda:N"),
        ("threshold = \"fpr:2\"", "expected fpr:RATE"),
        ("size = \"../x\"", "expected a name of letters"),
        ("lr = nan", "`nan` is not a valid value for lr"),
    ] {
        let message = error(assignment);
        assert!(message.starts_with("kdgat.toml:1: ") && message.contains(expected), "{assignment}: {message}");
    }
}

#[test]
fn numbers_out_of_range_are_refused_where_they_are_written() {
    assert_eq!(error("\nlr = 0.0"), "kdgat.toml:2: lr = 0.0 is out of range: it must be above 0; set it with --lr");
    for assignment in ["window = 1", "dropout = 1.0", "kd_alpha = 1.5", "hidden = [3, 0]", "difficulty_percentile = 96"]
    {
        assert!(error(assignment).contains("is out of range"), "{assignment}");
    }
}

/// Sizes have upper limits, so that their products do not overflow.
#[test]
fn sizes_have_an_upper_end() {
    for name in
        ["stride", "latent", "heads", "embedding", "layers", "fc_layers", "accumulate_grad_batches", "batch_size"]
    {
        let said = load("", &[], &[(name, "18446744073709551615")]).unwrap_err();
        assert!(said.contains(&format!("{name} = 18446744073709551615 is out of range")), "{said}");
    }
    assert!(error("hidden = [80, 1000001]").contains("must be from 1 to 1000000"));
    load("stride = 4294967295", &[], &[]).unwrap();
}

#[test]
fn a_window_is_as_long_as_can_be_counted() {
    assert!(error("window = 65535").contains("must be from 2 to 65534; set it with --window"));
    load("window = 65534", &[], &[]).unwrap();
    assert_eq!(kdgat::graph::features::LONGEST_WINDOW, 65534);
}

/// `KDGAT_DATA` is a folder of datasets, or the folder of one dataset.
#[test]
fn the_folder_of_datasets_is_no_dataset() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = folder.path().join("car");
    fs::create_dir_all(dataset.join("train_01_attack_free")).unwrap();
    fs::write(dataset.join("train_01_attack_free/drive.csv"), "").unwrap();
    let data = |value: &std::path::Path, flags: &[(&str, &str)]| {
        load("", &[("KDGAT_DATA", value.to_str().unwrap())], flags).unwrap().config.data.data
    };
    assert_eq!(data(folder.path(), &[]), None);
    assert_eq!(data(folder.path(), &[("data", "car")]), Some("car".into()));
    assert_eq!(data(&dataset, &[]), Some(dataset.clone()));
    // A missing folder is reported when it is opened.
    assert_eq!(data(&folder.path().join("absent"), &[]), Some(folder.path().join("absent")));
}

#[test]
fn the_simulated_dataset_has_a_name() {
    assert_eq!(load("", &[], &[("data", "sim")]).unwrap().config.data.data, None);
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("sim")).unwrap();
    let here = Sources {
        working_folder: folder.path().to_path_buf(),
        flags: vec![("data".to_owned(), "sim".to_owned())],
        ..Sources::default()
    };
    assert_eq!(config::load(&here).unwrap().config.data.data, Some("sim".into()), "a folder of that name");
    let elsewhere = [("KDGAT_DATA", folder.path().to_str().unwrap())];
    assert_eq!(load("", &elsewhere, &[("data", "sim")]).unwrap().config.data.data, Some("sim".into()));
}

#[test]
fn all_problems_are_reported_together() {
    let message = load(
        "conv = \"x\"\npatience = 0\nfoo = 1\n",
        &[("KDGAT_LR", "-1"), ("KDGAT_NOPE", "1")],
        &[("heads", "none"), ("precision", "64")],
    )
    .unwrap_err();
    assert!(message.starts_with("7 problems in the configuration:\n  - "), "{message}");
    for place in ["kdgat.toml:1", "kdgat.toml:2", "kdgat.toml:3", "KDGAT_LR", "KDGAT_NOPE", "--heads", "--precision"] {
        assert!(message.contains(&format!("\n  - {place}: ")), "{place} is missing in\n{message}");
    }
}

#[test]
fn a_file_that_does_not_parse_is_named_with_its_line() {
    assert!(error("lr = 0.1\npatience = = 3\n").starts_with("kdgat.toml:2: "));
    let folder = tempfile::tempdir().unwrap();
    let load_file = |content: &str| {
        fs::write(folder.path().join("config.json"), content).unwrap();
        let config_file = Some("config.json".into());
        config::load(&Sources { working_folder: folder.path().into(), config_file, ..Sources::default() })
            .map_err(|error| error.to_string())
    };
    assert!(load_file("{\n\"lr\": 0.1,\n").unwrap_err().starts_with("config.json:3: "));
    let message = load_file("{\"config\": {\n \"training\": {\n  \"lrr\": 0.1}}}").unwrap_err();
    assert_eq!(message, "config.json:3: unknown field `lrr`; the nearest is `lr`");
    let message = load_file("{\"layout_version\": 99, \"config\": {}}").unwrap_err();
    assert!(message.contains("written by a newer kdgat"), "{message}");
    assert_eq!(load_file("{\"teacher_path\": null, \"hidden\": [1, 2]}").unwrap().config.model.hidden, vec![1, 2]);
}

#[test]
fn a_missing_file_is_named() {
    let sources = Sources { config_file: Some("/no/such.toml".into()), ..Sources::default() };
    assert_eq!(config::load(&sources).unwrap_err().to_string(), "cannot read /no/such.toml");
}

#[test]
fn contradictions_are_refused_together() {
    let mut config = Config::default();
    config.model.model = config::ModelKind::Gat;
    config.training.precision = config::Precision::Half;
    config.training.device = config::DeviceChoice::Cpu;
    config.training.lr = -1.0;
    config.distillation.offload_teacher = true;
    config.distillation.teacher_residency = Some(config::Residency::Resident);
    config.distillation.use_teacher_cache = false;
    config.distillation.teacher_cache = config::TeacherCache::Disk;
    let message = config::check(&config).unwrap_err().to_string();
    assert!(message.starts_with("5 problems"), "{message}");
    for flag in ["--lr", "--preset gat,student", "--precision", "--teacher-residency", "--teacher-cache off"] {
        assert!(message.contains(flag), "{flag} is not named in\n{message}");
    }
}

#[test]
fn steps_that_cannot_be_recorded_are_refused() {
    type Set = fn(&mut Config);
    let refused = |set: Set| {
        let mut config = Config::default();
        config.training.cuda_graphs = Some(true);
        set(&mut config);
        config::check(&config).err().map(|error| error.to_string())
    };
    assert_eq!(refused(|_| ()), None, "on a GPU, or wherever one may be found");
    assert_eq!(refused(|config| config.training.precision = config::Precision::BrainFloat), None);
    let cases: [(Set, &str); 4] = [
        (|config| config.training.device = config::DeviceChoice::Cpu, "device is cpu"),
        (|config| config.training.precision = config::Precision::Half, "--precision bf16-mixed or 32"),
        (|config| config.model.conv = config::Convolution::GatV2, "--conv gat"),
        (|config| config.data.features = config::FeatureChoice::Rich, "--features window"),
    ];
    for (set, expected) in cases {
        let message = refused(set).unwrap_or_default();
        assert!(message.contains("cuda_graphs") && message.contains(expected), "{expected}: {message}");
    }
}

#[test]
fn flags_that_a_stage_would_ignore_are_refused() {
    let vgae = ("model", "vgae");
    let gat = [("model", "gat"), ("hidden", "24")];
    let ignored = |flags: &[(&str, &str)], stage| {
        config::check_stage(&load("", &[], flags).unwrap(), stage).map_err(|error| error.to_string())
    };
    let autoencoder = |flag, text| ignored(&[vgae, (flag, text)], Stage::Autoencoder);
    assert_eq!(
        autoencoder("offload_teacher", "true").unwrap_err(),
        "--offload-teacher would be ignored: nothing is distilled while use_kd is false; add --use-kd or drop it"
    );
    autoencoder("offload_teacher", "false").unwrap();
    for (flag, text) in [("kd_loss", "mse"), ("fc_layers", "3"), ("lr_gamma", "0.1"), ("curriculum", "static")] {
        assert!(autoencoder(flag, text).unwrap_err().contains("would be ignored"), "{flag}");
    }
    let with_kd = |flag, text| ignored(&[("use_kd", "true"), (flag, text)], Stage::Autoencoder);
    with_kd("offload_teacher", "true").unwrap();
    with_kd("teacher_cache_dir", "x").unwrap();
    assert!(with_kd("kd_temperature", "2").unwrap_err().contains("--kd-temperature would be ignored"));
    assert!(with_kd("teacher_burst", "2").unwrap_err().contains("add --offload-teacher"));
    let curriculum = |flag, text| ignored(&[gat[0], gat[1], (flag, text)], Stage::Curriculum);
    curriculum("difficulty_percentile", "10").unwrap();
    assert!(curriculum("latent", "3").unwrap_err().contains("--latent would be ignored"));
    assert!(
        ignored(&[("curriculum", "random"), gat[0], gat[1], ("difficulty_chunk", "9")], Stage::Curriculum).is_err()
    );
    assert!(ignored(&[vgae], Stage::Classifier).unwrap_err().contains("use --preset gat,student"));
}

#[test]
fn what_a_file_sets_may_serve_another_stage() {
    let loaded = load("offload_teacher = true\nkd_temperature = 2.0\ncurriculum = \"random\"", &[], &[]).unwrap();
    config::check_stage(&loaded, Stage::Autoencoder).unwrap();
}

proptest! {
    #[test]
    fn sizes_survive_printing(bytes: u64) {
        use config::Setting;
        let size = config::ByteSize(bytes);
        prop_assert_eq!(config::ByteSize::parse(&size.to_string()), Some(size));
    }

    #[test]
    fn no_file_makes_it_panic(text in "[a-z_\\[\\]{}=\"', .0-9\n-]{0,80}") {
        let _ = load(&text, &[], &[]);
    }
}

#[test]
fn sizes_have_units() {
    use config::Setting;
    for (text, bytes) in [
        ("6GiB", Some(6 << 30)),
        ("512MB", Some(512_000_000)),
        ("1.5 GiB", Some(3 << 29)),
        ("100", Some(100)),
        ("4gib", Some(4 << 30)),
        ("1k", None),
        ("", None),
        ("-1GB", None),
        ("99999999999GiB", None),
    ] {
        assert_eq!(config::ByteSize::parse(text).map(|size| size.0), bytes, "{text}");
    }
}

#[test]
fn sizes_are_printed_in_the_largest_unit_that_divides_them() {
    use config::Setting;
    assert_eq!(config::ByteSize::parse("1.5GiB"), Some(config::ByteSize(1_610_612_736)));
    for (bytes, text) in [(1_610_612_736, "1536MiB"), (1 << 30, "1GiB"), (1_000, "1kB"), (1_001, "1001B"), (0, "0B")] {
        assert_eq!(config::ByteSize(bytes).to_string(), text);
    }
}
