//! `events.jsonl`: what happened to a run.

use serde::{Deserialize, Serialize};

/// What kind of thing happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// A training has begun.
    Start,
    /// It continued from a checkpoint.
    Resume,
    /// A checkpoint was written.
    Checkpoint,
    /// A checkpoint could not be written. Earlier files call it `unsaved`.
    #[serde(alias = "unsaved")]
    CheckpointFailed,
    /// The others lost a rank.
    Loss,
    /// A rank was started again.
    Restart,
    /// Ranks formed a new group and continued.
    Regroup,
    /// A rank missed its heartbeat timeout or a deadline; or it kept the others waiting for long, and continues
    /// ([`Event::lasted_ms`]).
    Stall,
    /// A rank's parameters were not those of the others.
    Divergence,
    /// A fault on purpose.
    Fault,
    /// A step was not made, because gradients were too large for half precision.
    Skip,
    /// A rank ended with an error.
    Failure,
    /// The training stopped before its end.
    Stop,
    /// Anything else that people should know.
    #[serde(other)]
    Warning,
}

impl EventKind {
    /// All kinds, in the order in which tables name them.
    pub const ALL: [Self; 14] = [
        Self::Start,
        Self::Resume,
        Self::Checkpoint,
        Self::CheckpointFailed,
        Self::Loss,
        Self::Restart,
        Self::Regroup,
        Self::Stall,
        Self::Divergence,
        Self::Fault,
        Self::Skip,
        Self::Failure,
        Self::Stop,
        Self::Warning,
    ];

    /// The word for it.
    pub fn name(self) -> &'static str {
        self.name_and_sign().0
    }

    /// The word that people see, beside the loss of the model.
    ///
    /// ```
    /// use everburn_record::EventKind;
    ///
    /// assert_eq!(EventKind::Loss.label(), "lost rank");
    /// assert_eq!(EventKind::Stall.label(), EventKind::Stall.name());
    /// ```
    pub fn label(self) -> &'static str {
        match self {
            Self::Loss => "lost rank",
            _ => self.name(),
        }
    }

    /// A sign for it, where there is no room for a word: of the plain characters that every font has.
    pub fn sign(self) -> char {
        self.name_and_sign().1
    }

    fn name_and_sign(self) -> (&'static str, char) {
        match self {
            Self::Start => ("start", '▸'),
            Self::Resume => ("resume", '↻'),
            Self::Checkpoint => ("checkpoint", '◆'),
            Self::CheckpointFailed => ("checkpoint-failed", '◇'),
            Self::Loss => ("loss", '×'),
            Self::Restart => ("restart", '▲'),
            Self::Regroup => ("regroup", '●'),
            Self::Stall => ("stall", '■'),
            Self::Divergence => ("divergence", '≠'),
            Self::Fault => ("fault", '⚡'),
            Self::Skip => ("skip", '~'),
            Self::Failure => ("failure", '✖'),
            Self::Stop => ("stop", '▪'),
            Self::Warning => ("warning", '!'),
        }
    }
}

/// A line of `events.jsonl`.
///
/// ```
/// use everburn_record::{Event, EventKind};
///
/// let event = Event { step: Some(120), rank: Some(1), ..Event::new(EventKind::Stall, "rank 1 stalled") };
/// let text = serde_json::to_string(&event).unwrap();
/// assert_eq!(text, r#"{"kind":"stall","step":120,"rank":1,"text":"rank 1 stalled"}"#);
/// assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// What kind of thing it was.
    pub kind: EventKind,
    /// When, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix_time_ms: Option<u64>,
    /// After how many steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// Which rank it befell: its number at the start of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<usize>,
    /// The ranks that make steps from now on; of [`EventKind::Regroup`]. Where others are waited for, those that have joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<Vec<usize>>,
    /// Of a warning that ranks, or the store, are waited for: until when, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_until_ms: Option<u64>,
    /// Of a stall that has ended by itself: how long it took, in milliseconds. Where the stall has an event already, this one is
    /// a warning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lasted_ms: Option<u64>,
    /// What happened, in words.
    #[serde(default)]
    pub text: String,
}

impl Event {
    /// The file's name in the folder of a run.
    pub const FILE: &str = "events.jsonl";

    /// An event of which neither time nor place are known.
    pub fn new(kind: EventKind, text: impl Into<String>) -> Self {
        Self {
            kind,
            unix_time_ms: None,
            step: None,
            rank: None,
            ranks: None,
            waits_until_ms: None,
            lasted_ms: None,
            text: text.into(),
        }
    }

    /// Of a warning that ranks are waited for: which addresses the store has refused, and why. They may be these ranks.
    ///
    /// ```
    /// use everburn_record::{Event, EventKind};
    ///
    /// let text = "waiting for rank 1, 50 s more; 1 of 2 ranks have joined after 10 s; the store has refused 10.0.0.2 (1 time): why";
    /// let event = Event::new(EventKind::Warning, text);
    /// assert_eq!(event.refused(), Some("10.0.0.2 (1 time): why"));
    /// ```
    #[must_use]
    pub fn refused(&self) -> Option<&str> {
        let (_, refused) = self.text.split_once("; the store has refused ")?;
        Some(refused)
    }
}
