//! What is found wrong in a record, and what is not.

use everburn_train::checkpoint::{Checkpoint, Progress};

use super::*;

fn state(step: usize, weight: &str) -> StateHashes {
    StateHashes {
        step,
        loss: "00".to_owned(),
        tensors: [("fc.bias", "00"), ("fc.weight", weight)]
            .map(|(path, hash)| (path.to_owned(), hash.to_owned()))
            .into(),
        chain: None,
        signature: None,
    }
}

/// The lines of steps 1 to 4.
fn written(key: Option<&Key>) -> Vec<String> {
    let mut link = ChainLink::default();
    let line = |step| {
        let mut state = state(step, "ff");
        link = state.link_after(link);
        state.chain = Some(link.to_string());
        state.signature = key.map(|key| link.sign(key));
        serde_json::to_string(&state).unwrap() + "\n"
    };
    (1..=4).map(line).collect()
}

fn read(text: &[u8], key: Option<&Key>) -> Result<Record, String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("hashes.jsonl"), text).unwrap();
    Record::read(folder.path(), key).map_err(|error| error.to_string())
}

#[test]
fn a_change_of_any_byte_is_found_in_its_line() {
    let lines = written(None);
    let text = lines.concat().into_bytes();
    assert_eq!(read(&text, None).unwrap().ends(), (1, 4));
    for at in 0..text.len() {
        let mut changed = text.clone();
        changed[at] ^= 1;
        let line = 1 + text[..at].iter().filter(|byte| **byte == b'\n').count();
        let error = read(&changed, None).unwrap_err();
        assert!(error.contains(&format!("line {line}")), "{at}: {error}");
    }
}

#[test]
fn lines_that_are_left_out_moved_or_cut_off_are_found() {
    let lines = written(None);
    let error = |order: &[usize]| {
        let text = order.iter().map(|step| lines[step - 1].as_str());
        read(text.collect::<String>().as_bytes(), None).unwrap_err()
    };
    let broken: [(&[usize], usize); 4] = [
        (&[1, 2, 4], 4),
        (&[2, 3, 4], 2),
        (&[1, 3, 2, 4], 3),
        (&[1, 2, 2, 3], 2),
    ];
    for (order, step) in broken {
        let found = error(order);
        assert!(found.contains(&format!("step {step} ")), "{found}");
        assert!(found.contains("breaks the chain"), "{found}");
    }
    let text = lines.concat();
    let cut = read(&text.as_bytes()[..text.len() - 5], None).unwrap_err();
    assert!(cut.contains("line 4, after step 3, has no end"), "{cut}");
}

#[test]
fn a_record_that_ends_early_has_not_the_chain_of_a_checkpoint() {
    let lines = written(None);
    let whole = read(lines.concat().as_bytes(), None).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = CheckpointFolder::new(folder.path(), 2);
    let progress = Progress {
        epoch: 1,
        step: 3,
        chain: Some(whole.link_at(3).to_string()),
        ..Progress::default()
    };
    let files = [("scheduler.bpk".to_owned(), vec![1, 2, 3])].into();
    checkpoints.save(&Checkpoint { progress, files }).unwrap();
    let chains = CheckpointChain::all_in(&checkpoints).unwrap();
    whole.check_checkpoints(&chains).unwrap();
    let short = read(lines[..2].concat().as_bytes(), None).unwrap();
    let error = short.check_checkpoints(&chains).unwrap_err();
    assert!(error.to_string().contains("ends with step 2"), "{error}");
    let empty = read(&[], None).unwrap();
    let error = empty.check_checkpoints(&chains).unwrap_err();
    assert!(matches!(error, ToolError::Failed(_)), "{error}");
    let said = error.to_string();
    assert!(said.contains("which has no line: lines were"), "{said}");
}

#[test]
fn a_record_without_a_line_is_no_finding() {
    let empty = read(&[], None).unwrap();
    let error = empty.check_checkpoints(&[]).unwrap_err();
    assert!(matches!(error, ToolError::Usage(_)), "{error}");
    let said = error.to_string();
    assert!(said.ends_with("has no line, so there is nothing to compare"));
    let before_the_first = CheckpointChain {
        place: Place::from(1),
        step: 1,
        chain: None,
    };
    let error = empty.check_checkpoints(&[before_the_first]).unwrap_err();
    assert!(matches!(error, ToolError::Usage(_)), "{error}");
}

#[test]
fn signatures_are_checked_with_their_key() {
    let (key, other) = (Key::random().unwrap(), Key::random().unwrap());
    let signed = written(Some(&key)).concat().into_bytes();
    let shown = |key| read(&signed, key).map(|record| record.to_string());
    assert!(shown(Some(&key)).unwrap().contains("signed with this key"));
    assert!(shown(None).unwrap().contains("that --key checks"));
    assert!(shown(Some(&other)).unwrap_err().contains("another key"));
    let unsigned = written(None);
    let error = read(unsigned.concat().as_bytes(), Some(&key)).unwrap_err();
    assert!(error.contains("step 1 is not signed"), "{error}");
    // The run was resumed with a key.
    let both = [&unsigned[..3], &written(Some(&key))[3..]].concat();
    let partly = read(both.concat().as_bytes(), None).unwrap().to_string();
    assert!(partly.contains(", 1 of them with signatures"), "{partly}");
}

#[test]
fn the_first_step_and_tensor_of_a_replay_that_differ_are_named_with_both_hashes() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("hashes.jsonl"), written(None).concat()).unwrap();
    let record = Record::read(folder.path(), None).unwrap();
    let mut left = VecDeque::from(record.steps(2..=4));
    for step in [1, 2] {
        let same = record.compare(&mut left, &state(step, "ff"));
        assert_eq!(same.unwrap(), None);
    }
    assert_eq!(left, [3, 4]);
    let mut other = state(3, "fe");
    other.loss = "01".to_owned();
    let found = record.compare(&mut left, &other).unwrap().unwrap();
    let expected = "step 3: the loss is 00 in the record and 01 in the replay; `fc.weight` is ff in the record and fe \
                    in the replay";
    assert_eq!(found.to_string(), expected);
    let missing = record.compare(&mut VecDeque::from([2, 4]), &state(4, "ff"));
    assert_eq!(missing.unwrap().unwrap().step, 2);
}
