//! What `bench pipeline` found: as tables, goals and JSON.

use everburn::schedules::ScheduleKind;
use everburn_record::statistics::Spread;
use everburn_record::table::aligned;
use everburn_record::units::percent;
use serde_json::{Value, json};

use super::MANY_MICRO_BATCHES;
use super::options::PipelineBench;
use super::order::Step;
use crate::cells;
use crate::recompute::{self, RecomputeBench};

const MIB: f64 = 1_048_576.0;

/// How far from theory the measured bubble may be.
const BUBBLE_OFF: f64 = 0.15;

/// How much less memory activation checkpointing is to take, for how much more time.
const LESS_MEMORY: f64 = 0.40;
const MORE_TIME: f64 = 0.40;

/// The activation checkpointing that is to reach this.
pub(super) const CHECKPOINTED: &str = "blocks";

/// The steps of a schedule.
#[derive(Debug, Clone)]
pub(super) struct ScheduleRounds {
    pub(super) schedule: ScheduleKind,
    /// By round.
    pub(super) steps: Vec<Step>,
    /// Of a run of its own, whose times say nothing.
    pub(super) memory: Step,
}

impl ScheduleRounds {
    fn spread(&self, what: fn(&Step) -> f64) -> Spread {
        let nothing = Spread {
            median: f64::NAN,
            min: f64::NAN,
            max: f64::NAN,
        };
        Spread::of(&self.steps.iter().map(what).collect::<Vec<_>>()).unwrap_or(nothing)
    }

    fn idle(&self) -> f64 {
        self.spread(|step| step.idle).median
    }

    fn theory(&self) -> f64 {
        self.memory.theory
    }

    /// How much more idle than theory, as a share of it.
    fn off(&self) -> f64 {
        self.idle() / self.theory() - 1.0
    }
}

/// What a schedule keeps of many micro-batches.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    pub(super) schedule: ScheduleKind,
    pub(super) step: Step,
}

/// What has been measured.
#[derive(Debug)]
pub(crate) struct PipelineResults {
    pub(super) schedules: Vec<ScheduleRounds>,
    pub(super) kept: Vec<Kept>,
    pub(super) decoder: recompute::RecomputeResults,
}

/// The results for a reader; `decoder` says what was run with and without checkpointing.
pub(super) fn text(measured: &PipelineResults, decoder: &str) -> String {
    let mut parts = vec![
        bubble_table(&measured.schedules),
        bubble_goal(&measured.schedules),
        memory_table(&measured.kept),
        format!("{decoder}\n\n{}", recompute::table(&measured.decoder)),
    ];
    parts.extend(checkpointing_goal(&measured.decoder));
    parts.join("\n\n")
}

fn bubble_table(schedules: &[ScheduleRounds]) -> String {
    let header = [
        "schedule",
        "idle",
        "(min-max)",
        "theory",
        "off",
        "with measured costs",
        "ms / step",
        "MiB kept by rank",
        "live",
    ];
    let lines = schedules.iter().map(|rounds| {
        let [idle, range] = cells::spread(rounds.spread(|step| 100.0 * step.idle), 1);
        vec![
            rounds.schedule.to_string(),
            format!("{idle} %"),
            range,
            percent(rounds.theory(), 1),
            cells::more(rounds.off(), 0),
            percent(rounds.spread(|step| step.simulated).median, 1),
            format!("{:.0}", rounds.spread(|step| step.milliseconds).median),
            mebibytes(&rounds.memory),
            live(&rounds.memory),
        ]
    });
    aligned(&header, &lines.collect::<Vec<_>>(), &[])
}

/// Theory speaks of stages whose passes take equally long: of all schedules, but of ZB-H1 only where the
/// halves of the backward pass do too.
fn bubble_goal(schedules: &[ScheduleRounds]) -> String {
    let (near, far): (Vec<_>, Vec<_>) = schedules
        .iter()
        .partition(|rounds| rounds.off().abs() <= BUBBLE_OFF);
    let names = |rounds: &[&ScheduleRounds]| {
        let names = rounds.iter().map(|rounds| rounds.schedule.name());
        names.collect::<Vec<_>>().join(", ")
    };
    let goal = format!("goal: a bubble within {} of theory", percent(BUBBLE_OFF, 0));
    match (near.is_empty(), far.is_empty()) {
        (_, true) => format!("{goal}: met by {}", names(&near)),
        (true, _) => format!("{goal}: not met by {}", names(&far)),
        _ => format!(
            "{goal}: met by {}; not met by {}",
            names(&near),
            names(&far)
        ),
    }
}

