//! `docs/configuration.md`: every key of `config.toml`, with its type, default, flag and meaning.
//!
//! Keys and types come from serde's errors about a key that no structure has, defaults from `Default`, meanings from the
//! help of the flags. `configuration.txt` has the meaning of keys without a flag.

use std::collections::BTreeMap;
use std::fmt::Write;

use everburn_train::settings_by_path;
use toml::{Table, Value};

use super::{WRITE, lines, read, root, train};
use crate::config::RunConfig;

const PAGE: &str = "docs/configuration.md";
const WITHOUT_FLAG: &str = include_str!("configuration.txt");

/// A key that nothing has.
const NOWHERE: &str = "__nowhere";

/// The tables of a configuration, and its keys outside of them.
const ROOTS: [&str; 3] = ["ranks", "training", "parallel"];

/// What a key takes.
enum Kind {
    Table(Vec<String>),
    Tables(Vec<String>),
    Value(String),
}

/// serde's error about the key [`NOWHERE`] in `[path]`, or in `[[path]]`.
fn probe(path: &str, is_list: bool) -> String {
    let header = match is_list {
        true => format!("[[{path}]]"),
        false => format!("[{path}]"),
    };
    let text = format!("{header}\n{NOWHERE} = 1\n");
    let error = toml::from_str::<RunConfig>(&text).expect_err("no such key");
    error.to_string()
}

/// The words between backticks after `expected`.
fn expected(error: &str) -> Vec<String> {
    let (_, names) = error.rsplit_once("expected").unwrap_or_default();
    let names = names.split('`').skip(1).step_by(2);
    names.map(str::to_string).collect()
}

fn kind(path: &str) -> Kind {
    let error = probe(path, false);
    if error.contains("unknown field") {
        return Kind::Table(expected(&error));
    }
    if error.contains("unknown variant") {
        let names = expected(&error);
        let names = names.iter().map(|name| format!("`{name}`"));
        return Kind::Value(names.collect::<Vec<_>>().join(", "));
    }
    let inner = probe(path, true);
    if inner.contains("unknown field") {
        return Kind::Tables(expected(&inner));
    }
    let what = error.lines().find_map(|line| line.split_once("expected "));
    let what = what.map_or("", |(_, what)| what.trim());
    let name = match what {
        "usize" | "u64" | "u32" => "integer",
        "f64" | "f32" => "number",
        "a boolean" => "boolean",
        "a sequence" => "list",
        "a string" | "path string" => "string",
        _ => "string, or list",
    };
    Kind::Value(name.to_string())
}

/// Every key below `path`, with its type.
fn keys(path: &str, found: &mut Vec<(String, String)>) {
    match kind(path) {
        Kind::Table(names) => names
            .iter()
            .for_each(|name| keys(&format!("{path}.{name}"), found)),
        Kind::Tables(names) => {
            found.push((path.to_string(), "list of tables".to_string()));
            for name in names {
                let of_key = match name.as_str() {
                    "match" => "string, or list",
                    "frozen" => "boolean",
                    _ => "number",
                };
                found.push((format!("{path}.{name}"), of_key.to_string()));
            }
        }
        Kind::Value(name) => found.push((path.to_string(), name)),
    }
}

/// The flag of each key that has one: an argument's id is its key.
fn flags() -> BTreeMap<String, String> {
    let train = train();
    let arguments = train.get_arguments();
    let keys = arguments.filter(|argument| argument.get_id().as_str().contains('.'));
    let flags = keys.filter_map(|argument| {
        let flag = format!("--{}", argument.get_long()?);
        Some((argument.get_id().to_string(), flag))
    });
    let others = [
        ("model", "MODEL"),
        ("init_from", "--init-from"),
        ("init_skip", "--init-skip"),
    ];
    let others = others.map(|(key, flag)| (key.to_string(), flag.to_string()));
    flags.chain(others).collect()
}

/// The type of a key, by a value that its flag gives.
fn kind_by_example(key: &str) -> &'static str {
    let lines = lines();
    let mut values = lines.iter().flat_map(|line| &line.becomes);
    let value = values.find_map(|text| text.strip_prefix(key)?.strip_prefix(" = "));
    let table = value.and_then(|value| toml::from_str::<Table>(&format!("v = {value}")).ok());
    match table.as_ref().and_then(|table| table.get("v")) {
        Some(Value::Integer(_)) => "integer",
        Some(Value::Float(_)) => "float",
        Some(Value::Boolean(_)) => "boolean",
        Some(Value::Array(_)) => "array",
        _ => "string",
    }
}

