//! A GPU simulated in software that runs out of memory, or whose calls fail: the same losses, or a clear error.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use support::process::{assert_passed, only_test, rounds, tests_at_once};

use crate::common::training::{ADAM, Training};
use crate::software::Card;
use crate::software::runs::{
    AUTOENCODER, NORMAL, TWO_EPOCHS, Trained, assert_same_losses, losses, run_on, said, same_losses, student,
    success_on,
};
use kdgat::can::Dataset;
use kdgat::distill::frozen::LoadedModel;
use kdgat::evaluate::TrainedModel;
use kdgat::graph::{AssembleOptions, BuildOptions, Loader, LoaderOptions, open_or_build};
use kdgat::memory::probe::Probe;
use kdgat::memory::{Meter, Reclaim, is_out_of_memory, register_reclaim, retry_on_oom};
use kdgat::nn::attention::Backend;
use kdgat::torch::device::Uploader;
use kdgat::{curriculum, evaluate, exit};
use tch::{Device, Kind, Tensor};

/// Memory runs out despite the plan: the step uses fewer graphs at a time, with the same result if there is no batch norm.
#[test]
fn software_card_recovers_where_memory_runs_out() {
    let workplace = &Trained::get().workplace;
    let train = |card: Card, run: &str| {
        // Uncached, so that the teacher runs in every epoch, whatever another test has cached.
        let uncached = ["--offload-teacher", "--use-teacher-cache", "false", "--dropout", "0"];
        success_on(&card, workplace, &[&student(&NORMAL, run)[..], TWO_EPOCHS, &uncached].concat()).0
    };
    train(Card::new(), "normal-whole");
    let needed = workplace.json("normal-whole/summary.json")["peak_memory_bytes"].as_u64().unwrap();
    // Less than a step needs, but enough for the batches and the teacher of a burst.
    let share = needed as f64 * 0.45 / (4_u64 << 30) as f64;
    for seed in [0, 1] {
        let run = format!("normal-recovered-{seed}");
        let said = train(Card::new().late(seed).allocator_share(share), &run);
        assert!(said.contains("did not fit (Internal torch error: CUDA out of memory. Tried to allocate"), "{said}");
        assert_same_losses(workplace, &run, &losses(workplace, "normal-whole"));
    }
}

/// Tensors that fill the card until somebody asks for memory.
#[derive(Default)]
struct Filling(Mutex<Vec<Tensor>>);

impl Filling {
    fn fill(&self, device: Device) {
        let mut held = self.0.lock().unwrap();
        for bytes in [1 << 20, 1 << 12, 1 << 9] {
            let error = loop {
                match Tensor::f_empty([bytes], (Kind::Uint8, device)) {
                    Ok(tensor) => held.push(tensor),
                    Err(error) => break error,
                }
            };
            assert!(is_out_of_memory(&error), "{error}");
        }
    }
}

impl Reclaim for Filling {
    fn reclaim(&self) -> bool {
        !std::mem::take(&mut *self.0.lock().unwrap()).is_empty()
    }
}

/// Runs on a card in a process of its own.
#[test]
fn a_card_that_is_full_in_the_middle_of_uploads() {
    if kdgat::torch::test_cuda_library().is_none() {
        return;
    }
    kdgat::torch::load_cuda();
    let (device, filling) = (Device::Cuda(0), Arc::new(Filling::default()));
    let holder: Arc<dyn Reclaim> = Arc::<Filling>::clone(&filling);
    register_reclaim(&holder);
    let mut uploader = Uploader::new(device).unwrap();
    // Of growing sizes, so that no upload finds memory of the one before.
    let batches: Vec<_> = (1..5).map(|graphs| support::distill::batch(&(0..4 * graphs).collect::<Vec<_>>())).collect();
    let mut uploaded = Vec::new();
    for (number, batch) in batches.iter().enumerate() {
        if number > 0 {
            filling.fill(device);
        }
        let upload = || batch.upload(&mut uploader);
        uploaded.push(retry_on_oom(Meter::new(device), upload).unwrap());
        assert!(filling.0.lock().unwrap().is_empty(), "the card was full");
    }
    for (found, batch) in uploaded.iter().zip(&batches) {
        assert_eq!(found.continuous.to_device(Device::Cpu), batch.continuous);
        assert_eq!(found.successors.to_device(Device::Cpu), batch.successors);
    }
    // Memory that nobody frees: an error, and the upload can be repeated.
    let others = Filling::default();
    others.fill(device);
    let large = support::distill::batch(&(0..40).collect::<Vec<_>>());
    let mut upload = || retry_on_oom(Meter::new(device), || large.upload(&mut uploader));
    assert!(is_out_of_memory(&upload().unwrap_err()));
    drop(others);
    assert_eq!(upload().unwrap().continuous.to_device(Device::Cpu), large.continuous);
}

