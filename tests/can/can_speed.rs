//! Speed of reading and simulating logs; `cargo test --release --test can can_speed:: -- --ignored --nocapture` prints it.

use std::time::Instant;

use kdgat::can::formats::can_train_and_test;
use kdgat::can::open_log;
use kdgat::can::simulator::{DrivePlan, SimulationOptions, simulate, simulate_drive};

#[test]
#[ignore = "a measurement, not a check"]
fn speed() {
    let folder = tempfile::tempdir().unwrap();
    let started = Instant::now();
    simulate(&SimulationOptions::default(), &folder.path().join("sim")).unwrap();
    println!("simulate: {:.2} s", started.elapsed().as_secs_f64());

    let plan = DrivePlan { seed: 1, number: 0, begins_at_seconds: 1_700_000_000, frames: 200_000, attacks: vec![] };
    let started = Instant::now();
    let drive = simulate_drive(&plan);
    println!("one drive: {:.2} million frames/s", 0.2 / started.elapsed().as_secs_f64());
    let mut rows = Vec::new();
    for frame in &drive.frames {
        can_train_and_test::write_row(frame, &mut rows);
    }
    let text = rows.repeat(20);
    let candump: Vec<u8> = drive
        .frames
        .iter()
        .flat_map(|frame| {
            let data: String =
                frame.payload[..usize::from(frame.payload_length)].iter().map(|byte| format!("{byte:02X}")).collect();
            format!("({:.6}) can0 {:03X}#{data}\n", frame.timestamp, frame.can_id).into_bytes()
        })
        .collect::<Vec<u8>>()
        .repeat(20);
    let gzip = |text: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        std::io::Write::write_all(&mut encoder, text).unwrap();
        encoder.finish().unwrap()
    };
    for (name, bytes) in [
        ("CSV", text.clone()),
        ("candump", candump),
        ("CSV gzip", gzip(&text[..text.len() / 10])),
        #[cfg(feature = "compressed")]
        ("CSV zstd", zstd::encode_all(&text[..], 3).unwrap()),
    ] {
        let path = folder.path().join("log");
        std::fs::write(&path, &bytes).unwrap();
        for _ in 0..3 {
            let started = Instant::now();
            let mut log = open_log(&path, None).unwrap();
            let mut frames = Vec::new();
            while log.read_block(8192, &mut frames).unwrap() > 0 {}
            let rate = log.report().rows as f64 / started.elapsed().as_secs_f64() / 1e6;
            println!("{name}: {rate:.1} million rows/s ({} rows, {} bytes)", log.report().rows, bytes.len());
        }
    }
}
