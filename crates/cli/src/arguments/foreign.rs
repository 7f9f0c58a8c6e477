//! Flags by the names that other programs have for them.

use std::ffi::OsString;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};
use everburn_record::plain::word;
use everburn_record::{RUNS, invocation, is_run, runs_in};

use crate::legible;
use crate::summary::resume_of;

/// Names of PyTorch, torchrun, Lightning and Hugging Face, without hyphens between words, and the flag that each means.
const NAMES: [(&str, &str); 27] = [
    ("lr", "--learning-rate"),
    ("bs perdevicetrainbatchsize", "--batch-size"),
    ("wd", "--weight-decay"),
    ("numepochs maxepochs numtrainepochs", "--epochs"),
    ("maxsteps", "--steps"),
    ("savesteps savestrategy", "--checkpoint-every"),
    ("loggingsteps logeverynsteps", "--log-every"),
    ("numworkers", "--workers"),
    (
        "gradclip clipgradnorm maxgradnorm gradientclipval",
        "--max-gradient-norm",
    ),
    ("gradientaccumulationsteps", "--accumulate"),
    ("bf16 amp", "--precision bf16"),
    ("fp16", "--precision f16"),
    ("fsdp", "--shard parameters"),
    ("zerostage", "--shard"),
    ("nproc nprocpernode worldsize localrank", "--ranks"),
    ("nnodes", "--nodes"),
    ("masteraddr rdzvendpoint masterport", "--rendezvous"),
    (
        "pretrained from weights modelnameorpath loadfrom checkpoint",
        "--init-from",
    ),
    ("ckptpath resumefromcheckpoint", "--resume --run-dir RUN"),
    ("outputdir", "--run-dir"),
    ("imagesize size", "--set data.size=PIXELS"),
    ("blocksize maxlength", "--set text.window=TOKENS"),
    ("maxnewtokens maxlength maxtokens", "--tokens"),
    ("dosample", "--temperature"),
    ("vocabsize", "--vocabulary"),
    ("input", "--data"),
    ("format", "--to"),
];

/// Commands of PyTorch, torchrun, Lightning and Hugging Face, and the one that each means.
const COMMANDS: [(&str, &str); 8] = [
    ("fit run launch torchrun finetune fine-tune", "train"),
    ("resume continue", "train --resume --run-dir RUN"),
    ("test validate", "eval"),
    ("infer inference", "predict"),
    ("sample", "generate"),
    ("profile", "bottleneck"),
    ("tensorboard", "monitor"),
    ("list models", "train --list"),
];

/// Whether one of these `names` is `name`.
fn has_name(names: &str, name: &str) -> bool {
    names.split(' ').any(|other| other == name)
}

/// The argument that takes what `verify` passes on to its trainings.
const FLAGS_OF_TRAIN: &str = "train";

/// Suggests the flag that is meant by an unknown one, of those that the command of these `words` has; and how a run is
/// resumed whose folder is given to `--resume`.
pub(super) fn suggest(mut error: Error, program: &Command, words: &[OsString]) -> Error {
    if let Some(run) = resumed(words) {
        let message = format!(
            "--resume takes no folder: `{}` continues the run in {run}\n",
            resume_of(run.as_ref())
        );
        return Error::raw(ErrorKind::ArgumentConflict, message);
    }
    if error.kind() == ErrorKind::InvalidSubcommand {
        return suggest_command(error, program);
    }
    if let Some(message) = lacks_run_dir(&error, Path::new(RUNS)).or_else(|| not_epochs(&error)) {
        return Error::raw(error.kind(), message);
    }
    let flag = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(flag)) if error.kind() == ErrorKind::UnknownArgument => {
            flag.trim_start_matches('-').to_owned()
        }
        _ => return error,
    };
    let unknown = flag.replace(['-', '_'], "");
    // What is no flag is hardly meant as a word that begins with hyphens.
    error.remove(ContextKind::Suggested);
    let command = words
        .iter()
        .skip(1)
        .find_map(|word| program.find_subcommand(word));
    let has = |command: Option<&Command>, flag: &str| {
        command.is_some_and(|command| has_flag(command, flag))
    };
    let of_trainings =
        command.is_some_and(passes_on) && has(program.find_subcommand("train"), &flag);
    let found = NAMES
        .iter()
        .find(|(names, meant)| has_name(names, &unknown) && has(command, meant));
    let meant = match found {
        Some((_, meant)) => Some((*meant).to_string()),
        None if of_trainings => Some(format!("-- --{flag}")),
        None => {
            let predicts = command.is_some_and(|it| it.get_name() == "predict");
            // A file after the run: the word was given without hyphens.
            let is_file = predicts && words.iter().any(|it| *it == *flag);
            is_file.then(|| format!("--input {}", word(&flag)))
        }
    };
    if let Some(meant) = meant {
        error.insert(ContextKind::SuggestedArg, ContextValue::String(meant));
        // It is of a flag that is spelled alike.
        error.remove(ContextKind::Usage);
    }
    error
}

