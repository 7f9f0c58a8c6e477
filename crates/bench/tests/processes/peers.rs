//! Peers that this machine lacks.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use everburn_tests::Everburn;

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
    let python = folder.path().join("python");
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
        let bench = ["bench", bench, "--against", peers, "--json", "rows"];
        let ended = Everburn::bench(folder.path(), bench)
            .env("EVERBURN_PYTHON", &python)
            // Neither mpicc nor mpirun.
            .env("PATH", folder.path())
            .run();
        let missing = peers.rsplit(',').next().unwrap();
        ended.failed_with(2, &[&format!("--against {missing}: "), install]);
        assert!(ended.stdout.is_empty(), "{ended}");
        assert!(!folder.path().join("rows").exists(), "{ended}");
    }
}
