//! Sizes of a text model that a file of weights alone shows.

use std::path::Path;

use everburn_train::{PRETRAINED_CONFIG, Patterns, TrainError, WeightsMismatch, shown_sizes};
use toml::{Table, Value};

use super::{is_alone, lone_text};
use crate::arguments::keys::get;
use crate::config::RunConfig;
use crate::error::CliError;
use crate::{legible, tasks};

/// A setting of the model that the weights show otherwise.
struct Differing {
    key: String,
    theirs: Value,
    ours: Option<Value>,
}

/// Refuses a file of weights that shows other sizes than the text model has, before a text is read: its windows depend on
/// them. How many tokens there are is left to the text.
///
/// # Errors
/// [`CliError`] with the settings that the weights fit.
pub(crate) fn check_sizes(config: &RunConfig) -> Result<(), CliError> {
    let Some(path) = &config.init_from else {
        return Ok(());
    };
    let differing = differing(config, path).unwrap_or_default();
    let others = differing
        .iter()
        .filter(|it| !it.key.ends_with(".vocabulary"));
    let others: Vec<String> = others
        .map(|it| {
            let ours = it.ours.as_ref();
            let ours = ours.map_or_else(|| "unset".to_owned(), Value::to_string);
            format!("{} is {} there and {ours} here", it.key, it.theirs)
        })
        .collect();
    match others.is_empty() {
        true => Ok(()),
        false => Err(CliError::usage_with_help(
            format!(
                "the weights in {} are of a {} of another size: {}",
                legible(path.display()),
                config.model,
                others.join(", ")
            ),
            builds(config, &differing),
        )),
    }
}

/// The help for weights of another size of a text model, if they show it.
pub(super) fn help_to_size(error: &CliError, config: &RunConfig, path: &Path) -> Option<String> {
    let is_size = matches!(
        error,
        CliError::Train(TrainError::Weights {
            mismatch: WeightsMismatch::OtherSize { .. },
            ..
        })
    );
    let differing = differing(config, path).filter(|all| is_size && !all.is_empty())?;
    Some(builds(config, &differing))
}

/// The flags that set the sizes that the weights in `path` show, if they are others than the text model's.
pub(super) fn sizes_as_flags(config: &RunConfig, path: &Path) -> Option<String> {
    let differing = differing(config, path).filter(|differing| !differing.is_empty())?;
    Some(flags(config, &differing))
}

fn builds(config: &RunConfig, differing: &[Differing]) -> String {
    let heads = match open_heads(config, differing) {
        Some(_) => "; N is its number of heads, which no shape shows",
        None => "",
    };
    let flags = flags(config, differing);
    format!("{flags} builds the model that the weights fit{heads}")
}

/// The settings as flags, with the number of heads if it is open.
fn flags(config: &RunConfig, differing: &[Differing]) -> String {
    let sizes = differing.iter();
    let sizes = sizes.map(|it| format!("--set {}={}", it.key, it.theirs));
    let heads = open_heads(config, differing).map(|key| format!("--set {key}=N"));
    sizes.chain(heads).collect::<Vec<_>>().join(" ")
}

/// The setting of the number of heads, where the weights show another width and it is not set.
fn open_heads(config: &RunConfig, differing: &[Differing]) -> Option<String> {
    let width = differing
        .iter()
        .find_map(|it| it.key.strip_suffix(".width"))?;
    let heads = format!("{width}.heads");
    get(&config.sections, &heads).is_none().then_some(heads)
}

/// The settings of the text model that the weights in `path` show otherwise. `None` if they show none: it is no file alone,
/// or of another architecture.
fn differing(config: &RunConfig, path: &Path) -> Option<Vec<Differing>> {
    if !lone_text::reads_text(config) || !is_alone(path) {
        return None;
    }
    let configured = config.task().ok()?;
    // What cannot be read is refused when it is.
    let shown = shown_sizes(path, &configured.layout()).ok()?;
    let files = configured.pretrained_files().ok()?;
    let (_, own) = files.iter().find(|(name, _)| name == PRETRAINED_CONFIG)?;
    let own: serde_json::Value = serde_json::from_slice(own).ok()?;
    let mut theirs = own.clone();
    for (key, size) in shown {
        if let Some(place) = theirs.pointer_mut(key) {
            *place = size.into();
        }
    }
    let task = tasks::find(&config.model)?;
    let mut sections = task.sections().into_iter();
    let section = sections.find(|section| !["data", "text"].contains(section))?;
    let folder = path.parent()?;
    let settings = |json: &serde_json::Value| -> Option<Table> {
        let mut adopted = task.adopt(folder, json, &Patterns::default()).ok()??;
        match adopted.remove(section)? {
            Value::Table(settings) => Some(settings),
            _ => None,
        }
    };
    let (ours, theirs) = (settings(&own)?, settings(&theirs)?);
    let others = theirs
        .into_iter()
        .filter(|(key, value)| ours.get(key) != Some(value));
    let others = others.map(|(key, theirs)| Differing {
        ours: ours.get(&key).cloned(),
        key: format!("{section}.{key}"),
        theirs,
    });
    Some(others.collect())
}
