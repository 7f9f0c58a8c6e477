//! How a connection begins, as the server sees it: the proof of the job's secret, then PyTorch's
//! validation. Messages have fixed sizes, and until the last of them nothing is stored.

use everburn_auth::{Acceptor, Key, NONCE_BYTES, PROOF_BYTES};

use super::StoreAccess;
use super::peer::Closing;
use super::wire::{AUTH_ACCEPTED, AUTH_OPCODE, VALIDATION_MAGIC, opcode};

/// The size of PyTorch's validation message.
const VALIDATION_BYTES: usize = 5;

/// All that a client says before it is one, and so the most that is read of it at a time.
pub(super) const GREETING_BYTES: usize = 1 + NONCE_BYTES + PROOF_BYTES + VALIDATION_BYTES;

/// How far a connection has come.
#[derive(Debug)]
pub(super) enum Greeting {
    /// Nothing said yet.
    New,
    /// The client has the server's proof and owes its own.
    Challenged(Acceptor),
    /// Validation is next.
    Authenticated,
}

/// What the bytes that have come are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// No whole message yet.
    Unfinished,
    /// A message of this many bytes.
    Message(usize),
    /// The last message, of this many bytes: it is a client.
    Done(usize),
    /// The client has no valid proof and must be refused.
    Refuse,
}

impl Greeting {
    /// Takes one message off the start of `input` and appends its answer to `output`. The first byte
    /// of a message decides, and nobody waits for more of one that is wrong already.
    pub(super) fn step(
        &mut self,
        input: &[u8],
        access: &StoreAccess,
        output: &mut Vec<u8>,
    ) -> Result<Step, Closing> {
        let Some((&first, rest)) = input.split_first() else {
            return Ok(Step::Unfinished);
        };
        match (&*self, access, first) {
            (Self::Challenged(_), ..) => Ok(self.check_proof(input, output)),
            (Self::New, StoreAccess::Token(token), AUTH_OPCODE) => {
                self.challenge(&StoreAccess::key_of(token), rest, output)
            }
            (Self::New, StoreAccess::Token(_), _) => Ok(Step::Refuse),
            (Self::New, StoreAccess::Open, AUTH_OPCODE) => Err(Closing::OpenStore),
            (Self::New | Self::Authenticated, _, opcode::VALIDATE) => validate(rest),
            _ => Err(Closing::NoClient),
        }
    }

    fn challenge(&mut self, key: &Key, rest: &[u8], output: &mut Vec<u8>) -> Result<Step, Closing> {
        let Some(nonce) = rest.first_chunk::<NONCE_BYTES>() else {
            return Ok(Step::Unfinished);
        };
        let (acceptor, challenge) = Acceptor::new(key, &[], nonce).map_err(Closing::Auth)?;
        output.extend_from_slice(&challenge);
        *self = Self::Challenged(acceptor);
        Ok(Step::Message(1 + NONCE_BYTES))
    }

    fn check_proof(&mut self, input: &[u8], output: &mut Vec<u8>) -> Step {
        let Some(proof) = input.first_chunk::<PROOF_BYTES>() else {
            return Step::Unfinished;
        };
        let Self::Challenged(acceptor) = std::mem::replace(self, Self::New) else {
            return Step::Refuse;
        };
        if acceptor.verify(proof).is_err() {
            return Step::Refuse;
        }
        output.push(AUTH_ACCEPTED);
        *self = Self::Authenticated;
        Step::Message(PROOF_BYTES)
    }
}

fn validate(rest: &[u8]) -> Result<Step, Closing> {
    match rest.first_chunk().map(|magic| u32::from_ne_bytes(*magic)) {
        None => Ok(Step::Unfinished),
        Some(VALIDATION_MAGIC) => Ok(Step::Done(VALIDATION_BYTES)),
        Some(_) => Err(Closing::NoClient),
    }
}