/// What to say where `--resume` is given without `--run-dir`.
fn lacks_run_dir(error: &Error, runs: &Path) -> Option<String> {
    let missing = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(missing)) => missing,
        _ => return None,
    };
    let lacks = missing.iter().any(|flag| flag.starts_with("--run-dir"));
    if error.kind() != ErrorKind::MissingRequiredArgument || !lacks {
        return None;
    }
    Some(match runs_in(runs).first() {
        Some(run) => format!(
            "--resume needs --run-dir; the newest run is {}: `{}` continues it\n",
            legible(run.display()),
            resume_of(run)
        ),
        None => "--resume needs --run-dir DIR, the folder of the run\n".to_owned(),
    })
}

/// What to say where `--early-stopping` is given the name of a metric, as in other programs.
fn not_epochs(error: &Error) -> Option<String> {
    let value = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let is_it = value(ContextKind::InvalidArg)?.starts_with("--early-stopping");
    if error.kind() != ErrorKind::ValueValidation || !is_it {
        return None;
    }
    Some(format!(
        "--early-stopping expects a number of epochs, and `{}` is none; --best-by names the metric\n",
        legible(value(ContextKind::InvalidValue)?)
    ))
}

/// Whether `command` has this flag, which may have a value beside it.
fn has_flag(command: &Command, flag: &str) -> bool {
    let name = flag.trim_start_matches('-').split([' ', '=']).next();
    let mut flags = command.get_arguments();
    flags.any(|argument| argument.get_long() == name)
}

/// Whether `command` passes what is after `--` on to its trainings.
fn passes_on(command: &Command) -> bool {
    let mut arguments = command.get_arguments();
    arguments.any(|argument| argument.is_last_set() && argument.get_id() == FLAGS_OF_TRAIN)
}

/// Refuses a `--` before a flag of a command that passes nothing on: the flag would be taken for a model or a file.
pub(super) fn refuse_separator(program: &Command, words: &[OsString]) -> Result<(), Error> {
    let Some(at) = words.iter().position(|word| word == "--") else {
        return Ok(());
    };
    let command = words.get(1).and_then(|name| program.find_subcommand(name));
    let Some(command) = command.filter(|command| at > 1 && !passes_on(command)) else {
        return Ok(());
    };
    let mut later = words[at + 1..].iter().filter_map(|word| word.to_str());
    let Some(flag) = later.find(|word| word.starts_with("--") && has_flag(command, word)) else {
        return Ok(());
    };
    let others = words.iter().skip(1).enumerate();
    let others = others.filter(|(number, _)| number + 1 != at);
    let others: Vec<String> = others.map(|(_, other)| word(other)).collect();
    let message = format!(
        "`--` ends the flags, and {flag} comes after it: leave `--` out, as in `{} {}`\n",
        invocation::name(),
        others.join(" ")
    );
    Err(Error::raw(ErrorKind::UnknownArgument, message))
}

/// Suggests the command that is meant by an unknown one: that of its name in other programs, or those that are spelled alike.
/// Hidden ones are for other processes.
fn suggest_command(mut error: Error, program: &Command) -> Error {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidSubcommand) else {
        return error;
    };
    let meant = COMMANDS.iter().find(|(names, _)| has_name(names, unknown));
    if let Some((_, meant)) = meant {
        let meant = ContextValue::String((*meant).to_string());
        error.insert(ContextKind::SuggestedSubcommand, meant);
        return error;
    }
    let Some(ContextValue::Strings(alike)) = error.remove(ContextKind::SuggestedSubcommand) else {
        return error;
    };
    let is_shown = |name: &String| {
        let command = program.find_subcommand(name);
        command.is_some_and(|command| !command.is_hide_set())
    };
    let shown: Vec<String> = alike.into_iter().filter(is_shown).collect();
    if !shown.is_empty() {
        error.insert(
            ContextKind::SuggestedSubcommand,
            ContextValue::Strings(shown),
        );
    }
    error
}

