//! Comparison of the agent with its baselines on every test folder, with the verdict first.

use serde_json::{Value, json};

use super::baselines::{Contender, FixedWeight};
use super::{FusionError, Observations};
use kdgat_config::Threshold;
use kdgat_evaluate::bootstrap::Bootstrap;
use kdgat_evaluate::judge::{Subject, TestFile};
use kdgat_evaluate::metrics::{F1, ROC_AUC};
use kdgat_evaluate::ranking::Ranking;
use kdgat_evaluate::tables::{ModelReport, Report, Row};
use kdgat_evaluate::threshold;

/// A report with its verdict.
#[derive(Debug, Clone)]
pub struct FusionReport {
    /// The agent first, then the baselines.
    pub report: Report,
    /// Comparison of the agent with the best fixed weight.
    pub verdict: Verdict,
    /// The best fixed weight.
    pub fixed: FixedWeight,
    /// Mean weight that the agent chose, by test folder.
    pub weights: Vec<(String, f64)>,
}

/// Comparison of the agent with the best fixed weight.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// Name of the agent; `fixed` is that of the best fixed weight.
    pub agent: String,
    /// Name of the best fixed weight in the tables.
    pub fixed: String,
    /// Mean F1 over the test folders on which both have one: agent, fixed weight.
    pub mean_f1: [f64; 2],
    /// Comparison on each test folder.
    pub folders: Vec<FolderVerdict>,
}

/// Agent and fixed weight on one test folder.
#[derive(Debug, Clone, PartialEq)]
pub struct FolderVerdict {
    /// Name of the test folder.
    pub folder: String,
    /// F1 of the agent and of the fixed weight.
    pub f1: [f64; 2],
    /// 95 % intervals of both F1 values.
    pub intervals: [(f64, f64); 2],
    /// Area under the ROC curve of the agent and of the fixed weight.
    pub roc_auc: [f64; 2],
}

impl FolderVerdict {
    fn has_f1(&self) -> bool {
        self.f1.iter().all(|value| value.is_finite())
    }
}

impl Verdict {
    /// True if the agent has the higher mean F1.
    pub fn agent_wins(&self) -> bool {
        self.mean_f1[0] > self.mean_f1[1]
    }

    /// Text of the verdict, which opens every report.
    pub fn text(&self) -> String {
        let [agent, fixed] = self.mean_f1;
        let verb = if self.agent_wins() { "beats" } else { "does not beat" };
        let mut text = match self.folders.iter().filter(|one| one.has_f1()).count() {
            0 => format!(
                "Learned fusion ({}) cannot be compared with the best fixed weight ({}): no test folder has attacks.\n",
                self.agent, self.fixed
            ),
            folders => format!(
                "Learned fusion ({}) {verb} the best fixed weight ({}): mean F1 over {folders} test folders {agent:.4} against \
                 {fixed:.4}.\n",
                self.agent, self.fixed
            ),
        };
        for one in &self.folders {
            if !one.has_f1() {
                text += &format!("  {}: no attacks, so no F1\n", one.folder);
                continue;
            }
            let [(low, high), (fixed_low, fixed_high)] = one.intervals;
            // Without resamples the intervals are NaN and do not overlap.
            let overlap = low <= fixed_high && high >= fixed_low;
            let apart = if overlap { "; their 95 % intervals overlap" } else { "" };
            text += &format!(
                "  {}: F1 {:.4} against {:.4}, ROC AUC {:.4} against {:.4}{apart}\n",
                one.folder, one.f1[0], one.f1[1], one.roc_auc[0], one.roc_auc[1]
            );
        }
        text
    }

    fn json(&self) -> Value {
        let folder = |one: &FolderVerdict| {
            json!({
                "folder": one.folder,
                "f1": one.f1,
                "f1_intervals": one.intervals,
                "roc_auc": one.roc_auc,
            })
        };
        json!({
            "text": self.text(),
            "agent": self.agent,
            "fixed_weight": self.fixed,
            "agent_beats_fixed_weight": self.agent_wins(),
            "mean_f1": self.mean_f1,
            "folders": self.folders.iter().map(folder).collect::<Vec<_>>(),
        })
    }
}

/// Settings for judging contenders.
#[derive(Debug)]
pub struct Judge<'a> {
    /// Graphs on which thresholds are chosen.
    pub validation: &'a Observations,
    /// Test files, in the order of the contenders' scores.
    pub files: &'a [TestFile],
    /// Method that chooses each contender's threshold on the validation graphs.
    pub threshold: Threshold,
    /// Settings of the confidence intervals.
    pub bootstrap: Bootstrap,
}

impl Judge<'_> {
    /// Report of a contender: `describe` with its rows and validation figures filled in.
    pub fn judge(&self, contender: &Contender, describe: ModelReport) -> Result<ModelReport, FusionError> {
        let labels = &self.validation.attack;
        let value = threshold::choose(self.threshold, &contender.validation, labels).map_err(|reason| {
            FusionError::Input(format!(
                "no threshold for {}: {reason} in the validation data; raise --validation-fraction, or give a number with \
                 --threshold",
                contender.name
            ))
        })?;
        let subject = Subject {
            scores: contender.test.clone(),
            thresholds: vec![(self.threshold.to_string(), value)],
            calibrated: vec![None; self.files.len()],
            gone: Vec::new(),
        };
        let validation_roc_auc = Ranking::new(&contender.validation, labels).metrics().roc_auc;
        Ok(ModelReport { rows: subject.judge(self.files, None, &self.bootstrap), validation_roc_auc, ..describe })
    }
}

