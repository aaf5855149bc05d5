//! Difficulty scores: batched or one at a time, cached in files, refused if damaged.

use std::path::Path;
use std::sync::Arc;

use kdgat::can::Dataset;
use kdgat::curriculum::{GraphScore, Scorer, Scores};
use kdgat::distill::frozen::LoadedModel;
use kdgat::graph::{AssembleOptions, BuildOptions, EdgeScaling, Split, Store, assemble, open_or_build};
use kdgat::nn::attention::Backend;
use kdgat::nn::vgae::{Mode, difficulty};
use kdgat::nn::{Architecture, DatasetIdentity, FreshParameters, ModelDescription, Scope, Vgae, VgaeConfig};
use kdgat::train::checkpoint;
use kdgat::train::trainable::Trainable;
use tch::Device;

struct Quiet;

impl kdgat::graph::Progress for Quiet {
    fn report(&self, _: &kdgat::graph::Event<'_>) {}
}

fn store(folder: &Path) -> Arc<Store> {
    let dataset = Dataset::open(support::stage::dataset()).unwrap();
    Arc::new(open_or_build(&dataset, &BuildOptions::default(), folder, &Quiet).unwrap())
}

/// Writes an untrained VGAE as a run's best model.
fn write_model(path: &Path, store: &Store, seed: u64, edge_scaling: Option<EdgeScaling>) -> Vgae {
    let config = VgaeConfig {
        hidden: vec![32, 16, 8],
        latent: 8,
        heads: 2,
        embedding: 4,
        vocabulary_size: store.vocabulary().len() as i64,
        dropout: 0.1,
        edge_scaling,
        input: Default::default(),
    };
    let mut parameters = FreshParameters::new(seed, Device::Cpu);
    let model = Vgae::new(Scope::root(&mut parameters), &config, Backend::Auto).unwrap();
    let description = ModelDescription {
        architecture: Architecture::Vgae(config),
        vocabulary: store.vocabulary().clone(),
        foreign_ids: None,
        dataset: DatasetIdentity { name: "tiny".into(), digest: store.digest().into() },
        window: 100,
        size: "teacher".into(),
        epoch: 0,
        val_loss: None,
        teacher_digest: None,
        created_by_version: "test".into(),
    };
    let tensors = Trainable::new(parameters.into_tensors(), Device::Cpu).unwrap();
    checkpoint::write(path, &tensors.state_dict().unwrap(), &description).unwrap();
    model
}

fn scorer(path: &Path) -> Scorer {
    Scorer::new(LoadedModel::open(path).unwrap(), Device::Cpu, Backend::Auto).unwrap()
}

#[test]
fn batched_difficulty_equals_one_at_a_time() {
    // A single graph is too little work for a second thread; waking it would take longer.
    tch::set_num_threads(1);
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    let graphs: Vec<u64> = store.select(Split::Train, None).into_iter().step_by(3).collect();
    let scaling = EdgeScaling::of(&store, &store.select(Split::Train, Some(false))).unwrap();
    for edge_scaling in [None, Some(scaling)] {
        let path = folder.path().join("best.safetensors");
        let edge_attributes = edge_scaling.is_some();
        let model = write_model(&path, &store, 3, edge_scaling);
        let scorer = scorer(&path);
        let single = Scores::compute(&scorer, &store, &graphs, 1).unwrap().difficulty;
        for chunk in [7, 64, 500] {
            let batched = Scores::compute(&scorer, &store, &graphs, chunk).unwrap();
            assert_eq!(batched.graphs, graphs);
            for ((graph, one), many) in graphs.iter().zip(&single).zip(&batched.difficulty) {
                assert!((one - many).abs() <= 1e-5 * one.abs(), "graph {graph}: {one} alone, {many} of {chunk}");
            }
            assert_eq!(batched, Scores::compute(&scorer, &store, &graphs, chunk).unwrap(), "scored twice");
        }
        // The full forward pass, including decoders that scoring skips, gives the same.
        let options = AssembleOptions {
            vocabulary: Arc::new(store.vocabulary().clone()),
            unknown_drop: None,
            edge_attributes,
            hashed_ids: false,
            profile: None,
            short_profiles: false,
            space: None,
        };
        let batch = assemble(&store, &graphs[..20], &options).unwrap();
        let whole = difficulty(&model.forward(&batch, Mode::Evaluation).unwrap(), &batch).unwrap().total;
        for (position, one) in single[..20].iter().enumerate() {
            let whole = whole.double_value(&[position as i64]);
            assert!((whole - f64::from(*one)).abs() <= 1e-5 * whole, "{whole} and {one}");
        }
    }
}

#[test]
fn a_chunk_never_has_many_more_nodes_than_ordinary_traffic() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    let path = folder.path().join("best.safetensors");
    write_model(&path, &store, 3, None);
    let nodes = |graph: u64| store.graph(graph).num_nodes();
    // Enough nodes for several chunks, although the number of graphs would fit one.
    let all: usize = (0..store.num_graphs()).map(nodes).sum();
    let graphs: Vec<u64> = (0..store.num_graphs()).cycle().take(50_000 / all * store.num_graphs() as usize).collect();
    let (mut chunks, mut scored) = (Vec::new(), Vec::new());
    let take = |scores: &[GraphScore]| {
        chunks.push(scores.iter().map(|score| nodes(score.graph)).sum::<usize>());
        scored.extend(scores.iter().map(|score| score.graph));
        Ok(())
    };
    scorer(&path).score(&store, &graphs, usize::MAX, take).unwrap();
    assert_eq!(scored, graphs);
    assert!(chunks.len() > 2 && chunks.iter().all(|&nodes| nodes <= 16_384), "nodes of chunks: {chunks:?}");
}

#[test]
fn kept_scores_are_used_only_where_they_belong() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    let graphs = store.select(Split::Train, Some(false));
    let (model, other, kept) = ("a.safetensors", "b.safetensors", folder.path().join("difficulty/scores.safetensors"));
    write_model(&folder.path().join(model), &store, 1, None);
    write_model(&folder.path().join(other), &store, 2, None);
    let (first, second) = (scorer(&folder.path().join(model)), scorer(&folder.path().join(other)));
    let scores = Scores::cached(&kept, &first, &store, &graphs, 500).unwrap();
    assert_eq!(Scores::read(&kept).unwrap(), scores);

    // The cache is used as it is: a file with other values under the same digests is read back.
    let mut changed = scores.clone();
    changed.difficulty[0] += 1.0;
    changed.write(&kept).unwrap();
    assert_eq!(Scores::cached(&kept, &first, &store, &graphs, 500).unwrap(), changed);
    // Another model, other graphs or damage: the graphs are scored again.
    let others = Scores::cached(&kept, &second, &store, &graphs, 500).unwrap();
    assert_ne!(others.difficulty, scores.difficulty);
    assert_eq!(Scores::cached(&kept, &first, &store, &graphs[1..], 500).unwrap().graphs, graphs[1..]);
    let mut bytes = std::fs::read(&kept).unwrap();
    let middle = bytes.len() - 5;
    bytes[middle] ^= 0x40;
    std::fs::write(&kept, &bytes).unwrap();
    assert!(Scores::read(&kept).unwrap_err().to_string().contains("scores.safetensors"));
    assert_eq!(Scores::cached(&kept, &first, &store, &graphs, 500).unwrap(), scores);
}
