//! The blocks of a configured task's model, as they are measured.

use std::sync::Arc;

use burn::prelude::*;
use everburn_nn::AnyActivation;

use super::WithConfig;
use crate::task::blocks::{BlockTask, DrawnBlocks};
use crate::task::{BlockRunner, Task, TaskError};

/// Runs the blocks of a task's model, each by itself.
pub(super) struct Runner<'a, T: Task> {
    pub(super) of: &'a WithConfig<T>,
    pub(super) blocks: Arc<dyn BlockTask<T>>,
    pub(super) samples: usize,
    pub(super) device: Device,
}

impl<T: Task> BlockRunner for Runner<'_, T> {
    fn input(&self) -> Box<dyn AnyActivation> {
        let of = (&*self.of.task, &*self.of.config);
        self.blocks.input(of, self.samples, &self.device)
    }

    fn draw(&self) -> Result<Box<dyn DrawnBlocks>, TaskError> {
        let model = self.of.new_model(&self.device)?;
        Ok(self.blocks.drawn(model))
    }
}
