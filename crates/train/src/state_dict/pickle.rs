//! The part of Python's pickles that state dicts are written in (protocols 2 to 5).
//!
//! A pickle is a program for a stack machine that may call anything. This one calls nothing: what builds a tensor
//! or an ordered dict is recognised by its name, every other object becomes [`Value::Other`].

use std::collections::HashMap;
use std::rc::Rc;

use super::archive::Bytes;

/// How deep containers may lie in each other: a checkpoint's are three deep or four.
const DEEPEST: usize = 64;

/// What a pickle builds.
#[derive(Debug, Clone)]
pub(super) enum Value {
    Int(i64),
    Text(Rc<str>),
    /// A class or function, `module.name`.
    Global(Rc<str>),
    /// A tuple or a list.
    Sequence(Container<Value>),
    Dict(Container<(Value, Value)>),
    Storage(Storage),
    Tensor(Rc<TensorView>),
    Other,
}

/// Things, and how deep containers lie in them.
#[derive(Debug, Clone)]
pub(super) struct Container<T> {
    pub(super) items: Rc<Vec<T>>,
    depth: usize,
}

/// Numbers that tensors are views of: a file of the archive.
#[derive(Debug, Clone)]
pub(super) struct Storage {
    /// PyTorch's name of the class, `FloatStorage` say.
    pub(super) class: Rc<str>,
    pub(super) key: Rc<str>,
}

/// A tensor: some numbers of a storage.
#[derive(Debug, Clone)]
pub(super) struct TensorView {
    pub(super) storage: Storage,
    pub(super) offset: usize,
    pub(super) shape: Vec<usize>,
    pub(super) strides: Vec<usize>,
}

impl Value {
    fn depth(&self) -> usize {
        match self {
            Self::Sequence(container) => container.depth,
            Self::Dict(container) => container.depth,
            _ => 0,
        }
    }

    fn sequence(items: Vec<Self>) -> Result<Self, String> {
        let depth = deeper(items.iter().map(Self::depth))?;
        let items = Rc::new(items);
        Ok(Self::Sequence(Container { items, depth }))
    }

    fn empty_dict() -> Self {
        Self::Dict(Container {
            items: Rc::default(),
            depth: 1,
        })
    }

    fn text(&self) -> Option<&Rc<str>> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    fn size(&self) -> Option<usize> {
        match self {
            Self::Int(number) => usize::try_from(*number).ok(),
            _ => None,
        }
    }

    fn sizes(&self) -> Option<Vec<usize>> {
        match self {
            Self::Sequence(numbers) => numbers.items.iter().map(Self::size).collect(),
            _ => None,
        }
    }
}

fn deeper(inner: impl Iterator<Item = usize>) -> Result<usize, String> {
    let depth = 1 + inner.max().unwrap_or(0);
    let too_deep = || format!("its containers lie more than {DEEPEST} deep in each other");
    (depth <= DEEPEST).then_some(depth).ok_or_else(too_deep)
}

/// An entry of the stack: a value, or the mark from which the next container's items begin.
enum Entry {
    Value(Value),
    Mark,
}

struct Machine<'a> {
    program: Bytes<'a>,
    stack: Vec<Entry>,
    memo: HashMap<u32, Value>,
}

/// What the pickle `bytes` builds.
pub(super) fn load(bytes: &[u8]) -> Result<Value, String> {
    let mut machine = Machine {
        program: Bytes(bytes),
        stack: Vec::new(),
        memo: HashMap::new(),
    };
    loop {
        let [opcode] = machine.program.array()?;
        if opcode == b'.' {
            return machine.pop();
        }
        machine.step(opcode)?;
    }
}

