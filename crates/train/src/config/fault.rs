//! What is wrong with a configuration, in words for its author.

use everburn_record::plain;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

/// The longest message of the parser that is shown, in characters.
const LONGEST: usize = 400;

/// How alike a name and its suggestion are at least, from 0 to 1: by their common letters, and by their edits.
const ALIKE: f64 = 0.8;
const ALIKE_BY_EDITS: f64 = 0.6;

/// The most keys that are listed where none of them is like the one that was given.
const MOST_LISTED: usize = 24;

/// What is wrong with the TOML in `text`, in one line. The text's own lines are left out: they may
/// hold anything, and the file may be a link to another one.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::configuration_fault;
///
/// let text = "epochs = 3\nseed = \u{1b}[2J";
/// let error = text.parse::<toml::Table>().unwrap_err();
/// let fault = configuration_fault(&error, text);
/// assert!(fault.starts_with("line 2: ") && !fault.contains('\u{1b}'), "{fault}");
/// ```
///
/// A key that does not exist gets a suggestion, with its section:
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{TrainingConfig, configuration_fault};
/// use serde::Deserialize;
///
/// let table: toml::Table = "seeds = 3".parse()?;
/// let error = TrainingConfig::deserialize(toml::Value::Table(table)).unwrap_err();
/// assert_eq!(configuration_fault(&error, ""), "unknown key `seeds`; did you mean `seed`?");
/// # Ok::<(), toml::de::Error>(())
/// ```
pub fn configuration_fault(error: &toml::de::Error, text: &str) -> String {
    let whole = error.to_string();
    let message = of_serde(error.message(), key_of(&whole));
    let Some(span) = error.span() else {
        return plain::line(message.as_deref().unwrap_or(whole.trim_end()), LONGEST);
    };
    let message = message.unwrap_or_else(|| error.message().trim().to_owned());
    let before = text.as_bytes().iter().take(span.start);
    let line = 1 + before.filter(|byte| **byte == b'\n').count();
    format!("line {line}: {}", plain::line(&message, LONGEST))
}

/// The configuration of a table, or [what is wrong with it](configuration_fault). The parser's words
/// for a number in the place of a name lack the names, so it is read again as a name.
///
/// # Errors
/// What is wrong, in one line.
pub fn configuration_of<T: DeserializeOwned>(table: Table) -> Result<T, String> {
    let mut table = Value::Table(table);
    let error = match T::deserialize(table.clone()) {
        Ok(configuration) => return Ok(configuration),
        Err(error) => error,
    };
    let fault = configuration_fault(&error, "");
    let whole = error.to_string();
    let path = key_of(&whole).filter(|_| error.message().contains("string only"));
    let place = path.and_then(|path| {
        let mut keys = path.split('.');
        keys.try_fold(&mut table, |table, key| table.get_mut(key))
    });
    let Some(place) = place else {
        return Err(fault);
    };
    *place = Value::String(place.to_string());
    let again = T::deserialize(table).err();
    Err(again.map_or(fault, |error| configuration_fault(&error, "")))
}

/// The path of the key that an error about values is about: its second line.
fn key_of(error: &str) -> Option<&str> {
    let mut lines = error.lines();
    lines.find_map(|line| line.strip_prefix("in `")?.strip_suffix('`'))
}

/// The one of `names` that is most like `name`, if one is like it at all.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::nearest_name;
///
/// assert_eq!(nearest_name("mpl", ["mnist", "mlp", "vit"]), Some("mlp"));
/// assert_eq!(nearest_name("lr", ["seed", "learning_rate"]), Some("learning_rate"));
/// assert_eq!(nearest_name("xyz", ["mnist", "mlp", "vit"]), None);
/// ```
pub fn nearest_name<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let likeness = |known: &str| {
        let words = known.split(['_', '-']);
        if words
            .filter_map(|word| word.chars().next())
            .eq(name.chars())
        {
            return Some(1.0); // `lr` for `learning_rate`
        }
        // Two letters are in many names.
        let letters = match name.len() {
            0..3 => 0.0,
            _ => strsim::jaro_winkler(name, known),
        };
        let edits = strsim::normalized_damerau_levenshtein(name, known);
        (letters > ALIKE || edits > ALIKE_BY_EDITS).then(|| letters.max(edits))
    };
    let alike = names
        .into_iter()
        .filter_map(|known| Some((likeness(known)?, known)));
    alike
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, known)| known)
}