fn memory_table(kept: &[Kept]) -> String {
    let header = ["schedule", "micro-batches", "MiB kept by rank", "live"];
    let lines = kept.iter().map(|kept| {
        vec![
            kept.schedule.to_string(),
            MANY_MICRO_BATCHES.to_string(),
            mebibytes(&kept.step),
            live(&kept.step),
        ]
    });
    let mut text = aligned(&header, &lines.collect::<Vec<_>>(), &[]);
    if let [more, less] = kept {
        let (of, by) = (more.schedule, less.schedule);
        let ratios = less.step.bytes.iter().zip(&more.step.bytes);
        let ratios = ratios.map(|(less, more)| less / more);
        let theory = less.step.live.iter().zip(&more.step.live);
        let theory = theory.map(|(less, more)| *less as f64 / *more as f64);
        let (ratios, theory) = (joined(ratios), joined(theory));
        text.push_str(&format!(
            "\n\n{by} keeps {ratios} of what {of} keeps, by rank; by micro-batches live it would be {theory}\n\
             (what a rank keeps includes the gradients of its weights, which are the same for both)"
        ));
    }
    text
}

fn checkpointing_goal(sides: &recompute::RecomputeResults) -> Option<String> {
    let (time, memory) = sides.more_time_and_memory(CHECKPOINTED)?;
    let met = -memory >= LESS_MEMORY && time <= MORE_TIME;
    Some(format!(
        "goal: activation checkpointing takes {} less memory or better, for at most {} more time: \
         {} ({} memory, {} time)",
        percent(LESS_MEMORY, 0),
        percent(MORE_TIME, 0),
        if met { "met" } else { "not met" },
        cells::more(memory, 0),
        cells::more(time, 0)
    ))
}

fn joined(shares: impl Iterator<Item = f64>) -> String {
    let shares = shares.map(|share| percent(share, 0));
    shares.collect::<Vec<_>>().join(", ")
}

fn mebibytes(step: &Step) -> String {
    let by_rank = step.bytes.iter().map(|bytes| format!("{:.1}", bytes / MIB));
    by_rank.collect::<Vec<_>>().join(", ")
}

fn live(step: &Step) -> String {
    let by_rank = step.live.iter().map(usize::to_string);
    by_rank.collect::<Vec<_>>().join(", ")
}

