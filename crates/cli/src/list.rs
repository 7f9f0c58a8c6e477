//! `train --list`

use std::process::ExitCode;

use everburn_train::settings_by_path;
use toml::Table;

use crate::arguments::keys::with_flags;
use crate::error::CliError;
use crate::tasks::tasks;

/// Columns of a line of presets.
const WIDTH: usize = 80;

/// Prints the tasks with the parameter counts of their models, and their presets.
pub(crate) fn run() -> Result<ExitCode, CliError> {
    say!("{:<15} {:>11}  what it is", "model", "parameters");
    for task in tasks() {
        let parameters = task.configure(&Table::new())?.num_params()?;
        say!("{:<15} {parameters:>11}  {}", task.name(), task.summary());
        for line in preset(&task.preset()) {
            say!("{line}");
        }
    }
    Ok(ExitCode::SUCCESS)
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
