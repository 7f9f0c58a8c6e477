//! What the names of modules in a pickle stand for, and what to do about those that are not known.

use super::Machine;
use crate::choose::IN_CHECKPOINTS;
use crate::error::{Shown, WeightsError};
use crate::pickle::globals::not_plain;
use crate::pickle::{Global, Id, Value};

impl Machine<'_> {
    /// What `module.name` stands for.
    pub(super) fn global(&self, module: &[u8], name: &[u8]) -> Result<Global, WeightsError> {
        let full = [module, b".", name].concat();
        Global::of(&full).ok_or_else(|| {
            let name = Shown(&full).to_string();
            match not_plain(&full).filter(|_| !self.has_weights()) {
                Some((what, convert)) => WeightsError::NotPlain {
                    name,
                    what,
                    convert,
                    weights: self.entry_of_weights().unwrap_or_default(),
                },
                None => WeightsError::Global {
                    name,
                    weights: self.weights_in_python(),
                },
            }
        })
    }

    /// Whether weights have been read already: those of a checkpoint that has other things beside them.
    fn has_weights(&self) -> bool {
        let mut entries = self.entries();
        entries.any(|(_, dict)| !self.built.containers[dict.0 as usize].is_empty())
    }

    /// The entry of a checkpoint that is its weights, in Python.
    fn entry_of_weights(&self) -> Option<String> {
        self.entries().next().map(|(entry, _)| entry)
    }

    /// Dicts on the stack under keys of [`IN_CHECKPOINTS`], with these keys in Python.
    fn entries(&self) -> impl Iterator<Item = (String, Id)> {
        self.stack.windows(2).filter_map(|pair| match pair {
            [key, Value::Dict(dict)] => Some((self.usual_entry(key)?, *dict)),
            _ => None,
        })
    }

    /// The entry of a checkpoint, in Python, if its key is one of [`IN_CHECKPOINTS`].
    fn usual_entry(&self, key: &Value) -> Option<String> {
        let Value::Text(key) = key else {
            return None;
        };
        let key = self.built.bytes(*key);
        let usual = IN_CHECKPOINTS.iter().find(|usual| **usual == key);
        usual.map(|key| format!("[\"{}\"]", Shown(key)))
    }

    /// What has the weights in Python, once the file is loaded there, as far as the values on the stack show it: the next one is an object.
    fn weights_in_python(&self) -> String {
        let Some(last) = self.stack.last() else {
            return ".state_dict()".to_owned();
        };
        match self.usual_entry(last) {
            Some(entry) => format!("{entry}.state_dict()"),
            None => {
                let found = self.entry_of_weights();
                found.unwrap_or_else(|| "[\"state_dict\"]".to_owned())
            }
        }
    }
}
