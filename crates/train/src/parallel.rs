//! Models over several devices: data parallelism in one process, and meshes of pipeline, tensor and data parallelism.

pub(crate) mod data_parallel;
pub(crate) mod mesh;
pub(crate) mod mesh_parallel;
pub(crate) mod model;
pub(crate) mod placement;
