//! Parameters that are not in memory while nobody computes with them.

use std::cell::RefCell;
use std::sync::Arc;

use burn::backend::DispatchTensor;
use burn::module::ParamId;

/// Where the numbers of parameters come from that a rank does not keep, each time that a checkpointed segment
/// asks for them: in the forward pass, and again when it is recomputed. In between nothing holds them.
///
/// Both tensors have the parameter's shape, type and device.
pub trait ParameterSource: Send + Sync {
    /// Whether it has the parameter `id`.
    fn has(&self, id: ParamId) -> bool;

    /// The parameter's place in the graph, to which its gradient goes; the same each time. Its numbers mean
    /// nothing.
    fn place(&self, id: ParamId) -> DispatchTensor;

    /// The parameter's numbers, without a graph.
    fn numbers(&self, id: ParamId) -> DispatchTensor;
}

/// A source that several tensors and threads share.
pub type SharedSource = Arc<dyn ParameterSource>;

thread_local! {
    static SOURCE: RefCell<Option<SharedSource>> = const { RefCell::new(None) };
}

/// Runs `pass`, whose checkpointed segments take the parameters that `source` has from there, and again in
/// the backward pass of what they yield.
///
/// ```
/// use std::sync::Arc;
/// use burn::backend::DispatchTensor;
/// use burn::module::ParamId;
/// use everburn_nn::{ParameterSource, with_parameters_from};
///
/// struct Nothing;
///
/// impl ParameterSource for Nothing {
///     fn has(&self, _: ParamId) -> bool {
///         false
///     }
///     fn place(&self, _: ParamId) -> DispatchTensor {
///         unreachable!("it has no parameter")
///     }
///     fn numbers(&self, _: ParamId) -> DispatchTensor {
///         unreachable!("it has no parameter")
///     }
/// }
///
/// assert_eq!(with_parameters_from(Arc::new(Nothing), || 7), 7);
/// ```
pub fn with_parameters_from<R>(source: SharedSource, pass: impl FnOnce() -> R) -> R {
    struct Before(Option<SharedSource>);
    impl Drop for Before {
        fn drop(&mut self) {
            SOURCE.set(self.0.take());
        }
    }
    let _before = Before(SOURCE.replace(Some(source)));
    pass()
}

/// Whether this thread runs a pass whose parameters come from a [`ParameterSource`]: then who asks for one
/// without computing with it lets it come for nothing.
///
/// ```
/// assert!(!everburn_nn::has_parameter_source());
/// ```
pub fn has_parameter_source() -> bool {
    SOURCE.with_borrow(Option::is_some)
}

/// The source of the parameter `id` on this thread. None within a segment: the outer one has asked already.
pub(super) fn of(id: ParamId) -> Option<SharedSource> {
    if super::in_segment() {
        return None;
    }
    SOURCE.with_borrow(|source| source.clone().filter(|source| source.has(id)))
}
