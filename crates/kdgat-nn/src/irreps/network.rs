//! The layers of a network of representations for nodes in space.

use kdgat_graph::{OfPaths, PathKind};
use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::bonds::{BondPaths, Bonds, PathParameters};
use super::edges::Edges;
use super::hops::PathMessages;
use super::layer::{EdgeFeatures, IrrepsLayer, LayerOptions};
use super::parts::{harmonics, invariants, polynomial_cutoff};
use super::representations::Irreps;
use crate::ModelError;
use crate::attention::Backend;
use crate::layers::Mode;
use crate::parameters::{Init, Scope};
use crate::space::dense::of_mode;
use crate::space::pairs::lengths;
use crate::space::radial::basis;
use crate::space::{Pairs, RadialBasis, SpaceConfig};

/// Paths whose rows exist at a time, unless one node receives more.
const MOST_PATHS: i64 = 8192;

/// Settings of a network of representations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IrrepsConfig {
    /// Representations of a node.
    pub irreps: Irreps,
    /// Columns of the hidden layers of radial networks.
    pub radial_hidden: i64,
    /// Mean number of neighbours of a node in the training set.
    pub neighbours: f64,
    /// True if layers have a gate.
    pub gate: bool,
    /// True if layers end with a layer norm.
    pub layer_norm: bool,
    /// Messages along the data's edges; `None` for messages of near nodes alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bonds: Option<BondConfig>,
}

/// Settings of messages along the data's edges, the bonds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BondConfig {
    /// Mean number of bonds that a node of the training set receives.
    pub neighbours: f64,
    /// True if near nodes send messages, too.
    pub near_nodes: bool,
    /// True if angles and dihedrals along the bonds send messages, too.
    pub paths: bool,
    /// Parameters of the angles and dihedrals that the data list; the others are made from the bonds.
    #[serde(default, skip_serializing_if = "OfPaths::is_none")]
    pub listed: OfPaths<PathParameters>,
}

impl BondConfig {
    fn check(&self) -> Result<(), ModelError> {
        let refuse = |field, found: String, expected| Err(ModelError::Architecture { field, found, expected });
        if !(self.neighbours.is_finite() && self.neighbours >= 1.0) {
            return refuse("bonds.neighbours", self.neighbours.to_string(), "must be a number of at least 1");
        }
        if !self.paths && !self.listed.is_none() {
            return refuse("bonds.listed", "parameters".to_owned(), "must be absent without paths");
        }
        let mut each = PathKind::ALL.into_iter().filter_map(|kind| Some((kind, self.listed.of(kind)?)));
        each.try_for_each(|(kind, parameters)| parameters.check(kind))
    }
}

impl IrrepsConfig {
    pub(crate) fn check(&self) -> Result<(), ModelError> {
        let refuse = |field, found: String, expected| Err(ModelError::Architecture { field, found, expected });
        if !(1..=4096).contains(&self.radial_hidden) {
            return refuse("radial_hidden", self.radial_hidden.to_string(), "must be from 1 to 4096");
        }
        if !(self.neighbours.is_finite() && self.neighbours >= 1.0) {
            return refuse("neighbours", self.neighbours.to_string(), "must be a number of at least 1");
        }
        self.bonds.as_ref().map_or(Ok(()), BondConfig::check)?;
        if self.irreps.columns() > 100_000 {
            let found = format!("{} with {} columns", self.irreps, self.irreps.columns());
            return refuse("irreps", found, "must have at most 100000 columns");
        }
        Ok(())
    }

    fn options(&self) -> LayerOptions {
        LayerOptions {
            radial_hidden: self.radial_hidden,
            neighbours: self.bonds.as_ref().map_or(self.neighbours, |bonds| bonds.neighbours),
            self_connection: true,
            gate: self.gate,
            residual: true,
            layer_norm: self.layer_norm,
        }
    }

    /// Options of a layer of near nodes that is added to one of bonds, which has the nodes' own part.
    fn options_beside_bonds(&self) -> LayerOptions {
        LayerOptions { self_connection: false, residual: false, neighbours: self.neighbours, ..self.options() }
    }
}

