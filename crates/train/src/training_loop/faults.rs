//! What `--chaos` does to a rank.

use burn::module::{ModuleMapper, Param};
use burn::prelude::*;
use everburn_record::{Event, EventKind};
use rustix::process::{Signal, getpid, kill_process};

use super::RankLoop;
use crate::config::chaos::Fault;
use crate::model::erased::AnyModel;

impl RankLoop {
    /// Injects the faults that are due at the start of step `step`: each once, even if the step is repeated.
    pub(super) fn inject_faults(&mut self, step: usize) {
        let again = std::mem::replace(&mut self.faults_until, step) >= step;
        if !again {
            self.note_faults(step);
        }
        for fault in self.faults_at(step) {
            if again && !matches!(fault, Fault::Slow(..)) {
                continue;
            }
            match fault {
                Fault::Kill(_) => {
                    announce(fault, step);
                    signal(Signal::KILL);
                }
                Fault::Stall(_) => {
                    announce(fault, step);
                    signal(Signal::STOP);
                }
                Fault::Slow(_, by) => {
                    let mut begin = self.setup.config.chaos.beginning_at(step);
                    if !again && begin.any(|begins| begins == fault) {
                        announce(fault, step);
                    }
                    std::thread::sleep(by);
                }
                Fault::Drop(one, other) => {
                    let members = self.members();
                    let own = members[self.setup.group.rank()];
                    let peer = if own == one { other } else { one };
                    if let Some(peer) = members.iter().position(|member| *member == peer) {
                        announce(fault, step);
                        self.setup.group.break_connection(peer);
                    }
                }
                Fault::Overflow(_) => announce(fault, step),
                Fault::Corrupt(_) => {}
            }
        }
    }

    /// Notes in `events.jsonl` the faults that begin at step `step`. Where only rank 0 has the run directory, it does so for
    /// all ranks; in an elastic job each rank has it, and notes its own.
    fn note_faults(&self, step: usize) {
        let chaos = &self.setup.config.chaos;
        if chaos.is_none() || self.setup.begun_before {
            return;
        }
        let own = self.members()[self.setup.group.rank()];
        let each_its_own = self.setup.elasticity.any_may_be_first();
        let faults = chaos.beginning_at(step);
        for fault in faults.filter(|fault| !each_its_own || fault.rank() == own) {
            self.note(Event {
                step: Some(step as u64),
                rank: Some(fault.rank()),
                ..Event::new(EventKind::Fault, format!("chaos: {}", fault.text(step)))
            });
        }
    }

    /// The model with a number changed, where that is asked for after step `step`.
    pub(super) fn corrupt(&self, model: AnyModel, step: usize) -> AnyModel {
        let mut faults = self.faults_at(step).into_iter();
        let corrupts = |fault: &Fault| matches!(fault, Fault::Corrupt(_));
        let Some(fault) = faults.find(corrupts) else {
            return model;
        };
        announce(fault, step);
        model.map(&mut FirstNumber { done: false })
    }

    pub(super) fn faults_at(&self, step: usize) -> Vec<Fault> {
        let chaos = &self.setup.config.chaos;
        if chaos.is_none() || self.setup.begun_before {
            return Vec::new();
        }
        let own = self.members()[self.setup.group.rank()];
        chaos.at(step, own).collect()
    }
}

/// Says what is about to befall this rank.
fn announce(fault: Fault, step: usize) {
    tracing::warn!("chaos: {}", fault.text(step));
}

/// To this process.
fn signal(signal: Signal) {
    if let Err(error) = kill_process(getpid(), signal) {
        tracing::error!("chaos: {error}");
    }
}

/// Doubles the first number of the first trained tensor, or makes it 1 if it is 0.
struct FirstNumber {
    done: bool,
}

impl ModuleMapper for FirstNumber {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.done || !param.is_require_grad() {
            return param;
        }
        self.done = true;
        param.map(|tensor| {
            let device = tensor.device();
            let trained = tensor.is_require_grad();
            let first = tensor.dims().map(|_| 0..1);
            let plain = tensor.without_autodiff();
            let old = plain.clone().slice(first.clone());
            let changed = old.clone() + old.clone().equal_elem(0.0).float() + old;
            let values = plain.slice_assign(first, changed).into_data();
            Tensor::from_data(values, &device).set_require_grad(trained)
        })
    }
}
