//! Cached targets equal live ones, whichever process filled the cache, and are refused if they belong to another teacher or dataset.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use support::comparison::assert_same_batch;
use support::process::{alone, assert_passed, test_name};

use kdgat::distill::cache::RecordLayout;
use kdgat::distill::{
    CacheMode, FrozenModel, LayerSpec, LayerState, ModelError, Precision, Residency, StoreShape, Summary, TargetLayout,
    Targets, Teacher, TeacherError, TeacherOptions, WeightViews,
};
use kdgat::graph::Batch;
use support::distill::{Behaviour, Perceptron, batch, bits, burst, cache_options, deviation, shape};
use tch::Device;

const GRAPHS: u64 = 60;

fn epoch(size: u64) -> Vec<Vec<u64>> {
    (0..GRAPHS / size).map(|number| (number * size..(number + 1) * size).rev().collect()).collect()
}

fn start(options: &TeacherOptions) -> Teacher {
    let model = Perceptron::vgae(Behaviour::Proper);
    let weights = model.weights(3);
    Teacher::start(model, weights, options, &shape(GRAPHS)).unwrap()
}

fn live(batches: &[Vec<u64>]) -> Vec<Targets> {
    burst(&mut start(&TeacherOptions::new(Device::Cpu)), batches).unwrap()
}

fn all_bits(targets: &[Targets]) -> Vec<impl PartialEq + std::fmt::Debug + use<>> {
    targets.iter().map(bits).collect()
}

/// Targets of two epochs of one burst each, and the summary.
fn two_epochs(options: &TeacherOptions, batches: &[Vec<u64>]) -> (Vec<Targets>, Vec<Targets>, Summary) {
    let mut teacher = start(options);
    let first = burst(&mut teacher, batches).unwrap();
    let second = burst(&mut teacher, batches).unwrap();
    (first, second, teacher.finish().unwrap())
}

#[test]
fn cached_targets_are_the_live_ones_and_the_teacher_runs_once() {
    tch::set_num_threads(1);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("deep/targets.cache");
    let batches = epoch(12);
    let expected = live(&batches);
    for (mode, residency) in [
        (CacheMode::Ram, Residency::Resident),
        (CacheMode::Auto, Residency::Forward),
        (CacheMode::Disk, Residency::Layer),
    ] {
        let options = TeacherOptions { residency, ..cache_options(mode, Some(&file)) };
        let (first, second, summary) = two_epochs(&options, &batches);
        assert_eq!(all_bits(&first), all_bits(&expected), "{mode:?}, first epoch");
        assert_eq!(all_bits(&second), all_bits(&expected), "{mode:?}, second epoch");
        // Five batches, and two small ones for the determinism check.
        assert_eq!((summary.visits, summary.forwards), (1, 7), "{mode:?}");
        assert_eq!((summary.total.cache_miss_rows, summary.total.cache_hit_rows), (GRAPHS, GRAPHS), "{mode:?}");
        let cache = summary.cache.clone().unwrap();
        assert_eq!((cache.filled_graphs, cache.used_graphs), (GRAPHS, GRAPHS));
        assert_eq!(summary.total.device_bytes_teacher, 0, "{mode:?}: let go once the cache is complete");
        assert!(summary.decisions.iter().any(|line| line.contains("targets of 60 graphs take")), "{summary:?}");
    }
    // The file outlives the process: another run never needs the teacher.
    let (again, _, summary) = two_epochs(&cache_options(CacheMode::Disk, Some(&file)), &batches);
    assert_eq!(all_bits(&again), all_bits(&expected));
    assert_eq!((summary.visits, summary.copies, summary.total.cache_miss_rows), (0, 0, 0));
}

#[test]
fn logits_are_cached_per_graph() {
    let batches = epoch(20);
    let model = || Perceptron::classifier();
    let run = |options: &TeacherOptions| {
        let mut teacher = Teacher::start(model(), model().weights(3), options, &shape(GRAPHS)).unwrap();
        burst(&mut teacher, &batches).unwrap();
        burst(&mut teacher, &batches).unwrap()
    };
    let cached = run(&cache_options(CacheMode::Ram, None));
    assert_eq!(all_bits(&cached), all_bits(&run(&TeacherOptions::new(Device::Cpu))));
}

