//! The bytes of PyTorch's TCP store: codes, limits, and cutting a stream into requests.
//!
//! There is no framing: a request is an opcode and arguments, and only the opcode says which.
//! [`Scanner`] finds where a request ends, looking at each byte once however small the pieces are
//! in which it arrives; [`Request::parse`] then reads a whole request. Integers are native-endian,
//! strings and lists carry a `u64` length in front.

use crate::store::{MAX_KEY_BYTES, MAX_VALUE_BYTES};

/// The first byte of a client of a store that demands the job's secret, and ours alone. Its nonce
/// follows; the server answers with a nonce and a proof, the client with its own proof
/// ([`everburn_auth`] has their form, with the purpose `store` and no context), the server with
/// [`AUTH_ACCEPTED`] or [`AUTH_REFUSED`]. A client that begins with anything else is sent
/// [`AUTH_REFUSED`], too; after a refusal the connection is closed. PyTorch's opcodes end at 18, so
/// the two cannot be confused.
pub const AUTH_OPCODE: u8 = 0xEB;

/// The client has proved that it has the secret.
pub(super) const AUTH_ACCEPTED: u8 = 0;
/// The secret is needed; the connection closes.
pub(super) const AUTH_REFUSED: u8 = 0xEB;

/// Sent by a client before its requests, to distinguish clients from other programs.
pub(super) const VALIDATION_MAGIC: u32 = 0x3C85_F7CE;

/// The most keys in one request (PyTorch's limit).
pub(super) const MAX_KEYS: usize = 128 * 1024;

/// The longest request or reply as a whole: what one connection can make the server hold.
/// PyTorch has no such limit; its requests of many values are small.
pub(super) const MAX_MESSAGE_BYTES: usize = 64 * 1024 * 1024;

/// A waiting client may continue.
pub(super) const STOP_WAITING: u8 = 0;
/// A wait was called off at the client's wish.
pub(super) const WAIT_CANCELED: u8 = 1;
/// Every key that was asked about exists.
pub(super) const CHECK_READY: u8 = 0;
/// At least one key is missing.
pub(super) const CHECK_NOT_READY: u8 = 1;

/// The opcodes of PyTorch's protocol.
pub(super) mod opcode {
    pub const VALIDATE: u8 = 0;
    pub const SET: u8 = 1;
    pub const COMPARE_SET: u8 = 2;
    pub const GET: u8 = 3;
    pub const ADD: u8 = 4;
    pub const CHECK: u8 = 5;
    pub const WAIT: u8 = 6;
    pub const GETNUMKEYS: u8 = 7;
    pub const DELETE_KEY: u8 = 8;
    pub const APPEND: u8 = 9;
    pub const MULTI_GET: u8 = 10;
    pub const MULTI_SET: u8 = 11;
    pub const CANCEL_WAIT: u8 = 12;
    pub const PING: u8 = 13;
    pub const QUEUE_PUSH: u8 = 14;
    pub const QUEUE_POP: u8 = 15;
    pub const QUEUE_LEN: u8 = 16;
    pub const LIST_KEYS: u8 = 17;
    pub const BARRIER: u8 = 18;
}

/// Bytes that no client following the protocol sends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum WireFault {
    #[error("unknown opcode {0}")]
    Opcode(u8),
    #[error("{what} of {length} is longer than {limit}")]
    TooLong {
        what: &'static str,
        length: u64,
        limit: usize,
    },
    #[error("the request ends before its arguments do")]
    Short,
}

/// One argument of a request.
#[derive(Debug, Clone, Copy)]
pub(super) enum Field {
    U32,
    I64,
    Key,
    Value,
    Keys,
    Pairs,
}

impl Field {
    const fn limit(self) -> (&'static str, usize) {
        match self {
            Self::Value => ("a value", MAX_VALUE_BYTES),
            _ => ("a key", KEY_LIMIT),
        }
    }
}

/// User keys carry one more byte, the prefix `/`.
const KEY_LIMIT: usize = MAX_KEY_BYTES + 1;

