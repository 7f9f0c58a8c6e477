//! What survives damage, and what a crash leaves.

use super::*;

fn checkpoint(epoch: usize, best: usize) -> Checkpoint {
    Checkpoint {
        progress: Progress {
            epoch,
            best: Some(BestEpoch {
                epoch: best,
                validation_loss: 0.5,
            }),
            ..Progress::default()
        },
        files: [("model.bpk".to_string(), vec![epoch as u8; 100])].into(),
    }
}

#[test]
fn the_newest_and_the_best_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = CheckpointFolder::new(folder.path(), 2);
    for epoch in 1..=5 {
        checkpoints.save(&checkpoint(epoch, epoch.min(2))).unwrap();
    }
    assert_eq!(checkpoints.places().unwrap(), [2, 4, 5].map(Place::from));
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 3, "nothing partial is left behind");
}

#[test]
fn a_damaged_newest_is_refused_by_name_and_the_one_before_it_taken() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = CheckpointFolder::new(folder.path(), 3);
    for epoch in 1..=3 {
        checkpoints.save(&checkpoint(epoch, 1)).unwrap();
    }
    let newest = folder.path().join("epoch-0003/model.bpk");
    let mut bytes = std::fs::read(&newest).unwrap();
    bytes[50] ^= 1;
    std::fs::write(&newest, bytes).unwrap();
    std::fs::write(folder.path().join("epoch-0002/model.bpk"), b"short").unwrap();

    let loaded = checkpoints.load_newest().unwrap();
    assert_eq!(loaded.checkpoint, checkpoint(1, 1));
    let refused = loaded
        .refused
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>();
    assert!(
        refused[0].contains("epoch-0003") && refused[0].contains("SHA-256"),
        "{refused:?}"
    );
    assert!(
        refused[1].contains("epoch-0002") && refused[1].contains("5 bytes"),
        "{refused:?}"
    );
}

#[test]
fn what_a_killed_process_left_is_cleaned_up() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = CheckpointFolder::new(folder.path(), 2);
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
fn without_a_good_one_the_error_names_all() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = CheckpointFolder::new(folder.path(), 2);
    let error = checkpoints.load_newest().unwrap_err().to_string();
    assert!(error.contains("start without --resume"), "{error}");
    checkpoints.save(&checkpoint(1, 1)).unwrap();
    std::fs::write(folder.path().join("epoch-0001/manifest.json"), "{").unwrap();
    let error = checkpoints.load_newest().unwrap_err().to_string();
    assert!(error.contains("manifest.json is damaged"), "{error}");
}

#[test]
fn a_newer_format_is_refused_by_its_number() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = CheckpointFolder::new(folder.path(), 2);
    let path = checkpoints.save(&checkpoint(1, 1)).unwrap().join(MANIFEST);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(
        &path,
        text.replace("\"format_version\": 1", "\"format_version\": 9"),
    )
    .unwrap();
    let error = checkpoints.load(1).unwrap_err().to_string();
    assert!(error.contains("version 9"), "{error}");
}
