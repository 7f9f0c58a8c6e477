//! What a check does, in order: what tells most comes first, since time may be up at any moment.

use std::time::Duration;

use super::order::{Benchmarked, CheckedModel};
use super::record::{Benchmark, Check, Goal, Side, SideThroughput, State};
use super::{GpuCheckArguments, Section};

/// What part of a step NCCL may take where there is nobody to speak to.
const NCCL_LIMIT: f64 = 0.03;

/// The same kernels on the same numbers: sums by atomic additions may come in another order.
const REPLAY_LIMIT: f64 = 1e-5;

/// How many steps two trainings are compared over.
pub(super) const STEPS: usize = 50;

/// The same on a device made of the CPU.
const SOFTWARE_STEPS: usize = 20;

/// The same where it is to be quick.
const QUICK_STEPS: usize = 4;

/// Losses that are relatively further apart are wrong.
const LOSS_LIMIT: f64 = 1e-3;

/// The same of several ranks and of one, which have the same kernels: what is gathered, exchanged and added up decides, and
/// gradients that are too large by a hundredth are further apart.
const RANKS_LIMIT: f64 = 2e-5;

/// So are outputs and gradients, as a part of a tensor's largest number: single precision sums thousands of
/// products in another order, and tensor cores may round their factors to ten bits.
const NUMBER_LIMIT: f64 = 5e-3;

/// How many samples all ranks together have per step.
pub(super) const BATCH: usize = 64;

/// How many samples a rank has at a time in `ranks`, in training and in the test, on 1, 2 or 4 ranks: each shape has its own
/// kernels, which all of these trainings share.
const MICRO_BATCH: usize = 16;

/// Something to do, and the rows that it fills.
#[derive(Debug, Clone)]
pub(super) struct Task {
    pub(super) section: Section,
    pub(super) work: Work,
    /// How long it may take.
    pub(super) limit: Duration,
    /// What it leaves of the whole check's time for what comes later and is worth more.
    pub(super) leaves: Duration,
    /// Why it is not done here.
    pub(super) skipped: Option<String>,
}

impl Task {
    /// The state of its rows before it is run, with the reason.
    fn state_before(&self) -> (State, String) {
        match &self.skipped {
            Some(why) => (State::Skipped, why.clone()),
            None => (State::NotReached, String::new()),
        }
    }

