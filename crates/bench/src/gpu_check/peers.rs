//! PyTorch on the same GPU: one process measures all, and tells each number as it has it.

use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use everburn::launch::Children;
use serde::Deserialize;

use super::child;
use super::record::{Record, Side, SideThroughput, State};
use super::{GpuCheckArguments, Section};
use crate::kernels::networks::Network;

/// The program and what it imports, which the machine does not have beside this binary.
const FILES: [(&str, &str); 3] = [
    ("pytorch_gpu.py", include_str!("../../peers/pytorch_gpu.py")),
    (
        "pytorch_models.py",
        include_str!("../../peers/pytorch_models.py"),
    ),
    ("training.py", include_str!("../../peers/training.py")),
];

/// A line of it.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
enum Line {
    /// What it is.
    Versions { text: String },
    /// A number.
    Rate {
        name: String,
        side: Side,
        per_second: f64,
    },
    /// Why there is not a number.
    Failure {
        name: String,
        side: Side,
        reason: String,
    },
}

/// Measures what PyTorch can do, and fills its columns.
pub(super) fn run(
    children: &Children,
    python: &str,
    arguments: &GpuCheckArguments,
    limit: Duration,
    record: &mut Record,
) -> std::io::Result<()> {
    let folder = tempfile::tempdir()?;
    for (name, text) in FILES {
        std::fs::write(folder.path().join(name), text)?;
    }
    let mut trouble = None;
    let ended = {
        let log = record.log();
        let command = command(python, folder.path(), arguments, limit);
        child::run(children, command, limit, &log, |line| {
            if let Err(error) = take(line, record) {
                trouble = Some(error);
            }
        })
    };
    if let Some(error) = trouble {
        return Err(error);
    }
    let ended = match ended {
        Err(error) if error.kind() != ErrorKind::Interrupted => {
            return unreached(record, State::Skipped, &error.to_string());
        }
        ended => ended?,
    };
    match (ended.status, ended.failure()) {
        (None, why) => unreached(record, State::NotReached, &why.unwrap_or_default()),
        (_, None) => unreached(record, State::NotReached, "PyTorch's side ran out of time"),
        // Everburn is not wrong where PyTorch fails: there is nothing to compare with.
        (_, Some(why)) => {
            let why = format!("PyTorch's side has failed: {why}");
            unreached(record, State::Skipped, &why)
        }
    }
}

fn command(python: &str, folder: &Path, arguments: &GpuCheckArguments, limit: Duration) -> Command {
    let mut command = Command::new(python);
    command
        .arg(folder.join("pytorch_gpu.py"))
        .args(["--device", &arguments.device])
        .args(["--seconds", &limit.as_secs().to_string()])
        .env("PYTHONUNBUFFERED", "1");
    if let Some(network) = Network::named("mnist") {
        command.args(["--layers", &network.description()]);
    }
    if arguments.quick {
        command.arg("--quick");
    }
    command
}

/// Takes over what a line tells.
fn take(line: &str, record: &mut Record) -> std::io::Result<()> {
    // Libraries print lines of their own.
    let Ok(line) = serde_json::from_str::<Line>(line) else {
        return Ok(());
    };
    let (name, side, measured) = match line {
        Line::Versions { text } => {
            record.findings.machine.pytorch = Some(text);
            return record.write();
        }
        Line::Rate {
            name,
            side,
            per_second,
        } => (name, side, SideThroughput::of(per_second)),
        Line::Failure { name, side, reason } => {
            // PyTorch's failure is not ours: there is nothing to compare with.
            (name, side, SideThroughput::without(State::Skipped, reason))
        }
    };
    if side == Side::Everburn {
        return Ok(());
    }
    if let Some(row) = record.benchmark(&name) {
        *row.side_mut(side) = measured;
    }
    record.write()
}

/// Fills what PyTorch has not.
fn unreached(record: &mut Record, state: State, why: &str) -> std::io::Result<()> {
    for row in &mut record.findings.benchmarks {
        for side in [Side::Eager, Side::Compiled] {
            let measured = row.side_mut(side);
            if measured.state == State::NotReached {
                *measured = SideThroughput::without(state, why);
            }
        }
    }
    say!("{:?}: {}", Section::Peers, why);
    record.write()
}

#[cfg(test)]
mod tests {
    use super::FILES;
    use crate::peers::script;

    #[test]
    fn the_program_finds_what_it_imports() {
        for (importing, text) in FILES {
            let imports = text.lines().filter_map(|line| line.strip_prefix("from "));
            let modules = imports.filter_map(|line| line.split(' ').next());
            for module in modules.filter(|module| script(&format!("{module}.py")).exists()) {
                let is_there = FILES
                    .iter()
                    .any(|(name, _)| *name == format!("{module}.py"));
                assert!(is_there, "{module} of {importing}");
            }
        }
    }
}
