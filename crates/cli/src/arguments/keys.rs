//! Flags that are keys of the configuration.
//!
//! A field of a section with `#[arg(long)]` is a flag: its documentation is the help, and the argument's id is the
//! field's path in `config.toml`, such as `training.ddp.max_gradient_norm`.

use std::any::TypeId;
use std::ffi::OsString;
use std::marker::PhantomData;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};
use everburn_distributed::{DdpConfig, OuterConfig};
use everburn_train::{
    AnyTask, EarlyStopping, EmaConfig, InputConfig, LoraConfig, OptimizerConfig, ParallelConfig,
    ScheduleNumbers, TrainingConfig, nearest_name,
};
use toml::{Table, Value};

use super::{DataKeys, TextKeys};
use crate::config::RanksConfig;
use crate::tasks;

/// A section of the configuration, whose fields are flags.
#[derive(Clone, Copy)]
pub(crate) struct Section {
    /// Its path in `config.toml`.
    path: &'static str,
    /// Adds its arguments, each called like its field.
    arguments: fn(Command) -> Command,
}

impl Section {
    const fn new<T: Args>(path: &'static str) -> Self {
        Self {
            path,
            arguments: T::augment_args,
        }
    }

    fn arguments(self) -> Vec<Arg> {
        let command = (self.arguments)(Command::new(self.path));
        let own = command.get_arguments().cloned();
        let absolute = |argument: Arg| {
            let id = format!("{}.{}", self.path, argument.get_id());
            // Whether a key must be given, the configuration says.
            argument.id(id).required(false).display_order(None)
        };
        own.map(absolute).collect()
    }
}

/// The sections of which a command has flags.
pub(crate) trait Sections {
    const ALL: &'static [Section];
}

/// What `train` takes.
#[derive(Debug, Clone, Default)]
pub(crate) struct OfTraining;

impl Sections for OfTraining {
    const ALL: &'static [Section] = &[
        Section::new::<TrainingConfig>("training"),
        Section::new::<OptimizerConfig>("training.optimizer"),
        Section::new::<ScheduleNumbers>("training.schedule_numbers"),
        Section::new::<EarlyStopping>("training.early_stopping"),
        Section::new::<EmaConfig>("training.ema"),
        Section::new::<TextKeys>("text"),
        Section::new::<LoraConfig>("training.lora"),
        Section::new::<DdpConfig>("training.ddp"),
        Section::new::<OuterConfig>("training.outer"),
        Section::new::<DataKeys>("data"),
        Section::new::<InputConfig>("training.input"),
        Section::new::<RanksConfig>("ranks"),
        Section::new::<ParallelConfig>("parallel"),
    ];
}

/// What `eval` and `predict` take.
#[derive(Debug, Clone, Default)]
pub(crate) struct OfEvaluation;

impl Sections for OfEvaluation {
    const ALL: &'static [Section] = &[
        Section::new::<DataKeys>("data"),
        Section::new::<RanksConfig>("ranks"),
    ];
}

/// What `import` takes.
#[derive(Debug, Clone, Default)]
pub(crate) struct OfImport;

impl Sections for OfImport {
    const ALL: &'static [Section] = &[Section::new::<DataKeys>("data")];
}

/// The keys that were given as flags: a table of the same shape as `config.toml`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Given<S> {
    pub(crate) table: Table,
    sections: PhantomData<S>,
}

impl<S: Sections> Given<S> {
    /// The same keys where other flags are taken.
    pub(crate) fn into_sections<O: Sections>(self) -> Given<O> {
        Given {
            table: self.table,
            sections: PhantomData,
        }
    }

    /// The value of the key at `path`, if its flag was given.
    pub(crate) fn get(&self, path: &str) -> Option<&Value> {
        get(&self.table, path)
    }

    pub(crate) fn has(&self, path: &str) -> bool {
        self.get(path).is_some()
    }

    /// The flag of the key at `path` with its value, as on a command line, if it was given.
    pub(crate) fn quoted(&self, path: &str) -> Option<String> {
        let words = self.words(|id| id == path);
        let words = words
            .iter()
            .map(everburn_record::plain::word)
            .collect::<Vec<_>>();
        (!words.is_empty()).then(|| words.join(" "))
    }

