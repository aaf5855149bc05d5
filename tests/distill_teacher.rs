//! The teacher's thread: the same numbers wherever the weights lie, and an orderly end whatever happens.

mod distill_support;

use distill_support::{Behaviour, Perceptron, batch, bits};
use kdgat::distill::{Residency, StoreShape, Targets, Teacher, TeacherError, TeacherOptions, Weights};
use kdgat::graph::Batch;
use tch::Device;

fn options(residency: Residency) -> TeacherOptions {
    TeacherOptions { residency, ..TeacherOptions::new(Device::Cpu) }
}

fn bursts(count: u64) -> Vec<Vec<Batch>> {
    let make = |burst| (0..3u64).map(|number| batch(&[burst * 9 + number * 3, burst * 9 + 1, 7])).collect();
    (0..count).map(make).collect()
}

fn all_targets(model: Box<Perceptron>, weights: Weights, residency: Residency, slots: usize) -> Vec<Targets> {
    let options = TeacherOptions { layer_slots: slots, ..options(residency) };
    let mut teacher = Teacher::start(model, weights, &options, &StoreShape::default()).unwrap();
    let mut targets = Vec::new();
    for burst in bursts(3) {
        let count = burst.len();
        teacher.submit(burst);
        for _ in 0..count {
            targets.push(teacher.targets().unwrap());
        }
        teacher.prepare();
    }
    let summary = teacher.finish().unwrap();
    assert_eq!((summary.batches, summary.visits, summary.forwards), (9, 3, 9));
    targets
}

#[test]
fn residencies_give_the_same_bits() {
    tch::set_num_threads(1);
    for model in [Perceptron::classifier as fn() -> Box<Perceptron>, || Perceptron::vgae(Behaviour::Proper)] {
        let run = |residency, slots| {
            let model = model();
            let weights = model.weights(3);
            all_targets(model, weights, residency, slots).iter().map(bits).collect::<Vec<_>>()
        };
        let resident = run(Residency::Resident, 2);
        assert_eq!(resident.len(), 9);
        assert_eq!(run(Residency::Forward, 2), resident, "forward");
        for slots in 1..=6 {
            assert_eq!(run(Residency::Layer, slots), resident, "layer with {slots} slots");
        }
    }
}
