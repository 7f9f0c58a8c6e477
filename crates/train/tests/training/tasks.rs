//! What a task says besides its model: settings, an optimizer and a schedule, a set to validate on.

mod panics;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{ModuleOptimizer, SgdConfig};
use burn::prelude::*;
use everburn_distributed::ShardStage;
use everburn_tests::AssertContains;
use everburn_train::{
    AnyTask, ConfiguredTask, Loss, MetricKind, MetricLine, RunDirectory, Task, TaskData, TaskError,
    TrainError, Trainer, TrainingConfig, TrainingData, TrainingReport,
};
use serde::{Deserialize, Serialize};
use toml::Table;

use crate::harness::config::changed;
use crate::harness::parameters::parameters;
use crate::harness::ranks::on_ranks;
use crate::harness::run::metric_lines;

/// A weight, of which the gradient is one for each sample.
struct Slope;

#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct SlopeConfig {
    /// Whether the task has an optimizer of its own.
    optimizer: bool,
    /// Whether the task has a schedule of its own.
    schedule: bool,
    /// Whether that schedule falls over the steps of the run.
    falls: bool,
    /// How many samples there are to validate on, if there is a set for that.
    validation: Option<usize>,
    /// How many samples the loss says there are, in place of the batch's.
    counted: Option<usize>,
    /// Whether the loss is a sum over the batch.
    summed: bool,
    /// Whether the loss has two metrics of one name.
    twice: bool,
    /// Whether the loss has a metric without weight.
    weightless: bool,
    nested: Nested,
}

#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Nested {
    width: usize,
    folder: String,
}

struct Ones;

impl Batcher<f32, Tensor<2>> for Ones {
    fn batch(&self, items: Vec<f32>, device: &Device) -> Tensor<2> {
        Tensor::<1>::from_floats(items.as_slice(), device).unsqueeze_dim(1)
    }
}

impl Task for Slope {
    type Config = SlopeConfig;
    type Model = Linear;
    type Item = f32;
    type Batch = Tensor<2>;

    fn model(&self, _: &SlopeConfig, device: &Device) -> Result<Linear, TaskError> {
        let mut model = LinearConfig::new(1, 1).with_bias(false).init(device);
        model.weight = model.weight.map(|weight| weight.zeros_like());
        Ok(model)
    }

    fn data(&self, config: &mut SlopeConfig) -> Result<TaskData<f32, Tensor<2>>, TaskError> {
        let ones = |count: usize, one: f32| InMemDataset::new(vec![one; count]);
        let data = TrainingData::new("ones", ones(20, 1.0), ones(5, 1.0), Ones);
        Ok(TaskData::from(match config.validation {
            // Of a loss that is told from the others'.
            Some(count) => data.with_validation(ones(count, 10.0)),
            None => data,
        }))
    }

    fn loss(&self, config: &SlopeConfig, model: &Linear, batch: Tensor<2>) -> Loss {
        let samples = config.counted.unwrap_or(batch.dims()[0]);
        let output = model.forward(batch) + 1.0;
        let loss = match config.summed {
            true => output.sum(),
            false => output.mean(),
        };
        let loss = Loss::new(loss, samples);
        match (config.twice, config.weightless) {
            (true, _) => loss
                .with_metric("ones", samples, samples)
                .with_metric("ones", samples, samples),
            (_, true) => loss.with_metric("iou", samples, 0_usize),
            _ => loss,
        }
    }

    fn local_settings(&self) -> &'static [&'static str] {
        &["nested.folder"]
    }

    fn optimizer(
        &self,
        config: &SlopeConfig,
        model: &Linear,
    ) -> Result<Option<ModuleOptimizer>, TaskError> {
        assert_eq!(model.weight.dims(), [1, 1]);
        Ok(config.optimizer.then(|| SgdConfig::new().init()))
    }

    fn schedule(
        &self,
        config: &SlopeConfig,
        total_steps: usize,
    ) -> Result<Option<ModuleLrScheduler>, TaskError> {
        let rate = 1.0 / total_steps as f64;
        if config.schedule && config.falls {
            let falling = LinearLrSchedulerConfig::new(1.0, 0.0, total_steps);
            return Ok(Some(falling.init().map_err(TaskError::new)?));
        }
        Ok(config.schedule.then(|| ModuleLrScheduler::new(rate)))
    }
}

fn configured(settings: &str) -> Box<dyn ConfiguredTask> {
    let settings = settings.parse::<Table>().unwrap();
    AnyTask::new("slope", Slope).configure(&settings).unwrap()
}

type Trained = Result<(f32, TrainingReport), TrainError>;

