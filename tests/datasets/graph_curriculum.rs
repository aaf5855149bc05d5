//! Curricula of `kdgat train`: the difficulty of graphs, and the choice of those of an epoch, as a user trains with them.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use std::sync::Arc;

use kdgat::curriculum::{OutputSource, Scores, TaskScorer};
use kdgat::distill::alpha::Alpha;
use kdgat::distill::frozen::{self, Asked, TeacherVocabulary};
use kdgat::distill::objective::{GraphObjective, TeacherLink};
use kdgat::distill::{CacheMode, CacheOptions, StoreShape, Teacher, TeacherOptions, Weights};
use kdgat::graph::store::open_or_build_graphs;
use kdgat::graph::{AssembleOptions, Store, Task, assemble};
use kdgat::nn::attention::Backend;
use kdgat::nn::{Architecture, FreshParameters, Gnn, GnnConfig, GnnKind, Pooling, Scope, target_scale};
use kdgat::train::objective::{Objective, Part};
use kdgat::train::trainable::Trainable;
use support::cli::{Workplace, loss_columns};
use support::stops::kill_when;
use tch::Device;

/// Writes `graphs` rings and stars of 3 to 12 nodes as tables: their kind, two labels, or two values. 60 % of them are for training.
pub(crate) fn write_shapes(folder: &Path, graphs: usize, task: Task) {
    let columns = match task {
        Task::Classification => "y",
        Task::MultiLabel | Task::Regression => "y_a,y_b",
    };
    let mut of_graphs = format!("graph_id,{columns},split\n");
    let mut nodes = "graph_id,node_id,x_a,c_kind\n".to_owned();
    let mut edges = "graph_id,source,target,e_w\n".to_owned();
    for graph in 0..graphs {
        let (count, is_ring) = (3 + (7 * graph) % 10, graph % 2 == 0);
        let targets = match task {
            Task::Classification => ["star", "ring"][usize::from(is_ring)].to_owned(),
            Task::MultiLabel => format!("{},{}", u8::from(is_ring), u8::from(count > 7)),
            Task::Regression => format!("{},{}", count as f64 * 1.5, 100.0 * (graph as f64).sin()),
        };
        let split = ["train", "train", "train", "validation", "test"][graph % 5];
        of_graphs += &format!("g{graph},{targets},{split}\n");
        for node in 0..count {
            let value = ((graph * 31 + node * 17) % 23) as f64 / 23.0;
            nodes += &format!("g{graph},n{node},{value},{}\n", ["C", "N", "O"][(node + graph) % 3]);
            let other = if is_ring { (node + 1) % count } else { 0 };
            if other != node {
                edges += &format!("g{graph},n{node},n{other},{}\n", (node % 4) as f64 / 2.0);
            }
        }
    }
    fs::create_dir_all(folder).unwrap();
    let files = [("graphs.csv", of_graphs), ("nodes.csv", nodes), ("edges.csv", edges)];
    for (name, text) in files {
        fs::write(folder.join(name), text).unwrap();
    }
    fs::write(folder.join("kdgat-graphs.toml"), "directed = false\n").unwrap();
}

fn store(folder: &Path, task: Task) -> Arc<Store> {
    write_shapes(&folder.join("shapes"), 150, task);
    let store = open_or_build_graphs(&folder.join("shapes"), &folder.join("stores"), &()).unwrap();
    assert_eq!(store.schema().unwrap().task, task);
    Arc::new(store)
}

fn architecture(store: &Store, graphs: &[u64], kind: GnnKind, pooling: Pooling) -> GnnConfig {
    let schema = store.schema().unwrap();
    GnnConfig {
        edge_features: if kind == GnnKind::Gin { schema.edge_columns() as i64 } else { 0 },
        heads: if kind == GnnKind::Gat { 2 } else { 1 },
        pooling,
        dropout: 0.2,
        target_scales: match schema.task {
            Task::Regression => target_scale::with_linear_part(store, graphs).unwrap(),
            _ => Vec::new(),
        },
        ..GnnConfig::new(kind, [schema.node_columns() as i64, 24, 2, 2])
    }
}

