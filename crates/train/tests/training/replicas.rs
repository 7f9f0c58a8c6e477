//! What ranks are left with, to the bit.

use std::path::Path;

use burn::module::Module;
use everburn_train::StateHashes;

use crate::harness::parameters::parameters;

/// Those of each parameter and buffer, in visiting order.
pub fn bits<M: Module>(model: &M) -> Vec<u32> {
    let numbers = parameters(model).into_iter().flatten();
    numbers.map(f32::to_bits).collect()
}

/// What a run has written of each step's state.
pub fn hashes(folder: &Path) -> Vec<StateHashes> {
    let text = std::fs::read_to_string(folder.join("hashes.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

/// What each rank has, which is the same.
pub fn in_common<T: PartialEq>(mut ranks: Vec<T>) -> T {
    for (rank, replica) in ranks.iter().enumerate() {
        assert!(*replica == ranks[0], "rank {rank} has another one");
    }
    ranks.swap_remove(0)
}
