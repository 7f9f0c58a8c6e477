//! The keys of a `config.json` and of other such files of pretrained models.

use std::path::Path;

use everburn_record::plain;
use everburn_train::TaskError;
use serde_json::Value;

/// No model has a larger size: layers, widths, tokens.
const LARGEST_SIZE: usize = 1 << 28;

/// How much of a value is shown, in characters.
const LONGEST_VALUE: usize = 80;

/// The longest file that is read, in bytes.
const LONGEST_FILE: u64 = 1 << 20;

/// What this file in the folder of a pretrained model says; `None` if it has no such file.
pub(super) fn read_json(folder: &Path, file: &str) -> Result<Option<Value>, TaskError> {
    let path = folder.join(file);
    if !path.is_file() {
        return Ok(None);
    }
    let wrong = |reason: String| TaskError::new(format!("{file}: {reason}"));
    let size = std::fs::metadata(&path)?.len();
    if size > LONGEST_FILE {
        return Err(wrong(format!(
            "it has {size} bytes, and at most {LONGEST_FILE} are read"
        )));
    }
    let text = std::fs::read(&path).map_err(|error| wrong(error.to_string()))?;
    let json = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
    Ok(Some(json))
}

/// The keys of a file.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a> {
    file: &'static str,
    pub(super) json: &'a Value,
}

impl<'a> Keys<'a> {
    /// Those of a `config.json`.
    pub(super) fn of_config(json: &'a Value) -> Self {
        Self::of("config.json", json)
    }

    /// Those of another file, which errors name.
    pub(super) fn of(file: &'static str, json: &'a Value) -> Self {
        Self { file, json }
    }

    pub(super) fn kind(&self) -> &'a str {
        self.json["model_type"].as_str().unwrap_or_default()
    }

    /// A size; `default` if the key is absent or null.
    pub(super) fn size(&self, key: &str, default: Option<usize>) -> Result<usize, TaskError> {
        match (&self.json[key], default) {
            (Value::Null, Some(default)) => Ok(default),
            (value, _) => {
                let size = value.as_u64().and_then(|size| usize::try_from(size).ok());
                let size = size.filter(|size| *size <= LARGEST_SIZE);
                size.ok_or_else(|| {
                    self.wrong(key, &format!("a whole number, at most {LARGEST_SIZE}"))
                })
            }
        }
    }

    pub(super) fn number(&self, key: &str, default: f64) -> Result<f64, TaskError> {
        match &self.json[key] {
            Value::Null => Ok(default),
            value => value.as_f64().ok_or_else(|| self.wrong(key, "a number")),
        }
    }

    pub(super) fn flag(&self, key: &str, default: bool) -> Result<bool, TaskError> {
        match &self.json[key] {
            Value::Null => Ok(default),
            value => value
                .as_bool()
                .ok_or_else(|| self.wrong(key, "true or false")),
        }
    }

    /// Refuses a model in which one of these differs.
    pub(super) fn require(&self, values: &[(&str, Value)]) -> Result<(), TaskError> {
        let differs = |(key, value): &&(&str, Value)| {
            let found = &self.json[*key];
            let same = match (found.as_f64(), value.as_f64()) {
                (Some(found), Some(value)) => found == value, // 0 and 0.0
                _ => found == value,
            };
            !found.is_null() && !same
        };
        match values.iter().find(differs) {
            Some((key, value)) => Err(self.unsupported(key, &value.to_string())),
            None => Ok(()),
        }
    }

    /// Refuses keys besides these, in an object at `name`.
    pub(super) fn only(&self, name: &str, known: &[&str]) -> Result<(), TaskError> {
        let mut all = self.json.as_object().into_iter().flat_map(|all| all.keys());
        match all.find(|key| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some(key) => Err(TaskError::new(format!(
                "{}: {name} has the key {}, which is not known",
                self.file,
                plain::line(key, LONGEST_VALUE)
            ))
            .with_help(format!(
                "this model is not supported: Everburn computes with {} there, and another key may change the results",
                known.join(", ")
            ))),
        }
    }

    /// An error about a key that is missing, or has a value that is not `expected`.
    pub(super) fn wrong(&self, key: &str, expected: &str) -> TaskError {
        self.error(key).with_help(format!(
            "it must be {expected}: copy or download the folder again"
        ))
    }

    /// An error about a model that computes otherwise than Everburn, which computes what `supported` says.
    pub(super) fn unsupported(&self, key: &str, supported: &str) -> TaskError {
        self.error(key).with_help(format!(
            "this model is not supported: Everburn computes with {key} {supported}, and another value in {} would give wrong \
             results",
            self.file
        ))
    }

    /// An error that shows the start of the value.
    fn error(&self, key: &str) -> TaskError {
        let found = match &self.json[key] {
            Value::Null => "is missing".to_string(),
            found => {
                format!("is {}", plain::line(&found.to_string(), LONGEST_VALUE))
            }
        };
        TaskError::new(format!("{}: {key} {found}", self.file))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use burn::module::Module;
    use everburn_train::{Patterns, StateDictLayout, load_state_dict_except, save_pretrained};
    use serde_json::{Value, json};

    use super::Keys;

    #[test]
    fn a_value_that_is_not_supported_is_no_advice_to_edit_the_file() {
        let json = json!({"n_inner": 80, "rope": "a".repeat(100), "width": "wide"});
        let keys = Keys::of_config(&json);
        let error = keys.require(&[("n_inner", json!(256))]).unwrap_err();
        assert_eq!(error.to_string(), "config.json: n_inner is 80");
        let help = error.help().unwrap();
        assert!(help.starts_with(
            "this model is not supported: Everburn computes with n_inner 256, and another value"
        ));
        assert!(
            help.ends_with("in config.json would give wrong results"),
            "{help}"
        );
        let cut = keys.unsupported("rope", "default").to_string();
        let expected = format!("config.json: rope is \"{}…", "a".repeat(78));
        assert_eq!(cut, expected);
        let width = keys.size("width", None).unwrap_err();
        let help = width.help().unwrap();
        assert!(help.starts_with("it must be a whole number"), "{help}");
    }

    /// That each of these keys, as JSON pointers, is named with both values where the `config.json` of `model` contradicts
    /// the weights, which do not fit `other`.
    pub(in crate::tasks) fn each_contradiction_is_named<M: Module>(
        [model, other]: [M; 2],
        layout: &StateDictLayout,
        config_json: &Value,
        keys: &[&str],
    ) {
        let here = tempfile::tempdir().unwrap();
        let folder = here.path().join("model");
        save_pretrained(&model, layout, &[], &folder, u64::MAX).unwrap();
        let told = |json: &Value| {
            std::fs::write(folder.join("config.json"), json.to_string()).unwrap();
            let skip = Patterns::default();
            let loaded = load_state_dict_except(other.clone(), &folder, &skip, layout);
            loaded.unwrap_err().to_string()
        };
        let own = told(config_json);
        assert!(!own.contains("contradict"), "{own}");
        for key in keys {
            let mut wrong = config_json.clone();
            let value = wrong.pointer_mut(key).unwrap();
            let size = match &mut *value {
                Value::Object(entries) => {
                    entries.insert("another".to_string(), json!("class"));
                    entries.len() - 1
                }
                value => {
                    let size = value.as_u64().unwrap() as usize;
                    *value = json!(size + 1);
                    size
                }
            };
            let told = told(&wrong);
            let name = key[1..].replace('/', ".");
            let stated = size + 1;
            let expected =
                format!("{name} is {stated} in config.json, and {size} in model.safetensors");
            assert!(told.contains(&expected), "{expected}: {told}");
        }
    }
}
