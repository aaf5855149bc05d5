//! `kdgat report` on runs of every stage: the charts of a page, that they are visible in a real browser, and the messages
//! in place of missing charts.

use std::fs;
use std::process::Command;

use crate::pages::{AUTOENCODER, CURRICULUM, EVALUATION, FUSION, NORMAL, RUNS, TEACHER, look, report, trained};
use support::stage::Workplace;
use support::starter;

/// Names of all charts of a page.
fn charts(html: &str) -> Vec<String> {
    let names = html.split("<figure id=\"").skip(1).map(|rest| rest.split('"').next().unwrap().to_owned());
    names.collect()
}

fn expect(html: &str, expected: &[&str]) {
    let found = charts(html);
    for name in expected {
        assert!(found.iter().any(|chart| chart.starts_with(name)), "no chart {name}: {found:?}");
    }
    assert!(!html.contains("Not shown:"), "{}", html.split("Not shown:").nth(1).unwrap().split('<').next().unwrap());
}

/// Charts of an evaluation of several models.
const TEST_CHARTS: [&str; 6] = ["trade-off-", "f1-tiny-", "roc-", "precision-and-recall-", "confusion-", "window-"];

#[test]
fn a_report_of_all_runs_has_every_chart() {
    let html = report(trained(), &[RUNS], "all.html");
    expect(&html, &["losses-", "memory-", "difficulty-", "choice-", "teacher-", "comparison-tiny-gat"]);
    expect(&html, &["comparison-tiny-vgae"]);
    expect(&html, &TEST_CHARTS);
    assert!(html.contains("rule: early") && !html.contains("RULE"), "a rule has its name");
    for why in ["clearestattack", "usual"] {
        assert!(charts(&html).iter().any(|chart| chart.ends_with(why)), "no window {why}");
    }
    assert!(html.contains(&format!("Source: <code>{CURRICULUM}/metrics.csv</code>")), "sources are named");
    assert!(!html.contains(&trained().path("").display().to_string()), "the page says where its files lie");
}

#[test]
fn a_run_of_each_stage_has_the_charts_of_its_stage() {
    let shared = ["losses-", "memory-", "teacher-", "roc-", "precision-and-recall-", "confusion-", "window-"];
    for (run, own) in [(AUTOENCODER, &[][..]), (NORMAL, &[]), (CURRICULUM, &["difficulty-", "choice-"])] {
        let page = format!("{}.html", run.replace('/', "-"));
        let html = report(trained(), &[run], &page);
        // A single model has no trade-off chart.
        let html = html.replace("Not shown: size, latency and F1", "");
        expect(&html, &shared);
        expect(&html, own);
        let others = charts(&html).iter().filter(|chart| chart.starts_with("losses-")).count();
        assert_eq!(others, 1, "only the named run is shown");
    }
    expect(&report(trained(), &[EVALUATION], "evaluation.html"), &TEST_CHARTS);
    let html = report(trained(), &[FUSION], "fusion.html");
    expect(&html, &["regret-", "weight-", "f1-tiny-dqn-student-fusion-1-"]);
    let findings = html.split("<ul").nth(1).and_then(|rest| rest.split("</ul>").next()).unwrap_or_default();
    assert!(findings.contains("the best fixed weight"), "the first lines do not say whether learning paid: {findings}");
    assert!(html.contains("small MLP") && !html.contains("kdgat evaluate RUN"), "{html}");
}

