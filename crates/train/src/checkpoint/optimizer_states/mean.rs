//! The mean of several ranks' states of an optimizer.

use std::collections::BTreeMap;

use burn::tensor::{DType, TensorData};
use everburn_collectives::group::{ProcessGroup, ReduceOp};
use everburn_distributed::all_gather_object;

use crate::checkpoint::tensor_file::NamedTensor;
use crate::error::TrainError;

/// How many numbers are exchanged at a time.
const CHUNK: usize = 1 << 20;

/// What ranks tell each other of a state: its type and shape.
type Form = (DType, Vec<usize>);

/// The mean of `own` over the ranks that have a state, by name. Whole numbers (of steps, say) become the
/// largest. Every rank calls it, and all are given the same bits; and how many bytes it has handed to the exchange.
///
/// # Errors
/// If a collective fails, a state is not of numbers, or ranks have states of one name and other shapes. The last two are found
/// on all ranks, before numbers are exchanged.
pub(crate) fn mean(
    own: Vec<NamedTensor>,
    group: &ProcessGroup,
) -> Result<(Vec<NamedTensor>, u64), TrainError> {
    let wrong = |error: &dyn std::fmt::Display| {
        TrainError::BurnTrain(format!("the optimizers' states: {error}"))
    };
    let mut own = own.into_iter().collect::<BTreeMap<_, _>>();
    let forms = own.iter().map(|(name, data)| {
        let form: Form = (data.dtype(), data.shape().to_vec());
        (name, form)
    });
    let all =
        all_gather_object::<BTreeMap<String, Form>>(group, &forms.collect::<BTreeMap<_, _>>())?;
    let mut known: BTreeMap<String, (Form, usize)> = BTreeMap::new();
    for (rank, theirs) in all.into_iter().enumerate() {
        for (name, form) in theirs {
            let dtype = form.0;
            if !(dtype.is_float() || dtype.is_int() || dtype.is_uint()) {
                return Err(wrong(&format!(
                    "`{name}` of rank {rank} has the type {dtype:?}, of which there is no mean"
                )));
            }
            let (first, ranks) = known.entry(name.clone()).or_insert((form.clone(), 0));
            if *first != form {
                return Err(wrong(&format!(
                    "`{name}` of rank {rank} is {form:?}, and {first:?} elsewhere"
                )));
            }
            *ranks += 1;
        }
    }
    let mut floats = Vec::new();
    let mut whole = Vec::new();
    for (name, ((dtype, shape), ranks)) in &known {
        let length = shape.iter().product::<usize>();
        let data = own.remove(name);
        match dtype.is_float() {
            true => match data {
                Some(data) => floats.extend(data.iter::<f32>().map(|v| v / *ranks as f32)),
                None => floats.extend(std::iter::repeat_n(0.0, length)),
            },
            false => match data {
                Some(data) => whole.extend(data.iter::<i64>()),
                None => whole.extend(std::iter::repeat_n(i64::MIN, length)),
            },
        }
    }
    let bytes = size_of_val(floats.as_slice()) + size_of_val(whole.as_slice());
    for chunk in floats.chunks_mut(CHUNK) {
        group.all_reduce_in_place(chunk, ReduceOp::Sum)?;
    }
    group.all_reduce_in_place(&mut whole, ReduceOp::Max)?;
    let (mut floats, mut whole) = (floats.as_slice(), whole.as_slice());
    let mut take = |((dtype, shape), _): &(Form, usize)| {
        let length = shape.iter().product::<usize>();
        let data = match dtype.is_float() {
            true => TensorData::new(split(&mut floats, length), shape.as_slice()),
            false => TensorData::new(split(&mut whole, length), shape.as_slice()),
        };
        data.convert_dtype(*dtype)
    };
    let mean = known.iter().map(|(name, form)| (name.clone(), take(form)));
    Ok((mean.collect(), bytes as u64))
}

fn split<T: Clone>(values: &mut &[T], length: usize) -> Vec<T> {
    let (own, others) = values.split_at(length);
    *values = others;
    own.to_vec()
}

#[cfg(test)]
mod tests {
    use everburn_collectives::group::GroupOptions;
    use everburn_tests::in_parallel;

    use super::*;

    #[test]
    fn floats_are_averaged_over_those_who_have_them_and_counts_become_the_largest() {
        let groups = ProcessGroup::over_threads(3, GroupOptions::default());
        let means = in_parallel(groups, |group| {
            let rank = group.rank();
            let moment = TensorData::from([rank as f32, 6.0 * rank as f32]);
            let steps = TensorData::new(vec![10 + rank as i64], [0; 0]);
            let mut own = vec![
                ("a.moment".to_string(), moment),
                ("a.steps".to_string(), steps),
            ];
            if rank == 1 {
                own.clear(); // it has just come
            }
            mean(own, &group).unwrap()
        });
        for (found, bytes) in means {
            assert_eq!(bytes, 2 * 4 + 8);
            assert_eq!(
                found[0],
                ("a.moment".to_string(), TensorData::from([1.0f32, 6.0]))
            );
            assert_eq!(found[1].1.iter::<i64>().collect::<Vec<_>>(), [12]);
            assert_eq!((&found[1].0[..], found[1].1.shape().len()), ("a.steps", 0));
        }
    }

    #[test]
    fn states_of_other_shapes_are_an_error_on_all_ranks() {
        let groups = ProcessGroup::over_threads(2, GroupOptions::default());
        let means = in_parallel(groups, |group| {
            let own = TensorData::new(vec![1.0f32; 1 + group.rank()], [1 + group.rank()]);
            mean(vec![("a.moment".to_string(), own)], &group)
        });
        for mean in means {
            let error = mean.unwrap_err().to_string();
            assert!(error.contains("`a.moment` of rank 1"), "{error}");
        }
    }

    #[test]
    fn states_that_are_not_of_numbers_are_an_error_on_all_ranks() {
        let groups = ProcessGroup::over_threads(2, GroupOptions::default());
        let means = in_parallel(groups, |group| {
            let own = match group.rank() {
                0 => ("a.moment".to_string(), TensorData::from([1.0f32])),
                _ => ("a.mask".to_string(), TensorData::from([true, false])),
            };
            mean(vec![own], &group)
        });
        for mean in means {
            let error = mean.unwrap_err().to_string();
            assert!(
                error.contains("`a.mask` of rank 1 has the type Bool"),
                "{error}"
            );
        }
    }
}
