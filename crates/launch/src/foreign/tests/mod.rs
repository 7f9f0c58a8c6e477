mod mpi;
mod slurm;

use proptest::prelude::*;

use everburn_tests::{AssertContains, lookup};

use crate::environment::RankEnvironment;
use crate::origin::StartedBy;

/// What is found where these are set, as `NAME=value`.
fn detect(groups: &[&str]) -> Result<Option<RankEnvironment>, String> {
    detect_in(groups.iter().flat_map(|group| variables(group)).collect())
}

fn variables(group: &str) -> impl Iterator<Item = (&str, &str)> {
    let words = group.split_whitespace();
    words.map(|variable| variable.split_once('=').unwrap())
}

/// Of a name that is there twice the later counts.
fn detect_in(mut set: Vec<(&str, &str)>) -> Result<Option<RankEnvironment>, String> {
    set.reverse();
    RankEnvironment::detect(lookup(&set)).map_err(|error| error.to_string())
}

/// The rank that these make of a process with a secret.
fn rank_of(groups: &[&str]) -> RankEnvironment {
    let groups = [&[TOKEN], groups].concat();
    let found = detect(&groups).unwrap_or_else(|error| panic!("{groups:?}: {error}"));
    found.unwrap_or_else(|| panic!("no rank: {groups:?}"))
}

fn no_rank(groups: &[&str]) {
    assert_eq!(detect(groups), Ok(None), "{groups:?}");
}

/// With these messages, separated by ` | `.
fn refused(groups: &[&str], messages: &str) {
    let error = detect(groups).expect_err("it should be refused");
    error.assert_contains(messages.split(" | "));
}

/// Task 3 of 4 on the second of two nodes, as srun starts it in a batch job.
const STEP: &str = "\
    ENVIRONMENT=BATCH SLURM_JOB_ID=1234567 SLURM_STEP_ID=0 SLURM_PROCID=3 SLURM_LOCALID=1 \
    SLURM_NODEID=1 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=2(x2) \
    SLURM_STEP_NODELIST=node[07,09] SLURM_JOB_NODELIST=node[05,07,09] \
    SLURM_LAUNCH_NODE_IPADDR=10.0.0.1";

const TOKEN: &str = "EVERBURN_JOB_TOKEN=token-of-the-tests";

/// Rank 1 of 2, both on one machine.
const OPEN_MPI: &str = "\
    OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 \
    OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_NODE_RANK=1 PMIX_RANK=1 \
    PMIX_NAMESPACE=prterun-host-4711@1";

const HYDRA: &str = "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2";

const POD: &str = "JOB_COMPLETION_INDEX=2 WORLD_SIZE=4 MASTER_ADDR=train-0.train";

const TORCH: &str = "\
    RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 MASTER_ADDR=torch MASTER_PORT=29400 TORCHELASTIC_RUN_ID=x";

#[test]
fn nobody_has_started_an_ordinary_process() {
    no_rank(&[]);
    no_rank(&["WORLD_SIZE=1"]);
    no_rank(&["RANK= WORLD_SIZE="]);
    no_rank(&["MASTER_ADDR=h MASTER_PORT=1 LOCAL_RANK=0"]);
}

#[test]
fn a_world_of_one_rank_does_not_count_but_for_torchrun() {
    let alone = "RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500";
    no_rank(&[alone]);
    let set: Vec<_> = variables(alone).collect();
    let only_task = |set: &[(&str, &str)]| RankEnvironment::only_task(lookup(set));
    assert_eq!(only_task(&set), Some(StartedBy::Variables));
    assert_eq!(only_task(&set[1..]), None);
    let of_torchrun = rank_of(&[alone, "TORCHELASTIC_RUN_ID=x"]);
    assert_eq!(of_torchrun.world_size, 1);
    // It is left over: `mpirun` has started this one.
    refused(&[alone, OPEN_MPI], "WORLD_SIZE=1, OMPI_COMM_WORLD_SIZE=2");
}

#[test]
fn ranks_need_a_secret_at_any_address_or_an_open_store() {
    refused(
        &[OPEN_MPI],
        "OMPI_COMM_WORLD_RANK=1 and OMPI_COMM_WORLD_SIZE=2 make this process a rank | \
         127.0.0.1: | \
         (`export EVERBURN_JOB_TOKEN=$(openssl rand -hex 32)` and `mpirun -x EVERBURN_JOB_TOKEN ...`) | \
         EVERBURN_OPEN_STORE=1",
    );
    refused(
        &[OPEN_MPI, "EVERBURN_JOB_TOKEN=hunter2"],
        "EVERBURN_JOB_TOKEN | 7 bytes",
    );
    let open = detect(&[OPEN_MPI, "EVERBURN_OPEN_STORE=1"]);
    let open = open.unwrap().unwrap();
    assert!(open.open_store && open.job_token.is_none());
    assert!(!rank_of(&[OPEN_MPI]).open_store);
}

#[test]
fn one_rank_is_an_ordinary_process_whoever_started_it() {
    no_rank(&["OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1"]);
    no_rank(&["PMI_RANK=0 PMI_SIZE=1"]);
    no_rank(&["SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_ID=3"]);
    no_rank(&["JOB_COMPLETION_INDEX=0 WORLD_SIZE=1"]);
    // The innermost launcher counts: one process, started inside of a step.
    no_rank(&[STEP, "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1"]);
}