pub(super) fn arguments(opcode: u8) -> Result<&'static [Field], WireFault> {
    use Field::{I64, Key, Keys, Pairs, U32, Value};
    Ok(match opcode {
        opcode::PING => &[U32],
        opcode::SET | opcode::APPEND | opcode::QUEUE_PUSH => &[Key, Value],
        opcode::COMPARE_SET => &[Key, Value, Value],
        opcode::GET | opcode::DELETE_KEY | opcode::QUEUE_POP | opcode::QUEUE_LEN => &[Key],
        opcode::ADD | opcode::BARRIER => &[Key, I64],
        opcode::CHECK | opcode::WAIT | opcode::MULTI_GET => &[Keys],
        opcode::MULTI_SET => &[Pairs],
        opcode::GETNUMKEYS | opcode::CANCEL_WAIT | opcode::LIST_KEYS => &[],
        unknown => return Err(WireFault::Opcode(unknown)),
    })
}

/// Finds the end of the request at the start of a buffer that grows.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    /// Everything before this offset has been looked at.
    offset: usize,
    /// The arguments that are still to come; `None` before the opcode.
    fields: Option<&'static [Field]>,
    /// Items left of the list being scanned, and whether each is a key and a value.
    list: Option<List>,
}

#[derive(Debug, Clone, Copy)]
struct List {
    strings: u64,
    pairs: bool,
}

impl Scanner {
    /// The length of the request at the start of `bytes`, or `None` where more must arrive.
    ///
    /// Call it again with the same bytes and more after them; once it has returned a length, it
    /// starts anew at the next request.
    pub(super) fn scan(&mut self, bytes: &[u8]) -> Result<Option<usize>, WireFault> {
        if bytes.len() < self.offset {
            return Ok(None);
        }
        let mut fields = match self.fields {
            Some(fields) => fields,
            None => {
                let Some(&opcode) = bytes.first() else {
                    return Ok(None);
                };
                self.offset = 1;
                arguments(opcode)?
            }
        };
        loop {
            self.fields = Some(fields);
            if self.offset > MAX_MESSAGE_BYTES {
                return Err(WireFault::TooLong {
                    what: "a request",
                    length: self.offset as u64,
                    limit: MAX_MESSAGE_BYTES,
                });
            }
            if let Some(list) = self.list {
                if list.strings == 0 {
                    self.list = None;
                    continue;
                }
                // In pairs an even number of strings is left before a key.
                let value = list.pairs && list.strings % 2 == 1;
                if !self.string(bytes, if value { Field::Value } else { Field::Key })? {
                    return Ok(None);
                }
                self.list = Some(List {
                    strings: list.strings - 1,
                    ..list
                });
                continue;
            }
            let Some((&field, rest)) = fields.split_first() else {
                return Ok(self.finish(bytes.len()));
            };
            match field {
                Field::U32 => self.offset += 4,
                Field::I64 => self.offset += 8,
                Field::Key | Field::Value => {
                    if !self.string(bytes, field)? {
                        return Ok(None);
                    }
                }
                Field::Keys | Field::Pairs => {
                    let Some(count) = length_at(bytes, self.offset) else {
                        return Ok(None);
                    };
                    if count > MAX_KEYS as u64 {
                        return Err(WireFault::TooLong {
                            what: "a list",
                            length: count,
                            limit: MAX_KEYS,
                        });
                    }
                    self.offset += 8;
                    let pairs = matches!(field, Field::Pairs);
                    self.list = Some(List {
                        strings: if pairs { 2 * count } else { count },
                        pairs,
                    });
                }
            }
            fields = rest;
        }
    }

    /// Moves over one string once its length has arrived; its bytes may still be on their way.
    fn string(&mut self, bytes: &[u8], field: Field) -> Result<bool, WireFault> {
        let Some(length) = length_at(bytes, self.offset) else {
            return Ok(false);
        };
        let (what, limit) = field.limit();
        let fits = usize::try_from(length).ok().filter(|&fits| fits <= limit);
        let Some(fits) = fits else {
            return Err(WireFault::TooLong {
                what,
                length,
                limit,
            });
        };
        self.offset += 8 + fits;
        Ok(true)
    }

    fn finish(&mut self, arrived: usize) -> Option<usize> {
        let end = self.offset;
        (arrived >= end).then(|| {
            *self = Self::default();
            end
        })
    }
}

fn length_at(bytes: &[u8], offset: usize) -> Option<u64> {
    let rest = bytes.get(offset..)?;
    rest.first_chunk::<8>().map(|raw| u64::from_ne_bytes(*raw))
}

