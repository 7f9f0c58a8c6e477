//! The environment variables between launcher and rank. The first eight are PyTorch's.

/// This rank's number over all machines.
pub const RANK: &str = "RANK";
/// How many ranks there are on all machines.
pub const WORLD_SIZE: &str = "WORLD_SIZE";
/// This rank's number on its machine.
pub const LOCAL_RANK: &str = "LOCAL_RANK";
/// How many ranks this machine has.
pub const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";
/// This machine's number.
pub const NODE_RANK: &str = "NODE_RANK";
/// The host of the store.
pub const MASTER_ADDR: &str = "MASTER_ADDR";
/// The port of the store.
pub const MASTER_PORT: &str = "MASTER_PORT";
/// `True` or `1`: the launcher hosts the store, so rank 0 must not.
pub const AGENT_STORE: &str = "TORCHELASTIC_USE_AGENT_STORE";
/// The address of the store in etcd, in place of MASTER_ADDR and MASTER_PORT; see [`EtcdAddress`](everburn_collectives::store::EtcdAddress).
pub const STORE: &str = "EVERBURN_STORE";
/// The secret of the job, 16 bytes or more. Ranks prove to each other and to the store that they have it.
pub const JOB_TOKEN: &str = "EVERBURN_JOB_TOKEN";
/// `1`: the store asks for no secret, so that everybody who can reach it can join the job.
pub const OPEN_STORE: &str = "EVERBURN_OPEN_STORE";
/// The launcher's process id; set exactly when our launcher started the rank.
pub const LAUNCHER_PID: &str = "EVERBURN_LAUNCHER_PID";
/// Where the rank reports its error.
pub const ERROR_FILE: &str = "EVERBURN_ERROR_FILE";
/// Where the rank reports that it has finished.
pub const FINISHED_FILE: &str = "EVERBURN_FINISHED_FILE";
/// How many threads the rank's thread pool has.
pub const THREADS: &str = "RAYON_NUM_THREADS";
/// Which launcher's variables count, where there are those of several: `open-mpi`, `mvapich`,
/// `pmi`, `slurm` or `kubernetes`; or `none` of these, where they are there by accident. RANK
/// counts in any case.
pub const LAUNCHER: &str = "EVERBURN_LAUNCHER";
/// Which process of its rank number this is, from 1; counted over restarts by an elastic launcher.
pub const INCARNATION: &str = "EVERBURN_INCARNATION";
/// The fewest and the most ranks of an elastic job, `MIN:MAX`; RANK is a slot then, and WORLD_SIZE the
/// number of slots.
pub const ELASTIC: &str = "EVERBURN_ELASTIC";
/// `1` where the launcher shows the rank's output on a terminal: a line of progress that ends in a carriage
/// return before its newline is replaced by the next line.
pub const PROGRESS: &str = "EVERBURN_PROGRESS";
/// Set by `torchrun` for each rank.
pub(crate) const TORCHRUN_ID: &str = "TORCHELASTIC_RUN_ID";