#[test]
fn torchs_variables_win_over_all_launchers() {
    let rank = rank_of(&[STEP, OPEN_MPI, POD, TORCH]);
    assert_eq!((rank.rank, rank.world_size, rank.local_rank), (5, 8, 1));
    assert_eq!(
        (rank.master_addr.as_str(), rank.master_port),
        ("torch", 29_400)
    );
    assert_eq!(rank.origin.started_by, StartedBy::Torchrun);
    let half = "RANK=3 WORLD_SIZE=4";
    refused(
        &[STEP, half],
        "RANK=3, WORLD_SIZE=4 are set | MASTER_ADDR, MASTER_PORT are not set",
    );
}

#[test]
fn mpirun_inside_of_a_slurm_job_counts_and_not_its_helpers_step() {
    let rank = rank_of(&[STEP, OPEN_MPI]);
    assert_eq!((rank.rank, rank.origin.started_by), (1, StartedBy::OpenMpi));
    let port = "MASTER_PORT=1";
    let rank = rank_of(&[STEP, HYDRA, port]);
    assert_eq!((rank.rank, rank.origin.started_by), (1, StartedBy::Pmi));
    // srun --mpi=pmi2 says the same twice.
    let rank = rank_of(&[STEP, "PMI_RANK=3 PMI_SIZE=4"]);
    assert_eq!((rank.rank, rank.origin.started_by), (3, StartedBy::Slurm));
    // srun --mpi=pmix sets a rank alone.
    let rank = rank_of(&[STEP, "PMIX_RANK=3"]);
    assert_eq!(rank.origin.started_by, StartedBy::Slurm);
    let named = "EVERBURN_LAUNCHER=slurm";
    assert_eq!(rank_of(&[STEP, OPEN_MPI, named]).rank, 3);
}

#[test]
fn pods_of_an_indexed_job_are_ranks_when_they_know_how_many() {
    let rank = rank_of(&[POD]);
    assert_eq!((rank.rank, rank.world_size, rank.node_rank), (2, 4, 2));
    assert_eq!((rank.local_rank, rank.local_world_size), (0, 1));
    assert_eq!(
        (rank.master_addr.as_str(), rank.master_port),
        ("train-0.train", 29_500)
    );
    assert_eq!(rank.init_method(), "tcp://train-0.train:29500");
    // Pod 0 does not ask for its own name, which is not known at once.
    let first = rank_of(&[POD, "JOB_COMPLETION_INDEX=0"]);
    assert_eq!(first.init_method(), "tcp://0.0.0.0:29500");
    let loopback = "JOB_COMPLETION_INDEX=0 MASTER_ADDR=127.0.0.1";
    assert_eq!(
        rank_of(&[POD, loopback]).init_method(),
        "tcp://127.0.0.1:29500"
    );
    let index = "JOB_COMPLETION_INDEX=2";
    no_rank(&[index]); // a pod for each model
    refused(
        &[index, "MASTER_ADDR=h"],
        "JOB_COMPLETION_INDEX=2 | WORLD_SIZE is not set",
    );
    refused(
        &[index, "WORLD_SIZE=4"],
        "MASTER_ADDR is not set | <job>-0.<service>",
    );
    refused(&[POD], "train-0.train:29500 | EVERBURN_JOB_TOKEN | `env`");
    refused(&[POD, "WORLD_SIZE=2"], "JOB_COMPLETION_INDEX is `2`");
}

#[test]
fn a_launcher_is_named_or_it_is_none() {
    no_rank(&[STEP, OPEN_MPI, POD, "EVERBURN_LAUNCHER=none"]);
    assert_eq!(
        rank_of(&[TORCH, "EVERBURN_LAUNCHER=none"]).rank,
        5,
        "RANK counts"
    );
    refused(
        &["EVERBURN_LAUNCHER=lsf"],
        "EVERBURN_LAUNCHER is `lsf` | one of none, open-mpi",
    );
    refused(
        &[STEP, "EVERBURN_LAUNCHER=pmi"],
        "EVERBURN_LAUNCHER=pmi is set",
    );
}

fn names() -> Vec<&'static str> {
    let names = "RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT EVERBURN_JOB_TOKEN EVERBURN_OPEN_STORE \
        EVERBURN_LAUNCHER OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_SIZE \
        PMIX_NAMESPACE PMI_RANK PMI_SIZE PMIX_RANK SLURM_PROCID SLURM_NTASKS SLURM_STEP_NUM_TASKS \
        SLURM_STEP_NODELIST SLURM_STEP_TASKS_PER_NODE SLURM_NODEID SLURM_JOB_ID \
        JOB_COMPLETION_INDEX";
    names.split(' ').collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whatever is set: no panic, and what comes out is a rank among several or an error that names
    /// a variable.
    #[test]
    fn any_environment_is_understood_or_refused(
        set in prop::collection::vec((prop::sample::select(names()), "[0-4]|127\\.0\\.0\\.1|n\\[1-2\\]|slurm|none|2\\(x2\\)|[^0-9]{0,3}|99999999999999999999"), 0..10),
    ) {
        let set: Vec<_> = set.iter().map(|(name, value)| (*name, value.as_str())).collect();
        match detect_in(set) {
            Ok(None) => {}
            Ok(Some(rank)) => {
                prop_assert!(rank.rank < rank.world_size);
                prop_assert!(!rank.master_addr.is_empty());
                let foreign = rank.origin.started_by.is_foreign();
                prop_assert!(!foreign || (rank.world_size > 1 && rank.master_port > 0));
                let alone = rank.world_size == 1;
                prop_assert!(alone || rank.open_store || rank.job_token.is_some());
            }
            Err(message) => {
                prop_assert!(names().iter().any(|name| message.contains(name)), "{}", message);
            }
        }
    }
}
