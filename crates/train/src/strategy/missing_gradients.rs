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

/// The parameters that have had a gradient in the first steps of this process.
#[derive(Debug, Default)]
pub(super) struct MissingGradients {
    steps: usize,
    seen: HashSet<ParamId>,
}

impl MissingGradients {
    /// Counts a step with these gradients. After the last of the first steps it yields the warning, if there is one.
    fn count(
        &mut self,
        model: &AnyModel,
        gradients: &GradientsParams,
        parameters: &[BucketEntry],
    ) -> Option<String> {
        if self.steps == STEPS {
            return None;
        }
        self.steps += 1;
        let seen = &mut self.seen;
        model.visit(&mut Seen { gradients, seen });
        (self.steps == STEPS)
            .then(|| self.warning(parameters))
            .flatten()
    }

    /// The warning at the end of a training that had fewer steps.
    fn finish(&mut self, parameters: &[BucketEntry]) -> Option<String> {
        (1..STEPS)
            .contains(&self.steps)
            .then(|| self.warning(parameters))
            .flatten()
    }

    fn warning(&self, parameters: &[BucketEntry]) -> Option<String> {
        let missing = parameters
            .iter()
            .filter(|entry| !self.seen.contains(&entry.id));
        let missing: Vec<_> = missing.map(|entry| &*entry.path).collect();
        warning(&missing, self.steps)
    }
}

/// Notes which parameters have a gradient.
struct Seen<'a> {
    gradients: &'a GradientsParams,
    seen: &'a mut HashSet<ParamId>,
}

impl ModuleVisitor for Seen<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.seen.contains(&param.id) && self.gradients.get::<D>(param.id).is_some() {
            self.seen.insert(param.id);
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
    /// Warns once of parameters without a gradient on any rank. Where ranks hold shards of gradients or of the model, none
    /// knows them all.
    pub(super) fn look_for_gradients(
        &mut self,
        model: &AnyModel,
        gradients: &GradientsParams,
        ddp: &Ddp,
    ) {
        if self.cuts_gradients() || self.setup.over.is_some() || !self.is_first() {
            return;
        }
        let parameters = ddp.parameters();
        let warning = self.missing_gradients.count(model, gradients, parameters);
        self.warn_of_gradients(warning);
    }

    /// The same at the end of a training that was too short for it.
    pub(super) fn look_for_gradients_at_end(&mut self, ddp: &Ddp) {
        let warning = self.missing_gradients.finish(ddp.parameters());
        self.warn_of_gradients(warning);
    }

    fn warn_of_gradients(&self, warning: Option<String>) {
        if let Some(text) = warning {
            tracing::warn!("{text}");
            self.note(Event::new(EventKind::Warning, text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
