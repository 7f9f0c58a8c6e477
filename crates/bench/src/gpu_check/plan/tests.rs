//! Tests of `plan`.

use std::collections::BTreeSet;

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    arguments: GpuCheckArguments,
}

fn with_gpus(gpus: usize) -> Capabilities {
    Capabilities {
        gpus,
        without_nccl: None,
        python: true,
    }
}

fn arguments(line: &str) -> GpuCheckArguments {
    Line::parse_from(std::iter::once("gpu-check").chain(line.split_whitespace())).arguments
}

#[test]
fn the_parts_together_fit_into_a_call_of_ten_minutes_where_none_takes_all_it_may() {
    let all = tasks(&arguments(""), &with_gpus(1));
    let budget = arguments("").budget;
    assert!(budget < 600, "{budget}");
    let longest = all.iter().map(|task| task.limit.as_secs()).max().unwrap();
    assert!(
        longest * 2 < budget,
        "one part must leave time for the others"
    );
}

#[test]
fn the_speed_of_a_software_device_is_of_no_interest() {
    let all = tasks(&arguments("--device webgpu:cpu"), &with_gpus(0));
    for task in &all {
        let about_speed = matches!(task.section, Section::Throughput | Section::Peers);
        assert!(!about_speed || task.skipped.is_some(), "{:?}", task.work);
    }
    let checked = all.iter().filter(|task| task.skipped.is_none()).count();
    assert!(checked >= 3 + 3 + 4, "{checked}");
    let (_, benchmarks) = rows(&all, Some("python3"));
    let sides = benchmarks
        .iter()
        .flat_map(|row| [&row.everburn, &row.eager, &row.compiled]);
    assert!(sides.clone().count() > 0);
    for side in sides {
        let found = (side.state, &*side.note);
        assert_eq!(found, (State::Skipped, "webgpu:cpu computes on the CPU"));
    }
}

#[test]
fn each_row_has_a_name_of_its_own() {
    let all = tasks(&arguments(""), &with_gpus(8));
    assert!(all.iter().all(|task| task.skipped.is_none()));
    let (checks, benchmarks) = rows(&all, Some("python3"));
    let names: BTreeSet<_> = checks.iter().map(|check| &check.name).collect();
    assert_eq!(names.len(), checks.len());
    assert_eq!(checks.len(), 3 * 2 + 3 + 7 + 2);
    assert_eq!(benchmarks.len(), 6);
    assert!(checks.iter().all(|check| check.state == State::NotReached));
}

#[test]
fn what_a_machine_lacks_is_skipped_with_the_reason() {
    let reason = |gpus, line: &str, part: &str| {
        let all = tasks(&arguments(line), &with_gpus(gpus));
        let mut found = all.into_iter().filter_map(|task| match task.work {
            Work::Ranks { name, .. } if name.contains(part) => Some(task.skipped),
            _ => None,
        });
        found.next().expect("there is such a task")
    };
    assert_eq!(reason(1, "", "NCCL, 1 rank"), None);
    assert_eq!(reason(1, "", "on 2 GPUs").unwrap(), "there is one GPU");
    assert_eq!(reason(4, "", "on 4 GPUs"), None);
    let flex = reason(0, "--device flex", "NCCL, 1 rank").unwrap();
    assert_eq!(flex, "NCCL is for GPUs, and this is flex");
    assert_eq!(reason(0, "--device flex", "host backend"), None);
}

#[test]
fn without_nccl_its_rows_are_skipped_and_say_why() {
    let has = Capabilities {
        without_nccl: Some("no NCCL: libnccl.so.2 is not there".to_string()),
        ..with_gpus(2)
    };
    let all = tasks(&arguments(""), &has);
    let skipped = all.iter().filter_map(|task| task.skipped.as_deref());
    let skipped: Vec<_> = skipped.collect();
    assert_eq!(skipped, ["no NCCL: libnccl.so.2 is not there"; 4]);
}

