//! What a training says at its end.

use std::collections::BTreeMap;
use std::path::Path;

use crate::arguments::TrainArguments;
use crate::config::RunConfig;
use crate::prelude::*;
use crate::rank;
use crate::trained::newest_progress;
use everburn_launch::{EXIT_STALLED, JobFailure, Outcome, RankExit};
use everburn_record::plain::word;
use everburn_record::units::counted;
use everburn_record::{Place, checkpoints_elsewhere, invocation, machines_of, starts_again, units};
use everburn_report::RankTimes;
use everburn_train::{CheckpointEvery, Patterns, ShardingReport};

pub(crate) fn print_report(report: &TrainingReport, run: Option<&RunDirectory>) {
    if let Some(stopped) = &report.stopped {
        say!("stopped {stopped}");
    }
    if report.averaged {
        say!("tested: the averaged model, in ema.safetensors");
    }
    if let Some(run) = run.filter(|_| !report.finished) {
        say!("{}", how_to_continue(run));
    }
    let result = match report.test_loss {
        Some(loss) => tested(report.test_accuracy, "", loss, &report.test_metrics) + "  ",
        None => String::new(),
    };
    say!(
        "{result}{} on {}  {}{}  {}  {}{}",
        report.model,
        report.dataset,
        epochs(report),
        counted(report.steps, "step"),
        counted(report.world_size, "rank"),
        match report.steps_since_resume {
            0 => String::new(), // all steps were made before
            _ => format!("{} samples/s  ", units::rate(report.samples_per_second)),
        },
        time_taken(report)
    );
    let waited = 100.0 * report.exposed_seconds / report.train_seconds;
    let steps = report.steps_since_resume.max(1) as u64;
    if let Some(outer) = &report.outer {
        let of_checkpoints = match outer.bytes_of_checkpoints {
            0 => String::new(),
            bytes => format!(" and {} for checkpoints", units::bytes(bytes / steps)),
        };
        say!(
            "{}: {} of differences{of_checkpoints} per rank per step, where gradients would be {}; {waited:.1} % of \
             the time spent waiting for them",
            counted(outer.steps, "outer step"),
            units::bytes(outer.bytes / steps),
            units::bytes(outer.bytes_of_gradients / steps),
        );
    } else if report.gradient_bytes > 0 {
        say!(
            "gradients: {} per rank per step; {waited:.1} % of the time spent waiting for them",
            units::bytes(report.gradient_bytes / steps),
        );
    }
    if let Some(skipped) = report.skipped_steps {
        say!("steps skipped because gradients overflowed f16: {skipped}");
    }
    if let Some(sharding) = &report.sharding {
        print_sharding(sharding);
    }
    if let Some(way) = &report.gradients_by {
        say!("gradients travelled by {way}");
    }
    if let Some(bytes) = report.peak_memory {
        say!("peak memory per rank: {}", units::bytes(bytes));
    }
    if let Some((waited, more)) = run.and_then(|run| waited_for(run.path(), false)) {
        say!("{waited}: {more}");
    }
    if let Some(run) = run {
        say!("recorded in {}", run.path().display());
        warn_of_a_missing_end(report, run);
    }
}

/// The rank for which the others of the run in `folder` have waited, where they did so for long, and the command that shows more.
pub(crate) fn waited_for(folder: &Path, is_running: bool) -> Option<(String, String)> {
    let (rank, part) = RankTimes::read(folder, &mut Vec::new())?.waited_for()?;
    let is = if is_running { "is" } else { "was" };
    let have = if is_running { "have " } else { "" };
    let waited = format!(
        "rank {rank} {is} slow, and the others {have}waited for it {} of their steps' time",
        units::percent(part, 0)
    );
    let (program, folder) = (invocation::name(), word(folder));
    let more = format!("`{program} report {folder}` shows what each rank did in them");
    Some((waited, more))
}

/// The epochs of a training, as its progress counted them.
fn epochs(report: &TrainingReport) -> String {
    let finished = (report.epochs > 0).then(|| counted(report.epochs, "epoch"));
    let begun = report.unfinished_epoch;
    let begun = begun.map(|epoch| format!("part of epoch {epoch}"));
    let parts: Vec<String> = finished.into_iter().chain(begun).collect();
    match parts.is_empty() {
        true => String::new(),
        false => parts.join(" and ") + "  ",
    }
}

/// Prints what came of a training whose last files could not be written: it is nowhere else. Returns why they could not.
pub(crate) fn told_at_least<T>(trained: Result<T, TrainError>) -> Result<T, TrainError> {
    trained.map_err(|error| match error {
        TrainError::NotRecorded { report, reason } => {
            print_report(&report, None);
            *reason
        }
        error => error,
    })
}

