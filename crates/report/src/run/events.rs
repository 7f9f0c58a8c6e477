//! What happened to a run, in order.

use std::collections::BTreeMap;
use std::path::Path;

use everburn_record::{Event, EventKind, Live, file, plain, units};

use super::logs::MOST_EVENTS;
use super::{Note, checkpoints, json_lines, logs};

/// A line is a sentence.
const LONGEST_LINE: usize = 1 << 16;

/// How many events there were of each kind.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Counts {
    of_kinds: BTreeMap<EventKind, u64>,
    /// The run has stopped, and was not resumed yet.
    stopped: bool,
}

impl Counts {
    /// A stop is noted by the launcher and by rank 0, and again with the name of its signal: those count once.
    fn add(&mut self, kind: EventKind) {
        match kind {
            EventKind::Stop if std::mem::replace(&mut self.stopped, true) => return,
            EventKind::Start | EventKind::Resume => self.stopped = false,
            _ => {}
        }
        self.raise(kind, self.of(kind) + 1);
    }

    fn of(&self, kind: EventKind) -> u64 {
        self.of_kinds.get(&kind).copied().unwrap_or(0)
    }

    /// At least `count` of this kind were noted.
    fn raise(&mut self, kind: EventKind, count: u64) {
        let known = self.of_kinds.entry(kind).or_default();
        *known = count.max(*known);
    }
}

/// What happened to a run.
///
/// ```
/// use everburn_record::{Event, EventKind};
/// use everburn_report::Events;
///
/// let lost = Event { step: Some(7), ..Event::new(EventKind::Loss, "rank 1 is gone") };
/// let events = Events::new(vec![lost]);
/// assert_eq!(events.count(EventKind::Loss), 1);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Events {
    list: Vec<Event>,
    counts: Counts,
    /// Of the checkpoints that are still there.
    newest_checkpoint: Option<Event>,
}

