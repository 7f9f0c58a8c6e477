//! Ranks that run different things are found before they train together.

use everburn_collectives::group::ProcessGroup;
use serde::Serialize;

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
    /// Adds `key = value`.
    pub(crate) fn and(mut self, key: &str, value: impl std::fmt::Display) -> Self {
        self.lines.push_str(&format!("{key} = {value}\n"));
        self
    }

    /// Adds everything of a configuration that changes what is computed.
    pub(crate) fn and_config(mut self, config: &TrainingConfig) -> Result<Self, TrainError> {
        let computed = TrainingConfig {
            log_every: 1,
            hash_every: None,
            tensorboard: false,
            keep_checkpoints: 1,
            on_checkpoint_failure: OnCheckpointFailure::default(),
            input: InputConfig::default(),
            ..config.clone()
        };
        let text = toml_text(&computed)?;
        self.lines.push_str(&text);
        Ok(self)
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
        let all = group.all_gather_varied(self.lines.into_bytes()).wait()?;
        let all = all
            .iter()
            .map(|bytes| String::from_utf8_lossy(bytes))
            .collect::<Vec<_>>();
        let Some(rank) = all.iter().position(|lines| *lines != all[0]) else {
            return Ok(());
        };
        let (mut ours, mut theirs) = (all[0].lines(), all[rank].lines());
        loop {
            let (our_line, their_line) = (ours.next(), theirs.next());
            if our_line != their_line || our_line.is_none() {
                let line = |line: Option<&str>| line.unwrap_or("nothing").to_string();
                return Err(TrainError::DifferentRuns {
                    rank,
                    ours: line(our_line),
                    theirs: line(their_line),
                });
            }
        }
    }
}

fn toml_text<T: Serialize>(value: &T) -> Result<String, TrainError> {
    toml::to_string(value).map_err(|error| TrainError::Config(error.to_string()))
}

#[cfg(test)]
mod tests {
    use everburn_collectives::group::GroupOptions;

    use super::*;

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
                    agreement.and_config(&config).unwrap().check(&group)
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
