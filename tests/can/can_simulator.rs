//! The simulated dataset: the same for the same seed, with correct labels, written completely or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use kdgat::can::formats::can_train_and_test;
use kdgat::can::simulator::{
    AttackKind, Drive, DrivePlan, DrivingState, Intensity, RoutePlan, RouteRecord, SIMULATION_VERSION,
    SimulationOptions, SimulationRecord, ensure_simulated, simulate, simulate_drive, simulate_route,
};
use kdgat::can::{CanError, Dataset, Frame, Role, open_log};
use support::starter;

fn small() -> SimulationOptions {
    SimulationOptions {
        attack_free_drives: 2,
        attack_free_frames: 10_000,
        with_attacks_frames: 12_000,
        test_frames: 12_000,
        ..SimulationOptions::default()
    }
}

fn drive(number: u64, attacks: &[(AttackKind, Intensity)]) -> Drive {
    simulate_drive(&DrivePlan { seed: 3, number, begins_at_seconds: 0, frames: 30_000, attacks: attacks.to_vec() })
}

/// Bytes of every file of a folder.
fn contents(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.insert(path.strip_prefix(root).unwrap().display().to_string(), fs::read(path).unwrap());
            }
        }
    }
    files
}

#[test]
fn the_same_options_give_the_same_bytes_and_another_seed_others() {
    let folder = tempfile::tempdir().unwrap();
    for (name, seed) in [("a", 1), ("b", 1), ("c", 2)] {
        simulate(&SimulationOptions { seed, ..small() }, &folder.path().join(name)).unwrap();
    }
    let [a, b, c] = ["a", "b", "c"].map(|name| contents(&folder.path().join(name)));
    assert!(a == b, "the same seed gave different files");
    assert!(a.keys().eq(c.keys()) && a.iter().all(|(name, bytes)| c[name] != *bytes), "seeds 1 and 2 share a file");
}

/// The digest was computed on x86-64; other machines must get the same. A change of the simulated traffic changes this digest and
/// must change `SIMULATION_VERSION`.
#[test]
fn every_machine_simulates_the_same_frames() {
    let mut rows = Vec::new();
    for (number, kind) in [(0, AttackKind::Masquerade), (1, AttackKind::Fuzzing), (2, AttackKind::Replay)] {
        let drive = drive(number, &[(kind, Intensity::Low), (kind, Intensity::Medium), (kind, Intensity::High)]);
        drive.frames.iter().for_each(|frame| can_train_and_test::write_row(frame, &mut rows));
    }
    assert_eq!(&blake3::hash(&rows).to_hex()[..16], "f975a7bb2bc7178a");
    assert_eq!(SIMULATION_VERSION, 1);
}

#[test]
fn one_thread_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let one_thread = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    simulate(&small(), &folder.path().join("many")).unwrap();
    one_thread.install(|| simulate(&small(), &folder.path().join("one"))).unwrap();
    assert!(contents(&folder.path().join("many")) == contents(&folder.path().join("one")));
}

#[test]
fn the_folder_is_a_dataset_with_the_counts_of_its_record() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("new/sim");
    simulate(&small(), &target).unwrap();
    let dataset = Dataset::open(&target).unwrap();
    assert_eq!(dataset.name, "sim");
    let count = |role| dataset.files_of(role).count();
    assert_eq!([Role::TrainAttackFree, Role::TrainWithAttacks, Role::Test].map(count), [2, 4, 10]);
    let record: SimulationRecord = serde_json::from_slice(&fs::read(target.join("simulation.json")).unwrap()).unwrap();
    assert_eq!(record.options, small());
    for file in &record.files {
        let mut log = open_log(&target.join(&file.path), None).unwrap();
        let mut frames = Vec::new();
        while log.read_block(4096, &mut frames).unwrap() > 0 {}
        let report = log.report();
        assert_eq!((report.frames, report.attack_frames), (file.frames, file.attack_frames), "{:?}", file.path);
        assert_eq!((report.rejected_rows(), report.backward_timestamps), (0, 0), "{:?}", file.path);
        let attack_free = file.path.starts_with("train_01_attack_free");
        assert_eq!(attack_free, file.attack_frames == 0, "{:?} has {} attack frames", file.path, file.attack_frames);
    }
    let left: Vec<_> = fs::read_dir(folder.path().join("new")).unwrap().collect();
    assert_eq!(left.len(), 1, "something was left beside the dataset: {left:?}");
}

