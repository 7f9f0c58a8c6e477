//! What survives damage, and what a crash leaves.

mod progress;

use super::training_state::TrainingState;
use super::*;
use crate::checkpoint::tensor_file::{self, place_of};
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::prelude::*;
use everburn_record::Live;
use everburn_tests::AssertContains;
use manifest::MANIFEST;

/// A folder that keeps `keep` checkpoints.
fn keeping(keep: usize) -> (tempfile::TempDir, CheckpointFolder) {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = CheckpointFolder::new(folder.path(), keep);
    (folder, checkpoints)
}

fn checkpoint(epoch: usize, best: usize) -> Checkpoint {
    Checkpoint {
        progress: Progress {
            epoch,
            best: Some(BestEpoch {
                epoch: best,
                validation_loss: 0.5,
                value: None,
            }),
            ..Progress::default()
        },
        files: [("model.safetensors".to_string(), tensors(epoch))].into(),
    }
}

fn tensors(epoch: usize) -> Vec<u8> {
    let tensor = |name: &str, from: f32| {
        let numbers = vec![from + epoch as f32; 20];
        (name.to_string(), TensorData::new(numbers, [4, 5]))
    };
    let tensors = [tensor("first.weight", 0.5), tensor("last.weight", 0.25)];
    tensor_file::write(&tensors, &BTreeMap::new()).unwrap()
}

#[test]
fn the_newest_and_the_best_are_kept() {
    let (folder, checkpoints) = keeping(2);
    for epoch in 1..=5 {
        checkpoints.save(&checkpoint(epoch, epoch.min(2))).unwrap();
    }
    assert_eq!(checkpoints.places().unwrap(), [2, 4, 5].map(Place::from));
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 3, "nothing partial is left behind");
}

#[test]
fn a_damaged_newest_is_refused_by_name_and_the_one_before_it_taken() {
    let (folder, checkpoints) = keeping(3);
    for epoch in 1..=3 {
        checkpoints.save(&checkpoint(epoch, 1)).unwrap();
    }
    let newest = folder.path().join("epoch-0003/model.safetensors");
    let mut bytes = std::fs::read(&newest).unwrap();
    let damaged = place_of(&bytes, "last.weight").unwrap();
    bytes[damaged.end - 1] ^= 1;
    std::fs::write(&newest, bytes).unwrap();
    std::fs::write(folder.path().join("epoch-0002/model.safetensors"), b"short").unwrap();

    // Who asks for one by its name is told which other there is; a resume takes it by itself.
    for epoch in [2, 3] {
        let error = checkpoints.load(epoch).unwrap_err().to_string();
        let end = ": `checkpoint = epoch-0001` takes it";
        assert!(error.ends_with(end), "{error}");
    }
    let loaded = checkpoints.load_newest().unwrap();
    assert_eq!(loaded.checkpoint, checkpoint(1, 1));
    let refused = loaded.refused.iter().map(ToString::to_string);
    let [third, second]: [String; 2] = refused.collect::<Vec<_>>().try_into().unwrap();
    let damaged = "model.safetensors is damaged: the tensor last.weight has the SHA-256";
    third.assert_contains(["epoch-0003", damaged]);
    second.assert_contains(["epoch-0002", "5 bytes"]);
}

