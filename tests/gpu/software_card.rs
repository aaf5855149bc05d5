//! Whole runs on a GPU simulated in software: the losses of the CPU, memory peaks and leaks, the order of work, times, and CUDA
//! graphs. The GPU tests run on it, too.

use std::process::Command;

use crate::software::Card;
use crate::software::runs::{
    AUTOENCODER, COMMON, NORMAL, Stage, TWO_EPOCHS, Trained, assert_expected_peak, assert_same_losses, column, losses,
    on_cpu, run_on, said, student, success_on,
};
use kdgat::torch::device::{Event, PinnedBlock, Stream, empty_cache, synchronize};
use support::process::{assert_passed, is_soak, only_test};
use support::stage::Workplace;
use tch::{Device, Kind, Tensor};

#[test]
fn software_card_trains_teachers_as_the_cpu_does() {
    let Trained { workplace, .. } = Trained::get();
    for stage in [&AUTOENCODER, &NORMAL] {
        let expected = losses(workplace, &format!("{}-teacher", stage.name));
        for (name, card) in [("at-once", Card::new()), ("late", Card::new().late(1)), ("later", Card::new().late(2))] {
            let run = format!("{}-{name}", stage.name);
            // With a size that no student requests.
            let other = ["--size", "other", "--run-dir", &run];
            let arguments = [&[stage.name], stage.teacher, COMMON, TWO_EPOCHS, &other].concat();
            let (_, counted) = success_on(&card, workplace, &arguments);
            assert_same_losses(workplace, &run, &expected);
            assert_eq!(counted["late_operators"].as_u64().unwrap() > 0, name != "at-once", "{run}");
        }
    }
}

#[test]
fn software_card_distils_as_the_cpu_does() {
    let trained = Trained::get();
    let workplace = &trained.workplace;
    let mut seed = 0;
    let residencies = ["layer", "forward", "resident", "auto"];
    let caches = ["off", "ram", "disk"];
    for (number, (stage, expected)) in trained.stages().into_iter().enumerate() {
        let (mut peaks, mut weights) = (Vec::new(), Vec::new());
        for (row, residency) in residencies.into_iter().enumerate() {
            for (place, cache) in caches.into_iter().enumerate() {
                // A sample without caches, and with each cache and each residency; `--soak` trains with all pairs.
                let is_sample = cache == "off" || (number + row) % 3 == place;
                if !is_sample && !is_soak() {
                    continue;
                }
                let run = format!("{}-{residency}-{cache}", stage.name);
                let kept = match cache {
                    "off" => &["--use-teacher-cache", "false"][..],
                    kind => &["--teacher-cache", kind, "--teacher-cache-precision", "f32"],
                };
                let arguments = [&student(stage, &run)[..], TWO_EPOCHS, kept, &["--teacher-residency", residency]];
                seed += 1;
                success_on(&Card::new().late(seed), workplace, &arguments.concat());
                assert_same_losses(workplace, &run, expected);
                if cache == "off" && residency != "auto" {
                    let summary = workplace.json(&format!("{run}/summary.json"));
                    weights.push(summary["teacher"]["peak_device_bytes_teacher"].as_u64().unwrap());
                    peaks.push(summary["peak_memory_bytes"].as_u64().unwrap());
                    let held = column(workplace, &format!("{run}/steps.csv"), "device_bytes_teacher");
                    let stays = residency == "resident";
                    assert!(held.iter().all(|&bytes| (bytes > 0.0) == stays), "{run}: {held:?} after its visits");
                }
            }
        }
        assert!(weights[0] < weights[1] && weights[1] == weights[2], "{}: weights {weights:?}", stage.name);
        assert!(peaks[0] <= peaks[1] && peaks[1] <= peaks[2], "{}: peaks {peaks:?}", stage.name);
    }
}

