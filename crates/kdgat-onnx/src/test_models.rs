//! Models for the tests, and the check of an exported one.

use std::collections::BTreeSet;

use kdgat_nn::weights::StateDict;
use kdgat_nn::{FreshParameters, ModelError, Scope};
use prost::Message;
use tch::Device;

use super::message::{Model, ValueInfo};

/// The tensors of a model with initial weights.
pub fn state_of(build: impl FnOnce(Scope) -> Result<(), ModelError>) -> StateDict {
    let mut parameters = FreshParameters::new(1, Device::Cpu);
    build(Scope::root(&mut parameters)).unwrap();
    parameters.into_tensors().into_iter().map(|named| (named.name, named.tensor)).collect()
}

/// Every operator input is a graph input, a constant, or an earlier output; every name is defined once; every tensor is used.
pub fn expect_complete(bytes: &[u8], state: &StateDict, inputs: &[&str], outputs: &[&str]) {
    let graph = Model::decode(bytes).unwrap().graph.unwrap();
    let names = |values: &[ValueInfo]| values.iter().map(|value| value.name.clone().unwrap()).collect::<Vec<_>>();
    assert_eq!(names(&graph.inputs), inputs);
    assert_eq!(names(&graph.outputs), outputs);
    let constants = graph.initializers.iter().map(|constant| constant.name.clone().unwrap());
    let given: Vec<String> = names(&graph.inputs).into_iter().chain(constants).collect();
    let mut known: BTreeSet<String> = given.iter().cloned().collect();
    assert_eq!(known.len(), given.len(), "a name twice in {given:?}");
    for node in &graph.nodes {
        for input in &node.inputs {
            assert!(known.contains(input), "{:?} reads {input}", node.name);
        }
        assert!(node.outputs.iter().all(|output| known.insert(output.clone())), "{:?}", node.outputs);
    }
    for name in outputs {
        assert!(known.contains(*name), "{name} is not computed");
    }
    for name in state.keys().filter(|name| !name.ends_with("num_batches_tracked")) {
        assert!(known.contains(name), "{name} is not used");
    }
}
