//! `train --list`

use std::process::ExitCode;

use everburn_train::settings_by_path;
use toml::Table;

use crate::arguments::keys::with_flags;
use crate::error::CliError;
use crate::tasks::tasks;

/// Columns of a line.
const WIDTH: usize = 80;

/// Columns before what a task is.
const INDENT: usize = 29;

/// Prints the tasks with the parameter counts of their models, and their presets.
pub(crate) fn run() -> Result<ExitCode, CliError> {
    say!("{:<15} {:>11}  what it is", "model", "parameters");
    for task in tasks() {
        let parameters = task.configure(&Table::new())?.num_params()?;
        let summary = wrapped(task.summary());
        say!("{:<15} {parameters:>11}  {summary}", task.name());
        for line in preset(&task.preset()) {
            say!("{line}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A text in the columns after the indent.
fn wrapped(text: &str) -> String {
    let (mut lines, mut column) = (String::new(), INDENT);
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column > INDENT && column + 1 + length > WIDTH {
            lines.push('\n');
            lines.push_str(&" ".repeat(INDENT));
            column = INDENT;
        } else if column > INDENT {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += length;
    }
    lines
}

/// The lines with what a model sets in place of the defaults.
fn preset(settings: &Table) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for (path, value) in settings_by_path(settings) {
        let value = value.replace('"', "");
        let setting = match with_flags(&format!("`{path} = {value}`")) {
            flag if flag.starts_with("--") => flag,
            _ => format!("--set {path}={value}"),
        };
        match lines.last_mut() {
            Some(line) if line.len() + 1 + setting.len() <= WIDTH => {
                line.push(' ');
                line.push_str(&setting);
            }
            _ => {
                let label = match lines.is_empty() {
                    true => "preset:",
                    false => "",
                };
                lines.push(format!("{label:>15} {setting}"));
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_task_is_ends_at_the_last_column() {
        let text = "GPT-2: 12 layers of width 768, context 1024; --init-from FOLDER takes one of Hugging Face's";
        let indent = " ".repeat(INDENT);
        let shown = format!("{indent}{}", wrapped(text));
        let lines = shown.lines().collect::<Vec<_>>();
        assert!(
            lines.len() == 2 && lines.iter().all(|line| line.len() <= WIDTH),
            "{shown}"
        );
        assert!(
            lines.iter().all(|line| line.starts_with(&indent)),
            "{shown}"
        );
        let words = |text: &str| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(words(&shown), words(text));
    }

    #[test]
    fn a_preset_is_shown_as_flags_in_short_lines() {
        let settings = "[training]\nbatch_size = 8\nschedule = 'cosine'\n[training.optimizer]\nkind = 'adam-w'\n\
                        beta_2 = 0.95\n[text]\nwindow = 1024";
        let lines = preset(&settings.parse().unwrap());
        let all = lines.join(" ");
        for setting in [
            "--batch-size 8",
            "--lr-schedule cosine",
            "--optimizer adam-w",
            "--set training.optimizer.beta_2=0.95",
            "--set text.window=1024",
        ] {
            assert!(all.contains(setting), "{setting}: {all}");
        }
        assert!(
            lines.len() > 1 && lines.iter().all(|line| line.len() <= WIDTH),
            "{lines:?}"
        );
        assert!(preset(&Table::new()).is_empty());
    }
}
