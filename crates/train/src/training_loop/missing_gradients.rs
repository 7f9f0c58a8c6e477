//! Parameters that the forward pass does not use, or does not connect with the loss.

use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::prelude::*;
use everburn_distributed::{BucketEntry, Ddp};
use everburn_record::{Event, EventKind};

use super::RankLoop;
use crate::model::erased::AnyModel;

/// After how many steps the warning comes: a layer that is left out at random has been used by then.
const STEPS: usize = 10;

/// The most parameters that the warning names.
const NAMED: usize = 8;

/// How many parameters have their flags in one number that travels: all `u32` are exact in an `f64`.
const FLAGS: usize = u32::BITS as usize;

/// The parameters that have had a gradient in the first steps of this process.
#[derive(Debug, Default)]
pub(super) struct MissingGradients {
    steps: usize,
    /// By the parameter's number.
    seen: Vec<bool>,
    warned: bool,
}

impl MissingGradients {
    /// Ranks that meet count the steps anew, together.
    pub(super) fn restart(&mut self, parameters: &[BucketEntry]) {
        self.steps = 0;
        self.seen.resize(parameters.len(), false);
    }

    /// Whether gradients are looked at in a step after `more` others that are not counted yet.
    pub(super) fn are_counted(&self, more: usize) -> bool {
        self.steps + more < STEPS
    }

    /// Notes which of the parameters have a gradient.
    pub(super) fn note(
        &mut self,
        model: &AnyModel,
        gradients: &GradientsParams,
        parameters: &[BucketEntry],
    ) {
        let mut found = HashSet::new();
        model.visit(&mut FindGradients {
            gradients,
            found: &mut found,
        });
        for (seen, entry) in self.seen.iter_mut().zip(parameters) {
            *seen |= found.contains(&entry.id);
        }
    }

    /// The same of a rank's shards of gradients, which all have one dimension.
    fn note_local_shards(&mut self, gradients: &GradientsParams, parameters: &[BucketEntry]) {
        for (seen, entry) in self.seen.iter_mut().zip(parameters) {
            *seen |= gradients.get::<1>(entry.id).is_some();
        }
    }

    /// What this rank has noted, as numbers that travel; none after the first steps.
    pub(super) fn flags(&self) -> Vec<f64> {
        let bits = |flags: &[bool]| {
            let flags = flags.iter().enumerate();
            flags.fold(0_u32, |bits, (place, seen)| {
                bits | u32::from(*seen) << place
            })
        };
        match self.are_counted(0) {
            true => self.seen.chunks(FLAGS).map(bits).map(f64::from).collect(),
            false => Vec::new(),
        }
    }

    /// Takes over what another rank has noted.
    pub(super) fn join(&mut self, flags: &[f64]) {
        for (number, seen) in self.seen.iter_mut().enumerate() {
            let bits = flags.get(number / FLAGS).map_or(0, |bits| *bits as u32);
            *seen |= bits >> (number % FLAGS) & 1 == 1;
        }
    }

    /// Counts steps. After the last of the first ones it yields the warning, if there is one.
    fn count(&mut self, steps: usize, parameters: &[BucketEntry]) -> Option<String> {
        if !self.are_counted(0) {
            return None;
        }
        self.steps = STEPS.min(self.steps + steps);
        match self.are_counted(0) {
            true => None,
            false => self.warning(parameters),
        }
    }

    /// The warning, unless there was one: at the end of a training that had fewer steps, or after the first steps.
    fn warning(&mut self, parameters: &[BucketEntry]) -> Option<String> {
        if self.steps == 0 || std::mem::replace(&mut self.warned, true) {
            return None;
        }
        let missing = parameters
            .iter()
            .zip(&self.seen)
            .filter(|(_, seen)| !**seen);
        let missing: Vec<_> = missing.map(|(entry, _)| &*entry.path).collect();
        warning(&missing, self.steps)
    }
}

/// Finds which parameters have a gradient.
struct FindGradients<'a> {
    gradients: &'a GradientsParams,
    found: &'a mut HashSet<ParamId>,
}

impl ModuleVisitor for FindGradients<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.gradients.get::<D>(param.id).is_some() {
            self.found.insert(param.id);
        }
    }
}

fn warning(missing: &[&str], steps: usize) -> Option<String> {
    let named = missing.iter().take(NAMED).map(|path| format!("`{path}`"));
    let named = named.collect::<Vec<_>>().join(", ");
    let more = match missing.len() {
        0 => return None,
        1..=NAMED => String::new(),
        all => format!(" and {} more", all - NAMED),
    };
    Some(format!(
        "{named}{more} had no gradient on any rank in {}: does the forward pass use them, and is there \
         a `detach` between them and the loss? `no_grad` freezes parameters that are not to be trained",
        match steps {
            1 => "the only step".to_owned(),
            _ => format!("the first {steps} steps"),
        }
    ))
}

impl RankLoop {
    /// Warns once of parameters without a gradient on any rank, by the mean gradients of a step. Where ranks hold a model
    /// together, none knows them all.
    pub(super) fn look_for_gradients(
        &mut self,
        model: &AnyModel,
        gradients: &GradientsParams,
        ddp: &Ddp,
    ) {
        if self.setup.over.is_some() || !self.missing_gradients.are_counted(0) {
            return;
        }
        let parameters = ddp.parameters();
        match self.shards_gradients() {
            true => self
                .missing_gradients
                .note_local_shards(gradients, parameters),
            false => self.missing_gradients.note(model, gradients, parameters),
        }
        self.count_gradients(1, parameters);
    }

    /// Counts steps whose gradients are noted, of all ranks.
    pub(super) fn count_gradients(&mut self, steps: usize, parameters: &[BucketEntry]) {
        let warning = self.missing_gradients.count(steps, parameters);
        self.warn_of_gradients(warning);
    }

    /// The same at the end of a training that was too short for it.
    pub(super) fn look_for_gradients_at_end(&mut self, ddp: &Ddp) {
        let warning = self.missing_gradients.warning(ddp.parameters());
        self.warn_of_gradients(warning);
    }

    fn warn_of_gradients(&self, warning: Option<String>) {
        if let Some(text) = warning.filter(|_| self.is_first()) {
            tracing::warn!("{text}");
            self.note(Event::new(EventKind::Warning, text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ranks_have_noted_is_joined_and_travels_in_the_first_steps_only() {
        let noted = |numbers: &[usize]| MissingGradients {
            seen: (0..40).map(|number| numbers.contains(&number)).collect(),
            ..MissingGradients::default()
        };
        let (mut own, other) = (noted(&[0, 31]), noted(&[32, 39]));
        assert_eq!(other.flags().len(), 2);
        own.join(&other.flags());
        assert_eq!(own.seen, noted(&[0, 31, 32, 39]).seen);
        own.steps = STEPS;
        assert!(own.flags().is_empty());
        own.restart(&[]);
        assert!(own.are_counted(STEPS - 1) && !own.are_counted(STEPS));
    }

    #[test]
    fn many_parameters_are_named_by_the_first() {
        assert_eq!(warning(&[], STEPS), None);
        let one = warning(&["first.weight"], 4).unwrap();
        assert!(
            one.starts_with("`first.weight` had no gradient on any rank in the first 4 steps"),
            "{one}"
        );
        let many = warning(&["a"; 11], STEPS).unwrap();
        assert!(many.contains("`a` and 3 more had"), "{many}");
        assert_eq!(many.matches("`a`").count(), NAMED);
    }
}