#[test]
fn half_a_batch_from_the_cache_keeps_every_row_in_its_place() {
    tch::set_num_threads(1);
    let mut teacher = start(&cache_options(CacheMode::Ram, None));
    let even: Vec<u64> = (0..GRAPHS).filter(|graph| graph % 2 == 0).collect();
    burst(&mut teacher, &[even]).unwrap();
    let mixed = burst(&mut teacher, &[(0..GRAPHS).rev().collect(), vec![5, 2, 5, 3]]).unwrap();
    let expected = live(&[(0..GRAPHS).rev().collect(), vec![5, 2, 5, 3]]);
    for (mixed, expected) in mixed.iter().zip(&expected) {
        // The rounding of matrix products depends on the number of rows.
        assert!(deviation(mixed, expected) < 1e-6, "{}", deviation(mixed, expected));
    }
    let report = teacher.report();
    assert_eq!((report.cache_hit_rows, report.cache_miss_rows), (30 + 1, 30 + 30 + 3));
    let again = burst(&mut teacher, &[(0..GRAPHS).rev().collect()]).unwrap();
    assert_eq!(bits(&again[0]), bits(&mixed[0]), "a graph's targets never change");
}

#[test]
fn only_used_graphs_have_to_be_filled() {
    let used: Vec<u64> = (10..30).collect();
    let shape = StoreShape { used: Some(used.clone()), ..shape(GRAPHS) };
    let model = Perceptron::vgae(Behaviour::Proper);
    let weights = model.weights(3);
    let mut teacher = Teacher::start(model, weights, &cache_options(CacheMode::Ram, None), &shape).unwrap();
    burst(&mut teacher, &[used]).unwrap();
    let summary = teacher.finish().unwrap();
    assert_eq!(summary.cache.map(|cache| (cache.filled_graphs, cache.used_graphs)), Some((20, 20)));
    assert_eq!(summary.total.device_bytes_teacher, 0);
}

#[test]
fn half_precision_is_the_same_live_and_cached_and_its_deviation_is_stated() {
    let folder = tempfile::tempdir().unwrap();
    let batches = epoch(15);
    for mode in [CacheMode::Ram, CacheMode::Disk] {
        let mut options = cache_options(mode, Some(&folder.path().join("half")));
        options.cache.precision = Precision::F16;
        let (first, second, summary) = two_epochs(&options, &batches);
        assert_eq!(all_bits(&first), all_bits(&second), "the loss must not depend on what is cached");
        let worst = first.iter().zip(&live(&batches)).map(|(half, full)| deviation(half, full)).fold(0.0, f64::max);
        let stated = summary.cache.unwrap().half_deviation;
        assert!(worst > 0.0 && worst < 1e-3, "{worst}");
        assert!(stated > 0.0 && stated < 1e-3, "{stated}");
    }
}

fn refusal(behaviour: Behaviour) -> String {
    let model = Perceptron::vgae(behaviour);
    let weights = model.weights(3);
    let mut teacher = Teacher::start(model, weights, &cache_options(CacheMode::Ram, None), &shape(GRAPHS)).unwrap();
    let error = burst(&mut teacher, &epoch(12)).map(|_| ()).unwrap_err();
    assert!(matches!(error, TeacherError::NotCacheable(_)), "{error:?}");
    error.to_string()
}

#[test]
fn a_teacher_that_is_not_a_function_of_the_graph_is_refused() {
    // Dropout uses the process's generator.
    let _alone = alone();
    let dropout = refusal(Behaviour::Dropout);
    assert!(dropout.contains("dropout") && dropout.contains("latent"), "{dropout}");
    let statistics = refusal(Behaviour::BatchStatistics);
    assert!(statistics.contains("batch norm"), "{statistics}");
    // Without a cache such a teacher is allowed.
    let model = Perceptron::vgae(Behaviour::Dropout);
    let weights = model.weights(3);
    let mut teacher =
        Teacher::start(model, weights, &TeacherOptions::new(Device::Cpu), &StoreShape::default()).unwrap();
    burst(&mut teacher, &epoch(12)).unwrap();
}

