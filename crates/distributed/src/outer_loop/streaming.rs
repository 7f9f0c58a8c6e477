//! Outer steps of one fragment of the model at a time, which are reduced while the next steps are computed.
//!
//! This is Streaming DiLoCo (Douillard et al. 2025, arXiv 2501.18512, sections 2.2 and 2.3), with one difference: the paper
//! mixes a fragment's new common parameters with the rank's own, which have moved on. Here the rank's own are shifted by as
//! much as the common ones differ from what the rank had sent, so that no step made meanwhile is taken back by half.

use std::fmt;
use std::time::{Duration, Instant};

use burn::module::Module;
use everburn_collectives::group::{CollectiveError, ProcessGroup, ReduceOp};
use everburn_collectives::worker::{Answer, Worker};

use super::sum::{CHUNK, sum};
use super::{OuterLoop, Parameters};
use crate::error::DdpError;
use crate::synchronization::Communication;
use crate::worker_timeout::{AT_THE_END, WorkerTimeout, end};

/// What reports on stalls call the group of the thread.
const GROUP: &str = "outer-steps";

/// The thread that reduces fragments of an [`OuterLoop`], over a process group of its own.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_distributed as distributed; }
/// use burn::nn::LinearConfig;
/// use burn::optim::{GradientsParams, SgdConfig};
/// use burn::prelude::*;
/// use everburn::collectives::group::{GroupOptions, ProcessGroup};
/// use everburn::distributed::{Ddp, DdpConfig, DdpError, OuterConfig, OuterLoop, OuterStream};
///
/// let groups = ProcessGroup::over_threads(2, GroupOptions::default());
/// let ranks = groups.into_iter().map(|group| {
///     std::thread::spawn(move || -> Result<f32, DdpError> {
///         let device = Device::flex().autodiff();
///         let model = LinearConfig::new(3, 1).init(&device);
///         let (_, mut model) = Ddp::new(model, group.clone(), DdpConfig::default())?;
///         let config = OuterConfig { fragments: Some(2), ..OuterConfig::default() };
///         let mut outer = OuterLoop::new(&model, group.clone(), config)?;
///         let stream = OuterStream::start(&group)?;
///         let mut optimizer = SgdConfig::new().init();
///
///         let mut in_flight = None;
///         for _ in 0..6 {
///             for _ in 0..10 {
///                 let loss = model.forward(Tensor::<2>::ones([1 + group.rank(), 3], &device)).mean();
///                 let gradients = GradientsParams::from_grads(loss.backward(), &model);
///                 model = optimizer.step(0.001, model, gradients);
///             }
///             if let Some(fragment) = in_flight.take() {
///                 model = outer.collect(model, fragment)?.0;
///             }
///             in_flight = Some(outer.begin(&model, 10, &stream)?);
///         }
///         if let Some(fragment) = in_flight {
///             model = outer.collect(model, fragment)?.0;
///         }
///         // Now all fragments, and wait.
///         model = outer.step(model, 0)?.0;
///         assert_eq!(outer.find_divergence(&model)?, None);
///         Ok(model.weight.val().sum().into_scalar::<f32>())
///     })
/// });
/// let sums = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap());
/// let sums = sums.collect::<Result<Vec<_>, _>>()?;
/// assert_eq!(sums[0], sums[1]);
/// # Ok::<(), DdpError>(())
/// ```
pub struct OuterStream {
    group: ProcessGroup,
    worker: Worker<ProcessGroup>,
}

impl OuterStream {
    /// Starts the thread. Every rank of `group` calls it.
    ///
    /// # Errors
    /// [`DdpError::Collective`] if a sub-group cannot be made; [`DdpError::Reducer`] if the system refuses the thread.
    pub fn start(group: &ProcessGroup) -> Result<Self, DdpError> {
        let own = group.duplicate(GROUP)?;
        let giving_up = own.clone();
        let panicked = move |message: &str| {
            let rank = giving_up.rank();
            giving_up.abort(format!(
                "the outer steps of rank {rank}: their thread panicked: {message}"
            ));
        };
        // The steps are computed on the same cores.
        let worker = Worker::start("everburn-outer", own.clone().in_background(), panicked)
            .map_err(|error| DdpError::Reducer(format!("it could not be started: {error}")))?;
        Ok(Self { group: own, worker })
    }
}

impl Drop for OuterStream {
    fn drop(&mut self) {
        let reason = "the thread that exchanges fragments does not end";
        end(&mut self.worker, AT_THE_END, &self.group, reason);
    }
}

impl fmt::Debug for OuterStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OuterStream").finish_non_exhaustive()
    }
}

/// A fragment that is being reduced, from [`OuterLoop::begin`] to [`OuterLoop::collect`].
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use burn::module::Module;
/// use everburn::distributed::{DdpError, FragmentInFlight, OuterLoop};
///
/// /// Ends the reduction, if one is under way.
/// fn end<M: Module>(outer: &mut OuterLoop, model: M, begun: Option<FragmentInFlight>) -> Result<M, DdpError> {
///     match begun {
///         Some(fragment) => Ok(outer.collect(model, fragment)?.0),
///         None => Ok(model),
///     }
/// }
/// ```
pub struct FragmentInFlight {
    fragment: usize,
    /// This rank's parameters as it has sent them.
    sent: Vec<f32>,
    answer: Answer<Result<ReducedFragment, CollectiveError>>,
    timeout: WorkerTimeout,
}

