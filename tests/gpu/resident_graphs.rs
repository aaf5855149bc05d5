//! Batches that are made of graphs on the device are those of the host, bit by bit, and trainings with them have the same losses.

use std::path::Path;
use std::sync::Arc;

use crate::software::Card;
use crate::software::runs::{
    AUTOENCODER, TWO_EPOCHS, Trained, assert_expected_peak, assert_same_losses, column, losses, on_cpu, student,
    success_on,
};
use kdgat::graph::padding::SizeClass;
use kdgat::graph::{AssembleOptions, Batch, ResidentGraphs, UnknownDrop, assemble};
use kdgat::torch::device::cuda_device_count;
use support::comparison::assert_same_batch;
use support::graph::{options, store};
use tch::Device;

#[test]
fn batches_made_on_the_device_are_those_of_the_host() {
    assert_batches_are_those_of_the_host(Device::Cpu);
}

#[test]
fn batches_made_on_a_gpu_are_those_of_the_host() {
    kdgat::torch::load_cuda();
    if let Err(error) = cuda_device_count() {
        println!("skipped: no GPU ({error})");
        return;
    }
    assert_batches_are_those_of_the_host(Device::Cuda(0));
}

fn assert_batches_are_those_of_the_host(device: Device) {
    let store = store();
    let all: Vec<u64> = (0..store.num_graphs()).rev().filter(|graph| graph % 5 != 3).collect();
    let drop = |views| UnknownDrop { probability: 0.3, seed: 7, epoch: 5, views };
    let ways = [(None, false), (Some(drop(0)), false), (Some(drop(3)), false), (Some(drop(0)), true), (None, true)];
    let on_host = |batch: &Batch| batch.to_device(Device::Cpu).unwrap();
    for (unknown_drop, hashed_ids) in ways {
        let options = AssembleOptions { hashed_ids, unknown_drop, ..options(&store) };
        let resident = ResidentGraphs::copy(Arc::clone(&store), &all, options.clone(), device).unwrap();
        assert!(resident.bytes() <= ResidentGraphs::most_bytes(&store, &all, &options).unwrap());
        let numbers = [&all[..1], &all[4..90], &[all[7], all[3], all[7]], &all, &[]];
        for graphs in numbers {
            let found = resident.batch(graphs, unknown_drop, false).unwrap();
            let expected = assemble(&store, graphs, &options).unwrap();
            assert_same_batch(&on_host(&found), &expected);
            let with_padding = resident.batch(graphs, unknown_drop, true).unwrap();
            assert_same_batch(&on_host(&with_padding), &expected);
            let padded = with_padding.padded_form.unwrap();
            assert_same_batch(&on_host(&padded), &expected.padded(SizeClass::of(&expected)).unwrap());
            // Into a copy of another batch of these sizes, as a captured step has it: one without random IDs.
            let mut copy = resident.batch(graphs, None, true).unwrap().padded_form.unwrap().copied().unwrap();
            let _ = copy.memory.as_mut().unwrap().fill_(0);
            copy.copy_from(&padded).unwrap();
            assert_same_batch(&on_host(&copy), &on_host(&padded));
        }
        let absent = (0..store.num_graphs()).find(|graph| graph % 5 == 3).unwrap();
        let error = resident.batch(&[absent], unknown_drop, false).unwrap_err().to_string();
        assert!(error.contains("it is not on the device"), "{error}");
    }
}

#[test]
fn software_card_trains_on_batches_that_it_makes() {
    let trained = Trained::get();
    let workplace = &trained.workplace;
    for (stage, expected) in trained.stages() {
        for (seed, captured) in [(1, "false"), (2, "true")] {
            let name = |what: &str| format!("{}-{what}-{captured}", stage.name);
            let (host, device) = (name("host"), name("device"));
            // In four views, not all targets are cached after two epochs.
            let is_complete = stage.name == "autoencoder" || captured == "true";
            let views: &[&str] =
                if captured == "true" && stage.name != "autoencoder" { &["--unknown-drop", "0"] } else { &[] };
            let run = |run: &str, on_device: &str| {
                let more = ["--graphs-on-device", on_device, "--cuda-graphs", captured, "--offload-teacher"];
                // Half precision against a run from the host, single precision against the CPU.
                let precision = ["--teacher-cache-precision", if captured == "true" { "f16" } else { "f32" }];
                let arguments = [&student(stage, run)[..], TWO_EPOCHS, &more, &precision, views].concat();
                success_on(&Card::new().late(seed), workplace, &arguments)
            };
            let (said, counted) = run(&device, "true");
            assert!(said.contains("graphs stay on the device in"), "{said}");
            let teacher = &workplace.json(&format!("{device}/summary.json"))["teacher"]["decisions"];
            assert_eq!(teacher.to_string().contains("the targets stay on the device"), is_complete, "{teacher}");
            let (_, of_host) = run(&host, "false");
            assert_expected_peak(workplace, &device);
            assert_expected_peak(workplace, &host);
            match captured {
                "false" => assert_same_losses(workplace, &device, expected),
                _ => assert_eq!(losses(workplace, &device), losses(workplace, &host)),
            }
            // Numbers of graphs instead of graphs.
            let copied = |counted: &serde_json::Value| counted["copied_to_cards_bytes"].as_u64().unwrap();
            assert!(copied(&counted) < copied(&of_host), "{device}: {counted} instead of {of_host}");
            assert!(counted["kernels"].as_u64() > Some(0) && of_host["kernels"] == 0, "{counted}, {of_host}");
        }
    }
}

