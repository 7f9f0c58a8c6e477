//! The findings as a page that people read.

use everburn_record::units;

use super::record::{Benchmark, Check, Findings, Side, State, Verdict};

/// The whole page.
pub(super) fn page(findings: &Findings) -> String {
    let machine = &findings.machine;
    let verdict = match findings.verdict {
        Verdict::Passed => "passed",
        Verdict::Failed => "FAILED",
        Verdict::Incomplete => "incomplete: time was up before all was reached",
    };
    let mut page = String::from("# GPU check\n\n");
    let mut line = |text: String| {
        page.push_str(&text);
        page.push('\n');
    };
    line(format!(
        "**{verdict}**, after {:.0} of {:.0} s, on `{}`{}.\n",
        findings.seconds,
        findings.budget_seconds,
        findings.device,
        if findings.quick {
            ", small models only"
        } else {
            ""
        },
    ));
    line(format!("- GPUs: {}", machine.gpus));
    line(format!("- processor: {}", machine.processor));
    line(format!(
        "- Everburn {}, Burn {}, {}",
        machine.everburn, machine.burn, machine.features
    ));
    if let Some(pytorch) = &machine.pytorch {
        line(format!("- PyTorch: {pytorch}"));
    }
    line("\n## Correctness\n".to_string());
    line("| check | found | at most | verdict | | seconds |".to_string());
    line("|---|---|---|---|---|---|".to_string());
    for check in &findings.checks {
        line(row_of_check(check));
    }
    if !findings.benchmarks.is_empty() {
        line("\n## Throughput\n".to_string());
        line(
            "| training | | Everburn | PyTorch | torch.compile | to PyTorch | to torch.compile | goal |"
                .to_string(),
        );
        line("|---|---|---|---|---|---|---|---|".to_string());
        for benchmark in &findings.benchmarks {
            line(row_of_benchmark(benchmark));
        }
        for note in findings.benchmarks.iter().flat_map(notes) {
            line(format!("\n{note}"));
        }
    }
    page
}

fn row_of_check(check: &Check) -> String {
    let Check {
        name,
        value,
        limit,
        state,
        note,
        seconds,
        ..
    } = check;
    let value = value.map_or_else(String::new, |value| format!("{value:.2e}"));
    let note = in_cell(note);
    let state = state.word();
    format!("| {name} | {value} | {limit:.0e} | {state} | {note} | {seconds:.0} |")
}

fn row_of_benchmark(benchmark: &Benchmark) -> String {
    let cell = |side: Side| {
        let measured = benchmark.side(side);
        match measured.per_second {
            Some(value) => grouped(value),
            None => measured.state.word().to_string(),
        }
    };
    let ratio = |side: Side| {
        let ratio = benchmark.ratio(side);
        ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}x"))
    };
    let goal = match (benchmark.goal, benchmark.meets_goal()) {
        (None, _) => String::new(),
        (Some(goal), met) => {
            let met = match met {
                Some(true) => "met",
                Some(false) => State::Missed.word(),
                None => State::Open.word(),
            };
            format!("{met} ({:.2}x {})", goal.ratio, goal.against.name())
        }
    };
    format!(
        "| {} | {}/s | {} | {} | {} | {} | {} | {goal} |",
        benchmark.name,
        benchmark.unit,
        cell(Side::Everburn),
        cell(Side::Eager),
        cell(Side::Compiled),
        ratio(Side::Eager),
        ratio(Side::Compiled),
    )
}

/// What there is to say about sides that have no number, or not the one that was wanted.
fn notes(benchmark: &Benchmark) -> Vec<String> {
    let sides = [Side::Everburn, Side::Eager, Side::Compiled].into_iter();
    let said = sides.filter(|side| !benchmark.side(*side).note.is_empty());
    let note = |side: Side| {
        let measured = benchmark.side(side);
        format!(
            "- {}, {}: {}: {}",
            benchmark.name,
            side.name(),
            measured.state.word(),
            in_cell(&measured.note)
        )
    };
    said.map(note).collect()
}

/// A text that breaks no table.
fn in_cell(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    words.replace('|', "\\|")
}

/// `12,345`, or with a digit after the point below a hundred.
fn grouped(value: f64) -> String {
    match value {
        ..100.0 => format!("{value:.1}"),
        _ => units::count(value.round() as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Section;
    use super::super::machine::Machine;
    use super::super::record::{Goal, SideThroughput};
    use super::*;

    pub(super) fn findings() -> Findings {
        Findings {
            verdict: Verdict::Failed,
            machine: Machine {
                everburn: "0.1.0".into(),
                burn: "0.22.1".into(),
                features: "cuda".into(),
                gpus: "NVIDIA H100 (79.6 GiB), driver 580, CUDA 13.0, NCCL 2.27".into(),
                processor: "a processor (16 threads)".into(),
                pytorch: Some("2.11".into()),
                time: 0,
            },
            device: "cuda:0".into(),
            quick: false,
            seconds: 12.0,
            budget_seconds: 560.0,
            checks: vec![Check {
                section: Section::Numbers,
                name: "forward, mnist".into(),
                state: State::Failed,
                value: Some(0.25),
                limit: 1e-3,
                note: "a | b\nc".into(),
                seconds: 3.0,
            }],
            benchmarks: vec![Benchmark {
                name: "mnist, batch 64".into(),
                unit: "samples".into(),
                everburn: SideThroughput::of(1_234_567.0),
                eager: SideThroughput::of(1_000_000.0),
                compiled: SideThroughput::without(State::Skipped, "no Python"),
                goal: Some(Goal {
                    against: Side::Eager,
                    ratio: 1.0,
                }),
            }],
        }
    }

    #[test]
    fn a_page_says_what_was_found_and_what_was_not() {
        let page = page(&findings());
        let has = |text: &str| assert!(page.contains(text), "{text} in\n{page}");
        has("**FAILED**, after 12 of 560 s, on `cuda:0`.");
        has("| forward, mnist | 2.50e-1 | 1e-3 | FAILED | a \\| b c | 3 |");
        has(
            "| mnist, batch 64 | samples/s | 1,234,567 | 1,000,000 | SKIPPED | 1.23x |  | met (1.00x PyTorch) |",
        );
        has("- mnist, batch 64, torch.compile: SKIPPED: no Python");
    }

    #[test]
    fn a_goal_without_the_other_side_is_open_and_a_slower_side_misses_it() {
        let mut findings = findings();
        let benchmark = &mut findings.benchmarks[0];
        benchmark.eager = SideThroughput::of(2_000_000.0);
        assert_eq!(benchmark.meets_goal(), Some(false));
        assert!(row_of_benchmark(benchmark).contains("missed (1.00x PyTorch)"));
        benchmark.eager = SideThroughput::without(State::Skipped, "");
        assert!(row_of_benchmark(benchmark).contains("open (1.00x PyTorch)"));
    }

    #[test]
    fn wrong_beats_unreached_and_both_beat_passed() {
        let mut findings = findings();
        assert_eq!(findings.judge(), Verdict::Failed);
        findings.checks[0].state = State::NotReached;
        assert_eq!(findings.judge(), Verdict::Incomplete);
        findings.checks[0].state = State::Passed;
        assert_eq!(findings.judge(), Verdict::Passed);
        findings.benchmarks[0].everburn.state = State::Failed;
        assert_eq!(findings.judge(), Verdict::Failed);
        // What the machine lacks, or what does not exist, is not wrong; nor is it passed.
        findings.benchmarks[0].everburn.state = State::Open;
        assert_eq!(findings.judge(), Verdict::Passed);
    }
}
