//! Every argument of `train`: what it puts into the configuration, and by which test the binary is given it.
//!
//! The table is `flag_table/flags.txt`. An argument without a line fails here, and so does one that changes nothing, or
//! something else than its line says. `docs/flags.md` is generated from the lines.

mod configuration;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use clap::{CommandFactory, Parser};
use everburn_train::settings_by_path;
use toml::Table;

use crate::arguments::{Arguments, Command, TrainArguments};
use crate::config::RunConfig;
use crate::tasks::tasks;

const LINES: &str = include_str!("flag_table/flags.txt");

/// With this variable the document is written anew.
const WRITE: &str = "EVERBURN_WRITE_FLAGS";

/// Of no configuration: it ends the program, or wants a file that is there.
const UNTRIED: [&str; 3] = ["--help", "--config", "--resume"];

/// A line of the table.
#[derive(Debug)]
struct Line {
    /// The argument as it is given, with a value that is not its default.
    given: &'static str,
    /// The keys of the configuration that it changes, with their values; none where it is no part of that.
    becomes: Vec<&'static str>,
    /// What is before it on the command line, after `train`.
    before: &'static str,
    /// The file of a test that gives it to the binary, and the test's name.
    test: (&'static str, &'static str),
}

fn lines() -> Vec<Line> {
    let lines = LINES.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(Line::of).collect()
}

impl Line {
    fn of(line: &'static str) -> Self {
        let columns: Vec<&str> = line.split('|').map(str::trim).collect();
        let [given, becomes, before, test] = columns[..] else {
            panic!("`{line}` has other columns than four");
        };
        let test = test.split_once("::");
        Self {
            given,
            becomes: match becomes {
                "-" => Vec::new(),
                keys => keys.split(';').map(str::trim).collect(),
            },
            before: if before.is_empty() { "mlp" } else { before },
            test: test.unwrap_or_else(|| panic!("`{line}` names no test")),
        }
    }

    /// `--flag`, or the name of what is given without one.
    fn name(&self) -> &'static str {
        let first = self.given.split(' ').next().unwrap_or_default();
        if first.starts_with("--") {
            first
        } else {
            "MODEL"
        }
    }
}

fn train() -> clap::Command {
    let mut all = Arguments::command();
    all.build();
    let train = all.find_subcommand("train");
    train.expect("`train` is a command").clone()
}

/// The names of all arguments of `train`, as its help has them.
fn arguments() -> Vec<String> {
    let train = train();
    // Old names are hidden.
    let shown = train
        .get_arguments()
        .filter(|argument| !argument.is_hide_set());
    let names = shown.map(|argument| {
        assert!(argument.get_short().is_none_or(|short| short == 'h'));
        match argument.get_long() {
            Some(long) => format!("--{long}"),
            None => argument.get_id().to_string().to_uppercase(),
        }
    });
    names.collect()
}

/// The configuration by these words after `train`, each of its keys with its value; what is wrong with them.
fn configuration(words: &str) -> Result<BTreeMap<String, String>, String> {
    let words = ["everburn", "train"]
        .into_iter()
        .chain(words.split_whitespace());
    let parsed = Arguments::try_parse_from(words).map_err(|error| error.to_string())?;
    let Command::Train(arguments) = parsed.command else {
        return Err("another command".to_string());
    };
    let arguments: &TrainArguments = &arguments;
    let config = RunConfig::resolve(arguments, None).map_err(|error| error.to_string())?;
    let table = Table::try_from(&config).expect("a configuration is a table");
    Ok(settings_by_path(&table))
}

