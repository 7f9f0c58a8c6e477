//! Where a transport delivers what it receives.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex};

use everburn_record::plain;

use super::backlog::{Admission, Backlog, FlowControl};
use super::frame::{FrameKind, Header};
use super::interruption::{Failure, Parting};
use super::mailbox::{Mailbox, Part};
use super::payload::Payload;
use crate::sync::lock;

/// The longest reason that travels with an abort, in bytes.
const MAX_REASON_BYTES: usize = 4096;

/// The most ranks that an abort says were waited for.
const MAX_WAITED_FOR: usize = 1024;

/// The most groups that frames can make a place for. A peer may be ahead by a few groups that this
/// rank has not made yet, never by this many.
const MAX_GROUPS: usize = 1 << 16;

/// The receiving side of one rank, shared by all its transports: a mailbox for each process group
/// and the news of ranks that are gone.
///
/// A transport calls [`Inbox::deliver`] for each frame, from any thread but in the order of
/// sending, and [`Inbox::lost`] once when the connection to a peer ends.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::transport::Inbox;
///
/// let inbox = Inbox::new();
/// inbox.lost(3, "its connection closed");
/// assert_eq!(inbox.gone(3).as_deref(), Some("its connection closed"));
/// ```
pub struct Inbox {
    state: Mutex<State>,
    backlog: Arc<Backlog>,
}

#[derive(Default)]
struct State {
    mailboxes: HashMap<u64, Arc<Mailbox>>,
    /// Groups that this rank has destroyed; frames that are still under way to them are dropped.
    closed: HashSet<u64>,
    gone: HashMap<usize, Parting>,
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.state);
        f.debug_struct("Inbox")
            .field("groups", &state.mailboxes.len())
            .field("gone", &state.gone)
            .finish()
    }
}

impl Inbox {
    /// An inbox without groups, and without a limit for what waits in it.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Self::limited(u64::MAX, u64::MAX)
    }

    /// An inbox that buffers up to `max_unreceived_bytes` of peers with [`FlowControl`], whose messages are at
    /// most `max_message_bytes` long.
    pub(crate) fn limited(max_unreceived_bytes: u64, max_message_bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            backlog: Backlog::new(max_unreceived_bytes, max_message_bytes),
        })
    }

    /// Counts the unreceived bytes of `peer` from now on; `flow_control` pauses and resumes it.
    pub(crate) fn add_peer(&self, peer: usize, flow_control: FlowControl) {
        self.backlog.add_peer(peer, flow_control);
    }

    /// Reserves space for a frame of `peer` until it is delivered, or says when to try again if `peer` has just
    /// been paused.
    pub(crate) fn reserve(&self, peer: usize, bytes: u64) -> Result<Admission, String> {
        self.backlog.reserve(peer, bytes)
    }

    /// Takes in one frame of `from`.
    ///
    /// # Errors
    /// What is wrong with the frame; the transport then closes the connection to that peer.
    pub fn deliver(&self, from: usize, header: &Header, payload: Payload) -> Result<(), String> {
        if header.kind == FrameKind::Goodbye {
            self.part(from, true, "it ended its process groups in good order");
            return Ok(());
        }
        if matches!(header.kind, FrameKind::Pause | FrameKind::Resume) {
            return Ok(());
        }
        // A frame may come before this rank has made the group: a peer that returned from
        // `subgroup` a moment earlier is already using it.
        if self.is_full_without(header.group) {
            return Err(format!("frames for more than {MAX_GROUPS} groups"));
        }
        let Some(mailbox) = self.mailbox(header.group) else {
            return Ok(());
        };
        match header.kind {
            FrameKind::Collective {
                sequence,
                phase,
                signature,
            } => {
                mailbox.put_part((sequence, phase), from, Part { signature, payload })?;
            }
            FrameKind::Message { tag } => mailbox.put_message(from, tag, payload),
            FrameKind::Abort => {
                mailbox.fail(&decode_abort(&payload)?);
            }
            FrameKind::Leave => mailbox.mark_gone(
                from,
                &Parting {
                    in_order: true,
                    cause: "it had destroyed the group".to_owned(),
                },
            ),
            FrameKind::Goodbye | FrameKind::Pause | FrameKind::Resume => {}
        }
        Ok(())
    }

    /// Notes that `peer` will send nothing more to any group; the first cause stays.
    pub fn lost(&self, peer: usize, cause: &str) {
        self.part(peer, false, cause);
    }

    fn part(&self, peer: usize, in_order: bool, cause: &str) {
        let mut state = lock(&self.state);
        if state.gone.contains_key(&peer) {
            return;
        }
        let parting = Parting {
            in_order,
            cause: cause.to_owned(),
        };
        state.gone.insert(peer, parting.clone());
        let mailboxes: Vec<_> = state.mailboxes.values().cloned().collect();
        drop(state);
        for mailbox in mailboxes {
            mailbox.mark_gone(peer, &parting);
        }
    }

    /// Whether `peer` is gone, and why.
    #[must_use]
    pub fn gone(&self, peer: usize) -> Option<String> {
        let state = lock(&self.state);
        state.gone.get(&peer).map(|parting| parting.cause.clone())
    }

    /// Whether a frame for `group` would need one place more than there may be.
    fn is_full_without(&self, group: u64) -> bool {
        let state = lock(&self.state);
        state.mailboxes.len() >= MAX_GROUPS && !state.mailboxes.contains_key(&group)
    }

    /// The mailbox of `group`, made if there is none; `None` once this rank has closed the group.
    pub(crate) fn mailbox(&self, group: u64) -> Option<Arc<Mailbox>> {
        let mut state = lock(&self.state);
        if state.closed.contains(&group) {
            return None;
        }
        if let Some(mailbox) = state.mailboxes.get(&group) {
            return Some(mailbox.clone());
        }
        let mailbox = Arc::new(Mailbox::new(&self.backlog));
        for (peer, parting) in &state.gone {
            mailbox.mark_gone(*peer, parting);
        }
        state.mailboxes.insert(group, mailbox.clone());
        Some(mailbox)
    }

    /// Drops the mailbox of `group` and all later frames for it.
    pub(crate) fn close(&self, group: u64) {
        let mut state = lock(&self.state);
        state.mailboxes.remove(&group);
        state.closed.insert(group);
    }
}

