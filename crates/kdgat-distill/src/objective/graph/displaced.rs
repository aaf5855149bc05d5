//! Targets of displaced graphs. Where nodes have moved, values and forces are others, and the teacher's take the place of the data's; a class or
//! a label is that of the graph.

use kdgat_graph::{Batch, Level, Task};
use kdgat_train::objective::ObjectiveError;

use super::{GraphObjective, TaughtOutputs, Truth, node_targets};

impl GraphObjective {
    /// The targets of a batch, with the teacher's values and forces for displaced graphs.
    pub(super) fn with_displaced<'a>(
        &self,
        truth: Truth<'a>,
        taught: Option<&TaughtOutputs>,
        batch: &Batch,
    ) -> Result<Truth<'a>, ObjectiveError> {
        let displaced = batch.space.as_ref().and_then(|space| space.displaced.as_ref());
        let (Some(displaced), Task::Regression) = (displaced, self.task) else { return Ok(truth) };
        let taught = taught.ok_or("the values of displaced graphs are the teacher's, and it returns none")?;
        let rows = match self.model.config().level {
            // A graph is displaced if its first node is.
            Level::Graph => batch.node_pointers.f_narrow(0, 0, batch.num_graphs() as i64)?,
            Level::Node => node_targets(batch)?.nodes.shallow_clone(),
        };
        // The last graph may have no nodes.
        let rows = rows.f_clamp_max(displaced.size()[0] - 1)?;
        let by_row = displaced.f_index_select(0, &rows)?.f_unsqueeze(1)?;
        let values = taught.outputs.f_where_self(&by_row, &truth.values)?;
        let forces = match &truth.forces {
            Some(forces) => {
                let of_teacher = taught.forces.as_ref();
                let of_teacher =
                    of_teacher.ok_or("the forces of displaced graphs are the teacher's, and it gives none")?;
                Some(of_teacher.f_where_self(&displaced.f_unsqueeze(1)?, forces)?)
            }
            None => None,
        };
        Ok(Truth { values, forces, ..truth })
    }
}

#[cfg(test)]
mod tests {
    use kdgat_graph::Space;
    use kdgat_graph::edge_list::{EdgeList, from_edge_list};
    use kdgat_nn::attention::Backend;
    use kdgat_nn::{FreshParameters, Gnn, GnnConfig, GnnKind, Scope};
    use tch::{Device, Kind, Tensor};

    use super::super::TeacherLink;
    use super::*;

    /// Graphs of two, one and no nodes, of which the second is displaced.
    fn batch() -> Batch {
        let list = EdgeList {
            id_index: &[0; 3],
            continuous: &[0.0; 30],
            sources: &[],
            targets: &[],
            edge_attributes: None,
            node_pointers: &[0, 2, 3, 3],
            labels: &[0; 3],
            vocabulary_size: 1,
        };
        let none = |kind| Tensor::zeros([0], (kind, Device::Cpu));
        let space = Space {
            positions: Tensor::zeros([3, 3], (Kind::Float, Device::Cpu)),
            kinds: Tensor::zeros([3], (Kind::Int64, Device::Cpu)),
            targets: none(Kind::Int64),
            sources: none(Kind::Int64),
            row_pointers: Tensor::zeros([4], (Kind::Int, Device::Cpu)),
            shifts: None,
            forces: None,
            displaced: Some(Tensor::from_slice(&[false, false, true])),
            paths: Default::default(),
        };
        Batch { space: Some(Box::new(space)), ..from_edge_list(&list).unwrap() }
    }

    #[test]
    fn displaced_graphs_have_the_teachers_values_and_forces_and_their_own_classes() {
        let batch = batch();
        let truth = || Truth {
            labels: Tensor::from_slice(&[0_i64, 1, 2]),
            values: Tensor::from_slice(&[1.0_f32, 2.0, 3.0]).view([3, 1]),
            forces: Some(Tensor::ones([3, 3], (Kind::Float, Device::Cpu))),
            real: None,
        };
        let taught = |forces: Option<f64>| TaughtOutputs {
            outputs: Tensor::from_slice(&[-1.0_f32, -2.0, -3.0]).view([3, 1]),
            forces: forces.map(|value| Tensor::full([3, 3], value, (Kind::Float, Device::Cpu))),
        };
        let objective = |task| {
            let mut parameters = FreshParameters::new(1, Device::Cpu);
            let config = GnnConfig::new(GnnKind::Gin, [10, 4, 1, 1]);
            let model = Gnn::new(Scope::root(&mut parameters), &config, Backend::Auto).unwrap();
            GraphObjective::new(model, task, TeacherLink::none(), None)
        };
        let values = |tensor: &Tensor| Vec::<f32>::try_from(tensor.view(-1)).unwrap();
        let learns_values = objective(Task::Regression);
        let found = learns_values.with_displaced(truth(), Some(&taught(Some(5.0))), &batch).unwrap();
        // The graph without nodes has no position either, and no meaning.
        assert_eq!(values(&found.values)[..2], [1.0, -2.0]);
        assert_eq!(values(&found.forces.unwrap()), [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 5.0, 5.0, 5.0]);
        for taught in [None, Some(&taught(None))] {
            assert!(learns_values.with_displaced(truth(), taught, &batch).is_err());
        }
        let found = objective(Task::Classification).with_displaced(truth(), None, &batch).unwrap();
        assert!(found.labels == truth().labels && found.values == truth().values);
    }
}
