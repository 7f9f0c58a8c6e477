//! Models as the loop sees them: any Burn module with a loss, behind one type.

pub(crate) mod batch_tensors;
pub(crate) mod draw;
pub(crate) mod erased;
pub(crate) mod finite;
pub(crate) mod generation;
pub(crate) mod input_search;
pub(crate) mod labels;
pub(crate) mod objective;
pub(crate) mod predictions;
pub(crate) mod samples;
pub(crate) mod shapes;
pub(crate) mod supervised;
