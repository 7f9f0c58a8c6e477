//! Parameters that are in memory only while they are used.

use std::cell::RefCell;
use std::sync::Arc;

use burn::backend::DispatchTensor;
use burn::module::ParamId;

use crate::thread_value::with_value;

/// Provides the parameters that a rank does not keep each time a checkpointed segment uses them: in the forward pass,
/// and again when it is recomputed. In between they are not in memory.
///
/// Both tensors have the parameter's shape, type and device.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::module::ParamId;
/// use everburn::nn::ParameterSource;
///
/// fn is_elsewhere(source: &dyn ParameterSource, id: ParamId) -> bool {
///     source.has(id)
/// }
/// ```
pub trait ParameterSource: Send + Sync {
    /// Whether it has the parameter `id`.
    fn has(&self, id: ParamId) -> bool;

    /// The parameter's placeholder in the graph, which gets its gradient; the same each time. Its values have no
    /// meaning.
    fn placeholder(&self, id: ParamId) -> DispatchTensor;

    /// The parameter's values, without a graph.
    fn numbers(&self, id: ParamId) -> DispatchTensor;
}

/// A source shared by tensors and threads.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use everburn::nn::{ParameterSource, SharedSource};
///
/// fn share(source: impl ParameterSource + 'static) -> SharedSource {
///     std::sync::Arc::new(source)
/// }
/// ```
pub type SharedSource = Arc<dyn ParameterSource>;

thread_local! {
    static SOURCE: RefCell<Option<SharedSource>> = const { RefCell::new(None) };
}

/// Runs `pass` with `source`: checkpointed segments take the parameters it has from there, and again in their backward
/// pass.
pub fn with_parameters_from<R>(source: SharedSource, pass: impl FnOnce() -> R) -> R {
    with_value(&SOURCE, source, pass)
}

/// Whether this thread runs a pass whose parameters come from a [`ParameterSource`]: reading one that is not used then
/// fetches it for nothing.
pub fn has_parameter_source() -> bool {
    SOURCE.with_borrow(Option::is_some)
}

/// The source of the parameter `id` on this thread. `None` within a segment: the outer one has already taken it.
pub(super) fn of(id: ParamId) -> Option<SharedSource> {
    if super::in_segment() {
        return None;
    }
    SOURCE.with_borrow(|source| source.clone().filter(|source| source.has(id)))
}
