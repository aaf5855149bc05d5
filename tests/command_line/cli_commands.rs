//! The command line as a user sees it: exit codes, messages, help.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use support::starter;

fn kdgat(folder: &Path, arguments: &[&str]) -> Output {
    starter::output(&mut command(folder, arguments))
}

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(support::program::kdgat());
    command.current_dir(folder).args(arguments);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("KDGAT_")) {
        command.env_remove(name);
    }
    command
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn config_prints_the_merged_result_with_origins() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("kdgat.toml"), "patience = 7\n").unwrap();
    let output = command(folder.path(), &["config", "--preset", "vgae,student", "--offload-teacher"])
        .env("KDGAT_LR", "0.5")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    for (assignment, origin) in [
        ("lr = 0.5", "KDGAT_LR"),
        ("patience = 7", "kdgat.toml:1"),
        ("offload_teacher = true", "--offload-teacher"),
        ("use_kd = true", "preset vgae,student (built-in presets/vgae.toml:"),
        ("window = 100", "default"),
    ] {
        let found = text.lines().any(|line| line.starts_with(assignment) && line.contains(&format!("# {origin}")));
        assert!(found, "no line `{assignment} # {origin}` in\n{text}");
    }
    let json = kdgat(folder.path(), &["config", "--json", "--seed", "5"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["config"]["training"]["seed"], 5);
    assert_eq!(json["origins"]["seed"], "--seed");
}

fn parse_error(arguments: &[&str]) -> clap::Error {
    let line = ["kdgat"].iter().chain(arguments).map(std::ffi::OsString::from);
    kdgat::cli::parse(line).expect_err(&format!("kdgat {arguments:?} was accepted"))
}

#[test]
fn unknown_names_are_answered_with_the_nearest() {
    for (arguments, nearest) in [
        (vec!["autoencoder", "--max-epoch", "3"], "a similar argument exists: '--max-epochs'"),
        (vec!["autoencoder", "--curriculm-endratio", "3"], "a similar argument exists: '--curriculum-end-ratio'"),
        (vec!["autoencoder", "--zzzzzz", "3"], "a similar argument exists: '--"),
        (vec!["autoencodr"], "a similar subcommand exists: 'autoencoder'"),
        (vec!["data", "buidl"], "a similar subcommand exists: 'build'"),
        (vec!["qqq"], "a similar subcommand exists: '"),
        // Suggestions by meaning take precedence over suggestions by spelling.
        (vec!["learn"], "some similar subcommands exist: 'train', 'autoencoder', 'classifier'"),
        (vec!["test"], "a similar subcommand exists: 'evaluate'"),
        (vec!["data", "test"], "a similar subcommand exists: '"),
    ] {
        let error = parse_error(&arguments);
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(nearest), "kdgat {arguments:?}: {error}");
    }
}

#[test]
fn wrong_usage_and_input_end_with_two() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, message) in [
        (vec![], "Usage"),
        (vec!["autoencoder", "--max-epoch", "3"], "'--max-epochs'"),
        (vec!["config", "--lr", "x", "--conv", "y"], "error: 2 problems in the configuration:\n  - --conv: "),
        (vec!["config", "--config", "missing.toml"], "error: cannot read missing.toml\n  because: "),
        (vec!["classifier"], "use --preset gat,student"),
        (vec!["autoencoder", "--preset", "vgae,teacher", "--offload-teacher"], "--use-kd"),
    ] {
        let output = kdgat(folder.path(), &arguments);
        assert_eq!(output.status.code(), Some(2), "kdgat {arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(message), "kdgat {arguments:?}: {}", stderr(&output));
        assert!(stdout(&output).is_empty());
    }
}

#[test]
fn help_shows_the_common_flags_and_all_of_them_on_request() {
    let short = parse_error(&["autoencoder", "-h"]).to_string();
    let long = parse_error(&["autoencoder", "--help"]).to_string();
    assert!(short.contains("--offload-teacher") && !short.contains("--lr-gamma"), "{short}");
    assert!(long.contains("--lr-gamma"), "{long}");
    let all = parse_error(&["config", "--help"]).to_string();
    for field in kdgat::config::fields() {
        assert!(lists(&all, &field.flag()), "{} is not in the help of config", field.flag());
    }
    let folder = tempfile::tempdir().unwrap();
    assert!(stdout(&kdgat(folder.path(), &["--version"])).starts_with("kdgat "));
    assert!(kdgat(folder.path(), &["data", "--help"]).status.success());
}