/// The teacher's weights are larger than a step of its student.
#[test]
fn software_card_peaks_are_ordered() {
    let workplace = Workplace::new();
    let autoencoder = Stage {
        teacher: &["--preset", "vgae,teacher", "--hidden", "512,512,256", "--latent", "64", "--heads", "4"],
        ..AUTOENCODER
    };
    let normal = Stage {
        teacher: &["--preset", "gat,teacher", "--hidden", "64", "--layers", "4", "--heads", "4"],
        student: &["--preset", "gat,student", "--hidden", "32"],
        ..NORMAL
    };
    for stage in [&autoencoder, &normal] {
        let teacher = [&[stage.name], stage.teacher, COMMON, &["--max-epochs", "1"]].concat();
        on_cpu(&workplace, &[&teacher[..], &["--run-dir", &format!("{}-teacher", stage.name)]].concat());
        let peak = |residency: &str| {
            let run = format!("{}-{residency}", stage.name);
            let uncached = ["--max-epochs", "1", "--batch-size", "8", "--use-teacher-cache", "false"];
            // A resident teacher has no visits.
            let burst = if residency == "resident" { &[][..] } else { &["--teacher-burst", "1"] };
            let arguments = [&student(stage, &run)[..], &uncached, &["--teacher-residency", residency], burst];
            success_on(&Card::new(), &workplace, &arguments.concat());
            workplace.json(&format!("{run}/summary.json"))["peak_memory_bytes"].as_u64().unwrap()
        };
        let [layer, forward, resident] = ["layer", "forward", "resident"].map(peak);
        let ordered = layer < forward && forward < resident;
        assert!(ordered, "{}: layer {layer}, forward {forward}, resident {resident}", stage.name);
    }
}

/// A run fails with an error of the card in its second epoch and is resumed on a working card.
#[test]
fn software_card_runs_are_resumed() {
    let trained = Trained::get();
    let workplace = &trained.workplace;
    for (stage, of_student) in trained.stages() {
        let of_teacher = losses(workplace, &format!("{}-teacher", stage.name));
        let student = [&student(stage, "")[..], TWO_EPOCHS, &["--offload-teacher"]].concat();
        // With a size that no student requests.
        let teacher = [&[stage.name], stage.teacher, COMMON, TWO_EPOCHS, &["--size", "other"]].concat();
        for (name, arguments, expected) in [("student", student, of_student), ("teacher", teacher, &of_teacher)] {
            let (run, sound) = (format!("{}-{name}-resumed", stage.name), format!("{}-{name}-counted", stage.name));
            let (_, counted) = success_on(&Card::new(), workplace, &[&arguments[..], &["--run-dir", &sound]].concat());
            let launches = counted["calls"]["launch"].as_u64().unwrap();
            let broken = Card::new().fail(&format!("launch:{}", launches * 3 / 4));
            let arguments = [&arguments[..], &["--run-dir", &run, "--resume"]].concat();
            let (output, _) = run_on(&broken, workplace, &arguments);
            let text = said(&output);
            assert_eq!(output.status.code(), Some(1), "{text}");
            assert!(text.contains("error: ") && text.contains("injected into launch"), "{text}");
            assert_eq!(losses(workplace, &run).len(), 2, "one epoch was finished: {text}");
            success_on(&Card::new().late(7), workplace, &arguments);
            assert_same_losses(workplace, &run, expected);
        }
    }
}