fn scorer(store: &Arc<Store>, config: &GnnConfig, chunk: usize) -> TaskScorer {
    TaskScorer {
        store: Arc::clone(store),
        task: store.schema().unwrap().task,
        scales: config.target_scales.clone(),
        output_scales: config.target_scales.clone(),
        needs: Architecture::Graph(config.clone()).needs(),
        chunk,
        device: Device::Cpu,
    }
}

/// A teacher with the weights of `tensors`, which are those of a network.
fn teacher(config: &GnnConfig, tensors: &Trainable, store: &Store, cache: CacheMode) -> TeacherLink {
    let model =
        frozen::model(Architecture::Graph(config.clone()), TeacherVocabulary::Shared, Backend::Auto, Asked::OUTPUTS);
    let weights = Weights::from_tensors(tensors.state_dict().unwrap()).unwrap();
    let cache = CacheOptions { mode: cache, ram_budget_bytes: 1 << 30, ..CacheOptions::off() };
    let options = TeacherOptions { cache, burst: 3, ..TeacherOptions::new(Device::Cpu) };
    let shape = StoreShape::new(store, None);
    TeacherLink::new(Some(Teacher::start(model.unwrap(), weights, &options, &shape).unwrap()), 3, Alpha::constant(0.7))
}

#[test]
fn difficulty_is_the_task_loss_and_depends_neither_on_chunks_nor_on_who_computes_it() {
    tch::set_num_threads(1);
    for task in [Task::Classification, Task::MultiLabel, Task::Regression] {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path(), task);
        let graphs: Vec<u64> = (0..store.num_graphs()).filter(|graph| graph % 5 < 3).collect();
        let kinds = [
            (GnnKind::Gin, Pooling::Sum),
            (GnnKind::Gcn, Pooling::Mean),
            (GnnKind::Sage, Pooling::Max),
            (GnnKind::Gat, Pooling::Attention),
            (GnnKind::Mlp, Pooling::Sum),
        ];
        for (kind, pooling) in kinds {
            let what = format!("{task:?}, {kind:?}, {pooling:?}");
            let config = architecture(&store, &graphs, kind, pooling);
            let mut parameters = FreshParameters::new(5, Device::Cpu);
            let model = Gnn::new(Scope::root(&mut parameters), &config, Backend::Auto).unwrap();
            let tensors = Trainable::new(parameters.into_tensors(), Device::Cpu).unwrap();
            let score = |chunk, source: OutputSource| scorer(&store, &config, chunk).score(source, &graphs).unwrap();
            let whole = score(usize::MAX, OutputSource::Network(&model));
            assert_eq!(whole.len(), graphs.len());
            for chunk in [1, 7, 64] {
                assert_eq!(whole, score(chunk, OutputSource::Network(&model)), "{what}: chunks of {chunk}");
            }
            for cache in [CacheMode::Off, CacheMode::Ram] {
                let mut teacher = teacher(&config, &tensors, &store, cache);
                for chunk in [16, usize::MAX] {
                    let found = score(chunk, OutputSource::Teacher(&mut teacher));
                    assert_eq!(whole, found, "{what}: a teacher, {cache:?}, chunks of {chunk}");
                }
            }
            let mut reversed = graphs.clone();
            reversed.reverse();
            let mut found = scorer(&store, &config, 10).score(OutputSource::Network(&model), &reversed).unwrap();
            found.reverse();
            assert_eq!(whole, found, "{what}: another order");

            // Its mean is the task loss of the validation of these graphs.
            let options = AssembleOptions {
                vocabulary: Arc::new(store.vocabulary().clone()),
                unknown_drop: None,
                edge_attributes: config.edge_features > 0,
                hashed_ids: false,
                profile: None,
                short_profiles: false,
                space: None,
            };
            let batch = assemble(&store, &graphs, &options).unwrap();
            let mut objective = GraphObjective::new(model, task, TeacherLink::none(), None);
            objective.receive(&batch).unwrap();
            let loss = tch::no_grad(|| objective.validation_loss(&batch, &Part::whole(&batch))).unwrap().total;
            let mean = whole.iter().map(|&value| f64::from(value)).sum::<f64>() / graphs.len() as f64;
            let loss = loss.double_value(&[]);
            assert!((mean - loss).abs() < 1e-5 * loss.abs().max(1.0), "{what}: mean {mean}, loss {loss}");
        }
    }
}

