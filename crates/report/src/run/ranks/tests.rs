//! Tests of `ranks`.

use super::*;
use crate::run::Grid;

fn line(step: u64, ranks: &[(usize, f64, f64)]) -> RankLine {
    let ranks = ranks.iter().map(|(rank, seconds, waited)| RankStep {
        rank: *rank,
        seconds: *seconds,
        waited: *waited,
        ..RankStep::default()
    });
    RankLine {
        step,
        unix_time_ms: None,
        ranks: ranks.collect(),
    }
}

#[test]
fn a_long_run_is_cut_into_pieces_that_lose_nothing() {
    let mut times = RankTimes::default();
    for step in 1..=100_000 {
        times.push(&line(step, &[(0, 1.0, 0.5), (7, 1.0, 0.0)]));
    }
    let grid = times.grid(Quantity::Waited, 64);
    assert_eq!(grid.rows, ["0", "7"]);
    assert!(grid.values[0].len() <= MOST_COLUMNS);
    assert!(grid.values[0].iter().all(|value| *value == Some(0.5)));
    assert!(grid.values[1].iter().all(|value| *value == Some(0.0)));
    let (_, total) = times.totals().next().unwrap();
    assert_eq!(
        (total.steps, total.seconds, total.waited),
        (100_000, 100_000.0, 50_000.0)
    );
}

#[test]
fn a_rank_that_took_no_part_leaves_a_gap() {
    let mut times = RankTimes::default();
    times.push(&line(10, &[(0, 1.0, 0.0), (1, 1.0, 0.0)]));
    times.push(&line(11, &[(0, 1.0, 0.0)]));
    times.push(&line(13, &[(0, 1.0, 0.0), (1, 3.0, 0.0)]));
    let grid = times.grid(Quantity::Step, 64);
    assert_eq!((grid.from, grid.width), (10, 1));
    assert_eq!(grid.values[0], [Some(1.0), Some(1.0), None, Some(1.0)]);
    assert_eq!(grid.values[1], [Some(1.0), None, None, Some(3.0)]);
}

#[test]
fn steps_that_were_not_recorded_are_no_gaps() {
    let mut times = RankTimes::default();
    for step in [10, 20, 30, 60] {
        times.push(&line(step, &[(0, 1.0, 0.0)]));
    }
    let grid = times.grid(Quantity::Step, 64);
    assert_eq!((grid.from, grid.width), (10, 10));
    assert_eq!(
        grid.values[0],
        [Some(1.0), Some(1.0), Some(1.0), None, None, Some(1.0)]
    );
}

#[test]
fn steps_that_were_recorded_between_keep_their_place() {
    let mut times = RankTimes::default();
    // Each tenth step, and whatever step half a second after it was.
    for step in (10..=500).step_by(10) {
        times.push(&line(step, &[(0, 1.0, 0.0)]));
        times.push(&line(step + 7 + step % 3, &[(0, 3.0, 0.0)]));
    }
    let grid = times.grid(Quantity::Step, 64);
    let end = grid.from + grid.width * grid.values[0].len() as u64;
    assert_eq!(grid.from, 10);
    assert!((509..530).contains(&end), "{end}");
    assert!(grid.values[0].iter().all(Option::is_some), "{grid:?}");
    // What shares a piece is its mean.
    let all: f64 = grid.values[0].iter().flatten().sum();
    let mean = all / grid.values[0].len() as f64;
    assert!((1.8..2.2).contains(&mean), "{mean}");
}

#[test]
fn many_ranks_share_a_row_that_shows_the_slowest() {
    let mut times = RankTimes::default();
    let ranks: Vec<_> = (0..10)
        .map(|rank| (rank, f64::from(rank as u8), 0.0))
        .collect();
    times.push(&line(1, &ranks));
    let grid = times.grid(Quantity::Work, 4);
    assert_eq!(grid.rows, ["0–2", "3–5", "6–8", "9"]);
    let column: Vec<_> = grid.values.iter().map(|row| row[0].unwrap()).collect();
    assert_eq!(column, [2.0, 5.0, 8.0, 9.0]);
}

#[test]
fn a_slow_rank_is_worth_a_word_where_the_others_wait_long_for_it() {
    let over = |steps: u64, ranks: &[(usize, f64, f64)]| {
        let mut times = RankTimes::default();
        for step in 1..=steps {
            times.push(&line(step, ranks));
        }
        times.waited_for()
    };
    let unequal = [(0, 1.0, 0.5), (3, 1.0, 0.0), (4, 1.0, 0.75)];
    assert_eq!(over(8, &unequal), Some((3, 0.625)));
    assert_eq!(over(7, &unequal), None);
    let busy = |waited| over(8, &[(0, 1.0, waited), (3, 1.0, 0.0)]);
    assert_eq!([busy(0.22), busy(0.25)], [None, Some((3, 0.25))]);
    let of = |ranks: &[(usize, f64, f64)]| over(8, ranks);
    // The exchange takes long, for all of them.
    assert_eq!(of(&[(0, 1.0, 0.95), (3, 1.0, 0.875)]), None);
    assert_eq!(of(&[(0, 1.0, 0.5), (3, 1.0, 0.5)]), None);
    assert_eq!(of(&[(0, 1.0, 0.0)]), None);
}

#[test]
fn numbers_that_are_no_times_are_left_out() {
    let mut times = RankTimes::default();
    times.push(&line(
        u64::MAX,
        &[(usize::MAX, f64::NAN, 0.0), (1, -1.0, 0.0), (2, 1.0, 0.0)],
    ));
    times.push(&line(0, &[(2, 1e300, 0.0)]));
    assert_eq!(
        times.totals().map(|(rank, _)| rank).collect::<Vec<_>>(),
        [2]
    );
    let grid = times.grid(Quantity::Work, 64);
    assert_eq!(grid.values, [[None, Some(1.0)]]);
    assert!(times.slow().is_empty() && times.waited_for().is_none());
    let nothing: Grid = RankTimes::default().grid(Quantity::Work, 64);
    assert!(nothing.rows.is_empty() && nothing.values.is_empty());
}
