//! Tests of `find_batch_size`.

use super::*;

const MIB: u64 = 1 << 20;

/// A search whose steps take `mib` MiB and 2 MiB for each sample.
fn search(sizes: &[usize], speed: impl Fn(usize) -> f64) -> BatchSizeSearch {
    let tried = sizes.iter().map(|size| TriedBatchSize {
        batch_size: *size,
        seconds: *size as f64 / speed(*size),
        peak_memory: (100 + 2 * *size as u64) * MIB,
    });
    BatchSizeSearch {
        tried: tried.collect(),
        ..BatchSizeSearch::default()
    }
}

fn of_mib(in_use: u64, free: u64) -> Room {
    Room {
        in_use: in_use * MIB,
        free: free * MIB,
    }
}

#[test]
fn the_line_through_two_sizes_gives_the_largest_one() {
    let search = search(&[4, 8, 16], |_| 1.0);
    assert_eq!(search.bytes_per_sample(), Some(2.0 * MIB as f64));
    // 132 MiB are used by 16 samples; 100 + 0.8 * 500 = 500 may be used.
    let room = of_mib(100, 500);
    assert_eq!(room.largest(&search), 200);
    assert!(room.holds(&search, 200) && !room.holds(&search, 201));
    assert!(!of_mib(100, 0).holds(&search, 17));
    assert_eq!(of_mib(100, 0).largest(&search), 16);
}

#[test]
fn growth_that_does_not_show_is_taken_for_the_worst() {
    // Differences of 2 and 4 MiB say nothing.
    let search = search(&[1, 2, 4], |_| 1.0);
    assert_eq!(search.bytes_per_sample(), None);
    // 108 MiB might be 216.
    assert!(of_mib(100, 150).holds(&search, 8));
    assert!(!of_mib(100, 140).holds(&search, 8));
    assert_eq!(of_mib(100, 1 << 20).largest(&search), 4);
}

#[test]
fn doubling_ends_when_two_in_a_row_gain_nothing() {
    let speed = |size: usize| size.min(16) as f64;
    for (sizes, ends) in [
        (&[][..], false),
        (&[4], false),
        (&[4, 8], false),
        (&[4, 8, 16], false),
        (&[4, 8, 16, 32], false),
        (&[4, 8, 16, 32, 64], true),
    ] {
        assert_eq!(search(sizes, speed).levels_off(), ends, "{sizes:?}");
    }
    assert_eq!(search(&[4, 8, 16, 32, 64], speed).suggestion(), Some(16));
    assert_eq!(BatchSizeSearch::default().suggestion(), None);
}
