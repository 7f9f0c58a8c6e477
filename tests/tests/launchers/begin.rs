//! What ranks of `srun` begin with, and what rank 0 refuses for all of them.

use std::path::Path;

use everburn_tests::{Ended, Everburn, Run};

use super::{of_srun, three_steps, two_ranks};

#[test]
fn weights_and_folders_that_rank_0_refuses_end_all_ranks_of_srun_alike() {
    let refused = |flag: [&str; 2], told: &str| {
        refused_on_rank_0(|folder| three_steps(folder).args(flag), told);
    };
    refused(["--init-from", "none.safetensors"], "none.safetensors");
    // No folder can be below a file.
    refused(["--run-dir", "file/run"], "file/run");
}

#[test]
fn a_resume_takes_the_weights_of_its_run_unopened_and_refuses_others() {
    let begun = |folder: &Path| {
        let train = |more: &str| Everburn::train(folder, "mlp").words(more).succeed();
        if !folder.join("run").exists() {
            train("--steps 1 --run-dir a");
            train("--steps 1 --init-from a/model.safetensors --run-dir run");
            std::fs::remove_dir_all(folder.join("a")).unwrap();
        }
    };
    let resume = |folder: &Path, weights: &str| {
        let resume =
            format!("train --resume --run-dir run --steps 2 --timeout 60 --init-from {weights}");
        Everburn::line(folder, resume)
    };
    let refusal = "--init-from other.pt has no effect on a resume";
    let folder = tempfile::tempdir().unwrap();
    begun(folder.path());
    resume(folder.path(), "other.pt").refused(&[refusal]);
    resume(folder.path(), "a/model.safetensors").succeed();
    let resumed = |weights: &'static str| {
        move |folder: &Path| {
            begun(folder);
            resume(folder, weights)
        }
    };
    refused_on_rank_0(resumed("other.pt"), refusal);
    let (folder, ended) = two_ranks(resumed("a"), of_srun);
    let _ = ended.map(Ended::succeeded);
    let report = Run::new(folder.path().join("run")).report();
    assert_eq!(report["world_size"], 2, "{report:#}");
}

fn refused_on_rank_0(command: impl Fn(&Path) -> Everburn, told: &str) {
    let beside_a_file = |folder: &Path| {
        std::fs::write(folder.join("file"), "").unwrap();
        command(folder)
    };
    let (_, [first, second]) = two_ranks(beside_a_file, of_srun);
    first.failed_with(2, &[told]);
    second.failed_with(2, &["rank 0 cannot begin", told]);
}