#[test]
fn software_card_keeps_to_a_third_of_the_memory() {
    let trained = Trained::get();
    let workplace = &trained.workplace;
    for (stage, _) in trained.stages() {
        let name = |what: &str| format!("{}-{what}", stage.name);
        let offload = ["--offload-teacher", "--max-epochs", "1", "--dropout", "0"];
        let free = name("free");
        success_on(&Card::new(), workplace, &[&student(stage, &free)[..], &offload].concat());
        let needed = workplace.json(&format!("{free}/summary.json"))["peak_memory_bytes"].as_u64().unwrap();
        let limit = (needed / 3).to_string();
        // The batch size found for the limit, and a CPU run with the same size.
        let found = name("limited");
        let common = ["--attention", "composed", "--batch-size", "64", "--gpu-memory-limit", &limit];
        let sized = [&[stage.name], stage.student, &common, &offload, &["--run-dir", &found]].concat();
        success_on(&Card::new().late(3), workplace, &sized);
        let summary = workplace.json(&format!("{found}/summary.json"));
        let graphs = summary["inputs"]["batch_graphs"].as_u64().unwrap();
        let peak = summary["peak_memory_bytes"].as_u64().unwrap();
        println!("{}: needed {needed}, limit {limit}, peak {peak} with batches of {graphs}", stage.name);
        assert!(graphs < 64 && peak <= needed / 3, "{}: {graphs} graphs, peak {peak} of {limit}", stage.name);
        let reference = name("limited-cpu");
        let size = graphs.to_string();
        let given = ["--attention", "composed", "--batch-size", &size, "--optimize-batch-size", "false"];
        on_cpu(workplace, &[&[stage.name], stage.student, &given, &offload, &["--run-dir", &reference]].concat());
        assert_same_losses(workplace, &found, &losses(workplace, &reference));
    }
}

/// Without a rule that orders copies and forward passes, the card reports an unordered access.
#[test]
fn software_card_needs_every_wait() {
    let workplace = &Trained::get().workplace;
    let waits = [
        ("0<1", "reads what is written by a copy from the host", "layer"),
        ("1<0", "writes memory that was written by earlier work", "layer"),
        ("record_stream", "memory goes back to the pool of side stream", "forward"),
    ];
    for (wait, expected, residency) in waits {
        for seed in [0, 1] {
            let run = format!("without-{wait}-{seed}");
            let offload = ["--use-teacher-cache", "false", "--teacher-residency", residency];
            let arguments = [&student(&AUTOENCODER, &run)[..], TWO_EPOCHS, &offload].concat();
            let (output, counted) = run_on(&Card::new().late(seed).leave_out(wait), workplace, &arguments);
            let said = said(&output);
            assert_eq!(counted["fault"], true, "without {wait}: {said}");
            assert!(!output.status.success() && said.contains(expected), "without {wait}: {said}");
        }
    }
}

/// Runs the GPU tests on the card. In tests that leave out a rule, the results must show its effect, so the card does not check
/// the order there; in the others it does.
#[test]
fn software_card_passes_the_tests_of_a_gpu() {
    let race = "distill_cuda::races_are_lost_only_when_a_rule_is_left_out";
    let of_a_gpu = |card: Card, filters: &[&str]| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        card.apply(&mut command);
        let output = command.args(filters).args(["--test-threads", "1", "--nocapture"]).output().unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), said(&output));
        assert!(output.status.success(), "{filters:?}:\n{said}");
        assert!(!said.contains("skipped") && !said.contains("running 0 tests"), "{filters:?}:\n{said}");
    };
    of_a_gpu(Card::new().unchecked(), &["--exact", race]);
    of_a_gpu(Card::new(), &["distill_cuda::", "torch_device::", "--skip", race]);
    // What cuBLAS keeps is no leftover of a visit.
    of_a_gpu(Card::new().workspace(8 << 20), &["distill_cuda::nothing_is_left"]);
    for seed in [0, 1] {
        of_a_gpu(Card::new().late(seed), &["recorded_steps::steps_are_replayed_on_a_gpu"]);
    }
}

#[test]
fn software_card_of_two_opens_nothing_on_the_other() {
    let trained = Trained::get();
    let arguments =
        [&student(&AUTOENCODER, "second-card")[..], TWO_EPOCHS, &["--offload-teacher", "--device", "cuda:1"]];
    let (_, counted) = success_on(&Card::new().count(2).late(4), &trained.workplace, &arguments.concat());
    assert_same_losses(&trained.workplace, "second-card", &trained.autoencoder);
    assert_eq!(counted["cards"][0]["has_context"], false, "the first card was used: {counted}");
    assert_eq!(counted["beside_current_card"], 0, "work for another card than the thread's current one: {counted}");
    assert_eq!(counted["cards"][1]["has_context"], true);
}

