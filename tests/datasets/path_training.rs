//! Networks that read the parameters of listed angles and dihedrals.

use std::fs;

use kdgat::graph::{Batch, NodeScaling, OfPaths, Store, assemble};
use kdgat::nn::attention::Backend;
use kdgat::nn::irreps::{BondConfig, IrrepsConfig, PathParameters};
use kdgat::nn::layers::Mode;
use kdgat::nn::parameters::NamedTensor;
use kdgat::nn::{FreshParameters, Gnn, GnnConfig, GnnKind, RadialBasis, Scope, SpaceConfig};
use support::cli::{Workplace, loss_columns};
use support::stops::kill_when;
use tch::{Device, Tensor};

use super::path_tables::{Molecules, batch, molecules, options, reversed, shuffled};

/// A network of bonds that takes these paths from tables.
fn network(listed: OfPaths<PathParameters>) -> GnnConfig {
    let irreps = IrrepsConfig {
        irreps: "6x0e + 3x1o".parse().unwrap(),
        radial_hidden: 8,
        neighbours: 2.5,
        gate: true,
        layer_norm: false,
        bonds: Some(BondConfig { neighbours: 2.0, near_nodes: true, paths: true, listed }),
    };
    GnnConfig {
        hidden: irreps.irreps.count() as i64,
        space: Some(SpaceConfig {
            cutoff: 2.5,
            kinds: 119,
            features: false,
            basis: RadialBasis::Bessel,
            radial_functions: 5,
            forces: true,
            irreps: Some(irreps),
        }),
        ..GnnConfig::new(GnnKind::Irreps, [1, 8, 2, 1])
    }
}

fn model(config: &GnnConfig) -> (Gnn, Vec<NamedTensor>) {
    let mut fresh = FreshParameters::new(4, Device::Cpu);
    let model = Gnn::new(Scope::root(&mut fresh), config, Backend::Auto).unwrap();
    (model, fresh.into_tensors())
}

/// Values and forces of graphs, the forces node by node.
fn answers(model: &Gnn, batch: &Batch) -> [Tensor; 2] {
    let answer = model.in_space(batch, Mode::Evaluation).unwrap().unwrap();
    [answer.outputs, answer.forces.unwrap()]
}

fn parameters_of(store: &Store) -> OfPaths<PathParameters> {
    let schema = store.schema().unwrap().space.clone().unwrap();
    let graphs: Vec<u64> = (0..store.num_graphs()).collect();
    OfPaths::try_of(|kind| {
        let Some(names) = schema.paths.of(kind).cloned() else { return Ok(None) };
        NodeScaling::of_paths(store, &graphs, kind).map(|scaling| Some(PathParameters { names, scaling }))
    })
    .unwrap()
}

fn distance(one: &Tensor, other: &Tensor) -> f64 {
    (one - other).abs().max().double_value(&[])
}

