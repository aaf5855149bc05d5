//! The C code makes the trainer's graphs of the same frames: nodes, edges and all features, for every feature set and stride.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

use crate::compiler::can_compile;
use crate::models::{WINDOW, compiled, export, gat, random_state, rich, vgae, vocabulary};
use kdgat_can::Frame;
use kdgat_car::Precision;
use kdgat_graph::assemble::Assembler;
use kdgat_graph::profile::{
    ByteProfile, DEVIATIONS, GoneWatch, IdProfile, Partner, Place, Relation, SignalRange, deviations,
};
use kdgat_graph::{AssembleOptions, CarProfile, Columns, FeatureSet, GraphStream, ProfileLearner};
use kdgat_nn::weights::floats;
use kdgat_nn::{Architecture, InputConfig};

/// Traffic with schedules: periodic IDs of which some stop, one that is injected again and again, payloads with counters, constants and
/// noise, short payloads, a burst of extended IDs, a time that steps back, a pause, and in the last third a payload (ID 0x11b) and a counter
/// (0x11e, byte 7) that stand still.
fn busy_traffic(count: usize) -> Vec<Frame> {
    let mut state = 99_u64;
    let mut draw = move |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    let mut frames = Vec::new();
    let mut next: Vec<(f64, u32)> = (0..25).map(|index| (0.0003 * f64::from(index), index)).collect();
    let mut shift = 0.0;
    while frames.len() < count {
        let at = frames.len();
        next.sort_by(|one, other| one.0.total_cmp(&other.0));
        let (time, index) = next[0];
        next[0].0 += 0.004 * f64::from(1 + index % 7) + 1e-5 * draw(9) as f64;
        if index % 5 == 3 && at > count / 2 {
            continue;
        }
        if at == count / 3 {
            shift += 3.0;
        }
        if at == count * 3 / 5 {
            shift -= 0.02;
        }
        let length = if index == 4 { draw(9) as u8 } else { 8 };
        let mut payload = [0; 8];
        for (byte, value) in payload.iter_mut().enumerate().take(length.into()) {
            *value = match byte {
                0 => (at / 20) as u8,
                1..4 => index as u8,
                4 => (draw(2) * u64::from(index == 6)) as u8,
                _ => draw(7) as u8,
            };
        }
        let stands_still = at > count * 2 / 3;
        match index {
            10 => payload[7] = if stands_still { 7 } else { at as u8 },
            9 if stands_still => payload = [9; 8],
            _ => {}
        }
        let timestamp = ((time + shift) * 1e6).round() / 1e6;
        frames.push(Frame { timestamp, can_id: 0x100 + 3 * index, payload, payload_length: length, attack: false });
        if index == 2 && at > count / 4 {
            let timestamp = timestamp + 2e-4;
            frames.push(Frame { timestamp, can_id: 0x106, payload: [255; 8], payload_length: 8, attack: true });
        }
        if at % 97 > 90 {
            let can_id = 0x18fe_0000 + draw(300) as u32;
            frames.push(Frame { timestamp, can_id, payload, payload_length: length, attack: false });
        }
    }
    frames.truncate(count);
    frames
}