/// The lines of `config.toml` that `line` changes, as they then are.
fn changes(line: &Line) -> Result<Vec<String>, String> {
    let Line { given, before, .. } = line;
    let words = match line.name() {
        "MODEL" => (*given).to_string(),
        _ => format!("{before} {given}"),
    };
    let (without, with) = (configuration(before)?, configuration(&words)?);
    let is_new = |(key, value): &(&String, &String)| without.get(*key) != Some(value);
    let changed = with.iter().filter(is_new);
    let changed = changed.map(|(key, value)| format!("{key} = {value}"));
    let gone = without.keys().filter(|key| !with.contains_key(*key));
    Ok(changed.chain(gone.map(|key| format!("no {key}"))).collect())
}

fn root() -> PathBuf {
    PathBuf::from("../..")
}

fn read(path: &str) -> String {
    let file = root().join(path);
    std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn each_argument_has_a_line_and_each_line_an_argument() {
    let (arguments, lines) = (arguments(), lines());
    for name in &arguments {
        assert!(
            lines.iter().any(|line| line.name() == name),
            "{name} has no line in crates/cli/src/flag_table/flags.txt: say what it changes, and which test gives \
             it to the binary"
        );
    }
    for line in &lines {
        let name = line.name();
        assert!(
            arguments.iter().any(|argument| argument == name),
            "`train` has no {name}"
        );
    }
}

#[test]
fn each_argument_changes_what_its_line_says_and_nothing_else() {
    let mut wrong = String::new();
    for line in lines() {
        let Line { given, before, .. } = line;
        let _ = match changes(&line) {
            Ok(changed) if changed == line.becomes => Ok(()),
            Ok(changed) => writeln!(wrong, "{given} after {before} changes {changed:?}"),
            Err(_) if UNTRIED.contains(&line.name()) => Ok(()),
            Err(error) => writeln!(wrong, "{given} after {before}: {error}"),
        };
    }
    assert!(
        wrong.is_empty(),
        "other than crates/cli/src/flag_table/flags.txt says:\n{wrong}"
    );
}

#[test]
fn each_argument_is_given_to_the_binary_by_a_test_that_is_there() {
    for line in lines() {
        let (file, test) = line.test;
        let text = read(file);
        let is_there = text.contains(&format!("#[test]\nfn {test}() {{"));
        assert!(
            is_there,
            "{}: there is no test {test} in {file}",
            line.given
        );
        let given = match line.name() {
            "MODEL" => "\"mnist\"",
            flag => flag,
        };
        // Quoted, or at the end of a word before its value.
        let said = text.match_indices(given).any(|(at, _)| {
            let next = text[at + given.len()..].chars().next();
            next.is_some_and(|next| !(next.is_alphanumeric() || next == '-'))
        });
        assert!(said, "{file} does not give {given}");
    }
}

#[test]
fn the_document_is_up_to_date() {
    let (path, text) = (root().join("docs/flags.md"), document());
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, &text).expect("the document can be written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == text,
        "docs/flags.md is not what the command line has: make it anew with\n    {WRITE}=1 cargo test --release \
         --workspace --lib flag_table"
    );
}

