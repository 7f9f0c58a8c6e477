//! Ranks in three dimensions.

use std::fmt;
use std::str::FromStr;

/// How the ranks of a job are arranged: `data` replicas of the model, each cut into the stages of a
/// `pipeline`, each stage's layers shared by `tensor` ranks.
///
/// Ranks count along `tensor` first, then along `data`, then along `pipeline` (as Narayanan et al. 2021,
/// "Efficient Large-Scale Language Model Training on GPU Clusters", section 3, have it): those that
/// exchange the most are neighbours.
///
/// Written `data=2,pipeline=2,tensor=1` on the command line and in files; an axis that is not named
/// has one rank.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{Axis, Coordinates, Mesh};
///
/// let mesh: Mesh = "data=2,pipeline=2".parse()?;
/// assert_eq!(mesh, Mesh { data: 2, pipeline: 2, tensor: 1 });
/// assert_eq!(mesh.world_size(), 4);
/// assert_eq!(mesh.coordinates(3), Coordinates { data: 1, pipeline: 1, tensor: 0 });
/// assert_eq!(mesh.ranks_along(3, Axis::Pipeline), [1, 3]);
/// assert_eq!(mesh.to_string(), "data=2,pipeline=2,tensor=1");
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mesh {
    /// How many replicas there are, each with its share of a global batch.
    pub data: usize,
    /// Over how many ranks a replica's blocks are shared out.
    pub pipeline: usize,
    /// Over how many ranks a layer's weights are shared out.
    pub tensor: usize,
}

/// A dimension of a [`Mesh`].
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::Axis;
///
/// assert_eq!(Axis::ALL.map(|axis| axis.to_string()), ["data", "pipeline", "tensor"]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Axis {
    /// Replicas.
    Data,
    /// Stages.
    Pipeline,
    /// Parts of layers.
    Tensor,
}

impl Axis {
    /// Every axis, as it is written.
    pub const ALL: [Self; 3] = [Self::Data, Self::Pipeline, Self::Tensor];

    fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Pipeline => "pipeline",
            Self::Tensor => "tensor",
        }
    }
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Where a rank is in a [`Mesh`]: a number from 0 along each axis.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{Axis, Coordinates};
///
/// let place = Coordinates { data: 1, pipeline: 2, tensor: 0 };
/// assert_eq!(place.along(Axis::Pipeline), 2);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Coordinates {
    /// The replica.
    pub data: usize,
    /// The position in the pipeline.
    pub pipeline: usize,
    /// The part of each layer.
    pub tensor: usize,
}

impl Coordinates {
    /// The number along `axis`.
    pub const fn along(&self, axis: Axis) -> usize {
        match axis {
            Axis::Data => self.data,
            Axis::Pipeline => self.pipeline,
            Axis::Tensor => self.tensor,
        }
    }

    /// The same place, but `number` along `axis`.
    #[must_use]
    pub const fn with(mut self, axis: Axis, number: usize) -> Self {
        match axis {
            Axis::Data => self.data = number,
            Axis::Pipeline => self.pipeline = number,
            Axis::Tensor => self.tensor = number,
        }
        self
    }
}

impl Mesh {
    /// `ranks` whole models.
    #[must_use]
    pub const fn of_replicas(ranks: usize) -> Self {
        Self {
            data: ranks,
            pipeline: 1,
            tensor: 1,
        }
    }

    /// How many ranks it has; `usize::MAX` if that is more than can be counted.
    pub const fn world_size(&self) -> usize {
        self.data
            .saturating_mul(self.pipeline)
            .saturating_mul(self.tensor)
    }

    /// Whether each rank has a whole model: distributed data parallelism, or one rank alone.
    pub const fn is_data_only(&self) -> bool {
        self.pipeline == 1 && self.tensor == 1
    }

    /// How many ranks there are along `axis`.
    pub const fn size(&self, axis: Axis) -> usize {
        match axis {
            Axis::Data => self.data,
            Axis::Pipeline => self.pipeline,
            Axis::Tensor => self.tensor,
        }
    }

    /// The place of `rank`.
    ///
    /// # Panics
    /// If the mesh has no such rank.
    pub fn coordinates(&self, rank: usize) -> Coordinates {
        let world_size = self.world_size();
        assert!(rank < world_size, "rank {rank} of a mesh of {world_size}");
        Coordinates {
            tensor: rank % self.tensor,
            data: rank / self.tensor % self.data,
            pipeline: rank / self.tensor / self.data,
        }
    }

