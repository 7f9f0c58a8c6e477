//! `everburn completions`: what a shell needs to complete this command line.

use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::Shell;

use super::program_name;
use crate::arguments::Arguments;

/// For which shell.
///
/// Where shells look for completions:
///
///   bash        ~/.local/share/bash-completion/completions/everburn
///   zsh         a folder of $fpath, as _everburn
///   fish        ~/.config/fish/completions/everburn.fish
///   elvish      eval from ~/.config/elvish/rc.elv
///   powershell  a script that $PROFILE runs
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct CompletionsArguments {
    /// bash, zsh, fish, elvish or powershell.
    #[arg(value_enum, hide_possible_values = true)]
    shell: Shell,
}

pub(crate) fn run(arguments: &CompletionsArguments) -> ExitCode {
    let script = script(arguments.shell, &program_name());
    say!("{}", script.trim_end());
    ExitCode::SUCCESS
}

fn script(shell: Shell, program: &str) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut shown(), program, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// The command line without the commands that only programs use.
fn shown() -> Command {
    let whole = Arguments::of_program();
    let commands = whole
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    let shown = Command::new("everburn").version(env!("CARGO_PKG_VERSION"));
    shown.subcommands(commands.cloned())
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_shell_completes_commands_and_flags_and_nothing_hidden() {
        for shell in Shell::value_variants() {
            let script = script(*shell, "flowers");
            for word in ["flowers", "verify", "virtual-ranks", "completions"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
            assert!(!script.contains("doctor-rank"), "{shell}");
        }
    }
}
