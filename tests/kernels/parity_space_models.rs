//! SchNet and PaiNN equal schnetpack: names of tensors, energies, forces, and gradients of a loss of both. Energies do not depend on the place
//! of a molecule in space, nor on the order of its atoms; forces turn along.

use kdgat::graph::edge_list::{EdgeList, from_edge_list};
use kdgat::graph::{Batch, EDGE_FEATURES, Space};
use kdgat::nn::attention::Backend;
use kdgat::nn::irreps::{BondConfig, IrrepsConfig};
use kdgat::nn::layers::Mode;
use kdgat::nn::space::SpaceAnswer;
use kdgat::nn::{
    FreshParameters, Gnn, GnnConfig, GnnKind, Pooling, RadialBasis, Scope, SpaceConfig, parameters::NamedTensor,
};
use tch::{Device, Kind, Tensor};

use super::reference_values::{Reference, assert_close, integers, reference};

const CUTOFF: f64 = 3.0;

type Case = (&'static str, GnnKind, RadialBasis, Pooling);

const MODELS: [Case; 3] = [
    ("painn", GnnKind::PaiNN, RadialBasis::Gaussian, Pooling::Sum),
    ("schnet", GnnKind::SchNet, RadialBasis::Gaussian, Pooling::Sum),
    ("bessel", GnnKind::PaiNN, RadialBasis::Bessel, Pooling::Mean),
];

/// Networks that obey the same laws: those above, and those of representations of all kinds, without and with bonds.
const ALL: [Case; 7] = [
    MODELS[0],
    MODELS[1],
    MODELS[2],
    ("irreps", GnnKind::Irreps, RadialBasis::Bessel, Pooling::Sum),
    ("bonds", GnnKind::Irreps, RadialBasis::Bessel, Pooling::Sum),
    ("bonds", GnnKind::Irreps, RadialBasis::Bessel, Pooling::Attention),
    ("attention", GnnKind::PaiNN, RadialBasis::Gaussian, Pooling::Attention),
];

/// Two atoms of a molecule that are nearer than this have a bond.
const LONGEST_BOND: f64 = 2.2;

/// Molecules with these sizes, and their pairs.
fn batch(sizes: &[usize], space: Space) -> Batch {
    let nodes: usize = sizes.iter().sum();
    let pointers: Vec<usize> = std::iter::once(0)
        .chain(sizes.iter().scan(0, |end, size| {
            *end += size;
            Some(*end)
        }))
        .collect();
    let (sources, targets, features) = bonds(&pointers, &space);
    let list = EdgeList {
        id_index: &vec![0; nodes],
        continuous: &vec![0.0; 10 * nodes],
        sources: &sources,
        targets: &targets,
        edge_attributes: Some(&features),
        node_pointers: &pointers.iter().map(|&pointer| pointer as i64).collect::<Vec<_>>(),
        labels: &vec![0; sizes.len()],
        vocabulary_size: 1,
    };
    Batch { space: Some(Box::new(space)), ..from_edge_list(&list).unwrap() }
}

/// Sources, targets and features of the bonds, which are other ones in the other direction.
fn bonds(pointers: &[usize], space: &Space) -> (Vec<i64>, Vec<i64>, Vec<f32>) {
    let (mut sources, mut targets, mut features) = (Vec::new(), Vec::new(), Vec::new());
    let kinds = integers(&space.kinds);
    let place = |node: usize| [0, 1, 2].map(|axis| space.positions.double_value(&[node as i64, axis]));
    for ends in pointers.windows(2) {
        for (one, other) in (ends[0]..ends[1]).flat_map(|one| (ends[0]..ends[1]).map(move |other| (one, other))) {
            let (at, to) = (place(one), place(other));
            let squared: f64 = (0..3).map(|axis| (at[axis] - to[axis]).powi(2)).sum();
            if one != other && squared < LONGEST_BOND * LONGEST_BOND {
                sources.push(one as i64);
                targets.push(other as i64);
                let of = |feature: usize| (kinds[one] as f32 + 0.3 * (feature * kinds[other] as usize) as f32).sin();
                features.extend((0..EDGE_FEATURES).map(of));
            }
        }
    }
    (sources, targets, features)
}

fn space(reference: &Reference) -> Space {
    let of = |name: &str| reference[name].shallow_clone();
    let nodes = of("positions").size()[0];
    let targets = integers(&of("targets"));
    let pointers: Vec<i32> =
        (0..=nodes).map(|node| targets.iter().filter(|&&target| target < node).count() as i32).collect();
    Space {
        positions: of("positions"),
        kinds: of("kinds"),
        targets: of("targets"),
        sources: of("sources"),
        row_pointers: Tensor::from_slice(&pointers),
        shifts: Some(of("shifts")),
        forces: None,
        displaced: None,
        paths: Default::default(),
    }
}

fn sizes(reference: &Reference) -> Vec<usize> {
    let molecules = integers(&reference["molecule"]);
    (0..=molecules[molecules.len() - 1]).map(|own| molecules.iter().filter(|&&of| of == own).count()).collect()
}

fn config((name, kind, basis, pooling): Case) -> GnnConfig {
    let has_bonds = name == "bonds";
    let irreps = (kind == GnnKind::Irreps).then(|| IrrepsConfig {
        irreps: "2x0o + 5x0e + 3x1o + 2x1e + 1x2o + 2x2e".parse().unwrap(),
        radial_hidden: 6,
        neighbours: 2.5,
        gate: true,
        layer_norm: true,
        bonds: has_bonds.then_some(BondConfig {
            neighbours: 1.5,
            near_nodes: true,
            paths: true,
            listed: Default::default(),
        }),
    });
    let hidden = irreps.as_ref().map_or(8, |irreps| irreps.irreps.count() as i64);
    GnnConfig {
        hidden,
        pooling,
        edge_features: if has_bonds { EDGE_FEATURES as i64 } else { 0 },
        space: Some(SpaceConfig {
            cutoff: CUTOFF,
            kinds: 100,
            features: false,
            basis,
            radial_functions: 5,
            forces: true,
            irreps,
        }),
        ..GnnConfig::new(kind, [1, 8, 2, 1])
    }
}

fn model(config: &GnnConfig, kernel: Backend) -> (Gnn, Vec<NamedTensor>) {
    let mut fresh = FreshParameters::new(4, Device::Cpu);
    let model = Gnn::new(Scope::root(&mut fresh), config, kernel).unwrap();
    (model, fresh.into_tensors())
}

fn answer(model: &Gnn, batch: &Batch, mode: Mode) -> SpaceAnswer {
    model.in_space(batch, mode).unwrap().unwrap()
}

#[test]
fn networks_in_space_equal_schnetpack() {
    let reference = reference("space_models.safetensors");
    let batch = batch(&sizes(&reference), space(&reference));
    for case @ (name, ..) in MODELS {
        let config = config(case);
        let of = |part: &str, tensor: &str| &reference[&format!("{name}.{part}.{tensor}")];
        for kernel in [Backend::Fused, Backend::Composed] {
            let (model, mut tensors) = model(&config, kernel);
            let prefix = format!("{name}.state.");
            let known = reference.keys().filter(|name| name.starts_with(&prefix)).count();
            assert_eq!(tensors.len(), known, "{name} has other tensors than the reference");
            for named in &mut tensors {
                tch::no_grad(|| named.tensor.copy_(of("state", &named.name)));
            }
            let what = format!("{name}, {kernel:?}");
            let [energies, forces] = ["energies", "forces"].map(|part| &reference[&format!("{name}.{part}")]);
            let evaluated = tch::no_grad(|| answer(&model, &batch, Mode::Evaluation));
            assert_close(&what, &evaluated.outputs.view(-1), energies);
            assert_close(&format!("{what}, forces"), &evaluated.forces.unwrap(), forces);
            let trained = answer(&model, &batch, Mode::Training);
            assert_close(&what, &trained.outputs.detach().view(-1), energies);
            let forces_in_training = trained.forces.unwrap();
            assert_close(&format!("{what}, forces in training"), &forces_in_training.detach(), forces);
            let loss = trained.outputs.square().mean(Kind::Float) + forces_in_training.square().mean(Kind::Float);
            loss.backward();
            for named in &tensors {
                assert_close(&format!("{what}, {}", named.name), &named.tensor.grad(), of("gradient", &named.name));
            }
        }
    }
}

/// The vectors of a PaiNN turn with the molecule, as the forces do, and mirrored molecules have the same energies.
#[test]
fn energies_do_not_depend_on_the_place_and_forces_turn_along() {
    let reference = reference("space_models.safetensors");
    let sizes = sizes(&reference);
    let at_rest = batch(&sizes, space(&reference));
    let turn = {
        let (sine, cosine) = 0.7_f32.sin_cos();
        Tensor::from_slice(&[cosine, -sine, 0.0, sine, cosine, 0.0, 0.0, 0.0, 1.0]).view([3, 3])
    };
    let mirror = Tensor::from_slice(&[0.0_f32, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, -1.0]).view([3, 3]);
    let still = Tensor::eye(3, (Kind::Float, Device::Cpu));
    let both = turn.matmul(&mirror);
    for (map, moved_by) in [(&turn, 0.0), (&mirror, 0.0), (&still, 7.5), (&both, -3.25)] {
        let mapped = |rows: &Tensor| rows.matmul(&map.transpose(0, 1));
        let mut moved = space(&reference);
        moved.positions = mapped(&moved.positions) + moved_by;
        moved.shifts = moved.shifts.map(|shifts| mapped(&shifts));
        let moved = batch(&sizes, moved);
        for case @ (name, ..) in ALL {
            let (model, _) = model(&config(case), Backend::Auto);
            let [before, after] = [&at_rest, &moved].map(|batch| answer(&model, batch, Mode::Evaluation));
            let what = format!("{name}, moved by {moved_by}");
            assert_close(&what, &after.outputs, &before.outputs);
            assert_close(&format!("{what}, forces"), &after.forces.unwrap(), &mapped(&before.forces.unwrap()));
            if let (Some(before), Some(after)) = (before.vectors, after.vectors) {
                let turned = Tensor::einsum("ab,nbf->naf", &[map, &before], None::<i64>);
                assert_close(&format!("{what}, vectors"), &after, &turned);
            }
        }
    }
}

#[test]
fn the_order_of_atoms_changes_nothing() {
    let reference = reference("space_models.safetensors");
    let sizes = sizes(&reference);
    let original = space(&reference);
    // New number of each atom: those of a molecule in reverse order.
    let mut first = 0;
    let new: Vec<i64> = sizes
        .iter()
        .flat_map(|&size| {
            first += size as i64;
            let end = first;
            (0..size as i64).map(move |atom| end - 1 - atom)
        })
        .collect();
    let new = Tensor::from_slice(&new);
    let renumbered = {
        let (targets, sources) = (new.index_select(0, &original.targets), new.index_select(0, &original.sources));
        // Reversing a permutation that is its own inverse.
        let order = (&targets * 1000 + &sources).argsort(0, false);
        let take = |tensor: &Tensor| tensor.index_select(0, &order);
        let reversed = |tensor: &Tensor| tensor.index_select(0, &new);
        let targets = take(&targets);
        let numbers = integers(&targets);
        let pointers: Vec<i32> =
            (0..=new.size()[0]).map(|node| numbers.iter().filter(|&&target| target < node).count() as i32).collect();
        Space {
            positions: reversed(&original.positions),
            kinds: reversed(&original.kinds),
            sources: take(&sources),
            targets,
            row_pointers: Tensor::from_slice(&pointers),
            shifts: original.shifts.as_ref().map(take),
            forces: None,
            displaced: None,
            paths: Default::default(),
        }
    };
    let [before, after] = [original, renumbered].map(|space| batch(&sizes, space));
    for case @ (name, ..) in ALL {
        let (model, _) = model(&config(case), Backend::Auto);
        let [before, after] = [&before, &after].map(|batch| answer(&model, batch, Mode::Evaluation));
        assert_close(name, &after.outputs, &before.outputs);
        let forces = after.forces.unwrap().index_select(0, &new);
        assert_close(&format!("{name}, forces"), &forces, &before.forces.unwrap());
    }
}

/// One molecule of the reference, in a batch of its own.
fn alone(reference: &Reference, sizes: &[usize], molecule: usize) -> Batch {
    let first: usize = sizes[..molecule].iter().sum();
    let (first, size) = (first as i64, sizes[molecule] as i64);
    let all = space(reference);
    let begin = i64::from(integers_of_rows(&all)[first as usize]);
    let pairs = i64::from(integers_of_rows(&all)[(first + size) as usize]) - begin;
    let of_pairs = |tensor: &Tensor| tensor.narrow(0, begin, pairs);
    let of_nodes = |tensor: &Tensor| tensor.narrow(0, first, size);
    let own = Space {
        positions: of_nodes(&all.positions),
        kinds: of_nodes(&all.kinds),
        targets: of_pairs(&all.targets) - first,
        sources: of_pairs(&all.sources) - first,
        row_pointers: all.row_pointers.narrow(0, first, size + 1) - begin,
        shifts: all.shifts.as_ref().map(of_pairs),
        forces: None,
        displaced: None,
        paths: Default::default(),
    };
    batch(&[sizes[molecule]], own)
}

fn integers_of_rows(space: &Space) -> Vec<i32> {
    Vec::try_from(&space.row_pointers).unwrap()
}

/// Bit by bit: a teacher's cached targets equal live ones, whatever batch they were computed in.
#[test]
fn a_molecule_has_the_same_answer_in_any_batch() {
    let reference = reference("space_models.safetensors");
    let sizes = sizes(&reference);
    let together = batch(&sizes, space(&reference));
    let mut configs: Vec<(String, GnnConfig)> = Vec::new();
    for case @ (name, ..) in ALL {
        configs.push((name.to_owned(), config(case)));
    }
    for irreps in ["34x0e + 3x0o + 5x1o", "16x0e"] {
        let mut wide = config(ALL[3]);
        let space = wide.space.as_mut().unwrap();
        let of_nodes = space.irreps.as_mut().unwrap();
        of_nodes.irreps = irreps.parse().unwrap();
        of_nodes.radial_hidden = 17;
        wide.hidden = of_nodes.irreps.count() as i64;
        configs.push((irreps.to_owned(), wide));
    }
    for (name, config) in configs {
        let (model, _) = model(&config, Backend::Auto);
        let all = answer(&model, &together, Mode::Evaluation);
        let mut first = 0;
        for (molecule, &size) in sizes.iter().enumerate() {
            let own = answer(&model, &alone(&reference, &sizes, molecule), Mode::Evaluation);
            let (start, size) = (first, size as i64);
            first += size;
            let of_nodes = |tensor: &Tensor| tensor.narrow(0, start, size);
            assert!(all.outputs.narrow(0, molecule as i64, 1) == own.outputs, "{name}: energy of {molecule}");
            assert!(of_nodes(&all.nodes) == own.nodes, "{name}: rows of {molecule}");
            assert!(of_nodes(all.forces.as_ref().unwrap()) == own.forces.unwrap(), "{name}: forces of {molecule}");
        }
    }
}

/// Without a cell, a pair and its reverse share what depends on their distance; with one, each pair has its own. Energies, forces and gradients
/// are the same.
#[test]
fn what_two_pairs_share_changes_nothing() {
    let reference = reference("space_models.safetensors");
    let sizes = sizes(&reference);
    let molecules = integers(&reference["molecule"]);
    let (mut targets, mut sources) = (Vec::new(), Vec::new());
    for (target, own) in molecules.iter().enumerate() {
        for (source, other) in molecules.iter().enumerate() {
            if own == other && source != target {
                targets.push(target as i64);
                sources.push(source as i64);
            }
        }
    }
    let all_pairs = |shifts: Option<Tensor>| {
        let before = |node: usize| targets.iter().filter(|&&target| target < node as i64).count() as i32;
        Space {
            targets: Tensor::from_slice(&targets),
            sources: Tensor::from_slice(&sources),
            row_pointers: Tensor::from_slice(&(0..=molecules.len()).map(before).collect::<Vec<_>>()),
            shifts,
            ..space(&reference)
        }
    };
    let zeros = Tensor::zeros([targets.len() as i64, 3], (Kind::Float, Device::Cpu));
    for case @ (name, ..) in ALL {
        for kernel in [Backend::Fused, Backend::Composed] {
            let [shared, own] = [None, Some(zeros.shallow_clone())].map(|shifts| {
                let (model, tensors) = model(&config(case), kernel);
                let answer = answer(&model, &batch(&sizes, all_pairs(shifts)), Mode::Training);
                let forces = answer.forces.unwrap();
                (answer.outputs.square().sum(Kind::Float) + forces.square().sum(Kind::Float)).backward();
                let gradients: Vec<Tensor> = tensors.iter().map(|named| named.tensor.grad()).collect();
                [answer.outputs.detach(), forces.detach()].into_iter().chain(gradients).collect::<Vec<_>>()
            });
            for (shared, own) in shared.iter().zip(&own) {
                assert_close(&format!("{name}, {kernel:?}"), shared, own);
            }
        }
    }
}

/// Forces are the differences of energies as an atom moves.
#[test]
fn forces_are_differences_of_energies() {
    let reference = reference("space_models.safetensors");
    let sizes = sizes(&reference);
    for case @ (name, ..) in ALL {
        let (model, _) = model(&config(case), Backend::Auto);
        let forces = answer(&model, &batch(&sizes, space(&reference)), Mode::Evaluation).forces.unwrap();
        for (atom, axis) in [(0, 0), (8, 1), (12, 2)] {
            let energy_at = |offset: f64| {
                let mut moved = space(&reference);
                moved.positions = moved.positions.copy();
                let mut coordinate = moved.positions.get(atom).get(axis);
                let _ = coordinate.g_add_scalar_(offset);
                answer(&model, &batch(&sizes, moved), Mode::Evaluation).outputs.sum(Kind::Double).double_value(&[])
            };
            // Of the fourth order in the step: the layer norm bends the energy.
            let difference = |step: f64| (energy_at(-step) - energy_at(step)) / (2.0 * step);
            let expected = (4.0 * difference(2.5e-3) - difference(5e-3)) / 3.0;
            let found = forces.double_value(&[atom, axis]);
            assert!((found - expected).abs() < 2e-3 * expected.abs().max(1.0), "{name}: {found} instead of {expected}");
        }
    }
}

#[test]
fn what_no_network_in_space_can_have_is_refused() {
    let good = config(MODELS[0]);
    let space = good.space.clone().unwrap();
    let of_irreps = config(ALL[3]);
    let refused = |config: GnnConfig| {
        let mut fresh = FreshParameters::new(4, Device::Cpu);
        Gnn::new(Scope::root(&mut fresh), &config, Backend::Auto).unwrap_err().to_string()
    };
    for (config, expected) in [
        (GnnConfig { space: None, ..good.clone() }, "space = none"),
        (GnnConfig { kind: GnnKind::Gin, ..good.clone() }, "space = gin"),
        (GnnConfig { pooling: Pooling::Max, ..good.clone() }, "pooling"),
        (GnnConfig { outputs: 2, ..good.clone() }, "forces"),
        (GnnConfig { space: Some(SpaceConfig { cutoff: -1.0, ..space.clone() }), ..good.clone() }, "cutoff = -1"),
        (GnnConfig { kind: GnnKind::Irreps, ..good.clone() }, "irreps = none"),
        (GnnConfig { space: Some(SpaceConfig { radial_functions: 1, ..space }), ..good }, "radial_functions = 1"),
        (GnnConfig { kind: GnnKind::PaiNN, ..of_irreps.clone() }, "irreps = painn"),
        (GnnConfig { hidden: 8, ..of_irreps }, "hidden = 8, with 15 features"),
    ] {
        let error = refused(config);
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn data_without_positions_are_refused() {
    let reference = reference("space_models.safetensors");
    let (model, _) = model(&config(MODELS[1]), Backend::Auto);
    let batch = Batch { space: None, ..batch(&sizes(&reference), space(&reference)) };
    let error = model.forward(&batch, Mode::Evaluation).unwrap_err().to_string();
    assert!(error.contains("positions"), "{error}");
}
