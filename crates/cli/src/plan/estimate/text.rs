//! An estimate as `train --plan` prints it.

use std::fmt;

use everburn_record::table::aligned;
use everburn_record::units::{bytes, percent, rate, seconds};
use everburn_schedules::theoretical_idle;

use super::Estimate;

/// `0`, `0 to 3`, `0, 2`
fn listed(numbers: &[usize]) -> String {
    match numbers {
        [first, .., last] if last - first + 1 == numbers.len() && numbers.len() > 2 => {
            format!("{first} to {last}")
        }
        _ => {
            let numbers = numbers.iter().map(ToString::to_string);
            numbers.collect::<Vec<_>>().join(", ")
        }
    }
}

impl Estimate {
    /// What each position holds. Two tables, so that each fits a terminal.
    fn memory_table(&self) -> String {
        let heads = [
            "ranks",
            "stages",
            "parameters",
            "gradients",
            "optimizer",
            "activations",
            "total",
        ];
        let rows = self.positions.iter().map(|position| {
            let memory = &position.memory;
            vec![
                listed(&position.ranks),
                listed(&position.stages),
                bytes(memory.parameters),
                bytes(memory.gradients),
                bytes(memory.optimizer),
                bytes(memory.activations),
                bytes(memory.total()),
            ]
        });
        aligned(&heads, &rows.collect::<Vec<_>>(), &[1])
    }

    /// What each position sends per step, and the share of the step in which it is idle.
    fn traffic_table(&self) -> String {
        let shares_layers = self.positions.iter().any(|p| p.layers_sent > 0);
        let mut heads = vec!["ranks", "buckets", "sent on"];
        if shares_layers {
            heads.push("sent in layers");
        }
        heads.extend(["sent to replicas", "idle", "blocks"]);
        let rows = self.positions.iter().enumerate().map(|(at, position)| {
            let mut row = vec![
                listed(&position.ranks),
                position.buckets.to_string(),
                bytes(position.sent),
            ];
            if shares_layers {
                row.push(bytes(position.layers_sent));
            }
            row.extend([
                bytes(position.gradients_sent),
                percent(self.timeline.idle_share_of(at), 1),
                position.blocks.join("; "),
            ]);
            row
        });
        aligned(&heads, &rows.collect::<Vec<_>>(), &[heads.len() - 1])
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.headline)?;
        writeln!(f, "{}\n", self.memory_table())?;
        writeln!(f, "{}\n", self.traffic_table())?;
        let passes = self.timeline.makespan();
        let step = passes + self.exposed;
        write!(
            f,
            "time per step: {}, {} samples/s",
            seconds(step),
            rate(self.batch_size as f64 / step)
        )?;
        if self.exposed > 0.0 {
            let (passes, exposed) = (seconds(passes), seconds(self.exposed));
            write!(
                f,
                " ({passes} of passes, {exposed} of waiting for gradients)"
            )?;
        }
        writeln!(f)?;
        let schedule = self.timeline.schedule();
        let (ranks, chunks) = (schedule.ranks(), schedule.chunks());
        if let (Some(kind), true) = (schedule.kind(), ranks > 1) {
            let theory = theoretical_idle(kind, ranks, schedule.micro_batches(), chunks);
            writeln!(
                f,
                "bubble: {}; {} in theory, if stages were equal",
                percent(self.timeline.idle_share(), 1),
                percent(theory, 1)
            )?;
        }
        for note in &self.notes {
            writeln!(f, "{note}")?;
        }
        Ok(())
    }
}
