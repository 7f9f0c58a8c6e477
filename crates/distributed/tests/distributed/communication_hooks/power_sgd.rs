//! PowerSGD between ranks.

use everburn_distributed::CommunicationHookConfig;

use super::ranks::{
    Bucket, Reduced, WORLD_SIZES, bits, matrix_of_rank, norm, random, reduce_all, relative_error,
    slots, sum_over,
};
use crate::ranks::on_ranks;

/// The parameters of a small convolutional network for images of digits.
const NETWORK: [(&str, &[usize]); 8] = [
    ("conv1.weight", &[10, 1, 5, 5]),
    ("conv1.bias", &[10]),
    ("conv2.weight", &[20, 10, 5, 5]),
    ("conv2.bias", &[20]),
    ("fc1.weight", &[50, 320]),
    ("fc1.bias", &[50]),
    ("fc2.weight", &[10, 50]),
    ("fc2.bias", &[10]),
];
const NETWORK_ELEMENTS: usize = 21_840;

const ROWS: usize = 12;
const COLUMNS: usize = 20;

/// Reduces the matrix `values(rank, step)` for this many steps.
fn reduce_steps(
    world_size: usize,
    hook: &str,
    steps: usize,
    values: impl Fn(usize, usize) -> Vec<f32> + Sync,
) -> Vec<Reduced> {
    reduce_all(world_size, hook, |rank| {
        let bucket = |step| Bucket::of_one("weight", &[ROWS, COLUMNS], values(rank, step));
        (0..steps).map(bucket).collect()
    })
}

fn sum_of_ranks(world_size: usize, values: impl Fn(usize) -> Vec<f32>) -> Vec<f64> {
    let inputs: Vec<_> = (0..world_size).map(values).collect();
    sum_over(inputs.iter().map(Vec::as_slice))
}

fn add(sum: &mut [f64], values: &[f64]) {
    sum.iter_mut().zip(values).for_each(|(sum, x)| *sum += x);
}

#[test]
fn bytes_are_those_of_the_factors_and_of_what_is_not_compressed() {
    // (4 x (10 + 25) + 4 x (20 + 250) + 4 x (50 + 320) + 4 x (10 + 50) + 90 biases) x 4 bytes.
    let compressed = (140 + 1080 + 1480 + 240 + 90) * 4;
    let whole = NETWORK_ELEMENTS as u64 * 4;
    for world_size in [1, 3] {
        let buckets = |rank| {
            let bucket = |step| Bucket {
                index: 0,
                slots: slots(&NETWORK),
                values: random(&[rank, step], NETWORK_ELEMENTS),
            };
            (0..4).map(bucket).collect()
        };
        let reduced = reduce_all(world_size, "power-sgd:4:2", buckets);
        let bytes: Vec<u64> = reduced.iter().map(|reduced| reduced.bytes).collect();
        assert_eq!(bytes, [whole, whole, compressed, compressed]);
    }
}

#[test]
fn the_first_steps_and_small_tensors_are_summed_exactly() {
    // [5, 6] at rank 4: factors of 44 numbers in place of 30.
    let parameters: [(&str, &[usize]); 5] = [
        ("a", &[5, 6]),
        ("b", &[ROWS, COLUMNS]),
        ("c", &[7]),
        ("d", &[]),
        ("e", &[0, 3]),
    ];
    let total = 30 + ROWS * COLUMNS + 7 + 1;
    // Three values more than the slots have.
    let whole = |rank: usize, step: usize| -> Vec<f32> {
        (0..total + 3)
            .map(|i| ((i * 13 + rank * 5 + step) % 257) as f32)
            .collect()
    };
    for world_size in WORLD_SIZES {
        let buckets = |rank| {
            let bucket = |step| Bucket {
                index: 0,
                slots: slots(&parameters),
                values: whole(rank, step),
            };
            (0..5).map(bucket).collect()
        };
        let reduced = reduce_all(world_size, "power-sgd:4:3", buckets);
        for (step, reduced) in reduced.iter().enumerate() {
            let expected = sum_of_ranks(world_size, |rank| whole(rank, step));
            let matrix = 30..30 + ROWS * COLUMNS;
            assert_eq!(expected.len(), reduced.values.len());
            for (i, (expected, found)) in expected.iter().zip(&reduced.values).enumerate() {
                if step < 3 || !matrix.contains(&i) {
                    assert_eq!(*expected, f64::from(*found), "step {step}, element {i}");
                }
            }
            let plain = 4 * (total + 3 - ROWS * COLUMNS) as u64;
            let factors = 4 * 4 * (ROWS + COLUMNS) as u64;
            let all = 4 * (total + 3) as u64;
            assert_eq!(reduced.bytes, if step < 3 { all } else { plain + factors });
        }
    }
}