/// Runs on two cards in a process of its own. The first card is the thread's current one, and has no context yet.
#[test]
fn calls_for_a_card_that_is_not_current() {
    if kdgat::torch::test_cuda_library().is_none() {
        return;
    }
    kdgat::torch::load_cuda();
    let second = Device::Cuda(1);
    match std::env::var("KDGAT_TEST_CALL").unwrap().as_str() {
        "record" => {
            let mut event = Event::new(second, true).unwrap();
            event.record(&Stream::from_pool(second, false).unwrap()).unwrap();
            event.synchronize().unwrap();
        }
        "lock pages" => assert!(PinnedBlock::new(1 << 12, second).unwrap().is_page_locked()),
        "empty the cache" => {
            drop(Tensor::zeros([1 << 12], (Kind::Float, second)));
            empty_cache(second).unwrap();
        }
        call => assert_eq!(call, "synchronize"),
    }
    synchronize(second).unwrap();
}

#[test]
fn software_card_of_two_is_used_from_any_thread() {
    let folder = tempfile::tempdir().unwrap();
    for call in ["record", "lock pages", "empty the cache", "synchronize"] {
        let report = folder.path().join(format!("{call}.json"));
        let mut command = only_test(module_path!(), "calls_for_a_card_that_is_not_current");
        Card::new().count(2).variable("KDGAT_TEST_CALL", call).report(&report).apply(&mut command);
        let output = command.output().unwrap();
        assert_passed(&output);
        let counted: serde_json::Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
        assert_eq!(counted["cards"][0]["has_context"], false, "{call}: the first card was used: {counted}");
        assert_eq!(counted["cards"][1]["has_context"], true, "{call}: {counted}");
    }
}

#[test]
fn software_card_of_two_is_asked_for_its_memory() {
    let plan = ["memory", "plan", "--preset", "gat,student", "--device", "cuda:1"];
    let (_, counted) = success_on(&Card::new().count(2), &Trained::get().workplace, &plan);
    assert_eq!(counted["cards"][0]["has_context"], false, "the first card was asked: {counted}");
    assert_eq!(counted["cards"][1]["has_context"], true);
}

/// One asynchronous copy takes a batch to the card, and one the indices of a teacher with IDs of its own; compared are a run of two epochs and one of
/// one, because the steps that measure memory copy, too. The copies that block the host are those of a run, not of its batches.
#[test]
fn software_card_copies_of_batches_do_not_block() {
    let workplace = &Trained::get().workplace;
    let teacher =
        ["classifier", "--preset", "gat,teacher", "--hidden", "8", "--id-encoding", "hash", "--size", "other"];
    on_cpu(workplace, &[&teacher[..], COMMON, TWO_EPOCHS, &["--run-dir", "hashed"]].concat());
    let of_epochs = |teacher: &str, batch_size: &str, epochs: &str| {
        let (run, path) = (format!("{teacher}-{batch_size}-{epochs}"), format!("{teacher}/best.safetensors"));
        let uncached = ["--max-epochs", epochs, "--use-teacher-cache", "false", "--teacher-residency", "forward"];
        let rare = ["--log-every-n-steps", "1000", "--batch-size", batch_size, "--teacher-path", &path];
        let arguments = [&student(&NORMAL, &run)[..], &uncached, &rare].concat();
        let (_, counted) = success_on(&Card::new().late(5), workplace, &arguments);
        let teacher = &workplace.json(&format!("{run}/summary.json"))["teacher"];
        [&teacher["batches"], &teacher["copies"], &counted["queued_copies"], &counted["blocking_copies"]]
            .map(|count| count.as_u64().unwrap())
    };
    let copies = |teacher: &str, batch_size: &str| {
        let [one, two] = ["1", "2"].map(|epochs| of_epochs(teacher, batch_size, epochs));
        let [batches, visits, queued, blocking] = [0, 1, 2, 3].map(|count| two[count] - one[count]);
        let of_indices = if teacher == "hashed" { batches } else { 0 };
        let of_epoch = format!("{teacher}, batches of {batch_size}: {batches} batches, {visits} copies of weights");
        assert!(batches >= 4 && queued == batches + visits + of_indices, "{of_epoch}, {queued} queued");
        (batches, blocking)
    };
    let trained = format!("{}-teacher", NORMAL.name);
    let (few, blocking) = copies(&trained, "64");
    for (teacher, batch_size) in [(trained.as_str(), "16"), ("hashed", "64"), ("hashed", "16")] {
        let found = copies(teacher, batch_size);
        assert!(found.0 >= few);
        assert_eq!(found.1, blocking, "{teacher}, batches of {batch_size}: copies that block");
    }
}

