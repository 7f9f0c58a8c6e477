//! What a training says at its end.

use everburn::prelude::*;
use everburn::train::ShardingReport;

/// Prints what came of a training.
pub(crate) fn print_report(report: &TrainingReport, run: Option<&RunDirectory>) {
    if let Some(stopped) = &report.stopped {
        say!("stopped {stopped}");
    }
    if report.averaged {
        say!("tested: the averaged model, in ema.safetensors");
    }
    if report.test_accuracy.is_none() {
        say!(
            "--resume goes on after epoch {}; later steps are in model.safetensors only",
            report.epochs
        );
    }
    let result = match (report.test_accuracy, report.test_loss) {
        (Some(accuracy), Some(loss)) => {
            format!("test accuracy {:.2} %  loss {loss:.4}  ", 100.0 * accuracy)
        }
        _ => String::new(),
    };
    say!(
        "{result}{} on {}  {}  {}  {}  {:.0} samples/s  {:.1} s",
        report.model,
        report.dataset,
        counted(report.epochs, "epoch"),
        counted(report.steps, "step"),
        counted(report.world_size, "rank"),
        report.samples_per_second,
        report.seconds
    );
    let waited = 100.0 * report.exposed_seconds / report.train_seconds;
    let steps = report.steps_since_resume.max(1) as u64;
    if let Some(outer) = &report.outer {
        let of_checkpoints = match outer.bytes_of_checkpoints {
            0 => String::new(),
            bytes => format!(" and {} for checkpoints", bytes / steps),
        };
        say!(
            "{}: {} bytes of differences{of_checkpoints} a step and rank, where gradients would be {}; {waited:.1} % of \
             the time spent waiting for them",
            counted(outer.steps, "outer step"),
            outer.bytes / steps,
            outer.bytes_of_gradients / steps,
        );
    } else if report.gradient_bytes > 0 {
        say!(
            "gradients: {} bytes a step and rank; {waited:.1} % of the time spent waiting for them",
            report.gradient_bytes / steps,
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
        let mebibytes = bytes as f64 / f64::from(1 << 20);
        say!("peak memory of a rank: {mebibytes:.0} MiB");
    }
    if let Some(run) = run {
        say!("recorded in {}", run.path().display());
    }
}

/// What a rank has kept at most.
fn print_sharding(sharding: &ShardingReport) {
    let most = sharding.most();
    let bytes = everburn::schedules::quantity::bytes;
    say!(
        "a rank kept {} of parameters, {} of gradients and {} of the optimizer's state{}  (--shard {})",
        bytes(most.parameters),
        bytes(most.gradients),
        bytes(most.optimizer),
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
            bytes(most.gradient_buckets),
            match most.gathered {
                0 => String::new(),
                gathered => format!(", and {} of whole parameters", bytes(gathered)),
            }
        );
    }
}

/// `1 rank`, `2 ranks`
pub(crate) fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}