#[test]
fn sums_of_low_rank_come_out_whole() {
    for world_size in WORLD_SIZES {
        for scale in [1.0, 1e-18, 1e18] {
            // Each rank's part has full rank; the sum of all has rank 3, and grows from step to step.
            let values = |rank: usize, step: usize| -> Vec<f32> {
                let low = matrix_of_rank(3, ROWS, COLUMNS, &[3]);
                let full = random(&[77, step], ROWS * COLUMNS);
                let sign = match rank {
                    0 if world_size > 1 => 1.0,
                    1 => -1.0,
                    _ => 0.0,
                };
                let both = low.iter().zip(&full);
                both.map(|(x, y)| scale * ((1 + step) as f32 * x + sign * y))
                    .collect()
            };
            let reduced = reduce_steps(world_size, "power-sgd:3:0", 6, values);
            for (step, reduced) in reduced.iter().enumerate() {
                let expected = sum_of_ranks(world_size, |rank| values(rank, step));
                let error = relative_error(&expected, &reduced.values);
                assert!(error < 1e-5, "{world_size} ranks, step {step}: {error}");
            }
        }
    }
}

#[test]
fn a_warm_start_finds_the_leading_directions() {
    // A matrix of rank 2 with a little noise, the same in all steps: of what is left after the best
    // approximation only the noise remains, though the start was random.
    let strong = matrix_of_rank(2, ROWS, COLUMNS, &[5]);
    let noise = random(&[6], ROWS * COLUMNS);
    let matrix: Vec<f32> = strong
        .iter()
        .zip(&noise)
        .map(|(x, y)| x + 0.01 * y)
        .collect();
    let reduced = reduce_steps(2, "power-sgd:2:0", 8, |_, _| matrix.clone());
    let expected: Vec<f64> = matrix.iter().map(|x| 2.0 * f64::from(*x)).collect();
    let noise: Vec<f64> = noise.iter().map(|x| 0.02 * f64::from(*x)).collect();
    let last = relative_error(&expected, &reduced[7].values);
    // Of the noise of that step and of the seven before, which error feedback has kept.
    assert!(last < 8.0 * norm(&noise) / norm(&expected), "{last}");
    // And in all steps together only what is owed since the last.
    let mean = sum_over(reduced.iter().map(|reduced| reduced.values.as_slice()));
    let mean: Vec<f32> = mean.iter().map(|x| (x / 8.0) as f32).collect();
    assert!(relative_error(&expected, &mean) < last);
}

#[test]
fn nothing_is_lost_it_is_only_late() {
    for world_size in WORLD_SIZES {
        // Random matrices of full rank, and in every third step no samples on the last rank.
        let steps = 120;
        let values = |rank: usize, step: usize| {
            let weight = match step {
                _ if step >= steps => 0.0,
                _ if rank + 1 == world_size && rank > 0 && step.is_multiple_of(3) => 0.0,
                _ => 1.0 / world_size as f32,
            };
            let random = random(&[rank, step], ROWS * COLUMNS);
            random.iter().map(|x| x * weight).collect()
        };
        let reduced = reduce_steps(world_size, "power-sgd:2:0", steps + 200, values);
        let mut owed = vec![0.0; ROWS * COLUMNS];
        let mut largest_debt: f64 = 0.0;
        for (step, reduced) in reduced.iter().enumerate() {
            add(
                &mut owed,
                &sum_of_ranks(world_size, |rank| values(rank, step)),
            );
            let paid: Vec<f64> = reduced.values.iter().map(|x| -f64::from(*x)).collect();
            add(&mut owed, &paid);
            largest_debt = largest_debt.max(norm(&owed));
        }
        // A step's gradient has a norm of about sqrt(12 x 20 / 3) = 9 or less; two of twelve
        // directions leave in each step.
        assert!(
            largest_debt < 60.0,
            "{world_size} ranks owe up to {largest_debt}"
        );
        // With nothing new, all that was owed has left.
        assert!(
            norm(&owed) < 1e-3,
            "{world_size} ranks still owe {}",
            norm(&owed)
        );
    }
}