/// Trains one epoch in which the card takes long for an operator of each backward pass. Returns the number of steps, and the milliseconds that the
/// card took for that operator in them: a lower bound of the reported times on any machine.
fn slow_epoch(workplace: &Workplace, run: &str, more: &[&str]) -> (f64, f64) {
    const SLOW_MS: u64 = 400;
    let card = Card::new().late(1).slow("aten::_log_softmax_backward_data", SLOW_MS);
    let rare = ["--max-epochs", "1", "--log-every-n-steps", "1000"];
    let (_, counted) = success_on(&card, workplace, &[&student(&NORMAL, run)[..], &rare, more].concat());
    let (steps, slow) = (workplace.metric(run, "steps")[0], counted["slow_operators"].as_u64().unwrap());
    // The others are of steps that measure memory.
    assert!(steps >= 4.0 && slow as f64 >= steps, "{steps} steps, {slow} times the operator");
    (steps, steps * SLOW_MS as f64)
}

/// Reported times include the time that the card takes for what was queued.
#[test]
fn software_card_times_include_the_queue() {
    let workplace = &Trained::get().workplace;
    let (steps, slow_ms) = slow_epoch(workplace, "alone", &["--use-kd", "false"]);
    let [epoch_ms, rate] = ["seconds", "graphs_per_second"].map(|column| workplace.metric("alone", column)[0]);
    let epoch_ms = epoch_ms * 1e3;
    assert!(epoch_ms >= slow_ms, "an epoch of {epoch_ms} ms, of which the card took {slow_ms} ms");
    let graphs: f64 = column(workplace, "alone/steps.csv", "graphs")[0];
    assert!(rate <= graphs.max(64.0) * steps / slow_ms * 1e3, "{rate} graphs/s");
    // Only the last step is measured. Its time contains none of the steps before it, which were queued when it began.
    let measured = column(workplace, "alone/steps.csv", "step_ms");
    assert_eq!(measured.len(), 1);
    assert!(measured[0] >= slow_ms / steps, "a step of {} ms, of which the card took {}", measured[0], slow_ms / steps);
    assert!(measured[0] < epoch_ms / 2.0, "a step of {} ms in an epoch of {epoch_ms} ms", measured[0]);
    // The host waits for the queue, not for data.
    let share = workplace.json("alone/summary.json")["data_wait_share"].as_f64().unwrap();
    assert!(share < 0.5, "{share} of the time waiting for data");
}

/// The planner compares copies and forwards with the time that a step takes on the card, not with the time to queue it.
#[test]
fn software_card_plans_with_the_time_of_the_card() {
    let workplace = &Trained::get().workplace;
    let uncached = ["--use-teacher-cache", "false", "--teacher-residency", "auto"];
    let (steps, slow_ms) = slow_epoch(workplace, "planned", &uncached);
    let summary = workplace.json("planned/summary.json");
    let decisions = summary["teacher"]["decisions"].to_string();
    let planned = decisions.split_once("of a student's step of ").and_then(|(_, rest)| rest.split(' ').next());
    let planned: f64 = planned.unwrap_or_else(|| panic!("{decisions}")).parse().unwrap();
    assert!(planned >= slow_ms / steps, "planned with {planned} ms, of which the card took {}", slow_ms / steps);
}

