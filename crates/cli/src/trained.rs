//! A trained model on any number of ranks, for `eval` and `predict`.

mod checkpoints;
mod copies;
mod settings;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use everburn_collectives::heartbeat::HeartbeatMonitor;
use everburn_collectives::rendezvous::WaitListener;
use everburn_launch::{LaunchConfig, RankEnvironment};
use everburn_train::{AnyModel, ConfiguredTask, DataFingerprint, LoadedData};

pub(crate) use self::checkpoints::{
    load_checkpoint, load_parameters, newest_progress, progress_at,
};
use self::copies::Copies;
use self::settings::{changed_by, is_learnt_place, name_of_other_data, parts_alike};
pub(crate) use self::settings::{decided_otherwise, require_settings_of_run};
use crate::arguments::{Given, OfEvaluation, RankFlags};
use crate::config::{RunConfig, key_of};
use crate::error::CliError;
use crate::launching::Work;
use crate::prelude::*;
use crate::{devices, gradient_backend, launching, missing_run, rank};

#[derive(Debug, Clone, Args)]
pub(crate) struct TrainedFlags {
    /// The folder of the run.
    pub(crate) run_dir: PathBuf,

    /// Use a checkpoint instead of the trained model: `best`, or the number of an epoch.
    #[arg(long, value_name = "EPOCH")]
    pub(crate) checkpoint: Option<String>,

    /// Use the averaged parameters of a run with --ema.
    #[arg(long)]
    pub(crate) ema: bool,

    /// Change a setting of the task, as in `MODEL.folder=other-images`. The value is TOML, or else a string; may be repeated.
    /// The other settings are the run's.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,

    #[command(flatten)]
    pub(crate) keys: Given<OfEvaluation>,

    #[command(flatten)]
    pub(crate) ranks: RankFlags,
}

/// An opened run, with this process's part in the command.
pub(crate) struct Opened {
    pub(crate) run: RunDirectory,
    pub(crate) config: RunConfig,
    /// Of the data of the training, where others may be meant; empty if it is not known.
    pub(crate) fingerprint: Option<DataFingerprint>,
    /// The ranks to launch, if this process is the launcher.
    pub(crate) launch: Option<LaunchConfig>,
}

impl TrainedFlags {
    /// Opens the run as a rank, as the only rank, or as the launcher, and checks the flags. `quiet` leaves out the line
    /// about devices.
    pub(crate) fn open(
        &self,
        environment: Option<&RankEnvironment>,
        quiet: bool,
    ) -> Result<Opened, CliError> {
        let run = missing_run::open(&self.run_dir)?;
        let config = RunConfig::of_run(&run)?;
        let (config, other_data) = config.for_evaluation(&self.keys, &self.set, &self.ranks)?;
        let mut launch = None;
        if let Some(environment) = environment {
            rank::limit_threads(environment, &config.ranks)?;
        } else {
            gradient_backend::check(&config)?;
            if let Some(gpus) = devices::check(&config.ranks.devices, config.ranks.ranks)?
                && !quiet
            {
                say!("{gpus}");
            }
            let plan = launching::plan(&config.ranks, &self.ranks, self.keys.has("ranks.nodes"))?;
            if config.world_size() > 1 {
                launch = Some(plan);
            } else if let Some(threads) = config.ranks.threads_per_rank {
                rank::use_threads(threads)?;
            }
        }
        Ok(Opened {
            fingerprint: other_data.then(|| newest_progress(&run).unwrap_or_default().data),
            run,
            config,
            launch,
        })
    }

    /// The command line of a rank of `work`, with the command's `own` flags.
    pub(crate) fn for_ranks(&self, work: Work, own: Vec<OsString>) -> Vec<OsString> {
        let mut list: Vec<OsString> = vec![work.name().into(), self.run_dir.clone().into()];
        list.extend(own);
        for assignment in &self.set {
            list.extend(["--set".into(), assignment.into()]);
        }
        // The launcher hands these on in the environment.
        let of_launcher = ["ranks.ranks", "ranks.threads_per_rank", "ranks.nodes"];
        list.extend(self.keys.words(|path| !of_launcher.contains(&path)));
        if let Some(gpus) = self.ranks.gpus {
            list.extend(["--gpus".into(), gpus.to_string().into()]);
        }
        if let Some(checkpoint) = &self.checkpoint {
            list.extend(["--checkpoint".into(), checkpoint.into()]);
        }
        list.extend(self.ema.then(|| "--ema".into()));
        list
    }

