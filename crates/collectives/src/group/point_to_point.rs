//! Messages between two ranks.

use super::ProcessGroup;
use super::element::Element;
use super::error::CollectiveError;
use super::flight::FlightState;
use super::signature::Call;
use super::work::{Partner, Work};
use crate::transport::{Frame, FrameKind, Header, Payload};

/// Messages between two ranks. They pass the collectives by: neither waits for the other.
impl ProcessGroup {
    /// Sends `values` to rank `to` under `tag`; done when the network has taken them.
    ///
    /// Messages between two ranks under one tag arrive in the order of sending. A rank may send
    /// to itself. The receiver's memory holds what it has not asked for yet.
    pub fn send<T: Element>(&self, values: Vec<T>, to: usize, tag: u64) -> Work<()> {
        let call = Call::Send {
            dtype: T::DTYPE,
            length: values.len(),
            to,
            tag,
        };
        if let Err(reason) = self.check_call(call) {
            return self.refuse(call, reason);
        }
        let core = self.core();
        let mut context = core.context(call);
        core.record(&mut context, FlightState::Running);
        let peer = core.members[to];
        let (work, completion) = Work::new(&self.shared, context, Partner::One(peer));
        let payload = Payload::from_vec(values);
        let sender_core = core.clone();
        let send = core.mailbox.on_written(
            peer,
            Box::new(move |result| {
                let result = result.map_err(|why| sender_core.interrupted(&context, why));
                sender_core.record_end(&context, result.is_err());
                completion.complete(result);
            }),
        );
        let Some(send) = send else { return work };
        if to == self.rank() {
            core.mailbox.put_message(peer, tag, payload);
            core.mailbox.written(send, Ok(()));
            return work;
        }
        let header = Header {
            group: core.id,
            step: context.step,
            kind: FrameKind::Message { tag },
        };
        let mut frame = Frame::new(header, payload);
        let mailbox = core.mailbox.clone();
        frame.written = Some(Box::new(move |result| mailbox.written(send, result)));
        core.transport.send(peer, frame);
        work
    }

    /// Receives the next message of rank `from` under `tag`. Several receives of one rank and tag
    /// are served in the order of the calls.
    ///
    /// # Errors
    /// [`CollectiveError::WrongMessage`] if the message has another type, besides those of
    /// [`Work::wait`].
    pub fn recv<T: Element>(&self, from: usize, tag: u64) -> Work<Vec<T>> {
        let call = Call::Recv {
            dtype: T::DTYPE,
            from,
            tag,
        };
        if let Err(reason) = self.check_call(call) {
            return self.refuse(call, reason);
        }
        let core = self.core().clone();
        let mut context = core.context(call);
        core.record(&mut context, FlightState::Running);
        let peer = core.members[from];
        let (work, completion) = Work::new(&self.shared, context, Partner::One(peer));
        let mailbox = core.mailbox.clone();
        let receiver = move |result: Result<Payload, _>| {
            let result = match result {
                Err(why) => Err(core.interrupted(&context, why)),
                Ok(payload) => {
                    let found = format!("{payload:?}");
                    payload.into_vec::<T>().ok_or_else(|| {
                        core.fail_everywhere(CollectiveError::WrongMessage {
                            rank: core.job_rank(),
                            peer,
                            operation: call.to_string(),
                            found,
                            step: context.step,
                            waited: context.started.elapsed(),
                        })
                    })
                }
            };
            core.record_end(&context, result.is_err());
            completion.complete(result);
        };
        mailbox.take_message(peer, tag, Box::new(receiver));
        work
    }
}