/// True if a help text has a line for this flag.
fn lists(help: &str, flag: &str) -> bool {
    let ends = |rest: &str| rest.chars().next().is_none_or(|next| !next.is_ascii_alphanumeric() && next != '-');
    help.lines().any(|line| line.trim_start().strip_prefix(flag).is_some_and(ends))
}

/// Arguments that set a field: to `true` for a switch, otherwise to its default.
fn set(field: &kdgat::config::Field) -> [String; 2] {
    let usual = (field.show)(&kdgat::config::Config::default());
    // The dataset is missing, so the command does nothing.
    let value = match field.name {
        "data" => "absent".to_owned(),
        _ if field.kind.switch => "true".to_owned(),
        _ => usual,
    };
    [field.flag(), value]
}

#[test]
fn help_lists_the_fields_that_a_command_reads_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |command: &[&str], flags: &[[String; 2]]| {
        let flags = flags.iter().flatten().map(String::as_str);
        let output = kdgat(folder.path(), &command.iter().copied().chain(flags).collect::<Vec<_>>());
        stderr(&output)
    };
    for (command, trains) in [
        (&["autoencoder", "--preset", "vgae,student"][..], true),
        (&["classifier", "--preset", "gat,student"], true),
        (&["curriculum", "--preset", "gat,student"], true),
        (&["fusion", "--preset", "dqn,student"], true),
        (&["evaluate", "absent"], false),
        (&["export", "absent", "--examples", "1"], false),
        (&["data", "check"], false),
        (&["data", "merge", "absent"], false),
        (&["teachers", "verify"], false),
    ] {
        let words: Vec<&str> =
            command.iter().copied().take_while(|word| *word != "absent" && *word != "--preset").collect();
        let help = parse_error(&[&words[..], &["--help"]].concat()).to_string();
        let (listed, hidden): (Vec<_>, Vec<_>) = kdgat::config::fields().partition(|field| lists(&help, &field.flag()));
        assert!(!listed.is_empty() && !hidden.is_empty(), "{command:?}");
        let said = refused(command, &hidden.iter().map(|field| set(field)).collect::<Vec<_>>());
        for field in hidden {
            let refusal = format!("{} would be ignored", field.flag());
            assert!(said.contains(&refusal), "{command:?} takes {} and does not list it: {said}", field.flag());
        }
        // A training reads some fields only in combination with others.
        if !trains {
            let said = refused(command, &listed.iter().map(|field| set(field)).collect::<Vec<_>>());
            assert!(!said.contains("would be ignored"), "{command:?} lists what it refuses: {said}");
        }
    }
}

#[test]
fn help_explains_the_values_of_a_flag() {
    let help = parse_error(&["evaluate", "-h"]).to_string();
    assert!(lists(&help, "--threshold"), "{help}");
    let help = parse_error(&["classifier", "--help"]).to_string();
    for line in ["- plateau:", "- layer:", "- dkd:"] {
        assert!(help.lines().any(|found| found.trim_start().starts_with(line)), "no {line} in {help}");
    }
    for command in ["detect", "calibrate"] {
        let help = parse_error(&[command, "--help"]).to_string();
        assert!(help.contains("- car-hacking:") && !help.contains("- auto:"), "{help}");
    }
    for section in kdgat::config::SECTIONS {
        for choice in section.fields.iter().flat_map(|field| field.kind.choices) {
            assert!(choice.help.len() > 5, "{} has no help", choice.name);
        }
    }
}

/// KD-GAT calls the stage of the classifier `normal`, and so may a user.
#[test]
fn the_classifier_has_two_names() {
    for name in ["classifier", "normal"] {
        let line = ["kdgat", name, "--lr", "0.5"].map(std::ffi::OsString::from);
        let parsed = kdgat::cli::parse(line).unwrap().command;
        assert!(matches!(parsed, kdgat::cli::Command::Classifier(_)), "{name}: {parsed:?}");
        let said = parse_error(&[name, "--max-epoch", "3"]).to_string();
        assert!(said.contains("'--max-epochs'"), "{said}");
    }
    let help = parse_error(&["--help"]).to_string();
    assert!(help.contains("  classifier ") && help.contains("[alias: normal]"), "{help}");
    assert!(parse_error(&["normla"]).to_string().contains("'normal'"));
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout(&kdgat(folder.path(), &["completions", shell]));
        assert!(script.contains("classifier") && script.contains("normal"), "{shell}");
    }
}

