//! The tokens at which texts begin and end, by their numbers.

use everburn_datasets::Tokenizer;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The most tokens of one kind: a list in a file is cut there.
const MOST: usize = 64;

/// Names of the last token of a text in published tokenizers, where nothing else says which it is.
const ENDS: [&str; 4] = ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"];

/// One token, or several: a text may end with any of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Tokens {
    One(u32),
    Several(Vec<u32>),
}

impl Tokens {
    fn of_json(json: &Value) -> Option<Self> {
        // Some files write -1 for none.
        let number = |json: &Value| json.as_u64()?.try_into().ok();
        match json {
            Value::Array(several) => {
                let several = several.iter().filter_map(number).take(MOST);
                let several = several.collect::<Vec<_>>();
                (!several.is_empty()).then_some(Self::Several(several))
            }
            one => number(one).map(Self::One),
        }
    }

    fn first(&self) -> Option<u32> {
        match self {
            Self::One(token) => Some(*token),
            Self::Several(tokens) => tokens.first().copied(),
        }
    }

    fn contains(&self, token: u32) -> bool {
        match self {
            Self::One(one) => *one == token,
            Self::Several(tokens) => tokens.contains(&token),
        }
    }
}

/// The special tokens of a model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SpecialTokens {
    /// The one before a text.
    bos: Option<Tokens>,
    /// The one behind it.
    eos: Option<Tokens>,
    /// The one that fills a batch.
    pad: Option<Tokens>,
}

impl SpecialTokens {
    /// Those of a `config.json` or `generation_config.json`.
    pub(super) fn of_json(json: &Value) -> Self {
        let of = |name: &str| Tokens::of_json(&json[format!("{name}_token_id")]);
        Self {
            bos: of("bos"),
            eos: of("eos"),
            pad: of("pad"),
        }
    }

    /// Whether none is known.
    pub(super) fn is_none(&self) -> bool {
        *self == Self::default()
    }

    fn named(&self) -> [(&'static str, Option<&Tokens>); 3] {
        [
            ("bos_token", self.bos.as_ref()),
            ("eos_token", self.eos.as_ref()),
            ("pad_token", self.pad.as_ref()),
        ]
    }

    /// Puts them where they came from. What is not known is null: a default of transformers would be another token.
    pub(super) fn put(&self, json: &mut Value) {
        for (name, tokens) in self.named() {
            json[format!("{name}_id")] = json!(tokens);
        }
    }

    /// The name of each kind in a tokenizer's settings, and its first token.
    pub(super) fn first_of_each(&self) -> impl Iterator<Item = (&'static str, u32)> {
        let named = self.named().into_iter();
        named.filter_map(|(name, tokens)| Some((name, tokens?.first()?)))
    }

    /// The same with those that `tokenizer` knows. `end` is the one with which the model has learned to end.
    pub(super) fn completed(self, tokenizer: &Tokenizer, end: Option<u32>) -> Self {
        let known = |name: &str| tokenizer.special_token(name);
        let usual = || ENDS.iter().find_map(|name| tokenizer.token(name));
        let end = end.or_else(|| known("eos_token"));
        let eos = match (self.eos, end) {
            (Some(own), Some(end)) if !own.contains(end) => Some(Tokens::One(end)),
            (Some(own), _) => Some(own),
            (None, end) => end.or_else(usual).map(Tokens::One),
        };
        Self {
            bos: self.bos.or_else(|| known("bos_token").map(Tokens::One)),
            eos,
            pad: self.pad.or_else(|| known("pad_token").map(Tokens::One)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_as_they_were_and_unknown_ones_are_null() {
        let json = json!({
            "bos_token_id": 128_000,
            "eos_token_id": [128_001, 128_008],
            "pad_token_id": -1,
        });
        let tokens = SpecialTokens::of_json(&json);
        let kept: SpecialTokens = toml::from_str(&toml::to_string(&tokens).unwrap()).unwrap();
        assert_eq!(kept, tokens);
        let mut back = json!({});
        kept.put(&mut back);
        assert_eq!(back["eos_token_id"], json["eos_token_id"]);
        assert_eq!(back["bos_token_id"], 128_000);
        assert_eq!(back["pad_token_id"], Value::Null);
        let first = kept.first_of_each().collect::<Vec<_>>();
        assert_eq!(first, [("bos_token", 128_000), ("eos_token", 128_001)]);
        let bytes = Tokenizer::of_bytes();
        let one = |end| kept.clone().completed(&bytes, Some(end)).eos;
        assert_eq!(one(128_008), tokens.eos);
        assert_eq!(one(7), Some(Tokens::One(7)));
    }
}
