//! Synchronous steps: the ranks exchange gradients in each.

use std::time::{Duration, Instant};

use burn::optim::GradientsParams;
use everburn_distributed::{Ddp, EpochBatches, ShareOfBatch, SyncedGradients};
use everburn_profile::Phase as Doing;
use everburn_record::RankStep;

use super::RankLoop;
use super::engine::{Engine, EngineStep, LocalStep, SyncedStep, SyncedSteps};
use super::pending_metrics::{LocalOutput, PendingMetrics, Spans};
use crate::device::memory::PeakMemory;
use crate::error::TrainError;
use crate::metrics::rank_times::{PassTimes, PastStep, come_with};
use crate::metrics::step_reduction::{LocalReply, Verdict};
use crate::metrics::sums::MetricSums;
use crate::model::erased::{AnyBatch, AnyItem, AnyLoader, AnyModel};
use crate::parallel::placement::check_batch;

/// Data parallelism in its four forms: full replicas, ZeRO, logical shards, and model-parallel meshes.
pub(super) struct SynchronousSteps<'a> {
    ddp: &'a Ddp,
    shares: EpochBatches<'a, AnyItem, AnyBatch>,
    memory: PeakMemory,
    pending: PendingMetrics,
    /// When the previous step ended. Work between steps (a checkpoint, a comparison, a record) counts for the next.
    start: Instant,
}

pub(super) struct PassOutput {
    pub(super) model: AnyModel,
    pub(super) synced: SyncedGradients,
    pub(super) output: LocalOutput,
    pub(super) times: PassTimes,
}

/// A step whose metrics are being exchanged.
struct PendingStep {
    verdict: Verdict,
    /// How long this rank has waited for the exchange.
    waited: Duration,
    peak_memory: Option<u64>,
}

impl Engine for SynchronousSteps<'_> {
    fn left(&self) -> usize {
        self.shares.len()
    }

    fn step(&mut self, ranks: &mut RankLoop, model: AnyModel) -> Result<EngineStep, TrainError> {
        let number = ranks.outcome.step + 1;
        let (share, data) = self.next_share(ranks)?;
        let samples = share.samples;
        ranks.begin_step(number);
        let model = ranks.before_passes(model)?;
        let scaled = ranks.scale_losses(number);
        let PassOutput {
            model,
            mut synced,
            output,
            times: passes,
        } = ranks.passes(model, share, self.ddp, number)?;
        ranks.measure(
            samples,
            data.as_secs_f64() + passes.forward + passes.backward,
        );
        ranks.look_for_gradients(&model, &synced.gradients, self.ddp);
        let skipped = ranks.unscale(&model, &mut synced, scaled, samples)?;
        ranks.profile(Doing::Other);
        let mut times = RankStep {
            data: data.as_secs_f64(),
            forward: passes.forward,
            backward: passes.backward,
            samples: Some(samples as u64),
            ..RankStep::default()
        };
        let ddp = self.ddp;
        let learn = |ranks: &mut RankLoop, times: &mut RankStep| {
            ranks.update(model, synced, skipped, number, ddp, times)
        };
        match output {
            LocalOutput::Sums(sums) => {
                let mut pending = self.send(ranks, &sums, number)?;
                pending.waited += Duration::from_secs_f64(passes.waited);
                times.peak_memory = pending.peak_memory;
                let (model, step) = learn(ranks, &mut times)?;
                self.finish(ranks, model, step, pending, times)
            }
            LocalOutput::OnDevice(outputs) => {
                let (model, step) = learn(ranks, &mut times)?;
                ranks.advance((!skipped).then_some(&model), number..=number);
                self.pending.push(step, outputs, times);
                let synced = self.read_if_due(ranks, number)?;
                Ok(EngineStep { model, synced })
            }
        }
    }
}

impl<'a> SynchronousSteps<'a> {
    /// Begins an epoch after the batches that are done.
    pub(super) fn begin(
        ranks: &RankLoop,
        loader: &'a AnyLoader,
        ddp: &'a Ddp,
        epoch: usize,
    ) -> Self {
        // A step's peak is that from the end of one backward pass to the end of the next.
        let memory = PeakMemory::of(&ranks.setup.device);
        memory.restart();
        Self {
            ddp,
            shares: loader.epoch(epoch).behind(ranks.outcome.batches),
            memory,
            pending: PendingMetrics::new(),
            start: Instant::now(),
        }
    }

    /// The next local batch, and how long this rank has waited for it.
    fn next_share(
        &mut self,
        ranks: &RankLoop,
    ) -> Result<(ShareOfBatch<AnyBatch>, Duration), TrainError> {
        ranks.profile_step();
        let asked = Instant::now();
        let share = self
            .shares
            .next()
            .expect("the loop asks while there is one");
        let share = share.map_err(|error| TrainError::Data(error.to_string()))?;
        for part in share.micro_batches.iter().take(1) {
            check_batch(&part.batch, &ranks.setup.device)?;
        }
        let data = asked.elapsed();
        ranks.profile(Doing::Other);
        Ok((share, data))
    }