/// Compares the first model with the one named `fixed`.
pub fn verdict(models: &[ModelReport], fixed: &str) -> Verdict {
    let none = Verdict { agent: String::new(), fixed: fixed.to_owned(), mean_f1: [f64::NAN; 2], folders: Vec::new() };
    let (Some(agent), Some(other)) = (models.first(), models.iter().find(|model| model.name == fixed)) else {
        return none;
    };
    let is_folder = |row: &&Row| row.file.is_none();
    let pair = |row: &Row| {
        let same = other.rows.iter().filter(is_folder).find(|like| like.folder == row.folder)?;
        Some(FolderVerdict {
            folder: row.folder.clone(),
            f1: [row.values[F1], same.values[F1]],
            intervals: [row.intervals[F1], same.intervals[F1]],
            roc_auc: [row.values[ROC_AUC], same.values[ROC_AUC]],
        })
    };
    let folders: Vec<FolderVerdict> = agent.rows.iter().filter(is_folder).filter_map(pair).collect();
    // A folder without attacks has no F1 for either of them.
    let compared: Vec<&FolderVerdict> = folders.iter().filter(|one| one.has_f1()).collect();
    let mean = |side: usize| compared.iter().map(|one| one.f1[side]).sum::<f64>() / compared.len() as f64;
    let mean_f1 = [mean(0), mean(1)];
    Verdict { agent: agent.name.clone(), mean_f1, folders, ..none }
}

impl FusionReport {
    /// Verdict followed by the tables.
    pub fn text(&self) -> String {
        let weights: Vec<String> =
            self.weights.iter().map(|(folder, weight)| format!("  {folder}: {weight:.3}\n")).collect();
        format!(
            "{}\n{}\nmean weight of the classifier that {} chose\n\n{}",
            self.verdict.text(),
            self.report.text(),
            self.verdict.agent,
            weights.concat()
        )
    }

    /// The content of `fusion.json`.
    pub fn json(&self) -> Value {
        let mut json = json!({ "format_version": 1, "verdict": self.verdict.json(), "best_fixed_weight": self.fixed });
        json["mean_weight"] = self.weights.iter().map(|(folder, weight)| (folder.clone(), json!(weight))).collect();
        json["evaluation"] = self.report.json();
        json
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kdgat_evaluate::metrics::Confusion;

    fn model(name: &str, f1: f64) -> ModelReport {
        let mut values = [0.5; 12];
        values[F1] = f1;
        let row = Row {
            folder: "test_01".to_owned(),
            file: None,
            calibration: "none".to_owned(),
            threshold_method: "fpr:0.001".to_owned(),
            threshold: Some(0.5),
            graphs: 10,
            attacks: 5,
            confusion: Confusion::default(),
            values,
            intervals: [(f1 - 0.01, f1 + 0.01); 12],
            operator: Default::default(),
        };
        ModelReport {
            name: name.to_owned(),
            group: name.to_owned(),
            settings: Vec::new(),
            kind: String::new(),
            features: None,
            size: String::new(),
            distilled: false,
            seed: None,
            paths: Vec::new(),
            weights_digests: Vec::new(),
            parameters: 0,
            file_bytes: 0,
            speed: None,
            validation_roc_auc: f64::NAN,
            rows: vec![row],
            gone: Vec::new(),
        }
    }

    #[test]
    fn the_first_line_says_who_wins() {
        let text = |agent: f64, fixed: f64| {
            verdict(
                &[model("dqn/1", agent), model("VGAE alone", 0.1), model("fixed weight 0.5", fixed)],
                "fixed weight 0.5",
            )
            .text()
        };
        let first = |text: &str| text.lines().next().unwrap_or_default().to_owned();
        let lost = text(0.9, 0.95);
        assert!(first(&lost).contains("does not beat the best fixed weight (fixed weight 0.5)"), "{lost}");
        assert!(!lost.contains("overlap"), "{lost}");
        assert!(first(&text(0.9, 0.9)).contains("does not beat"), "a tie is no win");
        let won = text(0.96, 0.95);
        assert!(first(&won).contains("(dqn/1) beats") && won.contains("intervals overlap"), "{won}");
        let mut models = [model("dqn/1", 0.96), model("VGAE alone", 0.1), model("fixed weight 0.5", 0.95)];
        models.iter_mut().for_each(|model| model.rows[0].intervals = [(f64::NAN, f64::NAN); 12]);
        let without = verdict(&models, "fixed weight 0.5").text();
        assert!(!without.contains("overlap"), "there are no intervals: {without}");
    }

    #[test]
    fn folders_without_an_f1_of_both_are_left_out_of_the_means() {
        let with_quiet = |name: &str, f1: f64, quiet: f64| {
            let (mut of, other) = (model(name, f1), model(name, quiet));
            of.rows.extend(other.rows.into_iter().map(|row| Row { folder: "test_02".to_owned(), ..row }));
            of
        };
        let found = verdict(&[with_quiet("dqn/1", 0.9, 0.0), with_quiet("fixed", 0.8, f64::NAN)], "fixed");
        assert_eq!(found.mean_f1, [0.9, 0.8]);
        let text = found.text();
        assert!(text.contains("over 1 test folders") && text.contains("test_02: no attacks"), "{text}");
        let none = verdict(&[model("dqn/1", f64::NAN), model("fixed", f64::NAN)], "fixed").text();
        assert!(none.contains("cannot be compared") && !none.contains("NaN"), "{none}");
    }
}
