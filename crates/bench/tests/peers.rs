//! Peers that this machine lacks.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use everburn_tests::AssertContains;

/// A Python that has PyTorch, JAX not, and no compiler.
const PYTHON: &str = "#!/bin/sh
case \"$2\" in
    *torch.compile*) echo 'no C++ compiler' >&2; exit 1;;
    *jax*) echo 'no jax' >&2; exit 1;;
    *) echo 2.9.0;;
esac
";

#[test]
fn a_peer_that_is_missing_is_refused_before_anything_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let (python, rows) = (folder.path().join("python"), folder.path().join("rows"));
    fs::write(&python, PYTHON).unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    for (bench, peers, install) in [
        ("train", "pytorch,jax", "-m pip install jax`"),
        ("train", "compile", "`apt install g++ python3-dev`"),
        (
            "kernels",
            "pytorch,compile",
            "`apt install g++ python3-dev`",
        ),
        (
            "collectives",
            "gloo,mpi",
            "`apt install libopenmpi-dev openmpi-bin`",
        ),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_everburn-bench"));
        command
            .args(["bench", bench, "--against", peers, "--json"])
            .arg(&rows)
            .env("EVERBURN_PYTHON", &python)
            // Neither mpicc nor mpirun.
            .env("PATH", folder.path());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        let missing = peers.rsplit(',').next().unwrap();
        said.assert_contains([format!("--against {missing}: ").as_str(), install]);
        assert!(output.stdout.is_empty() && !rows.exists(), "{said}");
    }
}