    /// Starts to exchange the metrics of a step, while the optimizer computes. In elastic jobs the exchange ends
    /// first.
    fn send(
        &self,
        ranks: &mut RankLoop,
        sums: &MetricSums,
        number: usize,
    ) -> Result<PendingStep, TrainError> {
        let layout = ranks.metrics.layout([sums], &ranks.setup.group)?;
        let votes = ranks.votes();
        let peak_memory = peak_of(&self.memory);
        if let (Some(recorder), Some(peak)) = (&ranks.setup.recorder, peak_memory) {
            recorder.peak_memory(peak);
        }
        let group = &ranks.setup.group;
        let past = ranks.outcome.past.filter(|past| past.step + 1 == number);
        let own = LocalReply {
            sums,
            votes,
            memory: peak_memory,
            past: come_with(number, group.world_size()).then_some(past),
        };
        let mut pending = PendingStep {
            verdict: Verdict::Pending(own.send(layout, group)),
            waited: Duration::ZERO,
            peak_memory,
        };
        if ranks.setup.elasticity.rolls_back() {
            // Only a step that can no longer fail may change the state from which survivors continue.
            ranks.profile(Doing::Waiting);
            let waiting = Instant::now();
            pending.verdict = pending.verdict.known()?;
            pending.waited = waiting.elapsed();
            ranks.elastic.snapshot = None;
        }
        Ok(pending)
    }

    /// Waits for the step's metrics of all ranks, and counts the step.
    fn finish(
        &mut self,
        ranks: &mut RankLoop,
        model: AnyModel,
        step: LocalStep,
        pending: PendingStep,
        mut times: RankStep,
    ) -> Result<EngineStep, TrainError> {
        let waiting = Instant::now();
        let reply = pending.verdict.wait()?;
        let waited = pending.waited + waiting.elapsed();
        ranks.profile(Doing::Records);
        let elapsed = std::mem::replace(&mut self.start, Instant::now()).elapsed();
        let number = step.number;
        ranks.record_ranks(number - 1, reply.past);
        ranks.advance((!step.skipped).then_some(&model), number..=number);
        let spans = Spans {
            step: elapsed.as_secs_f64(),
            waited,
            peak_memory: reply.peak_memory,
        };
        let cost = spans.cost_of(step.communication);
        (times.seconds, times.waited) = (cost.seconds, cost.waited);
        ranks.outcome.past = Some(PastStep {
            step: number,
            times,
        });
        let synced = SyncedStep {
            step,
            sums: reply.sums,
            cost,
        };
        let synced = SyncedSteps {
            steps: vec![synced],
            range: number..=number,
            votes: reply.votes,
        };
        Ok(EngineStep {
            model,
            synced: Some(synced),
        })
    }

    /// Reads the pending metrics of all steps from the device, if they are due after step `number`.
    fn read_if_due(
        &mut self,
        ranks: &mut RankLoop,
        number: usize,
    ) -> Result<Option<SyncedSteps>, TrainError> {
        if !self.pending.is_full() && !ranks.must_know(number, self.shares.len()) {
            return Ok(None);
        }
        let (votes, peak) = (ranks.votes(), peak_of(&self.memory));
        let (steps, votes, times) = ranks.read(&mut self.pending, votes, peak)?;
        ranks.record_ranks(number, times);
        Ok(Some(SyncedSteps {
            steps,
            range: number..=number,
            votes,
        }))
    }
}

impl RankLoop {
    /// Begins a step: injects the faults that are due, and seeds the step's random numbers.
    pub(super) fn begin_step(&mut self, number: usize) {
        self.setup.group.set_step(number as u64);
        self.inject_faults(number);
        self.seed(number);
    }

    /// The passes over the local batch, and the mean gradients over all ranks.
    fn passes(
        &mut self,
        model: AnyModel,
        share: ShareOfBatch<AnyBatch>,
        ddp: &Ddp,
        number: usize,
    ) -> Result<PassOutput, TrainError> {
        let shards = self.setup.train.sampler().virtual_ranks().cloned();
        let (synced, output, times) = match shards {
            Some(shards) => return self.step_of_virtual_ranks(model, share, ddp, shards, number),
            None if self.shards_gradients() => {
                self.forward_and_backward_sharded(&model, share, ddp)?
            }
            None => self.forward_and_backward(&model, share, ddp)?,
        };
        Ok(PassOutput {
            model,
            synced,
            output,
            times,
        })
    }

    /// Updates the model by the optimizer, unless the step is skipped.
    fn update(
        &mut self,
        mut model: AnyModel,
        mut synced: SyncedGradients,
        skipped: bool,
        number: usize,
        ddp: &Ddp,
        times: &mut RankStep,
    ) -> Result<(AnyModel, LocalStep), TrainError> {
        self.profile(Doing::Optimizer);
        let began = Instant::now();
        let scheduler = &mut self.setup.state.scheduler;
        let rate = match skipped {
            // The next step has the same rate.
            true => scheduler.clone().step(),
            false => scheduler.step(),
        };
        if !skipped {
            let gradients: GradientsParams = std::mem::take(&mut synced.gradients);
            model = self.learn(model, gradients, rate.clone(), ddp)?;
        }
        synced.communication.exposed += self.waited_for_parameters();
        self.count_overflow(number, skipped)?;
        times.optimizer = began.elapsed().as_secs_f64();
        times.exposed = synced.communication.exposed.as_secs_f64();
        self.profile(Doing::Waiting);
        let step = LocalStep {
            number,
            rate,
            gradient_norm: synced.norm,
            skipped,
            communication: synced.communication,
        };
        Ok((model, step))
    }
}

/// The peak of the step that ends here.
fn peak_of(memory: &PeakMemory) -> Option<u64> {
    let peak = memory.bytes();
    memory.restart();
    peak
}