/// The folder that `--resume` is given, as flags of other programs take it.
fn resumed(words: &[OsString]) -> Option<String> {
    let mut words = words.iter().skip_while(|word| *word != "--resume").skip(1);
    let folder = Path::new(words.next()?);
    is_run(folder).then(|| legible(folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Arguments;

    fn refused(words: &str) -> String {
        let error = Arguments::try_of(words.split(' ').map(Into::into)).unwrap_err();
        error.to_string()
    }

    #[test]
    fn names_of_other_programs_lead_to_flags_that_there_are() {
        let each = NAMES
            .iter()
            .flat_map(|(names, meant)| names.split(' ').map(move |it| (it, meant)));
        for (name, meant) in each {
            let suggests = |command: &str| {
                let text = refused(&format!("everburn {command} --{name} 3"));
                text.contains(&format!("'{meant}'"))
            };
            let commands = [
                "train mnist",
                "generate run",
                "tokenize x",
                "predict run",
                "eval run",
                "export run",
            ];
            assert!(commands.into_iter().any(suggests), "{name}: {meant}");
        }
    }

    #[test]
    fn commands_of_other_programs_and_misspelled_ones_lead_to_commands_that_there_are() {
        let each = COMMANDS
            .iter()
            .flat_map(|(names, meant)| names.split(' ').map(move |it| (it, meant)));
        for (name, meant) in each {
            let text = refused(&format!("everburn {name} x"));
            assert!(text.contains(&format!("'{meant}'")), "{name}: {text}");
            let command = meant.split(' ').next().unwrap();
            let program = <Arguments as clap::CommandFactory>::command();
            assert!(program.find_subcommand(command).is_some(), "{meant}");
            assert!(program.find_subcommand(name).is_none(), "{name}");
        }
        for (name, meant) in [
            ("trian", "train"),
            ("docter", "doctor"),
            ("verfy", "verify"),
        ] {
            let text = refused(&format!("everburn {name} mnist"));
            assert!(text.contains("similar subcommand"), "{text}");
            assert!(text.contains(&format!("'{meant}'")), "{text}");
            assert!(!text.contains("doctor-rank"), "{text}");
        }
        let text = refused("everburn qqqqq");
        assert!(!text.contains("similar"), "{text}");
    }

    #[test]
    fn a_separator_before_a_flag_of_the_command_is_refused_with_the_form_without() {
        for (words, meant) in [
            (
                "bottleneck -- --set training.epochs=1",
                "bottleneck --set training.epochs=1`",
            ),
            (
                "bottleneck mnist -- --ranks=2",
                "bottleneck mnist --ranks=2`",
            ),
            ("eval run -- --json", "eval run --json`"),
        ] {
            let text = refused(&format!("everburn {words}"));
            assert!(text.contains("leave `--` out, as in `"), "{text}");
            assert!(text.contains(meant), "{text}");
        }
        for taken in ["verify mnist -- --epochs 1", "eval -- -run"] {
            let words = format!("everburn {taken}");
            Arguments::try_of(words.split(' ').map(Into::into)).unwrap();
        }
    }

    #[test]
    fn a_folder_for_resume_is_named_by_its_flag() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().display();
        for words in ["train --resume", "train mlp --resume"] {
            assert!(!refused(&format!("everburn {words} {run}")).contains("takes no folder"));
        }
        std::fs::write(folder.path().join("config.toml"), "").unwrap();
        for words in ["train --resume", "train mlp --resume"] {
            let error = refused(&format!("everburn {words} {run}"));
            let command = format!("train --resume --run-dir {run}`");
            assert!(error.contains(&command), "{error}");
        }
    }

    #[test]
    fn a_resume_without_a_folder_names_the_newest_run() {
        let words = ["everburn", "train", "mlp", "--resume"];
        let program = <Arguments as clap::CommandFactory>::command();
        let error = program.try_get_matches_from(words).unwrap_err();
        let runs = tempfile::tempdir().unwrap();
        let told = || lacks_run_dir(&error, runs.path()).unwrap();
        assert!(told().contains("the folder of the run"), "{}", told());
        let run = runs.path().join("mlp-1");
        std::fs::create_dir(&run).unwrap();
        std::fs::write(run.join("config.toml"), "").unwrap();
        let command = format!("train --resume --run-dir {}` continues it", run.display());
        assert!(told().contains(&command), "{}", told());
    }

    #[test]
    fn values_of_other_programs_lead_to_the_flags_that_are_meant() {
        let error = refused("everburn train mlp --early-stopping val_loss");
        assert!(error.contains("`val_loss` is none; --best-by"), "{error}");
        let error = refused("everburn predict run new.png");
        assert!(error.contains("'--input new.png'"), "{error}");
        let error = refused("everburn predict run --new.png");
        assert!(!error.contains("--input"), "{error}");
    }

    #[test]
    fn hyphens_and_lines_are_the_same_and_other_errors_stay() {
        let error = refused("everburn train mnist --nproc_per_node 2");
        assert!(
            error.contains("'--ranks'") && !error.contains("as a value"),
            "{error}"
        );
        let error = refused("everburn train mnist --epoch 2");
        assert!(error.contains("'--epochs'"), "{error}");
        // Each command has its own.
        let of = ["train mnist", "generate run"]
            .map(|command| refused(&format!("everburn {command} --max_length 9")));
        assert!(
            of[0].contains("text.window") && of[1].contains("'--tokens'"),
            "{of:?}"
        );
        for flag in ["set", "batch-size"] {
            let error = refused(&format!("everburn verify mnist --{flag} 3"));
            assert!(error.contains(&format!("'-- --{flag}'")), "{error}");
        }
        let none = refused("everburn generate run --num-beams 2");
        assert!(!none.contains("as a value"), "{none}");
    }
}