    /// The rank that is at `place`.
    ///
    /// # Panics
    /// If the place is outside of the mesh.
    pub fn rank_of(&self, place: Coordinates) -> usize {
        for axis in Axis::ALL {
            let (number, size) = (place.along(axis), self.size(axis));
            assert!(number < size, "place {number} of {size} along {axis}");
        }
        (place.pipeline * self.data + place.data) * self.tensor + place.tensor
    }

    /// The ranks that differ from `rank` along `axis` only, itself among them, in the order of that axis:
    /// its group for what is exchanged along it.
    ///
    /// # Panics
    /// If the mesh has no such rank.
    pub fn ranks_along(&self, rank: usize, axis: Axis) -> Vec<usize> {
        let place = self.coordinates(rank);
        (0..self.size(axis))
            .map(|number| self.rank_of(place.with(axis, number)))
            .collect()
    }
}

impl Default for Mesh {
    fn default() -> Self {
        Self::of_replicas(1)
    }
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            data,
            pipeline,
            tensor,
        } = self;
        write!(f, "data={data},pipeline={pipeline},tensor={tensor}")
    }
}

impl FromStr for Mesh {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut sizes: [Option<usize>; 3] = [None; 3];
        for part in text.split(',').map(str::trim) {
            let wrong = || {
                format!(
                    "`{part}` is no part of a mesh: write data=2,pipeline=2,tensor=1, with numbers from 1"
                )
            };
            let (name, number) = part.split_once('=').ok_or_else(wrong)?;
            let axis = Axis::ALL.into_iter().find(|axis| axis.name() == name);
            let axis = axis.ok_or_else(|| {
                format!("a mesh has no axis `{name}`: its axes are data, pipeline and tensor")
            })?;
            let number = number.parse().ok().filter(|number| *number >= 1);
            let number = number.ok_or_else(wrong)?;
            if sizes[axis as usize].replace(number).is_some() {
                return Err(format!("the axis {axis} of the mesh is named twice"));
            }
        }
        let [data, pipeline, tensor] = sizes.map(|size| size.unwrap_or(1));
        Ok(Self {
            data,
            pipeline,
            tensor,
        })
    }
}

everburn_record::serde_as_text!(Mesh);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for (text, written) in [
            ("data=2", "data=2,pipeline=1,tensor=1"),
            ("tensor=3,pipeline=2", "data=1,pipeline=2,tensor=3"),
            ("data=4, pipeline=2, tensor=1", "data=4,pipeline=2,tensor=1"),
        ] {
            let mesh = text.parse::<Mesh>().unwrap();
            assert_eq!(mesh.to_string(), written);
            assert_eq!(written.parse(), Ok(mesh));
        }
    }

    #[test]
    fn what_is_no_mesh_is_named() {
        let refused = |text: &str| text.parse::<Mesh>().unwrap_err();
        assert!(refused("").contains("`` is no part of a mesh"));
        assert!(refused("data").contains("`data` is no part"));
        assert!(refused("data=0").contains("`data=0` is no part"));
        assert!(refused("data=-1").contains("numbers from 1"));
        assert!(refused("data=2,expert=2").contains("no axis `expert`"));
        assert!(refused("data=2,data=2").contains("data of the mesh is named twice"));
    }

    #[test]
    fn every_rank_has_a_place_of_its_own() {
        let mesh: Mesh = "data=3,pipeline=2,tensor=2".parse().unwrap();
        for rank in 0..mesh.world_size() {
            assert_eq!(mesh.rank_of(mesh.coordinates(rank)), rank);
        }
        // Tensor first, then data, then pipeline.
        assert_eq!(mesh.ranks_along(7, Axis::Tensor), [6, 7]);
        assert_eq!(mesh.ranks_along(7, Axis::Data), [7, 9, 11]);
        assert_eq!(mesh.ranks_along(7, Axis::Pipeline), [1, 7]);
        let huge = format!("data={0},pipeline={0}", usize::MAX);
        assert_eq!(huge.parse::<Mesh>().unwrap().world_size(), usize::MAX);
    }
}
