//! `train --find-learning-rate` and `train --find-batch-size`: measured by short trials of the training, on all ranks.

mod plot;

use everburn_record::units::counted;
use everburn_record::{table, units};
use everburn_train::{
    AnyData, AnyModel, BatchSizeSearch, LearningRateRange, LearningRateSweep, TrainError, Trainer,
    TriedBatchSize,
};
use serde_json::json;

use crate::arguments::Strategy;
use crate::config::RunConfig;
use crate::devices;

/// About how many lines a table of a sweep has.
const ROWS: usize = 20;

/// What is to be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finder {
    LearningRate,
    BatchSize,
}

impl Finder {
    pub(crate) fn flag(self) -> &'static str {
        match self {
            Self::LearningRate => "--find-learning-rate",
            Self::BatchSize => "--find-batch-size",
        }
    }

    /// Runs the finder on all ranks; rank 0 prints and writes what it has found. `false` if the user has stopped it.
    pub(crate) fn run(
        self,
        trainer: &Trainer,
        model: AnyModel,
        data: &AnyData,
        config: &RunConfig,
    ) -> Result<bool, TrainError> {
        match self {
            Self::LearningRate => find_learning_rate(trainer, model, data),
            Self::BatchSize => find_batch_size(trainer, model, data, config),
        }
    }
}

fn find_learning_rate(
    trainer: &Trainer,
    model: AnyModel,
    data: &AnyData,
) -> Result<bool, TrainError> {
    let range = LearningRateRange::default();
    let speaks = trainer.group.rank() == 0;
    if speaks {
        let LearningRateRange { from, to, steps } = range;
        say!(
            "finding a learning rate: {from:e} to {to} in {}",
            counted(steps, "step")
        );
    }
    let sweep = trainer.find_learning_rate(model, data, range)?;
    let suggestion = sweep.suggestion();
    if speaks && !sweep.interrupted {
        say!("{}", sweep_table(&sweep));
        if sweep.exploded {
            say!("the loss has exploded: the sweep ended there");
        }
        if let Some(rate) = suggestion {
            say!("suggested learning rate: {rate:.2e} (a tenth of the rate with the lowest loss)");
        }
        let found = json!({ "suggestion": suggestion, "sweep": sweep });
        let plot = plot::svg(&sweep);
        write(
            trainer,
            &[
                ("learning-rate.json", found.to_string().into_bytes()),
                ("learning-rate.svg", plot.into_bytes()),
            ],
        )?;
    }
    if suggestion.is_none() && !sweep.interrupted {
        // No rank ends before the files are written.
        trainer.group.clone().destroy()?;
        return Err(TrainError::NothingFound(
            "no learning rate can be suggested: the smoothed loss never falls before it rises (see learning-rate.svg in the \
             run directory); more samples, another optimizer or another batch size may help"
                .to_owned(),
        ));
    }
    Ok(!sweep.interrupted)
}

/// Some of the points of a sweep.
fn sweep_table(sweep: &LearningRateSweep) -> String {
    let every = sweep.points.len().div_ceil(ROWS).max(1);
    let last = sweep.points.len().saturating_sub(1);
    let points = sweep.points.iter().enumerate();
    let shown = points.filter(|(at, _)| at % every == 0 || *at == last);
    let row = |point: &everburn_train::SweepPoint| {
        vec![
            format!("{:.2e}", point.learning_rate),
            units::fixed(point.loss, 4),
            units::fixed(point.smoothed, 4),
        ]
    };
    let rows: Vec<_> = shown.map(|(_, point)| row(point)).collect();
    table::aligned(&["learning rate", "loss", "smoothed"], &rows, &[])
}

fn find_batch_size(
    trainer: &Trainer,
    model: AnyModel,
    data: &AnyData,
    config: &RunConfig,
) -> Result<bool, TrainError> {
    let speaks = trainer.group.rank() == 0;
    if speaks {
        say!("batch size  samples/s   step      peak memory of a rank");
    }
    let tell = |tried: &TriedBatchSize| {
        if speaks {
            let speed = units::rate(tried.samples_per_second());
            let (time, peak) = (
                units::seconds(tried.seconds),
                units::bytes(tried.peak_memory),
            );
            say!("{:<10}  {speed:<10}  {time:<8}  {peak}", tried.batch_size);
        }
    };
    let ranks = &config.ranks;
    let name = devices::name_of_rank(&ranks.devices, trainer.group.local_rank());
    // Threads on the CPU measure the memory of their process: that of all of them.
    let sharing = match ranks.strategy {
        Strategy::DataParallel if name == "flex" => 1,
        _ => ranks.ranks,
    };
    let free = || devices::free_memory(&ranks.devices, trainer.group.local_rank(), sharing);
    let search = trainer.find_batch_size(model, data, &free, &tell)?;
    if speaks && !search.interrupted {
        say_found(&search);
        let found = json!({ "suggestion": search.suggestion(), "search": search });
        write(
            trainer,
            &[("batch-size.json", found.to_string().into_bytes())],
        )?;
    }
    Ok(!search.interrupted)
}

fn say_found(search: &BatchSizeSearch) {
    let confirmed = match search.confirmed {
        true => "a step of that size was made",
        false => {
            "estimated from the memory of smaller sizes; a step of that size would take minutes"
        }
    };
    say!(
        "largest batch size: {}, limited by {} ({confirmed})",
        search.largest,
        search.limit
    );
    if let Some(size) = search.suggestion() {
        say!("suggested batch size: {size} (no tried size is more than 5 % faster)");
    }
}

fn write(trainer: &Trainer, files: &[(&str, Vec<u8>)]) -> Result<(), TrainError> {
    let Some(run) = &trainer.run else {
        return Ok(());
    };
    for (name, bytes) in files {
        let path = run.path().join(name);
        everburn_record::file::write(&path, bytes).map_err(|error| TrainError::Write {
            path: path.clone(),
            reason: everburn_record::file::with_hint(&error, "--run-dir"),
        })?;
        say!("written: {}", path.display());
    }
    Ok(())
}