/// `docs/flags.md`: every flag of every command, by its own help.
fn document() -> String {
    let mut all = Arguments::command();
    all.build();
    let mut text = format!(
        "# Flags\n\n\
         Every flag of every command, and the key of `config.toml` that it sets. [Configuration](configuration.md) has all \
         keys with their defaults, [Configuration files](command-line.md) says which source wins.\n\n\
         This page is generated from the command line, with the tests of flags:\n\n\
         <!-- needs: a checkout -->\n\
         ```sh\n{WRITE}=1 cargo test --release --workspace --lib flag_table\n```\n"
    );
    let train = all.find_subcommand("train").expect("`train` is a command");
    let of_train = train
        .get_arguments()
        .map(|argument| argument.get_id().clone());
    let of_train = of_train.collect::<Vec<_>>();
    // `--set` of an evaluation sets less than that of a training.
    let means_the_same = |argument: &clap::Arg| {
        let mut all = train.get_arguments();
        let found = all.find(|it| it.get_id() == argument.get_id());
        found.is_some_and(|it| {
            it.get_help().map(ToString::to_string) == argument.get_help().map(ToString::to_string)
        })
    };
    for command in all.get_subcommands() {
        let name = command.get_name();
        if name == "help" || command.is_hide_set() {
            continue;
        }
        let about = command.get_about().map(ToString::to_string);
        let _ = write!(text, "\n## {name}\n\n{}.\n", about.unwrap_or_default());
        let own = command.get_arguments().filter(|argument| {
            let is_shared = name != "train" && means_the_same(argument);
            !argument.is_hide_set() && !is_shared && argument.get_id() != "help"
        });
        let own = own.collect::<Vec<_>>();
        if name != "train" {
            let shared = |heading: &str| {
                let mut shown = command.get_arguments();
                shown.any(|argument| {
                    argument.get_help_heading() == Some(heading)
                        && of_train.contains(argument.get_id())
                })
            };
            let headings = headings(train.get_arguments());
            let headings = headings
                .into_iter()
                .flatten()
                .filter(|heading| shared(heading));
            let headings = headings
                .map(|heading| format!("*{heading}*"))
                .collect::<Vec<_>>();
            if !headings.is_empty() {
                let _ = write!(
                    text,
                    "\nIt also takes these flags of `train`: {}.\n",
                    headings.join(", ")
                );
            }
        }
        for heading in headings(own.iter().copied()) {
            let below = own
                .iter()
                .filter(|argument| argument.get_help_heading() == heading);
            if let Some(heading) = heading {
                let _ = write!(text, "\n### {heading}\n");
            }
            text.push_str("\n| Flag | Meaning | Key |\n|---|---|---|\n");
            for argument in below {
                text.push_str(&row(argument));
            }
        }
    }
    text + &presets()
}

/// What the models of this program set that the user has not.
fn presets() -> String {
    let mut text = "\n## Presets\n\nSettings of a model in place of the defaults of [Configuration](configuration.md). \
                    A file and flags override them.\n\n| Model | Settings |\n|---|---|\n"
        .to_string();
    for task in tasks() {
        let settings = settings_by_path(&task.preset()).into_iter();
        let settings =
            settings.map(|(path, value)| format!("`{path} = {value}`").replace('"', "'"));
        let settings = settings.collect::<Vec<_>>();
        let settings = match settings.is_empty() {
            true => "the defaults".to_string(),
            false => settings.join(", "),
        };
        let _ = writeln!(text, "| `{}` | {settings} |", task.name());
    }
    text
}

/// The headings of arguments, each once.
fn headings<'a>(arguments: impl Iterator<Item = &'a clap::Arg>) -> Vec<Option<&'a str>> {
    let mut found = Vec::new();
    for argument in arguments {
        let heading = argument.get_help_heading();
        if !found.contains(&heading) {
            found.push(heading);
        }
    }
    found
}

/// A flag in the table of a page.
fn row(argument: &clap::Arg) -> String {
    let values = argument.get_action().takes_values();
    let names = argument.get_value_names().unwrap_or_default();
    let value = names
        .iter()
        .map(|name| format!(" {name}"))
        .collect::<String>();
    let name = match argument.get_long() {
        Some(long) if values => format!("--{long}{value}"),
        Some(long) => format!("--{long}"),
        None => value.trim().to_string(),
    };
    let help = argument
        .get_help()
        .map(ToString::to_string)
        .unwrap_or_default();
    let defaults = argument.get_default_values();
    let help = match defaults {
        [only] if values && !help.contains("[default") => {
            format!("{help} [default: {}]", only.to_string_lossy())
        }
        _ => help,
    };
    let id = argument.get_id().as_str();
    let key = if id.contains('.') {
        format!("`{id}`")
    } else {
        String::new()
    };
    let cell = |text: &str| text.replace('|', "\\|");
    format!(
        "| `{}` | {} | {key} |\n",
        cell(&name),
        cell(&help).replace('<', "&lt;").replace('*', "\\*")
    )
}
