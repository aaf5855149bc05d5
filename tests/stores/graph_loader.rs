//! The loader returns the same batches as direct assembly, in order, and stops on request.

use std::sync::Arc;

use kdgat::graph::{
    AssembleOptions, Batch, Loader, LoaderOptions, Store, StoreError, UnknownDrop, assemble, shuffled_batches,
};
use support::graph::{options, store};
use tch::{Kind, Tensor};

fn integers(tensor: &Tensor) -> Vec<i64> {
    Vec::try_from(tensor.to_kind(Kind::Int64).view([-1])).unwrap()
}

#[test]
fn the_loader_hands_out_the_same_batches_in_order() {
    let store = store();
    let graphs: Vec<u64> = (0..store.num_graphs()).collect();
    let batches = shuffled_batches(&graphs, 16, 5, 9);
    let drop = UnknownDrop { probability: 0.2, seed: 3, epoch: 0, views: 0 };
    let assemble_options = AssembleOptions { unknown_drop: Some(drop), ..options(&store) };
    for workers in [1, 2, 5, 100] {
        for prefetch_batches in [1, 3, 8] {
            let loader = LoaderOptions { assemble: assemble_options.clone(), workers, prefetch_batches };
            let made: Vec<Batch> =
                Loader::start(Arc::clone(&store), loader).epoch(batches.clone(), 9).map(Result::unwrap).collect();
            assert_eq!(made.len(), batches.len());
            for (batch, graphs) in made.iter().zip(&batches) {
                assert_eq!(*batch.graph_index, *graphs);
                let drop = UnknownDrop { epoch: 9, ..drop };
                let options = AssembleOptions { unknown_drop: Some(drop), ..options(&store) };
                let expected = assemble(&store, graphs, &options).unwrap();
                assert_eq!(integers(&batch.id_input), integers(&expected.id_input));
                assert_eq!(integers(&batch.adjacency.sources), integers(&expected.adjacency.sources));
            }
        }
    }
}

#[test]
fn the_loader_stops_when_dropped_and_tells_errors() {
    let store = Arc::new(Store::open(store().path()).unwrap());
    let loader = LoaderOptions { assemble: options(&store), workers: 3, prefetch_batches: 4 };
    let loader = Loader::start(Arc::clone(&store), loader);
    assert_eq!(loader.epoch(Vec::new(), 0).count(), 0);
    let batches: Vec<Vec<u64>> = (0..1000).map(|batch| vec![batch % store.num_graphs(); 8]).collect();
    for taken in [0, 1, 5] {
        let mut epoch = loader.epoch(batches.clone(), 0);
        assert!(epoch.by_ref().take(taken).all(|batch| batch.is_ok()));
        // A second epoch starts before the first has ended: validation in the middle of training.
        assert_eq!(loader.epoch(batches[..10].to_vec(), 0).filter(Result::is_ok).count(), 10);
        assert_eq!(epoch.len(), batches.len() - taken);
        drop(epoch);
    }
    assert_eq!(Arc::strong_count(&store), 2, "only the loader and the test hold the store: its threads have ended");

    let mut broken = batches[..20].to_vec();
    broken[7] = vec![u64::MAX];
    let results: Vec<_> = loader.epoch(broken, 0).collect();
    assert_eq!(results.len(), 8, "the error ends the epoch");
    assert!(results[..7].iter().all(Result::is_ok));
    assert!(matches!(results[7], Err(StoreError::NoSuchGraph { graph: u64::MAX, .. })), "{:?}", results[7]);
}

#[test]
fn shuffling_is_a_pure_function_and_loses_nothing() {
    let graphs: Vec<u64> = (0..1003).map(|graph| graph * 3).collect();
    let batches = shuffled_batches(&graphs, 64, 1, 1);
    assert_eq!(batches, shuffled_batches(&graphs, 64, 1, 1));
    assert_ne!(batches, shuffled_batches(&graphs, 64, 1, 2));
    assert_ne!(batches, shuffled_batches(&graphs, 64, 2, 1));
    assert!(batches[..15].iter().all(|batch| batch.len() == 64) && batches[15].len() == 1003 - 15 * 64);
    let mut all = batches.concat();
    assert_ne!(all, graphs);
    all.sort_unstable();
    assert_eq!(all, graphs);
    assert!(shuffled_batches(&[], 64, 1, 1).is_empty());
}
