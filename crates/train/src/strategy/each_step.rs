//! Steps that all ranks make together: their gradients are exchanged in each.

use std::time::{Duration, Instant};

use burn::optim::GradientsParams;
use everburn_distributed::{Ddp, EpochBatches, ShareOfBatch, SyncedGradients};
use everburn_profile::Phase as Doing;
use everburn_record::RankStep;

use super::RankLoop;
use super::engine::{Engine, Known, KnownStep, Made, OwnStep};
use super::unread::{LocalOutput, Spans, Unread};
use crate::erased::{AnyBatch, AnyItem, AnyLoader, AnyModel};
use crate::error::TrainError;
use crate::memory::PeakMemory;
use crate::metric_sums::MetricSums;
use crate::placement::check_batch;
use crate::rank_times::{PassTimes, PastStep, come_with};
use crate::step_exchange::{OwnReply, Verdict};
use crate::step_report::StepReport;

/// Data parallelism in its four forms: whole replicas, replicas that keep a part each, logical shards, and models that
/// several ranks hold together.
pub(super) struct EachStep<'a> {
    ddp: &'a Ddp,
    shares: EpochBatches<'a, AnyItem, AnyBatch>,
    memory: PeakMemory,
    unread: Unread<StepReport>,
    /// When the step before was known. What is done behind a step (a checkpoint, a comparison, a line of the record)
    /// counts for the next.
    start: Instant,
}

/// What the passes of a step have found.
pub(super) struct Passed {
    pub(super) model: AnyModel,
    /// The mean gradients over all ranks.
    pub(super) synced: SyncedGradients,
    pub(super) found: LocalOutput<StepReport>,
    pub(super) times: PassTimes,
}

/// A step on its way to the other ranks.
struct Told {
    verdict: Verdict,
    /// How long it has been waited for.
    waited: Duration,
    peak_memory: Option<u64>,
}

impl Engine for EachStep<'_> {
    fn left(&self) -> usize {
        self.shares.len()
    }

    fn step(&mut self, ranks: &mut RankLoop, model: AnyModel) -> Result<Made, TrainError> {
        let number = ranks.outcome.step + 1;
        let (share, data) = self.next_share(ranks)?;
        let samples = share.samples;
        ranks.begin_step(number);
        let model = ranks.before_passes(model)?;
        let scaled = ranks.scale_losses(number);
        let Passed {
            model,
            mut synced,
            found,
            times: passes,
        } = ranks.passes(model, share, self.ddp, number)?;
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
        match found {
            LocalOutput::Sums(sums) => {
                let mut told = self.tell(ranks, &sums, number)?;
                told.waited += Duration::from_secs_f64(passes.waited);
                times.peak_memory = told.peak_memory;
                let (model, step) = learn(ranks, &mut times)?;
                self.conclude(ranks, model, step, told, times)
            }
            LocalOutput::Unread(outputs) => {
                let (model, step) = learn(ranks, &mut times)?;
                ranks.advance((!skipped).then_some(&model), number..=number);
                self.unread.push(step, outputs, times);
                let known = self.read_if_due(ranks, number)?;
                Ok(Made { model, known })
            }
        }
    }
}

impl<'a> EachStep<'a> {
    /// Begins an epoch, behind what has been made of it.
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
            unread: Unread::new(),
            start: Instant::now(),
        }
    }

    /// This rank's share of the next global batch, and how long it was waited for.
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

    /// Tells the other ranks what this one has found, while its optimizer computes. Where ranks may be lost, all
    /// know it first.
    fn tell(
        &self,
        ranks: &mut RankLoop,
        sums: &MetricSums,
        number: usize,
    ) -> Result<Told, TrainError> {
        let layout = ranks.metrics.layout([sums], &ranks.setup.group)?;
        let votes = ranks.votes();
        let peak_memory = peak_of(&self.memory);
        if let (Some(recorder), Some(peak)) = (&ranks.setup.recorder, peak_memory) {
            recorder.peak_memory(peak);
        }
        let group = &ranks.setup.group;
        let past = ranks.past.filter(|past| past.step + 1 == number);
        let own = OwnReply {
            sums,
            votes,
            memory: peak_memory,
            past: come_with(number, group.world_size()).then_some(past),
        };
        let mut told = Told {
            verdict: Verdict::Pending(own.tell(layout, group)),
            waited: Duration::ZERO,
            peak_memory,
        };
        if ranks.setup.regroup.is_some() {
            // What cannot fail any more may be done to the state that the survivors of a failure go on with, and
            // nothing else.
            ranks.profile(Doing::Waiting);
            let waiting = Instant::now();
            told.verdict = told.verdict.known()?;
            told.waited = waiting.elapsed();
            ranks.kept = None;
        }
        Ok(told)
    }

    /// Waits for what all ranks have found in the step that this one has learnt from.
    fn conclude(
        &mut self,
        ranks: &mut RankLoop,
        model: AnyModel,
        step: OwnStep,
        told: Told,
        mut times: RankStep,
    ) -> Result<Made, TrainError> {
        let waiting = Instant::now();
        let reply = told.verdict.wait()?;
        let waited = told.waited + waiting.elapsed();
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
        ranks.past = Some(PastStep {
            step: number,
            times,
        });
        let known = KnownStep {
            step,
            sums: reply.sums,
            cost,
        };
        let known = Known {
            steps: vec![known],
            made: number..=number,
            votes: reply.votes,
        };
        Ok(Made {
            model,
            known: Some(known),
        })
    }

    /// Reads the numbers of all steps that lie on the device, if they are to be known after step `number`.
    fn read_if_due(
        &mut self,
        ranks: &mut RankLoop,
        number: usize,
    ) -> Result<Option<Known>, TrainError> {
        if !self.unread.is_full() && !ranks.must_know(number, self.shares.len()) {
            return Ok(None);
        }
        let (votes, peak) = (ranks.votes(), peak_of(&self.memory));
        let (steps, votes, times) = ranks.read(&mut self.unread, votes, peak)?;
        ranks.record_ranks(number, times);
        Ok(Some(Known {
            steps,
            made: number..=number,
            votes,
        }))
    }
}

impl RankLoop {
    /// A step begins: faults that are due befall this rank, and its random numbers are the step's own.
    pub(super) fn begin_step(&mut self, number: usize) {
        self.setup.group.set_step(number as u64);
        self.suffer(number);
        self.seed(number);
    }

    /// The passes over this rank's share of a batch, and the mean gradients over all ranks.
    fn passes(
        &mut self,
        model: AnyModel,
        share: ShareOfBatch<AnyBatch>,
        ddp: &Ddp,
        number: usize,
    ) -> Result<Passed, TrainError> {
        let (synced, found, times) = match self.setup.train.sampler().virtual_ranks() {
            Some(shards) => return self.step_of_virtual_ranks(model, share, ddp, shards, number),
            None if self.cuts_gradients() => self.forward_and_backward_cut(&model, share, ddp)?,
            None => self.forward_and_backward(&model, share, ddp)?,
        };
        Ok(Passed {
            model,
            synced,
            found,
            times,
        })
    }

    /// What the optimizer makes of the model in a step, unless the step is skipped.
    fn update(
        &mut self,
        mut model: AnyModel,
        mut synced: SyncedGradients,
        skipped: bool,
        number: usize,
        ddp: &Ddp,
        times: &mut RankStep,
    ) -> Result<(AnyModel, OwnStep), TrainError> {
        self.profile(Doing::Optimizer);
        let began = Instant::now();
        let scheduler = &mut self.setup.state.scheduler;
        let rate = match skipped {
            // The next step has it again.
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
        let step = OwnStep {
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