/// Tables of all paths that the bonds make change nothing, values bit by bit without parameters; neither do parameters that no weight reads.
#[test]
fn tables_of_the_paths_of_the_bonds_give_the_network_of_bonds() {
    let folders: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let graphs = [0, 1, 2, 3];
    let of_bonds = Molecules { angles: String::new(), dihedrals: String::new(), ..molecules(4) };
    let of_bonds = of_bonds.store(folders[0].path());
    let (plain, tensors) = model(&network(OfPaths::default()));
    let expected = answers(&plain, &batch(&of_bonds, &graphs));
    let known = molecules(4);
    for (angles, dihedrals) in [
        (known.angles.replace("a_", "x_"), known.dihedrals.replace("d_", "x_")),
        (known.angles.replace("a_", "x_"), String::new()),
        (String::new(), known.dihedrals.replace("d_", "x_")),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let store = Molecules { angles, dihedrals, ..molecules(4) }.store(folder.path());
        let (own, _) = model(&network(parameters_of(&store)));
        let found = answers(&own, &batch(&store, &graphs));
        assert!(found[0] == expected[0], "other bits");
        // Their sums are in another order.
        assert!(distance(&found[1], &expected[1]) < 1e-5);
    }
    let listed = known.store(folders[1].path());
    let (own, mut own_tensors) = model(&network(parameters_of(&listed)));
    let with_weights = answers(&own, &batch(&listed, &graphs));
    for (named, known) in own_tensors.iter_mut().zip(&tensors) {
        assert_eq!(named.name, known.name);
        tch::no_grad(|| {
            let _ = named.tensor.zero_();
            match named.tensor.size() == known.tensor.size() {
                true => named.tensor.copy_(&known.tensor),
                false => named.tensor.narrow(1, 0, known.tensor.size()[1]).copy_(&known.tensor),
            }
        });
    }
    let without_weights = answers(&own, &batch(&listed, &graphs));
    for at in 0..2 {
        assert!(distance(&without_weights[at], &expected[at]) < 1e-5);
        assert!(distance(&with_weights[at], &expected[at]) > 1e-3, "parameters are read");
    }
    // A batch without the tables, or with other parameters, has no answer.
    for (store, expected) in [(&of_bonds, "2 parameters in the model, no table in the data"), (&listed, "angles")] {
        let config = network(parameters_of(&listed));
        let (model, _) = model(&config);
        let batch = assemble(store, &[0], &options(std::ptr::eq(store, &of_bonds))).unwrap();
        let error = model.in_space(&batch, Mode::Evaluation).unwrap().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// Answers depend neither on the numbers of nodes, nor on the order of rows, nor, bit by bit, on the batch.
#[test]
fn the_order_of_nodes_and_rows_changes_no_answer() {
    let folders: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
    let known = molecules(5);
    let mut lines: Vec<&str> = known.nodes.lines().collect();
    lines[1..].reverse();
    let renumbered = Molecules {
        graphs: known.graphs.clone(),
        nodes: lines.join("\n") + "\n",
        edges: shuffled(&known.edges),
        angles: shuffled(&reversed(&known.angles, 3)),
        dihedrals: shuffled(&reversed(&known.dihedrals, 4)),
    };
    let stores = [known.store(folders[0].path()), renumbered.store(folders[1].path())];
    let (model, _) = model(&network(parameters_of(&stores[0])));
    let graphs = [0, 1, 2, 3, 4];
    let [[energies, forces], [other_energies, other_forces]] =
        stores.each_ref().map(|store| answers(&model, &batch(store, &graphs)));
    assert!(distance(&energies, &other_energies) < 1e-5);
    // Within each molecule the nodes are the other way round.
    let of_molecules = |forces: &Tensor| forces.view([5, 6, 3]);
    assert!(distance(&of_molecules(&forces), &of_molecules(&other_forces).flip([1])) < 1e-5);
    for graph in graphs {
        let [alone, own_forces] = answers(&model, &batch(&stores[0], &[graph]));
        assert!(alone == energies.narrow(0, graph as i64, 1) && own_forces == forces.narrow(0, 6 * graph as i64, 6));
    }
}

/// Parameters are learned from, also by a student of displaced molecules that is killed and resumed; models of other tables are refused by name.
#[test]
fn parameters_of_paths_are_learned() {
    let place = Workplace::new();
    let known = molecules(100);
    known.write(&place.path().join("listed"));
    Molecules { angles: String::new(), dihedrals: String::new(), ..molecules(100) }.write(&place.path().join("bare"));
    let machine = ["--device", "cpu", "--threads", "1"];
    let few = ["--irreps", "8x0e + 4x1o", "--layers", "2", "--radial-hidden", "12", "--lr", "0.01", "--bonds", "true"];
    let train =
        |more: &[&str]| place.success(&[&["train", "--preset", "irreps,teacher"], &few[..], &machine, more].concat());
    let number = |run: &str, name: &str| {
        let text = fs::read(place.path().join(run).join("summary.json")).unwrap();
        serde_json::from_slice::<serde_json::Value>(&text).unwrap()[name].as_f64().unwrap()
    };
    for data in ["listed", "bare"] {
        let run = format!("of-{data}");
        train(&["--data", data, "--max-epochs", "25", "--run-dir", &run]);
    }
    let best = ["of-listed", "of-bare"].map(|run| number(run, "best_val_loss"));
    assert!(best[0] < 0.6 * best[1], "{best:?}");
    let ratio = number("of-listed", "expected_peak_memory_bytes") / number("of-listed", "peak_memory_bytes");
    assert!((0.95..1.05).contains(&ratio), "{ratio}");

    let student = ["train", "--preset", "irreps,student", "--teacher-path", "of-listed", "--data", "listed"];
    let small = [
        "--irreps",
        "6x0e + 2x1o",
        "--bonds",
        "true",
        "--kd-displacement",
        "0.05",
        "--kd-views",
        "3",
        "--max-epochs",
        "8",
    ];
    let into = |run: &'static str| [&student[..], &small, &machine, &["--run-dir", run]].concat();
    place.success(&into("whole"));
    let metrics = place.path().join("killed/metrics.csv");
    let is_begun = || fs::read_to_string(&metrics).is_ok_and(|text| text.lines().count() > 3);
    kill_when(place.command(&into("killed")), "the end of epoch 3", is_begun);
    place.success(&[&into("killed")[..], &["--resume"]].concat());
    assert_eq!(loss_columns(&place.path().join("whole")), loss_columns(&place.path().join("killed")));
    place.success(&["evaluate", "of-listed", "whole", "--data", "listed", "--resamples", "20"]);

    // The same numbers under another name mean something else.
    Molecules { angles: known.angles.replace("a_cos", "a_angle"), ..molecules(100) }
        .write(&place.path().join("listed"));
    let reads =
        "reads a table of angles with the parameters a_k, a_cos and a table of dihedrals with the parameters d_q";
    let has = "a table of angles with the parameters a_k, a_angle";
    let refused = |arguments: &[&str]| place.refused(&[arguments, &machine].concat());
    let said = refused(&[&student[..], &small].concat());
    assert!(said.contains(reads) && said.contains(has), "{said}");
    let said = place.refused(&["evaluate", "of-listed", "--data", "listed"]);
    assert!(said.contains(reads) && said.contains(has), "{said}");
    let begin = [&["train", "--preset", "irreps,teacher", "--init-from", "of-listed"], &few[..]].concat();
    let said = refused(&[&begin[..], &["--data", "listed"]].concat());
    assert!(
        said.contains(reads) && said.contains("the new model a table of angles with the parameters a_k, a_angle"),
        "{said}"
    );
    let said = refused(&[&begin[..], &["--data", "bare", "--transductive"]].concat());
    assert!(said.contains(reads) && said.contains("the new model no table of angles"), "{said}");
    let said = refused(&[&student[..5], &["--data", "bare"], &small].concat());
    assert!(said.contains(reads) && said.contains("no table of angles and no table of dihedrals"), "{said}");
}