#[test]
fn what_a_killed_process_left_is_cleaned_up() {
    let (folder, checkpoints) = keeping(2);
    checkpoints.save(&checkpoint(1, 1)).unwrap();
    std::fs::create_dir(folder.path().join(".partial-x")).unwrap();
    // Killed between the two renames of a replacement.
    let epoch = folder.path().join("epoch-0001");
    std::fs::rename(&epoch, folder.path().join(".replaced-epoch-0001")).unwrap();
    checkpoints.clean().unwrap();
    assert_eq!(checkpoints.load(1).unwrap(), checkpoint(1, 1));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_later_one_that_is_damaged_does_not_count_among_those_that_are_kept() {
    let (folder, checkpoints) = keeping(2);
    for epoch in [2, 3, 9] {
        checkpoints.save(&checkpoint(epoch, 2)).unwrap();
    }
    std::fs::write(folder.path().join("epoch-0009/model.safetensors"), b"short").unwrap();
    assert_eq!(
        checkpoints.load_newest().unwrap().checkpoint,
        checkpoint(3, 2)
    );
    for epoch in 4..=5 {
        checkpoints.save(&checkpoint(epoch, 2)).unwrap();
    }
    let places = checkpoints.places().unwrap();
    assert_eq!(places, [2, 4, 5, 9].map(Place::from));
    assert_eq!(
        checkpoints.load_newest().unwrap().checkpoint,
        checkpoint(5, 2)
    );
}

#[test]
fn while_the_best_was_never_written_the_best_before_it_is_kept() {
    let (_folder, checkpoints) = keeping(1);
    for (epoch, best) in [(1, 1), (2, 1), (4, 3), (5, 3), (6, 3)] {
        checkpoints.save(&checkpoint(epoch, best)).unwrap();
    }
    assert_eq!(checkpoints.places().unwrap(), [1, 6].map(Place::from));
    for (epoch, best) in [(7, 7), (8, 7)] {
        checkpoints.save(&checkpoint(epoch, best)).unwrap();
    }
    assert_eq!(checkpoints.places().unwrap(), [7, 8].map(Place::from));
}

#[test]
fn the_next_checkpoint_removes_what_a_killed_process_left_and_nothing_that_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let [left, written] = ["left", "written"].map(|name| {
        let path = folder.path().join(format!(".partial-{name}"));
        std::fs::create_dir(&path).unwrap();
        path
    });
    let writer = std::fs::File::open(&written).unwrap();
    rustix::fs::flock(&writer, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let checkpoints = CheckpointFolder::new(folder.path(), 2);
    checkpoints.save(&checkpoint(1, 1)).unwrap();
    assert_eq!([left.exists(), written.exists()], [false, true]);
    drop(writer);
    checkpoints.save(&checkpoint(2, 1)).unwrap();
    assert!(!written.exists());
}

#[test]
fn without_a_good_one_the_error_names_all() {
    let (folder, checkpoints) = keeping(2);
    let error = checkpoints.load_newest().unwrap_err().to_string();
    error.assert_contains(["start without `Trainer::resume`"]);
    checkpoints.save(&checkpoint(1, 1)).unwrap();
    std::fs::write(folder.path().join("epoch-0001/manifest.json"), "{").unwrap();
    let error = checkpoints.load_newest().unwrap_err().to_string();
    assert!(error.contains("manifest.json is damaged"), "{error}");
}

#[test]
fn without_one_the_error_says_where_another_machine_of_an_elastic_job_may_have_some() {
    let run = tempfile::tempdir().unwrap();
    let config = "[ranks]\nnodes = 2\nelastic = \"1:4\"\n";
    std::fs::write(run.path().join("config.toml"), config).unwrap();
    let live = Live {
        step: 12,
        ..Live::default()
    };
    live.write(&run.path().join(Live::FILE)).unwrap();
    let path = run.path().join("checkpoints");
    std::fs::create_dir(&path).unwrap();
    let checkpoints = CheckpointFolder::new(path, 2);
    let error = checkpoints.load_newest().unwrap_err().to_string();
    assert!(error.contains("-node-1/checkpoints"), "{error}");
    assert!(!error.contains("without `Trainer::resume`"), "{error}");
}

#[test]
fn another_format_is_refused_by_its_number_and_the_program_that_wrote_it() {
    for (version, advice) in [
        (9, "that program or a newer one"),
        (1, "without `Trainer::resume`"),
    ] {
        let (_folder, checkpoints) = keeping(2);
        let path = checkpoints.save(&checkpoint(1, 1)).unwrap().join(MANIFEST);
        let text = std::fs::read_to_string(&path).unwrap();
        let ours = format!("\"format_version\": {FORMAT_VERSION}");
        let theirs = format!("\"format_version\": {version}");
        let text = text.replace(&ours, &theirs).replace("0.1.0", "0.7.3");
        std::fs::write(&path, text).unwrap();
        let error = checkpoints.load(1).unwrap_err().to_string();
        let expected = format!("version {version}, which Everburn 0.7.3 wrote");
        error.assert_contains([advice, &expected]);
    }
}

#[test]
fn a_manifest_of_which_a_number_was_changed_is_refused() {
    let (_folder, checkpoints) = keeping(2);
    let path = checkpoints.save(&checkpoint(1, 1)).unwrap().join(MANIFEST);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"step\": 0", "\"step\": 7")).unwrap();
    let error = checkpoints.load(1).unwrap_err().to_string();
    error.assert_contains(["manifest.json is damaged: its SHA-256"]);
}