    /// The flags whose keys `wanted` selects, as words of a command line.
    pub(crate) fn words(&self, wanted: impl Fn(&str) -> bool) -> Vec<OsString> {
        let mut words = Vec::new();
        for argument in arguments(S::ALL) {
            let id = argument.get_id().as_str();
            let (Some(value), Some(long)) = (self.get(id), argument.get_long()) else {
                continue;
            };
            if !wanted(id) {
                continue;
            }
            words.push(format!("--{long}").into());
            match value {
                Value::Boolean(_) => {}
                Value::Array(values) => {
                    let values = values.iter().map(text).collect::<Vec<_>>();
                    words.push(values.join(",").into());
                }
                value => words.push(text(value).into()),
            }
        }
        words
    }
}

impl<S: Sections> Args for Given<S> {
    fn augment_args(command: Command) -> Command {
        command.args(arguments(S::ALL))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<S: Sections> FromArgMatches for Given<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut table = Table::new();
        for argument in arguments(S::ALL) {
            let id = argument.get_id().as_str();
            if matches.value_source(id) != Some(ValueSource::CommandLine) {
                continue;
            }
            let wrong = |reason: String| {
                let flag = argument.get_long().unwrap_or(id);
                Error::raw(ErrorKind::ValueValidation, format!("--{flag}: {reason}\n"))
            };
            let value = value(&argument, matches).map_err(wrong)?;
            put(&mut table, id, value).map_err(wrong)?;
        }
        Ok(Self {
            table,
            sections: PhantomData,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// What libraries name that has a flag and is no key of a section, and the flag.
const OF_COMMANDS: [(&str, &str); 20] = [
    ("GroupOptions::timeout", "--timeout"),
    ("GroupOptions::transport", "--transport"),
    ("HeartbeatOptions::timeout", "--heartbeat-timeout"),
    ("LaunchConfig::elastic", "--elastic"),
    ("LaunchConfig::log_dir", "--run-dir"),
    ("LaunchConfig::node_rank", "--node-rank"),
    ("LaunchConfig::nodes", "--nodes"),
    ("LaunchConfig::open_store", "--open-store"),
    ("LaunchConfig::ranks", "--ranks"),
    ("LaunchConfig::rendezvous", "--rendezvous"),
    ("LaunchConfig::store", "--store"),
    ("checkpoint", "--checkpoint"),
    ("init_from", "--init-from"),
    ("init_skip", "--init-skip"),
    ("output", "--output"),
    ("run_dir", "--run-dir"),
    ("save_pretrained", "--to hugging-face"),
    ("Trainer::recorder", "--profile"),
    ("Trainer::resume", "--resume"),
    ("elsewhere", "--of"),
];

/// `text` of a library with the flags of the keys that it names: `` `training.epochs = 3` `` is `--epochs 3` here.
pub(crate) fn with_flags(text: &str) -> String {
    if !text.contains('`') {
        return text.to_owned();
    }
    let all = arguments(OfTraining::ALL);
    let mut told = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('`') {
        told.push_str(before);
        let Some((part, after)) = after.split_once('`') else {
            rest = &rest[before.len()..];
            break;
        };
        rest = after;
        let (path, value) = match part.split_once(" = ") {
            Some((path, value)) => (path, Some(value)),
            None => (part, None),
        };
        let of_command = OF_COMMANDS.iter().find(|(name, _)| *name == path);
        if let Some((_, flag)) = of_command {
            told.push_str(flag);
            if let Some(value) = value {
                told.push_str(&format!(" {value}"));
            }
            continue;
        }
        let own = all.iter().find(|argument| argument.get_id() == path);
        let flag = own.and_then(|argument| Some((argument, argument.get_long()?)));
        match (flag, value) {
            (Some((argument, long)), Some(value)) if argument.get_action().takes_values() => {
                told.push_str(&format!("--{long} {value}"));
            }
            (Some((_, long)), _) => told.push_str(&format!("--{long}")),
            (None, _) => told.push_str(&format!("`{part}`")),
        }
    }
    told.push_str(rest);
    told
}

/// Sections of Everburn's own tasks. A program without such tasks does not show their flags.
const OF_TASKS: [&str; 2] = ["data", "text"];

/// The command line, whose help leaves out flags that none of the program's tasks uses.
pub(crate) fn hide_foreign(command: Command) -> Command {
    let used = tasks::tasks().iter().flat_map(AnyTask::sections);
    let used = used.collect::<Vec<_>>();
    let hidden = OF_TASKS
        .into_iter()
        .filter(|section| !used.contains(section));
    let hidden = hidden
        .map(|section| format!("{section}."))
        .collect::<Vec<_>>();
    if used.is_empty() || hidden.is_empty() {
        return command;
    }
    command.mut_subcommands(|command| {
        command.mut_args(|argument| {
            let id = argument.get_id().as_str();
            let is_hidden =
                argument.is_hide_set() || hidden.iter().any(|section| id.starts_with(section));
            argument.hide(is_hidden)
        })
    })
}

/// The path of the key whose name is most like `name`, in whatever section it is.
pub(crate) fn nearest_key(name: &str) -> Option<String> {
    let all = arguments(OfTraining::ALL);
    let paths = || all.iter().map(|argument| argument.get_id().as_str());
    let last = |path: &'_ str| path.rsplit('.').next().unwrap_or_default().to_owned();
    let names: Vec<String> = paths().map(last).collect();
    let nearest = nearest_name(name, names.iter().map(String::as_str))?;
    let found = paths().find(|path| last(path) == nearest);
    found.map(str::to_owned)
}

pub(crate) fn get<'a>(table: &'a Table, path: &str) -> Option<&'a Value> {
    let (section, key) = match path.rsplit_once('.') {
        Some((section, key)) => (get(table, section)?.as_table()?, key),
        None => (table, path),
    };
    section.get(key)
}

/// Puts `value` at the dotted `path` of `table`.
///
/// # Errors
/// The reason, if a part of the path has a value and is no section.
pub(crate) fn put(table: &mut Table, path: &str, value: Value) -> Result<(), String> {
    let mut table = table;
    let (parents, last) = path.rsplit_once('.').unwrap_or(("", path));
    for key in parents.split('.').filter(|key| !key.is_empty()) {
        let entry = table
            .entry(key)
            .or_insert_with(|| Value::Table(Table::new()));
        table = entry.as_table_mut().ok_or_else(|| {
            format!("`{path}` cannot be set: `{key}` has a value and is no section")
        })?;
    }
    table.insert(last.to_string(), value);
    Ok(())
}

fn arguments(sections: &[Section]) -> Vec<Arg> {
    let all = sections.iter().flat_map(|section| section.arguments());
    all.collect()
}

/// What was given for `argument`, as TOML: numbers and truth values by the field's type, all else as text.
fn value(argument: &Arg, matches: &ArgMatches) -> Result<Value, String> {
    let id = argument.get_id().as_str();
    let kind = argument.get_value_parser().type_id();
    let integer = |number: Option<u64>| {
        let number = number.and_then(|number| i64::try_from(number).ok());
        let number = number.ok_or_else(|| format!("a number above {}", i64::MAX));
        number.map(Value::Integer)
    };
    if kind == TypeId::of::<bool>() {
        return Ok(Value::Boolean(matches.get_flag(id)));
    }
    if kind == TypeId::of::<usize>() {
        return integer(matches.get_one::<usize>(id).map(|number| *number as u64));
    }
    if kind == TypeId::of::<u64>() {
        return integer(matches.get_one::<u64>(id).copied());
    }
    if kind == TypeId::of::<f64>() {
        let number = matches.get_one::<f64>(id).copied();
        return Ok(Value::Float(number.unwrap_or(f64::NAN)));
    }
    if kind == TypeId::of::<f32>() {
        let number = matches.get_one::<f32>(id).copied();
        return Ok(Value::Float(number.unwrap_or(f32::NAN).into()));
    }
    let given = matches.get_raw(id).into_iter().flatten();
    let texts = given.map(|text| match text.to_str() {
        Some(text) => Ok(Value::String(text.to_string())),
        None => Err("its value is not UTF-8".to_string()),
    });
    let mut texts = texts.collect::<Result<Vec<_>, _>>()?;
    match argument.get_value_delimiter() {
        Some(_) => Ok(Value::Array(texts)),
        None => texts.pop().ok_or_else(|| "no value".to_string()),
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        // As it was given: TOML has 2.0 for a 2.
        Value::Float(number) => number.to_string(),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests;