/// What serde says of a key that does not exist, with a suggestion instead of all keys.
fn of_serde(message: &str, section: Option<&str>) -> Option<String> {
    let (key, known) = unknown_field(message)?;
    Some(unknown_key(section, key, known))
}

/// The key that does not exist, and those that do.
fn unknown_field(message: &str) -> Option<(&str, Vec<&str>)> {
    let rest = message.trim().strip_prefix("unknown field `")?;
    let (key, rest) = rest.split_once('`')?;
    // Every second piece stands between the quotation marks.
    Some((key, rest.split('`').skip(1).step_by(2).collect()))
}

/// The keys of `T`, if `table` has a key that `T` does not have; else none.
pub(crate) fn known_keys<T: DeserializeOwned>(table: Table) -> Vec<String> {
    let error = T::deserialize(Value::Table(table)).err();
    let refused = error
        .as_ref()
        .and_then(|error| unknown_field(error.message()));
    let known = refused.into_iter().flat_map(|(_, known)| known);
    known.map(str::to_owned).collect()
}

/// That `section` has no `key`, and which of the `known` ones may have been meant.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::unknown_key;
///
/// let told = unknown_key(Some("gpt"), "layer", ["layers", "heads"]);
/// assert_eq!(told, "unknown key `gpt.layer`; did you mean `gpt.layers`?");
/// ```
pub fn unknown_key<'a>(
    section: Option<&str>,
    key: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    let path = |key: &str| match section {
        Some(section) => format!("{section}.{key}"),
        None => key.to_owned(),
    };
    let help = match nearest_name(key, known.iter().copied()) {
        Some(nearest) => format!("; did you mean `{}`?", path(nearest)),
        None if known.is_empty() => String::new(),
        None if known.len() <= MOST_LISTED => format!("; the keys are {}", known.join(", ")),
        None => format!(
            "; it is none of {} keys, among them {}",
            known.len(),
            known[..MOST_LISTED].join(", ")
        ),
    };
    format!("unknown key `{}`{help}", path(key))
}

#[cfg(test)]
mod tests {
    use everburn_tests::AssertContains;

    use super::*;

    #[test]
    fn a_number_in_the_place_of_a_name_is_answered_with_the_names() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Channels {
            Rgb,
            Grey,
        }
        #[derive(Debug, serde::Deserialize)]
        struct Data {
            channels: Channels,
        }
        #[derive(Debug, serde::Deserialize)]
        struct Config {
            data: Data,
        }
        let told = |value: &str| {
            let text = format!("data.channels = {value}");
            configuration_of::<Config>(text.parse().unwrap()).unwrap_err()
        };
        let of_name = told("'1'");
        assert!(of_name.contains("`rgb` or `grey`"), "{of_name}");
        for number in ["1", "1.5", "true", "[]"] {
            assert_eq!(told(number), of_name.replace('1', number));
        }
        let read = configuration_of::<Config>("data.channels = 'grey'".parse().unwrap());
        assert!(matches!(read.unwrap().data.channels, Channels::Grey));
        let read = configuration_of::<Config>("data.channels = 'rgb'".parse().unwrap());
        assert!(matches!(read.unwrap().data.channels, Channels::Rgb));
    }

    #[test]
    fn a_refused_key_leads_to_those_that_there_are() {
        #[derive(Default, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        struct Shapes {
            width: Option<usize>,
            depth: usize,
        }
        let known = |text: &str| known_keys::<Shapes>(text.parse().unwrap());
        assert_eq!(known("'' = true"), ["width", "depth"]);
        assert!(known("depth = 'a'").is_empty());
        let read: Shapes = configuration_of("width = 3".parse().unwrap()).unwrap();
        assert_eq!((read.width, read.depth), (Some(3), 0));
        assert!(known("width = 3").is_empty());
    }

    #[test]
    fn a_key_like_none_is_answered_with_some_of_those_that_exist() {
        let message = "unknown field `zzz`, expected `a` or `b`";
        assert_eq!(
            of_serde(message, Some("training")).unwrap(),
            "unknown key `training.zzz`; the keys are a, b"
        );
        let many: Vec<String> = (0..40).map(|number| format!("`key_{number}`")).collect();
        let message = format!("unknown field `zzz`, expected one of {}", many.join(", "));
        let told = of_serde(&message, None).unwrap();
        told.assert_contains(["none of 40 keys, among them key_0, key_1,"]);
        assert!(!told.contains("key_24"), "{told}");
        assert_eq!(of_serde("invalid type: string \"a\"", None), None);
    }
}
