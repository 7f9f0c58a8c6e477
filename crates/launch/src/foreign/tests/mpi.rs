//! Ranks of MPI launchers.

use everburn_tests::AssertContains;

use super::{HYDRA, OPEN_MPI, rank_of, refused};
use crate::origin::StartedBy;

#[test]
fn ranks_of_one_mpirun_meet_on_loopback() {
    let rank = rank_of(&[OPEN_MPI]);
    assert_eq!((rank.rank, rank.world_size), (1, 2));
    assert_eq!(
        (rank.local_rank, rank.local_world_size, rank.node_rank),
        (1, 2, 0)
    );
    assert_eq!(rank.master_addr, "127.0.0.1");
    let line = rank.announcement();
    line.assert_contains(["mpirun (Open MPI)", "PMIX_NAMESPACE"]);
    let other = rank_of(&[OPEN_MPI, "PMIX_NAMESPACE=prterun-host-4712@1"]);
    assert_ne!(rank.master_port, other.master_port);
    refused(
        &[OPEN_MPI, "PMIX_NAMESPACE="],
        "OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=2 | MASTER_PORT is not set | \
         -x MASTER_PORT",
    );
}

#[test]
fn mpirun_on_several_machines_must_be_told_the_store() {
    let several = "OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0";
    refused(
        &[OPEN_MPI, several],
        "MASTER_ADDR is not set | mpirun -x MASTER_ADDR=HOST",
    );
    let master = "MASTER_ADDR=node3 MASTER_PORT=29500";
    refused(
        &[OPEN_MPI, several, master],
        "node3:29500 | mpirun -x EVERBURN_JOB_TOKEN ...",
    );
    let rank = rank_of(&[OPEN_MPI, several, master]);
    assert_eq!((rank.master_addr.as_str(), rank.local_rank), ("node3", 0));
}

#[test]
fn hydra_must_be_told_a_port() {
    refused(
        &[HYDRA],
        "PMI_RANK=1, PMI_SIZE=2 are set | mpiexec -genv MASTER_PORT 29500",
    );
    let rank = rank_of(&[HYDRA, "MASTER_PORT=29500"]);
    assert_eq!(
        (rank.origin.started_by, rank.local_rank),
        (StartedBy::Pmi, 1)
    );
    assert_eq!(
        (rank.master_addr.as_str(), rank.master_port),
        ("127.0.0.1", 29_500)
    );
    let port = "MASTER_PORT=1";
    let mvapich = "MV2_COMM_WORLD_RANK=0 MV2_COMM_WORLD_SIZE=2 MV2_COMM_WORLD_LOCAL_SIZE=2";
    assert_eq!(
        rank_of(&[mvapich, port]).origin.started_by,
        StartedBy::Mvapich
    );
    let pmix = "PMIX_RANK=1 WORLD_SIZE=2 MASTER_ADDR=::1";
    assert_eq!(rank_of(&[pmix, port]).rank, 1);
    assert_eq!(rank_of(&[pmix, port]).init_method(), "tcp://[::1]:1");
}

#[test]
fn half_of_what_mpi_sets_is_refused() {
    refused(
        &["OMPI_COMM_WORLD_RANK=0"],
        "OMPI_COMM_WORLD_SIZE is not set",
    );
    refused(
        &["OMPI_COMM_WORLD_SIZE=2"],
        "OMPI_COMM_WORLD_RANK is not set",
    );
    refused(&["PMI_RANK=0"], "PMI_RANK=0 is set | PMI_SIZE is not set");
    refused(
        &["PMIX_RANK=0"],
        "PMIX_RANK=0 is set | WORLD_SIZE is not set",
    );
    refused(
        &[OPEN_MPI, "OMPI_COMM_WORLD_RANK=2"],
        "below OMPI_COMM_WORLD_SIZE",
    );
    refused(
        &[OPEN_MPI, "LOCAL_RANK=0"],
        "LOCAL_RANK=0, OMPI_COMM_WORLD_LOCAL_RANK=1",
    );
    refused(
        &[OPEN_MPI, HYDRA, "PMI_SIZE=4"],
        "OMPI_COMM_WORLD_SIZE=2 | PMI_SIZE=4 | two launchers | EVERBURN_LAUNCHER",
    );
}