impl Events {
    /// These events, sorted by step and then by time. One without a step comes after what had happened by its time.
    #[must_use]
    pub fn new(mut list: Vec<Event>) -> Self {
        let mut counts = Counts::default();
        for event in &list {
            counts.add(event.kind);
        }
        let timed = list.iter();
        let timed = timed.filter_map(|event| Some((event.unix_time_ms?, event.step?)));
        let mut timed: Vec<(u64, u64)> = timed.collect();
        timed.sort_unstable();
        let mut newest = 0;
        for (_, step) in &mut timed {
            newest = newest.max(*step);
            *step = newest;
        }
        let place = |event: &Event| match (event.step, event.unix_time_ms) {
            (Some(step), _) => step,
            (None, Some(time)) if !timed.is_empty() => {
                let before = timed.partition_point(|(other, _)| *other <= time);
                before.checked_sub(1).map_or(0, |last| timed[last].1)
            }
            (None, _) => u64::MAX,
        };
        list.sort_by_cached_key(|event| (place(event), event.unix_time_ms.unwrap_or(u64::MAX)));
        Self {
            list,
            counts,
            newest_checkpoint: None,
        }
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Event> {
        self.list.iter()
    }

    /// How many there were of a kind, those included of which there were too many to keep.
    #[must_use]
    pub fn count(&self, kind: EventKind) -> u64 {
        self.counts.of(kind)
    }

    /// Which ranks made steps from which step on, as far as groups were formed anew: (step, ranks).
    pub(crate) fn memberships(&self) -> impl Iterator<Item = (u64, &[usize])> {
        let formed = self
            .list
            .iter()
            .filter(|event| event.kind == EventKind::Regroup);
        formed.filter_map(|event| Some((event.step?, event.ranks.as_deref()?)))
    }

    /// What is to be said of checkpoints that could not be written, if there are any: how many they are, why the first was
    /// not, and which checkpoint there is.
    ///
    /// ```
    /// use everburn_record::{Event, EventKind};
    /// use everburn_report::Events;
    ///
    /// let full = Event { step: Some(20), ..Event::new(EventKind::CheckpointFailed, "no space left") };
    /// let told = "1 checkpoint could not be written; the first, after step 20: no space left; no good one is there";
    /// assert_eq!(Events::new(vec![full]).failed_checkpoints().as_deref(), Some(told));
    /// ```
    #[must_use]
    pub fn failed_checkpoints(&self) -> Option<String> {
        let first = |event: &&Event| event.kind == EventKind::CheckpointFailed;
        let first = self.list.iter().find(first)?;
        let after = |event: &Event| match event.step {
            Some(step) => format!(", after step {}", units::count(step)),
            None => String::new(),
        };
        let count = self.count(EventKind::CheckpointFailed);
        let newest = match &self.newest_checkpoint {
            Some(newest) => format!("the newest good one now: {}{}", newest.text, after(newest)),
            None => "no good one is there".to_owned(),
        };
        // On a full disk, this file cannot grow either.
        let at_least = match first.text.contains("No space left") {
            true => "at least ",
            false => "",
        };
        Some(format!(
            "{at_least}{} could not be written; the first{}: {}; {newest}",
            units::counted(count as usize, "checkpoint"),
            after(first),
            first.text
        ))
    }

    /// Whether a checkpoint was written after the last one that could not be.
    ///
    /// ```
    /// use everburn_record::{Event, EventKind};
    /// use everburn_report::Events;
    ///
    /// let at = |step, kind| Event { step: Some(step), ..Event::new(kind, "epoch") };
    /// let failed = at(20, EventKind::CheckpointFailed);
    /// assert!(!Events::new(vec![at(10, EventKind::Checkpoint), failed.clone()]).writes_checkpoints_again());
    /// assert!(Events::new(vec![failed, at(30, EventKind::Checkpoint)]).writes_checkpoints_again());
    /// ```
    #[must_use]
    pub fn writes_checkpoints_again(&self) -> bool {
        let newest = |kind: EventKind| {
            let events = self.list.iter().filter(|event| event.kind == kind);
            events.filter_map(|event| event.step).max()
        };
        let written = newest(EventKind::Checkpoint);
        written.is_some()
            && newest(EventKind::CheckpointFailed).is_some_and(|at| written >= Some(at))
    }

    /// What is to be said of ranks that are waited for at this time, if that is what happened last: for whom, and how long
    /// from now.
    ///
    /// ```
    /// use everburn_record::{Event, EventKind};
    /// use everburn_report::Events;
    ///
    /// let text = "waiting for rank 1 of machine 1, 290 s more; 1 of 2 ranks have joined after 10 s";
    /// let wait = Event {
    ///     unix_time_ms: Some(10_000),
    ///     waits_until_ms: Some(300_000),
    ///     ..Event::new(EventKind::Warning, text)
    /// };
    /// let events = Events::new(vec![wait]);
    /// let awaited = |now_ms| events.awaited(now_ms).unwrap();
    /// assert_eq!(awaited(50_000), "waiting for rank 1 of machine 1, 250 s more");
    /// assert_eq!(awaited(305_000), "waiting for rank 1 of machine 1, the time was over 5 s ago");
    /// // The missing rank may be there, with another secret.
    /// let text = format!("{text}; the store has refused 10.0.0.2 (1 time): why");
    /// let wait = Event { waits_until_ms: Some(300_000), ..Event::new(EventKind::Warning, text) };
    /// let expected = "waiting for rank 1 of machine 1, 250 s more; the store has refused 10.0.0.2 (1 time): why";
    /// assert_eq!(Events::new(vec![wait]).awaited(50_000).unwrap(), expected);
    /// ```
    #[must_use]
    pub fn awaited(&self, now_ms: u64) -> Option<String> {
        let last = self.list.iter().max_by_key(|event| event.unix_time_ms)?;
        let left = units::left(last.waits_until_ms?, now_ms);
        // What the text says of time, and of who had joined, was so when it was written.
        let then = last.text.split(';').next().unwrap_or_default();
        let whom = then.strip_suffix(" s more");
        let whom = whom.and_then(|then| Some(then.rsplit_once(", ")?.0));
        let refused = last.refused().map_or(String::new(), |refused| {
            format!("; the store has refused {refused}")
        });
        Some(format!("{}, {left}{refused}", whom.unwrap_or(then)))
    }

    /// Why a rank makes no steps, where it was lost: what its launcher said last of it, else what the others did.
    ///
    /// ```
    /// use everburn_record::{Event, EventKind};
    /// use everburn_report::Events;
    ///
    /// let of_launcher = Event { rank: Some(1), ..Event::new(EventKind::Loss, "rank 1 has no restarts left") };
    /// let of_others = Event { step: Some(7), ..Event { text: "rank 0 lost rank 1".into(), ..of_launcher.clone() } };
    /// let events = Events::new(vec![of_others, of_launcher]);
    /// assert_eq!(events.why_out(1).unwrap().text, "rank 1 has no restarts left");
    /// assert_eq!(events.why_out(0), None);
    /// ```
    #[must_use]
    pub fn why_out(&self, rank: usize) -> Option<&Event> {
        let is_lost = |event: &&Event| matches!(event.kind, EventKind::Loss | EventKind::Restart);
        let losses = self.list.iter().filter(is_lost);
        let losses = losses.filter(|event| event.rank == Some(rank));
        losses.max_by_key(|event| (event.step.is_none(), event.unix_time_ms))
    }

    /// Reads `events.jsonl` of a run directory, or where there is none its logs; then its checkpoints. What could not be
    /// read is noted.
    pub fn read(folder: &Path, notes: &mut Vec<Note>) -> Self {
        let (mut list, counts) = match record(folder, notes) {
            Some((list, counts)) => (list, Some(counts)),
            None => (logs::read(folder, notes), None),
        };
        let checkpoints = checkpoints::read(folder, notes);
        let newest_checkpoint = checkpoints.iter().max_by_key(|event| event.step).cloned();
        for checkpoint in checkpoints {
            let is_same =
                |other: &Event| (other.kind, other.step) == (checkpoint.kind, checkpoint.step);
            if !list.iter().any(is_same) {
                list.push(checkpoint);
            }
        }
        list.extend(cut_off(folder));
        let mut events = Self {
            newest_checkpoint,
            ..Self::new(list)
        };
        // Of what was recorded there may be more than is kept.
        for (kind, count) in counts.unwrap_or_default().of_kinds {
            events.counts.raise(kind, count);
        }
        events
    }
}

/// That the run was cut off, where `live.json` and the processes of this machine say so.
fn cut_off(folder: &Path) -> Option<Event> {
    let (live, text) = Live::cut_off_in(folder)?;
    Some(Event {
        unix_time_ms: Some(live.unix_time_ms),
        step: Some(live.step),
        ..Event::new(EventKind::Failure, text)
    })
}

/// The lines of `events.jsonl`, if there is one: the first half of what is kept from its beginning, the rest from its end.
fn record(folder: &Path, notes: &mut Vec<Note>) -> Option<(Vec<Event>, Counts)> {
    const NAME: &str = Event::FILE;
    let file = super::found(file::open(&folder.join(NAME)), NAME, notes)?;
    let (mut first, mut last) = (Vec::new(), std::collections::VecDeque::new());
    let (mut counts, mut left_out) = (Counts::default(), 0_u64);
    json_lines::each(file, NAME, LONGEST_LINE, notes, |mut event: Event| {
        event.text = plain::line(&event.text, 600);
        counts.add(event.kind);
        if first.len() < MOST_EVENTS / 2 {
            first.push(event);
            return;
        }
        last.push_back(event);
        if last.len() > MOST_EVENTS / 2 {
            last.pop_front();
            left_out += 1;
        }
    });
    if left_out > 0 {
        let what =
            format!("{left_out} events of the middle of the run are counted, and not listed");
        notes.push(Note::new(NAME, what));
    }
    first.extend(last);
    Some((first, counts))
}