#[test]
fn zeros_give_zeros_and_leave_the_hook_ready() {
    for world_size in WORLD_SIZES {
        let values = |step: usize| match step {
            0..3 => vec![0.0; ROWS * COLUMNS],
            _ => matrix_of_rank(2, ROWS, COLUMNS, &[step]),
        };
        let reduced = reduce_steps(world_size, "power-sgd:2:0", 5, |_, step| values(step));
        for reduced in &reduced[..3] {
            assert_eq!(bits(&reduced.values), bits(&vec![0.0; ROWS * COLUMNS]));
        }
        for (step, reduced) in reduced.iter().enumerate().skip(3) {
            let expected = sum_of_ranks(world_size, |_| values(step));
            assert!(relative_error(&expected, &reduced.values) < 1e-4);
        }
    }
}

#[test]
fn after_matrices_of_lower_rank_those_of_full_rank_come_out_whole() {
    let values = |rank: usize, step: usize| match step {
        // One element, then one row, then as much as the hook can hold.
        0..3 => {
            let mut matrix = vec![0.0; ROWS * COLUMNS];
            matrix[7] = 3.0;
            matrix
        }
        3..6 => matrix_of_rank(1, ROWS, COLUMNS, &[1]),
        _ => matrix_of_rank(4, ROWS, COLUMNS, &[rank / 2, step]),
    };
    let reduced = reduce_steps(2, "power-sgd:4:0", 9, values);
    for (step, reduced) in reduced.iter().enumerate() {
        let expected = sum_of_ranks(2, |rank| values(rank, step));
        let error = relative_error(&expected, &reduced.values);
        assert!(error < 1e-3, "step {step}: {error}");
    }
}

#[test]
fn what_is_not_finite_makes_its_matrix_nan_on_all_ranks_for_that_step_only() {
    let parameters: [(&str, &[usize]); 3] = [
        ("a", &[ROWS, COLUMNS]),
        ("bias", &[4]),
        ("b", &[ROWS, COLUMNS]),
    ];
    let matrix = ROWS * COLUMNS;
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let run = |bad: Option<f32>| {
            let buckets = |rank: usize| {
                let steps = (0..6).filter(|step| *step != 3 || bad.is_some());
                let bucket = |step: usize| {
                    let mut values = random(&[rank, step], 2 * matrix + 4);
                    if let (1, 3, Some(bad)) = (rank, step, bad) {
                        values[5] = bad;
                    }
                    Bucket {
                        index: 0,
                        slots: slots(&parameters),
                        values,
                    }
                };
                steps.map(bucket).collect()
            };
            reduce_all(3, "power-sgd:2:0", buckets)
        };
        let (mut with, without) = (run(Some(bad)), run(None));
        let step = with.remove(3);
        assert!(step.values[..matrix].iter().all(|x| x.is_nan()));
        assert!(step.values[matrix..].iter().all(|x| x.is_finite()));
        assert_eq!((with.len(), without.len()), (5, 5));
        for (with, without) in with.iter().zip(&without) {
            assert_eq!(
                bits(&with.values[..matrix]),
                bits(&without.values[..matrix])
            );
        }
    }
}

