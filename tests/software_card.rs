//! Whole runs on a GPU simulated in software: the losses of the CPU, memory peaks and leaks, the order of work, and errors in
//! any call. The GPU tests run on it, too.

mod software_card_support;
mod stage_support;

#[path = "distill_cuda.rs"]
mod distill_cuda;
#[path = "torch_device.rs"]
mod torch_device;

use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use software_card_support::Card;
use stage_support::Workplace;

/// Stage with the settings of its teacher and its student.
struct Stage {
    name: &'static str,
    teacher: &'static [&'static str],
    student: &'static [&'static str],
}

const AUTOENCODER: Stage = Stage {
    name: "autoencoder",
    teacher: &["--preset", "vgae,teacher", "--hidden", "24,12,8", "--latent", "8", "--embedding", "4"],
    student: &["--preset", "vgae,student", "--hidden", "8,8,4", "--latent", "4", "--embedding", "2"],
};
const NORMAL: Stage = Stage {
    name: "normal",
    teacher: &["--preset", "gat,teacher", "--hidden", "8"],
    student: &["--preset", "gat,student", "--hidden", "4"],
};

/// Settings with the same operations on both devices, in small steps.
const COMMON: &[&str] = &["--attention", "composed", "--batch-size", "64", "--optimize-batch-size", "false"];
const TWO_EPOCHS: &[&str] = &["--max-epochs", "2"];

/// Both teachers trained on the CPU, and the losses of their students there.
struct Trained {
    workplace: Workplace,
    autoencoder: Vec<f64>,
    normal: Vec<f64>,
}

impl Trained {
    fn get() -> &'static Self {
        static TRAINED: OnceLock<Trained> = OnceLock::new();
        TRAINED.get_or_init(|| {
            let workplace = Workplace::new();
            let train = |stage: &Stage| {
                let teacher = [&[stage.name], stage.teacher, COMMON, TWO_EPOCHS].concat();
                on_cpu(&workplace, &[&teacher[..], &["--run-dir", &format!("{}-teacher", stage.name)]].concat());
                let run = format!("{}-student", stage.name);
                on_cpu(&workplace, &[&student(stage, &run)[..], TWO_EPOCHS].concat());
                losses(&workplace, &run)
            };
            let (autoencoder, normal) = (train(&AUTOENCODER), train(&NORMAL));
            Self { workplace, autoencoder, normal }
        })
    }

    fn stages(&self) -> [(&'static Stage, &[f64]); 2] {
        [(&AUTOENCODER, &self.autoencoder), (&NORMAL, &self.normal)]
    }
}

