//! The JSON of etcd's gateway: bytes are base64, 64-bit numbers are text, and what is zero is left out.

use data_encoding::BASE64;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

/// A transaction has at most this many operations unless etcd's operator has changed it (`--max-txn-ops`).
pub(super) const MOST_OPERATIONS: usize = 128;

/// How many bytes of keys one request asks for at most: a part of the 1.5 MiB that etcd takes.
pub(super) const MOST_KEY_BYTES: usize = 256 << 10;

fn base64(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// Reads one key.
pub(super) fn range(key: &[u8]) -> Value {
    json!({ "key": base64(key) })
}

/// Counts the keys that begin with `prefix`, which ends with a slash.
pub(super) fn count(prefix: &[u8]) -> Value {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    json!({ "key": base64(prefix), "range_end": base64(&end), "count_only": true })
}

pub(super) fn requested_range(key: &[u8]) -> Value {
    json!({ "request_range": range(key) })
}

/// Reads the keys from `first` to `last`, at most `limit` of them.
pub(super) fn requested_span(first: &[u8], last: &[u8], limit: usize) -> Value {
    let end = [last, &[0]].concat();
    json!({ "request_range": {
        "key": base64(first),
        "range_end": base64(&end),
        "limit": limit.to_string(),
    } })
}

pub(super) fn requested_put(key: &[u8], value: &[u8], lease: i64) -> Value {
    json!({ "request_put": {
        "key": base64(key),
        "value": base64(value),
        "lease": lease.to_string(),
    } })
}

pub(super) fn requested_delete(key: &[u8]) -> Value {
    json!({ "request_delete_range": { "key": base64(key) } })
}

/// Whether `key` was last written at this revision; 0: whether it is absent.
pub(super) fn if_revision(key: &[u8], revision: i64) -> Value {
    json!({
        "key": base64(key),
        "target": "MOD",
        "result": "EQUAL",
        "mod_revision": revision.to_string(),
    })
}

/// Whether `key` was written this many times since it was made; 0: whether it is absent.
pub(super) fn if_version(key: &[u8], version: i64) -> Value {
    json!({
        "key": base64(key),
        "target": "VERSION",
        "result": "EQUAL",
        "version": version.to_string(),
    })
}

pub(super) fn transaction(compare: &[Value], success: &[Value], failure: &[Value]) -> Value {
    json!({ "compare": compare, "success": success, "failure": failure })
}

/// Asks for the writes of `key` from this revision on.
pub(super) fn watch(key: &[u8], revision: i64) -> Value {
    json!({ "create_request": { "key": base64(key), "start_revision": revision.to_string() } })
}

pub(super) fn grant(seconds: u64) -> Value {
    json!({ "TTL": seconds.to_string() })
}

pub(super) fn lease(id: i64) -> Value {
    json!({ "ID": id.to_string() })
}

/// A key as it is in etcd.
#[derive(Debug, Default, Clone, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct KeyValue {
    #[serde(deserialize_with = "bytes")]
    pub(super) key: Vec<u8>,
    #[serde(deserialize_with = "bytes")]
    pub(super) value: Vec<u8>,
    #[serde(deserialize_with = "number")]
    pub(super) mod_revision: i64,
    #[serde(deserialize_with = "number")]
    pub(super) version: i64,
    #[serde(deserialize_with = "number")]
    pub(super) lease: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Range {
    pub(super) kvs: Vec<KeyValue>,
    #[serde(deserialize_with = "number")]
    pub(super) count: i64,
    /// Whether a limit has kept keys back.
    pub(super) more: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Transaction {
    pub(super) succeeded: bool,
    header: Header,
    responses: Vec<Response>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Header {
    #[serde(deserialize_with = "number")]
    revision: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Response {
    response_range: Option<Range>,
}

impl Transaction {
    /// The revision of etcd in which it was carried out.
    pub(super) fn revision(&self) -> i64 {
        self.header.revision
    }

    /// What was found under the `N` keys that it has read.
    pub(super) fn found<const N: usize>(self) -> Result<[Option<KeyValue>; N], String> {
        let ranges = self.ranges(N)?.into_iter();
        let found: Vec<_> = ranges.map(|range| range.kvs.into_iter().next()).collect();
        let count = found.len();
        found.try_into().map_err(|_| wrong_count(count, N))
    }

    /// The answers to its `count` reads.
    pub(super) fn ranges(self, count: usize) -> Result<Vec<Range>, String> {
        let answers = self.responses.into_iter();
        let ranges: Vec<_> = answers.filter_map(|it| it.response_range).collect();
        match ranges.len() == count {
            true => Ok(ranges),
            false => Err(wrong_count(ranges.len(), count)),
        }
    }
}

fn wrong_count(found: usize, asked: usize) -> String {
    format!("it answers {found} reads, and {asked} were asked for")
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Lease {
    #[serde(rename = "ID", deserialize_with = "number")]
    pub(super) id: i64,
    /// 0: the lease is over.
    #[serde(rename = "TTL", deserialize_with = "number")]
    pub(super) seconds: i64,
}

/// The only line of a stream.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct KeptAlive {
    pub(super) result: Option<Lease>,
}

/// A line of the stream of a watch.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Watched {
    pub(super) result: Events,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Events {
    pub(super) events: Vec<Value>,
}

/// What was wrong with a request: text and code, or, of a stream, an object with both.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Refusal {
    error: Value,
    message: String,
    code: i64,
}

impl Refusal {
    pub(super) fn text(&self) -> &str {
        if !self.message.is_empty() {
            return &self.message;
        }
        let text = self.error.as_str().or(self.error["message"].as_str());
        text.unwrap_or_default()
    }

    pub(super) fn code(&self) -> i64 {
        self.error["grpc_code"].as_i64().unwrap_or(self.code)
    }
}

fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    BASE64
        .decode(text.as_bytes())
        .map_err(|error| serde::de::Error::custom(format!("no base64: {error}")))
}

fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Number {
        Text(String),
        Number(i64),
    }
    match Number::deserialize(deserializer)? {
        Number::Number(number) => Ok(number),
        Number::Text(text) => text
            .parse()
            .map_err(|_| serde::de::Error::custom("no 64-bit number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_as_etcd_writes_them() {
        // As etcd 3.4 has sent it.
        let text = r#"{"header":{"cluster_id":"14841639068965178418","revision":"4"},"responses":[
            {"response_range":{"header":{"revision":"4"},"kvs":[{"key":"YQ==","create_revision":"2",
            "mod_revision":"3","version":"2","value":"MQ==","lease":"7587862094709088005"}],"count":"1"}},
            {"response_range":{"header":{"revision":"4"}}}]}"#;
        let answer: Transaction = serde_json::from_str(text).unwrap();
        assert!(!answer.succeeded);
        assert_eq!(answer.revision(), 4);
        let [first, second] = answer.found().unwrap();
        let expected = KeyValue {
            key: b"a".to_vec(),
            value: b"1".to_vec(),
            mod_revision: 3,
            version: 2,
            lease: 7_587_862_094_709_088_005,
        };
        assert_eq!((first, second), (Some(expected), None));
    }

    #[test]
    fn answers_that_are_none_are_refused() {
        for wrong in [
            r#"{"kvs":[{"value":"*"}]}"#,
            r#"{"kvs":[{"version":"x"}]}"#,
            r#"{"kvs":7}"#,
            "[",
        ] {
            assert!(serde_json::from_str::<Range>(wrong).is_err(), "{wrong}");
        }
        let none: Transaction = serde_json::from_str("{}").unwrap();
        let error = none.found::<2>().unwrap_err();
        assert!(error.contains("0 reads, and 2"), "{error}");
    }

    #[test]
    fn a_prefix_ends_before_the_next_one() {
        let counted = count(b"job/keys/");
        assert_eq!(counted["range_end"], base64(b"job/keys0"));
    }

    proptest::proptest! {
        #[test]
        fn nothing_in_an_answer_panics(text: String) {
            let _ = serde_json::from_str::<Transaction>(&text);
            let _ = serde_json::from_str::<KeptAlive>(&text);
            let _ = serde_json::from_str::<Watched>(&text);
        }
    }
}
