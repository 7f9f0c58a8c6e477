//! What the training loop of a rank is given.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use burn::prelude::Device;
use everburn_collectives::group::ProcessGroup;
use everburn_distributed::{Connector, InitialValues};
use everburn_profile::Recorder;
use everburn_record::StopSignal;

use crate::checkpoint::Checkpoint;
use crate::checkpoint::training_state::TrainingState;
use crate::config::TrainingConfig;
use crate::data_fingerprint::DataFingerprint;
use crate::elastic::agreement::Agreement;
use crate::elastic::elasticity::Elasticity;
use crate::hook::Hook;
use crate::model::erased::{AnyLoader, AnyModel, AnyModelOverRanks};
use crate::model::samples::Samples;
use crate::record::live_file::{LiveSlot, RankStatuses};
use crate::record::run_directory::RunDirectory;
use crate::renderer::Display;
use crate::task::ConfiguredTask;
use crate::trainer::ComputeSeconds;

/// What a rank's loop needs besides the model.
pub(crate) struct RankSetup {
    pub(crate) config: TrainingConfig,
    pub(crate) model_name: String,
    pub(crate) group: ProcessGroup,
    pub(crate) device: Device,
    pub(crate) train: AnyLoader,
    pub(crate) validation: Option<AnyLoader>,
    pub(crate) state: TrainingState,
    pub(crate) resume: Option<Checkpoint>,
    /// Where rank 0 records; ranks that may become rank 0 have it too.
    pub(crate) run: Option<RunDirectory>,
    /// The fingerprint of the data; empty where there is none.
    pub(crate) data_fingerprint: DataFingerprint,
    /// The number of the first sample that was held out of the training data for the validation.
    pub(crate) held_out_from: Option<usize>,
    /// What ranks that meet must have in common.
    pub(crate) agreement: Agreement,
    /// By which way gradients travel that are on GPUs.
    pub(crate) connector: Option<Arc<Connector>>,
    /// Where each rank reads its parts of the first model, if it does.
    pub(crate) initial_values: Option<Arc<dyn InitialValues>>,
    /// How the training continues when ranks are lost or come.
    pub(crate) elasticity: Elasticity,
    /// Continues from the newest good checkpoint where no rank remembers more.
    pub(crate) resume_wanted: bool,
    /// This process took the place of one that was lost.
    pub(crate) begun_before: bool,
    pub(crate) started: Instant,
    /// The test at the end, where it belongs to what a lost rank must not spoil.
    pub(crate) test: Option<AnyLoader>,
    pub(crate) class_names: Vec<String>,
    /// What rank 0 shows of the run while it continues.
    pub(crate) live: LiveSlot,
    pub(crate) rank_statuses: Option<RankStatuses>,
    pub(crate) stop: StopSignal,
    pub(crate) samples: Option<Samples<AnyModel>>,
    /// The user's hooks, there again when the loop is over.
    pub(crate) hooks: Arc<Mutex<Vec<Box<dyn Hook>>>>,
    pub(crate) display: Display,
    /// Is told what the training thread does.
    pub(crate) recorder: Option<Recorder>,
    /// In place of the host's clock, how long this rank has computed.
    pub(crate) compute_seconds: Option<ComputeSeconds>,
    /// Where several ranks hold one model together.
    pub(crate) over: Option<AnyModelOverRanks>,
    /// Names samples, and makes fresh models.
    pub(crate) task: Option<Arc<dyn ConfiguredTask>>,
    /// The model is dropped at the end: nothing is saved, and it may diverge.
    pub(crate) is_trial: bool,
}
