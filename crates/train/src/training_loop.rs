//! The training loop of one rank, as a [`SupervisedLearningStrategy`] of burn-train.

mod averaged;
mod balance;
mod checkpoints;
mod communicators;
mod elastic;
mod elastic_state;
mod engine;
mod entering;
mod entry;
mod epoch;
mod faults;
mod gradients;
mod guard;
mod half_precision;
mod hooks;
mod interrupted_round;
mod lateness;
mod local_steps;
mod missing_gradients;
mod not_finite;
mod pending_metrics;
mod profiling;
mod records;
mod round_stats;
mod run;
mod setup;
mod sharded;
mod streaming;
mod synchronous_steps;
mod validation;
mod virtual_step;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use burn::data::dataloader::Progress as ItemProgress;
use burn::prelude::*;
use burn_train::{
    Interrupter, Learner, SupervisedLearningStrategy, SupervisedTrainingEventProcessor,
    TrainLoader, TrainingComponents, ValidLoader,
};
use everburn_distributed::{Ddp, ParameterShards};
use everburn_record::sync::lock;

use self::balance::Balancer;
use self::elastic_state::ElasticState;
use self::hooks::HookState;
use self::missing_gradients::MissingGradients;
use self::records::Records;
pub use self::run::Run;
pub(crate) use self::setup::RankSetup;
use crate::checkpoint::pretrained_values::unmaterialised;
use crate::config::checkpoint_every::Clock;
use crate::config::loss_scaling::LossScaling;
use crate::error::TrainError;
use crate::metrics::layout::MetricAgreement;
use crate::model::erased::AnyModel;
use crate::record::outcome::LoopOutcome;
use crate::seeds::mix;

/// burn-train's strategy for a rank of a process group.
///
/// burn-train's `Learner` does not give its optimizer away again, and a checkpoint needs it; so the
/// loop owns optimizer and scheduler, and takes only the model from the learner.
pub(crate) struct RankStrategy {
    setup: Mutex<Option<RankSetup>>,
    outcome: Arc<Mutex<LoopOutcome>>,
}

impl RankStrategy {
    pub(crate) fn new(setup: RankSetup) -> (Self, Arc<Mutex<LoopOutcome>>) {
        let outcome = Arc::new(Mutex::new(LoopOutcome::default()));
        let strategy = Self {
            setup: Mutex::new(Some(setup)),
            outcome: outcome.clone(),
        };
        (strategy, outcome)
    }
}

impl SupervisedLearningStrategy<AnyModel> for RankStrategy {
    fn fit(
        &self,
        components: TrainingComponents<AnyModel>,
        learner: Learner<AnyModel>,
        _train: TrainLoader<AnyModel>,
        _validation: ValidLoader<AnyModel>,
        _starting_epoch: usize,
    ) -> (AnyModel, SupervisedTrainingEventProcessor<AnyModel>) {
        let setup = lock(&self.setup).take().expect("a strategy is used once");
        let scales = setup.config.precision.scales_losses();
        let outcome = LoopOutcome {
            loss_scaling: scales.then(LossScaling::default),
            ..LoopOutcome::default()
        };
        let hooks = HookState::new(std::mem::take(&mut *lock(&setup.hooks)));
        let mut rank_loop = RankLoop {
            clock: Clock::start(setup.config.checkpoint_every),
            hooks,
            setup,
            interrupter: components.interrupter,
            events: components.event_processor,
            outcome,
            records: Records::default(),
            elastic: ElasticState::new(),
            faults_until: 0,
            pace: None,
            late: BTreeSet::new(),
            defers_readback: false,
            shards: None,
            low_before: everburn_nn::low_products(),
            metrics: MetricAgreement::default(),
            balancer: None,
            missing_gradients: MissingGradients::default(),
        };
        let model = learner.model();
        // The loop alone holds the first values: they are gone with the first step, or when each rank has its shards.
        drop(learner);
        let without_values = unmaterialised(&model);
        let compute = rank_loop.setup.config.precision.compute_type();
        let model = match everburn_nn::autocast(compute, || rank_loop.run(model)) {
            Ok(trained) => trained,
            Err(error) => {
                error.abort(&rank_loop.setup.group);
                rank_loop.notify_failure(&error, false);
                rank_loop.outcome.error = Some(error);
                without_values
            }
        };
        *lock(&rank_loop.setup.hooks) = rank_loop.hooks.into_user_hooks();
        *lock(&self.outcome) = rank_loop.outcome;
        (model, rank_loop.events)
    }
}

