//! `train --list`

use std::process::ExitCode;

use everburn_record::table::aligned;
use everburn_train::{AnyTask, settings_by_path};
use toml::Table;

use crate::arguments::keys::with_flags;
use crate::error::CliError;
use crate::tasks::tasks;

/// Columns of a line.
const WIDTH: usize = 80;

/// Columns before what a task is.
const INDENT: usize = 16;

/// What is below the table, where the data of a task decide its model.
const COUNTED_WITHOUT_DATA: &str = "\n\
    parameters: counted without data, for the number in parentheses, if any; the\n\
    data may decide another number of classes, tokens or columns";

/// Prints a table of the tasks with what their models take and yield and their parameter counts; below it, what each is, and
/// its preset.
pub(crate) fn run() -> Result<ExitCode, CliError> {
    say!("{}", table(tasks())?);
    for task in tasks() {
        say!("\n{:<15} {}", task.name(), wrapped(task.summary()));
        for line in preset(&task.preset()) {
            say!("{line}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn table(tasks: &[AnyTask]) -> Result<String, CliError> {
    let mut rows = Vec::new();
    let mut data_decide = false;
    for task in tasks {
        let configured = task.configure(&Table::new())?;
        data_decide |= configured.data_decide_model();
        let parameters = configured.num_params()?;
        let said = task.input_and_output();
        let [input, output] = said.map(|text| if text.is_empty() { "-" } else { text });
        rows.push(vec![
            task.name().to_owned(),
            input.to_owned(),
            output.to_owned(),
            parameters.to_string(),
        ]);
    }
    let header = ["model", "input", "output", "parameters"];
    let mut table = aligned(&header, &rows, &[1, 2]);
    if data_decide {
        table.push_str(COUNTED_WITHOUT_DATA);
    }
    Ok(table)
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
    fn the_table_has_what_each_model_takes_and_yields() {
        let table = table(tasks()).unwrap();
        let row = |model: &str| {
            let mut lines = table.lines();
            let line = lines.find(|line| line.split_whitespace().next() == Some(model));
            line.unwrap_or_else(|| panic!("{model}:\n{table}"))
        };
        for (model, cells) in [
            ("mnist", ["grey images 28 x 28", "10 classes", "21840"]),
            (
                "vit",
                ["images 224 x 224", "classes of the data (1000)", "86567656"],
            ),
            (
                "gpt-nano",
                ["text, 64 tokens", "tokens of the data", "801664"],
            ),
            (
                "table",
                ["columns of the table", "a number or a class", "4353"],
            ),
        ] {
            for cell in cells {
                assert!(row(model).contains(cell), "{model}, {cell}:\n{table}");
            }
        }
        assert!(table.ends_with(COUNTED_WITHOUT_DATA), "{table}");
        let widest = table.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(WIDTH), "{table}");
    }

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
