//! The peers that benchmarks measure against: which there are, how each is found, and what installs it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use everburn::launch::{ChildError, Children, forget_ranks, keep_freed_memory};

use crate::failure::Failure;

/// Names the Python that has PyTorch or JAX.
const PYTHON: &str = "EVERBURN_PYTHON";

/// Each says the version, or fails as `import` does.
const TORCH_PROBE: &str = include_str!("../peers/probe.py");
const JAX_PROBE: &str = include_str!("../peers/probe_jax.py");

/// Compiles a function: by a C++ compiler, which a machine may lack that has PyTorch.
const COMPILE_PROBE: &str = include_str!("../peers/probe_compile.py");

/// MPI's side of `bench collectives`.
const MPI_SOURCE: &str = "mpi_all_reduce.c";

/// How long Python may take to import its packages, from a cold disk too, and a compiler for its work.
const PROBE_DEADLINE: Duration = Duration::from_secs(180);

const COMPILER: &str = "apt install g++ python3-dev";
const MPI: &str = "apt install libopenmpi-dev openmpi-bin";

/// Lets Open MPI run as root, which it is in containers, and with more ranks than cores, as all others are measured: by
/// its names of release 4, then 5. Other MPIs read none of them.
const OPEN_MPI: [(&str, &str); 6] = [
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    ("PRTE_ALLOW_RUN_AS_ROOT", "1"),
    ("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
];

/// Whom benchmarks measure against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peer {
    /// PyTorch without a compiler; its ranks are DistributedDataParallel over gloo.
    Pytorch,
    /// The same, compiled by torch.compile with inductor.
    Compile,
    /// JAX on the CPU by jit; its ranks are devices of one process.
    Jax,
    /// PyTorch's collectives on the CPU.
    Gloo,
    /// The MPI whose `mpicc` and `mpirun` are on the PATH.
    Mpi,
}

impl Peer {
    /// Its name in `--against`, tables and rows.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pytorch => "pytorch",
            Self::Compile => "compile",
            Self::Jax => "jax",
            Self::Gloo => "gloo",
            Self::Mpi => "mpi",
        }
    }

    /// Finds it, before anything is measured.
    ///
    /// # Errors
    /// [`Failure::Usage`] with the command that installs it, if it is missing.
    pub(crate) fn find(self, children: &Children, folder: &Path) -> Result<FoundPeer, Failure> {
        let python = std::env::var_os(PYTHON)
            .filter(|python| !python.is_empty())
            .unwrap_or_else(|| "python3".into());
        let (program, version) = match self {
            Self::Mpi => self.find_mpi(children, folder)?,
            _ => self.find_in(python, children, folder)?,
        };
        let peer = self;
        Ok(FoundPeer {
            peer,
            program,
            version: version.trim().to_owned(),
        })
    }

    fn find_in(
        self,
        python: OsString,
        children: &Children,
        folder: &Path,
    ) -> Result<(PathBuf, String), Failure> {
        let name = python.to_string_lossy().into_owned();
        let probe = |script: &str, missing: &str, install: &str| {
            let mut command = Command::new(&python);
            command.args(["-c", script]);
            children
                .run(&name, &mut command, folder, PROBE_DEADLINE)
                .map_err(|error| self.refusal(missing, error, install))
        };
        let package = if self == Self::Jax { "jax" } else { "torch" };
        let missing = format!("`{name}` cannot import {package}");
        let install = format!(
            "`{name} -m pip install {package}` installs it; or name a Python that has it in {PYTHON}"
        );
        let version = match self {
            Self::Jax => probe(JAX_PROBE, &missing, &install)?,
            _ => probe(TORCH_PROBE, &missing, &install)?,
        };
        if self == Self::Compile {
            let missing = format!("torch.compile of `{name}` fails");
            let install = format!("`{COMPILER}` installs the compiler that it needs");
            probe(COMPILE_PROBE, &missing, &install)?;
        }
        Ok((python.into(), version))
    }

    /// Compiles MPI's side and runs it once, so that an `mpirun` that starts nothing is found now.
    fn find_mpi(self, children: &Children, folder: &Path) -> Result<(PathBuf, String), Failure> {
        let program = folder.join("mpi_all_reduce");
        let mut compile = Command::new("mpicc");
        compile.args(["-O3", "-o"]).arg(&program);
        compile.arg(script(MPI_SOURCE));
        let mut version = mpirun(&program, 1);
        version.arg("--version");
        let install = format!("`{MPI}` installs both");
        let run = |name: &str, command: &mut Command| {
            children
                .run(name, command, folder, PROBE_DEADLINE)
                .map_err(|error| self.refusal("it needs `mpicc` and `mpirun`", error, &install))
        };
        run("mpicc", &mut compile)?;
        let version = run("mpirun", &mut version)?;
        Ok((program, version))
    }

    /// Why there is nothing to measure against, and what to do about it.
    fn refusal(self, missing: &str, error: ChildError, install: &str) -> Failure {
        let why = match error {
            ChildError::Failed(why) => why,
            other => return other.into(),
        };
        let last = why.lines().next_back().unwrap_or(&why).trim();
        let name = self.name();
        Failure::Usage(format!("--against {name}: {missing} ({last}); {install}"))
    }
}