/// Steps that are replayed give the losses of steps that are not.
#[test]
fn software_card_replays_cuda_graphs() {
    let trained = Trained::get();
    let workplace = &trained.workplace;
    // Without random numbers that depend on the padding: dropout, and noise in other than blocks of 16.
    let [autoencoder, normal] = [(&AUTOENCODER, &["--latent", "16"][..]), (&NORMAL, &[])];
    for (stage, more) in [autoencoder, normal] {
        let taught = [more, &["--dropout", "0", "--max-epochs", "2", "--use-teacher-cache", "false"]].concat();
        let mut found = Vec::new();
        for (residency, seed) in [("resident", 0), ("resident", 1), ("forward", 2)] {
            let run = format!("{}-graphs-{seed}", stage.name);
            let graphs = ["--cuda-graphs", "true", "--teacher-residency", residency];
            let arguments = [&student(stage, &run)[..], &taught, &graphs].concat();
            let (_, counted) = success_on(&Card::new().late(seed), workplace, &arguments);
            let [recordings, replays] = ["recordings", "replays"].map(|name| counted[name].as_u64().unwrap());
            assert!(recordings > 0 && replays > recordings, "{run}: {recordings} recordings, {replays} replays");
            found.push(losses(workplace, &run));
        }
        let composed = format!("{}-no-graphs", stage.name);
        let arguments = [&student(stage, &composed)[..], &taught, &["--teacher-residency", "resident"]].concat();
        success_on(&Card::new(), workplace, &arguments);
        let expected = losses(workplace, &composed);
        for losses in &found {
            // Rounding moves the biases in front of a batch norm: in training they cancel out, in validation almost.
            let near = |found: &[f64], expected: &[f64], tolerance: f64| {
                let mut pairs = found.iter().zip(expected);
                pairs.all(|(found, expected)| (found - expected).abs() <= tolerance * expected)
            };
            let training = near(&losses[..2], &expected[..2], 1e-6);
            assert!(training && near(&losses[2..], &expected[2..], 1e-3), "{losses:?} instead of {expected:?}");
        }
    }
}