/// The payload of an abort: who noticed (4 bytes), which rank was lost (4 bytes, all ones for
/// none), which machine is silent as a whole (4 bytes, all ones for none), whether a rank hangs (1 byte), how many ranks were waited for (4 bytes) and which (4 bytes each), the reason in
/// UTF-8. The sender may forward another rank's abort.
pub(crate) fn encode_abort(failure: &Failure) -> Payload {
    let number = |number: Option<usize>| number.map_or(u32::MAX, |number| number as u32);
    let end = failure.reason.floor_char_boundary(MAX_REASON_BYTES);
    let mut bytes = (failure.by as u32).to_le_bytes().to_vec();
    bytes.extend(number(failure.lost).to_le_bytes());
    bytes.extend(number(failure.silent_machine).to_le_bytes());
    bytes.push(u8::from(failure.hang));
    let waiting_for = &failure.waiting_for[..failure.waiting_for.len().min(MAX_WAITED_FOR)];
    bytes.extend((waiting_for.len() as u32).to_le_bytes());
    bytes.extend(
        waiting_for
            .iter()
            .flat_map(|rank| (*rank as u32).to_le_bytes()),
    );
    bytes.extend(&failure.reason.as_bytes()[..end]);
    Payload::from_vec(bytes)
}

/// The opposite of [`encode_abort`].
fn decode_abort(payload: &Payload) -> Result<Failure, String> {
    let bytes = payload
        .as_slice::<u8>()
        .ok_or("an abort that is not made of bytes")?;
    let cut = bytes.split_first_chunk().and_then(|(by, rest)| {
        let (lost, rest) = rest.split_first_chunk()?;
        let (machine, rest) = rest.split_first_chunk()?;
        let (hang, rest) = rest.split_first()?;
        let (count, rest) = rest.split_first_chunk()?;
        let ranks = 4 * (u32::from_le_bytes(*count) as usize).min(MAX_WAITED_FOR);
        let (ranks, reason) = rest.split_at_checked(ranks)?;
        Some(([by, lost, machine], *hang != 0, ranks, reason))
    });
    let (numbers, hang, ranks, reason) = cut.ok_or("an abort without a reason")?;
    let (ranks, _) = ranks.as_chunks();
    let waiting_for = ranks.iter().map(|rank| u32::from_le_bytes(*rank) as usize);
    let [by, lost, machine] = numbers.map(|bytes| u32::from_le_bytes(*bytes));
    let number = |number: u32| (number != u32::MAX).then_some(number as usize);
    let reason = &reason[..reason.len().min(MAX_REASON_BYTES)];
    let reason = plain::line(&String::from_utf8_lossy(reason), MAX_REASON_BYTES);
    Ok(Failure {
        by: by as usize,
        lost: number(lost),
        silent_machine: number(machine),
        reason,
        hang,
        waiting_for: waiting_for.collect(),
        ..Failure::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abort_survives_the_wire() {
        let reason = "é".repeat(MAX_REASON_BYTES);
        let sent = Failure {
            by: 3,
            lost: Some(1),
            silent_machine: Some(0),
            reason,
            hang: true,
            waiting_for: vec![1, 2],
            ..Failure::default()
        };
        let received = decode_abort(&encode_abort(&sent)).unwrap();
        assert_eq!((received.by, received.lost), (3, Some(1)));
        assert_eq!(received.silent_machine, Some(0));
        assert!(received.hang);
        assert_eq!(received.waiting_for, [1, 2]);
        assert!(sent.reason.starts_with(&received.reason) && !received.reason.is_empty());
        let reason = "\u{1b}[2J".to_owned();
        let shown = decode_abort(&encode_abort(&Failure { reason, ..sent })).unwrap();
        assert_eq!(shown.reason, "\u{fffd}[2J");
        let neither = Failure {
            lost: None,
            silent_machine: None,
            ..shown
        };
        let neither = decode_abort(&encode_abort(&neither)).unwrap();
        assert_eq!((neither.lost, neither.silent_machine), (None, None));
        assert!(decode_abort(&Payload::from_vec(vec![1u8])).is_err());
        assert!(decode_abort(&Payload::from_vec(vec![1f32])).is_err());
    }

    #[test]
    fn frames_cannot_make_groups_without_end() {
        let inbox = Inbox::new();
        let deliver = |group| {
            let kind = FrameKind::Message { tag: 0 };
            let header = Header {
                group,
                step: 0,
                kind,
            };
            inbox.deliver(0, &header, Payload::empty())
        };
        for group in 0..MAX_GROUPS as u64 {
            deliver(group).unwrap();
        }
        let refused = deliver(u64::MAX).unwrap_err();
        assert!(refused.contains("more than 65536 groups"), "{refused}");
        deliver(3).unwrap();
    }

    #[test]
    fn a_closed_group_takes_no_frames() {
        let inbox = Inbox::new();
        assert!(inbox.mailbox(1).is_some());
        inbox.close(1);
        assert!(inbox.mailbox(1).is_none());
        let header = Header {
            group: 1,
            step: 0,
            kind: FrameKind::Message { tag: 0 },
        };
        inbox.deliver(0, &header, Payload::empty()).unwrap();
    }
}