/// The results for a program: an array of one object a line of the tables, told apart by `part`.
pub(super) fn to_json(
    measured: &PipelineResults,
    options: &PipelineBench,
    decoder: &RecomputeBench,
    machine: &Value,
) -> Value {
    let with_options = |row: Value| {
        let all = json!({
            "layers": options.layers,
            "width": options.width,
            "batch": options.batch,
            "ranks": options.ranks,
            "machine": machine,
        });
        cells::joined(row, all)
    };
    let bubbles = measured.schedules.iter().map(|rounds| {
        with_options(json!({
            "part": "bubble",
            "schedule": rounds.schedule.name(),
            "micro_batches": options.micro_batches,
            "chunks": PipelineBench::chunks_of(rounds.schedule),
            "rounds": rounds.steps.len(),
            "steps": options.steps,
            "idle_share": rounds.idle(),
            "theory": rounds.theory(),
            "off": rounds.off(),
            "met": rounds.off().abs() <= BUBBLE_OFF,
            "simulated": rounds.spread(|step| step.simulated).median,
            "step_ms": rounds.spread(|step| step.milliseconds).median,
            "stages_ms": rounds.steps.last().map(|step| &step.stages),
            "activation_bytes": rounds.memory.bytes,
            "live": rounds.memory.live,
        }))
    });
    let kept = measured.kept.iter().map(|kept| {
        with_options(json!({
            "part": "memory",
            "schedule": kept.schedule.name(),
            "micro_batches": MANY_MICRO_BATCHES,
            "activation_bytes": kept.step.bytes,
            "live": kept.step.live,
        }))
    });
    let sides = recompute::to_json(&measured.decoder, decoder, machine);
    let sides = sides.as_array().cloned().into_iter().flatten();
    let part = json!({ "part": "checkpointing" });
    let sides = sides.map(|row| cells::joined(row, part.clone()));
    bubbles.chain(kept).chain(sides).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::options::tests::options;
    use super::*;
    use crate::recompute::rows::tests::measured as decoder;

    /// A step of two ranks that is idle for `idle`, where 0.1 is right, and keeps this many MiB.
    pub(in crate::pipeline) fn step(idle: f64, mebibytes: [u64; 2]) -> Step {
        Step {
            milliseconds: 900.0,
            idle,
            theory: 0.1,
            simulated: 0.105,
            bytes: mebibytes.map(|n| (n << 20) as f64).to_vec(),
            live: vec![2, 1],
            stages: Vec::new(),
        }
    }

    fn measured() -> PipelineResults {
        let rounds = |schedule, idle: [f64; 3]| ScheduleRounds {
            schedule,
            steps: idle.map(|idle| step(idle, [0, 0])).to_vec(),
            memory: step(f64::NAN, [20, 10]),
        };
        let kept = |schedule, mebibytes, live: [usize; 2]| Kept {
            schedule,
            step: Step {
                live: live.to_vec(),
                ..step(0.1, mebibytes)
            },
        };
        PipelineResults {
            schedules: vec![
                rounds(ScheduleKind::GPipe, [0.11, 0.109, 0.12]),
                rounds(ScheduleKind::OneForwardOneBackward, [0.12, 0.118, 0.11]),
            ],
            kept: vec![
                kept(ScheduleKind::GPipe, [160, 160], [16, 16]),
                kept(ScheduleKind::OneForwardOneBackward, [24, 12], [2, 1]),
            ],
            decoder: decoder(),
        }
    }

    #[test]
    fn each_part_has_its_table_and_its_goal() {
        let expected = "\
schedule    idle    (min-max)  theory    off  with measured costs  ms / step  MiB kept by rank  live
gpipe     11.0 %  (10.9-12.0)  10.0 %  +10 %               10.5 %        900        20.0, 10.0  2, 1
1f1b      11.8 %  (11.0-12.0)  10.0 %  +18 %               10.5 %        900        20.0, 10.0  2, 1

goal: a bubble within 15 % of theory: met by gpipe; not met by 1f1b

schedule  micro-batches  MiB kept by rank    live
gpipe                16      160.0, 160.0  16, 16
1f1b                 16        24.0, 12.0    2, 1

1f1b keeps 15 %, 8 % of what gpipe keeps, by rank; by micro-batches live it would be 12 %, 6 %
(what a rank keeps includes the gradients of its weights, which are the same for both)

model

";
        let text = text(&measured(), "model");
        assert!(text.starts_with(expected), "{text}");
        let goal = "more time: met (-60 % memory, +25 % time)";
        assert!(text.ends_with(goal), "{text}");
    }

    #[test]
    fn a_row_of_json_stands_for_each_line() {
        let decoder = super::super::decoder(&options(""));
        let rows = to_json(&measured(), &options(""), &decoder, &json!({ "cores": 2 }));
        let parts: Vec<_> = rows
            .as_array()
            .unwrap()
            .iter()
            .map(|row| &row["part"])
            .collect();
        assert_eq!(parts[..4], ["bubble", "bubble", "memory", "memory"]);
        assert_eq!(parts[4..], ["checkpointing", "checkpointing"]);
        assert_eq!(
            (&rows[0]["idle_share"], &rows[0]["met"]),
            (&json!(0.11), &json!(true))
        );
        assert_eq!(rows[1]["met"], false);
        assert_eq!(rows[2]["activation_bytes"][0], 160.0 * MIB);
        assert_eq!(
            (&rows[3]["layers"], &rows[3]["ranks"]),
            (&json!(24), &json!(2))
        );
    }
}