#[test]
fn what_exists_is_never_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("sim");
    fs::create_dir(&target).unwrap();
    assert!(ensure_simulated(&small(), &target).unwrap(), "an empty folder is as good as none");
    assert!(!ensure_simulated(&small(), &target).unwrap(), "it was there already");
    let other = SimulationOptions { seed: 9, ..small() };
    for error in [simulate(&small(), &target).unwrap_err(), ensure_simulated(&other, &target).unwrap_err()] {
        assert!(matches!(error, CanError::TargetExists { .. }), "{error}");
        assert!(error.to_string().contains(target.to_str().unwrap()), "{error}");
    }
    let damaged = target.join("test_01_known_attack/fuzzing-2.csv.gz");
    let mut bytes = fs::read(&damaged).unwrap();
    bytes[100] ^= 1;
    fs::write(&damaged, bytes).unwrap();
    let error = ensure_simulated(&small(), &target).unwrap_err().to_string();
    assert!(error.contains("fuzzing-2.csv.gz"), "the damaged file is not named: {error}");
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    let error = simulate(&small(), &file.join("sim")).unwrap_err();
    assert!(error.to_string().contains("file"), "{error}");
    let error = simulate(&SimulationOptions { test_frames: 5, ..small() }, &folder.path().join("sim")).unwrap_err();
    assert!(error.to_string().contains("test_frames is 5"), "{error}");
    assert!(!folder.path().join("sim").exists());
}

#[test]
fn attack_free_traffic_keeps_its_periods_and_the_bus_its_rate() {
    let Drive { frames, episodes } = drive(0, &[]);
    assert!(episodes.is_empty() && frames.iter().all(|frame| !frame.attack));
    let seconds = frames.last().unwrap().timestamp - frames[0].timestamp;
    for (can_id, period) in [(0x0A0, 0.010), (0x153, 0.020), (0x316, 0.050), (0x52A, 1.0)] {
        let count = frames.iter().filter(|frame| frame.can_id == can_id).count() as f64;
        assert!((count * period / seconds - 1.0).abs() < 0.05, "{can_id:X}: {count} frames in {seconds} s");
    }
    // The shortest frame has 47 bits: at 500 kbit/s no two frames end within 94 µs.
    let gaps: Vec<f64> = frames.windows(2).map(|pair| pair[1].timestamp - pair[0].timestamp).collect();
    assert!(gaps.iter().all(|gap| *gap > 93e-6), "two frames overlap");
    assert_eq!(frames.iter().map(|frame| frame.can_id).collect::<BTreeSet<_>>().len(), 33);
}

#[test]
fn during_flooding_the_flood_wins_the_bus() {
    let Drive { frames, episodes } = drive(1, &[(AttackKind::Flooding, Intensity::High)]);
    let episode = &episodes[0];
    let during = within(&frames, episode.start_nanoseconds, episode.end_nanoseconds);
    let flood = during.iter().filter(|frame| frame.can_id == 0).count();
    assert!(flood * 10 > during.len() * 7, "{flood} of {} frames", during.len());
    assert!(frames.iter().all(|frame| frame.attack == (frame.can_id == 0)));
}

#[test]
fn labels_lie_within_episodes() {
    use AttackKind::*;
    for kind in [Flooding, Fuzzing, Spoofing, Replay, Suspension, Masquerade] {
        for intensity in [Intensity::Low, Intensity::Medium, Intensity::High] {
            let Drive { frames, episodes } = drive(2, &[(kind, intensity)]);
            assert!(!episodes.is_empty());
            let labelled = frames.iter().filter(|frame| frame.attack);
            // A frame may wait for a whole queue of frames after the attacker submitted it.
            let outside = labelled.clone().filter(|frame| {
                !episodes.iter().any(|episode| {
                    (episode.start_nanoseconds as f64 / 1e9..episode.end_nanoseconds as f64 / 1e9 + 0.02)
                        .contains(&frame.timestamp)
                })
            });
            assert_eq!(outside.count(), 0, "{kind:?} {intensity:?}: labels outside of the attacks");
            assert!(labelled.count() > 5, "{kind:?} {intensity:?}: nearly no label");
        }
    }
}

#[test]
fn a_suspended_id_is_absent_and_each_missing_frame_labels_one() {
    let Drive { frames, episodes } = drive(3, &[(AttackKind::Suspension, Intensity::Medium)]);
    let episode = &episodes[0];
    let during = within(&frames, episode.start_nanoseconds + 20_000_000, episode.end_nanoseconds);
    assert!(during.iter().all(|frame| !episode.target_ids.contains(&frame.can_id)), "the ID is still there");
    let seconds = (episode.end_nanoseconds - episode.start_nanoseconds) as f64 / 1e9;
    let labelled = during.iter().filter(|frame| frame.attack).count() as f64;
    assert!(labelled / seconds > 45.0 && labelled / seconds < 105.0, "{labelled} labels in {seconds} s");
}

