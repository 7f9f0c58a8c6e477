//! What ranks are left with, to the bit.

use burn::module::Module;

use crate::harness::parameters::parameters;

/// Those of each parameter and buffer, in visiting order.
pub fn bits<M: Module>(model: &M) -> Vec<u32> {
    let numbers = parameters(model).into_iter().flatten();
    numbers.map(f32::to_bits).collect()
}

/// What each rank has, which is the same.
pub fn in_common<T: PartialEq>(mut ranks: Vec<T>) -> T {
    for (rank, replica) in ranks.iter().enumerate() {
        assert!(*replica == ranks[0], "rank {rank} has another one");
    }
    ranks.swap_remove(0)
}
