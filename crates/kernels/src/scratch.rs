//! Buffers that live as long as their thread, so that a kernel's inner loops never allocate.

use std::cell::RefCell;

/// The most buffers that a thread keeps.
const KEPT: usize = 4;
/// The longest buffer that a thread keeps, in `f32`: 16 MiB.
const KEPT_LENGTH: usize = 4 << 20;
/// Vectors that do not cross a cache line are loaded twice as fast.
const ALIGNMENT: usize = 64;
const PADDING: usize = ALIGNMENT / size_of::<f32>();

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

/// Calls `body` with a buffer of `length` values, aligned to a cache line, whose contents are
/// whatever the last user left.
///
/// The buffer is taken out of the thread's store while `body` runs: a task that rayon starts on
/// this thread while `body` waits gets another one.
pub(crate) fn with_scratch<R>(length: usize, body: impl FnOnce(&mut [f32]) -> R) -> R {
    let mut buffer = BUFFERS
        .with_borrow_mut(|buffers| {
            let best = (0..buffers.len()).max_by_key(|&i| {
                let have = buffers[i].len();
                // The smallest that is long enough, else the longest.
                let enough = have >= length + PADDING;
                (enough, if enough { usize::MAX - have } else { have })
            });
            best.map(|index| buffers.swap_remove(index))
        })
        .unwrap_or_default();
    if buffer.len() < length + PADDING {
        // Without copying what nobody will read.
        buffer = Vec::new();
        buffer.resize(length + PADDING, 0.0);
    }
    let start = buffer.as_ptr().align_offset(ALIGNMENT).min(PADDING);
    let result = body(&mut buffer[start..start + length]);
    if buffer.len() <= KEPT_LENGTH {
        BUFFERS.with_borrow_mut(|buffers| {
            if buffers.len() < KEPT {
                buffers.push(buffer);
            }
        });
    }
    result
}

#[cfg(test)]
mod tests {
    use super::with_scratch;

    #[test]
    fn nested_buffers_are_distinct_and_aligned() {
        with_scratch(100, |outer| {
            outer.fill(1.0);
            with_scratch(100, |inner| {
                assert_eq!(inner.as_ptr().align_offset(64), 0);
                inner.fill(2.0);
            });
            assert!(outer.iter().all(|&value| value == 1.0));
        });
    }

    #[test]
    fn a_buffer_is_used_again() {
        let first = with_scratch(50, |buffer| buffer.as_ptr() as usize);
        let second = with_scratch(40, |buffer| buffer.as_ptr() as usize);
        assert_eq!(first, second);
    }
}