#[test]
fn a_masquerade_replaces_frames_and_nothing_else() {
    let attacked = drive(4, &[(AttackKind::Masquerade, Intensity::High)]);
    let target = attacked.episodes[0].target_ids[0];
    let during = within(&attacked.frames, attacked.episodes[0].start_nanoseconds, attacked.episodes[0].end_nanoseconds);
    assert!(during.iter().filter(|frame| frame.attack).all(|frame| frame.can_id == target));
    let same_count = |frames: &[Frame]| frames.iter().filter(|frame| frame.can_id == target).count();
    let peaceful = drive(4, &[]);
    let expected = same_count(within(
        &peaceful.frames,
        attacked.episodes[0].start_nanoseconds,
        attacked.episodes[0].end_nanoseconds,
    ));
    assert!(same_count(during).abs_diff(expected) <= 1, "{} frames instead of {expected}", same_count(during));
}

#[test]
fn spoofed_frames_carry_a_legitimate_id_beside_the_true_ones() {
    let Drive { frames, episodes } = drive(5, &[(AttackKind::Spoofing, Intensity::Medium)]);
    let target = episodes[0].target_ids[0];
    let during = within(&frames, episodes[0].start_nanoseconds, episodes[0].end_nanoseconds);
    let count = |attack| during.iter().filter(|frame| frame.can_id == target && frame.attack == attack).count();
    assert!(count(true).abs_diff(count(false)) <= 3, "{} forged, {} true", count(true), count(false));
}

fn within(frames: &[Frame], start: u64, end: u64) -> &[Frame] {
    let position = |nanoseconds: u64| frames.partition_point(|frame| frame.timestamp < nanoseconds as f64 / 1e9);
    &frames[position(start)..position(end)]
}

/// A killed simulation leaves its partial files.
#[test]
fn what_a_killed_simulation_left_is_removed_by_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let options = SimulationOptions { attack_free_drives: 1, ..small() };
    let left = |name: &str, age: u64| {
        let path = folder.path().join(name);
        fs::create_dir(&path).unwrap();
        let handle = fs::File::open(&path).unwrap();
        handle.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(age)).unwrap();
        (path, handle)
    };
    let (dead, _) = left(".simulating-dead", 1000);
    let (alive, handle) = left(".simulating-alive", 1000);
    handle.try_lock().unwrap();
    let (young, _) = left(".simulating-young", 1);
    simulate(&options, &folder.path().join("sim")).unwrap();
    assert_eq!([dead, alive, young].map(|path| path.exists()), [false, true, true]);
}

/// A drive through states, and what it consists of.
fn route(states: &[DrivingState], seconds: f64, attacks: &[(AttackKind, Intensity)]) -> (Vec<Frame>, RouteRecord) {
    let plan = RoutePlan {
        seed: 3,
        number: 2,
        begins_at_seconds: 0,
        seconds,
        states: states.to_vec(),
        attacks: attacks.to_vec(),
        attack_every_seconds: 20.0,
    };
    let mut frames = Vec::new();
    let record = simulate_route(&plan, |frame| {
        frames.push(*frame);
        Ok::<(), ()>(())
    });
    (frames, record.unwrap())
}

/// Mean gap of an ID in seconds, the largest value of its bytes 0 and 1 as a word, and how often one payload follows another one.
fn behaviour(frames: &[Frame], can_id: u32) -> (f64, u16, usize) {
    let own: Vec<&Frame> = frames.iter().filter(|frame| frame.can_id == can_id).collect();
    let gap = (own[own.len() - 1].timestamp - own[0].timestamp) / (own.len() - 1) as f64;
    let word = own.iter().map(|frame| u16::from_be_bytes([frame.payload[0], frame.payload[1]])).max().unwrap();
    (gap, word, own.windows(2).filter(|pair| pair[0].payload != pair[1].payload).count())
}

#[test]
fn states_differ_in_gaps_and_bytes() {
    let of = |state: DrivingState| route(&[state], 90.0, &[]).0;
    let [parked, idling, town, motorway] = DrivingState::ALL.map(of);
    // Engine speed (4 a revolution) in 0A0, speed (100 a km/h) in 0D1.
    let (gap, engine, _) = behaviour(&parked, 0x0A0);
    assert!((gap - 0.05).abs() < 0.002 && engine == 0, "{gap} s, {engine}");
    let (gap, engine, _) = behaviour(&idling, 0x0A0);
    assert!((gap - 0.01).abs() < 0.0005 && (2_800..4_000).contains(&engine), "{gap} s, {engine}");
    let speed = |frames: &[Frame]| f64::from(behaviour(frames, 0x0D1).1) / 100.0;
    assert_eq!(speed(&parked), 0.0);
    assert!(speed(&idling) < 1.0 && (30.0..80.0).contains(&speed(&town)), "{} {}", speed(&idling), speed(&town));
    assert!((95.0..160.0).contains(&speed(&motorway)), "{}", speed(&motorway));
    // Counters go on, whatever the rate.
    let counters: Vec<u8> =
        parked.iter().filter(|frame| frame.can_id == 0x0A0).map(|frame| frame.payload[6] & 15).collect();
    assert!(counters.windows(2).all(|pair| pair[1] == (pair[0] + 1) % 16));
}