/// The help of a flag of `train`, without its default and full stop.
fn help(flag: &str) -> String {
    let train = train();
    let name = flag.trim_start_matches("--").to_lowercase();
    let mut arguments = train.get_arguments();
    let found = arguments
        .find(|argument| argument.get_long() == Some(&name) || argument.get_id().as_str() == name);
    let text = found
        .and_then(|found| found.get_help())
        .map(ToString::to_string);
    let text = text.unwrap_or_default();
    let text = text.split(" [default").next().unwrap_or_default();
    text.trim().trim_end_matches('.').to_string()
}

/// The meaning of each key without a flag.
fn meanings() -> BTreeMap<&'static str, &'static str> {
    let lines = WITHOUT_FLAG.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| line.split_once('|'))
        .map(|(key, meaning)| (key.trim(), meaning.trim()))
        .collect()
}

fn document() -> String {
    let mut text = String::from(
        "# Configuration\n\n\
         Every key of `config.toml`, for `--config` and `--set KEY=VALUE`. A run's folder contains the resolved configuration. \
         [Configuration files](command-line.md) says which source wins. A key without a default is absent.\n\n\
         This page is generated from the code by `crates/cli/src/flag_table/configuration.rs`.\n\n\
         | Key | Type | Default | Flag | Meaning |\n|---|---|---|---|---|\n",
    );
    let table = Table::try_from(RunConfig::default()).expect("a configuration is a table");
    let defaults = settings_by_path(&table);
    let mut found = vec![
        ("model".to_string(), "string".to_string()),
        ("init_from".to_string(), "string".to_string()),
        ("init_skip".to_string(), "string, or list".to_string()),
    ];
    ROOTS.iter().for_each(|root| keys(root, &mut found));
    let (flags, meanings) = (flags(), meanings());
    for (key, of_key) in &found {
        let default = defaults.get(key).filter(|default| *default != "\"\"");
        let default = default.map_or(String::new(), |default| format!("`{default}`"));
        let flag = flags.get(key).map(String::as_str);
        let meaning = match (meanings.get(key.as_str()), flag) {
            (Some(meaning), _) => (*meaning).to_string(),
            (None, Some(flag)) => help(flag),
            (None, None) => panic!(
                "{key} has no flag: crates/cli/src/flag_table/configuration.txt needs its meaning"
            ),
        };
        row(&mut text, key, of_key, &default, flag, &meaning);
    }
    text.push_str(
        "\n## Sections of tasks\n\nThe settings of a task are in their own sections; a run's `config.toml` has all of them. \
         Settings of the included tasks that have a flag:\n\n\
         | Key | Type | Flag | Meaning |\n|---|---|---|---|\n",
    );
    for (key, flag) in &flags {
        if found.iter().any(|(known, _)| known == key) {
            continue;
        }
        let _ = writeln!(
            text,
            "| `{key}` | {} | `{flag}` | {} |",
            kind_by_example(key),
            cell(&help(flag))
        );
    }
    text
}

fn row(
    text: &mut String,
    key: &str,
    of_key: &str,
    default: &str,
    flag: Option<&str>,
    meaning: &str,
) {
    let flag = match flag {
        Some("MODEL") => "the model".to_string(),
        Some(flag) => format!("`{flag}`"),
        None => String::new(),
    };
    let _ = writeln!(
        text,
        "| `{key}` | {of_key} | {default} | {flag} | {} |",
        cell(meaning)
    );
}

/// Text for a cell of a table: links in angle brackets and bars would end it.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
        .replace('<', "&lt;")
        .replace('*', "\\*")
}

#[test]
fn the_page_of_the_configuration_is_up_to_date() {
    let (path, text) = (root().join(PAGE), document());
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, &text).expect("the page can be written");
    }
    assert!(
        read(PAGE) == text,
        "{PAGE} is not what the configuration has: write it anew with {WRITE}=1 and this test"
    );
}

#[test]
fn every_meaning_is_of_a_key() {
    let mut found = Vec::new();
    ROOTS.iter().for_each(|root| keys(root, &mut found));
    for key in meanings().keys() {
        let is_key = ["model", "init_from", "init_skip"].contains(key);
        let is_found = found.iter().any(|(known, _)| known == key);
        assert!(is_key || is_found, "there is no key {key}");
    }
}
