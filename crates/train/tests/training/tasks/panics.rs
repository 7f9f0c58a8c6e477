//! Panics in the methods of a task.

use std::sync::{Arc, Mutex};

use everburn_record::task_method;

use super::*;
use crate::alone;

/// Notes in which of its methods it is, and what the report of a panic in its loss would have.
#[derive(Clone, Default)]
struct Watched {
    methods: Arc<Mutex<Vec<&'static str>>>,
    facts: Arc<Mutex<Option<String>>>,
    /// Whether its model cannot be built.
    is_too_wide: bool,
}

impl Watched {
    fn note(&self) {
        let present = task_method::present();
        self.methods.lock().unwrap().extend(present);
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
        assert!(!self.is_too_wide, "too wide");
        Slope.model(config, device)
    }

    fn data(&self, config: &mut SlopeConfig) -> Result<TaskData<f32, Tensor<2>>, TaskError> {
        self.note();
        Slope.data(config)
    }

    fn loss(&self, config: &SlopeConfig, model: &Linear, batch: Tensor<2>) -> Loss {
        self.note();
        *self.facts.lock().unwrap() = task_method::facts();
        Slope.loss(config, model, batch)
    }
}

#[test]
fn a_panic_finds_the_method_that_it_is_in_and_the_shapes_of_the_batch_and_of_the_layers() {
    let seen = Watched::default();
    let task = AnyTask::new("watched", seen.clone());
    let mut task = task.configure(&Table::new()).unwrap();
    let loaded = task.load().unwrap();
    let trainer = alone(TrainingConfig::default());
    let model = task.model(&trainer.device).unwrap();
    trainer.evaluate(&model, &loaded.for_training()).unwrap();
    let all = ["Task::check", "Task::data", "Task::model", "Task::loss"];
    assert_eq!(*seen.methods.lock().unwrap(), all);
    let facts = seen.facts.lock().unwrap().take().unwrap();
    facts.assert_contains(["::Linear` got input [5, 1]; its layers"]);
    assert!(facts.ends_with("\n  Linear: weight [1, 1]"), "{facts}");
    assert_eq!((task_method::present(), task_method::facts()), (None, None));
}

#[test]
fn a_panic_of_a_model_that_is_built_is_an_error_with_the_settings() {
    let narrow = Watched {
        is_too_wide: true,
        ..Watched::default()
    };
    let task = AnyTask::new("narrow", narrow);
    let task = task.configure(&Table::new()).unwrap();
    let error = task.model(&Device::flex()).err().unwrap().to_string();
    error.assert_contains(["building the model with [narrow] "]);
    error.assert_contains([" failed: ", "too wide"]);
}
