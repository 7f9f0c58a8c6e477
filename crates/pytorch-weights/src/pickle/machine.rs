//! The machine that runs a pickle.

mod global;
mod make;

use super::{Budget, Built, Id, Text, Tuple, Value};
use crate::archive::Bytes;
use crate::error::{WeightsError, pickle as refuse};

const TOO_SHORT: &str = "its pickle ends too early; was it copied whole?";
const NOT_THERE: &str = "its pickle uses a missing value";

/// What a container costs beside its items, in words: the vector and its place in the allocator.
const CONTAINER: usize = 4;

struct Machine<'a> {
    rest: Bytes<'a>,
    stack: Vec<Value>,
    /// As long as the stack has ever been: that much was paid for.
    highest: usize,
    /// What was memoised, by its number; PyTorch numbers without gaps.
    memo: Vec<Value>,
    built: Built<'a>,
}

/// What the pickle `program` builds.
///
/// # Errors
/// A pickle that is damaged, names what is not known, or builds more than its [`Budget`].
pub(crate) fn load(program: &[u8]) -> Result<Built<'_>, WeightsError> {
    if u32::try_from(program.len()).is_err() {
        return Err(WeightsError::TooLarge);
    }
    let mut machine = Machine {
        rest: Bytes(program),
        stack: Vec::new(),
        highest: 0,
        memo: Vec::new(),
        built: Built {
            program,
            tuples: Vec::new(),
            containers: Vec::new(),
            storages: Vec::new(),
            tensors: Vec::new(),
            root: Value::Other,
            budget: Budget::of(program),
        },
    };
    loop {
        let opcode = machine.byte()?;
        if opcode == b'.' {
            machine.built.root = machine.pop()?;
            return Ok(machine.built);
        }
        machine.step(opcode)?;
    }
}