    /// Starts the ranks of `work` with its `own` flags, their logs in `logs`; whether all is done and this machine is to
    /// show it.
    pub(crate) fn launch(
        &self,
        mut plan: LaunchConfig,
        work: Work,
        own: Vec<OsString>,
        logs: PathBuf,
    ) -> Result<(ExitCode, bool), CliError> {
        plan.dashboard = false;
        let early = launching::listen_early(work, || ())?;
        let outcome = launching::run(plan, self.for_ranks(work, own), logs, early, |_| {})?;
        launching::say_end(&outcome, false);
        let code = ExitCode::from(&outcome);
        let shows = code == ExitCode::SUCCESS && self.ranks.node_rank.unwrap_or(0) == 0;
        Ok((code, shows))
    }

    /// Whether data are named, the run's or others.
    pub(crate) fn names_data(&self) -> bool {
        let is_name = |assignment: &String| key_of(assignment) == "data.name";
        self.keys.has("data.name") || self.set.iter().any(is_name)
    }
}

/// The samples that a command needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Samples {
    /// Those of the run's data.
    Run,
    /// All of other data, which may be the run's under another name: this is the fingerprint of the run's, empty if it is
    /// not known.
    Other(DataFingerprint),
    /// Those of a file that the task reads, and none of the data.
    File,
}

impl Samples {
    /// Those of the run's data, or of others where there is a fingerprint.
    pub(crate) fn of(fingerprint: Option<DataFingerprint>) -> Self {
        fingerprint.map_or(Self::Run, Self::Other)
    }
}

/// This process as one of the ranks that hold the model.
pub(crate) struct TrainedRank<'a> {
    pub(crate) task: Box<dyn ConfiguredTask>,
    pub(crate) loaded: LoadedData,
    pub(crate) trainer: Trainer,
    /// The samples are the test samples of other data, parted as in a training.
    pub(crate) parts_others: bool,
    heartbeat: Option<HeartbeatMonitor>,
    environment: Option<&'a RankEnvironment>,
}

impl<'a> TrainedRank<'a> {
    /// Loads the data and meets the other ranks. All samples of other data are test samples.
    pub(crate) fn join(
        config: &RunConfig,
        samples: Samples,
        environment: Option<&'a RankEnvironment>,
    ) -> Result<Self, CliError> {
        let local_rank = environment.map_or(0, |environment| environment.local_rank);
        let mut task = config.task()?;
        let before = task.agreed_settings()?;
        let mut parts_others = false;
        let loaded = match samples {
            Samples::File => task.load_for_input()?,
            Samples::Run => task.load().map_err(|error| config.help_to_test(error))?,
            Samples::Other(unknown) if unknown.is_empty() => task.load_test()?,
            // The run's own data, under another name, or fewer test samples of them: what was held out is tested.
            Samples::Other(own) => match task.load() {
                Ok(loaded) if loaded.for_training().fingerprint.learns_as(&own) => loaded,
                all => {
                    task = config.task()?;
                    let test = task.load_test()?;
                    parts_others = all.is_ok_and(|all| parts_alike(&before, &all, &test));
                    test
                }
            },
        };
        require_settings_of_run(&before, &task.agreed_settings()?)?;
        let (group, heartbeat) = match environment {
            None => {
                let options = rank::group_options(&config.ranks);
                (ProcessGroup::alone(options), None)
            }
            Some(environment) => {
                let (group, heartbeat, _store) =
                    rank::join_with_heartbeat(environment, &config.ranks, WaitListener::default())?;
                (group, heartbeat)
            }
        };
        let trainer = Trainer {
            evaluation_batch: task.evaluation_batch(),
            device: devices::of_rank(&config.ranks.devices, local_rank)?,
            task: Some(task.shared()),
            ..Trainer::new(config.training.clone(), group)
        };
        Ok(Self {
            task,
            loaded,
            trainer,
            parts_others,
            heartbeat,
            environment,
        })
    }

    /// Warns, on rank 0, where what is tested is the set that the run has learnt from, also where its files have changed since or
    /// some of them are copies.
    /// `own` is the fingerprint of the run's data where others are named, else empty. Returns whether it did.
    ///
    /// # Errors
    /// [`CliError`] if the run's configuration cannot be read.
    pub(crate) fn warn_of_learnt_data(
        &self,
        run: &RunDirectory,
        own: &DataFingerprint,
    ) -> Result<bool, CliError> {
        if self.trainer.group.rank() != 0 {
            return Ok(false);
        }
        let data = self.loaded.for_training();
        let progress = newest_progress(run).unwrap_or_default();
        if progress.has_learnt_from(&data.fingerprint) {
            tracing::warn!(
                "this is a test on the set that the training learned from: the result says how well the model remembers its \
                 samples, and not how well it does on others; with the run's own data, `eval` tests samples that were held out"
            );
            return Ok(true);
        }
        if own.is_empty() || data.fingerprint.learns_as(own) {
            return Ok(false);
        }
        let before = RunConfig::of_run(run)?.task()?.sections()?;
        let now = self.task.sections()?;
        if is_learnt_place(&before, &now, !own.test.is_empty()) {
            tracing::warn!(
                "the training learned from this folder or file; since then files were added, removed or changed, or the settings \
                 were, so that samples may be tested here that the training learned from"
            );
            return Ok(true);
        }
        let copies = Copies::find(&before, &now);
        if let Some(Copies { count, compared }) = &copies {
            tracing::warn!(
                "{count} of {compared} files of the tested folder are in the folder of the training, too: the result says less \
                 about how well the model does on other samples"
            );
        }
        Ok(copies.is_some())
    }