#[test]
fn a_place_that_is_reached_again_is_replaced() {
    let (folder, checkpoints) = keeping(2);
    let other = Checkpoint {
        files: checkpoint(7, 1).files,
        ..checkpoint(1, 1)
    };
    checkpoints.save(&other).unwrap();
    checkpoints.save(&checkpoint(1, 1)).unwrap();
    assert_eq!(checkpoints.load(1).unwrap(), checkpoint(1, 1));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_checkpoint_that_was_put_aside_counts_before_it_is_put_back() {
    let (folder, checkpoints) = keeping(2);
    let path = checkpoints.save(&checkpoint(1, 1)).unwrap();
    std::fs::rename(path, folder.path().join(".replaced-epoch-0001")).unwrap();
    assert_eq!(
        checkpoints.load_newest().unwrap().checkpoint,
        checkpoint(1, 1)
    );
}

#[test]
fn where_the_folder_cannot_be_made_the_error_says_what_is_there_and_what_is_free() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("checkpoints");
    std::fs::write(&path, "a file in the way").unwrap();
    let error = CheckpointFolder::new(&path, 2).save(&checkpoint(1, 1));
    let error = error.unwrap_err().to_string();
    error.assert_contains([
        "epoch-0001 failed",
        "a file is in the way",
        " are free",
        "no earlier one",
    ]);
}

#[test]
fn of_a_failed_checkpoint_earlier_ones_that_cannot_be_read_are_not_called_absent() {
    let (_folder, checkpoints) = keeping(2);
    let path = checkpoints.save(&checkpoint(1, 1)).unwrap();
    let unwritable = Checkpoint {
        files: [("no folder/of that name".to_string(), Vec::new())].into(),
        ..checkpoint(2, 1)
    };
    let error = || checkpoints.save(&unwritable).unwrap_err().to_string();
    error().assert_contains(["epoch-0001 is the newest good one"]);
    std::fs::remove_file(path.join(MANIFEST)).unwrap();
    let error = error();
    error.assert_contains(["earlier ones cannot be read: epoch-0001: "]);
    assert!(!error.contains("no earlier one"), "{error}");
}

/// A checkpoint after a step of `optimizer`.
fn after_a_step(mut optimizer: ModuleOptimizer, model: Linear) -> Checkpoint {
    let loss = model.forward(Tensor::<2>::ones([1, 2], &model.devices()[0]));
    let gradients = GradientsParams::from_grads(loss.sum().backward(), &model);
    let model = optimizer.step(0.1, model, gradients);
    let state = TrainingState::new(optimizer, ModuleLrScheduler::new(0.1));
    state.checkpoint(&model, Progress::default()).unwrap()
}

#[test]
fn the_state_of_another_optimizer_is_refused_though_it_has_no_tensors() {
    let model = LinearConfig::new(2, 1).init(&Device::flex().autodiff());
    let sgd = || SgdConfig::new().init();
    let adam = || AdamConfig::new().init();
    let restore = |checkpoint: &Checkpoint, optimizer: ModuleOptimizer| {
        let mut state = TrainingState::new(optimizer, ModuleLrScheduler::new(0.1));
        state.restore(model.clone(), checkpoint).map(drop)
    };
    let of_sgd = after_a_step(sgd(), model.clone());
    let of_adam = after_a_step(adam(), model.clone());
    restore(&of_sgd, sgd()).unwrap();
    restore(&of_adam, adam()).unwrap();
    for (checkpoint, other) in [(&of_sgd, adam()), (&of_adam, sgd())] {
        let error = restore(checkpoint, other).unwrap_err().to_string();
        error.assert_contains(["it holds the state of another optimizer"]);
    }
}
