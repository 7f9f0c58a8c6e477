//! Ranks that save while they are to stop: to prepare and write a stop's own checkpoint may take longer than the ranks have.

use std::time::{Duration, Instant};

use everburn_record::{Saving, proc};

/// How much a rank has written that writes a checkpoint: more than what heartbeats and logs come to, and less than a slow
/// disk takes in [`LOOK`].
const BYTES: u64 = 1 << 20;

/// How long after a look the next one is.
const LOOK: Duration = Duration::from_secs(10);

/// For how long ranks may save after the time in which they had to stop.
const LONGEST: Duration = Duration::from_secs(600);

/// What the ranks of a machine have written since they were asked to stop.
#[derive(Debug, Default)]
pub(super) struct Writing {
    /// By process, how much it had written at the last look.
    before: Vec<(u32, u64)>,
    /// When the ranks had to have stopped.
    due: Option<Instant>,
}

impl Writing {
    /// The ranks with these processes are asked to stop.
    pub(super) fn begin(&mut self, processes: &[u32]) {
        self.before = written(processes);
    }

    /// At the end of the time that ranks have to stop: for how much longer they may run, if one says that it saves, has
    /// written since the last look, or waits for the disk.
    pub(super) fn extend(&mut self, now: Instant, processes: &[u32]) -> Option<Duration> {
        let due = *self.due.get_or_insert(now);
        let left = (due + LONGEST).saturating_duration_since(now);
        let before = std::mem::replace(&mut self.before, written(processes));
        let has_written = self.before.iter().any(|(process, bytes)| {
            let earlier = before.iter().find(|(other, _)| other == process);
            earlier.is_some_and(|(_, earlier)| bytes.saturating_sub(*earlier) >= BYTES)
        });
        let saves =
            |process: &u32| Saving::is_under_way_in(*process) || proc::waits_for_disk(*process);
        (!left.is_zero() && (has_written || processes.iter().any(saves))).then(|| left.min(LOOK))
    }

    /// For how long ranks were let save at most, where they were let.
    pub(super) fn limit(&self, now: Instant) -> Option<Duration> {
        self.due
            .filter(|due| *due + LONGEST <= now)
            .map(|_| LONGEST)
    }
}

fn written(processes: &[u32]) -> Vec<(u32, u64)> {
    let written = processes.iter().filter_map(|process| {
        let bytes = proc::written_bytes_of(*process)?;
        Some((*process, bytes))
    });
    written.collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// One that gathers the state of an optimizer computes and exchanges, and writes nothing.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_that_says_that_it_saves_has_longer_and_not_for_ever() {
        let mut other = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let (own, start) = ([std::process::id()], Instant::now());
        let mut writing = Writing::default();
        writing.begin(&own);
        let saving = Saving::begin();
        assert_eq!(writing.extend(start, &own), Some(LOOK));
        let end = start + LONGEST;
        assert_eq!(writing.extend(end - LOOK / 2, &own), Some(LOOK / 2));
        assert_eq!(writing.extend(end, &own), None);
        assert_eq!(writing.limit(end), Some(LONGEST));
        // Another process has no such mark.
        let mut of_other = Writing::default();
        of_other.begin(&[other.id()]);
        assert_eq!(of_other.extend(start, &[other.id()]), None);
        drop(saving);
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn a_process_that_writes_has_longer_and_not_for_ever() {
        let own = [std::process::id()];
        let start = Instant::now();
        let write = || {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&vec![0; 2 * BYTES as usize]).unwrap();
        };
        let mut writing = Writing::default();
        writing.begin(&own);
        write();
        assert_eq!(writing.extend(start, &own), Some(LOOK));
        write();
        let late = start + LONGEST - LOOK / 2;
        assert_eq!(writing.extend(late, &own), Some(LOOK / 2));
        assert_eq!(writing.limit(late), None);
        write();
        let end = start + LONGEST;
        assert_eq!(writing.extend(end, &own), None);
        assert_eq!(writing.limit(end), Some(LONGEST));
        // A process that has not been seen before has written nothing since.
        let mut other = Writing::default();
        other.begin(&[]);
        assert!(other.before.is_empty());
    }
}