/// A peer that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundPeer {
    pub(crate) peer: Peer,
    /// The Python that has it; of MPI, the program that `mpirun` runs.
    pub(crate) program: PathBuf,
    /// As it says it itself.
    pub(crate) version: String,
}

impl FoundPeer {
    /// Its name and version.
    pub(crate) fn full_name(&self) -> String {
        let version = &self.version;
        match self.peer {
            Peer::Pytorch => format!("pytorch {version}"),
            Peer::Compile => format!("torch.compile of pytorch {version}"),
            Peer::Jax => format!("jax {version}"),
            Peer::Gloo => format!("gloo of pytorch {version}"),
            Peer::Mpi => version.clone(),
        }
    }

    /// A call of its script `name` by Python.
    pub(crate) fn call(&self, name: &str) -> Command {
        let mut command = Command::new(&self.program);
        self.add_script(&mut command, name);
        command
    }

    /// Has `command`, which is of its Python, run its script `name`.
    pub(crate) fn add_script(&self, command: &mut Command, name: &str) {
        command
            .arg(script(name))
            .env("PYTHONDONTWRITEBYTECODE", "1");
        if self.peer == Peer::Compile {
            command.arg("--compile");
        }
    }
}

#[cfg(test)]
impl FoundPeer {
    /// One that nothing runs.
    pub(crate) fn of_tests(peer: Peer, version: &str) -> Self {
        Self {
            peer,
            program: "python3".into(),
            version: version.into(),
        }
    }
}

/// A call of `program` on `ranks` ranks of this machine by the `mpirun` on the PATH.
pub(crate) fn mpirun(program: &Path, ranks: usize) -> Command {
    let mut command = Command::new("mpirun");
    forget_ranks(&mut command);
    keep_freed_memory(&mut command);
    command.envs(OPEN_MPI);
    command.arg("-np").arg(ranks.to_string()).arg(program);
    command
}

/// Parses a value of `--against` that is one of `peers`.
pub(crate) fn one_of<const N: usize>(peers: [Peer; N]) -> impl TypedValueParser<Value = Peer> {
    let values = peers
        .into_iter()
        .filter_map(|peer| peer.to_possible_value());
    PossibleValuesParser::new(values).try_map(|name| Peer::from_str(&name, false))
}

/// The script `name`, where this binary was built.
pub(crate) fn script(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
    folder.join(name)
}

#[cfg(test)]
mod tests {
    use everburn_tests::AssertContains;

    use super::*;

    #[test]
    fn names_are_those_of_the_command_line() {
        for peer in Peer::value_variants() {
            assert_eq!(Peer::from_str(peer.name(), false), Ok(*peer));
        }
    }

    #[test]
    fn a_missing_peer_is_refused_with_the_command_that_installs_it() {
        let children = Children::listen().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let refused = |peer: Peer| match peer.find_in("false".into(), &children, folder.path()) {
            Err(Failure::Usage(what)) => what,
            other => panic!("{other:?}"),
        };
        refused(Peer::Jax).assert_contains([
            "--against jax: `false` cannot import jax (",
            "`false -m pip install jax` installs it; or name a Python",
            "EVERBURN_PYTHON",
        ]);
        for peer in [Peer::Pytorch, Peer::Compile, Peer::Gloo] {
            refused(peer).assert_contains(["cannot import torch", "-m pip install torch"]);
        }
    }

    #[test]
    fn the_reason_is_the_last_line() {
        let why = "python3 has failed; its last words:\nTraceback\nModuleNotFoundError: No module named 'torch'";
        let failed = ChildError::new(why);
        assert_eq!(
            Peer::Gloo.refusal("it is missing", failed, "`this` installs it"),
            Failure::usage(
                "--against gloo: it is missing (ModuleNotFoundError: No module named 'torch'); \
                 `this` installs it"
            )
        );
        let interrupted = Peer::Gloo.refusal("", ChildError::Interrupted, "");
        assert_eq!(interrupted, Failure::Interrupted);
    }

    #[test]
    fn a_compiled_peer_is_the_same_script_with_a_flag() {
        let found = |peer| FoundPeer::of_tests(peer, "2.9");
        let has_flag = |peer| {
            let command = found(peer).call("pytorch_train.py");
            command.get_args().any(|word| word == "--compile")
        };
        assert!(has_flag(Peer::Compile) && !has_flag(Peer::Pytorch));
        for script_of_both in ["pytorch_train.py", "pytorch_layers.py"] {
            let text = std::fs::read_to_string(script(script_of_both)).unwrap();
            text.assert_contains(["\"--compile\"", "torch.compile("]);
        }
        let name = found(Peer::Compile).full_name();
        assert_eq!(name, "torch.compile of pytorch 2.9");
    }
}
