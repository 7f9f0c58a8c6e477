//! Hooks of a user: when they are called, and what they can do.

use std::path::Path;
use std::sync::{Arc, Mutex};

use burn::prelude::*;
use everburn_models::mlp::{Mlp, MlpConfig};
use everburn_tests::AssertContains;
use everburn_train::{
    CheckpointEvery, Classifier, EpochLines, Hook, HookError, Hooks, MetricLine, Run, TrainError,
    Trainer, TrainingConfig, TrainingReport,
};

use crate::harness::data::digits;
use crate::harness::ranks::on_ranks;
use crate::harness::run::step_lines;

/// What hooks of all ranks have been told: the rank, and what.
type Diary = Arc<Mutex<Vec<(usize, String)>>>;

/// Writes down what it is told, and does as it was asked at some step.
struct Witness {
    diary: Diary,
    rank: usize,
    acts: Act,
}

#[derive(Clone, Copy)]
enum Act {
    Watch,
    StopAt(usize),
    SaveAt(usize),
    /// On this rank, at this step.
    FailAt(usize, usize),
    PanicAt(usize, usize),
    FailAfterEpoch(usize),
    FailAtEnd,
}

impl Witness {
    fn hooks(diary: &Diary, acts: Act) -> Hooks {
        let diary = Arc::clone(diary);
        Hooks::default().with(move || Self {
            diary: Arc::clone(&diary),
            rank: 0,
            acts,
        })
    }

    fn note(&self, text: String) {
        self.diary.lock().unwrap().push((self.rank, text));
    }
}

impl Hook for Witness {
    fn at_start(&mut self, run: &mut Run<'_>) -> Result<(), HookError> {
        self.rank = run.rank();
        assert_eq!(run.model().num_params() > 0, run.world_size() > 0);
        self.note(format!("start after {}", run.step()));
        Ok(())
    }

    fn after_step(&mut self, step: &MetricLine, run: &mut Run<'_>) -> Result<(), HookError> {
        self.note(format!("step {} loss {}", step.step, step.loss));
        match self.acts {
            Act::StopAt(at) if at == step.step && self.rank == 1 => run.stop("enough"),
            Act::SaveAt(at) if at == step.step => run.save(),
            Act::FailAt(rank, at) if (rank, at) == (self.rank, step.step) => {
                return Err("the tracker does not answer".into());
            }
            Act::PanicAt(rank, at) if (rank, at) == (self.rank, step.step) => panic!("no tracker"),
            _ => {}
        }
        Ok(())
    }

    fn after_epoch(&mut self, epoch: &EpochLines, run: &mut Run<'_>) -> Result<(), HookError> {
        let validation = epoch.validation.as_ref().map(|line| line.loss);
        let told = format!(
            "epoch {} samples {}",
            epoch.train.epoch, epoch.train.samples
        );
        self.note(format!("{told} validation {validation:?}"));
        match self.acts {
            Act::FailAfterEpoch(at) if at == run.epoch() => Err("the alarm is broken".into()),
            _ => Ok(()),
        }
    }

    fn after_checkpoint(&mut self, folder: &Path, _: &mut Run<'_>) -> Result<(), HookError> {
        assert!(folder.is_dir());
        let name = folder.file_name().unwrap().to_string_lossy();
        self.note(format!("checkpoint {name}"));
        Ok(())
    }

    fn after_failure(&mut self, error: &TrainError, goes_on: bool) {
        self.note(format!("failure, goes on {goes_on}: {error}"));
    }

    fn at_end(&mut self, report: &TrainingReport) -> Result<(), HookError> {
        self.note(format!("end after {}", report.steps));
        match self.acts {
            Act::FailAtEnd => Err("the disk is full".into()),
            _ => Ok(()),
        }
    }
}

/// Two epochs of ten steps.
fn config() -> TrainingConfig {
    TrainingConfig {
        epochs: 2,
        batch_size: 32,
        log_every: 1,
        ..TrainingConfig::default()
    }
}

/// What comes of a training on each rank.
type Reports = Vec<Result<TrainingReport, TrainError>>;

/// The hooks of a rank.
type HooksOf<'a> = &'a (dyn Fn(usize) -> Hooks + Sync);

