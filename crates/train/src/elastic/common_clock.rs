//! How far this rank's clock is from rank 0's.

use everburn_collectives::group::{CollectiveError, ProcessGroup};
use everburn_profile::{Recorder, clock_offset, machine, now};

/// How often a clock on another machine is asked: the shortest exchange of some counts.
const EXCHANGES: usize = 16;

/// The tag of the messages: `clock`.
const TAG: u64 = u64::from_be_bytes(*b"\0\0\0clock");

/// Tells `recorder` how far this rank's clock is from rank 0's. Every rank of `group` calls it.
///
/// Ranks of one machine have one clock. The others ask rank 0 for the time, one after the other.
pub(crate) fn compare_clocks(
    group: &ProcessGroup,
    recorder: &Recorder,
) -> Result<(), CollectiveError> {
    compare(group, recorder, machine().unwrap_or_default())
}

/// The same on `machine`.
fn compare(
    group: &ProcessGroup,
    recorder: &Recorder,
    machine: String,
) -> Result<(), CollectiveError> {
    let own = machine.into_bytes();
    let machines = group.all_gather_varied(own).wait()?;
    // A system that does not say which machine it is may be anywhere.
    let is_elsewhere = |rank: usize| machines[rank].is_empty() || machines[rank] != machines[0];
    for rank in (1..group.world_size()).filter(|rank| is_elsewhere(*rank)) {
        if group.rank() == 0 {
            for _ in 0..EXCHANGES {
                group.recv::<i64>(rank, TAG).wait()?;
                group.send(vec![now() as i64], rank, TAG).wait()?;
            }
        } else if group.rank() == rank {
            let mut exchanges = Vec::with_capacity(EXCHANGES);
            for _ in 0..EXCHANGES {
                let asked = now();
                group.send(vec![0_i64], 0, TAG).wait()?;
                let told = group.recv::<i64>(0, TAG).wait()?;
                let told = told.first().copied().unwrap_or_default();
                exchanges.push((asked, told as u64, now()));
            }
            if let Some((offset, error)) = clock_offset(&exchanges) {
                recorder.set_clock(offset, error);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use everburn_collectives::group::GroupOptions;
    use everburn_profile::Facts;

    use super::*;

    /// What ranks on these machines find: the distance and how wrong it may be.
    fn found_on(machines: [&'static str; 3]) -> Vec<(i64, u64)> {
        let ranks = ProcessGroup::over_threads(3, GroupOptions::default());
        let threads = ranks.into_iter().zip(machines).map(|(group, machine)| {
            std::thread::spawn(move || {
                let recorder = Recorder::new(Facts::default());
                compare(&group, &recorder, machine.to_string()).unwrap();
                let recording = recorder.finish();
                (recording.clock_offset, recording.clock_error)
            })
        });
        let threads: Vec<_> = threads.collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    }

    #[test]
    fn ranks_of_one_machine_have_one_clock() {
        assert_eq!(found_on(["a", "a", "a"]), [(0, 0); 3]);
    }

    #[test]
    fn a_clock_elsewhere_is_found_as_well_as_is_said() {
        // The machines are said to be others; their clock is this one's, so that the distance is 0.
        let found = found_on(["a", "a", "b"]);
        assert_eq!(found[..2], [(0, 0); 2]);
        let (offset, error) = found[2];
        assert!(
            error > 0 && offset.unsigned_abs() <= error,
            "{offset} {error}"
        );
        assert!(
            found_on(["", "", "b"])[1].1 > 0,
            "nobody knows that it is the same machine"
        );
    }
}
