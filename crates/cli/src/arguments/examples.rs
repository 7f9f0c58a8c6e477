//! Examples in the help of a program whose tasks are not Everburn's.

use clap::Command;
use clap::builder::StyledStr;

/// A task that an example needs, the example's text, and the text in a program without that task, where `TASK` is its first.
const EXAMPLES: [(&str, &str, &str); 7] = [
    ("mnist", "bottleneck mnist ", "bottleneck TASK "),
    ("mnist", "`flowers.", "`TASK."),
    ("mnist", "--data synthetic", "--learning-rate 0.01"),
    ("mnist-bn", "verify mnist-bn ", "verify TASK "),
    ("mnist-bn", ", else mnist-bn]", "]"),
    ("gpt-nano", "`train gpt-nano ", "`everburn train gpt-nano "),
    ("resnet18", "`resnet18.", "`TASK."),
];

/// The command line with examples of a program that has these tasks.
pub(super) fn with_own_tasks(command: Command, tasks: &[&str]) -> Command {
    let Some(first) = tasks.first() else {
        return command;
    };
    let foreign = EXAMPLES
        .iter()
        .filter(|(task, ..)| !tasks.contains(task))
        .map(|(_, text, own)| (*text, own.replace("TASK", first)))
        .collect::<Vec<_>>();
    replaced(command, &foreign)
}

/// The command and all below it, with each first text replaced by the second.
fn replaced(command: Command, foreign: &[(&str, String)]) -> Command {
    let about = own_text(command.get_about(), foreign);
    let long_about = own_text(command.get_long_about(), foreign);
    let command = match about {
        Some(about) => command.about(about),
        None => command,
    };
    let command = match long_about {
        Some(about) => command.long_about(about),
        None => command,
    };
    let command = command.mut_args(|argument| {
        let help = own_text(argument.get_help(), foreign);
        let long_help = own_text(argument.get_long_help(), foreign);
        let argument = match help {
            Some(help) => argument.help(help),
            None => argument,
        };
        match long_help {
            Some(help) => argument.long_help(help),
            None => argument,
        }
    });
    command.mut_subcommands(|command| replaced(command, foreign))
}

/// The text after the replacements; `None` where they change nothing.
fn own_text(text: Option<&StyledStr>, foreign: &[(&str, String)]) -> Option<String> {
    let text = text?.to_string();
    let replace = |text: String, (foreign, own): &(&str, String)| text.replace(foreign, own);
    let own = foreign.iter().fold(text.clone(), replace);
    (own != text).then_some(own)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::arguments::Arguments;

    /// All that the help says of the command and those below it.
    fn texts(command: &Command) -> String {
        let of_command = [command.get_about(), command.get_long_about()];
        let arguments = command.get_arguments();
        let of_arguments = arguments.flat_map(|it| [it.get_help(), it.get_long_help()]);
        let all = of_command.into_iter().chain(of_arguments).flatten();
        let mut all: Vec<String> = all.map(ToString::to_string).collect();
        all.extend(command.get_subcommands().map(texts));
        all.join("\n")
    }

    #[test]
    fn a_program_without_everburns_tasks_has_examples_of_its_first() {
        let help = texts(&with_own_tasks(Arguments::command(), &["photos", "sounds"]));
        for own in [
            "`bottleneck photos --ranks 2",
            "`verify photos --ranks 1,2,4`",
            "`photos.width=64`",
            "[default: that of a program with one]",
        ] {
            assert!(help.contains(own), "{own}: {help}");
        }
        for (_, foreign, own) in EXAMPLES {
            assert!(
                own.contains(foreign) || !help.contains(foreign),
                "{foreign}"
            );
        }
    }

    #[test]
    fn each_example_is_in_everburns_help_which_keeps_it() {
        let whole = texts(&Arguments::command());
        for (_, example, _) in EXAMPLES {
            assert!(whole.contains(example), "{example}");
        }
        let tasks = EXAMPLES.map(|(task, ..)| task);
        assert_eq!(texts(&with_own_tasks(Arguments::command(), &tasks)), whole);
    }
}