/// Layers from scalars to representations, whose invariants a head reads.
///
/// Without bonds, a layer has messages of near nodes. With bonds, it has messages along them, and adds those of near nodes, angles and dihedrals
/// with learned weights (after the encoder of binding pockets of RNA-3E-FFI).
#[derive(Debug)]
pub struct IrrepsNetwork {
    layers: Vec<Layer>,
    irreps: Irreps,
    /// Weights of near nodes, angles and dihedrals beside bonds, `[1]` each.
    weights: [Option<Tensor>; 3],
}

/// A layer with what is added to it.
#[derive(Debug)]
struct Layer {
    /// Messages along bonds if there are any, otherwise of near nodes.
    main: IrrepsLayer,
    /// Messages of near nodes beside bonds.
    near: Option<IrrepsLayer>,
    /// Messages of angles and dihedrals.
    paths: [Option<PathMessages>; 2],
}

/// Nodes of a batch, with the lines between near ones and the bonds.
pub struct NodesInSpace<'a> {
    /// `[num_nodes, scalars]`: the first layer's input.
    pub scalars: Tensor,
    /// `[num_lines, 3]`: vectors of the lines.
    pub vectors: &'a Tensor,
    /// Pairs of near nodes.
    pub pairs: &'a Pairs,
    /// Bonds, with their features, `[bonds, features]`, if they have any.
    pub bonds: Option<(Bonds, Option<Tensor>)>,
}

/// Radial functions, fading and harmonics of lines.
struct Lines {
    edges: Edges,
    radial: Tensor,
    fading: Tensor,
    harmonics: Tensor,
}

impl Lines {
    /// `vectors`: `[num_lines, 3]`; `features`, `[num_lines, columns]`, are read beside functions of the length.
    fn of(space: &SpaceConfig, pairs: &Pairs, vectors: &Tensor, features: Option<&Tensor>) -> Result<Self, ModelError> {
        let distances = lengths(vectors)?;
        let radial = match space.basis {
            RadialBasis::Gaussian => basis(space, &distances)?,
            RadialBasis::Bessel => basis(space, &distances)?.f_mul_scalar((2.0 / space.cutoff).sqrt())?,
        };
        let radial = match features {
            Some(features) => Tensor::f_cat(&[&radial, features], 1)?,
            None => radial,
        };
        Ok(Self {
            edges: Edges::of_pairs(pairs)?,
            radial,
            fading: polynomial_cutoff(space.cutoff, &distances)?,
            harmonics: harmonics(&vectors.f_div(&distances)?)?,
        })
    }

    fn features(&self) -> EdgeFeatures<'_> {
        let Self { edges, radial, fading, harmonics } = self;
        EdgeFeatures { edges, radial, fading: Some(fading), harmonics }
    }
}

impl IrrepsNetwork {
    /// Builds `layers` layers, of bonds with `edge_features` features; the first one reads scalars alone.
    pub fn new(
        scope: &mut Scope,
        space: &SpaceConfig,
        irreps: &IrrepsConfig,
        [layers, edge_features]: [i64; 2],
        kernel: Backend,
    ) -> Result<Self, ModelError> {
        let of_nodes = &irreps.irreps;
        let scalars = Irreps::scalars(of_nodes.num_scalars());
        let (bonds, hidden) = (irreps.bonds.as_ref(), irreps.radial_hidden);
        let with_near = bonds.is_some_and(|bonds| bonds.near_nodes);
        let with_paths = bonds.is_some_and(|bonds| bonds.paths);
        let layer = |index: i64| {
            let input = if index == 0 { &scalars } else { of_nodes };
            let mut of = |name: &str, radial, options| {
                IrrepsLayer::new(scope.sub(name).sub(index), [input, of_nodes], radial, options, kernel)
            };
            let (own, of_near) = (irreps.options(), irreps.options_beside_bonds());
            let main = of("interactions", space.radial_functions + edge_features, own)?;
            let near = with_near.then(|| of("near_nodes", space.radial_functions, of_near)).transpose()?;
            let columns = [input.num_scalars(), of_nodes.num_scalars()];
            let mut paths = |kind: PathKind| {
                let listed = bonds.and_then(|bonds| bonds.listed.of(kind));
                let cosine_and_parameters = 1 + listed.map_or(0, |parameters| parameters.names.len());
                let sizes = [columns[0], columns[1], cosine_and_parameters];
                let mut scope = scope.sub(kind.name());
                with_paths.then(|| PathMessages::new(scope.sub(index), sizes, hidden, kernel)).transpose()
            };
            let paths = [paths(PathKind::Angles)?, paths(PathKind::Dihedrals)?];
            Ok::<_, ModelError>(Layer { main, near, paths })
        };
        let layers = (0..layers).map(layer).collect::<Result<_, _>>()?;
        let mut weight = |is_there: bool, name: &str| {
            is_there.then(|| scope.parameter(name, &[1], Init::Constant(1.0 / 3.0))).transpose()
        };
        let weights = [
            weight(with_near, "near_nodes_weight")?,
            weight(with_paths, "angle_weight")?,
            weight(with_paths, "dihedral_weight")?,
        ];
        Ok(Self { layers, irreps: of_nodes.clone(), weights })
    }