#[test]
fn graphs_without_room_stay_on_the_host() {
    let trained = Trained::get();
    let workplace = &trained.workplace;
    for (stage, _) in trained.stages() {
        let run = |on_device: &str| {
            let run = format!("{}-no-room-{on_device}", stage.name);
            let more = ["--graphs-on-device", on_device, "--gpu-memory-limit", "3MB", "--use-kd", "false"];
            let arguments = [&student(stage, &run)[..], TWO_EPOCHS, &more].concat();
            let (said, _) = success_on(&Card::new().late(3), workplace, &arguments);
            (said, losses(workplace, &run))
        };
        let ((said, found), (_, expected)) = (run("true"), run("false"));
        assert!(said.contains("graphs stay in host memory, where batches are made: they would take"), "{said}");
        assert_eq!(found, expected);
    }
}

/// Features that are deviations from a profile, whose IDs are hidden.
#[test]
fn profile_features_stay_on_the_device() {
    let workplace = &Trained::get().workplace;
    let common = ["classifier", "--preset", "gat,student,profile", "--use-kd", "false", "--attention", "composed"];
    let size = ["--batch-size", "64", "--optimize-batch-size", "false", "--max-epochs", "1"];
    on_cpu(workplace, &[&common[..], &size, &["--run-dir", "profile-cpu"]].concat());
    let device = ["--graphs-on-device", "true", "--run-dir", "profile-device"];
    let (said, _) = success_on(&Card::new().late(4), workplace, &[&common[..], &size, &device].concat());
    assert!(said.contains("graphs stay on the device in"), "{said}");
    assert_same_losses(workplace, "profile-device", &losses(workplace, "profile-cpu"));
}

/// A second run finds all targets in the file of the first: its teacher is on the device for what is measured, and never again.
#[test]
fn a_teacher_whose_targets_stay_on_the_device_leaves_it() {
    let trained = Trained::get();
    let workplace = &trained.workplace;
    let kept = ["--teacher-cache", "disk", "--teacher-cache-dir", "kept-targets", "--teacher-residency", "resident"];
    for run in ["kept-first", "kept-second"] {
        let more = ["--graphs-on-device", "true", "--log-every-n-steps", "1"];
        let arguments = [&student(&AUTOENCODER, run)[..], TWO_EPOCHS, &kept, &more].concat();
        success_on(&Card::new().late(5), workplace, &arguments);
        assert_same_losses(workplace, run, &trained.autoencoder);
        assert_expected_peak(workplace, run);
    }
    let held = column(workplace, "kept-second/steps.csv", "device_bytes_teacher");
    assert!(held.iter().all(|&bytes| bytes == 0.0), "{held:?}");
    let summary = workplace.json("kept-second/summary.json");
    assert_eq!(summary["teacher"]["visits"], 0, "{summary}");
}

/// Rings of nodes with two features and a value each, as tables.
fn write_rings(folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    let mut tables = ["graph_id,y\n", "graph_id,node_id,x_a,x_b\n", "graph_id,source,target\n"].map(str::to_owned);
    for graph in 0..90 {
        let nodes = 3 + graph % 7;
        // Values that single precision would round.
        tables[0] += &format!("g{graph},{}\n", 90_000.0 + f64::from(graph % 5) * 0.001);
        for node in 0..nodes {
            let [a, b] = [f64::from(graph) * 0.1, f64::from(node) * 0.7].map(f64::sin);
            tables[1] += &format!("g{graph},{node},{a:.4},{b:.4}\n");
            tables[2] += &format!("g{graph},{node},{}\n", (node + 1) % nodes);
        }
    }
    for (name, text) in ["graphs", "nodes", "edges"].iter().zip(tables) {
        std::fs::write(folder.join(format!("{name}.csv")), text).unwrap();
    }
    std::fs::write(folder.join("kdgat-graphs.toml"), "task = \"regression\"\n").unwrap();
}

#[test]
fn values_of_graphs_stay_on_the_device() {
    let workplace = &Trained::get().workplace;
    write_rings(&workplace.path("rings"));
    let common = ["train", "--data", "rings", "--preset", "gin,student", "--use-kd", "false", "--max-epochs", "2"];
    let size = ["--batch-size", "16", "--optimize-batch-size", "false"];
    let run = |on_device: &str| {
        let run = format!("rings-{on_device}");
        let more = ["--graphs-on-device", on_device, "--run-dir", &run];
        let (said, _) = success_on(&Card::new().late(6), workplace, &[&common[..], &size, &more].concat());
        assert_expected_peak(workplace, &run);
        (said, losses(workplace, &run))
    };
    let ((said, found), (_, expected)) = (run("true"), run("false"));
    assert!(said.contains("graphs stay on the device in"), "{said}");
    assert_eq!(found, expected);
}