/// Warns where the checkpoint of a finished training could not be written, however long ago the warning of that was.
fn warn_of_a_missing_end(report: &TrainingReport, run: &RunDirectory) {
    let steps = newest_progress(run).map(|newest| newest.step);
    if report.finished && steps < Some(report.steps) {
        let newest = match steps {
            Some(steps) => format!("the newest one is of step {steps}"),
            None => "there is none".to_owned(),
        };
        if report.outer.is_some() {
            // One at any other step would change the bits of what is resumed from it.
            say!(
                "no checkpoint of step {} ({newest}): with local steps they are written at the ends of epochs, and as \
                 --checkpoint-every says",
                report.steps
            );
            return;
        }
        let folder = word(run.path());
        let continued = match steps {
            Some(_) => format!(
                "`{}` makes the steps since the newest checkpoint once more, and writes it: make its folder writable first (room, permission)",
                resume_of(run.path())
            ),
            None => format!(
                "`{}` begins a training with it, with the data and settings of this one{}",
                new_training_from(run),
                on_machines_as_before(run, &format!("--init-from {folder} and another --run-dir"))
            ),
        };
        tracing::warn!(
            "the checkpoint of the last step, {}, was not written, {newest}; what was trained is in {}, and {continued}",
            report.steps,
            run.model_path().display(),
        );
    }
}

/// The command that continues the run in `folder`.
pub(crate) fn resume_of(folder: &Path) -> String {
    format!(
        "{} train --resume --run-dir {}",
        invocation::name(),
        word(folder)
    )
}

/// The command of a new training that begins with the weights of `run`, on its data and with all of its settings.
pub(crate) fn new_training_from(run: &RunDirectory) -> String {
    let config = run.read_config::<RunConfig>();
    // What the run left out of its first weights is in its own.
    let all = match config.is_ok_and(|config| config.init_skip != Patterns::default()) {
        true => " --set 'init_skip=[]'",
        false => "",
    };
    format!(
        "{} train --config {} --init-from {}{all}",
        invocation::name(),
        word(run.config_path()),
        word(run.path())
    )
}

/// What else there is to say of a run on several machines: how the command of each is changed.
fn on_machines_as_before(run: &RunDirectory, more: &str) -> String {
    match machines_of(run.path()) {
        0 | 1 => String::new(),
        _ => format!("; on several machines, the command of each machine as before, with {more}"),
    }
}

/// How a run that has not finished is continued.
pub(crate) fn how_to_continue(run: &RunDirectory) -> String {
    let folder = run.path().display();
    let elsewhere = checkpoints_elsewhere(run.path());
    match (Place::newest_of(run.path()), elsewhere) {
        (Some(place), None) if rank::is_of_another_launcher() => format!(
            "the job, started again with --resume --run-dir {}, continues from the checkpoint {place}, on any number of ranks",
            word(run.path())
        ),
        (Some(place), elsewhere) => {
            let on_machines = || on_machines_as_before(run, "--resume");
            format!(
                "`{}` continues from the checkpoint {place}, on any number of ranks{}",
                resume_of(run.path()),
                elsewhere.map_or_else(on_machines, |elsewhere| format!("; but {elsewhere}"))
            )
        }
        (None, Some(elsewhere)) => format!("{folder} has no checkpoint, but {elsewhere}"),
        (None, None) => format!(
            "{folder} has no checkpoint to continue from: {}",
            starts_again(run.path())
        ),
    }
}

/// How a run is continued whose disk has not taken a file.
pub(crate) fn how_to_continue_with_room(run: &RunDirectory) -> String {
    let folder = word(run.path());
    match Place::newest_of(run.path()) {
        Some(_) => format!(
            "when its files can be written (room, permission), {}; or copy {folder} to another disk, and name the copy by --run-dir",
            how_to_continue(run)
        ),
        None => format!(
            "{folder} has no checkpoint to continue from: make it writable (room, permission) or name a --run-dir on another disk; then {}",
            starts_again(run.path())
        ),
    }
}