pub(crate) struct RankLoop {
    setup: RankSetup,
    /// When the newest checkpoint was due, where time decides.
    clock: Clock,
    /// Called after steps and epochs.
    hooks: HookState,
    interrupter: Interrupter,
    events: SupervisedTrainingEventProcessor<AnyModel>,
    outcome: LoopOutcome,
    records: Records,
    /// What the training continues with when ranks are lost or come.
    elastic: ElasticState,
    /// The newest step whose faults have happened.
    faults_until: usize,
    /// The median seconds per local step over the ranks.
    pace: Option<f64>,
    /// The ranks that a warning has named as late.
    late: BTreeSet<usize>,
    /// Metrics are read from the device some steps late.
    defers_readback: bool,
    /// What each rank keeps a part of, if anything.
    shards: Option<ParameterShards>,
    /// How many products this thread had computed in half precision before.
    low_before: u64,
    /// Which metrics the ranks of the group tell each other of.
    metrics: MetricAgreement,
    /// How fast this rank is, where ranks share samples by that.
    balancer: Option<Balancer>,
    /// Which parameters had a gradient in the first steps.
    missing_gradients: MissingGradients,
}

impl RankLoop {
    /// Trains, in one group after the other where ranks may be lost or come.
    fn run(&mut self, mut model: AnyModel) -> Result<AnyModel, TrainError> {
        loop {
            self.take_snapshot(&model)?;
            match self.run_in_group(model) {
                Ok(trained) => return Ok(trained),
                Err(error) => model = self.continue_after(error)?,
            }
        }
    }

    fn run_in_group(&mut self, model: AnyModel) -> Result<AnyModel, TrainError> {
        let mut model = model.fork(&self.setup.device);
        if let Some(checkpoint) = self.setup.resume.take() {
            model = self.resume(model, &checkpoint)?;
        }
        model = self.enter(model)?;
        self.begin_balancing()?;
        self.open_records()?;
        model = self.setup.config.activation_checkpointing.prepare(model);
        let mut config = self.setup.config.ddp;
        let mut replicas = self.setup.group.clone();
        if let Some(over) = &self.setup.over {
            let values = self.setup.initial_values.take();
            let connector = self.setup.connector.as_deref();
            model = over.prepare(model, values.as_deref(), connector)?;
            if self.outcome.step > 0 {
                let whole = self.setup.state.optimizer_bytes()?;
                let part = over.part_of_optimizer(&model, whole)?;
                self.setup.state.load_optimizer(part)?;
            }
            replicas = over.replicas().clone();
            // The norm is that of all stages together.
            config.max_gradient_norm = None;
        }
        if self.outcome.loss_scaling.is_some() {
            // They are clipped when the scaling of the loss is undone.
            config.max_gradient_norm = None;
        }
        let communicator = self.connect_communicator(&replicas)?;
        let model = self.synchronize_batch_norms(model, &replicas, communicator.as_ref())?;
        self.check_balancing(communicator.is_some())?;
        let is_local = self.setup.config.sync.steps().is_some();
        let (ddp, model) = match communicator {
            Some(communicator) => Ddp::with_communicator(model, replicas, config, communicator)?,
            None => match self.setup.initial_values.take() {
                Some(values) => Ddp::with_initial_values(model, replicas, config, values)?,
                // Each rank keeps its gradients to itself.
                None if is_local => Ddp::without_gradients(model, replicas, config)?,
                None => Ddp::new(model, replicas, config)?,
            },
        };
        if let Some(recorder) = &self.setup.recorder {
            ddp.record_into(recorder);
        }
        let model = self.restore_buffers(model, &ddp)?;
        self.defers_readback = self.agree_on_reading()?;
        // All have rank 0's parameters from here on.
        self.take_snapshot(&model)?;
        self.meet(&model)?;
        self.missing_gradients.restart(ddp.parameters());
        self.make_up_for_checkpoint(&model)?;
        let model = self.begin_sharding(model, &ddp)?;
        let model = self.begin_hooks(model, &ddp)?;
        let model = self.train_epochs(model, &ddp).and_then(|model| {
            self.look_for_gradients_at_end(&ddp);
            let model = self.end_hooks(model, &ddp)?;
            let model = self.end_sharding(model)?;
            self.leave_averaged(&model)?;
            self.test(&model)?;
            Ok(model)
        });
        if let Err(error) = &model
            && !matches!(error, TrainError::Repaired)
        {
            // The other ranks must get the reason before this rank's connections close.
            error.abort(&self.setup.group);
        }
        model.map(everburn_nn::isolate_batch_norms)
    }

