//! Ranks that run different things are found before they train together.

use everburn_collectives::group::ProcessGroup;
use everburn_distributed::find_different_text;
use sha2::{Digest, Sha256};

use crate::config::TrainingConfig;
use crate::config::checkpoint_failure::OnCheckpointFailure;
use crate::config::input::InputConfig;
use crate::error::TrainError;

/// What must be the same on every rank, one line each.
#[derive(Debug, Clone, Default)]
pub(crate) struct Agreement {
    lines: String,
}

impl Agreement {
    pub(crate) fn and(mut self, key: &str, value: impl std::fmt::Display) -> Self {
        self.lines.push_str(&format!("{key} = {value}\n"));
        self
    }

    /// Adds everything of a configuration that changes what is computed.
    pub(crate) fn and_config(mut self, config: &TrainingConfig) -> Result<Self, TrainError> {
        let computed = TrainingConfig {
            log_every: 1,
            // With fragments in flight it decides where all of the model is exchanged.
            hash_every: config
                .hash_every
                .filter(|_| config.outer.fragments.is_some()),
            hash_key: None,
            tensorboard: false,
            keep_checkpoints: 1,
            on_checkpoint_failure: OnCheckpointFailure::default(),
            input: InputConfig::default(),
            ..config.clone()
        };
        let text = toml::to_string(&computed);
        self.lines
            .push_str(&text.map_err(|error| TrainError::Config(error.to_string()))?);
        Ok(self)
    }

    /// The hash of the lines: the same on ranks of which [`check`](Self::check) finds no difference.
    pub(crate) fn hash(&self) -> [u8; 32] {
        Sha256::digest(&self.lines).into()
    }

    /// Compares the lines of all ranks, on every rank.
    ///
    /// # Errors
    /// [`TrainError::DifferentRuns`], on every rank, naming the first rank and line that differ
    /// from rank 0's.
    pub(crate) fn check(self, group: &ProcessGroup) -> Result<(), TrainError> {
        if group.world_size() == 1 {
            return Ok(());
        }
        let Some((rank, [ours, theirs])) = find_different_text(group, &self.lines)? else {
            return Ok(());
        };
        // A rank that ends before another has heard all is a lost one to it, whose exit code would hide this one's. Of a rank
        // that has ended here nothing is needed any more.
        let _ = group.barrier().wait();
        let (ours, theirs) = difference(&ours, &theirs);
        Err(TrainError::DifferentRuns { rank, ours, theirs })
    }
}

/// The values in lines of TOML, by their whole keys, in order.
fn values(lines: &str) -> Vec<(String, &str)> {
    let mut section = String::new();
    let mut tables = 0;
    let mut values = Vec::new();
    for line in lines.lines() {
        if let Some(name) = line.strip_prefix("[[") {
            // One of several tables of a name.
            section = format!("{}.{tables}.", name.trim_end_matches(']'));
            tables += 1;
        } else if let Some(name) = line.strip_prefix('[') {
            section = format!("{}.", name.trim_end_matches(']'));
        } else if let Some((key, value)) = line.split_once(" = ") {
            values.push((format!("{section}{key}"), value));
        }
    }
    values
}

/// The first value that differs, as each side has it; the first line, where a value of several lines differs.
fn difference(ours: &str, theirs: &str) -> (String, String) {
    let (our_values, their_values) = (values(ours), values(theirs));
    let of = |side: &[(String, &str)], key: &str| {
        let found = side.iter().find(|(other, _)| other == key);
        found.map_or_else(nothing, |(key, value)| format!("{key} = {value}"))
    };
    let keys = our_values.iter().chain(&their_values).map(|(key, _)| key);
    let mut both = keys.map(|key| (of(&our_values, key), of(&their_values, key)));
    if let Some(differing) = both.find(|(ours, theirs)| ours != theirs) {
        return differing;
    }
    let pairs = ours.lines().zip(theirs.lines());
    let equal = pairs.take_while(|(ours, theirs)| ours == theirs).count();
    let line = |text: &str| {
        let line = text.lines().nth(equal);
        line.map_or_else(nothing, str::to_owned)
    };
    (line(ours), line(theirs))
}

fn nothing() -> String {
    "nothing".to_owned()
}

#[cfg(test)]
mod tests {
    use everburn_collectives::group::GroupOptions;

    use super::*;

    #[test]
    fn a_value_is_named_with_its_section_and_a_missing_one_as_nothing() {
        let ours =
            "seed = 1\n[optimizer]\nkind = \"adam\"\n[[groups]]\nrate = 1\n[[groups]]\nrate = 2\n";
        let with_lora = ours.replace("[optimizer]", "[lora]\nrank = 2\n\n[optimizer]");
        let named = |theirs: &str| difference(ours, theirs);
        let pair = |ours: &str, theirs: &str| (ours.to_owned(), theirs.to_owned());
        assert_eq!(named(&with_lora), pair("nothing", "lora.rank = 2"));
        let other = ours.replace("rate = 2", "rate = 3");
        assert_eq!(
            named(&other),
            pair("groups.1.rate = 2", "groups.1.rate = 3")
        );
        let other = ours.replace("adam", "sgd");
        assert_eq!(
            named(&other),
            pair("optimizer.kind = \"adam\"", "optimizer.kind = \"sgd\"")
        );
    }

    #[test]
    fn the_first_difference_is_named_on_every_rank() {
        let ranks = ProcessGroup::over_threads(3, GroupOptions::default())
            .into_iter()
            .map(|group| {
                std::thread::spawn(move || {
                    let config = TrainingConfig {
                        seed: if group.rank() == 2 { 7 } else { 42 },
                        log_every: group.rank() + 1,
                        ..TrainingConfig::default()
                    };
                    let agreement = Agreement::default().and("data", "mnist");
                    let checked = agreement.and_config(&config).unwrap().check(&group);
                    // As a rank that ends at once: none of the others is to fail of that.
                    group.abort("other flags");
                    checked
                })
            })
            .collect::<Vec<_>>();
        for rank in ranks {
            let error = rank.join().unwrap().unwrap_err().to_string();
            let expected = "rank 2 runs something else: `seed = 7` there, `seed = 42` on rank 0";
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