/// What comes of a training on two ranks, each with hooks of its own.
fn train_with(config: &TrainingConfig, folder: Option<&Path>, hooks: HooksOf<'_>) -> Reports {
    let data = digits(1, 320, 64);
    let model: Mlp = MlpConfig::new().init(&Device::flex());
    let resume = folder.is_some_and(|folder| folder.join("checkpoints").is_dir());
    on_ranks(2, config, folder, |trainer| {
        let trainer = Trainer {
            hooks: hooks(trainer.group.rank()),
            resume,
            ..trainer
        };
        let model = Classifier::<_, 4>::new(model.clone(), Mlp::forward);
        trainer.fit(model, &data).map(|(_, report)| report)
    })
}

/// What comes of a training on two ranks, with what the hooks were told. Where there was one in `folder`, it continues.
fn train(config: &TrainingConfig, acts: Act, folder: &Path) -> (Reports, Vec<(usize, String)>) {
    let diary = Diary::default();
    let reports = train_with(config, Some(folder), &|_| Witness::hooks(&diary, acts));
    let told = std::mem::take(&mut *diary.lock().unwrap());
    (reports, told)
}

/// What the hooks of `rank` were told.
fn of_rank(told: &[(usize, String)], rank: usize) -> Vec<&str> {
    let own = told.iter().filter(|(teller, _)| *teller == rank);
    own.map(|(_, text)| text.as_str()).collect()
}

fn checkpoints(folder: &Path) -> usize {
    let there = std::fs::read_dir(folder.join("checkpoints")).unwrap();
    there
        .filter(|entry| entry.as_ref().unwrap().path().is_dir())
        .count()
}

#[test]
fn every_rank_is_told_the_same_in_the_same_order() {
    let folder = tempfile::tempdir().unwrap();
    let (reports, told) = train(&config(), Act::Watch, folder.path());
    let steps = reports[0].as_ref().unwrap().steps;
    let first = of_rank(&told, 0);
    let checkpoint = |text: &&&str| text.starts_with("checkpoint");
    // Rank 0 has the folder.
    assert_eq!(first.iter().filter(checkpoint).count(), 2, "{first:?}");
    let others = of_rank(&told, 1);
    let mut expected = first.clone();
    expected.retain(|text| !text.starts_with("checkpoint"));
    assert_eq!(others, expected);
    let begin = |text: &str| text.split(' ').next().unwrap().to_string();
    let kinds = expected.iter().map(|text| begin(text)).collect::<Vec<_>>();
    let epoch = [vec!["step"; steps / 2], vec!["epoch"]].concat();
    let kinds_expected = [vec!["start"], epoch.clone(), epoch, vec!["end"]].concat();
    assert_eq!(kinds, kinds_expected);
    let logged = step_lines(folder.path());
    let of_steps = expected.iter().filter(|text| text.starts_with("step "));
    for (line, told) in logged.iter().zip(of_steps) {
        let mut words = told.split(' ');
        assert_eq!(words.nth(1), Some(line.step.to_string().as_str()));
        let loss: f64 = words.nth(1).unwrap().parse().unwrap();
        // A number in the file is read to the last digit but one.
        assert!((loss - line.loss).abs() < 1e-12, "{told}, {}", line.loss);
    }
    assert_eq!(logged.len(), steps);
}

#[test]
fn a_hook_of_one_rank_stops_all_after_the_next_step() {
    let folder = tempfile::tempdir().unwrap();
    let (reports, told) = train(&config(), Act::StopAt(3), folder.path());
    for report in &reports {
        let report = report.as_ref().unwrap();
        assert_eq!(report.steps, 4);
        let why = "early, by the hook `Witness`: enough";
        assert_eq!(report.stopped.as_deref(), Some(why));
        // As after early stopping, and not as after Ctrl-C.
        assert!(report.finished && report.test_accuracy.is_some());
    }
    assert_eq!(checkpoints(folder.path()), 1);
    assert!(of_rank(&told, 1).contains(&"end after 4"));
}

