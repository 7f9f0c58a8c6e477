//! Keys of one kind that are read by one operation.
//!
//! A look at a round reads some keys of each rank. Read one by one, they take etcd a tenth of a millisecond each; as a range
//! of keys, a fraction of that.

use std::collections::BTreeMap;

use serde_json::Value;

use super::messages::{KeyValue, Range, requested_range, requested_span};

/// Fewer keys are read one by one.
const FEWEST: usize = 8;

/// Keys that one operation reads: one, or all of a range that also has others.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Span<'a> {
    /// In order, each once.
    keys: Vec<&'a [u8]>,
}

impl<'a> Span<'a> {
    pub(super) fn each(keys: &'a [Vec<u8>]) -> Vec<Self> {
        keys.iter().map(|key| Self { keys: vec![key] }).collect()
    }

    /// As few spans as have all `keys`: those with numbers close to each other in the same place are read together.
    pub(super) fn together(keys: &'a [Vec<u8>]) -> Vec<Self> {
        let mut kinds: BTreeMap<&[u8], Vec<(u64, &[u8])>> = BTreeMap::new();
        let mut spans = Vec::new();
        for key in keys {
            match kind_and_number(key) {
                Some((kind, number)) => kinds.entry(kind).or_default().push((number, key)),
                None => spans.push(Self { keys: vec![key] }),
            }
        }
        for numbered in kinds.into_values() {
            let numbers = numbered.iter().map(|(number, _)| *number);
            let (least, most) = (numbers.clone().min(), numbers.max());
            let width = most.unwrap_or(0) - least.unwrap_or(0);
            let mut keys: Vec<&[u8]> = numbered.into_iter().map(|(_, key)| key).collect();
            keys.sort_unstable();
            keys.dedup();
            if keys.len() >= FEWEST && width < 2 * keys.len() as u64 {
                spans.push(Self { keys });
            } else {
                spans.extend(keys.into_iter().map(|key| Self { keys: vec![key] }));
            }
        }
        spans
    }

    /// The operation that reads it.
    pub(super) fn request(&self) -> Value {
        match &*self.keys {
            [key] => requested_range(key),
            [first, .., last] => requested_span(first, last, self.most()),
            [] => Value::Null,
        }
    }

    /// More keys than this are not read: a range of ranks may have two kinds of them.
    fn most(&self) -> usize {
        2 * self.keys.len() + 16
    }

    /// What of the answer was wanted; `None` where the range has too many other keys: these are read one by one.
    pub(super) fn found(&self, answer: Range) -> Option<Vec<(&'a [u8], KeyValue)>> {
        if let [key] = &*self.keys {
            return Some(
                answer
                    .kvs
                    .into_iter()
                    .take(1)
                    .map(|it| (*key, it))
                    .collect(),
            );
        }
        if answer.more {
            return None;
        }
        let wanted = answer.kvs.into_iter().filter_map(|entry| {
            let place = self.keys.binary_search(&&*entry.key).ok()?;
            Some((self.keys[place], entry))
        });
        Some(wanted.collect())
    }
}

/// What comes before the last part of `key` that is a number, and that number.
fn kind_and_number(key: &[u8]) -> Option<(&[u8], u64)> {
    let mut end = key.len();
    loop {
        let begin = key[..end].iter().rposition(|byte| *byte == b'/')? + 1;
        let part = std::str::from_utf8(&key[begin..end]).ok();
        let digits = part.filter(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
        if let Some(number) = digits.and_then(|part| part.parse().ok()) {
            return Some((&key[..begin], number));
        }
        end = begin - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(of_rank: impl Fn(usize) -> String, ranks: impl Iterator<Item = usize>) -> Vec<Vec<u8>> {
        ranks.map(|rank| of_rank(rank).into_bytes()).collect()
    }

    fn entry(key: &[u8]) -> KeyValue {
        KeyValue {
            key: key.to_vec(),
            value: key.to_vec(),
            ..KeyValue::default()
        }
    }

    #[test]
    fn keys_of_all_ranks_are_one_operation_for_each_kind() {
        let mut wanted = keys(|rank| format!("job/keys/3/joined/{rank}"), 0..32);
        wanted.extend(keys(|rank| format!("job/keys/slot/{rank}/ended"), 0..32));
        wanted.extend(keys(
            |rank| format!("job/keys/slot/{rank}/incarnation"),
            0..32,
        ));
        wanted.push(b"job/keys/newest".to_vec());
        let spans = Span::together(&wanted);
        let sizes: Vec<usize> = spans.iter().map(|span| span.keys.len()).collect();
        assert_eq!(sizes, [1, 32, 64]);
        assert_eq!(Span::each(&wanted).len(), wanted.len());
    }

    #[test]
    fn few_keys_and_keys_far_apart_are_read_one_by_one() {
        let few = keys(|rank| format!("watch/{rank}"), 0..FEWEST - 1);
        assert_eq!(Span::together(&few).len(), FEWEST - 1);
        let apart = keys(
            |rank| format!("watch/{rank}"),
            (0..16).map(|rank| 100 * rank),
        );
        assert_eq!(Span::together(&apart).len(), 16);
        let same = keys(|_| "watch/7".to_owned(), 0..16);
        assert_eq!(
            Span::together(&same).len(),
            1,
            "a key that is asked for again"
        );
    }

    #[test]
    fn of_a_range_what_was_wanted_is_taken() {
        let wanted = keys(|rank| format!("slot/{rank}/ended"), 0..12);
        let spans = Span::together(&wanted);
        let [span] = &*spans else {
            panic!("{spans:?}");
        };
        let kvs = vec![
            entry(b"slot/10/ended"),
            entry(b"slot/10/incarnation"),
            entry(b"slot/9/ended"),
        ];
        let found = span
            .found(Range {
                kvs,
                ..Range::default()
            })
            .unwrap();
        let found: Vec<&[u8]> = found.into_iter().map(|(key, _)| key).collect();
        assert_eq!(found, [b"slot/10/ended".as_slice(), b"slot/9/ended"]);
        let cut = Range {
            more: true,
            ..Range::default()
        };
        assert_eq!(span.found(cut), None);
    }

    #[test]
    fn a_number_is_a_whole_part_of_a_key() {
        let found = |key: &'static str| kind_and_number(key.as_bytes());
        assert_eq!(
            found("a/3/joined/12"),
            Some((b"a/3/joined/".as_slice(), 12))
        );
        assert_eq!(found("a/slot/7/ended"), Some((b"a/slot/".as_slice(), 7)));
        assert_eq!(found("a/b2/c"), None);
        assert_eq!(found("12"), None);
        assert_eq!(found("a//"), None);
    }
}