#[test]
fn scores_are_of_these_weights_and_of_finite_outputs() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path(), Task::Classification);
    let config = architecture(&store, &[], GnnKind::Gin, Pooling::Sum);
    let scorer = scorer(&store, &config, 50);
    let error = scorer.difficulty(7, &[f32::NAN, 1.0]).unwrap_err().to_string();
    assert!(error.contains("the difficulty of graph 7 is NaN"), "{error}");
    assert!(scorer.difficulty(7, &[1.0]).is_err() || scorer.difficulty(6, &[1.0]).is_err(), "a class without logit");
    // Graph 7 is a star, class 1 in the order of the names ring, star.
    assert!((scorer.difficulty(7, &[0.0, 0.0]).unwrap() - 2f32.ln()).abs() < 1e-6);
    assert!(scorer.difficulty(7, &[-9.0, 9.0]).unwrap() < scorer.difficulty(7, &[9.0, -9.0]).unwrap());
}

/// A workplace with the dataset `shapes`, of 200 graphs, 120 of them for training.
fn workplace(task: Task) -> Workplace {
    let place = Workplace::new();
    write_shapes(&place.path().join("shapes"), 200, task);
    place
}

fn arguments<'a>(preset: &'a str, epochs: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let common = ["train", "--data", "shapes", "--preset", preset, "--hidden", "8", "--layers", "2"];
    let machine = ["--max-epochs", epochs, "--device", "cpu", "--batch-size", "16", "--optimize-batch-size", "false"];
    [&common[..], &machine, more].concat()
}

fn train(place: &Workplace, preset: &str, epochs: &str, more: &[&str]) -> String {
    place.success(&arguments(preset, epochs, more))
}

/// A column of a run's `metrics.csv`.
fn column(place: &Workplace, run: &str, name: &str) -> Vec<f64> {
    let mut reader = csv::Reader::from_path(place.path().join(run).join("metrics.csv")).unwrap();
    let rows = reader.deserialize::<HashMap<String, String>>();
    rows.map(|row| row.unwrap()[name].parse().unwrap_or(f64::NAN)).collect()
}

/// From a quarter of the graphs to all of them after three epochs.
const RAMP: [&str; 4] = ["--curriculum-start-share", "0.25", "--curriculum-epochs", "3"];

