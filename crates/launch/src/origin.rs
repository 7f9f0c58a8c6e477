//! Where a process has its rank from.

use std::fmt;

use crate::environment::variables;

/// What started a rank.
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; }
/// use everburn::launch::{RankEnvironment, StartedBy};
///
/// let told = [
///     ("RANK", "0"),
///     ("WORLD_SIZE", "2"),
///     ("MASTER_ADDR", "h"),
///     ("MASTER_PORT", "1"),
///     ("EVERBURN_JOB_TOKEN", "an example of a token"),
/// ];
/// let rank = RankEnvironment::from_lookup(|name| {
///     told.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string())
/// })?;
/// assert_eq!(rank.origin.started_by, StartedBy::Variables);
/// # Ok::<(), everburn_launch::RankEnvironmentError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartedBy {
    /// Our own launcher.
    Everburn,
    /// PyTorch's `torchrun`.
    Torchrun,
    /// A person, or an unknown launcher, has set RANK and WORLD_SIZE.
    Variables,
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// `mpirun_rsh` of MVAPICH2.
    Mvapich,
    /// `mpiexec` of MPICH and its kin (Hydra, Intel MPI), or another launcher that speaks PMI or PMIx.
    Pmi,
    /// Slurm's `srun`.
    Slurm,
    /// A Kubernetes job with indexed completions.
    Kubernetes,
}

impl StartedBy {
    /// The name of a launcher that is not ours, as `EVERBURN_LAUNCHER` may hold it.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "open-mpi" => Self::OpenMpi,
            "mvapich" => Self::Mvapich,
            "pmi" => Self::Pmi,
            "slurm" => Self::Slurm,
            "kubernetes" => Self::Kubernetes,
            _ => return None,
        })
    }

    /// Whether its variables are its own, so that rank, world size and store were worked out here.
    #[must_use]
    pub fn is_foreign(self) -> bool {
        !matches!(self, Self::Everburn | Self::Torchrun | Self::Variables)
    }

    /// How the processes that it starts are given the secret of their job, which is on no command line.
    pub(crate) fn sets_secret(self) -> String {
        let export = "`export EVERBURN_JOB_TOKEN=$(openssl rand -hex 32)`";
        match self {
            Self::OpenMpi => format!("{export} and `mpirun -x EVERBURN_JOB_TOKEN ...`"),
            Self::Mvapich => format!("{export} and `mpirun_rsh -export ...`"),
            Self::Pmi => format!("{export} and `mpiexec -genvlist EVERBURN_JOB_TOKEN ...`"),
            Self::Slurm => format!("{export} before `srun`"),
            Self::Kubernetes => {
                "a secret, under `env` of the container; `openssl rand -hex 32` makes one"
                    .to_owned()
            }
            Self::Everburn | Self::Torchrun | Self::Variables => {
                "`export EVERBURN_JOB_TOKEN=...`; `openssl rand -hex 32` makes one".to_owned()
            }
        }
    }

    /// How a variable is given to the processes that it starts.
    pub(crate) fn sets(self, name: &str) -> String {
        let value = match name {
            variables::MASTER_ADDR => "HOST",
            variables::MASTER_PORT => "29500",
            variables::WORLD_SIZE => "N",
            _ => "...",
        };
        match self {
            Self::OpenMpi => format!("`mpirun -x {name}={value} ...`"),
            Self::Mvapich => format!("`mpirun_rsh ... {name}={value} everburn ...`"),
            Self::Pmi => format!("`mpiexec -genv {name} {value} ...`"),
            Self::Slurm => format!("`export {name}={value}` before `srun`"),
            Self::Kubernetes => format!("{name} under `env` of the container"),
            Self::Everburn | Self::Torchrun | Self::Variables => format!("`export {name}={value}`"),
        }
    }
}

impl fmt::Display for StartedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Everburn => "everburn's launcher",
            Self::Torchrun => "torchrun",
            Self::Variables => "hand, or by a launcher that sets PyTorch's variables",
            Self::OpenMpi => "mpirun (Open MPI)",
            Self::Mvapich => "mpirun_rsh (MVAPICH2)",
            Self::Pmi => "mpiexec (PMI)",
            Self::Slurm => "srun (Slurm)",
            Self::Kubernetes => "Kubernetes (indexed job)",
        })
    }
}

/// What started a rank, and where each of its values comes from.
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; }
/// use everburn::launch::{Origin, StartedBy};
///
/// let origin = Origin {
///     started_by: StartedBy::Slurm,
///     variables: ["SLURM_PROCID", "SLURM_NTASKS"],
///     master: "the first host of SLURM_JOB_NODELIST".to_owned(),
/// };
/// assert!(origin.started_by.is_foreign());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// What started it.
    pub started_by: StartedBy,
    /// The variables of rank and world size.
    pub variables: [&'static str; 2],
    /// Where host and port of the store come from, in words.
    pub master: String,
}
