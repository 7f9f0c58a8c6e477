//! Max pooling of 2 x 2 windows side by side, the commonest there is.
//!
//! Rows of such windows are short: 12 in the first layer of `mnist`, fewer than a vector has lanes.
//! So the larger of two rows is taken first, line after line, and then the larger of two columns, in
//! one run over several lines.

/// How many values of pairs of lines are looked at in one run.
const RUN: usize = 1 << 10;

/// Pools a plane whose windows all are within it: as many lines of `width` values as `output` has
/// lines of `columns`, twice.
#[inline(always)]
pub(super) fn pool(
    input: &[f32],
    width: usize,
    columns: usize,
    output: &mut [f32],
    indices: &mut [i32],
) {
    let length = 2 * columns;
    if columns == 0 || length > RUN {
        for (row, (output, indices)) in output
            .chunks_mut(RUN / 2)
            .zip(indices.chunks_mut(RUN / 2))
            .enumerate()
        {
            long_line(input, width, columns, row * (RUN / 2), output, indices);
        }
        return;
    }
    let mut values = [0.0; RUN];
    let mut places = [0_i32; RUN];
    let lines = RUN / length;
    let runs = output.chunks_mut(lines * columns);
    for (run, (output, indices)) in runs.zip(indices.chunks_mut(lines * columns)).enumerate() {
        let found = 2 * output.len();
        let (values, places) = (&mut values[..found], &mut places[..found]);
        let pairs = values.chunks_mut(length).zip(places.chunks_mut(length));
        for (line, (values, places)) in pairs.enumerate() {
            let top = 2 * (run * lines + line) * width;
            upper_or_lower(&input[top..], width, top, values, places);
        }
        left_or_right(values, places, output, indices);
    }
}

/// Windows `first..` of a plane whose lines are longer than a run.
#[inline(always)]
fn long_line(
    input: &[f32],
    width: usize,
    columns: usize,
    first: usize,
    output: &mut [f32],
    indices: &mut [i32],
) {
    for (window, (output, index)) in output.iter_mut().zip(indices).enumerate() {
        let (row, column) = ((first + window) / columns, (first + window) % columns);
        let start = 2 * (row * width + column);
        let (mut values, mut places) = ([0.0; 2], [0; 2]);
        upper_or_lower(&input[start..], width, start, &mut values, &mut places);
        left_or_right(
            &values,
            &places,
            std::slice::from_mut(output),
            std::slice::from_mut(index),
        );
    }
}

/// The larger of each value of `input` and the one below it, and its index in the plane; `top` is that of
/// the first.
#[inline(always)]
fn upper_or_lower(input: &[f32], width: usize, top: usize, values: &mut [f32], places: &mut [i32]) {
    let (upper, lower) = (&input[..values.len()], &input[width..][..values.len()]);
    let found = values.iter_mut().zip(places).zip(upper.iter().zip(lower));
    for (column, ((value, place), (&upper, &lower))) in found.enumerate() {
        let below = super::wins(lower, upper);
        *value = if below { lower } else { upper };
        *place = (top + column) as i32 + if below { width as i32 } else { 0 };
    }
}

/// The larger of each pair of `values`: of equal numbers the one that is read first, of several that
/// are none the last.
#[inline(always)]
fn left_or_right(values: &[f32], places: &[i32], output: &mut [f32], indices: &mut [i32]) {
    let found = values.chunks_exact(2).zip(places.chunks_exact(2));
    for ((output, index), (value, place)) in output.iter_mut().zip(indices).zip(found) {
        let ([left, right], [at_left, at_right]) = ([value[0], value[1]], [place[0], place[1]]);
        let [left_is_none, right_is_none] = [left, right].map(f32::is_nan);
        let right_first = at_right < at_left;
        let is_right = (right > left)
            | ((right == left) & right_first)
            | (right_is_none & (!left_is_none | !right_first));
        *output = if is_right { right } else { left };
        *index = if is_right { at_right } else { at_left };
    }
}