#[test]
fn a_share_of_the_graphs_grows_by_the_teachers_difficulty() {
    let place = workplace(Task::Classification);
    train(&place, "gin,teacher", "3", &[]);
    for kind in ["easiest", "static", "difficulty", "random"] {
        let more = [&RAMP[..], &["--curriculum", kind, "--run-dir", kind, "--offload-teacher"]].concat();
        let said = train(&place, "gin,student", "5", &more);
        assert_eq!(column(&place, kind, "curriculum_graphs"), [30.0, 60.0, 90.0, 120.0, 120.0], "{kind}");
        assert_eq!(column(&place, kind, "curriculum_share"), [0.25, 0.5, 0.75, 1.0, 1.0], "{kind}");
        let is_scored = said.contains("curriculum: the difficulty of a graph is the teacher's task loss");
        assert_eq!(is_scored, kind != "random", "{said}");
    }
    let difficulty = |kind| column(&place, kind, "curriculum_difficulty");
    let (easiest, hardest) = (difficulty("easiest"), difficulty("static"));
    assert!(easiest.windows(2).all(|pair| pair[0] <= pair[1]) && easiest[0] < hardest[0], "{easiest:?} {hardest:?}");
    assert!(hardest.windows(2).all(|pair| pair[0] >= pair[1]), "{hardest:?}");
    assert!((easiest[4] - hardest[4]).abs() < 1e-9, "in the end all graphs are chosen");
    assert!(difficulty("random").iter().all(|value| value.is_nan()));
    assert_eq!(column(&place, "difficulty", "curriculum_percentile"), [50.0, 65.0, 80.0, 95.0, 95.0]);

    // All runs share one file of scores, which says what the teacher says.
    let kept: Vec<_> = fs::read_dir(place.path().join("stores/difficulty")).unwrap().map(Result::unwrap).collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    let scores = Scores::read(&kept[0].path()).unwrap();
    // The easiest 15 of each of the two kinds, which alternate.
    let of_kind = |parity: u64| {
        let pairs = scores.graphs.iter().zip(&scores.difficulty).filter(|(graph, _)| **graph % 2 == parity);
        let mut of_kind: Vec<f64> = pairs.map(|(_, &difficulty)| f64::from(difficulty)).collect();
        of_kind.sort_by(f64::total_cmp);
        of_kind[..15].iter().sum::<f64>()
    };
    let mean = (of_kind(0) + of_kind(1)) / 30.0;
    assert!((mean - easiest[0]).abs() < 1e-9, "{mean} and {}", easiest[0]);
    let choices = fs::read_to_string(place.path().join("easiest/curriculum.csv")).unwrap();
    let mut lines = choices.lines();
    assert_eq!(lines.next(), Some("epoch,difficulty_low,difficulty_high,graphs,chosen"));
    let of_first: Vec<Vec<&str>> =
        lines.filter(|line| line.starts_with("0,")).map(|line| line.split(',').collect()).collect();
    let sum = |column: usize| of_first.iter().map(|row| row[column].parse::<u64>().unwrap()).sum::<u64>();
    assert_eq!((sum(3), sum(4)), (120, 30));

    // The same model by its path gives the same difficulty, also to a student without a teacher; so does a damaged file of scores.
    let model = ["--difficulty-model", "teachers/shapes/graph"];
    let named = |run: &str| {
        let more = [&RAMP[..], &model, &["--curriculum", "easiest", "--use-kd", "false", "--run-dir", run]].concat();
        let said = train(&place, "gin,student", "5", &more);
        assert!(said.contains("the task loss of teachers/shapes/graph"), "{said}");
        column(&place, run, "curriculum_difficulty")
    };
    assert_eq!(named("named"), easiest);
    for file in fs::read_dir(place.path().join("stores/difficulty")).unwrap() {
        let path = file.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() - 5;
        bytes[middle] ^= 0x40;
        fs::write(&path, &bytes).unwrap();
    }
    assert_eq!(named("again"), easiest);
    assert_eq!(loss_columns(&place.path().join("named")), loss_columns(&place.path().join("again")));

    // Evaluation tells the kinds apart, and a report shows the choice.
    let said =
        place.success(&["evaluate", "easiest", "random", "--data", "shapes", "--device", "cpu", "--resamples", "0"]);
    assert!(said.contains("easiest") && said.contains("random"), "{said}");
    place.success(&["report", "easiest", "--output", "easiest.html"]);
    let html = fs::read_to_string(place.path().join("easiest.html")).unwrap();
    assert!(
        html.contains("Difficulty of the training graphs: 30 of 120 are chosen in epoch 1, 120 in epoch 5"),
        "no chart"
    );
}

#[test]
fn the_order_depends_on_the_seed_alone() {
    let place = workplace(Task::Classification);
    let run = |name: &str, seed: &str, threads: &str| {
        let by = ["--curriculum", "easiest", "--difficulty-source", "size", "--seed", seed, "--num-workers", threads];
        train(&place, "gin,teacher", "3", &[&RAMP[..], &by, &["--run-dir", name]].concat());
        loss_columns(&place.path().join(name))
    };
    let first = run("first", "1", "1");
    assert_eq!(first, run("second", "1", "2"));
    assert_ne!(first, run("other", "2", "1"));
    // Rings for training have 3, 5 or 7 nodes and stars 8, 10 or 12, 20 of each: the easiest 15 of both kinds have 3 or 8.
    let expected = (3.0 + 8.0) / 2.0;
    assert!((column(&place, "first", "curriculum_difficulty")[0] - expected).abs() < 1e-9);
}

