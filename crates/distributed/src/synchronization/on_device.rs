//! The end of a step whose gradients are on their device.

use std::sync::mpsc::Receiver;
use std::time::Instant;

use everburn_collectives::sync::lock;

use super::Synchronization;
use super::device_sum::DeviceSum;
use crate::error::DdpError;
use crate::reducer::{Outcome, Reducer, Report};

impl Synchronization {
    /// Sends off what has not left, and takes the sums, for which the device waits. Unlike in the other two ends the host waits
    /// for numbers of the other hosts alone, and before it asks for a sum: without samples there is none.
    pub(super) fn complete_on_device(&self) -> Result<DeviceSum, DdpError> {
        let start = self.waiting_since.unwrap_or_else(Instant::now);
        let shared = self.ddp.shared();
        let asks_for_order = shared.wants_order();
        let mut step = lock(&self.step);
        step.close()?;
        let reports_of_samples = step.expected();
        let (own, own_samples) = (step.used().to_vec(), step.samples);
        // Who has used all parameters knows already that somebody has; the others wait for an answer.
        let reduces_used = shared.reducer.is_some() && !shared.knows_used();
        let awaits_used = reduces_used && (own.contains(&false) || shared.config.static_graph);
        if reduces_used {
            step.submit_used();
        }
        if asks_for_order {
            step.submit_order();
        }
        step.reports = None;
        drop(step);
        let mut metadata = StepMetadata {
            samples: own_samples as u64,
            used: own.clone(),
            order: Vec::new(),
        };
        if let Some(reducer) = &shared.reducer {
            metadata.receive(reducer, &self.reports, reports_of_samples)?;
        }
        if metadata.samples == 0 {
            // No rank has sent anything.
            return Err(DdpError::NoSamples);
        }
        let mut sum = DeviceSum::of(&mut lock(&self.step), metadata.samples)?;
        if let Some(reducer) = &shared.reducer
            && (asks_for_order || awaits_used)
        {
            let more = usize::from(reduces_used) + usize::from(asks_for_order);
            metadata.receive(reducer, &self.reports, more)?;
        }
        sum.collect()?;
        sum.communication.exposed = start.elapsed();
        lock(&self.step).late()?;
        sum.used = self.remember(metadata.used, &own, own_samples, &metadata.order)?;
        Ok(sum)
    }
}

/// What the ranks exchange besides gradients.
struct StepMetadata {
    samples: u64,
    used: Vec<bool>,
    order: Vec<i32>,
}

impl StepMetadata {
    fn receive(
        &mut self,
        reducer: &Reducer,
        reports: &Receiver<Report>,
        expected: usize,
    ) -> Result<(), DdpError> {
        for _ in 0..expected {
            match reducer.next_report(reports)?.outcome? {
                Outcome::Samples(samples) => self.samples = samples,
                Outcome::Used(used) => self.used = used,
                Outcome::Order(order) => self.order = order,
                Outcome::Bucket { .. } | Outcome::Segment { .. } => {}
            }
        }
        Ok(())
    }
}
