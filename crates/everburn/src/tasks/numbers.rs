//! The numbers of a model in its section of a configuration file.

use everburn_train::{TaskError, unknown_key};
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::Table;

/// A preset with the user's numbers, those of `[section]`. It may be one that cannot be built.
///
/// # Errors
/// If a number is unknown, or no such number.
pub(super) fn with_own<C: Serialize + DeserializeOwned>(
    preset: &C,
    section: &str,
    own: Option<&Table>,
) -> Result<C, TaskError> {
    let wrong = |key: &str, error| TaskError::new(format!("[{section}]: {key}: {error}"));
    let mut numbers = serde_json::to_value(preset)?;
    let mut read = serde_json::from_value(numbers.clone())?;
    for (key, value) in own.into_iter().flatten() {
        let Some(place) = numbers.get_mut(key) else {
            let known = numbers.as_object().into_iter().flat_map(|all| all.keys());
            let known: Vec<String> = known.cloned().collect();
            let names = known.iter().map(String::as_str);
            let error = TaskError::new(unknown_key(Some(section), key, names));
            return Err(error.with_known_keys(known));
        };
        *place = serde_json::to_value(value)?;
        read = serde_json::from_value(numbers.clone()).map_err(|error| wrong(key, error))?;
    }
    Ok(read)
}

/// Those of `keys`, by their paths in a configuration file, with the values that these numbers have.
pub(super) fn unshown<C: Serialize>(
    section: &str,
    numbers: &C,
    keys: &[&str],
) -> Vec<(String, String)> {
    // What cannot be written as TOML is refused with the model.
    let own = to_section(numbers).unwrap_or_default();
    let found = keys.iter().filter_map(|key| {
        let value = own.get(*key)?;
        Some((format!("{section}.{key}"), value.to_string()))
    });
    found.collect()
}

/// All numbers, as a section has them.
///
/// # Errors
/// If they cannot be written as TOML.
pub(super) fn to_section<C: Serialize>(numbers: &C) -> Result<Table, TaskError> {
    let mut own = serde_json::to_value(numbers)?;
    if let Some(own) = own.as_object_mut() {
        own.retain(|_, value| !value.is_null()); // TOML has none
    }
    Table::try_from(own).map_err(|error| TaskError::new(error.to_string()))
}
