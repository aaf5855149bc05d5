//! Every field through every layer: default, flag, variable and files, and the reported source of its value.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use kdgat::cli::{self, Command};
use kdgat::config::{self, Config, Field, Loaded, Origin, Sources, fields};

/// Texts of many types; a field's example is the first one that it accepts and that is not its default.
const EXAMPLES: &[&str] =
    &["3", "5", "0.25", "7.5", "false", "true", "some/folder", "other-name", "12,8", "5GiB", "cuda:1", "youden"];

/// Two different values that are not the default, if the type has that many.
fn examples(field: &Field) -> (String, String) {
    let default = (field.show)(&Config::default());
    let accepted =
        |text: &&str| (field.read)(text).is_some_and(|(_, numbers)| field.admits(&numbers)) && **text != default;
    let mut found: Vec<String> = field
        .kind
        .choices
        .iter()
        .map(|choice| choice.name)
        .chain(EXAMPLES.iter().copied())
        .filter(accepted)
        .map(str::to_string)
        .collect();
    assert!(!found.is_empty(), "no example fits the field {}; add one to EXAMPLES", field.name);
    found.truncate(2);
    let first = found[0].clone();
    (first, found.pop().unwrap())
}

fn show(field: &Field, loaded: &Loaded) -> String {
    (field.show)(&loaded.config)
}

/// Asserts that both texts are the same value of the field's type.
fn assert_value(field: &Field, loaded: &Loaded, text: &str, layer: &str) {
    let found = show(field, loaded);
    let same = (field.read)(&found).map(|(value, _)| value) == (field.read)(text).map(|(value, _)| value);
    assert!(same, "{} was set to {text} by {layer}, but is {found}", field.name);
}

fn literal(field: &Field, text: &str) -> String {
    if field.kind.quoted {
        format!("\"{text}\"")
    } else if text.contains(',') {
        format!("[{text}]")
    } else {
        text.to_string()
    }
}

fn sources(folder: &Path) -> Sources {
    Sources { working_folder: folder.to_path_buf(), ..Sources::default() }
}

fn variable(name: &str, text: &str) -> (OsString, OsString) {
    (name.into(), text.into())
}

fn parsed_flags(arguments: &[&str]) -> Sources {
    let line = ["kdgat", "config"].iter().chain(arguments).map(OsString::from);
    match cli::parse(line).unwrap().command {
        Command::Config(args) => args.settings.sources(),
        other => panic!("`kdgat config` was parsed as {other:?}"),
    }
}

#[test]
fn names_are_unique_over_all_sections() {
    let mut names = BTreeSet::new();
    for field in fields() {
        assert!(names.insert(field.name), "two fields are called {}", field.name);
        if let Some(alias) = field.alias {
            assert!(names.insert(alias), "the alias {alias} is another field's name");
        }
    }
}

#[test]
fn every_field_has_its_default() {
    let folder = tempfile::tempdir().unwrap();
    let loaded = config::load(&sources(folder.path())).unwrap();
    assert_eq!(loaded.config, Config::default());
    config::check(&loaded.config).unwrap();
    for field in fields() {
        assert_eq!(loaded.origin(field.name), &Origin::Default, "{}", field.name);
        assert!(!field.help_text().is_empty(), "{} has no help", field.name);
    }
}

#[test]
fn every_field_is_set_by_a_flag() {
    for field in fields() {
        let (text, _) = examples(field);
        let spellings = [Some(field.name), field.alias].into_iter().flatten().map(|name| name.replace('_', "-"));
        for name in spellings {
            for arguments in [vec![format!("--{name}"), text.clone()], vec![format!("--{name}={text}")]] {
                let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                let folder = tempfile::tempdir().unwrap();
                let flags = parsed_flags(&arguments).flags;
                let loaded = config::load(&Sources { flags, ..sources(folder.path()) }).unwrap();
                assert_value(field, &loaded, &text, "its flag");
                assert_eq!(loaded.origin(field.name), &Origin::Flag(field.flag()));
                assert_others_default(field, &loaded);
            }
        }
    }
}

#[test]
fn every_switch_is_set_without_a_value_too() {
    for field in fields().filter(|field| field.kind.switch) {
        let flag = field.flag();
        let flags = parsed_flags(&[&flag, "--seed", "1"]).flags;
        assert!(flags.contains(&(field.name.to_string(), "true".to_string())), "{flag} alone gave {flags:?}");
    }
}

#[test]
fn every_field_is_set_by_a_variable() {
    let folder = tempfile::tempdir().unwrap();
    for field in fields() {
        let (text, _) = examples(field);
        for name in [Some(field.name), field.alias].into_iter().flatten() {
            let name = format!("KDGAT_{}", name.to_uppercase());
            let variables = vec![variable("PATH", "/bin"), variable(&name, &text)];
            let loaded = config::load(&Sources { variables, ..sources(folder.path()) }).unwrap();
            assert_value(field, &loaded, &text, &name);
            assert_eq!(loaded.origin(field.name), &Origin::Variable(name));
            assert_others_default(field, &loaded);
        }
    }
}