impl<'a> Machine<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], WeightsError> {
        self.rest.take(count).ok_or_else(|| refuse(TOO_SHORT))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WeightsError> {
        self.rest.array().ok_or_else(|| refuse(TOO_SHORT))
    }

    fn byte(&mut self) -> Result<u8, WeightsError> {
        self.array().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32, WeightsError> {
        self.array().map(u32::from_le_bytes)
    }

    /// A length of 64 bits, which no pickle that fits here has in use.
    fn long_length(&mut self) -> Result<usize, WeightsError> {
        let length = u64::from_le_bytes(self.array()?);
        usize::try_from(length).map_err(|_| refuse(TOO_SHORT))
    }

    fn push(&mut self, value: Value) -> Result<(), WeightsError> {
        self.stack.push(value);
        if self.stack.len() > self.highest {
            self.highest += 1;
            self.built.budget.pay(1)?;
        }
        Ok(())
    }

    fn pop(&mut self) -> Result<Value, WeightsError> {
        match self.stack.pop() {
            None | Some(Value::Mark) => Err(refuse(NOT_THERE)),
            Some(value) => Ok(value),
        }
    }

    fn last(&self) -> Result<Value, WeightsError> {
        match self.stack.last() {
            None | Some(Value::Mark) => Err(refuse(NOT_THERE)),
            Some(value) => Ok(*value),
        }
    }

    /// Where the items since the last mark begin on the stack. What is popped was pushed, so going back costs no
    /// more than pushing did.
    fn mark(&self) -> Result<usize, WeightsError> {
        let mark = self
            .stack
            .iter()
            .rposition(|value| matches!(value, Value::Mark));
        mark.ok_or_else(|| refuse("its pickle has no mark where there must be one"))
    }

    /// A list or dict of the values of the stack from `begin`.
    fn container(&mut self, begin: usize) -> Result<Id, WeightsError> {
        let items = self.stack.len() - begin;
        self.built.budget.pay(CONTAINER + items)?;
        // Fewer than the pickle has bytes, which are counted in 32 bits.
        let id = Id(self.built.containers.len() as u32);
        let items = self.stack.drain(begin..).collect();
        self.built.containers.push(items);
        Ok(id)
    }

    /// Moves the values of the stack from `begin` into a tuple.
    fn tuple(&mut self, begin: usize) -> Result<Tuple, WeightsError> {
        let length = self.stack.len() - begin;
        self.built.budget.pay(length)?;
        let at = u32::try_from(self.built.tuples.len()).map_err(|_| WeightsError::TooLarge)?;
        self.built.tuples.extend(self.stack.drain(begin..));
        // No more than the stack has, which has no more than the pickle has bytes.
        Ok(Tuple {
            at,
            length: length as u32,
        })
    }

    /// A tuple of the last `count` values.
    fn push_tuple(&mut self, count: usize) -> Result<(), WeightsError> {
        let begin = self.last_values(count)?;
        let tuple = self.tuple(begin)?;
        self.push(Value::Tuple(tuple))
    }

    /// Where the last `count` values begin on the stack.
    fn last_values(&self, count: usize) -> Result<usize, WeightsError> {
        let begin = self.stack.len().checked_sub(count);
        let is_mark = |value: &Value| matches!(value, Value::Mark);
        let begin = begin.filter(|begin| !self.stack[*begin..].iter().any(is_mark));
        begin.ok_or_else(|| refuse(NOT_THERE))
    }

    fn empty_dict(&mut self) -> Result<Value, WeightsError> {
        self.container(self.stack.len()).map(Value::Dict)
    }

    /// Moves the values of the stack from `begin` into the list or dict before them, of which `place` is that
    /// of its last value. Other objects forget what they are given.
    fn extend(&mut self, begin: usize, place: usize) -> Result<(), WeightsError> {
        let items = self.stack.len() - begin;
        let before = place.checked_sub(1).map(|place| self.stack[place]);
        let id = match before {
            None | Some(Value::Mark) => return Err(refuse(NOT_THERE)),
            Some(Value::Dict(_)) if !items.is_multiple_of(2) => {
                return Err(refuse("a dict in its pickle has a key without a value"));
            }
            Some(Value::Dict(id) | Value::List(id)) => Some(id),
            Some(_) => None,
        };
        let moved = self.stack.drain(begin..);
        if let Some(id) = id {
            self.built.budget.pay(items)?;
            self.built.containers[id.0 as usize].extend(moved);
        } else {
            drop(moved);
        }
        self.stack.truncate(place);
        Ok(())
    }

    /// For instructions that add one or two values without a mark.
    fn extend_by(&mut self, count: usize) -> Result<(), WeightsError> {
        let begin = self.last_values(count)?;
        self.extend(begin, begin)
    }

    fn extend_from_mark(&mut self) -> Result<(), WeightsError> {
        let mark = self.mark()?;
        self.extend(mark + 1, mark)
    }

    fn text(&mut self, length: usize) -> Result<(), WeightsError> {
        let at = self.built.program.len() - self.rest.0.len();
        let text = self.take(length)?;
        if std::str::from_utf8(text).is_err() {
            return Err(refuse("a text in its pickle is not UTF-8"));
        }
        // Both are less than the length of the pickle.
        self.push(Value::Text(Text {
            at: at as u32,
            length: length as u32,
        }))
    }

    fn line(&mut self) -> Result<&'a [u8], WeightsError> {
        let end = self.rest.0.iter().position(|byte| *byte == b'\n');
        let end = end.ok_or_else(|| refuse("a name in its pickle has no end"))?;
        Ok(&self.take(end + 1)?[..end])
    }

    fn remember(&mut self, place: usize) -> Result<(), WeightsError> {
        let value = self.last()?;
        match place.checked_sub(self.memo.len()) {
            None => self.memo[place] = value,
            Some(gap) => {
                self.built.budget.pay(gap.saturating_add(1))?;
                self.memo.resize(place, Value::Mark);
                self.memo.push(value);
            }
        }
        Ok(())
    }

    fn recall(&mut self, place: usize) -> Result<(), WeightsError> {
        match self.memo.get(place) {
            None | Some(Value::Mark) => Err(refuse("its pickle recalls what it has not made")),
            Some(value) => self.push(*value),
        }
    }

    fn step(&mut self, opcode: u8) -> Result<(), WeightsError> {
        match opcode {
            0x80 => self.take(1).map(drop), // PROTO
            0x95 => self.take(8).map(drop), // FRAME
            b'J' => {
                let number = i32::from_le_bytes(self.array()?);
                self.push(Value::Int(number.into()))
            }
            b'K' => {
                let number = self.byte()?;
                self.push(Value::Int(number.into()))
            }
            b'M' => {
                let number = u16::from_le_bytes(self.array()?);
                self.push(Value::Int(number.into()))
            }
            0x8a => {
                let length = self.byte()?;
                let bytes = self.take(length.into())?;
                self.push(long(bytes))
            }
            b'X' => {
                let length = self.u32()?;
                self.text(length as usize)
            }
            0x8c => {
                let length = self.byte()?;
                self.text(length.into())
            }
            0x8d => {
                let length = self.long_length()?;
                self.text(length)
            }
            b'(' => self.push(Value::Mark),
            b'0' => self.pop().map(drop),
            b'1' => {
                let mark = self.mark()?;
                self.stack.truncate(mark);
                Ok(())
            }
            b'2' => {
                let value = self.last()?;
                self.push(value)
            }
            b'q' => {
                let place = self.byte()?;
                self.remember(place.into())
            }
            b'r' => {
                let place = self.u32()?;
                self.remember(place as usize)
            }
            0x94 => self.remember(self.memo.len()),
            b'h' => {
                let place = self.byte()?;
                self.recall(place.into())
            }
            b'j' => {
                let place = self.u32()?;
                self.recall(place as usize)
            }
            b'N' | 0x88 | 0x89 => self.push(Value::Other), // None, True, False
            b'G' | b'B' | b'C' | 0x8b | 0x8e | 0x96 => self.skip(opcode),
            _ => self.build(opcode),
        }
    }

    /// Numbers and bytes that weights are not made of.
    fn skip(&mut self, opcode: u8) -> Result<(), WeightsError> {
        let length = match opcode {
            b'G' => 8,
            b'C' => self.byte()?.into(),
            b'B' | 0x8b => self.u32()? as usize,
            _ => self.long_length()?,
        };
        self.take(length)?;
        self.push(Value::Other)
    }

    /// The instructions that make something of what is on the stack.
    fn build(&mut self, opcode: u8) -> Result<(), WeightsError> {
        match opcode {
            b')' => self.push_tuple(0),
            0x85 => self.push_tuple(1),
            0x86 => self.push_tuple(2),
            0x87 => self.push_tuple(3),
            b't' => {
                let mark = self.mark()?;
                let tuple = self.tuple(mark + 1)?;
                self.stack.truncate(mark);
                self.push(Value::Tuple(tuple))
            }
            b']' => {
                let id = self.container(self.stack.len())?;
                self.push(Value::List(id))
            }
            b'l' => {
                let mark = self.mark()?;
                let id = self.container(mark + 1)?;
                self.stack.truncate(mark);
                self.push(Value::List(id))
            }
            b'a' => self.extend_by(1),
            b'e' | b'u' | 0x90 => self.extend_from_mark(),
            b'}' => {
                let dict = self.empty_dict()?;
                self.push(dict)
            }
            b's' => self.extend_by(2),
            0x8f => self.push(Value::Other), // EMPTY_SET
            0x91 => {
                // FROZENSET
                let mark = self.mark()?;
                self.stack.truncate(mark);
                self.push(Value::Other)
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                let global = self.global(module, name)?;
                self.push(Value::Global(global))
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (Value::Text(module), Value::Text(name)) = (module, name) else {
                    return Err(refuse("a name in its pickle is no text"));
                };
                let global = self.global(self.built.bytes(module), self.built.bytes(name))?;
                self.push(Value::Global(global))
            }
            b'Q' => {
                let id = self.pop()?;
                let storage = self.storage(id)?;
                self.push(storage)
            }
            b'R' | 0x81 => {
                let (arguments, callee) = (self.pop()?, self.pop()?);
                let made = self.make(callee, arguments)?;
                self.push(made)
            }
            // Attributes of an object: of a state dict they are its versions.
            b'b' => {
                self.pop()?;
                self.last().map(drop)
            }
            other => Err(refuse(format!(
                "its pickle has the instruction {other:#04x}, which a state dict does not need; save it with \
                 torch.save as it is, without a pickle_protocol"
            ))),
        }
    }
}

/// A number of as many bytes as there are, little endian, two's complement.
fn long(bytes: &[u8]) -> Value {
    if bytes.len() > 8 {
        return Value::Other;
    }
    let negative = bytes.last().is_some_and(|byte| *byte >= 0x80);
    let mut whole = [if negative { 0xff } else { 0 }; 8];
    whole[..bytes.len()].copy_from_slice(bytes);
    Value::Int(i64::from_le_bytes(whole))
}
