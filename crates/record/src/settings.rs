//! `config.toml` as a list of keys and values.

use std::path::Path;

use toml::{Table, Value};

use crate::{file, plain};

/// The longest file that is read of a run.
const LONGEST: u64 = 4 << 20;

/// More settings than a configuration has.
const MOST_SETTINGS: usize = 2000;

/// How much of a value is kept.
const LONGEST_VALUE: usize = 400;

/// A configuration: each setting by its whole path, sorted.
///
/// ```
/// let settings: everburn_record::Settings = "model = 'mnist'\n[ranks]\nranks = 2\njob_token = 'abc'".parse()?;
/// assert_eq!(settings.get("ranks.ranks"), Some("2"));
/// assert_eq!(settings.get("ranks.job_token"), Some("(not shown)"));
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settings(Vec<(String, String)>);

impl Settings {
    /// The file's name in the folder of a run.
    pub const FILE: &str = "config.toml";

    /// All settings.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// The value of the setting with this path.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter()
            .find(|(other, _)| *other == key)
            .map(|(_, value)| value)
    }

    /// On how many machines a run with these settings is: one, where they do not say.
    pub fn machines(&self) -> usize {
        self.number("ranks.nodes").unwrap_or(1)
    }

    /// How many ranks it has on each of them, where that is known.
    ///
    /// ```
    /// let settings: everburn_record::Settings = "[ranks]\nranks = 4\nnodes = 2\n".parse()?;
    /// assert_eq!((settings.ranks_per_machine(), settings.machines()), (Some(4), 2));
    /// # Ok::<(), String>(())
    /// ```
    pub fn ranks_per_machine(&self) -> Option<usize> {
        self.number("ranks.ranks")
    }

    fn number(&self, key: &str) -> Option<usize> {
        self.get(key)?.parse().ok()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those of the run in a folder, where they can be read.
    pub fn of_run(run: &Path) -> Option<Self> {
        let text = file::read_text(&run.join(Self::FILE), LONGEST).ok()?;
        text.parse().ok()
    }
}

impl std::str::FromStr for Settings {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // What is in the file is not repeated: its message alone says where, and what was expected.
        let table = text.parse::<Table>().map_err(|error| {
            let line = error
                .span()
                .map(|span| text[..span.start.min(text.len())].lines().count());
            let place = line.map_or(String::new(), |line| format!(" (line {})", line.max(1)));
            format!("{}{place}", plain::line(error.message(), 200))
        })?;
        let mut settings = Vec::new();
        flatten("", &table, &mut settings);
        settings.truncate(MOST_SETTINGS);
        Ok(Self(settings))
    }
}

fn flatten(prefix: &str, table: &Table, settings: &mut Vec<(String, String)>) {
    for (key, value) in table {
        if settings.len() >= MOST_SETTINGS {
            return;
        }
        let path = match prefix {
            "" => key.clone(),
            prefix => format!("{prefix}.{key}"),
        };
        let text = match value {
            Value::Table(table) => {
                flatten(&path, table, settings);
                continue;
            }
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let shown = plain::unless_secret(key, &text);
        settings.push((
            plain::line(&path, LONGEST_VALUE),
            plain::line(shown, LONGEST_VALUE),
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_become_paths() {
        let text = "a = 'x\u{7}y'\n[b]\nc = [1, 2]\n[b.d]\ne = 1e-3\n";
        assert!(text.parse::<Settings>().unwrap_err().contains("line 1"));
        let settings = text.replace('\u{7}', " ").parse::<Settings>().unwrap();
        let shown: Vec<_> = settings.iter().collect();
        assert_eq!(shown, [("a", "x y"), ("b.c", "[1, 2]"), ("b.d.e", "0.001")]);
    }

    #[test]
    fn an_error_does_not_repeat_the_file() {
        let text = "model = 'mnist'\n-----BEGIN PRIVATE KEY-----\n";
        let error = text.parse::<Settings>().unwrap_err();
        assert!(
            error.contains("line 2") && !error.contains("PRIVATE"),
            "{error}"
        );
    }
}