#[test]
fn what_comes_first_leaves_time_for_what_is_measured_and_that_for_pytorchs_side() {
    let leave = |python: bool, line: &str| {
        let has = Capabilities {
            python,
            ..with_gpus(1)
        };
        let all = tasks(&arguments(line), &has);
        let leaving = |seconds: u64| {
            let left = all.iter().filter(|task| task.leaves.as_secs() == seconds);
            left.count()
        };
        (leaving(280), leaving(140))
    };
    // All checks; and what is measured before PyTorch's side.
    assert_eq!(leave(true, ""), (3 + 3 + 7 + 1, 5 + 1));
    assert_eq!(leave(false, ""), (3 + 3 + 7 + 1, 0));
    assert_eq!(leave(true, "--sections numbers"), (0, 0));
}

#[test]
fn pytorchs_side_has_our_rows() {
    let script = std::fs::read_to_string(crate::peers::script("pytorch_gpu.py")).unwrap();
    let (with_goals, others) = benchmarks();
    for (_, _, name) in with_goals.iter().chain(&others) {
        assert!(script.contains(&format!("\"{name}\": ")), "{name}");
    }
}

#[test]
fn one_process_does_both_parts_of_a_model_where_there_are_fewer_workers_than_tasks() {
    let all = tasks(&arguments("--device webgpu:cpu"), &with_gpus(0));
    let sections = |job: &Vec<&Task>| job.iter().map(|task| task.section).collect::<Vec<_>>();
    let few = jobs(&all, 2);
    let models: Vec<_> = few.iter().filter(|job| job.len() > 1).collect();
    assert_eq!(models.len(), CheckedModel::ALL.len());
    for (job, model) in models.into_iter().zip(CheckedModel::ALL) {
        assert_eq!(sections(job), [Section::Numbers, Section::Training]);
        assert!(job.iter().all(|task| task.work.compared() == Some(model)));
    }
    assert_eq!(few.iter().map(Vec::len).sum::<usize>(), all.len());
    assert_eq!(jobs(&all, 10).len(), all.len(), "as many workers as tasks");
    let chosen = tasks(&arguments("--sections numbers"), &with_gpus(1));
    assert_eq!(jobs(&chosen, 1).len(), 3, "one part of each model");
}

#[test]
fn all_trainings_on_up_to_four_ranks_have_the_same_number_of_samples_at_a_time() {
    let value = |flags: &[String], flag: &str| -> Option<usize> {
        let position = flags.iter().position(|word| word == flag)?;
        flags[position + 1].parse().ok()
    };
    let device = "webgpu:cpu";
    let all = tasks(&arguments("--device webgpu:cpu"), &with_gpus(0));
    let trained = all.into_iter().filter_map(|task| match task.work {
        Work::Ranks { flags, .. } if task.skipped.is_none() => Some(flags),
        _ => None,
    });
    let mut trained: Vec<_> = trained.collect();
    trained.push(flags_of_one_rank(device));
    assert_eq!(trained.len(), 4 + 1);
    for flags in trained {
        let micro_batches = value(&flags, "--micro-batches");
        let parts = micro_batches.or_else(|| value(&flags, "--accumulate"));
        let replicas = match micro_batches {
            Some(_) => 1,
            None => value(&flags, "--ranks").unwrap_or(1),
        };
        let parts = parts.expect("each divides its batch");
        assert_eq!(BATCH / parts / replicas, MICRO_BATCH, "{flags:?}");
        let tested = value(&flags, "--test-samples");
        assert_eq!(tested, Some(MICRO_BATCH * replicas), "{flags:?}");
    }
}

#[test]
fn sections_can_be_chosen() {
    let all = tasks(&arguments("--sections numbers,peers"), &with_gpus(1));
    let sections: Vec<_> = all.iter().map(|task| task.section).collect();
    assert_eq!(
        sections,
        [vec![Section::Numbers; 3], vec![Section::Peers]].concat()
    );
}
