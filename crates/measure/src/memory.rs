//! How fast this machine copies memory: what bounds every exchange inside it.

use std::hint::black_box;
use std::time::Instant;

use everburn_collectives::group::ProcessGroup;

use crate::Failure;

/// Copies that count. The fastest is taken: it bounds what can be reached, and a copy that was
/// disturbed would set the bound too low.
const COPIES: usize = 7;

/// Bytes copied a second, of a copy of `bytes` bytes by this rank; by all ranks at the same time,
/// or by rank 0 while the others wait for their next order. `None` where this rank copies nothing.
///
/// With everyone, the time of a rank is that of all its copies: where ranks share cores, a single
/// copy may have had a core to itself.
pub(crate) fn measure(
    group: &ProcessGroup,
    bytes: usize,
    everyone: bool,
) -> Result<Option<f64>, Failure> {
    if !everyone {
        return Ok((group.rank() == 0).then(|| {
            let seconds = copies(bytes);
            bytes as f64 / seconds.iter().copied().fold(f64::INFINITY, f64::min)
        }));
    }
    // Pages are there before anyone starts.
    let mut memory = Memory::new(bytes);
    group.barrier().wait()?;
    let seconds: f64 = (0..COPIES).map(|_| memory.copy()).sum();
    Ok(Some(bytes as f64 * COPIES as f64 / seconds))
}

fn copies(bytes: usize) -> Vec<f64> {
    let mut memory = Memory::new(bytes);
    (0..COPIES).map(|_| memory.copy()).collect()
}

struct Memory {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Memory {
    fn new(bytes: usize) -> Self {
        let mut memory = Self {
            from: vec![1; bytes],
            to: vec![2; bytes],
        };
        memory.copy();
        memory
    }

    /// The seconds of one copy.
    fn copy(&mut self) -> f64 {
        let start = Instant::now();
        black_box(&mut self.to).copy_from_slice(black_box(&self.from));
        start.elapsed().as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use everburn_collectives::group::GroupOptions;

    use super::*;

    #[test]
    fn a_copy_copies_and_has_a_rate() {
        let group = ProcessGroup::alone(GroupOptions::default());
        for everyone in [false, true] {
            let rate = measure(&group, 1 << 20, everyone).unwrap();
            assert!(rate.is_some_and(|rate| rate.is_finite() && rate > 0.0));
        }
        let memory = Memory::new(1000);
        assert_eq!(memory.to, memory.from);
    }
}