#[test]
fn a_killed_run_with_the_students_own_difficulty_goes_on_to_the_same_losses() {
    for task in [Task::Classification, Task::MultiLabel, Task::Regression] {
        let place = workplace(task);
        let by_own = ["--curriculum-start-share", "0.3", "--curriculum", "static", "--difficulty-cache-update", "3"];
        let rest = ["--schedule", "constant", "--patience", "100"];
        let more = |run: &'static str| [&by_own[..], &rest, &["--run-dir", run]].concat();
        let said = train(&place, "gin,teacher", "40", &more("whole"));
        assert!(said.contains("the student's task loss after the first epoch, scored again every 3 epochs"), "{said}");
        let difficulty = column(&place, "whole", "curriculum_difficulty");
        assert!(difficulty[0].is_nan() && difficulty[1..].iter().all(|value| value.is_finite()), "{difficulty:?}");

        // Killed after each of several epochs, in the middle of the next one or while it scores.
        let place_of = |name: &str| place.path().join("killed").join(name);
        for epochs in [1, 3, 4, 8] {
            let command = arguments("gin,teacher", "40", &more("killed"));
            let done = || fs::read_to_string(place_of("metrics.csv")).map_or(0, |text| text.lines().count());
            let command = place.command(&[&command[..], &["--resume"]].concat());
            kill_when(command, &format!("the end of epoch {epochs}"), || done() > epochs);
        }
        train(&place, "gin,teacher", "40", &[&more("killed")[..], &["--resume"]].concat());
        let [whole, killed] = ["whole", "killed"].map(|run| loss_columns(&place.path().join(run)));
        assert_eq!(whole, killed, "{task:?}");
        let read = |run: &str| fs::read(place.path().join(run).join("best.safetensors")).unwrap();
        assert!(read("whole") == read("killed"), "{task:?}: the best model differs");
    }
}

#[test]
fn combinations_that_make_no_sense_are_refused() {
    let place = workplace(Task::Classification);
    train(&place, "gin,teacher", "1", &[]);
    let refused = |preset: &str, more: &[&str], text: &str| {
        let said = place.refused(&arguments(preset, "1", more));
        assert!(said.contains(text), "{more:?}: {said} lacks {text}");
    };
    let share = ["--curriculum-start-share", "0.5"];
    let with = |more: &[&'static str]| [&share[..], more].concat();
    refused("gin,teacher", &["--curriculum", "easiest"], "add --curriculum-start-share 0.5 or drop it");
    refused("gin,teacher", &["--difficulty-percentile", "20"], "add --curriculum-start-share 0.5");
    refused("gin,teacher", &["--curriculum-start-ratio", "2"], "use --curriculum-start-share or drop it");
    refused("gin,teacher", &["--curriculum-start-share", "1.5"], "out of range");
    refused("gin,teacher", &with(&["--curriculum", "none"]), "curriculum is none");
    refused(
        "gin,teacher",
        &with(&["--curriculum", "easiest", "--difficulty-percentile", "20"]),
        "add --curriculum difficulty",
    );
    refused(
        "gin,teacher",
        &with(&["--curriculum", "random", "--difficulty-source", "size"]),
        "does not score difficulty",
    );
    refused("gin,student", &with(&["--difficulty-cache-update", "5"]), "add --difficulty-source student");
    refused("gin,teacher", &with(&["--difficulty-source", "size", "--difficulty-chunk", "9"]), "its number of nodes");
    let of_student = ["--difficulty-source", "student", "--difficulty-model", "teachers/shapes/graph"];
    refused("gin,teacher", &with(&of_student), "use --difficulty-source auto");
    refused("gin,teacher", &with(&["--difficulty-model", "nowhere"]), "nowhere");
    // A model of another division may have learned from this one's test graphs.
    fs::write(place.path().join("shapes/graphs.csv"), {
        let text = fs::read_to_string(place.path().join("shapes/graphs.csv")).unwrap();
        text.replacen(",train\n", ",moved\n", 1).replacen(",test\n", ",train\n", 1).replacen(",moved\n", ",test\n", 1)
    })
    .unwrap();
    let model = ["--difficulty-model", "teachers/shapes/graph"];
    refused("gin,teacher", &with(&model), "the difficulty model teachers/shapes/graph");
    refused("gin,teacher", &with(&model), "or name one with --difficulty-model");
    // A file with embeddings alone says nothing about a graph's loss.
    let rows: String = (0..200).map(|graph| format!("g{graph},0.5\n")).collect();
    fs::write(place.path().join("outputs.csv"), format!("graph_id,embedding_0\n{rows}")).unwrap();
    refused("gin,student", &with(&["--targets-file", "outputs.csv"]), "it has no logits or values");

    let curriculum = |more: &[&str]| {
        place.refused(&[&["curriculum", "--preset", "gat,student", "--use-kd", "false"][..], more].concat())
    };
    let said = curriculum(&share);
    assert!(said.contains("use --curriculum-start-ratio and --curriculum-end-ratio"), "{said}");
    let said = curriculum(&["--difficulty-source", "size"]);
    assert!(said.contains("name one with --difficulty-model"), "{said}");
}
