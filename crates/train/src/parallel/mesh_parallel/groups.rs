//! The process groups of a mesh, as one rank sees them.

use everburn_collectives::group::ProcessGroup;

use crate::error::TrainError;
use crate::parallel::mesh::{Axis, Mesh};

/// The groups that this rank is in.
pub(super) struct Groups {
    /// All ranks.
    pub(super) job: ProcessGroup,
    /// One rank of each replica: those that hold the same.
    pub(super) data: ProcessGroup,
    /// The stages of this rank's replica, or what this rank's part of them is.
    pub(super) pipeline: ProcessGroup,
    /// The ranks that share the layers of a stage.
    pub(super) tensor: ProcessGroup,
    /// All ranks of this rank's replica.
    pub(super) replica: ProcessGroup,
}

impl Groups {
    /// Forms the groups of `mesh` over the ranks of `job`, all of which call it.
    pub(super) fn form(job: ProcessGroup, mesh: Mesh) -> Result<Self, TrainError> {
        let along = |axis, name| own(&job, &all_along(mesh, axis), name);
        let replicas = (0..mesh.data).map(|data| {
            let ranks = 0..mesh.world_size();
            let of_it = |rank: &usize| mesh.coordinates(*rank).data == data;
            ranks.filter(of_it).collect()
        });
        Ok(Self {
            data: along(Axis::Data, "data")?,
            pipeline: along(Axis::Pipeline, "pipeline")?,
            tensor: along(Axis::Tensor, "tensor")?,
            replica: own(&job, &replicas.collect::<Vec<_>>(), "replica")?,
            job,
        })
    }
}

/// The groups along an axis, which share out all ranks.
fn all_along(mesh: Mesh, axis: Axis) -> Vec<Vec<usize>> {
    let ranks = 0..mesh.world_size();
    let begins = |rank: &usize| mesh.coordinates(*rank).along(axis) == 0;
    let groups = ranks.filter(begins);
    groups.map(|rank| mesh.ranks_along(rank, axis)).collect()
}

/// Makes all of these groups, as every rank does, and returns the one that has this rank, with a name.
fn own(
    job: &ProcessGroup,
    groups: &[Vec<usize>],
    name: &'static str,
) -> Result<ProcessGroup, TrainError> {
    let mut own = None;
    for members in groups {
        if let Some(group) = job.subgroup(members)? {
            own = Some(group.named(name));
        }
    }
    own.ok_or_else(|| TrainError::Config("a rank is in no group of the mesh".to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_along_an_axis_share_out_all_ranks() {
        let mesh = Mesh {
            data: 2,
            pipeline: 2,
            tensor: 2,
        };
        assert_eq!(
            all_along(mesh, Axis::Tensor),
            [[0, 1], [2, 3], [4, 5], [6, 7]]
        );
        assert_eq!(
            all_along(mesh, Axis::Data),
            [[0, 2], [1, 3], [4, 6], [5, 7]]
        );
        assert_eq!(
            all_along(mesh, Axis::Pipeline),
            [[0, 4], [1, 5], [2, 6], [3, 7]]
        );
    }
}