#[test]
fn a_hook_has_a_checkpoint_written() {
    let folder = tempfile::tempdir().unwrap();
    let config = TrainingConfig {
        epochs: 1,
        checkpoint_every: CheckpointEvery::Steps(1_000.try_into().unwrap()),
        ..config()
    };
    let (_, told) = train(&config, Act::SaveAt(2), folder.path());
    let of_first = of_rank(&told, 0);
    let written = of_first
        .iter()
        .filter(|text| text.starts_with("checkpoint"));
    // After step 3, and the one at the end.
    assert_eq!(written.count(), 2, "{of_first:?}");
}

#[test]
fn a_hook_that_fails_on_one_rank_ends_all_by_name_and_loses_no_step() {
    for (acts, reason) in [
        (Act::FailAt(1, 3), "the tracker does not answer"),
        (Act::PanicAt(1, 3), "it panicked: no tracker"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (reports, told) = train(&config(), acts, folder.path());
        for report in reports {
            let error = report.unwrap_err().to_string();
            let expected = format!("the hook `Witness` of rank 1 failed: {reason}");
            assert!(error.starts_with(&expected), "{error}");
            assert!(error.contains("ended after step 4,"), "{error}");
        }
        let last = of_rank(&told, 0).pop().unwrap().to_string();
        assert!(last.starts_with("failure, goes on false"), "{last}");
        // It continues after the step in which all were told.
        let (reports, told) = train(&config(), Act::Watch, folder.path());
        assert!(reports.iter().all(Result::is_ok));
        assert_eq!(of_rank(&told, 1)[0], "start after 4");
    }
}

#[test]
fn a_hook_that_failed_does_not_silence_another_of_its_type() {
    let diaries = [Diary::default(), Diary::default()];
    let reports = train_with(&config(), None, &|_| {
        let second = Arc::clone(&diaries[1]);
        Witness::hooks(&diaries[0], Act::FailAt(1, 3)).with(move || Witness {
            diary: Arc::clone(&second),
            rank: 0,
            acts: Act::Watch,
        })
    });
    assert!(reports.iter().all(Result::is_err));
    let has_step_4 = |diary: &Diary| {
        let told = diary.lock().unwrap();
        let own = of_rank(&told, 1);
        own.iter().any(|text| text.starts_with("step 4 "))
    };
    assert!(!has_step_4(&diaries[0]));
    assert!(has_step_4(&diaries[1]));
}

#[test]
fn failures_behind_an_epoch_and_at_the_end_are_told_too() {
    let folder = tempfile::tempdir().unwrap();
    let (reports, _) = train(&config(), Act::FailAfterEpoch(1), folder.path());
    for report in reports {
        let error = report.unwrap_err().to_string();
        error.assert_contains(["the training ended after step", "the alarm is broken"]);
    }
    assert_eq!(checkpoints(folder.path()), 1);
    let folder = tempfile::tempdir().unwrap();
    let (reports, _) = train(&config(), Act::FailAtEnd, folder.path());
    assert!(reports.iter().any(|report| {
        let error = report.as_ref().unwrap_err().to_string();
        error.contains("the disk is full")
    }));
    assert!(folder.path().join("model.safetensors").is_file());
}

#[test]
fn ranks_with_other_hooks_are_refused() {
    let reports = train_with(&config(), None, &|rank| match rank {
        0 => Hooks::default(),
        _ => Witness::hooks(&Diary::default(), Act::Watch),
    });
    for report in reports {
        let error = report.unwrap_err().to_string();
        error.assert_contains(["`hooks = Witness` there, `hooks = ` on rank 0"]);
    }
}

/// Each step is told once, also where ranks take steps by themselves.
#[test]
fn steps_that_ranks_take_by_themselves_are_told_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let config = TrainingConfig {
        sync: "every=4".parse().unwrap(),
        epochs: 1,
        ..config()
    };
    let (reports, told) = train(&config, Act::Watch, folder.path());
    let steps = reports[0].as_ref().unwrap().steps;
    let own = of_rank(&told, 1);
    let own = own.iter().filter(|text| text.starts_with("step "));
    let own = own.map(|text| text.split(' ').nth(1).unwrap().parse().unwrap());
    assert_eq!(own.collect::<Vec<usize>>(), (1..=steps).collect::<Vec<_>>());
}