    fn throughput_before(&self) -> SideThroughput {
        let (state, note) = self.state_before();
        SideThroughput::without(state, note)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Work {
    /// A forward and a backward pass: two rows.
    Numbers(CheckedModel),
    /// Some steps on the device and on the processor.
    Losses(CheckedModel),
    /// `everburn train` with these flags, against the same on one rank.
    Ranks { name: String, flags: Vec<String> },
    /// What NCCL takes of a step on one rank.
    NcclCost,
    /// A pass that the GPU records and replays.
    Replay,
    /// Our benchmark.
    Throughput {
        name: String,
        what: Benchmarked,
        batch: usize,
    },
    /// All benchmarks by PyTorch.
    Peers,
}

impl Work {
    /// The model that is compared with the CPU.
    fn compared(&self) -> Option<CheckedModel> {
        match self {
            Self::Numbers(model) | Self::Losses(model) => Some(*model),
            _ => None,
        }
    }

    /// Whether it measures time, and nothing else may use the device meanwhile.
    pub(super) fn is_timed(&self) -> bool {
        matches!(self, Self::NcclCost | Self::Throughput { .. } | Self::Peers)
    }

    /// The names of its rows among the checks.
    pub(super) fn checks(&self) -> Vec<(String, f64)> {
        match self {
            Self::Numbers(model) => ["forward", "backward"]
                .map(|pass| (format!("{pass} pass of {}", model.name()), NUMBER_LIMIT))
                .to_vec(),
            Self::Losses(model) => vec![(format!("steps of {}", model.name()), LOSS_LIMIT)],
            Self::Ranks { name, .. } => vec![(name.clone(), RANKS_LIMIT)],
            Self::NcclCost => vec![("NCCL's part of a step on 1 rank".to_string(), NCCL_LIMIT)],
            Self::Replay => vec![(
                "a recorded pass of mnist, replayed".to_string(),
                REPLAY_LIMIT,
            )],
            Self::Throughput { .. } | Self::Peers => Vec::new(),
        }
    }
}

/// The capabilities of a machine.
#[derive(Debug, Clone)]
pub(super) struct Capabilities {
    pub(super) gpus: usize,
    /// Why there is no NCCL, if there is none.
    pub(super) without_nccl: Option<String>,
    /// A Python whose PyTorch may be measured.
    pub(super) python: bool,
}

/// The tasks for a machine with these capabilities.
pub(super) fn tasks(arguments: &GpuCheckArguments, has: &Capabilities) -> Vec<Task> {
    let wanted =
        |section: &Section| arguments.sections.is_empty() || arguments.sections.contains(section);
    let peers_wanted = wanted(&Section::Peers) && has.python && arguments.task_limit.is_none();
    let mut all = Vec::new();
    let mut add = |section: Section, seconds: u64, work: Work, skipped: Option<String>| {
        all.push((section, seconds, work, skipped));
    };
    for model in CheckedModel::ALL {
        add(Section::Numbers, 150, Work::Numbers(model), None);
    }
    for model in CheckedModel::ALL {
        add(Section::Training, 150, Work::Losses(model), None);
    }
    for (name, flags, skipped) in ranks(arguments, has) {
        add(Section::Ranks, 200, Work::Ranks { name, flags }, skipped);
    }
    let no_speed = arguments.is_software();
    let no_speed = no_speed.then(|| format!("{} computes on the CPU", arguments.device));
    let no_graphs = (!arguments.device.starts_with("cuda"))
        .then(|| format!("GPUs record what they do, and this is {}", arguments.device));
    let (with_goals, others) = benchmarks();
    for (what, batch, name) in with_goals {
        let work = Work::Throughput { name, what, batch };
        add(Section::Throughput, 200, work, no_speed.clone());
    }
    let no_nccl = no_nccl(arguments, has);
    add(Section::Throughput, 90, Work::NcclCost, no_nccl);
    add(Section::Peers, 200, Work::Peers, no_speed.clone());
    for (what, batch, name) in others {
        let work = Work::Throughput { name, what, batch };
        add(Section::Throughput, 200, work, no_speed.clone());
    }
    add(Section::Throughput, 150, Work::Replay, no_graphs);
    // A device made of the CPU computes slowly, not wrongly; the budget of the whole check holds.
    let times = if arguments.is_software() { 2 } else { 1 };
    let all = all.into_iter().filter(|(section, ..)| wanted(section));
    let tasks = all.map(|(section, seconds, work, skipped)| Task {
        section,
        work,
        limit: Duration::from_secs(arguments.task_limit.unwrap_or(times * seconds)),
        leaves: Duration::ZERO,
        skipped,
    });
    let mut tasks: Vec<_> = tasks.collect();
    // What is right or wrong takes as long as its kernels are compiled, and what is measured afterwards needs its time.
    if tasks
        .iter()
        .any(|task| task.work.is_timed() && task.skipped.is_none())
    {
        for task in tasks.iter_mut().filter(|task| !task.work.is_timed()) {
            task.leaves = Duration::from_secs(arguments.budget / 2);
        }
    }
    let peers = tasks.iter().position(|task| task.work == Work::Peers);
    if let (Some(peers), true) = (peers, peers_wanted) {
        for task in tasks[..peers]
            .iter_mut()
            .filter(|task| task.work.is_timed())
        {
            task.leaves = Duration::from_secs(arguments.budget / 4);
        }
    }
    tasks
}

/// `tasks` in jobs, in order: one each; but both of a model, where there are fewer `workers` than tasks that may run in
/// parallel. One process then does both, and finds for the second what it has compiled for the first.
pub(super) fn jobs(tasks: &[Task], workers: usize) -> Vec<Vec<&Task>> {
    let parallel = tasks
        .iter()
        .filter(|task| !task.work.is_timed() && task.skipped.is_none());
    let joins = workers < parallel.count();
    let mut jobs: Vec<Vec<&Task>> = Vec::new();
    for task in tasks {
        let model = task.work.compared().filter(|_| joins);
        let of_model = |job: &&mut Vec<&Task>| model.is_some() && job[0].work.compared() == model;
        let same = jobs.iter_mut().find(of_model);
        match same {
            Some(job) => job.push(task),
            None => jobs.push(vec![task]),
        }
    }
    jobs
}

/// The flags of the training with which those on several ranks are compared.
pub(super) fn flags_of_one_rank(device: &str) -> Vec<String> {
    let line = format!("--ranks 1 --devices {device} {}", parts_of_batch(1));
    line.split_whitespace().map(str::to_string).collect()
}

/// The flags with which each of `ranks` has [`MICRO_BATCH`] samples at a time.
fn parts_of_batch(ranks: usize) -> String {
    let samples = ranks * MICRO_BATCH;
    let parts = BATCH.div_ceil(samples);
    format!("--accumulate {parts} --test-samples {samples}")
}

/// Trainings on several ranks, each with its name, its flags, and why it cannot be had here.
fn ranks(
    arguments: &GpuCheckArguments,
    has: &Capabilities,
) -> Vec<(String, Vec<String>, Option<String>)> {
    let device = &arguments.device;
    let on = |count: usize| vec![device.as_str(); count].join(",");
    let no_nccl = no_nccl(arguments, has);
    let one_gpu = (has.gpus < 2).then(|| "there is one GPU".to_string());
    let several = has.gpus.max(2);
    let mut all = Vec::new();
    let mut add = |name: &str, line: &str, skipped: Option<String>| {
        let flags = line.split_whitespace().map(str::to_string);
        all.push((name.to_string(), flags.collect(), skipped));
    };
    let one_rank = flags_of_one_rank(device).join(" ");
    let alone = format!("{one_rank} --backend nccl");
    add("NCCL, 1 rank", &alone, no_nccl.clone());
    let sharded = format!("{alone} --shard gradients");
    add("NCCL, 1 rank, sharded gradients", &sharded, no_nccl.clone());
    add(
        &format!("NCCL, {several} ranks on {several} GPUs"),
        &format!(
            "--gpus {several} --backend nccl {}",
            parts_of_batch(several)
        ),
        no_nccl.or(one_gpu),
    );
    for count in [2, 4] {
        let name = format!("host backend, {count} ranks on one device");
        let line = format!("--ranks {count} --devices {} --backend host", on(count));
        add(&name, &format!("{line} {}", parts_of_batch(count)), None);
    }
    let split = format!(
        "--strategy model-parallel --devices {} {}",
        on(2),
        parts_of_batch(1)
    );
    add("model-parallel, 2 parts on one device", &split, None);
    // Stages that are chosen by measured times need kernels of all of the model on the first rank.
    let pipeline = format!(
        "--ranks 2 --pipeline 2 --stages fc1 --devices {} --micro-batches {} --test-samples {MICRO_BATCH}",
        on(2),
        BATCH / MICRO_BATCH
    );
    add("pipeline, 2 ranks on one device", &pipeline, None);
    all
}

/// Why NCCL cannot be tried.
fn no_nccl(arguments: &GpuCheckArguments, has: &Capabilities) -> Option<String> {
    let device = &arguments.device;
    let is_gpu = device.starts_with("cuda");
    let no_gpu = (!is_gpu).then(|| format!("NCCL is for GPUs, and this is {device}"));
    no_gpu.or_else(|| has.without_nccl.clone())
}

/// The row of half precision.
pub(super) const HALF: &str = "gpt2-124m, 8 x 1024, bf16";

/// What is measured, with how many samples per step and under which name: what there are goals for, or what explains
/// them; then the rest.
#[allow(clippy::type_complexity, reason = "two lists of the same")]
fn benchmarks() -> (
    Vec<(Benchmarked, usize, String)>,
    Vec<(Benchmarked, usize, String)>,
) {
    let mnist = [64, 512, 4096].map(|batch| {
        let name = format!("mnist, batch {batch}");
        (Benchmarked::Mnist, batch, name)
    });
    let gpt = "gpt2-124m, 8 x 1024, f32".to_string();
    let resnet = "resnet50, batch 64, 224 x 224".to_string();
    let mut with_goals = mnist.to_vec();
    with_goals.push((Benchmarked::Gpt2Bf16, 8, HALF.to_string()));
    with_goals.push((Benchmarked::Gpt2, 8, gpt));
    (with_goals, vec![(Benchmarked::Resnet50, 64, resnet)])
}

/// The rows of `tasks`: skipped, or not reached yet.
pub(super) fn rows(tasks: &[Task], python: Option<&str>) -> (Vec<Check>, Vec<Benchmark>) {
    let mut checks = Vec::new();
    let mut benchmarks = Vec::new();
    let peers = tasks.iter().find(|task| task.work == Work::Peers);
    let peer = match (python, peers) {
        (_, None) => SideThroughput::without(State::Skipped, "not asked for"),
        (None, Some(_)) => SideThroughput::without(State::Skipped, "no Python was named"),
        (Some(_), Some(task)) => task.throughput_before(),
    };
    for task in tasks {
        let (state, note) = task.state_before();
        for (name, limit) in task.work.checks() {
            checks.push(Check {
                section: task.section,
                name,
                state,
                value: None,
                limit,
                note: note.clone(),
                seconds: 0.0,
            });
        }
        let Work::Throughput { name, .. } = &task.work else {
            continue;
        };
        let of_text = name.starts_with("gpt2");
        benchmarks.push(Benchmark {
            name: name.clone(),
            unit: if of_text { "tokens" } else { "samples" }.to_string(),
            everburn: task.throughput_before(),
            eager: peer.clone(),
            compiled: peer.clone(),
            goal: goal(name),
        });
    }
    (checks, benchmarks)
}

/// What Everburn is to reach.
fn goal(name: &str) -> Option<Goal> {
    let (against, ratio) = match name {
        HALF => (Side::Compiled, 0.8),
        _ if name.starts_with("mnist") => (Side::Eager, 1.0),
        _ => return None,
    };
    Some(Goal { against, ratio })
}

/// How many steps trainings are compared over.
pub(super) fn steps(arguments: &GpuCheckArguments) -> usize {
    match (arguments.quick, arguments.is_software()) {
        (true, _) => QUICK_STEPS,
        (false, true) => SOFTWARE_STEPS,
        (false, false) => STEPS,
    }
}

#[cfg(test)]
mod tests;