fn fill(file: &Path) {
    let (_, _, summary) = two_epochs(&cache_options(CacheMode::Disk, Some(file)), &epoch(12));
    assert_eq!(summary.cache.unwrap().filled_graphs, GRAPHS);
}

fn opening_error(options: &TeacherOptions, shape: &StoreShape, seed: u64) -> String {
    let model = Perceptron::vgae(Behaviour::Proper);
    let weights = model.weights(seed);
    match Teacher::start(model, weights, options, shape) {
        Ok(_) => panic!("the cache was accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_stale_or_foreign_cache_is_refused_and_says_what_differs() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("targets.cache");
    fill(&file);
    let options = cache_options(CacheMode::Disk, Some(&file));
    let retrained = opening_error(&options, &shape(GRAPHS), 4);
    assert!(retrained.contains("teacher's weights (cache: ") && retrained.contains("delete the file"), "{retrained}");
    assert!(!retrained.contains("dataset"), "{retrained}");
    let other_data = StoreShape { dataset_digest: "other".to_string(), ..shape(GRAPHS) };
    let foreign = opening_error(&options, &other_data, 3);
    assert!(foreign.contains("dataset (cache: imagined, needed: other)"), "{foreign}");
    let mut half = options.clone();
    half.cache.precision = Precision::F16;
    assert!(opening_error(&half, &shape(GRAPHS), 3).contains("precision (cache: f32, needed: f16)"));
    let mut deeper = options.clone();
    deeper.cache.architecture = "{\"hidden\":[64]}".to_string();
    assert!(opening_error(&deeper, &shape(GRAPHS), 3).contains("architecture"));
    assert!(opening_error(&options, &shape(GRAPHS + 1), 3).contains("node counts"));
}

#[test]
fn a_damaged_cache_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("targets.cache");
    fill(&file);
    let whole = std::fs::read(&file).unwrap();
    let options = cache_options(CacheMode::Disk, Some(&file));
    let damage = |bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        opening_error(&options, &shape(GRAPHS), 3)
    };
    let mut header = whole.clone();
    header[40] ^= 1;
    assert!(damage(&header).contains("header fails its checksum"));
    assert!(damage(&whole[..10]).contains("shorter than a header"));
    assert!(damage(&whole[..100]).contains("cut off"));
    assert!(damage(&whole[..whole.len() - 1]).contains("its length is"));
    assert!(damage(b"something else entirely, and long enough").contains("does not begin like a cache"));
    let mut version = whole.clone();
    version[8] = 9;
    let version = damage(&version);
    assert!(version.contains("format version 9") && version.contains("targets.cache"), "{version}");
}

#[test]
fn damaged_records_are_computed_anew() {
    tch::set_num_threads(1);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("targets.cache");
    fill(&file);
    let length = std::fs::metadata(&file).unwrap().len();
    let handle = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
    handle.write_all_at(&[0xff; 300], length - 900).unwrap();
    let damaged = records_in(length - 900..length - 600, length);
    let (first, second, summary) = two_epochs(&cache_options(CacheMode::Disk, Some(&file)), &epoch(12));
    for (found, expected) in first.iter().zip(&live(&epoch(12))) {
        assert!(deviation(found, expected) < 1e-6);
    }
    assert_eq!(all_bits(&first), all_bits(&second));
    let cache = summary.cache.unwrap();
    assert_eq!((cache.damaged_records, cache.filled_graphs), (damaged, GRAPHS), "{cache:?}");
}

/// Number of records with bytes in `range`, in a cache file of this length.
fn records_in(range: std::ops::Range<u64>, length: u64) -> u64 {
    let layout = Perceptron::vgae(Behaviour::Proper).target_layout();
    let layout = RecordLayout::new(layout, Precision::F32, &shape(GRAPHS).node_counts);
    let begin = |graph: u64| length - layout.offset(GRAPHS) + layout.offset(graph);
    let count = (0..GRAPHS).filter(|&graph| begin(graph) < range.end && begin(graph + 1) > range.start).count();
    assert!(count > 1, "the damage is too small");
    count as u64
}

