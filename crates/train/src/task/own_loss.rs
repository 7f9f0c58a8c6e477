//! Tasks whose loss is no [`Objective`]'s.

use std::marker::PhantomData;

use super::Task;
use crate::model::objective::{Loss, Objective};

/// The loss is the task's own: what a model "yields" for a batch is its loss.
pub(super) struct OwnLoss<T>(PhantomData<fn(T)>);

impl<T> std::fmt::Debug for OwnLoss<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OwnLoss")
    }
}

impl<T> Clone for OwnLoss<T> {
    fn clone(&self) -> Self {
        Self(self.0)
    }
}

impl<T: Task> Objective for OwnLoss<T> {
    type Input = T::Batch;
    type Output = Loss;
    type Targets = ();

    fn loss(loss: Loss, (): ()) -> Loss {
        loss
    }
}