/// The graphs of the frames as the trainer reads them, in the format of windows.c.
fn graphs(frames: &[Frame], stride: usize, architecture: &Architecture) -> Vec<String> {
    let input = architecture.input();
    let mut stream = GraphStream::new(input.features(), WINDOW, stride);
    let mut columns = Columns::new(input.features());
    // In blocks, as they are read from a log.
    for block in frames.chunks(173) {
        let each = |mut window: kdgat_graph::graph_stream::ReadyWindow<'_>| {
            window.append_to(0, &mut columns);
            Ok::<(), ()>(())
        };
        stream.push(block, each).unwrap();
    }
    let mut options = AssembleOptions::new(Arc::new(vocabulary()));
    options.edge_attributes = architecture.reads_edge_features();
    options.profile = input.profile.clone();
    let batch = Assembler::default().assemble_columns(&columns, &options).unwrap();
    let continuous = floats(&input.continuous(&batch).unwrap()).unwrap();
    let width = input.node_features() as usize;
    let (mut lines, mut rows) = (Vec::new(), continuous.chunks(width));
    for graph in 0..columns.num_graphs() {
        let view = columns.graph(graph);
        lines.push(format!("window {}", view.first_frame));
        let sending = view.sending_ids();
        let unusual = input.profile.as_ref().map(|profile| profile.unusual_nodes(&view));
        for (node, id) in view.can_ids.iter().enumerate() {
            let sends = u8::from(sending.contains(id));
            let surprise = unusual.as_ref().map_or(String::new(), |nodes| format!(" {}", nodes[node].surprise));
            lines.push(format!(
                "{id} {} {sends}{}{surprise}",
                vocabulary().index_of(*id),
                listed(rows.next().unwrap())
            ));
        }
        let mut edges = view.sources.iter().zip(view.edge_features.chunks(view.edge_features.len() / view.num_edges()));
        for target in 0..view.num_nodes() {
            for _ in view.row_pointers[target]..view.row_pointers[target + 1] {
                let (source, features) = edges.next().unwrap();
                let features = if architecture.reads_edge_features() { listed(features) } else { String::new() };
                lines.push(format!("{source} {target}{features}"));
            }
        }
    }
    lines
}

fn listed(values: &[f32]) -> String {
    values.iter().map(|value| format!(" {value}")).collect()
}