    /// Invariants of the nodes after all layers, `[num_nodes, features]`: scalars, and lengths of the other representations.
    ///
    /// # Errors
    /// Those of libtorch.
    pub fn forward(&self, space: &SpaceConfig, nodes: NodesInSpace, mode: Mode) -> Result<Tensor, ModelError> {
        let NodesInSpace { scalars, vectors, pairs, bonds } = nodes;
        let near = match &bonds {
            Some(_) if self.weights[0].is_none() => None,
            _ => Some(Lines::of(space, pairs, vectors, None)?),
        };
        let paths = match bonds.as_ref().and_then(|(bonds, _)| bonds.paths.as_ref()) {
            Some([angles, dihedrals]) => Some([angles.pieces(MOST_PATHS)?, dihedrals.pieces(MOST_PATHS)?]),
            None => None,
        };
        let of_bonds =
            bonds.as_ref().map(|(bonds, features)| Lines::of(space, &bonds.pairs, &bonds.vectors, features.as_ref()));
        let of_bonds = of_bonds.transpose()?;
        let main = of_bonds.as_ref().or(near.as_ref()).ok_or(ModelError::NoPositions)?.features();
        let mut rows = scalars;
        for layer in &self.layers {
            let mut next = layer.main.forward(&rows, &main, (mode, !space.forces))?;
            if let (Some(layer), Some(near), [Some(weight), ..]) = (&layer.near, &near, &self.weights) {
                let added = layer.forward(&rows, &near.features(), (mode, !space.forces))?;
                next = next.f_add(&added.f_mul(&of_mode(weight, mode))?)?;
            }
            if let Some(paths) = &paths {
                next = self.with_paths(next, &rows, (layer, paths), (mode, !space.forces))?;
            }
            rows = next;
        }
        Ok(invariants(&self.irreps, &rows)?)
    }

    /// Rows with the messages of angles and dihedrals added to their scalars; `before`: the layer's input.
    fn with_paths(
        &self,
        rows: Tensor,
        before: &Tensor,
        (layer, paths): (&Layer, &[Vec<BondPaths>; 2]),
        (mode, once): (Mode, bool),
    ) -> Result<Tensor, ModelError> {
        let (first, scalars) = self.irreps.invariant_columns();
        let columns = rows.size()[1];
        let own = match before.size()[1] == columns {
            true => before.f_narrow(1, first, scalars)?,
            // The first layer's input has scalars alone.
            false => before.shallow_clone(),
        };
        let mut sum = rows.f_narrow(1, first, scalars)?;
        for ((messages, paths), weight) in layer.paths.iter().zip(paths).zip(&self.weights[1..]) {
            let (Some(messages), Some(weight)) = (messages, weight) else { continue };
            sum = sum.f_add(&messages.forward(&own, paths, (mode, once))?.f_mul(&of_mode(weight, mode))?)?;
        }
        let after = first + scalars;
        let parts = [rows.f_narrow(1, 0, first)?, sum, rows.f_narrow(1, after, columns - after)?];
        Ok(Tensor::f_cat(&parts, 1)?)
    }
}
