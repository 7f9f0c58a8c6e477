//! Panics in the methods of a task.

use std::sync::{Arc, Mutex};

use everburn_record::task_method;

use super::*;
use crate::harness::ranks::alone;

/// Notes in which of its methods it is.
struct Watched(Arc<Mutex<Vec<&'static str>>>);

impl Watched {
    fn note(&self) {
        self.0.lock().unwrap().extend(task_method::present());
    }
}

impl Task for Watched {
    type Config = SlopeConfig;
    type Model = Linear;
    type Item = f32;
    type Batch = Tensor<2>;

    fn check(&self, _: &SlopeConfig) -> Result<(), TaskError> {
        self.note();
        Ok(())
    }

    fn model(&self, config: &SlopeConfig, device: &Device) -> Result<Linear, TaskError> {
        self.note();
        Slope.model(config, device)
    }

    fn data(&self, config: &mut SlopeConfig) -> Result<TaskData<f32, Tensor<2>>, TaskError> {
        self.note();
        Slope.data(config)
    }

    fn loss(&self, config: &SlopeConfig, model: &Linear, batch: Tensor<2>) -> Loss {
        self.note();
        Slope.loss(config, model, batch)
    }
}

#[test]
fn a_panic_finds_the_method_of_the_task_that_it_is_in() {
    let seen = Arc::default();
    let task = AnyTask::new("watched", Watched(Arc::clone(&seen)));
    let mut task = task.configure(&Table::new()).unwrap();
    let loaded = task.load().unwrap();
    let trainer = alone(TrainingConfig::default());
    let model = task.model(&trainer.device).unwrap();
    trainer.evaluate(&model, &loaded.for_training()).unwrap();
    let all = ["Task::check", "Task::data", "Task::model", "Task::loss"];
    assert_eq!(*seen.lock().unwrap(), all);
    assert_eq!(task_method::present(), None);
}

/// Notes what the report of a panic in its loss would have.
struct Reporting(Arc<Mutex<Option<String>>>);

impl Task for Reporting {
    type Config = SlopeConfig;
    type Model = Linear;
    type Item = f32;
    type Batch = Tensor<2>;

    fn model(&self, config: &SlopeConfig, device: &Device) -> Result<Linear, TaskError> {
        Slope.model(config, device)
    }

    fn data(&self, config: &mut SlopeConfig) -> Result<TaskData<f32, Tensor<2>>, TaskError> {
        Slope.data(config)
    }

    fn loss(&self, config: &SlopeConfig, model: &Linear, batch: Tensor<2>) -> Loss {
        *self.0.lock().unwrap() = task_method::facts();
        Slope.loss(config, model, batch)
    }
}

#[test]
fn a_panic_in_a_loss_finds_the_shapes_of_the_batch_and_of_the_layers() {
    let noted = Arc::default();
    let task = AnyTask::new("reporting", Reporting(Arc::clone(&noted)));
    let mut task = task.configure(&Table::new()).unwrap();
    let loaded = task.load().unwrap();
    let trainer = alone(TrainingConfig::default());
    let model = task.model(&trainer.device).unwrap();
    trainer.evaluate(&model, &loaded.for_training()).unwrap();
    let facts = noted.lock().unwrap().take().unwrap();
    facts.assert_contains(["::Linear` got input [5, 1]; its layers"]);
    assert!(facts.ends_with("\n  Linear: weight [1, 1]"), "{facts}");
    assert_eq!(task_method::facts(), None);
}

/// A task whose model cannot be built.
struct Narrow;

impl Task for Narrow {
    type Config = SlopeConfig;
    type Model = Linear;
    type Item = f32;
    type Batch = Tensor<2>;

    fn model(&self, _: &SlopeConfig, _: &Device) -> Result<Linear, TaskError> {
        panic!("too wide")
    }

    fn data(&self, config: &mut SlopeConfig) -> Result<TaskData<f32, Tensor<2>>, TaskError> {
        Slope.data(config)
    }

    fn loss(&self, config: &SlopeConfig, model: &Linear, batch: Tensor<2>) -> Loss {
        Slope.loss(config, model, batch)
    }
}

#[test]
fn a_panic_of_a_model_that_is_built_is_an_error_with_the_settings() {
    let task = AnyTask::new("narrow", Narrow);
    let task = task.configure(&Table::new()).unwrap();
    let error = task.model(&Device::flex()).err().unwrap().to_string();
    error.assert_contains(["building the model with [narrow] "]);
    error.assert_contains([" failed: ", "too wide"]);
}