#[test]
fn a_browser_sees_every_chart_and_says_nothing() {
    let place = trained();
    let pages = [
        ("browser-all", vec![RUNS]),
        ("browser-autoencoder", vec![AUTOENCODER]),
        ("browser-normal", vec![NORMAL]),
        ("browser-curriculum", vec![CURRICULUM]),
        ("browser-fusion", vec![FUSION]),
        ("browser-two", vec![TEACHER, NORMAL]),
        ("browser-evaluation", vec![EVALUATION]),
    ];
    for (name, paths) in pages {
        let page = format!("{name}.html");
        let html = report(place, &paths, &page);
        for width in [1200, 500] {
            let Some(looked) = look(&place.path(&page), width) else { return };
            assert!(looked.console.is_empty(), "{name}: {:?}", looked.console);
            let is_narrow = width < 1200;
            assert!(
                is_narrow || looked.found["tables"] == serde_json::json!([]),
                "{name}: cut off: {}",
                looked.found["tables"]
            );
            let seen = looked.found["charts"].as_array().unwrap();
            assert_eq!(seen.len(), charts(&html).len(), "{name}");
            for chart in seen {
                let number = |name: &str| chart[name].as_f64().unwrap();
                assert!(number("width") > 200.0 && number("height") > 100.0, "{name}: {chart} is too small");
                assert!(number("shapes") >= 2.0, "{name}: {chart} is empty");
                assert!(chart["cut"].as_array().unwrap().is_empty(), "{name}: texts are cut off in {chart}");
            }
            assert!(
                looked.found["page"].as_f64() <= looked.found["window"].as_f64(),
                "{name}: the page is wider than its window of {width}: {}",
                looked.found["page"]
            );
            for table in looked.found["sorted"].as_array().unwrap() {
                let values = |name: &str| -> Vec<f64> {
                    table[name].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
                };
                assert!(values("rising").is_sorted(), "{name}: {table}");
                assert!(values("falling").iter().rev().is_sorted(), "{name}: {table}");
                assert_eq!(table["state"], "descending");
            }
        }
    }
}

#[test]
fn figures_are_written_as_files() {
    let place = trained();
    let output = starter::output(Command::new(env!("CARGO_BIN_EXE_kdgat")).current_dir(place.path("")).args([
        "report",
        NORMAL,
        "--figures",
        "figures",
    ]));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(place.path(NORMAL).join("report.html").exists(), "a run's report lies in its folder");
    let mut vectors = 0;
    for entry in fs::read_dir(place.path("figures")).unwrap() {
        let path = entry.unwrap().path();
        let content = fs::read(&path).unwrap();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("svg") => {
                let text = String::from_utf8(content).unwrap();
                let parsed = roxmltree::Document::parse(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"));
                assert!(parsed.root_element().has_tag_name(("http://www.w3.org/2000/svg", "svg")));
                vectors += 1;
            }
            Some("png") => assert_eq!(content[..8], *b"\x89PNG\r\n\x1a\n"),
            other => panic!("a file of the kind {other:?}"),
        }
    }
    assert_eq!(vectors, charts(&fs::read_to_string(place.path(NORMAL).join("report.html")).unwrap()).len());
    if said.contains(" 0 PNG") {
        println!("skipped: pictures: no font, or a program without the feature png (scripts/test --all has both)");
    }
}

#[test]
fn runs_of_one_name_on_two_datasets_are_told_apart() {
    let place = Workplace::new();
    for dataset in ["one", "two"] {
        let run = place.path(&format!("runs/{dataset}/gat_student_normal/1"));
        fs::create_dir_all(&run).unwrap();
        fs::copy(trained().path(NORMAL).join("metrics.csv"), run.join("metrics.csv")).unwrap();
        let config = fs::read_to_string(trained().path(NORMAL).join("config.json")).unwrap();
        fs::write(run.join("config.json"), config.replace("\"tiny\"", &format!("\"{dataset}\""))).unwrap();
    }
    let output = starter::output(Command::new(env!("CARGO_BIN_EXE_kdgat")).current_dir(place.path("")).args([
        "report",
        "runs",
        "--output",
        "report.html",
        "--figures",
        "figures",
    ]));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let html = fs::read_to_string(place.path("report.html")).unwrap();
    let mut names = charts(&html);
    let vectors = fs::read_dir(place.path("figures")).unwrap().map(|entry| entry.unwrap().path());
    assert_eq!(vectors.filter(|path| path.extension().is_some_and(|kind| kind == "svg")).count(), names.len());
    assert!(names.iter().any(|name| name.starts_with("losses-") && name.ends_with("-2")), "{names:?}");
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), charts(&html).len(), "{names:?}");
    for dataset in ["one", "two"] {
        assert!(html.contains(&format!("gat_student_normal/1 on {dataset}</h2>")), "no section of {dataset}");
    }
}

