//! Whether all ranks are to cut the same model alike.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use burn::module::{Module, ModuleVisitor, Param};
use burn::prelude::*;

use super::group::TensorGroup;
use super::rules::TensorParallelError;
use super::shard::Membership;

/// Compares plan and values of all ranks, on all ranks.
pub(super) fn demand_same<M: Module>(
    model: &M,
    plan: &Result<HashMap<String, Membership>, TensorParallelError>,
    group: &Arc<dyn TensorGroup>,
) -> Result<(), TensorParallelError> {
    /// 16 bits a number: exact in `f32`.
    const PIECES: usize = 4;
    let own = fingerprint(model, plan);
    let mut all = vec![0.0; group.world_size() * PIECES];
    for (piece, value) in all[group.rank() * PIECES..][..PIECES]
        .iter_mut()
        .enumerate()
    {
        *value = f32::from((own >> (16 * piece)) as u16);
    }
    group.all_reduce_sum_f32(&mut all)?;
    let different = all
        .chunks_exact(PIECES)
        .position(|other| *other != all[..PIECES]);
    match (plan, different) {
        // What is wrong here says more than that it is not wrong elsewhere.
        (Err(_), _) | (_, None) => Ok(()),
        (Ok(_), Some(rank)) => Err(TensorParallelError::DifferentModels { rank }),
    }
}

fn fingerprint<M: Module>(
    model: &M,
    plan: &Result<HashMap<String, Membership>, TensorParallelError>,
) -> u64 {
    struct Values(DefaultHasher);
    impl ModuleVisitor for Values {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val().without_autodiff();
            value.dims().hash(&mut self.0);
            // What cannot be read here cannot be cut either, where Burn says why.
            if let Ok(data) = value.try_into_data() {
                data.as_bytes().hash(&mut self.0);
            }
        }
        fn enter_module(&mut self, name: &str, _container_type: &str) {
            name.hash(&mut self.0);
        }
    }
    let mut values = Values(DefaultHasher::new());
    match plan {
        Err(error) => error.to_string().hash(&mut values.0),
        Ok(cuts) => {
            let mut cuts = cuts
                .iter()
                .map(|(path, cut)| (path, cut.shard))
                .collect::<Vec<_>>();
            cuts.sort_unstable_by_key(|(path, _)| *path);
            cuts.hash(&mut values.0);
            model.visit(&mut values);
        }
    }
    values.0.finish()
}
