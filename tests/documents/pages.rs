//! Runs of every stage on a small dataset, and a headless Chromium that opens pages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;
use support::stage::Workplace;
use support::starter;

/// Folder of the runs of [`trained`].
pub const RUNS: &str = "runs/tiny";
pub const AUTOENCODER: &str = "runs/tiny/vgae_student_autoencoder_kd/1";
pub const NORMAL: &str = "runs/tiny/gat_student_normal_kd/1";
pub const CURRICULUM: &str = "runs/tiny/gat_student_curriculum_kd/1";
pub const TEACHER: &str = "runs/tiny/gat_teacher_normal/1";
pub const FUSION: &str = "runs/tiny/dqn_student_fusion/1";
pub const EVALUATION: &str = "runs/tiny/evaluation";

/// A run of each stage, with teachers, and their evaluation; trained once for all tests of a file.
pub fn trained() -> &'static Workplace {
    static TRAINED: OnceLock<Workplace> = OnceLock::new();
    TRAINED.get_or_init(|| {
        let place = Workplace::new();
        let vgae = ["--hidden", "16,8", "--latent", "8"];
        let gat = ["--hidden", "8", "--layers", "2", "--heads", "2"];
        let quick = ["--max-epochs", "3", "--lr", "0.003", "--memory-sample-seconds", "0.05"];
        let train = |command: &str, preset: &str, sizes: &[&str], more: &[&str]| {
            place.run(&[&[command, "--preset", preset], sizes, &quick, more].concat());
        };
        train("autoencoder", "vgae,teacher", &vgae, &[]);
        train("autoencoder", "vgae,student", &vgae, &["--offload-teacher", "--teacher-cache", "off"]);
        train("classifier", "gat,teacher", &gat, &[]);
        train("classifier", "gat,student", &gat, &[]);
        train("classifier", "gat,student", &gat, &["--use-kd", "false"]);
        train("curriculum", "gat,student", &gat, &[]);
        place.run(&["evaluate", "--resamples", "20"]);
        let models = ["--fusion-vgae", AUTOENCODER, "--fusion-gat", NORMAL];
        let agent = ["--preset", "dqn,student", "--use-kd", "false", "--hidden", "16", "--resamples", "20"];
        let fusion =
            starter::output(&mut place.plain_command(&[&["fusion"], &agent[..], &models, &quick[..2]].concat()));
        assert!(fusion.status.success(), "{}", String::from_utf8_lossy(&fusion.stderr));
        place
    })
}

/// Writes the report of these paths and returns its text.
pub fn report(place: &Workplace, paths: &[&str], page: &str) -> String {
    // A report takes no configuration, so no flags of the dataset.
    let output = starter::output(
        Command::new(env!("CARGO_BIN_EXE_kdgat"))
            .current_dir(place.path(""))
            .arg("report")
            .args(paths)
            .args(["--output", page]),
    );
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "kdgat report {paths:?}: {said}");
    fs::read_to_string(place.path(page)).unwrap()
}

/// Measurements of a page in a browser.
#[derive(Debug)]
pub struct Looked {
    /// Console output of the page, including script errors and refused loads.
    pub console: Vec<String>,
    /// Output of [`PROBE`].
    pub found: Value,
}

/// Script that measures all charts after layout: their sizes, how many of their shapes are visible, and which
/// texts extend beyond them; and the tables that are cut off on the right.
const PROBE: &str = r#"<script>
addEventListener('load', () => {
  for (const fold of document.querySelectorAll('details')) fold.open = true;
  const charts = [...document.querySelectorAll('figure')].map(figure => {
    const svg = figure.querySelector('svg'), frame = svg.getBoundingClientRect();
    const seen = shape => { const box = shape.getBoundingClientRect(); return box.width + box.height > 0.5; };
    const shapes = [...svg.querySelectorAll('polyline,polygon,rect,circle')].filter(seen).length;
    const cut = [...svg.querySelectorAll('text')].filter(text => {
      const box = text.getBoundingClientRect();
      return box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
    }).map(text => text.textContent.trim());
    return { id: figure.id, width: frame.width, height: frame.height, shapes, cut };
  });
  const sorted = [];
  for (const table of document.querySelectorAll('table')) {
    const heads = [...table.querySelectorAll('th button')];
    const column = heads.findIndex((_, index) => table.tBodies[0].rows[0].children[index].dataset.value !== undefined);
    if (column < 0) continue;
    const values = () => [...table.tBodies[0].rows].map(row => row.children[column].dataset.value)
      .filter(value => value !== undefined).map(Number);
    heads[column].click(); const rising = values();
    heads[column].click(); const falling = values();
    sorted.push({ rising, falling, state: heads[column].closest('th').getAttribute('aria-sort') });
  }
  const root = document.documentElement;
  const tables = [...document.querySelectorAll('.scroll')].filter(scroll => scroll.scrollWidth > scroll.clientWidth)
    .map(scroll => scroll.getAttribute('aria-label'));
  const result = { charts, sorted, tables, page: root.scrollWidth, window: root.clientWidth };
  const out = document.createElement('script');
  out.type = 'application/json'; out.id = 'probe'; out.textContent = JSON.stringify(result);
  document.body.append(out);
});
</script>"#;

/// Opens a page in Chromium, in a window of this width. Without Chromium, prints a line and returns `None`.
pub fn look(page: &Path, width: u32) -> Option<Looked> {
    let chromium = chromium()?;
    let html = fs::read_to_string(page).unwrap();
    let probed = page.with_extension(format!("{width}.probe.html"));
    fs::write(&probed, html.replacen("</body>", &format!("{PROBE}</body>"), 1)).unwrap();
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new(chromium)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"])
        .args(["--disable-background-networking", "--disable-component-update", "--enable-logging=stderr", "--v=0"])
        .args(["--disable-dev-shm-usage", "--virtual-time-budget=20000", "--dump-dom"])
        .arg(format!("--window-size={width},900"))
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}", probed.canonicalize().unwrap().display()))
        .output()
        .unwrap();
    let (dom, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let found = dom.split("id=\"probe\">").nth(1).and_then(|rest| rest.split("</script>").next());
    let found = found.unwrap_or_else(|| panic!("the page did not get so far:\n{log}"));
    let console = log.lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned).collect();
    Some(Looked { console, found: serde_json::from_str(found).unwrap() })
}

/// Path of an installed Chromium or Chrome.
fn chromium() -> Option<PathBuf> {
    let found = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].map(PathBuf::from);
    let found = found.into_iter().find(|path| path.exists());
    if found.is_none() {
        println!("skipped: the look of pages: there is no Chromium (scripts/test --all installs it)");
    }
    found
}
