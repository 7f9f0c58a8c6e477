//! The part of Python's pickles that state dicts are written in (protocols 2 to 5).
//!
//! A pickle is a program for a stack machine that may call anything. This one calls nothing: what builds a tensor
//! or a dict is recognised by its name, values that weights do not need become [`Value::Other`], and every
//! name that is not known ends the reading.
//!
//! Containers are in an arena and values say where, so that a dict that is memoised before it is filled, as
//! PyTorch's are, is one thing and not a copy, and one in itself does no harm. Texts stay where they are in
//! the pickle. What is built is paid for from a [`Budget`] in proportion to the pickle.

mod budget;
mod globals;
mod machine;

pub(crate) use budget::Budget;
pub(crate) use globals::{Global, StorageClass};
pub(crate) use machine::load;

/// The longest name of a tensor or a storage, in bytes.
pub(crate) const LONGEST_NAME: usize = 1024;

/// Where a text is in the pickle.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Text {
    at: u32,
    length: u32,
}

impl Text {
    /// Whether it may be a name. Names are compared again and again, so a long one that many refer to would
    /// take time out of proportion.
    pub(crate) fn is_short(self) -> bool {
        self.length as usize <= LONGEST_NAME
    }
}

/// Where the items of a tuple are in the arena: it does not change once it is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tuple {
    at: u32,
    length: u32,
}

/// Which list or dict of the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Id(u32);

/// What a pickle builds.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Value {
    Int(i64),
    Text(Text),
    Global(Global),
    Tuple(Tuple),
    List(Id),
    Dict(Id),
    Storage(u32),
    Tensor(u32),
    /// `None`, numbers with a fraction, bytes, sets and whatever else weights are not made of.
    Other,
    /// No value: where the next container's items begin on the stack.
    Mark,
}

/// Numbers that tensors are views of: a file of the archive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Storage {
    pub(crate) class: StorageClass,
    pub(crate) key: Text,
    pub(crate) count: u64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Tensor {
    pub(crate) storage: u32,
    pub(crate) offset: u64,
    pub(crate) shape: Tuple,
    pub(crate) strides: Tuple,
    /// Its type where the storage has none.
    pub(crate) dtype: Option<Global>,
    /// Says by `conj` and `neg` that its numbers are to be changed when they are read.
    pub(crate) metadata: Option<Id>,
}

pub(crate) struct Built<'a> {
    program: &'a [u8],
    tuples: Vec<Value>,
    /// Lists and dicts, the keys of dicts before their values.
    containers: Vec<Vec<Value>>,
    storages: Vec<Storage>,
    tensors: Vec<Tensor>,
    /// What the pickle as a whole is.
    pub(crate) root: Value,
    /// What is left of it.
    pub(crate) budget: Budget,
}

impl<'a> Built<'a> {
    pub(crate) fn bytes(&self, text: Text) -> &'a [u8] {
        &self.program[text.at as usize..][..text.length as usize]
    }

    pub(crate) fn tuple(&self, tuple: Tuple) -> &[Value] {
        &self.tuples[tuple.at as usize..][..tuple.length as usize]
    }

    /// The keys and values of a dict, in the order in which they were set; a key may come again.
    fn pairs(&self, id: Id) -> impl Iterator<Item = (Value, Value)> {
        let items = self.containers[id.0 as usize].chunks_exact(2);
        items.map(|pair| (pair[0], pair[1]))
    }

    /// The dict's pairs whose keys are texts.
    pub(crate) fn named(&self, id: Id) -> impl Iterator<Item = (Text, Value)> {
        self.pairs(id).filter_map(|(key, value)| match key {
            Value::Text(text) => Some((text, value)),
            _ => None,
        })
    }

    pub(crate) fn storage(&self, place: u32) -> &Storage {
        &self.storages[place as usize]
    }

    pub(crate) fn tensor(&self, place: u32) -> &Tensor {
        &self.tensors[place as usize]
    }
}
