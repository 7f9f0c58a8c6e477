//! Steps, batch scripts and shells of Slurm.

use everburn_tests::AssertContains;

use super::{STEP, TOKEN, no_rank, rank_of, refused};

const BATCH_SCRIPT: &str = "ENVIRONMENT=BATCH SLURM_JOB_ID=1234567 SLURM_PROCID=0 SLURM_LOCALID=0 \
    SLURM_NODEID=0 SLURM_NTASKS=4 SLURM_JOB_NODELIST=node[05,07]";

#[test]
fn srun_says_all() {
    let rank = rank_of(&[STEP]);
    assert_eq!((rank.rank, rank.world_size), (3, 4));
    assert_eq!(
        (rank.local_rank, rank.local_world_size, rank.node_rank),
        (1, 2, 1)
    );
    assert_eq!(
        rank.master_addr, "node07",
        "the step's first host, not the job's"
    );
    assert!((15_000..29_000).contains(&rank.master_port));
    assert_eq!(rank.job_token, Some("token-of-the-tests".parse().unwrap()));
    assert!(!rank.launcher_hosts_store && rank.launcher_pid.is_none());
    let line = rank.announcement();
    line.assert_contains([
        "rank 3 of 4 (SLURM_PROCID, SLURM_STEP_NUM_TASKS)",
        "started by srun (Slurm)",
        &format!("node07:{}", rank.master_port),
        "the first host of SLURM_STEP_NODELIST",
        "SLURM_JOB_ID and SLURM_STEP_ID",
    ]);
    assert!(
        !line.contains('\n') && !line.contains("of-the-tests"),
        "{line}"
    );
}

#[test]
fn a_first_host_on_loopback_is_warned_of_where_other_nodes_have_ranks() {
    let first = "SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0";
    let two = "SLURM_STEP_NODELIST=localhost,n2";
    let warning = rank_of(&[STEP, first, two]).loopback_warning();
    warning.unwrap().assert_contains([
        "localhost is ",
        "other machines cannot reach: set MASTER_ADDR",
        "`export MASTER_ADDR=HOST` before `srun`",
    ]);
    assert_eq!(rank_of(&[STEP, two]).loopback_warning(), None);
    let address = "MASTER_ADDR=127.0.0.1";
    let on_purpose = rank_of(&[STEP, first, two, address]);
    assert_eq!(on_purpose.loopback_warning(), None);
    let one = "SLURM_STEP_NODELIST=localhost SLURM_STEP_TASKS_PER_NODE=4 MASTER_ADDR=localhost";
    assert_eq!(rank_of(&[STEP, first, one]).loopback_warning(), None);
}

#[test]
fn all_ranks_of_a_step_derive_one_address_and_other_steps_another() {
    let port = |step: &str, job: &str| {
        let changed = format!("SLURM_STEP_ID={step} SLURM_JOB_ID={job}");
        rank_of(&[STEP, &changed]).master_port
    };
    let first = "SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0";
    let other = rank_of(&[STEP, first]);
    assert_eq!(
        (other.master_addr, other.master_port),
        ("node07".into(), port("0", "1234567"))
    );
    let ports = [
        ("0", "1234567"),
        ("1", "1234567"),
        ("0", "1234568"),
        ("1", "1234568"),
    ];
    let mut ports = ports.map(|(step, job)| port(step, job)).to_vec();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 4);
}

#[test]
fn a_step_on_one_node_meets_on_loopback() {
    let one = "SLURM_STEP_NODELIST=node07 SLURM_STEP_TASKS_PER_NODE=4 SLURM_NODEID=0";
    let rank = rank_of(&[STEP, one]);
    assert_eq!(
        (rank.master_addr.as_str(), rank.local_world_size),
        ("127.0.0.1", 4)
    );
}

#[test]
fn a_rank_of_srun_has_its_place_unless_tasks_are_numbered_across_nodes() {
    let rank = rank_of(&[STEP]);
    assert_eq!(rank.place_by_slurm(None), Some((1, 2)));
    assert_eq!(rank.place_by_slurm(Some("block:cyclic")), Some((1, 2)));
    assert_eq!(rank.place_by_slurm(Some("cyclic")), None);
}

#[test]
fn what_the_user_sets_wins_over_what_is_derived() {
    let given = "MASTER_ADDR=127.0.0.1 MASTER_PORT=12345 WORLD_SIZE=4";
    let rank = rank_of(&[STEP, given]);
    assert_eq!(
        (rank.master_addr.as_str(), rank.master_port),
        ("127.0.0.1", 12_345)
    );
    assert!(
        rank.announcement().contains("(MASTER_ADDR; MASTER_PORT)"),
        "{}",
        rank.announcement()
    );
    refused(&[STEP, TOKEN, "MASTER_PORT=0"], "MASTER_PORT is `0`");
    refused(&[STEP, TOKEN, "MASTER_PORT=x"], "MASTER_PORT is `x`");
}