fn student<'a>(stage: &'a Stage, run: &'a str) -> Vec<&'a str> {
    [&[stage.name], stage.student, COMMON, &["--use-kd", "true", "--run-dir", run]].concat()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs the program on the CPU while a card is present, so that it draws random numbers as on a GPU.
fn on_cpu(workplace: &Workplace, arguments: &[&str]) {
    let mut command = workplace.command(arguments);
    Card::new().apply(&mut command);
    let output = command.args(["--device", "cpu"]).output().unwrap();
    assert!(output.status.success(), "kdgat {arguments:?} failed:\n{}", said(&output));
}

/// Runs the program on a card; returns its output and the card's counts.
fn run_on(card: &Card, workplace: &Workplace, arguments: &[&str]) -> (Output, Value) {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let report = workplace.path(&format!("report-{}.json", NUMBER.fetch_add(1, Ordering::Relaxed)));
    let mut command = workplace.command(arguments);
    card.clone().report(&report).apply(&mut command);
    let on_a_card = arguments.contains(&"--device");
    let output = command.args(if on_a_card { &[][..] } else { &["--device", "cuda"] }).output().unwrap();
    let counted = std::fs::read(&report).unwrap_or_else(|error| panic!("{error}:\n{}", said(&output)));
    (output, serde_json::from_slice(&counted).unwrap())
}

/// Runs the program on a card, asserts success and no leaks; returns its output text and the card's counts.
fn success_on(card: &Card, workplace: &Workplace, arguments: &[&str]) -> (String, Value) {
    let (output, counted) = run_on(card, workplace, arguments);
    let said = said(&output);
    assert!(output.status.success(), "kdgat {arguments:?} on {card:?} failed:\n{said}");
    assert!(said.contains("takes the place of libtorch_cuda"), "{said}");
    assert_eq!(counted["fault"], false, "{said}");
    assert_eq!(counted["page_locked_ranges"], 0, "{arguments:?}");
    for card in counted["cards"].as_array().unwrap() {
        assert_eq!(card["allocated_bytes"], 0, "{arguments:?}: memory is left on the card");
    }
    (said, counted)
}

fn losses(workplace: &Workplace, run: &str) -> Vec<f64> {
    ["train_loss", "val_loss"].map(|column| workplace.metric(run, column)).concat()
}

fn same_losses(found: &[f64], expected: &[f64]) -> bool {
    let near = |(found, expected): (&f64, &f64)| (found - expected).abs() <= 1e-6 * expected.abs();
    found.len() == expected.len() && found.iter().zip(expected).all(near)
}

#[track_caller]
fn assert_same_losses(workplace: &Workplace, run: &str, expected: &[f64]) {
    let found = losses(workplace, run);
    assert!(same_losses(&found, expected), "{run}: losses {found:?} instead of {expected:?}");
}

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
    for (stage, expected) in trained.stages() {
        let (mut peaks, mut weights) = (Vec::new(), Vec::new());
        for residency in ["layer", "forward", "resident", "auto"] {
            for cache in ["off", "ram", "disk"] {
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

fn column(workplace: &Workplace, file: &str, name: &str) -> Vec<f64> {
    let mut reader = csv::Reader::from_path(workplace.path(file)).unwrap();
    let position = reader.headers().unwrap().iter().position(|header| header == name).unwrap();
    reader.records().map(|row| row.unwrap()[position].parse().unwrap()).collect()
}

/// The teacher's weights are larger than a step of its student.
#[test]
fn software_card_peaks_are_ordered() {
    let workplace = Workplace::new();
    let teacher = ["normal", "--preset", "gat,teacher", "--hidden", "64", "--layers", "4", "--heads", "4"];
    let little = ["--attention", "composed", "--optimize-batch-size", "false", "--max-epochs", "1", "--batch-size"];
    on_cpu(&workplace, &[&teacher[..], &little, &["64", "--run-dir", "teacher"]].concat());
    let peak = |residency: &str| {
        let student = ["normal", "--preset", "gat,student", "--hidden", "32", "--use-teacher-cache", "false"];
        // A resident teacher has no visits.
        let burst = if residency == "resident" { &[][..] } else { &["--teacher-burst", "1"] };
        let run = ["--teacher-residency", residency, "--run-dir", residency];
        success_on(&Card::new(), &workplace, &[&student[..], &little, &["8"], burst, &run].concat());
        let summary = workplace.json(&format!("{residency}/summary.json"));
        summary["peak_memory_bytes"].as_u64().unwrap()
    };
    let [layer, forward, resident] = ["layer", "forward", "resident"].map(peak);
    assert!(layer < forward && forward < resident, "layer {layer}, forward {forward}, resident {resident}");
}

/// A run fails with an error of the card in its second epoch and is resumed on a working card.
#[test]
fn software_card_runs_are_resumed() {
    let trained = Trained::get();
    let workplace = &trained.workplace;
    for (stage, expected) in trained.stages() {
        let run = format!("{}-resumed", stage.name);
        let arguments = [&student(stage, &run)[..], TWO_EPOCHS, &["--offload-teacher", "--resume"]].concat();
        let sound = format!("{}-counted", stage.name);
        let whole = [&student(stage, &sound)[..], TWO_EPOCHS, &["--offload-teacher"]].concat();
        let (_, counted) = success_on(&Card::new(), workplace, &whole);
        let launches = counted["calls"]["launch"].as_u64().unwrap();
        let broken = Card::new().fail(&format!("launch:{}", launches * 3 / 4));
        let (output, _) = run_on(&broken, workplace, &arguments);
        let text = said(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("error: ") && text.contains("injected into launch"), "{text}");
        assert_eq!(losses(workplace, &run).len(), 2, "one epoch was finished: {text}");
        success_on(&Card::new().late(7), workplace, &arguments);
        assert_same_losses(workplace, &run, expected);
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

/// Memory runs out despite the plan: the step uses fewer graphs at a time, with the same result if there is no batch norm.
#[test]
fn software_card_recovers_where_memory_runs_out() {
    let workplace = &Trained::get().workplace;
    let train = |card: Card, run: &str| {
        let arguments = [&student(&NORMAL, run)[..], TWO_EPOCHS, &["--offload-teacher", "--dropout", "0"]];
        success_on(&card, workplace, &arguments.concat()).0
    };
    train(Card::new(), "normal-whole");
    let needed = workplace.json("normal-whole/summary.json")["peak_memory_bytes"].as_u64().unwrap();
    let share = needed as f64 / 3.0 / (4_u64 << 30) as f64;
    for seed in [0, 1] {
        let run = format!("normal-recovered-{seed}");
        let said = train(Card::new().late(seed).allocator_share(share), &run);
        assert!(said.contains("did not fit (Internal torch error: CUDA out of memory. Tried to allocate"), "{said}");
        assert_same_losses(workplace, &run, &losses(workplace, "normal-whole"));
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
}

#[test]
fn software_card_of_two_opens_nothing_on_the_other() {
    let trained = Trained::get();
    let arguments =
        [&student(&AUTOENCODER, "second-card")[..], TWO_EPOCHS, &["--offload-teacher", "--device", "cuda:1"]];
    let (_, counted) = success_on(&Card::new().count(2).late(4), &trained.workplace, &arguments.concat());
    assert_same_losses(&trained.workplace, "second-card", &trained.autoencoder);
    assert_eq!(counted["cards"][0]["has_context"], false, "the first card was used: {counted}");
    assert_eq!(counted["cards"][1]["has_context"], true);
}

#[test]
fn software_card_refuses_cuda_graphs() {
    let workplace = &Trained::get().workplace;
    let arguments = [&student(&AUTOENCODER, "graphs")[..], TWO_EPOCHS, &["--cuda-graphs", "true"]].concat();
    let (output, _) = run_on(&Card::new(), workplace, &arguments);
    let said = said(&output);
    assert!(said.contains("the software card cannot record CUDA graphs"), "{said}");
}

/// Errors injected into calls of every kind give the same losses, or an error that names the cause.
///
/// `SOFTWARE_CARD_ERRORS` sets the number of errors.
#[test]
fn software_card_errors_end_in_the_same_losses_or_a_clear_error() {
    let errors = std::env::var("SOFTWARE_CARD_ERRORS").map_or(200, |text| text.parse::<u64>().unwrap());
    let trained = Trained::get();
    let workplace = &trained.workplace;
    let arguments = |run: &str| {
        let short = ["--offload-teacher", "--use-teacher-cache", "false", "--max-epochs", "1", "--batch-size", "256"];
        [&student(&AUTOENCODER, run)[..], &short].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let words = |arguments: &[String]| arguments.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
    let sound = arguments("sound");
    let sound: Vec<&str> = sound.iter().map(String::as_str).collect();
    let (_, counted) = success_on(&Card::new(), workplace, &sound);
    let expected = losses(workplace, "sound");
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
                Some(1) => assert!(said.contains("error: ") && says_cause(failure, &said), "{}", about()),
                code => panic!("exit code {code:?}: {}", about()),
            }
            std::fs::remove_dir_all(workplace.path(&run)).unwrap();
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(work);
        }
    });
    println!("{} of {errors} runs went on in spite of the error", survived.load(Ordering::Relaxed));
    assert!(survived.load(Ordering::Relaxed) as u64 >= errors / 4);
}

fn says_cause(failure: &str, said: &str) -> bool {
    let kind = failure.split(':').next().unwrap_or_default();
    let error = &said[said.find("error: ").unwrap_or(0)..];
    if kind == "allocate" { error.contains("out of memory") } else { error.contains(&format!("injected into {kind}")) }
}