#[test]
fn a_file_that_is_truncated_while_it_is_used_costs_time_but_no_row() {
    tch::set_num_threads(1);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("targets.cache");
    fill(&file);
    let mut teacher = start(&cache_options(CacheMode::Disk, Some(&file)));
    let expected = live(&epoch(12));
    assert_eq!(all_bits(&burst(&mut teacher, &epoch(12)).unwrap()), all_bits(&expected));
    std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(5000).unwrap();
    for _ in 0..2 {
        for (found, expected) in burst(&mut teacher, &epoch(12)).unwrap().iter().zip(&expected) {
            assert!(deviation(found, expected) < 1e-6);
        }
    }
    let summary = teacher.finish().unwrap();
    assert!(summary.visits >= 1 && summary.cache.unwrap().damaged_records > 0);
}

#[test]
fn weights_are_read_again_when_a_complete_cache_turns_out_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let (file, weights_file) = (folder.path().join("targets.cache"), folder.path().join("weights.safetensors"));
    let model = Perceptron::vgae(Behaviour::Proper);
    let tensors: Vec<_> = model.weights(3).iter().map(|(name, tensor)| (name.to_string(), tensor.copy())).collect();
    tch::Tensor::write_safetensors(&tensors, &weights_file).unwrap();
    let start = || {
        let weights = kdgat::distill::Weights::read(&weights_file).unwrap();
        let options = cache_options(CacheMode::Disk, Some(&file));
        Teacher::start(Perceptron::vgae(Behaviour::Proper), weights, &options, &shape(GRAPHS)).unwrap()
    };
    let mut teacher = start();
    burst(&mut teacher, &epoch(12)).unwrap();
    // Targets are cached after they have been returned; the next answer shows that all were.
    burst(&mut teacher, &epoch(12)).unwrap();
    let damage = || {
        let handle = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
        handle.write_all_at(&[0xff; 300], handle.metadata().unwrap().len() - 900).unwrap();
    };
    damage();
    burst(&mut teacher, &epoch(12)).unwrap();
    let length = std::fs::metadata(&file).unwrap().len();
    let damaged = records_in(length - 900..length - 600, length);
    assert_eq!(teacher.finish().unwrap().cache.unwrap().damaged_records, damaged);
    // The teacher's file has other weights now: the error names both digests and what to do.
    let mut teacher = start();
    let expected = teacher.digest().to_string();
    burst(&mut teacher, &epoch(12)).unwrap();
    let others = model.weights(4);
    others.write_safetensors(&weights_file).unwrap();
    damage();
    let error = burst(&mut teacher, &epoch(12)).map(|_| ()).unwrap_err().to_string();
    for text in [others.digest(), &expected, "weights.safetensors", "--teacher-path", "--resume"] {
        assert!(error.contains(text), "{text} in {error}");
    }
    tch::Tensor::write_safetensors(&tensors, &weights_file).unwrap();
    // The teacher's file is gone, and the cache is damaged again: the error says so.
    let mut teacher = start();
    burst(&mut teacher, &epoch(12)).unwrap();
    std::fs::remove_file(&weights_file).unwrap();
    damage();
    let error = burst(&mut teacher, &epoch(12)).map(|_| ()).unwrap_err();
    assert!(matches!(error, TeacherError::Reload { .. }), "{error:?}");
    assert!(error.to_string().contains("weights.safetensors"), "{error}");
}

/// A teacher that fails in its first forward pass and takes a moment to free its memory.
struct SlowToEnd(Box<Perceptron>);

impl FrozenModel for SlowToEnd {
    fn target_layout(&self) -> TargetLayout {
        self.0.target_layout()
    }

    fn layers(&self) -> Vec<LayerSpec> {
        self.0.layers()
    }

    fn forward_layer(
        &self,
        layer: usize,
        weights: &WeightViews,
        batch: &Batch,
        state: LayerState,
    ) -> Result<LayerState, ModelError> {
        self.0.forward_layer(layer, weights, batch, state)
    }
}