impl fmt::Debug for FragmentInFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FragmentInFlight")
            .field("fragment", &self.fragment)
            .finish_non_exhaustive()
    }
}

/// A fragment after its reduction over the ranks.
struct ReducedFragment {
    /// `None` where no rank had a sample.
    differences: Option<Vec<f32>>,
    residual: Vec<f32>,
    busy: Duration,
    bytes: u64,
}

impl OuterLoop {
    /// Whether fragments are reduced in turn.
    pub fn streams(&self) -> bool {
        self.config.fragments.is_some()
    }

    /// Begins to reduce the next fragment of `model`, which has learnt from `samples` samples since the last call or outer
    /// step, and waits for nobody. Every rank calls it, and [`collect`](Self::collect) before the next call or outer step.
    ///
    /// # Errors
    /// [`DdpError::OtherModel`] if `model` has other parameters; [`DdpError::Read`] if a device does not give the numbers.
    pub fn begin<M: Module>(
        &mut self,
        model: &M,
        samples: u64,
        stream: &OuterStream,
    ) -> Result<FragmentInFlight, DdpError> {
        let part = self.fragments[self.next].range.clone();
        let (slots, whole) = self.parameters.around(&part);
        let values = Parameters::read_some(model, slots)?;
        let sent = values[part.start - whole.start..part.end - whole.start].to_vec();
        for fragment in &mut self.fragments {
            fragment.samples += samples;
        }
        let number = self.next;
        self.next = (number + 1) % self.fragments.len();
        let fragment = &mut self.fragments[number];
        let own = std::mem::take(&mut fragment.samples);
        let range = fragment.range.clone();
        let pairs = self.base[range.clone()].iter().zip(&sent);
        let mut differences = pairs.map(|(base, value)| base - value).collect::<Vec<_>>();
        let owed = match self.residual.is_empty() {
            true => Vec::new(),
            false => self.residual[range].to_vec(),
        };
        let compression = self.config.compression;
        let chunks = differences.len().div_ceil(CHUNK);
        let answer = stream.worker.ask(move |group| {
            let start = Instant::now();
            let mut all = [own as i64];
            group.all_reduce_in_place(&mut all, ReduceOp::Sum)?;
            let share = own as f64 / all[0].max(1) as f64;
            differences
                .iter_mut()
                .for_each(|value| *value *= share as f32);
            let (residual, bytes) = sum(&mut differences, owed, compression, group)?;
            Ok(ReducedFragment {
                differences: (all[0] > 0).then_some(differences),
                residual,
                busy: start.elapsed(),
                bytes,
            })
        });
        Ok(FragmentInFlight {
            fragment: number,
            sent,
            answer,
            // The samples, and for each chunk at most two operations.
            timeout: WorkerTimeout::in_step(&stream.group).of_operations(1 + 2 * chunks),
        })
    }

    /// Waits for the reduction of a fragment, and shifts its parameters in `model` by as much as the common ones differ from
    /// what this rank had sent; what that has cost, of which `exposed` is the wait. After an error only
    /// [`restart`](Self::restart) helps.
    ///
    /// # Errors
    /// [`DdpError::Collective`] if the reduction has failed; [`DdpError::Reducer`] if its thread has; [`DdpError::OtherModel`]
    /// and [`DdpError::Read`] as for [`begin`](Self::begin).
    pub fn collect<M: Module>(
        &mut self,
        model: M,
        in_flight: FragmentInFlight,
    ) -> Result<(M, Communication), DdpError> {
        let start = Instant::now();
        let (sent, timeout) = (in_flight.sent, in_flight.timeout);
        let reduced = in_flight.answer.wait_within(timeout.duration());
        let reduced = reduced.map_err(|lost| {
            DdpError::Reducer(timeout.lost(lost, "the exchange of a fragment"))
        })??;
        let communication = Communication {
            exposed: start.elapsed(),
            busy: reduced.busy,
            bytes: reduced.bytes,
        };
        let Some(differences) = reduced.differences else {
            return Ok((model, communication));
        };
        let range = self.fragments[in_flight.fragment].range.clone();
        let (base, velocity) = self.descend(range.clone(), &differences);
        let (slots, whole) = self.parameters.around(&range);
        let mut values = Parameters::read_some(&model, slots)?;
        let shifts = base.iter().zip(&sent).map(|(base, sent)| base - sent);
        let own = values[range.start - whole.start..range.end - whole.start].iter_mut();
        own.zip(shifts).for_each(|(value, shift)| *value += shift);
        let model = Parameters::write_some(model, slots, &values, whole.start);
        self.base[range.clone()].copy_from_slice(&base);
        if !self.velocity.is_empty() {
            self.velocity[range.clone()].copy_from_slice(&velocity);
        }
        if !self.residual.is_empty() {
            self.residual[range].copy_from_slice(&reduced.residual);
        }
        Ok((model, communication))
    }

    /// `model` with the parameters that all ranks have in common, as of the newest outer step of each fragment: the same on
    /// all ranks after as many calls of [`collect`](Self::collect).
    #[must_use]
    pub fn common<M: Module>(&self, model: M) -> M {
        self.parameters.write(model, &self.base)
    }
}

#[cfg(test)]
mod tests;