/// The lines of the C code for the frames.
fn lines_of(program: &mut Command, frames: &[Frame]) -> Vec<String> {
    let mut child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut bytes = Vec::new();
    for frame in frames {
        bytes.extend(frame.timestamp.to_ne_bytes());
        bytes.extend(frame.can_id.to_ne_bytes());
        bytes.push(frame.payload_length);
        bytes.extend(frame.payload);
    }
    let writer = std::thread::spawn(move || stdin.write_all(&bytes).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

fn expect_equal(name: &str, found: &[String], expected: &[String]) {
    let mut largest = 0.0_f64;
    let mut window = "";
    for (found, expected) in found.iter().zip(expected) {
        if expected.starts_with("window") {
            window = expected;
            assert_eq!(found, expected, "{name}");
            continue;
        }
        let numbers = |line: &str| line.split(' ').map(|value| value.parse().unwrap()).collect::<Vec<f64>>();
        let (of_c, of_trainer) = (numbers(found), numbers(expected));
        assert_eq!(of_c.len(), of_trainer.len(), "{name}, {window}: {found} instead of {expected}");
        for (one, other) in of_c.iter().zip(&of_trainer) {
            // Two limits may be infinite.
            let difference = if one == other { 0.0 } else { (one - other).abs() / other.abs().max(1.0) };
            largest = largest.max(difference);
            assert!(difference < 1e-6, "{name}, {window}: {one} instead of {other}\n{found}\n{expected}");
        }
    }
    assert_eq!(found.len(), expected.len(), "{name}");
    println!("{name}: {} lines, largest difference {largest:.1e}", found.len());
}

/// The windows of logs.
fn columns(logs: &[&[Frame]], stride: usize) -> Columns {
    let mut columns = Columns::new(FeatureSet::Profile);
    for (number, frames) in logs.iter().enumerate() {
        let append = |mut window: kdgat_graph::graph_stream::ReadyWindow<'_>| {
            window.append_to(number as u32, &mut columns);
            Ok::<(), ()>(())
        };
        GraphStream::new(FeatureSet::Profile, WINDOW, stride).push(frames, append).unwrap();
    }
    columns
}

/// A profile of the attack-free frames of the first part of the traffic.
fn profile(frames: &[Frame]) -> InputConfig {
    profile_of(&columns(&[frames], WINDOW))
}

fn profile_of(columns: &Columns) -> InputConfig {
    let learner = ProfileLearner::of((0..columns.num_graphs()).map(|graph| columns.graph(graph)));
    InputConfig { profile: Some(learner.profile()), ..InputConfig::default() }
}

/// The same profile with relations between the first bytes of some IDs, which that much traffic does not teach.
fn with_relations(input: &InputConfig) -> InputConfig {
    let partner = |index: u32, place: Place, slope: f32| Partner {
        can_id: 0x100 + 3 * index,
        place,
        range: SignalRange { least: 0.0, most: 150.0 },
        slope,
        offset: 1.5,
        error: 3.0 + index as f32,
    };
    let [byte, word] = [Place { high: None, low: 0 }, Place { high: Some(0), low: 1 }];
    let relations = (0..12).map(|index| Relation {
        can_id: 0x100 + 3 * index,
        place: if index % 2 == 0 { byte } else { word },
        range: SignalRange { least: 0.0, most: 40_000.0 },
        usual: if index % 2 == 0 { 1.0 } else { 40.0 },
        partners: vec![
            // The first bytes rise from window to window: a slope that is too small holds in early windows, and in late ones half of the
            // relations are broken, more than they cover.
            partner(index + 1, byte, if index % 2 == 0 { 0.8 } else { 256.0 }),
            partner(index + 2, Place { high: Some(1), low: 0 }, -0.25),
        ],
    });
    let ids = input.profile.as_ref().unwrap().ids().to_vec();
    InputConfig { profile: Some(CarProfile::new(ids, relations.collect())), ..input.clone() }
}

/// The same profile, as if a hundred times as much traffic had been seen: enough to know for how long payloads stand still.
fn of_long_traffic(input: &InputConfig) -> InputConfig {
    let profile = input.profile.as_ref().unwrap();
    let longer = |id: &IdProfile| IdProfile { gaps: 100 * id.gaps, ..id.clone() };
    let ids = profile.ids().iter().map(longer).collect();
    InputConfig { profile: Some(CarProfile::new(ids, Vec::new())), ..input.clone() }
}

/// The payload and the counter that stand still deviate, and no other ID does.
fn assert_standstills_are_found(lines: &[String]) {
    let mut found = std::collections::BTreeSet::new();
    for row in lines.iter().map(|line| line.split(' ').collect::<Vec<_>>()).filter(|row| row.len() == 4 + DEVIATIONS) {
        if row[3 + deviations::STANDSTILL] != "0" {
            found.insert(row[0].parse::<u32>().unwrap());
        }
    }
    assert_eq!(found.into_iter().collect::<Vec<_>>(), [0x11b, 0x11e]);
}

/// Some nodes are compared, some of them disagree, and some windows are not covered.
fn assert_relations_are_used(lines: &[String]) {
    let windows: Vec<&[String]> =
        lines.split(|line| line.starts_with("window")).filter(|rows| !rows.is_empty()).collect();
    let count = |rows: &[String], column: usize| {
        // ID, row of the vocabulary, and whether it sends come before the features, the surprise after them; edges have fewer columns.
        let nodes = rows.iter().map(|row| row.split(' ').collect::<Vec<_>>()).filter(|row| row.len() == 4 + DEVIATIONS);
        nodes.filter(|row| row[3 + column] != "0").count()
    };
    let of_windows = |column: usize| windows.iter().map(move |rows| count(rows, column));
    let (disagreeing, compared) =
        (of_windows(deviations::DISAGREEMENT).sum::<usize>(), of_windows(deviations::COMPARED));
    assert!(disagreeing > 0, "no node disagrees");
    let (covered, not_covered): (Vec<usize>, Vec<usize>) = compared.partition(|count| *count > 0);
    // Nearly all IDs send in each window of this traffic, so that without any comparison it is one that the relations do not cover.
    assert!(!covered.is_empty() && !not_covered.is_empty(), "{} covered, {} not", covered.len(), not_covered.len());
}

#[test]
fn c_makes_the_trainers_graphs() {
    if !can_compile() {
        return;
    }
    let frames = busy_traffic(4_000);
    let profile = profile(&frames[..1_500]);
    for (name, architecture, strides) in [
        ("window features", gat(true, InputConfig::default(), 2), &[WINDOW, 7][..]),
        ("rich features", gat(true, rich(), 2), &[WINDOW, 13][..]),
        ("profile features", gat(true, profile.clone(), 2), &[WINDOW, 1, 11, WINDOW + 1, 2 * WINDOW + 17][..]),
        ("profile features with relations", gat(true, with_relations(&profile), 2), &[WINDOW, 11][..]),
        ("profile features with standstills", gat(true, of_long_traffic(&profile), 2), &[WINDOW, 11][..]),
        ("profile features of a vgae", vgae(false, profile, &[16, 8]), &[WINDOW][..]),
    ] {
        let state = random_state(&architecture);
        for &stride in strides {
            let expected = graphs(&frames, stride, &architecture);
            let (folder, _) = export(name, architecture.clone(), &state, Precision::F32, stride);
            if name.ends_with("relations") {
                assert_relations_are_used(&expected);
            }
            if name.ends_with("standstills") {
                assert_standstills_are_found(&expected);
            }
            let found = lines_of(&mut compiled(folder.path(), "windows.c"), &frames);
            expect_equal(&format!("{name}, stride {stride}"), &found, &expected);
        }
    }
}

/// The profile that a calibration in C learns is the trainer's, also from several logs, of which one is too short for a window, one ends in a
/// silence of an ID, and one has a pause.
#[test]
fn c_learns_the_trainers_profile() {
    if !can_compile() {
        return;
    }
    // A calibration has no labels.
    let frames: Vec<Frame> = busy_traffic(3_000).into_iter().map(|frame| Frame { attack: false, ..frame }).collect();
    let falls_silent = regular_traffic(25.0, |time, id| id != 3 || time < 12.0);
    let mut paused = regular_traffic(15.0, |_, id| id >= 4);
    paused.iter_mut().filter(|frame| frame.timestamp > 7.0).for_each(|frame| frame.timestamp += 300.0);
    let state = random_state(&gat(false, profile(&frames), 1));
    let mark = |frame: &Frame| Frame { can_id: u32::MAX, ..*frame };
    let logs = [&frames[..1_013], &frames[1_013..1_030], &frames[1_030..], &falls_silent[..], &paused[..]];
    let joined = |logs: &[&[Frame]]| {
        let mut joined = Vec::new();
        for log in logs {
            joined.extend((!joined.is_empty()).then(|| mark(&log[0])));
            joined.extend_from_slice(log);
        }
        joined
    };
    // The trainer does not know when frames between two windows come, and would have the pause begin with them.
    for (stride, logs) in [(WINDOW, &[&frames[..]][..]), (WINDOW, &logs), (17, &logs), (WINDOW + 30, &logs[..4])] {
        let frames = &joined(logs);
        let input = profile_of(&columns(logs, stride));
        let learned = input.profile.clone().unwrap();
        if logs.len() > 1 {
            let silence = learned.id(3).unwrap().longest_silence_seconds;
            assert!((12.8..13.1).contains(&silence), "{silence}");
            let steady = learned.id(9).unwrap();
            assert!(steady.longest_silence_seconds < 0.1, "{steady:?}");
            // Windows that overlap count their frames twice or more.
            assert!(stride != WINDOW || (39.0..43.0).contains(&steady.watched_seconds), "{steady:?}");
        }
        let (folder, _) = export("learning", gat(false, input, 1), &state, Precision::F32, stride);
        let found = lines_of(&mut compiled(folder.path(), "learn.c"), frames);
        let mut expected = vec![learned.new_id_surprise().to_string()];
        expected.extend(learned.ids().iter().map(line_of));
        expect_equal(&format!("a learned profile, stride {stride}"), &found, &expected);
    }
}

/// An ID of a profile in the format of learn.c.
fn line_of(id: &IdProfile) -> String {
    let numbers = [
        id.gap_low_seconds,
        id.gap_median_seconds,
        id.gap_mean_seconds,
        id.gap_high_seconds,
        id.watched_seconds,
        id.longest_silence_seconds,
        id.gone_seconds(),
        id.repeats,
        id.returns,
        id.changed_bytes,
    ];
    let of_byte = |byte: &ByteProfile| {
        let seen: String =
            byte.seen.iter().flat_map(|word| word.to_le_bytes()).map(|seen| format!(" {seen}")).collect();
        format!(" {} {} {}{seen}", byte.change_high, byte.change_most, u8::from(byte.repeats))
    };
    let bytes: String = id.bytes.iter().map(of_byte).collect();
    format!("{} {}{}{bytes} {}", id.can_id, id.gaps, listed(&numbers), id.longest_standstill)
}

/// IDs 1 to 9 every 20 ms for so many seconds, without the frames that `has` excludes.
fn regular_traffic(seconds: f64, has: impl Fn(f64, u32) -> bool) -> Vec<Frame> {
    let step = |at: u32| {
        (1..10).map(move |can_id| {
            let timestamp = 0.02 * f64::from(at) + 0.001 * f64::from(can_id);
            Frame { timestamp, can_id, payload: [at as u8; 8], payload_length: 8, attack: false }
        })
    };
    (0..(50.0 * seconds) as u32).flat_map(step).filter(|frame| has(frame.timestamp, frame.can_id)).collect()
}

/// The C code calls the IDs gone that the trainer does, in the same windows: one alone, several at once, one that comes back, and none while the car
/// falls asleep.
#[test]
fn c_finds_the_ids_that_are_gone() {
    if !can_compile() {
        return;
    }
    let input = profile(&regular_traffic(60.0, |_, _| true));
    let car = input.profile.clone().unwrap();
    let architecture = gat(false, input, 1);
    let state = random_state(&architecture);
    let drives = [
        regular_traffic(20.0, |time, id| id != 3 || time < 8.0),
        regular_traffic(30.0, |time, id| id != 3 || time < 4.0 || (12.0..15.0).contains(&time)),
        regular_traffic(20.0, |time, id| !(4..7).contains(&id) || time < 8.0),
        regular_traffic(20.0, |time, id| id < 5 || time < 8.0 + 0.1 * f64::from(id)),
        // With a pause of the log and a step back.
        regular_traffic(20.0, |_, _| true)
            .into_iter()
            .map(|frame| Frame {
                timestamp: if frame.timestamp > 9.0 { frame.timestamp * 50.0 } else { frame.timestamp },
                ..frame
            })
            .chain(regular_traffic(3.0, |_, _| true))
            .collect(),
    ];
    let mut reported = Vec::new();
    for stride in [WINDOW, 3 * WINDOW] {
        let (folder, _) = export("gone", architecture.clone(), &state, Precision::F32, stride);
        let mut program = compiled(folder.path(), "gone.c");
        for drive in &drives {
            let (windows, mut watch) = (columns(&[drive], stride), GoneWatch::new(&car));
            let mut expected = Vec::new();
            for window in 0..windows.num_graphs() {
                let gone: Vec<u32> = watch.push(&windows.graph(window)).iter().map(|gone| gone.can_id).collect();
                let named = gone.iter().map(|id| format!(" {id}")).collect::<String>();
                expected.extend((!gone.is_empty()).then(|| format!("{window} 1{named} :{named}")));
            }
            let found: Vec<String> = lines_of(&mut program, drive)
                .into_iter()
                .map(|line| line.split(' ').take(2 + 2 * expected_ids(&line) + 1).collect::<Vec<_>>().join(" "))
                .collect();
            assert_eq!(found, expected, "stride {stride}");
            reported.push(expected.len());
        }
    }
    assert_eq!(reported, [1, 2, 1, 0, 0, 1, 2, 1, 0, 0]);
}

/// Number of the IDs in a line of gone.c that are gone; further culprits may follow them.
fn expected_ids(line: &str) -> usize {
    line.split(" :").next().map_or(0, |gone| gone.split(' ').count() - 2)
}