#[test]
fn software_card_may_be_full_in_the_middle_of_an_upload() {
    let mut command = only_test(module_path!(), "a_card_that_is_full_in_the_middle_of_uploads");
    Card::new().memory(32 << 20).late(1).apply(&mut command);
    assert_passed(&command.output().unwrap());

    // In a whole run: an upload that is refused once is repeated, one that stays refused is an error.
    let trained = Trained::get();
    let workplace = &trained.workplace;
    fn arguments(run: &str) -> Vec<&str> {
        [&student(&NORMAL, run)[..], TWO_EPOCHS, &["--offload-teacher"]].concat()
    }
    let (_, counted) = success_on(&Card::new(), workplace, &arguments("uploads"));
    let uploads = counted["calls"]["upload"].as_u64().unwrap();
    assert!(uploads > 10, "{counted}");
    for upload in [1, 2, uploads / 2, uploads] {
        let run = format!("upload-{upload}");
        let card = Card::new().late(2).fail(&format!("upload:{upload}"));
        let (_, counted) = success_on(&card, workplace, &arguments(&run));
        assert_eq!(counted["injected"], 1);
        assert_same_losses(workplace, &run, &trained.normal);
        let run = format!("no-upload-{upload}");
        let (output, _) = run_on(&Card::new().fail(&format!("upload:{upload}+")), workplace, &arguments(&run));
        let told = said(&output);
        assert_eq!(output.status.code(), Some(exit::OUT_OF_MEMORY.into()), "{told}");
        assert!(told.contains("error: ") && told.contains("out of memory"), "{told}");
    }
}

/// Runs on a card in a process of its own. Wherever a batch goes to a full card, there is memory after another try.
#[test]
fn a_card_that_is_full_when_graphs_are_scored_or_measured() {
    let Some(run) = std::env::var_os("KDGAT_TEST_RUN").map(PathBuf::from) else { return };
    kdgat::torch::load_cuda();
    let (card, filling) = (Device::Cuda(0), Arc::new(Filling::default()));
    let holder: Arc<dyn Reclaim> = Arc::<Filling>::clone(&filling);
    register_reclaim(&holder);
    let fill = |device: Device| {
        if device == card {
            filling.fill(card);
        }
    };
    let folder = tempfile::tempdir().unwrap();
    let dataset = Dataset::open(support::stage::dataset()).unwrap();
    let store = Arc::new(open_or_build(&dataset, &BuildOptions::default(), folder.path(), &()).unwrap());
    let graphs: Vec<u64> = (0..40).collect();
    let same = |what: &str, of: &dyn Fn(Device) -> Vec<f32>| {
        let (found, expected) = (of(card), of(Device::Cpu));
        assert!(filling.0.lock().unwrap().is_empty(), "{what}: the card was full");
        let near =
            found.iter().zip(&expected).all(|(found, expected)| (found - expected).abs() <= 1e-5 * expected.abs());
        assert!(found.len() == graphs.len() && near, "{what}: {found:?} instead of {expected:?}");
    };
    same("difficulties", &|device| {
        let model = LoadedModel::open(&run.join("best.safetensors")).unwrap();
        let scorer = curriculum::Scorer::new(model, device, Backend::Composed).unwrap();
        fill(device);
        let mut scores = Vec::new();
        let take = |chunk: &[curriculum::GraphScore]| {
            scores.extend(chunk.iter().map(|score| score.difficulty));
            Ok(())
        };
        scorer.score(&store, &graphs, 25, take).unwrap();
        scores
    });
    let model = TrainedModel::read(&run).unwrap();
    same("scores", &|device| {
        let scorer = evaluate::Scorer::new(&model, device, Backend::Composed).unwrap();
        fill(device);
        scorer.each_of_store(&store, &graphs, |batch| scorer.raw_scores(batch)).unwrap()
    });

    let mut training = Training::new(&model.description.architecture, None, 1, card).unwrap();
    let assemble = AssembleOptions {
        vocabulary: Arc::new(store.vocabulary().clone()),
        unknown_drop: None,
        edge_attributes: false,
        hashed_ids: false,
        profile: None,
        short_profiles: false,
        space: None,
    };
    let loader = Loader::start(Arc::clone(&store), LoaderOptions { assemble, workers: 1, prefetch_batches: 1 });
    let is_filled = Cell::new(false);
    let probe = Probe {
        objective: training.objective.as_mut(),
        trainable: &mut training.trainable,
        loader: &loader,
        graphs: &graphs,
        size_of: &|graph| {
            // Asked for before the first batch is loaded, when all else is on the card.
            if !is_filled.replace(true) {
                fill(card);
            }
            let view = store.graph(graph);
            (view.num_nodes() as u64, (view.num_edges() + view.num_nodes()) as u64)
        },
        cap: 8,
        burst: 1,
        waiting_batches: 1,
        adam: ADAM,
        precision: None,
        device: card,
    };
    probe.measure().unwrap();
    assert!(is_filled.get() && filling.0.lock().unwrap().is_empty(), "the card was full");
}