/// Whatever trains on a GPU has its steps and validation captured, or says why not.
#[test]
fn software_card_captures_what_it_can_and_says_what_it_cannot() {
    let trained = Trained::get();
    let workplace = &trained.workplace;
    let small = ["--hidden", "4", "--batch-size", "64", "--optimize-batch-size", "false", "--max-epochs", "2"];
    let classifier: &[&str] = &["classifier", "--preset", "gat,student", "--attention", "composed"];
    let taught = |more: &[&'static str]| [classifier, &["--use-kd", "true"], more].concat();
    let alone = |more: &[&'static str]| [classifier, &["--use-kd", "false"], more].concat();
    let profile = ["classifier", "--preset", "gat,student,profile", "--attention", "composed", "--use-kd", "false"];
    let captured = [
        taught(&["--kd-hint-weight", "0.1"]),
        taught(&["--kd-views", "2", "--unknown-drop", "0.1"]),
        taught(&["--more-teachers", "classifier-teacher"]),
        alone(&["--task-loss", "weighted"]),
        profile.to_vec(),
    ];
    for (number, arguments) in captured.iter().enumerate() {
        let run = format!("captured-{number}");
        let more = ["--cuda-graphs", "none", "--run-dir", &run];
        let (said, counted) = success_on(&Card::new().late(7), workplace, &[arguments, &small[..], &more].concat());
        let [recordings, replays] = ["recordings", "replays"].map(|name| counted[name].as_u64().unwrap());
        assert!(recordings > 1 && replays > recordings, "{arguments:?}: {recordings} recordings, {replays} replays");
        assert!(!said.contains("not captured"), "{arguments:?}: {said}");
        assert_expected_peak(workplace, &run);
    }
    let obstacles = [
        (alone(&["--conv", "gatv2"]), "edge scaling"),
        (taught(&["--kd-alpha-end", "0.9"]), "weight of the distillation"),
    ];
    for (number, (arguments, why)) in obstacles.iter().enumerate() {
        let run = format!("not-captured-{number}");
        let more = ["--cuda-graphs", "none", "--run-dir", &run];
        let (said, counted) = success_on(&Card::new().late(8), workplace, &[arguments, &small[..], &more].concat());
        let line = said.lines().find(|line| line.contains("steps are not captured as CUDA graphs")).unwrap_or(&said);
        assert!(line.contains(why) && counted["recordings"] == 0, "{arguments:?}: {line}");
    }
}

/// `none` is the default; given here, because the tests' runs capture nothing otherwise.
#[test]
fn software_card_captures_steps_unless_batches_become_smaller() {
    let workplace = &Trained::get().workplace;
    let whole: &[&str] = &["--batch-size", "256"];
    let bursts: &[&str] = &["--offload-teacher", "--teacher-burst", "4", "--use-teacher-cache", "false"];
    // A large teacher, whose weights are on the device in the first epoch only.
    let cached: &[&str] =
        &["--teacher-path", "large/best.safetensors", "--teacher-residency", "resident", "--max-epochs", "3"];
    let teacher = ["--preset", "vgae,teacher", "--hidden", "256,64,8", "--latent", "8", "--size", "other"];
    on_cpu(workplace, &[&["autoencoder"], &teacher[..], COMMON, TWO_EPOCHS, &["--run-dir", "large"]].concat());
    let on_device: &[&str] = &["--graphs-on-device", "true", "--accumulate-grad-batches", "2"];
    let cases = [
        ("captured", "4GiB", whole, true),
        ("not-captured", "60MiB", whole, false),
        ("captured-bursts", "4GiB", bursts, true),
        ("captured-on-device", "4GiB", on_device, true),
        ("captured-after-the-teacher", "4GiB", cached, true),
    ];
    for (run, limit, more, is_captured) in cases {
        let limited = ["--cuda-graphs", "none", "--gpu-memory-limit", limit];
        let arguments = [&student(&AUTOENCODER, run)[..], TWO_EPOCHS, &limited, more].concat();
        let card = Card::new().variable("RUST_LOG", "info");
        let (told, counted) = success_on(&card, workplace, &arguments);
        assert_eq!(counted["recordings"].as_u64().unwrap() > 0, is_captured, "{told}");
        assert_eq!(told.contains("memory: steps are not captured as CUDA graphs"), !is_captured, "{told}");
        assert_eq!(workplace.json(&format!("{run}/config.json"))["inputs"]["captures_steps"], is_captured, "{told}");
        assert_expected_peak(workplace, run);
        let log = std::fs::read_to_string(workplace.path(&format!("{run}/log.txt"))).unwrap();
        // The run's own captures, besides those that were measured.
        assert_eq!(log.contains("captured a step of"), is_captured, "{log}");
        // The budget of the worst batches has room for everything, also for bursts, and not much more.
        let planned = workplace.json(&format!("{run}/memory_budget.json"))["expected_bytes"].as_u64().unwrap();
        let peak = workplace.json(&format!("{run}/summary.json"))["peak_memory_bytes"].as_u64().unwrap();
        assert!(peak <= planned && 2 * planned < 3 * peak, "{run}: planned {planned}, peak {peak}");
    }
}

/// A plan expects the peak that a training expects: of captured steps, of others, and of bursts.
#[test]
fn software_card_plans_what_a_training_expects() {
    let workplace = &Trained::get().workplace;
    let bursts: &[&str] = &["--offload-teacher", "--teacher-burst", "4", "--use-teacher-cache", "false"];
    for (run, graphs, more) in
        [("planned-captures", "none", &[][..]), ("planned-steps", "false", &[]), ("planned-bursts", "none", bursts)]
    {
        let arguments = [&student(&AUTOENCODER, run)[..], TWO_EPOCHS, &["--cuda-graphs", graphs], more].concat();
        let (said, _) = success_on(&Card::new(), workplace, &arguments);
        let run_dir = arguments.iter().position(|&argument| argument == "--run-dir").unwrap();
        let plan = [&["memory", "plan"], &arguments[1..run_dir], &arguments[run_dir + 2..]].concat();
        let (output, _) = run_on(&Card::new(), workplace, &plan);
        assert!(output.status.success(), "{}", self::said(&output));
        let plan = String::from_utf8_lossy(&output.stdout).into_owned();
        let bytes_after = |text: &str, what: &str| {
            let (_, rest) = text.split_once(what).unwrap_or_else(|| panic!("{text}"));
            rest.split_whitespace().take(2).map(|word| word.trim_end_matches(':')).collect::<Vec<_>>().join(" ")
        };
        let expected = bytes_after(&said, "expected peak");
        assert_eq!(bytes_after(&plan, "expected peak of tensors"), expected, "{run}: {plan}\n{said}");
        assert_eq!(plan.contains("captured steps and their batches"), graphs == "none", "{plan}");
        assert_expected_peak(workplace, run);
    }
}

/// Memory that runs out during a recording would end the process if the allocator split no large blocks.
#[test]
fn software_card_graphs_refuse_settings_that_make_a_shortage_fatal() {
    let workplace = &Trained::get().workplace;
    let arguments = [&student(&NORMAL, "unsplit")[..], TWO_EPOCHS, &["--cuda-graphs", "true"]].concat();
    let (output, _) = run_on(&Card::new().allocator("max_split_size_mb:64"), workplace, &arguments);
    let told = said(&output);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("error: --cuda-graphs with max_split_size_mb"), "{told}");
}

/// NVML reports the memory of a whole card, of which CUDA has a slice: no limit is computed from it.
#[test]
fn software_card_in_slices_has_no_share_of_the_whole() {
    let workplace = &Trained::get().workplace;
    for (card, expected) in
        [(Card::new(), "per_process_memory_fraction:0.250000"), (Card::new().sliced(), "not enforced")]
    {
        let run = format!("slices-{}", expected.len());
        let arguments = [&student(&NORMAL, &run)[..], &["--max-epochs", "1", "--gpu-memory-limit", "1GiB"]].concat();
        let (told, _) = success_on(&card, workplace, &arguments);
        assert!(told.contains(expected), "{told}");
    }
}

#[test]
fn software_card_has_no_more_than_its_free_memory() {
    let workplace = &Trained::get().workplace;
    for (limit, expected) in [("1GiB", "of 1.00 GiB (as configured)"), ("8GiB", "of 4.00 GiB (free on the GPU)")] {
        let run = format!("limit-{limit}");
        let arguments = [&student(&NORMAL, &run)[..], &["--max-epochs", "1", "--gpu-memory-limit", limit]].concat();
        let (told, _) = success_on(&Card::new(), workplace, &arguments);
        assert!(told.contains(expected), "{told}");
    }
}

#[test]
fn software_card_may_be_too_old() {
    let workplace = Workplace::new();
    let doctor = |capability: u32| {
        let mut command = workplace.command(&["doctor"]);
        // Too little memory to measure copies, which would take long.
        Card::new().capability(capability).memory(1 << 20).apply(&mut command);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let told = doctor(61);
    let reason =
        "Software card cannot be used: compute capability 6.1: CUDA 13 has dropped cards older than Turing (7.5)";
    assert!(told.contains(reason), "{told}");
    let told = doctor(75);
    assert!(told.contains("compute capability 7.5") && !told.contains("cannot be used"), "{told}");
}

#[test]
fn software_card_warns_of_inexact_products() {
    let workplace = &Trained::get().workplace;
    for (value, expected) in [("1", true), ("0", false)] {
        let run = format!("tf32-{value}");
        let arguments = [&student(&NORMAL, &run)[..], &["--max-epochs", "1"]].concat();
        let card = Card::new().variable("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", value);
        let (told, _) = success_on(&card, workplace, &arguments);
        assert_eq!(told.contains("warning: TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1: matrix products"), expected, "{told}");
    }
}