#[test]
fn a_route_follows_its_states_and_labels_its_attacks() {
    use AttackKind::*;
    let (frames, record) =
        route(&DrivingState::ROUND_TRIP, 400.0, &[(Spoofing, Intensity::High), (Replay, Intensity::High)]);
    assert_eq!(record.frames, frames.len() as u64);
    assert_eq!(record.attack_frames, frames.iter().filter(|frame| frame.attack).count() as u64);
    let states: Vec<DrivingState> = record.stays.iter().map(|stay| stay.state).collect();
    assert_eq!(states[..3], [DrivingState::Parked, DrivingState::Idling, DrivingState::Town]);
    assert!(record.stays.windows(2).all(|pair| pair[0].end_nanoseconds == pair[1].start_nanoseconds));
    // A pause of 10 to 30 s, and attacks of at most 2.5 s.
    assert!((12..40).contains(&record.episodes.len()), "{}", record.episodes.len());
    for frame in frames.iter().filter(|frame| frame.attack) {
        let during = |start: u64, end: u64| (start as f64 / 1e9..end as f64 / 1e9 + 0.02).contains(&frame.timestamp);
        assert!(record.episodes.iter().any(|episode| during(episode.start_nanoseconds, episode.end_nanoseconds)));
    }
    // The attacks are over the same drive: without them, the other frames have the same times and bytes at the beginning.
    let (calm, _) = route(&DrivingState::ROUND_TRIP, 400.0, &[]);
    let before = record.episodes[0].start_nanoseconds as f64 / 1e9;
    let until = |frames: &[Frame]| frames.iter().take_while(|frame| frame.timestamp < before).count();
    assert!(until(&calm) == until(&frames) && calm[..until(&calm)] == frames[..until(&calm)]);
}

#[test]
fn a_drive_is_written_as_a_log_of_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let output = starter::output(
            std::process::Command::new(env!("CARGO_BIN_EXE_kdgat"))
                .args(["data", "simulate", "--kind", "drive"])
                .args(arguments)
                .current_dir(folder.path()),
        );
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let hours = ["--hours", "0.02", "--attacks", "flooding", "--attack-every", "10"];
    let with = |name: &'static str| [&hours[..], &[name]].concat();
    let mut logs = Vec::new();
    for name in ["a.log", "a.csv.gz"] {
        let (code, told, errors) = run(&with(name));
        assert_eq!(code, Some(0), "{errors}");
        assert!(told.starts_with("simulated drive 1 with seed 42: ") && told.contains("attack at "), "{told}");
        let mut reader = open_log(&folder.path().join(name), None).unwrap();
        let (mut frames, mut block) = (Vec::new(), Vec::new());
        while reader.read_block(4096, &mut block).unwrap() > 0 {
            frames.append(&mut block);
        }
        logs.push(frames);
    }
    let [candump, rows] = &logs[..] else { unreachable!() };
    assert!(!candump.is_empty() && candump.len() == rows.len());
    let same = |(one, other): (&Frame, &Frame)| {
        (one.can_id, one.payload, one.payload_length) == (other.can_id, other.payload, other.payload_length)
            && (one.timestamp - other.timestamp).abs() < 1e-6
    };
    assert!(candump.iter().zip(rows).all(same));
    assert!(rows.iter().any(|frame| frame.attack) && candump.iter().all(|frame| !frame.attack));
    for (arguments, expected) in [
        (&with("a.log")[..], "a.log: exists already"),
        (&with("a.txt"), "expected a name that ends in .log"),
        (&["--hours", "0", "b.log"], "--hours 0: expected more than 0 hours"),
        (&["--hours", "1", "--attack-every", "9", "b.log"], "--attack-every 9 needs --attacks"),
        (&["--hours", "1", "--drive", "0", "b.log"], "--drive 0: expected a whole number from 1"),
        (&["--hours", "1", "--nodes", "5", "b.log"], "--nodes is for a graph of citations"),
    ] {
        let (code, _, errors) = run(arguments);
        assert!(code == Some(2) && errors.contains(expected), "{arguments:?}: {code:?} {errors}");
    }
}