/// Trains on a rank for each of these settings; the weights that come of it.
fn train(settings: &[&str], config: &TrainingConfig, run: Option<&RunDirectory>) -> Vec<Trained> {
    begin_or_resume(settings, config, run, false)
}

fn begin_or_resume(
    settings: &[&str],
    config: &TrainingConfig,
    run: Option<&RunDirectory>,
    resume: bool,
) -> Vec<Trained> {
    on_ranks(settings.len(), config, None, |trainer| {
        let rank = trainer.group.rank();
        let mut task = configured(settings[rank]);
        let data = task.load().unwrap().for_training();
        let trainer = Trainer {
            run: run.filter(|_| rank == 0).cloned(),
            task: Some(task.shared()),
            resume,
            ..trainer
        };
        let model = task.model(&trainer.device).unwrap();
        let (model, report) = trainer.fit(model, &data)?;
        let weight = parameters(&model).concat();
        Ok((weight[0], report))
    })
}

fn five_steps() -> TrainingConfig {
    TrainingConfig {
        epochs: 1,
        batch_size: 4,
        ..TrainingConfig::default()
    }
}

fn error(trained: Vec<Trained>) -> String {
    let mut errors = trained.into_iter().map(|rank| rank.err().unwrap());
    errors.next().unwrap().to_string()
}

#[test]
fn an_optimizer_and_a_schedule_of_the_tasks_own_take_the_place_of_the_configurations() {
    let config = changed(five_steps(), |config| config.validation_samples = Some(0));
    let own = ["[slope]\noptimizer = true\nschedule = true"; 2];
    for rank in train(&own, &config, None) {
        // Five steps of a fifth along a gradient of one.
        let (weight, _) = rank.unwrap();
        assert!((weight + 1.0).abs() < 1e-6, "{weight}");
    }
    let (weight, _) = train(&["[slope]"], &config, None).remove(0).unwrap();
    assert!((weight + 0.005).abs() < 1e-4, "Adam's steps: {weight}");
    let shard = changed(config, |config| {
        config.ddp.shard = Some(ShardStage::Optimizer);
    });
    let refused = error(train(&own, &shard, None));
    assert!(refused.contains("a task's own optimizer"), "{refused}");
}

#[test]
fn a_rank_with_other_settings_is_refused_by_name_unless_machines_may_differ_in_them() {
    let settings = ["[slope.nested]\nwidth = 3", "[slope.nested]\nwidth = 4"];
    let refused = error(train(&settings, &five_steps(), None));
    let expected = "rank 1 runs something else: `slope.nested.width = 4` there, \
                    `slope.nested.width = 3` on rank 0";
    assert!(refused.starts_with(expected), "{refused}");
    let settings = [
        "[slope.nested]\nfolder = \"a\"",
        "[slope.nested]\nfolder = \"b\"",
    ];
    let trained = train(&settings, &five_steps(), None);
    assert!(trained.iter().all(Result::is_ok));
}

#[test]
fn a_set_of_the_tasks_own_is_validated_on_and_nothing_is_held_out() {
    let folder = tempfile::tempdir().unwrap();
    let run = RunDirectory::create(folder.path()).unwrap();
    let settings = ["[slope]\nvalidation = 7"; 2];
    let trained = train(&settings, &five_steps(), Some(&run));
    let (weight, report) = trained.into_iter().next().unwrap().unwrap();
    assert_eq!(report.steps, 5, "all 20 samples are learnt from");
    let lines = metric_lines(folder.path());
    let is_validation = |line: &&MetricLine| line.kind == MetricKind::Validation;
    let validation = lines.iter().find(is_validation).unwrap();
    assert_eq!(validation.samples, 7);
    let expected = 10.0 * f64::from(weight) + 1.0;
    assert!((validation.loss - expected).abs() < 1e-6, "{validation:?}");
}

#[test]
fn a_loss_that_counts_others_than_the_batch_has_is_refused_in_the_first_step() {
    let refused = error(train(&["[slope]\ncounted = 3"; 2], &five_steps(), None));
    let expected = "the task's loss counts 3 samples in a batch of 2: the number in `Loss::new(mean, samples)`";
    assert!(refused.contains(expected), "{refused}");
}

#[test]
fn a_set_of_the_tasks_own_and_samples_to_hold_out_do_not_go_together() {
    let config = changed(five_steps(), |config| config.validation_samples = Some(3));
    let refused = error(train(&["[slope]\nvalidation = 7"], &config, None));
    refused.assert_contains(["`training.validation_samples`"]);
    assert!(refused.contains("of 7 samples"), "{refused}");
    let refused = error(train(&["[slope]\nvalidation = 0"], &five_steps(), None));
    assert!(refused.contains("it is empty"), "{refused}");
}

