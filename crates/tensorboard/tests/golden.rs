//! Files are, byte for byte, what TensorBoard's own code writes (`make_golden.py` beside this).

use everburn_tensorboard::EventFile;

#[test]
fn a_file_is_what_tensorboard_itself_writes() {
    let folder = tempfile::tempdir().unwrap();
    let mut events = EventFile::create(folder.path(), "a.b", 300, 1_700_000_000.25).unwrap();
    let name = events.path().file_name().unwrap().to_str().unwrap();
    assert!(
        name.starts_with("events.out.tfevents.1700000000.a-b."),
        "{name}"
    );
    let first = [
        ("loss/train", 2.25),
        ("none", f64::NAN),
        ("learning_rate", 0.001),
    ];
    events.scalars(310, 1_700_000_001.0, &first).unwrap();
    events
        .scalars(311, 1_700_000_001.0, &[("none", f64::INFINITY)])
        .unwrap();
    let second = [("accuracy/validation", 0.98), ("größe", -1.5e-30)];
    events.scalars(1 << 40, 1_700_000_002.5, &second).unwrap();
    let written = std::fs::read(events.path()).unwrap();
    assert_eq!(written, include_bytes!("golden.tfevents"));
}

#[test]
fn two_files_of_one_second_are_two() {
    let folder = tempfile::tempdir().unwrap();
    let files = [(); 2].map(|()| EventFile::create(folder.path(), "a", 0, 5.0).unwrap());
    assert_ne!(files[0].path(), files[1].path());
}