    /// Warns, on rank 0, where the data of the run are not those of the training, or not all of those: what is held out of
    /// them may be something else. Returns whether it did.
    pub(crate) fn warn_of_changed_data(&self, run: &RunDirectory) -> bool {
        if self.trainer.group.rank() != 0 {
            return false;
        }
        let data = self.loaded.for_training();
        let progress = newest_progress(run).unwrap_or_default();
        let is_other = progress.has_learnt_from_others(&data.fingerprint);
        // Without checkpoints, the report may still know it.
        let was_changed = || run.read_report().is_ok_and(|report| report.data_changed);
        let why = match is_other {
            true if progress.data.all != data.fingerprint.all => {
                "the data are not those of the training: others are named, or files were added, removed or changed"
            }
            false if !progress.data.is_empty() || !was_changed() => return false,
            _ => {
                "the run was resumed with other data than it had before: files were added, removed or changed"
            }
        };
        tracing::warn!("{why}, so that samples may be tested here that the training learned from");
        true
    }

    /// Warns, on rank 0, of settings of the task that `--set` gives other values than the run has: the model has learnt with
    /// those. Where the data are is no such setting.
    ///
    /// # Errors
    /// [`CliError`] if the run's configuration cannot be read.
    pub(crate) fn warn_of_changed_settings(
        &self,
        run: &RunDirectory,
        flags: &TrainedFlags,
    ) -> Result<(), CliError> {
        if flags.set.is_empty() || self.trainer.group.rank() != 0 {
            return Ok(());
        }
        let before = RunConfig::of_run(run)?.task()?.agreed_settings()?;
        let now = self.task.agreed_settings()?;
        let changes = changed_by(&flags.set, &before, &now);
        if !changes.is_empty() {
            tracing::warn!(
                "changed by this command: {}; the model has learnt with the settings of the run",
                changes.join(", ")
            );
        }
        Ok(())
    }

    /// What the data are called that are tested.
    ///
    /// # Errors
    /// [`CliError`] if the run's configuration cannot be read.
    pub(crate) fn name_of_data(&self, run: &RunDirectory) -> Result<String, CliError> {
        let before = RunConfig::of_run(run)?.sections;
        let other = name_of_other_data(&before, &self.task.sections()?);
        Ok(other.unwrap_or_else(|| self.loaded.name.clone()))
    }

    /// Runs `work` on the model of `run`. A failure of a stalled rank is reported with that rank.
    pub(crate) fn with_model<R>(
        &self,
        run: &RunDirectory,
        flags: &TrainedFlags,
        work: impl FnOnce(&AnyModel) -> Result<R, TrainError>,
    ) -> Result<R, CliError> {
        let done = || -> Result<R, CliError> {
            let model = self.task.model(&self.trainer.device)?;
            let model = load_parameters(model, run, flags.checkpoint.as_deref(), flags.ema)
                .map_err(|error| help_with_weights(error, &flags.set))?;
            Ok(work(&model)?)
        };
        done().map_err(|error| match self.environment {
            Some(environment) => {
                rank::report_stall(error, self.heartbeat.as_ref(), environment, None)
            }
            None => error,
        })
    }
}

/// The error of weights of a run that are not the model's, with what may have changed since the training; `set` are the settings
/// of this command.
fn help_with_weights(error: CliError, set: &[String]) -> CliError {
    if !matches!(error, CliError::Train(TrainError::Weights { .. })) {
        return error;
    }
    let help = match set.is_empty() {
        true => {
            "all settings are the run's: if the code of the model has changed since the training, restore that code"
        }
        false => {
            "leave out the settings of --set that change the model; if the code of the model has changed since the training, \
             restore that code"
        }
    };
    CliError::usage_with_help(error.to_string(), help)
}

/// Removes the result of an earlier command.
pub(crate) fn remove_stale(result: &Path) {
    // Where there is none, there is nothing to remove; what cannot be removed cannot be written either.
    let _ = std::fs::remove_file(result);
}