/// How a job that has not finished is continued. The cause of a failure at its start says what to change.
pub(crate) fn help_after(
    outcome: &Outcome,
    arguments: &TrainArguments,
    run: &RunDirectory,
) -> Option<String> {
    let first = arguments.ranks.node_rank.unwrap_or(0) == 0;
    let failure = match outcome {
        Outcome::Failed(failure) => Some(failure),
        _ => None,
    };
    match Place::newest_of(run.path()) {
        _ if first && failure.is_some_and(|it| is_of_disk(it)) => {
            return Some(how_to_continue_with_room(run));
        }
        Some(_) if first => return Some(how_to_continue(run)),
        Some(place) => {
            let (name, folder) = (place.to_string(), run.checkpoints());
            return Some(format!(
                "this machine has the checkpoint {name}: where machine 0 has no newer one, copy {} into the folder \
                 `checkpoints` of its run; then start the command of each machine as before, with --resume",
                word(folder.join(&name))
            ));
        }
        None => {}
    }
    let config = run.read_config::<RunConfig>();
    match failure {
        Some(failure) if !may_do_better(failure) => None,
        Some(failure) if !first => {
            let is_elastic = config.is_ok_and(|config| config.ranks.elastic.is_some());
            let before_ranks_met = !is_elastic && failure.lost_before_ranks_met();
            Some(help_without_checkpoints(before_ranks_met, arguments.resume))
        }
        Some(_) => Some(how_to_continue(run) + &config.map_or(String::new(), |it| loses_less(&it))),
        None => Some(how_to_continue(run)),
    }
}

/// The flags with which a run that has ended before its first checkpoint would have lost less.
fn loses_less(config: &RunConfig) -> String {
    let sooner = config.training.checkpoint_every == CheckpointEvery::default();
    let sooner =
        sooner.then_some("--checkpoint-every 10min writes the first one before the epoch ends");
    let without = config.ranks.elastic.is_none() && config.world_size() > 1;
    let without = without.then_some("--elastic continues without a rank that is lost");
    let flags = sooner.into_iter().chain(without);
    flags.map(|flag| format!("; {flag}")).collect()
}

/// Whether a rank could not write a file of the run, as it has said.
fn is_of_disk(failure: &JobFailure) -> bool {
    let failure = failure.cause.failure();
    // As `TrainError::Write` and `TrainError::WriteCheckpoint` begin.
    failure.is_some_and(|it| it.kind.is_own_failure() && it.message.starts_with("writing "))
}

/// How a job is continued by the words of another machine than the first, which does not see the checkpoints of that.
fn help_without_checkpoints(before_ranks_met: bool, resumes: bool) -> String {
    let command = match (before_ranks_met, resumes) {
        (true, true) => {
            "no rank had met another, and no step was made: start the command of each machine again"
        }
        (true, false) => {
            "no rank had met another, and no step was made: start the command of each machine again, without --resume"
        }
        (false, _) => {
            "start the command of each machine as before, with --resume if machine 0 has a checkpoint, else without"
        }
    };
    command.to_owned()
}

/// Whether a job may do better the next time: a rank was killed or lost, did not answer or did not run, or a machine was lost.
/// Other failures say what to change.
fn may_do_better(failure: &JobFailure) -> bool {
    let lost = failure.cause.failure().and_then(|it| it.lost_rank);
    // Of a pause of this machine a line of its own says how it continues.
    let stalled = failure.exit_code == EXIT_STALLED && failure.own_pause.is_none();
    let killed = matches!(failure.cause.exit, RankExit::Signal(_));
    killed || lost.is_some() || failure.lost_machine.is_some() || stalled
}

/// What a test has found: `test accuracy 97.10 %  loss 0.0912`, or `test loss 0.0123  mae 0.0841`. After the accuracy
/// comes `of`.
pub(crate) fn tested(
    accuracy: Option<f64>,
    of: &str,
    loss: f64,
    others: &BTreeMap<String, f64>,
) -> String {
    let accuracy = accuracy.map(|share| format!("accuracy {}{of}", units::percent(share, 2)));
    let others = others.iter();
    let others = others.map(|(name, mean)| format!("{name} {}", units::metric(*mean)));
    let loss = format!("loss {}", units::metric(loss));
    let parts: Vec<String> = accuracy.into_iter().chain([loss]).chain(others).collect();
    format!("test {}", parts.join("  "))
}

/// What a rank has kept at most.
fn print_sharding(sharding: &ShardingReport) {
    let most = sharding.most();
    say!(
        "a rank kept {} of parameters, {} of gradients and {} of the optimizer's state{}  (--shard {})",
        units::bytes(most.parameters),
        units::bytes(most.gradients),
        units::bytes(most.optimizer),
        if sharding.offloaded {
            " (in the host's memory)"
        } else {
            ""
        },
        sharding.stage,
    );
    if most.gradient_buckets > 0 {
        say!(
            "for a while in each step: {} of gradients on their way{}",
            units::bytes(most.gradient_buckets),
            match most.gathered {
                0 => String::new(),
                gathered => format!(", and {} of whole parameters", units::bytes(gathered)),
            }
        );
    }
}

/// How long it took, and since when that is counted where not from the beginning.
fn time_taken(report: &TrainingReport) -> String {
    let since = match report.steps_since_resume {
        some if some > 0 && some < report.steps => " since the resume",
        _ => "",
    };
    units::seconds(report.seconds) + since
}

#[cfg(test)]
pub(crate) mod tests;