#[test]
fn every_field_is_set_by_a_file_flat_or_in_its_section() {
    for field in fields() {
        let (text, _) = examples(field);
        let assignment = format!("{} = {}", field.name, literal(field, &text));
        let flat = format!("# a comment\n{assignment}\n");
        let sectioned = format!("[{}]\n{assignment}\n", field.section.name);
        for content in [flat, sectioned] {
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join("kdgat.toml"), &content).unwrap();
            let loaded = config::load(&sources(folder.path())).unwrap();
            assert_value(field, &loaded, &text, "kdgat.toml");
            assert_eq!(loaded.origin(field.name).to_string(), "kdgat.toml:2");
            assert_others_default(field, &loaded);

            fs::rename(folder.path().join("kdgat.toml"), folder.path().join("mine.toml")).unwrap();
            let config_file = Some("mine.toml".into());
            let loaded = config::load(&Sources { config_file, ..sources(folder.path()) }).unwrap();
            assert_value(field, &loaded, &text, "--config");
            assert_eq!(loaded.origin(field.name).to_string(), "mine.toml:2");
        }
    }
}

fn assert_others_default(field: &Field, loaded: &Loaded) {
    for other in fields().filter(|other| other.name != field.name) {
        assert_eq!(loaded.origin(other.name), &Origin::Default, "setting {} set {} too", field.name, other.name);
        assert_eq!(show(other, loaded), (other.show)(&Config::default()));
    }
}

/// Each layer sets the field; removing the winner, one after another, reveals the layer below.
#[test]
fn later_layers_win_for_every_field() {
    for field in fields() {
        let (first, second) = examples(field);
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("presets")).unwrap();
        let file = |text: &str| format!("{} = {}\n", field.name, literal(field, text));
        fs::write(path("presets/low.toml"), file(&second)).unwrap();
        fs::write(path("presets/high.toml"), file(&first)).unwrap();
        fs::write(path("kdgat.toml"), file(&second)).unwrap();
        fs::write(path("mine.toml"), file(&second)).unwrap();
        let mut sources = Sources {
            presets: if field.name == "model" { vec!["high".into()] } else { vec!["low".into(), "high".into()] },
            variables: vec![variable(&field.variable(), &first)],
            config_file: Some("mine.toml".into()),
            flags: vec![(field.name.to_string(), first.clone())],
            ..sources(folder.path())
        };
        let expect = |sources: &Sources, text: &str, origin: &str| {
            let loaded = config::load(sources).unwrap();
            assert_value(field, &loaded, text, origin);
            assert_eq!(loaded.origin(field.name).to_string(), origin);
        };
        expect(&sources, &first, &field.flag());
        sources.flags.clear();
        expect(&sources, &second, "mine.toml:1");
        sources.config_file = None;
        expect(&sources, &first, &field.variable());
        sources.variables.clear();
        expect(&sources, &second, "kdgat.toml:1");
        fs::remove_file(path("kdgat.toml")).unwrap();
        expect(&sources, &first, "preset high (presets/high.toml:1)");
        sources.presets.pop();
        // A preset that sets `model` is a model preset, and only one of these may be named.
        if field.name != "model" {
            expect(&sources, &second, "preset low (presets/low.toml:1)");
        }
        sources.presets.clear();
        expect(&sources, &(field.show)(&Config::default()), "default");
    }
}

/// Reading a run's `config.json` or the output of `kdgat config` gives the same configuration again.
#[test]
fn every_field_survives_freezing_and_printing() {
    let folder = tempfile::tempdir().unwrap();
    let flags: Vec<(String, String)> = fields().map(|field| (field.name.to_string(), examples(field).0)).collect();
    let loaded = config::load(&Sources { flags, ..sources(folder.path()) }).unwrap();
    fs::write(folder.path().join("printed.toml"), config::to_toml(&loaded)).unwrap();
    fs::write(folder.path().join("printed.json"), config::to_json(&loaded).to_string()).unwrap();
    let frozen = config::freeze(&loaded.config, "autoencoder", &serde_json::Map::new());
    fs::write(folder.path().join("config.json"), format!("{frozen:#}")).unwrap();
    for name in ["printed.toml", "printed.json", "config.json"] {
        let again = config::load(&Sources { config_file: Some(name.into()), ..sources(folder.path()) }).unwrap();
        let mut expected = loaded.config.clone();
        if name == "config.json" {
            // A repeated run is a new run, with its own output settings.
            expected.output.live = false;
            expected.output.resume = false;
            expected.output.run_dir = None;
        }
        assert_eq!(again.config, expected, "{name}");
    }
    let presets = vec!["quick".to_string()];
    let replayed = Sources { presets, config_file: Some("config.json".into()), ..sources(folder.path()) };
    let message = config::load(&replayed).unwrap_err().to_string();
    assert!(message.starts_with("--preset would be ignored: config.json sets every field"), "{message}");

    let serialised = serde_json::to_string(&loaded.config).unwrap();
    assert_eq!(serde_json::from_str::<Config>(&serialised).unwrap(), loaded.config);
}

#[test]
fn none_takes_back_what_an_earlier_layer_set() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("kdgat.toml"), "teacher_path = \"teacher.safetensors\"\n").unwrap();
    let flags = vec![("teacher_path".to_string(), "none".to_string())];
    let loaded = config::load(&Sources { flags, ..sources(folder.path()) }).unwrap();
    assert_eq!(loaded.config.distillation.teacher_path, None);
    assert_eq!(loaded.origin("teacher_path").to_string(), "--teacher-path");
}

#[test]
fn the_last_of_repeated_flags_counts() {
    assert_eq!(parsed_flags(&["--lr", "1", "--lr", "2"]).flags, vec![("lr".to_string(), "2".to_string())]);
    assert_eq!(parsed_flags(&["--max_epochs", "5"]).flags, vec![("max_epochs".to_string(), "5".to_string())]);
}