#[test]
fn completions_know_flags_and_values() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh"] {
        let output = kdgat(folder.path(), &["completions", shell]);
        assert!(output.status.success());
        let script = stdout(&output);
        assert!(script.contains("offload-teacher") && script.contains("bf16-mixed"), "{shell}");
    }
}

#[test]
fn hidden_commands_are_not_offered() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stdout(&kdgat(folder.path(), &["completions", shell]));
        for hidden in ["sweep,work", "kdgat,commands", "Run one task", "Print the reference of all commands"] {
            assert!(!script.contains(hidden), "{shell} offers {hidden}");
        }
        assert!(script.contains("cancel") && script.contains("version"), "{shell}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    // More output than a pipe buffers, so that the program is still writing when its reader is gone.
    let mut child =
        command(folder.path(), &["completions", "zsh"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 1];
    let mut reader = child.stdout.take().unwrap();
    reader.read_exact(&mut first).unwrap();
    drop(reader);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{:?} {}", output.status, stderr(&output));
    assert!(output.stderr.is_empty(), "{}", stderr(&output));
}

#[test]
fn numbers_that_mean_nothing_are_refused() {
    for (flag, value) in [("--threshold", "nan"), ("--threshold", "inf"), ("--threads", "0"), ("--threads", "5000")] {
        let error = parse_error(&["detect", "--model", "run", flag, value, "-"]);
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(flag), "{error}");
    }
    for sizes in [["--graphs", "0", "--nodes", "3"], ["--graphs", "10", "--nodes", "0"]] {
        let error = parse_error(&[&["memory", "plan"], &sizes[..]].concat());
        assert!(error.to_string().contains("1.."), "{error}");
    }
    let line = ["kdgat", "detect", "--model", "run", "--threshold", "-1e3", "-"].map(std::ffi::OsString::from);
    kdgat::cli::parse(line).unwrap();
}

#[test]
fn flags_that_a_command_does_not_read_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (line, flags) in [
        (
            "curriculum --preset gat,student --score-only --max-epochs 3 --offload-teacher --tensorboard --live \
             --run-dir foo --kd-alpha 0.2",
            &["--max-epochs", "--offload-teacher", "--tensorboard", "--live", "--run-dir", "--kd-alpha"][..],
        ),
        ("data info --max-epochs 3 --lr 9", &["--max-epochs", "--lr"]),
        ("data build --lr 3", &["--lr"]),
        ("data check --stride 50", &["--stride"]),
        ("data merge part --threads 2", &["--threads"]),
        ("data simulate sim4 --kd-alpha 0.9", &["--kd-alpha"]),
        ("teachers list --lr 0.1", &["--lr"]),
        ("teachers verify --device cpu", &["--device"]),
        (
            "teachers cache --preset vgae,student --resume --live --lr 0.3 --tensorboard",
            &["--resume", "--live", "--lr", "--tensorboard"],
        ),
        ("evaluate run --kd-alpha 0.3 --tensorboard", &["--kd-alpha", "--tensorboard"]),
        ("export run --data here", &["--data"]),
        ("memory plan --live", &["--live"]),
    ] {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let output = kdgat(folder.path(), &arguments);
        assert_eq!(output.status.code(), Some(2), "kdgat {line}: {}", stderr(&output));
        for flag in flags {
            let said = format!("{flag} would be ignored: `kdgat ");
            assert!(stderr(&output).contains(&said), "kdgat {line}: {}", stderr(&output));
        }
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "something was written all the same");
    // Presets and variables may set fields of other commands.
    let list = ["teachers", "list", "--preset", "vgae,student", "--teachers-dir", "teachers"];
    let output = starter::output(command(folder.path(), &list).env("KDGAT_LR", "0.5"));
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn a_full_disk_behind_standard_output_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for arguments in [&["config"][..], &["data", "list"], &["teachers", "list"], &["completions", "bash"]] {
        let output = command(folder.path(), arguments).stdout(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "kdgat {arguments:?}: {}", stderr(&output));
        assert!(
            stderr(&output).starts_with("error: cannot write to standard output\n  because: "),
            "{}",
            stderr(&output)
        );
    }
}
