//! A rank of a large world that trains nothing: it meets the others, adds up once, and says what that took.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use everburn_collectives::group::{GroupOptions, ProcessGroup, ReduceOp};
use everburn_launch::RankEnvironment;
use everburn_record::proc;

use super::DEADLINE;

/// The phases of a rank, in order, in milliseconds; then its threads and its memory in KiB.
pub const COLUMNS: [&str; 7] = [
    "rendezvous ms",
    "mesh ms",
    "all_reduce ms",
    "barrier ms",
    "leave ms",
    "threads",
    "resident KiB",
];

/// Writes `crowd.RANK` with a number for each of [`COLUMNS`].
pub fn be_rank(rank: &RankEnvironment) -> ! {
    let mut since = Instant::now();
    let mut lap = || {
        let now = Instant::now();
        let took = now - std::mem::replace(&mut since, now);
        u64::try_from(took.as_millis()).unwrap()
    };
    let mut numbers = Vec::new();
    let joined = rank.rendezvous(Some(DEADLINE)).unwrap();
    let world_size = joined.world_size;
    numbers.push(lap());
    let options = GroupOptions {
        timeout: Some(DEADLINE),
        ..GroupOptions::default()
    };
    let store = joined.store.clone();
    let group = ProcessGroup::connect(joined, options).unwrap();
    numbers.push(lap());
    let sum = group.all_reduce(vec![1_i64; 3], ReduceOp::Sum).wait();
    assert_eq!(sum.unwrap(), [i64::try_from(world_size).unwrap(); 3]);
    numbers.push(lap());
    group.barrier().wait().unwrap();
    numbers.push(lap());
    let threads = proc::thread_names().len() as u64;
    group.destroy().unwrap();
    drop(store);
    numbers.push(lap());
    numbers.push(threads);
    numbers.push(proc::resident_memory().unwrap_or(0) / 1024);
    let line: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    let folder = PathBuf::from(std::env::var(super::FOLDER).unwrap());
    fs::write(folder.join(format!("crowd.{}", rank.rank)), line.join(" ")).unwrap();
    rank.report_finished();
    std::process::exit(0)
}

/// What the ranks have written, by rank.
pub fn numbers(folder: &std::path::Path, ranks: usize) -> Vec<Vec<u64>> {
    let of_rank = |rank| {
        let text = fs::read_to_string(folder.join(format!("crowd.{rank}"))).unwrap();
        text.split(' ')
            .map(|number| number.parse().unwrap())
            .collect()
    };
    (0..ranks).map(of_rank).collect()
}

/// A table of the least, the middle and the largest number of each of [`COLUMNS`].
pub fn table(numbers: &[Vec<u64>], requests: u64, took: Duration) -> String {
    let mut text = format!(
        "{} ranks: {:.1} s, {:.1} requests of each rank at the store\n",
        numbers.len(),
        took.as_secs_f64(),
        requests as f64 / numbers.len() as f64
    );
    for (column, name) in COLUMNS.iter().enumerate() {
        let mut all: Vec<u64> = numbers.iter().map(|of_rank| of_rank[column]).collect();
        all.sort_unstable();
        let (middle, last) = (all[all.len() / 2], all[all.len() - 1]);
        text.push_str(&format!("  {name:>14}: {} / {middle} / {last}\n", all[0]));
    }
    text
}
