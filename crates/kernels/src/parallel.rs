//! Work is cut into pieces by its shape alone, never by the number of threads, and no two pieces
//! add to the same value: so the bits are the same for any pool.

use rayon::prelude::*;

/// Below this many values moved a call stays on its thread: waking others costs some ten microseconds,
/// and so do these.
const WORTHWHILE: usize = 1 << 15;

/// How many values are moved in the time of `count` multiply-adds.
pub(crate) fn multiply_adds(count: usize) -> usize {
    count / 32
}

fn threads_help(work: usize) -> bool {
    work >= WORTHWHILE && rayon::current_num_threads() > 1
}

/// Calls `body` for each piece of `length` values, with its index. `work` is about what all pieces
/// cost, in values moved.
pub(crate) fn each_piece<T: Send>(
    values: &mut [T],
    length: usize,
    work: usize,
    body: impl Fn(usize, &mut [T]) + Sync,
) {
    if length == 0 {
        return;
    }
    if threads_help(work) {
        values
            .par_chunks_mut(length)
            .enumerate()
            .for_each(|(index, piece)| body(index, piece));
    } else {
        for (index, piece) in values.chunks_mut(length).enumerate() {
            body(index, piece);
        }
    }
}

/// [`each_piece`] of `values`, with the same places of `given`.
pub(crate) fn each_piece_of<const N: usize>(
    given: [&[f32]; N],
    values: &mut [f32],
    length: usize,
    work: usize,
    body: impl Fn([&[f32]; N], &mut [f32]) + Sync,
) {
    each_piece(values, length, work, |index, values| {
        let given = given.map(|given| &given[index * length..][..values.len()]);
        body(given, values);
    });
}

/// Calls `body` for each task.
pub(crate) fn each_task<T: Send>(tasks: Vec<T>, work: usize, body: impl Fn(T) + Send + Sync) {
    if threads_help(work) {
        tasks.into_par_iter().for_each(body);
    } else {
        tasks.into_iter().for_each(body);
    }
}