#[test]
fn software_card_may_be_full_when_graphs_are_scored_or_measured() {
    let run = Trained::get().workplace.path("autoencoder-teacher");
    let mut command = only_test(module_path!(), "a_card_that_is_full_when_graphs_are_scored_or_measured");
    let run = run.to_str().unwrap();
    Card::new().memory(64 << 20).late(3).variable("KDGAT_TEST_RUN", run).apply(&mut command);
    assert_passed(&command.output().unwrap());
}

/// Errors injected into calls of every kind give the same losses, or an error that names the cause.
#[test]
fn software_card_errors_end_in_the_same_losses_or_a_clear_error() {
    assert_errors_end_well(rounds(40, 200), "batches", &["--use-teacher-cache", "false", "--max-epochs", "1"]);
}

/// The same if graphs and cached targets stay on the card.
#[test]
fn software_card_errors_beside_graphs_that_stay_end_in_the_same_losses_or_a_clear_error() {
    assert_errors_end_well(rounds(30, 150), "graphs", &["--graphs-on-device", "true", "--max-epochs", "2"]);
}

fn assert_errors_end_well(errors: u64, name: &str, more: &[&str]) {
    let trained = Trained::get();
    let workplace = &trained.workplace;
    let arguments = |run: &str| {
        let short = ["--offload-teacher", "--batch-size", "256"];
        let run = format!("{name}-{run}");
        [&student(&AUTOENCODER, &run)[..], &short, more].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let words = |arguments: &[String]| arguments.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
    let sound = arguments("sound");
    let sound: Vec<&str> = sound.iter().map(String::as_str).collect();
    let (_, counted) = success_on(&Card::new(), workplace, &sound);
    let expected = losses(workplace, &format!("{name}-sound"));
    // Each kind gets an equal share, limited by its number of calls; the rest goes to allocations.
    let calls: Vec<(&String, u64)> =
        counted["calls"].as_object().unwrap().iter().map(|(kind, calls)| (kind, calls.as_u64().unwrap())).collect();
    let share = errors / calls.len() as u64;
    let others: u64 = calls.iter().filter(|(kind, _)| *kind != "allocate").map(|(_, calls)| share.min(*calls)).sum();
    let mut failures = Vec::new();
    for (kind, calls) in &calls {
        let count = if *kind == "allocate" { errors - others } else { share.min(*calls) };
        // Spread over the run, including its first and last calls.
        let call = |index: u64| 1 + index * (calls - 1) / (count - 1).max(1);
        failures.extend((0..count).map(|index| format!("{kind}:{}", call(index))));
    }
    assert_eq!(failures.len() as u64, errors);
    let (next, survived) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(failure) = failures.get(index) else { return };
            let run = format!("error-{index}");
            let arguments = arguments(&run);
            let run = format!("{name}-{run}");
            let words_of_run: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let card = Card::new().late(index as u64 % 3).fail(failure);
            let (output, counted) = run_on(&card, workplace, &words_of_run);
            let said = said(&output);
            let about = || format!("{failure} in kdgat {}:\n{said}", words(&arguments));
            assert_eq!(counted["fault"], false, "{}", about());
            match output.status.code() {
                Some(0) => {
                    assert_eq!(counted["cards"][0]["allocated_bytes"], 0, "{}", about());
                    assert!(same_losses(&losses(workplace, &run), &expected), "{}", about());
                    survived.fetch_add(1, Ordering::Relaxed);
                }
                // Code 2 would mean wrong input, but the input is valid; 101 would be a panic. A panic inside tch, where a scalar is
                // dropped while an error is pending, is caught and reported as that error.
                Some(1 | 76) => assert!(said.contains("error: ") && says_cause(failure, &said), "{}", about()),
                code => panic!("exit code {code:?}: {}", about()),
            }
            std::fs::remove_dir_all(workplace.path(&run)).unwrap();
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..tests_at_once() {
            scope.spawn(work);
        }
    });
    println!("{} of {errors} runs went on in spite of the error", survived.load(Ordering::Relaxed));
    assert!(survived.load(Ordering::Relaxed) as u64 >= errors / 4);
}

fn says_cause(failure: &str, said: &str) -> bool {
    let kind = failure.split(':').next().unwrap_or_default();
    let error = &said[said.find("error: ").unwrap_or(0)..];
    if matches!(kind, "allocate" | "upload") {
        error.contains("out of memory")
    } else {
        error.contains(&format!("injected into {kind}"))
    }
}
