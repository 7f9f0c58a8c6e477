//! Ranks that work while they are to stop: their last step may take longer than the ranks have, and so may a stop's own
//! checkpoint.

use std::time::{Duration, Instant};

use everburn_record::{Saving, proc};

/// How much a rank has written that writes a checkpoint: more than what heartbeats and logs come to, and less than a slow
/// disk takes in [`LOOK`].
const BYTES: u64 = 1 << 20;

/// What part of the time since the last look a rank that computes has run or waited for a core, at least: more than what
/// heartbeats take.
const COMPUTES: u32 = 4;

/// How long after a look the next one is.
const LOOK: Duration = Duration::from_secs(10);

/// For how long ranks may save after the time in which they had to stop.
const LONGEST: Duration = Duration::from_secs(600);

/// What the ranks of a machine have done since they were asked to stop.
#[derive(Debug)]
pub(super) struct Writing {
    /// For how long ranks may compute after the time in which they had to stop.
    step_limit: Option<Duration>,
    /// At the last look, when that was, how much each process had written, and how long it had been busy.
    before: (Instant, Vec<(u32, u64, Duration)>),
    /// When the ranks had to have stopped.
    due: Option<Instant>,
}

/// For how much longer ranks may run that had to have stopped.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Longer {
    /// One says that it saves, has written since the last look, or waits for the disk.
    Saves(Duration),
    /// One computes, and may do so until the second time is over, as it looks.
    Computes(Duration, Duration),
}

impl Writing {
    pub(super) fn new(step_limit: Option<Duration>) -> Self {
        let before = (Instant::now(), Vec::new());
        Self {
            step_limit,
            before,
            due: None,
        }
    }

    /// The ranks with these processes are asked to stop.
    pub(super) fn begin(&mut self, now: Instant, processes: &[u32]) {
        self.before = (now, done(processes));
    }

    /// At the end of the time that ranks have to stop, and of what they were given since: how much longer they may run.
    pub(super) fn extend(&mut self, now: Instant, processes: &[u32]) -> Option<Longer> {
        let due = *self.due.get_or_insert(now);
        let (looked, before) = std::mem::replace(&mut self.before, (now, done(processes)));
        let since = now.saturating_duration_since(looked);
        let (mut saves, mut computes) = (false, false);
        for (process, bytes, busy) in &self.before.1 {
            saves |= Saving::is_under_way_in(*process) || proc::waits_for_disk(*process);
            if let Some((_, bytes_before, busy_before)) = before.iter().find(|it| it.0 == *process)
            {
                saves |= bytes.saturating_sub(*bytes_before) >= BYTES;
                computes |= COMPUTES * busy.saturating_sub(*busy_before) >= since;
            }
        }
        let left = |limit: Duration| {
            let left = (due + limit).saturating_duration_since(now);
            (!left.is_zero()).then_some(left)
        };
        if saves {
            return left(LONGEST).map(|left| Longer::Saves(left.min(LOOK)));
        }
        let left = self.step_limit.filter(|_| computes).and_then(left)?;
        Some(Longer::Computes(left.min(LOOK), left))
    }

    /// For how long ranks have run after the time in which they had to stop, and whether that is as long as they may save.
    pub(super) fn late(&self, now: Instant) -> (Duration, bool) {
        let due = self.due.unwrap_or(now);
        let late = now.saturating_duration_since(due);
        (late, late >= LONGEST)
    }
}

fn done(processes: &[u32]) -> Vec<(u32, u64, Duration)> {
    let done = processes.iter().map(|process| {
        let bytes = proc::written_bytes_of(*process).unwrap_or_default();
        let busy = proc::busy_time_of(*process).unwrap_or_default();
        (*process, bytes, busy)
    });
    done.collect()
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
        let mut writing = Writing::new(None);
        writing.begin(start, &own);
        let saving = Saving::begin();
        assert_eq!(writing.extend(start, &own), Some(Longer::Saves(LOOK)));
        let end = start + LONGEST;
        assert_eq!(
            writing.extend(end - LOOK / 2, &own),
            Some(Longer::Saves(LOOK / 2))
        );
        assert_eq!(writing.extend(end, &own), None);
        assert_eq!(writing.late(end), (LONGEST, true));
        // Another process has no such mark.
        let mut of_other = Writing::new(None);
        of_other.begin(start, &[other.id()]);
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
        let mut writing = Writing::new(None);
        writing.begin(start, &own);
        write();
        assert_eq!(writing.extend(start, &own), Some(Longer::Saves(LOOK)));
        write();
        let late = start + LONGEST - LOOK / 2;
        assert_eq!(writing.extend(late, &own), Some(Longer::Saves(LOOK / 2)));
        assert_eq!(writing.late(late), (LONGEST - LOOK / 2, false));
        write();
        let end = start + LONGEST;
        assert_eq!(writing.extend(end, &own), None);
        assert_eq!(writing.late(end), (LONGEST, true));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_that_computes_has_as_long_as_a_step_may_take() {
        let mut other = std::process::Command::new("sh")
            .args([
                "-c",
                "i=0; while [ $i -lt 99999999 ]; do i=$((i + 1)); done",
            ])
            .spawn()
            .unwrap();
        let other_id = [other.id()];
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let compute = || {
            let busy = || proc::busy_time_of(other_id[0]).unwrap();
            let before = busy();
            while busy() < before + second / 3 {
                assert!(start.elapsed() < Duration::from_secs(60));
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        let mut writing = Writing::new(Some(300 * second));
        writing.begin(start, &other_id);
        compute();
        let due = start + second;
        let longer = Longer::Computes(LOOK, 300 * second);
        assert_eq!(writing.extend(due, &other_id), Some(longer));
        // In such a time it has computed too little.
        compute();
        let late = 299 * second;
        assert_eq!(writing.extend(due + late, &other_id), None);
        assert_eq!(writing.late(due + late), (late, false));
        compute();
        let longer = Longer::Computes(second / 2, second / 2);
        assert_eq!(
            writing.extend(due + late + second / 2, &other_id),
            Some(longer)
        );
        compute();
        assert_eq!(writing.extend(due + 300 * second, &other_id), None);
        let mut without_limit = Writing::new(None);
        without_limit.begin(start, &other_id);
        compute();
        assert_eq!(without_limit.extend(due, &other_id), None);
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
