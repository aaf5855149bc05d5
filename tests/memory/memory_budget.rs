//! The memory budget of batches of a given size, compared with the memory of runs.

use support::cli::Workplace;

const COMMON: &[&str] =
    &["--max-epochs", "1", "--optimize-batch-size", "false", "--batch-size", "64", "--gradient-checkpointing", "false"];

/// Number of bytes from a number and its unit after `before`.
fn bytes_after(said: &str, before: &str) -> f64 {
    let (_, rest) = said.split_once(before).unwrap_or_else(|| panic!("no {before:?} in:\n{said}"));
    let mut words = rest.split_whitespace();
    let number: f64 = words.next().unwrap().parse().unwrap();
    let unit = words.next().unwrap().trim_end_matches(|letter: char| !letter.is_alphabetic());
    number * if unit == "GiB" { f64::from(1 << 30) } else { f64::from(1 << 20) }
}

/// Expected and actual peak memory of a run, in bytes.
fn expected_and_peak(workplace: &Workplace, run: &str, arguments: &[&str]) -> [f64; 2] {
    let said = workplace.success(&[arguments, COMMON, &["--run-dir", run]].concat());
    let metrics = workplace.path().join(run).join("metrics.csv");
    let mut reader = csv::Reader::from_path(metrics).unwrap();
    let column = reader.headers().unwrap().iter().position(|header| header == "peak_memory_bytes").unwrap();
    let peak: f64 = reader.records().next().unwrap().unwrap()[column].parse().unwrap();
    let expected = bytes_after(&said, "graphs take at most ");
    println!("{run}: {expected:.0} expected, {peak} taken, {:.2}", expected / peak);
    [expected, peak]
}

#[test]
fn runs_take_no_more_than_their_budget() {
    let workplace = Workplace::new();
    let vgae_hints = ["autoencoder", "--preset", "vgae,student", "--kd-hint-weight", "1", "--teacher-cache"].as_slice();
    let gat_hints = ["classifier", "--preset", "gat,student", "--use-kd", "true", "--kd-hint-weight", "1"].as_slice();
    let edges = ["--conv", "gatv2", "--use-kd", "false"].as_slice();
    let runs: &[(&str, Vec<&str>)] = &[
        ("vgae-teacher", vec!["autoencoder", "--preset", "vgae,teacher"]),
        ("vgae-hints", [vgae_hints, &["off"]].concat()),
        ("vgae-hints-kept", [vgae_hints, &["ram"]].concat()),
        ("gat-teacher-edges", [&["classifier", "--preset", "gat,teacher"], edges].concat()),
        ("gat-hints", gat_hints.to_vec()),
        ("gat-student-edges", [&["classifier", "--preset", "gat,student"], edges].concat()),
        ("vgae-student-edges", [&["autoencoder", "--preset", "vgae,student"], edges].concat()),
    ];
    let told = runs.iter().map(|(run, arguments)| (run, expected_and_peak(&workplace, run, arguments)));
    for (run, [expected, peak]) in told.collect::<Vec<_>>() {
        assert!(peak <= expected, "{run}: {expected} expected, {peak} taken");
        assert!(expected <= 2.0 * peak, "{run}: {expected} expected, {peak} taken");
    }
}

/// The targets of a burst are in memory, however few graphs go through the model at a time.
#[test]
fn hints_whose_targets_do_not_fit_are_refused_before_the_first_epoch() {
    let workplace = Workplace::new();
    workplace.success(&[&["autoencoder", "--preset", "vgae,teacher"], COMMON].concat());
    fn limited<'a>(limit: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let student = ["autoencoder", "--preset", "vgae,student", "--teacher-cache", "off", "--kd-hint-weight", "1"];
        [&student[..], COMMON, &["--memory-limit", limit], more].concat()
    }
    let said = workplace.out_of_memory(&limited("8MB", &[]));
    assert!(said.contains("--teacher-burst") && said.contains("--batch-size"), "{said}");
    assert!(said.contains("however few graphs go through the model"), "{said}");
    // The suggested burst works; if none would fit, none is suggested.
    let (_, advised) = said.split_once("--offload-teacher --teacher-burst ").unwrap();
    let burst = advised.split(',').next().unwrap();
    workplace.success(&limited("8MB", &["--offload-teacher", "--teacher-burst", burst]));
    let said = workplace.out_of_memory(&limited("4MB", &[]));
    assert!(!said.contains("--teacher-burst") && said.contains("lower --batch-size, or raise"), "{said}");
}