/// Key and value.
type Pair<'a> = (&'a [u8], &'a [u8]);

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request<'a> {
    Set(&'a [u8], &'a [u8]),
    CompareSet(&'a [u8], &'a [u8], &'a [u8]),
    Get(&'a [u8]),
    Add(&'a [u8], i64),
    Check(Vec<&'a [u8]>),
    Wait(Vec<&'a [u8]>),
    NumKeys,
    Delete(&'a [u8]),
    Append(&'a [u8], &'a [u8]),
    MultiGet(Vec<&'a [u8]>),
    MultiSet(Vec<Pair<'a>>),
    CancelWait,
    Ping(u32),
    QueuePush(&'a [u8], &'a [u8]),
    QueuePop(&'a [u8]),
    QueueLen(&'a [u8]),
    ListKeys,
    Barrier(&'a [u8], i64),
}

impl<'a> Request<'a> {
    /// Reads one whole request, of the length that [`Scanner::scan`] found.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, WireFault> {
        let mut rest = Arguments { rest: bytes };
        let [opcode] = rest.fixed()?;
        Ok(match opcode {
            opcode::SET => Self::Set(rest.string()?, rest.string()?),
            opcode::COMPARE_SET => Self::CompareSet(rest.string()?, rest.string()?, rest.string()?),
            opcode::GET => Self::Get(rest.string()?),
            opcode::ADD => Self::Add(rest.string()?, rest.i64()?),
            opcode::CHECK => Self::Check(rest.strings()?),
            opcode::WAIT => Self::Wait(rest.strings()?),
            opcode::GETNUMKEYS => Self::NumKeys,
            opcode::DELETE_KEY => Self::Delete(rest.string()?),
            opcode::APPEND => Self::Append(rest.string()?, rest.string()?),
            opcode::MULTI_GET => Self::MultiGet(rest.strings()?),
            opcode::MULTI_SET => Self::MultiSet(rest.pairs()?),
            opcode::CANCEL_WAIT => Self::CancelWait,
            opcode::PING => Self::Ping(rest.u32()?),
            opcode::QUEUE_PUSH => Self::QueuePush(rest.string()?, rest.string()?),
            opcode::QUEUE_POP => Self::QueuePop(rest.string()?),
            opcode::QUEUE_LEN => Self::QueueLen(rest.string()?),
            opcode::LIST_KEYS => Self::ListKeys,
            opcode::BARRIER => Self::Barrier(rest.string()?, rest.i64()?),
            unknown => return Err(WireFault::Opcode(unknown)),
        })
    }
}

struct Arguments<'a> {
    rest: &'a [u8],
}

impl<'a> Arguments<'a> {
    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], WireFault> {
        let (raw, rest) = self.rest.split_first_chunk().ok_or(WireFault::Short)?;
        self.rest = rest;
        Ok(*raw)
    }

    fn u32(&mut self) -> Result<u32, WireFault> {
        self.fixed().map(u32::from_ne_bytes)
    }

    fn i64(&mut self) -> Result<i64, WireFault> {
        self.fixed().map(i64::from_ne_bytes)
    }

    fn length(&mut self) -> Result<usize, WireFault> {
        let length = self.fixed().map(u64::from_ne_bytes)?;
        usize::try_from(length).map_err(|_| WireFault::Short)
    }

    fn string(&mut self) -> Result<&'a [u8], WireFault> {
        let length = self.length()?;
        let split = self.rest.split_at_checked(length);
        let (string, rest) = split.ok_or(WireFault::Short)?;
        self.rest = rest;
        Ok(string)
    }

    fn strings(&mut self) -> Result<Vec<&'a [u8]>, WireFault> {
        (0..self.length()?).map(|_| self.string()).collect()
    }

    fn pairs(&mut self) -> Result<Vec<Pair<'a>>, WireFault> {
        (0..self.length()?)
            .map(|_| Ok((self.string()?, self.string()?)))
            .collect()
    }
}

/// Writes one string or value: length and bytes.
pub(super) fn put_string(out: &mut Vec<u8>, string: &[u8]) {
    out.extend_from_slice(&(string.len() as u64).to_ne_bytes());
    out.extend_from_slice(string);
}

#[cfg(test)]
mod tests;
