//! How fast this machine copies memory: what bounds every exchange inside it.

use std::hint::black_box;
use std::time::Instant;

use everburn::collectives::group::ProcessGroup;

use crate::failure::Failure;

/// Windows of copies; the fastest is taken. What is measured is to bound what can be reached, and a
/// window that was disturbed would set the bound too low.
const WINDOWS: usize = 5;

/// About how many bytes are copied in a window: long against the barrier at its end.
const WINDOW_BYTES: usize = 256 << 20;

/// Fewer copies of a large message are noise; more of a small one only take time.
const COPIES: std::ops::RangeInclusive<usize> = 3..=200_000;

/// Bytes copied a second, of copies of `bytes` bytes by this rank; by all ranks at the same time,
/// or by rank 0 while the others wait for their next order. `None` where this rank copies nothing.
pub(crate) fn measure(
    group: &ProcessGroup,
    bytes: usize,
    everyone: bool,
) -> Result<Option<f64>, Failure> {
    if !everyone && group.rank() > 0 {
        return Ok(None);
    }
    let mut memory = Memory::new(bytes);
    let copies = (WINDOW_BYTES / bytes.max(1)).clamp(*COPIES.start(), *COPIES.end());
    let mut fastest = f64::INFINITY;
    for _ in 0..WINDOWS {
        if everyone {
            group.barrier().wait()?;
        }
        let start = Instant::now();
        for _ in 0..copies {
            memory.copy();
        }
        if everyone {
            // Where ranks share cores, who had one first must not count it as its own.
            group.barrier().wait()?;
        }
        fastest = fastest.min(start.elapsed().as_secs_f64());
    }
    Ok(Some((bytes * copies) as f64 / fastest))
}

struct Memory {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Memory {
    /// Pages that are there before anything is timed.
    fn new(bytes: usize) -> Self {
        let mut memory = Self {
            from: vec![1; bytes],
            to: vec![2; bytes],
        };
        memory.copy();
        memory
    }

    fn copy(&mut self) {
        black_box(&mut self.to).copy_from_slice(black_box(&self.from));
    }
}
