use super::*;

#[test]
fn a_folder_without_recordings_says_how_they_are_made() {
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path().to_owned(), folder.path().join("none")] {
        let error = Recording::read_all(&path).unwrap_err().to_string();
        assert!(error.contains("--profile"), "{error}");
    }
}

#[test]
fn recordings_from_before_operations_were_counted_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let mut recording = Recording {
        marks: vec![Mark {
            parameter: 3,
            pass: Pass::Forward,
            at: 17,
            operations: 0,
        }],
        phases: vec![PhaseSpan {
            phase: Phase::Forward,
            step: 1,
            begin: 10,
            end: 20,
            cpu: 5,
            allocations: 1,
            bytes: 8,
            operations: [0, 0],
        }],
        ..Recording::default()
    };
    recording.format = FORMAT;
    let mut older = serde_json::to_value(&recording).unwrap();
    let without = |place: &mut serde_json::Value, name: &str| {
        place.as_object_mut().unwrap().remove(name).unwrap();
    };
    without(&mut older["marks"][0], "operations");
    without(&mut older["phases"][0], "operations");
    without(&mut older["facts"], "peak_operations");
    fs::write(folder.path().join("rank-0.json"), older.to_string()).unwrap();
    assert_eq!(Recording::read_all(folder.path()).unwrap(), [recording]);
}

#[test]
fn what_is_no_recording_is_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("rank-3.json"), "{}").unwrap();
    let error = Recording::read_all(folder.path()).unwrap_err().to_string();
    assert!(
        error.contains("rank-3.json") && error.contains("no recording"),
        "{error}"
    );
    let mut recording = serde_json::to_value(Recording::default()).unwrap();
    recording["format"] = 99.into();
    fs::write(folder.path().join("rank-3.json"), recording.to_string()).unwrap();
    let error = Recording::read_all(folder.path()).unwrap_err().to_string();
    assert!(error.contains("99"), "{error}");
}

#[test]
fn a_planted_link_is_neither_written_through_nor_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("theirs"), "precious").unwrap();
    std::os::unix::fs::symlink(path("theirs"), path("rank-0.json")).unwrap();
    let error = Recording::read_all(folder.path()).unwrap_err().to_string();
    assert!(error.contains("link"), "{error}");
    let written = Recording::default().write(folder.path()).unwrap();
    assert_eq!(written, path("rank-0.json"));
    assert_eq!(fs::read(path("theirs")).unwrap(), b"precious");
    assert_eq!(Recording::read_all(folder.path()).unwrap().len(), 1);
}