#[test]
fn a_batch_script_and_a_shell_of_salloc_are_no_ranks() {
    no_rank(&[BATCH_SCRIPT]);
    no_rank(&["SLURM_JOB_ID=1 SLURM_NTASKS=4 SLURM_JOB_NODELIST=n[1-2]"]);
    // Where salloc's shell is itself a step, it is one of one task.
    let shell = "SLURM_JOB_ID=1 SLURM_STEP_ID=4294967290 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=1";
    no_rank(&[shell]);
    no_rank(&["SLURM_PROCID=0 SLURM_NTASKS=1"]);
    // Asked for by a batch script that has forgotten srun.
    refused(
        &[BATCH_SCRIPT, "WORLD_SIZE=4 MASTER_ADDR=node05"],
        "WORLD_SIZE=4, MASTER_ADDR=node05 is set, RANK is not | srun",
    );
}

#[test]
fn a_slurm_task_that_may_be_either_is_refused_unless_named() {
    let lost = "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_JOB_ID=9 SLURM_JOB_NODELIST=n1";
    refused(
        &[lost],
        "SLURM_PROCID=1, SLURM_NTASKS=2 are set | \
         SLURM_STEP_ID, SLURM_STEP_NUM_TASKS, SLURM_STEP_NODELIST are not set | \
         srun sets these for its tasks | EVERBURN_LAUNCHER=slurm",
    );
    no_rank(&[lost, "EVERBURN_LAUNCHER=none"]);
    assert_eq!(rank_of(&[lost, "EVERBURN_LAUNCHER=slurm"]).rank, 1);
}

#[test]
fn slurms_half_or_broken_sets_are_refused() {
    refused(&[STEP], "node07: | EVERBURN_JOB_TOKEN | before `srun`");
    refused(
        &[STEP, "SLURM_STEP_NODELIST=node[1-"],
        "SLURM_STEP_NODELIST is `node[1-`",
    );
    refused(
        &[STEP, "SLURM_STEP_TASKS_PER_NODE=2("],
        "SLURM_STEP_TASKS_PER_NODE is `2(`",
    );
    refused(
        &[STEP, "SLURM_PROCID=4"],
        "SLURM_PROCID is `4` | below SLURM_STEP_NUM_TASKS",
    );
    refused(&[STEP, "SLURM_LOCALID=2"], "SLURM_LOCALID is `2`");
    refused(&[STEP, "SLURM_PROCID=x"], "SLURM_PROCID is `x`");
    refused(
        &[STEP, "WORLD_SIZE=8"],
        "contradicts | WORLD_SIZE=8, SLURM_STEP_NUM_TASKS=4",
    );
    refused(
        &[STEP, "SLURM_STEP_TASKS_PER_NODE=2,3"],
        "SLURM_STEP_TASKS_PER_NODE=2,3, SLURM_STEP_NUM_TASKS=4 | 5 tasks",
    );
    refused(
        &[STEP, TOKEN, "SLURM_DISTRIBUTION=arbitrary"],
        "SLURM_DISTRIBUTION=arbitrary | MASTER_ADDR is not set",
    );
    let bare = "SLURM_PROCID=0 SLURM_STEP_ID=0";
    refused(
        &[bare],
        "SLURM_PROCID=0 is set | SLURM_STEP_NUM_TASKS, SLURM_NTASKS are not set",
    );
    let bare = "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2";
    refused(&[bare], "MASTER_ADDR is not set | SLURM_STEP_NODELIST");
    let no_job = "SLURM_STEP_NODELIST=n1";
    refused(&[bare, no_job], "MASTER_PORT is not set | SLURM_JOB_ID");
}

#[test]
fn a_rank_number_that_was_left_over_in_the_shell_is_refused() {
    let place = "MASTER_ADDR=node07 MASTER_PORT=1234 WORLD_SIZE=4";
    refused(
        &[STEP, TOKEN, place, "RANK=0"],
        "RANK=0, SLURM_PROCID=3 | unset RANK",
    );
    // Set by a script for each task, and by one that starts several ranks in a task.
    assert_eq!(rank_of(&[STEP, place, "RANK=3"]).rank, 3);
    let more = "RANK=7 WORLD_SIZE=8";
    assert_eq!(rank_of(&[STEP, place, more]).rank, 7);
}
