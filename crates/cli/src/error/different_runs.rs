//! What ranks that run different things are to do about it.

/// What `--data auto` takes where a machine does not find the files.
const WITHOUT_FILES: [&str; 2] = ["synthetic", "embedded"];

/// What to check where rank 0 has `ours` and another rank `theirs`, if that is known.
pub(super) fn advice(ours: &str, theirs: &str) -> Option<String> {
    if ours.starts_with("first weights") {
        return Some("--init-from and --init-skip say the first weights".to_owned());
    }
    let data = |value: &str| {
        let name = value.strip_prefix("data.name = ")?;
        Some(name.trim_matches('"').to_owned())
    };
    let (ours, theirs) = (data(ours)?, data(theirs)?);
    let is_without = |name: &String| WITHOUT_FILES.contains(&name.as_str());
    let (files, taken, machine) = match (is_without(&ours), is_without(&theirs)) {
        (false, true) => (ours, theirs, "the machine of the other rank"),
        (true, false) => (theirs, ours, "the machine of rank 0"),
        _ => return None,
    };
    Some(format!(
        "with --data auto, {machine} has found no {files} and taken {taken}: put the files on every machine, or give \
         --data {taken} on all"
    ))
}

#[cfg(test)]
mod tests {
    use everburn_train::TrainError;

    use super::super::CliError;

    fn text(ours: &str, theirs: &str) -> String {
        let (rank, ours, theirs) = (1, ours.to_owned(), theirs.to_owned());
        CliError::Train(TrainError::DifferentRuns { rank, ours, theirs }).to_string()
    }

    #[test]
    fn ranks_that_begin_with_other_weights_are_told_the_flags_of_these() {
        let weights = text("first weights = pretrained", "first weights = drawn");
        assert!(weights.contains("--init-from and --init-skip"), "{weights}");
        let seed = text("training.seed = 1", "training.seed = 2");
        assert!(!seed.contains("--init-from"), "{seed}");
    }

    #[test]
    fn a_machine_without_the_files_of_the_others_is_said_to_have_taken_other_data() {
        let [with, without] = ["data.name = \"mnist\"", "data.name = \"synthetic\""];
        let theirs = text(with, without);
        let what = "the machine of the other rank has found no mnist and taken synthetic: put the files on every machine, or \
                    give --data synthetic on all";
        assert!(theirs.ends_with(what), "{theirs}");
        let ours = text(without, with);
        let what = "the machine of rank 0 has found no mnist";
        assert!(ours.contains(what), "{ours}");
        let both = text(with, "data.name = \"fashion-mnist\"");
        assert!(!both.contains("auto"), "{both}");
    }
}
