//! Flags by the names that other programs have for them.

use clap::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Names of PyTorch, torchrun, Lightning and Hugging Face, without hyphens between words, and the flag that is meant.
const NAMES: [(&str, &str); 22] = [
    ("lr", "--learning-rate"),
    ("bs", "--batch-size"),
    ("wd", "--weight-decay"),
    ("numepochs", "--epochs"),
    ("maxepochs", "--epochs"),
    ("numtrainepochs", "--epochs"),
    ("maxsteps", "--steps"),
    ("numworkers", "--workers"),
    ("gradclip", "--max-gradient-norm"),
    ("clipgradnorm", "--max-gradient-norm"),
    ("maxgradnorm", "--max-gradient-norm"),
    ("gradientaccumulationsteps", "--accumulate"),
    ("nproc", "--ranks"),
    ("nprocpernode", "--ranks"),
    ("worldsize", "--ranks"),
    ("nnodes", "--nodes"),
    ("masteraddr", "--rendezvous"),
    ("rdzvendpoint", "--rendezvous"),
    ("pretrained", "--init-from"),
    ("outputdir", "--run-dir"),
    ("imagesize", "--set data.size=PIXELS"),
    ("size", "--set data.size=PIXELS"),
];

/// Suggests the flag that is meant by an unknown one.
pub(super) fn suggest(mut error: Error) -> Error {
    let unknown = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(unknown)) if error.kind() == ErrorKind::UnknownArgument => {
            unknown.trim_start_matches('-').replace(['-', '_'], "")
        }
        _ => return error,
    };
    let found = NAMES.iter().find(|(name, _)| *name == unknown);
    if let Some((_, meant)) = found {
        error.insert(
            ContextKind::SuggestedArg,
            ContextValue::String((*meant).to_string()),
        );
        // They are of a flag that is spelled alike.
        error.remove(ContextKind::Usage);
        error.remove(ContextKind::Suggested);
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Arguments;

    #[test]
    fn names_of_other_programs_lead_to_flags_that_there_are() {
        for (name, meant) in NAMES {
            let words = format!("everburn train mnist --{name} 3");
            let error = Arguments::try_of(words.split(' ').map(Into::into)).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(&format!("'{meant}'")), "{text}");
            let flag = meant.split(' ').next().unwrap_or_default();
            let value = match flag {
                "--set" => "data.size=3",
                _ => "no value",
            };
            let words = ["everburn", "train", "mnist", flag, value];
            match Arguments::try_of(words.map(Into::into)) {
                Ok(_) => {}
                Err(error) => assert_ne!(error.kind(), ErrorKind::UnknownArgument, "{flag}"),
            }
        }
    }

    #[test]
    fn hyphens_and_lines_are_the_same_and_other_errors_stay() {
        let of = |words: &str| Arguments::try_of(words.split(' ').map(Into::into)).unwrap_err();
        let error = of("everburn train mnist --nproc_per_node 2").to_string();
        assert!(
            error.contains("'--ranks'") && !error.contains("as a value"),
            "{error}"
        );
        let error = of("everburn train mnist --epoch 2").to_string();
        assert!(error.contains("'--epochs'"), "{error}");
    }
}
