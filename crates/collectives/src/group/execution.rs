//! What each collective does once its turn has come. Costs are in [`super::algorithm`].

use std::sync::atomic::Ordering;

use super::algorithm::Algorithm;
use super::collective::Collective;
use super::element::Element;
use super::engine::{Buffers, Engine, Plan};
use super::error::CollectiveError;
use super::pattern::{self, Setting};
use super::reduce::ReduceOp;
use crate::channel::establish;
use crate::sync::lock;

/// The reduction of collectives that reduce nothing.
const NONE: ReduceOp = ReduceOp::Sum;

impl Collective<'_> {
    pub(crate) fn all_reduce<T: Element>(
        &mut self,
        values: &mut [T],
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        let length = values.len();
        self.execute(in_place(values), op, |plan, setting, algorithm| {
            pattern::all_reduce(plan, setting, length, algorithm);
        })
    }

    pub(crate) fn broadcast<T: Element>(
        &mut self,
        values: &mut [T],
        root: usize,
    ) -> Result<(), CollectiveError> {
        let length = values.len();
        self.execute(in_place(values), NONE, |plan, setting, algorithm| {
            pattern::broadcast(plan, setting, length, root, algorithm);
        })
    }

    pub(crate) fn reduce<T: Element>(
        &mut self,
        mut values: Vec<T>,
        op: ReduceOp,
        root: usize,
    ) -> Result<Vec<T>, CollectiveError> {
        let length = values.len();
        let mut outputs = self.no_lists();
        if self.rank() != root {
            // Only this rank's chunk of it is touched, and only that has memory.
            outputs[self.rank()] = bytemuck::allocation::zeroed_vec(length);
        }
        let buffers = into_lists(&mut values, &mut outputs);
        self.execute(buffers, op, |plan, setting, algorithm| {
            pattern::reduce(plan, setting, length, root, algorithm);
        })?;
        Ok(values)
    }

    /// Every rank gives `size` chunks and gets the reduction of its own.
    pub(crate) fn reduce_scatter<T: Element>(
        &mut self,
        mut values: Vec<T>,
        op: ReduceOp,
    ) -> Result<Vec<T>, CollectiveError> {
        if self.size() == 1 {
            return Ok(values);
        }
        let length = values.len();
        let mut outputs = self.no_lists();
        outputs[self.rank()] = bytemuck::allocation::zeroed_vec(length / self.size());
        let buffers = into_lists(&mut values, &mut outputs);
        self.execute(buffers, op, |plan, setting, _| {
            pattern::reduce_scatter(plan, setting, length);
        })?;
        Ok(outputs.swap_remove(self.rank()))
    }

    /// The values of all ranks, of equal lengths; on the root only, if there is one.
    pub(crate) fn gather<T: Element>(
        &mut self,
        mut values: Vec<T>,
        root: Option<usize>,
    ) -> Result<Vec<Vec<T>>, CollectiveError> {
        let length = values.len();
        let mut outputs = self.no_lists();
        if root.is_none_or(|root| root == self.rank()) {
            for peer in self.others() {
                outputs[peer] = bytemuck::allocation::zeroed_vec(length);
            }
        }
        let buffers = into_lists(&mut values, &mut outputs);
        self.execute(buffers, NONE, |plan, setting, _| {
            pattern::gather(plan, setting, length, root);
        })?;
        outputs[self.rank()] = values;
        Ok(outputs)
    }

    /// The values of all ranks, of any lengths.
    pub(crate) fn gather_varied<T: Element>(
        &mut self,
        mut values: Vec<T>,
    ) -> Result<Vec<Vec<T>>, CollectiveError> {
        let length = values.len();
        let mut outputs = self.no_lists();
        let buffers = into_lists(&mut values, &mut outputs);
        self.execute_plan(buffers, NONE, true, |plan, setting, _| {
            pattern::hand_out_values(plan, setting, length);
        })?;
        outputs[self.rank()] = values;
        Ok(outputs)
    }

    /// List `b` of rank `a` becomes list `a` of rank `b`. Who gives no lists gives empty ones.
    pub(crate) fn all_to_all<T: Element>(
        &mut self,
        mut lists: Vec<Vec<T>>,
    ) -> Result<Vec<Vec<T>>, CollectiveError> {
        let mut outputs = self.no_lists();
        let buffers = Buffers {
            values: &mut [],
            inputs: &lists,
            outputs: &mut outputs,
        };
        self.execute_plan(buffers, NONE, true, |plan, setting, _| {
            pattern::hand_out_lists(plan, setting, &lists);
        })?;
        if let Some(own) = lists.get_mut(self.rank()) {
            outputs[self.rank()] = std::mem::take(own);
        }
        Ok(outputs)
    }

    pub(crate) fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.execute::<u8>(in_place(&mut []), NONE, |_, _, _| {})
    }

    fn no_lists<T>(&self) -> Vec<Vec<T>> {
        (0..self.size()).map(|_| Vec::new()).collect()
    }

    /// Runs what `make` plans for the algorithm that is to be used.
    fn execute<T: Element>(
        &mut self,
        buffers: Buffers<'_, T>,
        op: ReduceOp,
        make: impl FnOnce(&mut Plan, &Setting<'_>, Algorithm),
    ) -> Result<(), CollectiveError> {
        self.execute_plan(buffers, op, false, make)
    }

    /// As [`Collective::execute`]; with `lists` each rank receives a list of any length from each.
    fn execute_plan<T: Element>(
        &mut self,
        buffers: Buffers<'_, T>,
        op: ReduceOp,
        lists: bool,
        make: impl FnOnce(&mut Plan, &Setting<'_>, Algorithm),
    ) -> Result<(), CollectiveError> {
        if self.size() == 1 {
            return Ok(());
        }
        let core = self.core;
        // Turns are taken before: nobody else wants it.
        let mut data = lock(&core.data);
        let data = &mut *data;
        if data.channels.is_none() {
            data.channels = Some(establish(self)?);
        }
        let Some(channels) = &mut data.channels else {
            return Ok(());
        };
        for peer in core.take_cut() {
            channels.cut(peer);
        }
        let algorithm = self.choose(channels.path(), size_of_val(buffers.values));
        let (rank, size) = (self.rank(), self.size());
        let plan = &mut data.workspace.plan;
        plan.reset(size, size_of::<T>());
        let setting = Setting {
            rank,
            size,
            hosts: &channels.hosts,
            element: size_of::<T>(),
            path: channels.path(),
        };
        make(plan, &setting, algorithm);
        let engine = Engine::new(self, channels, &mut data.workspace, buffers, (op, lists));
        let outcome = engine.run();
        if outcome.is_err() {
            core.channels_out_of_step.store(true, Ordering::Release);
        }
        outcome
    }
}

/// Values that are worked on where they are.
fn in_place<T>(values: &mut [T]) -> Buffers<'_, T> {
    into_lists(values, &mut [])
}

fn into_lists<'a, T>(values: &'a mut [T], outputs: &'a mut [Vec<T>]) -> Buffers<'a, T> {
    Buffers {
        values,
        inputs: &[],
        outputs,
    }
}