#[test]
fn a_resume_with_another_optimizer_or_schedule_than_the_tasks_own_is_refused_in_both_directions() {
    let longer = changed(five_steps(), |config| config.epochs = 2);
    for (what, configured) in [("optimizer", "Adam"), ("schedule", "Constant")] {
        let settings = [format!("[slope]\n{what} = true"), "[slope]".to_owned()];
        let names = ["the task's own", configured];
        for (before, after) in [(0, 1), (1, 0)] {
            let folder = tempfile::tempdir().unwrap();
            let run = RunDirectory::create(folder.path()).unwrap();
            let [old, new] = [before, after].map(|which| [settings[which].as_str()]);
            let mut begun = train(&old, &five_steps(), Some(&run));
            let (_, report) = begun.remove(0).unwrap();
            let own = [report.own_optimizer, report.own_schedule];
            let expected = ["optimizer", "schedule"].map(|it| before == 0 && it == what);
            assert_eq!(own, expected);
            let refused = error(begin_or_resume(&new, &longer, Some(&run), true));
            let expected = format!("{what} {} there, {} here", names[before], names[after]);
            assert!(refused.contains(&expected), "{refused}");
            let help = format!("resume with the same `Task::{what}`");
            assert!(refused.ends_with(&help), "{refused}");
            let resumed = begin_or_resume(&old, &longer, Some(&run), true);
            assert!(resumed[0].is_ok(), "the refusal has changed nothing");
        }
    }
}

#[test]
fn a_loss_that_is_a_sum_over_the_batch_is_warned_of_once() {
    let config = |batch_size| changed(five_steps(), |config| config.batch_size = batch_size);
    for (settings, batch_size, ranks, expected) in [
        ("[slope]\nsummed = true", 16, 1, 1),
        ("[slope]\nsummed = true", 12, 2, 1),
        ("[slope]", 16, 1, 0),
        ("[slope]\nsummed = true", 4, 1, 0),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::create(folder.path()).unwrap();
        for rank in train(&vec![settings; ranks], &config(batch_size), Some(&run)) {
            rank.unwrap();
        }
        let events = std::fs::read_to_string(folder.path().join("events.jsonl"));
        let events = events.unwrap_or_default();
        let warnings = events.matches("seems to be a sum over the batch").count();
        assert_eq!(warnings, expected, "{settings}, {batch_size}: {events}");
    }
}

#[test]
fn two_metrics_of_one_name_are_refused() {
    let refused = error(train(&["[slope]\ntwice = true"], &five_steps(), None));
    assert!(refused.contains("the metric `ones` twice"), "{refused}");
}

#[test]
fn a_metric_that_is_never_finite_has_no_best_epoch_and_the_run_can_be_resumed() {
    let by_metric = |epochs| TrainingConfig {
        epochs,
        best_by: "max:iou".parse().unwrap(),
        ..five_steps()
    };
    let settings = ["[slope]\nvalidation = 7\nweightless = true"];
    let folder = tempfile::tempdir().unwrap();
    let run = RunDirectory::create(folder.path()).unwrap();
    let mut begun = train(&settings, &by_metric(1), Some(&run));
    let (_, report) = begun.remove(0).unwrap();
    assert_eq!((report.steps, report.best_epoch), (5, None));
    let mut resumed = begin_or_resume(&settings, &by_metric(2), Some(&run), true);
    let (_, report) = resumed.remove(0).unwrap();
    assert_eq!((report.steps, report.best_epoch), (10, None));
}

#[test]
fn a_schedule_of_the_tasks_own_is_that_of_the_longer_run_after_a_resume() {
    let settings = ["[slope]\nschedule = true\nfalls = true"];
    let folder = tempfile::tempdir().unwrap();
    let run = RunDirectory::create(folder.path()).unwrap();
    let config = |epochs| TrainingConfig {
        epochs,
        log_every: 1,
        validation_samples: Some(0),
        ..five_steps()
    };
    train(&settings, &config(1), Some(&run)).remove(0).unwrap();
    let mut resumed = begin_or_resume(&settings, &config(2), Some(&run), true);
    resumed.remove(0).unwrap();
    let lines = metric_lines(folder.path());
    let steps = lines.iter().filter(|line| line.kind == MetricKind::Step);
    let rates: Vec<f64> = steps.filter_map(|line| line.learning_rate).collect();
    let expected = [1.0, 0.8, 0.6, 0.4, 0.2, 0.5, 0.4, 0.3, 0.2, 0.1];
    assert_eq!(rates.len(), expected.len(), "{rates:?}");
    let mut pairs = rates.iter().zip(expected);
    assert!(
        pairs.all(|(rate, expected)| (rate - expected).abs() < 1e-9),
        "{rates:?}"
    );
}