impl Machine<'_> {
    fn pop(&mut self) -> Result<Value, String> {
        match self.stack.pop() {
            Some(Entry::Value(value)) => Ok(value),
            _ => Err("its pickle takes what is not there".to_string()),
        }
    }

    fn push(&mut self, value: Value) {
        self.stack.push(Entry::Value(value));
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Value>, String> {
        let mut values = Vec::new();
        loop {
            match self.stack.pop() {
                Some(Entry::Value(value)) => values.push(value),
                Some(Entry::Mark) => break,
                None => return Err("its pickle has no mark where there must be one".to_string()),
            }
        }
        values.reverse();
        Ok(values)
    }

    fn string(&mut self, length: usize) -> Result<Value, String> {
        let text = std::str::from_utf8(self.program.take(length)?);
        let text = text.map_err(|_| "a text in its pickle is not UTF-8")?;
        Ok(Value::Text(text.into()))
    }

    fn line(&mut self) -> Result<String, String> {
        let end = self.program.0.iter().position(|byte| *byte == b'\n');
        let end = end.ok_or("a name in its pickle has no end")?;
        let line = self.program.take(end + 1)?;
        Ok(String::from_utf8_lossy(&line[..end]).into_owned())
    }

    fn remember(&mut self, place: u32) -> Result<(), String> {
        match self.stack.last() {
            Some(Entry::Value(value)) => drop(self.memo.insert(place, value.clone())),
            _ => return Err("its pickle takes what is not there".to_string()),
        }
        Ok(())
    }

    fn recall(&mut self, place: u32) -> Result<(), String> {
        let value = self.memo.get(&place).cloned();
        self.push(value.ok_or("its pickle recalls what it has not made")?);
        Ok(())
    }

    fn tuple(&mut self, count: usize) -> Result<(), String> {
        let mut items = (0..count)
            .map(|_| self.pop())
            .collect::<Result<Vec<_>, _>>()?;
        items.reverse();
        self.push(Value::sequence(items)?);
        Ok(())
    }

    fn step(&mut self, opcode: u8) -> Result<(), String> {
        match opcode {
            0x80 => drop(self.program.take(1)?), // PROTO
            0x95 => drop(self.program.take(8)?), // FRAME
            b'J' => {
                let number = i32::from_le_bytes(self.program.array()?);
                self.push(Value::Int(number.into()));
            }
            b'K' => {
                let [number] = self.program.array()?;
                self.push(Value::Int(number.into()));
            }
            b'M' => {
                let number = self.program.u16()?;
                self.push(Value::Int(number.into()));
            }
            0x8a => {
                let [length] = self.program.array()?;
                let bytes = self.program.take(length.into())?;
                self.push(long(bytes));
            }
            b'X' => {
                let length = self.program.u32()? as usize;
                let text = self.string(length)?;
                self.push(text);
            }
            0x8c => {
                let [length] = self.program.array()?;
                let text = self.string(length.into())?;
                self.push(text);
            }
            b'G' => {
                self.program.take(8)?;
                self.push(Value::Other);
            }
            b'N' | 0x88 | 0x89 => self.push(Value::Other), // None, True, False
            b'(' => self.stack.push(Entry::Mark),
            b'0' => drop(self.pop()?),
            b'q' => {
                let [place] = self.program.array()?;
                self.remember(place.into())?;
            }
            b'r' => {
                let place = self.program.u32()?;
                self.remember(place)?;
            }
            0x94 => {
                let place = u32::try_from(self.memo.len()).map_err(|error| error.to_string())?;
                self.remember(place)?;
            }
            b'h' => {
                let [place] = self.program.array()?;
                self.recall(place.into())?;
            }
            b'j' => {
                let place = self.program.u32()?;
                self.recall(place)?;
            }
            _ => return self.build(opcode),
        }
        Ok(())
    }

    /// The instructions that make something of what lies on the stack.
    fn build(&mut self, opcode: u8) -> Result<(), String> {
        match opcode {
            b')' => self.tuple(0)?,
            0x85 => self.tuple(1)?,
            0x86 => self.tuple(2)?,
            0x87 => self.tuple(3)?,
            b't' => {
                let items = self.pop_to_mark()?;
                self.push(Value::sequence(items)?);
            }
            b']' => self.push(Value::sequence(Vec::new())?),
            b'a' => {
                let item = self.pop()?;
                self.extend_list(vec![item])?;
            }
            b'e' => {
                let items = self.pop_to_mark()?;
                self.extend_list(items)?;
            }
            b'}' => self.push(Value::empty_dict()),
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.extend_dict(vec![key, value])?;
            }
            b'u' => {
                let items = self.pop_to_mark()?;
                self.extend_dict(items)?;
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.push(Value::Global(format!("{module}.{name}").into()));
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let names = module.text().zip(name.text());
                let (module, name) = names.ok_or("a name in its pickle is no text")?;
                self.push(Value::Global(format!("{module}.{name}").into()));
            }
            b'Q' => {
                let id = self.pop()?;
                self.push(storage(&id)?);
            }
            b'R' | 0x81 => {
                let (arguments, callee) = (self.pop()?, self.pop()?);
                self.push(call(&callee, arguments)?);
            }
            // Attributes of an object: of a state dict they are its versions.
            b'b' => drop(self.pop()?),
            other => {
                return Err(format!(
                    "its pickle has the instruction {other:#04x}, which a state dict does not need"
                ));
            }
        }
        Ok(())
    }

    fn extend_list(&mut self, items: Vec<Value>) -> Result<(), String> {
        match self.pop()? {
            Value::Sequence(mut list) => {
                list.depth = list.depth.max(deeper(items.iter().map(Value::depth))?);
                Rc::make_mut(&mut list.items).extend(items);
                self.push(Value::Sequence(list));
            }
            _ => self.push(Value::Other),
        }
        Ok(())
    }

    fn extend_dict(&mut self, items: Vec<Value>) -> Result<(), String> {
        match self.pop()? {
            Value::Dict(mut dict) => {
                dict.depth = dict.depth.max(deeper(items.iter().map(Value::depth))?);
                let mut items = items.into_iter();
                while let (Some(key), Some(value)) = (items.next(), items.next()) {
                    Rc::make_mut(&mut dict.items).push((key, value));
                }
                self.push(Value::Dict(dict));
            }
            _ => self.push(Value::Other),
        }
        Ok(())
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

/// `("storage", class, key, location, count)`
fn storage(id: &Value) -> Result<Value, String> {
    let parts = match id {
        Value::Sequence(parts) => parts.items.as_slice(),
        _ => &[],
    };
    match parts {
        [
            Value::Text(kind),
            Value::Global(class),
            Value::Text(key),
            ..,
        ] if &**kind == "storage" => Ok(Value::Storage(Storage {
            class: class.rsplit('.').next().unwrap_or_default().into(),
            key: Rc::clone(key),
        })),
        _ => Err("a storage in its pickle is not described as PyTorch does it".to_string()),
    }
}

fn call(callee: &Value, arguments: Value) -> Result<Value, String> {
    let (Value::Global(name), Value::Sequence(arguments)) = (callee, arguments) else {
        return Ok(Value::Other);
    };
    Ok(match (&**name, arguments.items.as_slice()) {
        ("collections.OrderedDict", []) => Value::empty_dict(),
        (
            "torch._utils._rebuild_tensor_v2",
            [Value::Storage(storage), offset, shape, strides, ..],
        ) => {
            let view = offset.size().zip(shape.sizes()).zip(strides.sizes());
            let ((offset, shape), strides) =
                view.ok_or("a tensor in its pickle has no shape that can be read")?;
            Value::Tensor(Rc::new(TensorView {
                storage: storage.clone(),
                offset,
                shape,
                strides,
            }))
        }
        ("torch._utils._rebuild_parameter", [Value::Tensor(tensor), ..]) => {
            Value::Tensor(Rc::clone(tensor))
        }
        _ => Value::Other,
    })
}