impl Drop for SlowToEnd {
    fn drop(&mut self) {
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
}

/// A caller that waits for targets while the thread ends gets the cause, however long the end takes.
#[test]
fn what_ends_the_thread_while_damaged_targets_are_computed_again_arrives() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("targets.cache");
    fill(&file);
    let (model, options) = (Perceptron::vgae(Behaviour::FailOn(1)), cache_options(CacheMode::Disk, Some(&file)));
    let weights = model.weights(3);
    let mut teacher = Teacher::start(Box::new(SlowToEnd(model)), weights, &options, &shape(GRAPHS)).unwrap();
    let handle = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
    handle.write_all_at(&[0xff; 300], handle.metadata().unwrap().len() - 900).unwrap();
    let error = burst(&mut teacher, &epoch(12)).map(|_| ()).unwrap_err();
    assert_eq!(error.to_string(), "the fake teacher gave up");
    assert!(teacher.finish().unwrap_err().to_string().contains("the fake teacher gave up"));
}

#[test]
fn what_does_not_fit_is_said_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("targets.cache");
    let huge = StoreShape { node_counts: vec![u32::MAX; 1000], ..shape(0) };
    let model = Perceptron::vgae(Behaviour::Proper);
    let weights = model.weights(3);
    let teacher = Teacher::start(model, weights, &cache_options(CacheMode::Disk, Some(&file)), &huge).unwrap();
    let decisions = teacher.decisions().join("\n");
    assert!(decisions.contains("none: targets of 1000 graphs take 240.5 TB"), "{decisions}");
    assert!(!file.exists());
    let error = opening_error(&cache_options(CacheMode::Ram, None), &huge, 3);
    assert!(error.contains("240.5 TB") && error.contains("1.1 GB") && error.contains("disk"), "{error}");
    let mut small = cache_options(CacheMode::Auto, Some(&file));
    small.cache.ram_budget_bytes = 100;
    assert_eq!(two_epochs(&small, &epoch(12)).2.cache.unwrap().kind, "disk");
}

/// Run by [`a_full_disk_ends_the_writing_and_nothing_else`] in a process with a small file size limit.
#[test]
fn child_with_a_full_disk() {
    let Some(file) = std::env::var_os("KDGAT_TEST_FULL_DISK") else { return };
    tch::set_num_threads(1);
    let (first, second, summary) = two_epochs(&cache_options(CacheMode::Disk, Some(Path::new(&file))), &epoch(12));
    let expected = live(&epoch(12));
    assert_eq!(all_bits(&first), all_bits(&expected));
    for (found, expected) in second.iter().zip(&expected) {
        assert!(deviation(found, expected) < 1e-6);
    }
    let filled = summary.cache.unwrap().filled_graphs;
    assert!(0 < filled && filled < GRAPHS, "{filled} graphs were filled");
}

#[test]
fn a_full_disk_ends_the_writing_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("targets.cache");
    // The file must exist already, because extending it is refused at once.
    drop(start(&cache_options(CacheMode::Disk, Some(&file))));
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 40; exec \"$0\" --exact \"$1\""])
        .arg(std::env::current_exe().unwrap())
        .arg(test_name(module_path!(), "child_with_a_full_disk"))
        .env("KDGAT_TEST_FULL_DISK", &file)
        .output()
        .unwrap();
    assert_passed(&output);
    // The written records are correct, and the next run completes them.
    let (first, _, summary) = two_epochs(&cache_options(CacheMode::Disk, Some(&file)), &epoch(12));
    assert_eq!(summary.cache.unwrap().filled_graphs, GRAPHS);
    for (found, expected) in first.iter().zip(&live(&epoch(12))) {
        assert!(deviation(found, expected) < 1e-6);
    }
}

#[test]
fn a_selection_of_graphs_is_the_batch_of_these_graphs() {
    let whole = batch(&[4, 9, 1, 1, 30, 12]);
    for positions in [vec![0], vec![5, 1], vec![3, 2, 4, 0], vec![], vec![0, 1, 2, 3, 4, 5]] {
        let graphs: Vec<u64> = positions.iter().map(|&position| whole.graph_index[position]).collect();
        let (mut found, mut expected) = (whole.select_graphs(&positions).unwrap(), batch(&graphs));
        // Drawn for each batch.
        expected.edge_attributes = None;
        let edges = found.adjacency.num_edges();
        assert_eq!(found.edge_attributes.take().unwrap().size(), [edges, 11]);
        assert_same_batch(&found, &expected);
    }
}