    fn train_epochs(&mut self, mut model: AnyModel, ddp: &Ddp) -> Result<AnyModel, TrainError> {
        let first = self.outcome.epoch + 1;
        for epoch in first..=self.setup.config.epochs {
            // Nothing is left to do where a run that had come to its end is resumed.
            let between = self.outcome.batches == 0 || self.outcome.has_just_resumed();
            let ends = self.outcome.stopped.is_some() || self.limit_is_reached() && between;
            if ends && self.outcome.trained.is_none() {
                break;
            }
            self.show_epoch(epoch)?;
            let finished = match self.outcome.trained {
                Some(finished) => finished,
                None => {
                    let finished;
                    (model, finished) = self.train_epoch(model, ddp, epoch)?;
                    self.outcome.trained = Some(finished);
                    finished
                }
            };
            model = self.open(model)?;
            // What is written from here on must not come from a sum that has failed meanwhile.
            ddp.settle()?;
            model = ddp.synchronize_buffers(model)?;
            self.take_snapshot(&model)?;
            if !finished && self.outcome.stopped.is_some() {
                break;
            }
            if self.setup.config.compare_every > 0 {
                model = self.compare(model, ddp, None)?;
            }
            let validated = self.validate(&model, epoch);
            let validated = validated
                .map_err(|error| self.keep_before_error(&model, epoch, finished, error))?;
            let (sums, line) = validated.map(|it| (it.sums, it.line)).unzip();
            model = self.after_epoch(model, ddp, epoch, line)?;
            ddp.verify_replicas(&model)?;
            if let Some(over) = &self.setup.over {
                over.verify(&model)?;
            }
            // From here on nobody waits for anybody: an epoch is over on all ranks or on none.
            self.outcome.trained = None;
            if finished {
                self.count_epoch(epoch);
            }
            self.finish_epoch(&model, epoch, sums.as_ref())?;
            if !finished || self.outcome.stopped.is_some() {
                break;
            }
        }
        Ok(model)
    }

    /// Random numbers (dropout) depend on seed, step and rank, so that a run that is resumed draws
    /// those that it would have drawn.
    fn seed(&self, step: usize) {
        let over = self.setup.over.as_ref();
        let stream = over.map_or(self.setup.group.rank(), |over| over.random_stream());
        self.seed_stream(step, stream);
    }

    /// The same for one of several streams: of a rank, or of a logical shard.
    fn seed_stream(&self, step: usize, stream: usize) {
        let seed = self.setup.config.seed;
        let seed = mix(mix(seed ^ mix(step as u64)) ^ stream as u64);
        self.setup.device.seed(seed);
    }

    fn limit_is_reached(&self) -> bool {
        let limit = self.setup.config.steps;
        limit.is_some_and(|limit| self.outcome.step >= limit)
    }

    fn is_first(&self) -> bool {
        self.setup.group.rank() == 0
    }

    /// Ranks that may become rank 0 have a display, too, which is silent until then.
    fn shows(&self) -> bool {
        self.is_first() || !self.setup.elasticity.any_may_be_first()
    }

    fn stop_wanted(&self) -> bool {
        self.setup.stop.is_set() || self.interrupter.should_stop()
    }
}

fn items(processed: u64, total: usize) -> ItemProgress {
    ItemProgress::new(processed as usize, total, Some("items".to_string()))
}
