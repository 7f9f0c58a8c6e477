//! Linear layers that are cut over ranks.

use std::collections::HashSet;
use std::sync::Arc;

use burn::module::Module;
use everburn_collectives::group::ProcessGroup;
use everburn_nn::{TensorGroup, TensorRule};

use crate::error::DdpError;
use crate::module_ranks::ModuleRanks;
use crate::replicas;

/// Cuts the [`everburn::nn::Linear`](everburn_nn::Linear) layers of `model` over the ranks of `group`, as `rules` say:
/// [`everburn::nn::tensor_parallel`](everburn_nn::tensor_parallel) over a process group.
///
/// All ranks of `group` call it, once, with equal whole models, before training. In a mesh `group` is
/// the tensor dimension's sub-group, and [`ModuleRanks::within`] lets its failures end the whole job.
///
/// The ranks of `group` see the same samples. [`crate::Ddp`] is for ranks that see others: those with
/// the same place in their tensor groups, which hold the same parts.
///
/// If a collective fails within a step, the step continues with this rank's own numbers, and `group` is
/// aborted: whatever the step does next with it fails, on every rank, with the reason.
///
/// Ranks that are threads of one process must not share parameters that require gradients, as plain
/// clones of a model do: Burn locks all that hangs together while it runs backward, and ranks that
/// wait for each other would wait for that lock. `Module::valid`, then `train`, separates them.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_distributed as distributed; pub use everburn_nn as nn; }
/// use burn::module::Module;
/// use burn::nn::Initializer;
/// use burn::prelude::*;
/// use everburn::collectives::group::{GroupOptions, ProcessGroup};
/// use everburn::distributed::tensor_parallel;
/// use everburn::nn::{Linear, LinearConfig, TensorRule};
///
/// #[derive(Module, Debug)]
/// struct FeedForward {
///     up: Linear,
///     down: Linear,
/// }
///
/// let ranks = ProcessGroup::over_threads(2, GroupOptions::default()).into_iter().map(|group| {
///     std::thread::spawn(move || {
///         let device = Device::flex().autodiff();
///         let linear = |inputs, outputs| {
///             let config = LinearConfig::new(inputs, outputs);
///             config.with_initializer(Initializer::Ones).init(&device)
///         };
///         let model = FeedForward { up: linear(1, 4), down: linear(4, 1) };
///         let rules = [TensorRule::column("up"), TensorRule::row("down")];
///         let model = tensor_parallel(model, &rules, &group)?;
///         let hidden = model.up.forward(Tensor::<2>::ones([1, 1], &device));
///         assert_eq!(hidden.dims(), [1, 2]);
///         Ok::<f32, everburn::distributed::DdpError>(model.down.forward(hidden).into_scalar())
///     })
/// });
/// for rank in ranks.collect::<Vec<_>>() {
///     assert_eq!(rank.join().unwrap().unwrap(), 9.0); // 4 features of 2, and a bias
/// }
/// ```
///
/// # Errors
/// [`DdpError::TensorParallel`] if the model cannot be cut so, or the ranks hold different ones;
/// [`DdpError::Collective`] if the ranks cannot make a group for the exchanges.
#[doc(alias = "parallelize_module")]
pub fn tensor_parallel<M: Module>(
    model: M,
    rules: &[TensorRule],
    group: &ProcessGroup,
) -> Result<M, DdpError> {
    let ranks: Arc<dyn TensorGroup> = Arc::new(ModuleRanks::new(group)?);
    Ok(everburn_nn::tensor_parallel(model, rules, &ranks)?)
}

/// Checks that what has not been cut is the same on all ranks of `group`, to the bit. All of them call
/// it.
///
/// # Errors
/// [`DdpError::Diverged`], on all ranks, naming the first rank and parameter that differ;
/// [`DdpError::Read`] and [`DdpError::Collective`] if they cannot be compared.
pub fn verify_whole_parameters<M: Module>(model: &M, group: &ProcessGroup) -> Result<(), DdpError> {
    let shards = everburn_nn::parameter_shards(model);
    let cut = shards.iter().map(|shard| shard.path.as_str());
    let cut = cut.collect::<HashSet<_>>();
    let mut tensors = replicas::read(model)?;
    tensors.retain(|(description, _)| !cut.contains(description.path.as_str()));
    replicas::compare(&tensors, group)
}