#[test]
fn what_cannot_be_shown_is_said_with_the_way_to_get_it() {
    let place = Workplace::new();
    let run = place.path("copied");
    for file in ["metrics.csv", "config.json"] {
        fs::create_dir_all(&run).unwrap();
        fs::copy(trained().path(CURRICULUM).join(file), run.join(file)).unwrap();
    }
    let html = report(&place, &["copied"], "report.html");
    assert_eq!(charts(&html).len(), 1, "{:?}", charts(&html));
    for words in ["memory-sample-seconds", "curriculum.csv", "timeline.csv", "kdgat evaluate RUN"] {
        assert!(html.contains(words), "nothing says {words}");
    }
    let config = fs::read_to_string(run.join("config.json")).unwrap();
    let mut without: serde_json::Value = serde_json::from_str(&config).unwrap();
    without["config"]["curriculum"]["curriculum"] = "none".into();
    fs::write(run.join("config.json"), without.to_string()).unwrap();
    let html = report(&place, &["copied"], "none.html");
    assert!(html.contains("graphs are not scored with --curriculum none"), "the reason is another");
    fs::write(run.join("config.json"), config).unwrap();
    // A malicious name, which appears in several places.
    let evil = place.path("<img src=x onerror=alert(1)>");
    fs::rename(&run, &evil).unwrap();
    let html = report(&place, &["<img src=x onerror=alert(1)>"], "evil.html");
    assert!(!html.contains("<img") && html.contains("&lt;img"));

    let refused = |path: &str| {
        let output = starter::output(
            Command::new(env!("CARGO_BIN_EXE_kdgat")).current_dir(place.path("")).args(["report", path]),
        );
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(refused("absent").contains("does not exist"));
    fs::create_dir(place.path("empty")).unwrap();
    assert!(refused("empty").contains("holds no run"));
    let log = evil.join("metrics.csv");
    let mut lines: Vec<String> = fs::read_to_string(&log).unwrap().lines().map(str::to_owned).collect();
    lines[2] = "1,abc,".to_owned();
    fs::write(&log, lines.join("\n") + "\n").unwrap();
    let said = refused("<img src=x onerror=alert(1)>");
    assert!(said.contains("metrics.csv: line 3 has 3 fields"), "{said}");
}

#[test]
fn a_sweep_has_its_axes_drawn_and_its_tables() {
    let place = Workplace::new();
    let text = "metric = \"val_task_loss\"\nseeds = [1, 2]\n[[axis]]\nfield = \"lr\"\nvalues = [0.002, 0.004]\n[[step]]\n\
                name = \"vgae\"\ncommand = \"autoencoder\"\npreset = \"vgae,student\"\n\
                set = { hidden = [8, 4], latent = 4, max_epochs = 2, threads = 1, use_kd = false }\n";
    fs::write(place.path("small.toml"), text).unwrap();
    let kdgat = |arguments: &[&str]| {
        let output = starter::output(
            Command::new(env!("CARGO_BIN_EXE_kdgat"))
                .current_dir(place.path(""))
                .args(arguments)
                .env("KDGAT_DATA", support::stage::dataset()),
        );
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    kdgat(&["sweep", "small.toml"]);
    kdgat(&["sweep", "report", "sweeps/small", "--compare", "lr=0.002", "lr=0.004"]);
    let html = fs::read_to_string(place.path("sweeps/small/report.html")).unwrap();
    let drawn = charts(&html);
    assert!(drawn.iter().any(|chart| chart == "sweep-small-lr"), "{drawn:?}");
    assert_eq!(drawn.iter().filter(|chart| chart.starts_with("losses-")).count(), 4);
    for trial in ["lr 0.002, seed 1", "lr 0.002, seed 2", "lr 0.004, seed 1", "lr 0.004, seed 2"] {
        assert!(html.contains(&format!("VGAE student, no KD; {trial}")), "no row of {trial}");
        assert!(html.contains(&format!(" ({trial})</h2>")), "no section of {trial}");
    }
    for title in ["All settings", "Pareto front", "Pairs"] {
        assert!(html.contains(&format!("<h3>{title}</h3>")), "no table {title}");
    }
    let Some(looked) = look(&place.path("sweeps/small/report.html"), 1280) else { return };
    assert!(looked.console.is_empty(), "{:?}", looked.console);
}

#[test]
fn a_run_is_taken_once_however_it_is_named() {
    let once = charts(&report(trained(), &[NORMAL], "once.html"));
    let slash = format!("./{NORMAL}/");
    let table = format!("{NORMAL}/metrics.csv");
    for paths in [vec![NORMAL, NORMAL], vec![NORMAL, &slash], vec![&table, NORMAL]] {
        assert_eq!(charts(&report(trained(), &paths, "twice.html")), once, "{paths:?}");
    }
    let all = charts(&report(trained(), &[RUNS], "all.html"));
    assert_eq!(charts(&report(trained(), &[RUNS, NORMAL], "overlap.html")), all);
}

#[test]
fn runs_of_other_settings_are_lines_of_their_own() {
    let place = Workplace::new();
    let gat = [
        "classifier",
        "--preset",
        "gat,student",
        "--hidden",
        "8",
        "--layers",
        "2",
        "--heads",
        "2",
        "--use-kd",
        "false",
    ];
    let run = |folder: &str, more: &[&str]| {
        place.run(&[&gat[..], &["--max-epochs", "2", "--run-dir", folder], more].concat());
    };
    run("runs/a", &["--lr", "0.003", "--seed", "1"]);
    run("runs/b", &["--lr", "0.003", "--seed", "2"]);
    run("runs/c", &["--lr", "0.02"]);
    run("runs/d", &["--lr", "0.02", "--task-loss", "focal"]);
    let html = report(&place, &["runs"], "report.html");
    let title = html.split("lowest validation task loss").nth(1).unwrap().split('<').next().unwrap();
    assert!(title.contains("no KD, lr 0.003 ") && title.contains("no KD, lr 0.02 "), "{title}");
    // The legend has room for the settings that differ.
    assert!(html.contains("lr 0.003 (mean of 2)") && !html.contains("student, n…"), "the settings are cut off");
    let lowest = |run: &str| place.metric(run, "val_task_loss").into_iter().fold(f64::INFINITY, f64::min);
    let mean = (lowest("runs/a") + lowest("runs/b")) / 2.0;
    let shown: f64 = title.split("lr 0.003 ").nth(1).unwrap().split(';').next().unwrap().trim().parse().unwrap();
    assert!((shown - mean).abs() < 1e-3 * mean, "{title}: the mean is {mean}");
    // Different kinds of losses are not in one chart. Only one run has a focal loss, so there is no chart of it.
    assert_eq!(charts(&html).iter().filter(|chart| chart.starts_with("comparison-")).count(), 1);

    // A stopped run does not count as a repetition of finished ones.
    fs::create_dir(place.path("stopped")).unwrap();
    for file in ["metrics.csv", "config.json"] {
        fs::copy(place.path("runs/a").join(file), place.path("stopped").join(file)).unwrap();
    }
    let html = report(&place, &["runs/a", "runs/b", "stopped"], "stopped.html");
    let title = html.split("lowest validation task loss").nth(1).unwrap().split('<').next().unwrap();
    assert!(title.contains("student, no KD, not finished "), "a stopped run is counted with the others: {title}");
    let shown: f64 = title.split("student, no KD ").nth(1).unwrap().split(';').next().unwrap().trim().parse().unwrap();
    assert!((shown - mean).abs() < 1e-3 * mean, "{title}: the mean is {mean}");

    // Damaged files are reported, not left out.
    fs::write(place.path("runs/b/config.json"), "{\"format\": \"kdgat").unwrap();
    let output =
        starter::output(Command::new(env!("CARGO_BIN_EXE_kdgat")).current_dir(place.path("")).args(["report", "runs"]));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("runs/b/config.json: is damaged"), "{said}");
}