#[test]
fn rebuilt_buckets_find_what_the_hook_remembers() {
    let shapes: [(&str, &[usize]); 3] =
        [("a", &[ROWS, COLUMNS]), ("b", &[8, 30]), ("c", &[16, 3, 5])];
    let gradient = |rank: usize, step: usize, which: usize| random(&[rank, step, which], 240);
    let bucket = |index: usize, rank: usize, step: usize, which: &[usize]| {
        let parameters: Vec<_> = which.iter().map(|which| shapes[*which]).collect();
        Bucket {
            index,
            slots: slots(&parameters),
            values: which
                .iter()
                .flat_map(|which| gradient(rank, step, *which))
                .collect(),
        }
    };
    // Two ranks, whose sums do not depend on the order.
    let kept = reduce_all(2, "power-sgd:2:1", |rank| {
        (0..6)
            .map(|step| bucket(0, rank, step, &[0, 1, 2]))
            .collect()
    });
    let rebuilt = reduce_all(2, "power-sgd:2:1", |rank| {
        let before = (0..3).map(|step| bucket(0, rank, step, &[0, 1, 2]));
        let after =
            (3..6).flat_map(|step| [bucket(0, rank, step, &[2]), bucket(1, rank, step, &[1, 0])]);
        before.chain(after).collect()
    });
    for step in 3..6 {
        let [c, ba] = [0, 1].map(|i| &rebuilt[3 + 2 * (step - 3) + i].values);
        let rearranged = [&ba[240..], &ba[..240], c].concat();
        assert_eq!(bits(&rearranged), bits(&kept[step].values), "step {step}");
    }
}

#[test]
fn slots_that_do_not_fit_are_refused_in_words() {
    /// Path, shape and offset.
    type Slot<'a> = (&'a str, &'a [usize], usize);
    let refused: [(&[Slot<'_>], &str); 4] = [
        (
            &[("a", &[ROWS, COLUMNS], 300)],
            "`a` of shape [12, 20] at 300 does not fit",
        ),
        (
            &[("a", &[usize::MAX, 2], 0)],
            "does not fit a bucket of 500 elements",
        ),
        (&[("a", &[2, 2], usize::MAX)], "does not fit"),
        (
            &[("a", &[ROWS, COLUMNS], 0), ("b", &[ROWS, COLUMNS], 239)],
            "`a` and `b` overlap",
        ),
    ];
    let config: CommunicationHookConfig = "power-sgd:2:0".parse().unwrap();
    for (parameters, expected) in refused {
        let errors = on_ranks(2, |group| {
            let mut bucket = Bucket {
                index: 0,
                slots: Vec::new(),
                values: vec![1.0; 500],
            };
            for (path, shape, offset) in parameters {
                let mut slot = slots(&[(path, &[])]).remove(0);
                slot.shape = shape.to_vec();
                slot.offset = *offset;
                bucket.slots.push(slot);
            }
            config
                .build()
                .reduce(bucket.borrow(), &group)
                .unwrap_err()
                .to_string()
        });
        for (rank, error) in errors.iter().enumerate() {
            assert!(error.contains(expected), "{error}");
            assert!(
                error.contains(&format!("power-sgd(2) on rank {rank}")),
                "{error}"
            );
        }
    }
}

#[test]
fn a_parameter_of_another_shape_begins_anew() {
    let reduced = reduce_all(2, "power-sgd:1:0", |_| {
        vec![
            Bucket::of_one("weight", &[ROWS, COLUMNS], random(&[1], 240)),
            Bucket::of_one("weight", &[8, 30], matrix_of_rank(1, 8, 30, &[2])),
        ]
    });
    let expected = sum_of_ranks(2, |_| matrix_of_rank(1, 8, 30, &[2]));
    assert!(relative_error(&expected, &reduced[1].values) < 1e-4);
}

#[test]
fn a_rank_that_no_factor_could_have_compresses_nothing() {
    let hook = format!("power-sgd:{}:0", usize::MAX);
    let values = |rank: usize, step| vec![(rank + step) as f32; ROWS * COLUMNS];
    for (step, reduced) in reduce_steps(2, &hook, 2, values).iter().enumerate() {
        assert_eq!(reduced.values, vec![(1 + 2 * step) as f32; ROWS * COLUMNS]);
        assert_eq!(reduced.bytes, 4 * (ROWS * COLUMNS) as u64);
    }
}
