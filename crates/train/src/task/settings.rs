//! Settings by their paths.

use std::collections::BTreeMap;

use toml::{Table, Value};

/// The values of a configuration by their paths, as TOML writes them.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::settings_by_path;
///
/// let settings = settings_by_path(&toml::from_str("[training.ddp]\nbuffers = 'sync'").unwrap());
/// assert_eq!(settings["training.ddp.buffers"], "\"sync\"");
/// ```
pub fn settings_by_path(table: &Table) -> BTreeMap<String, String> {
    let mut settings = BTreeMap::new();
    for (key, value) in table {
        match value {
            Value::Table(section) => {
                let below = settings_by_path(section).into_iter();
                settings.extend(below.map(|(path, value)| (format!("{key}.{path}"), value)));
            }
            value => drop(settings.insert(key.clone(), value.to_string())),
        }
    }
    settings
}

/// Removes the value at a path, if it is there.
pub(super) fn remove(table: &mut Table, path: &str) {
    match path.split_once('.') {
        None => drop(table.remove(path)),
        Some((section, rest)) => {
            if let Some(Value::Table(section)) = table.get_mut(section) {
                remove(section, rest);
            }
        }
    }
}
