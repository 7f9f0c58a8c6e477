//! Files with anything in them: nothing panics, nothing is unbounded, and what is drawn are numbers.

use proptest::prelude::*;

use crate::sample::{Sample, metrics};

/// A change to a file, as a disk, a crash or a person makes it.
#[derive(Debug, Clone)]
enum Damage {
    Replace(usize, u8),
    Cut(usize, usize),
    Insert(usize, Vec<u8>),
    End(usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let place = 0_usize..16_384;
    prop_oneof![
        (place.clone(), any::<u8>()).prop_map(|(at, byte)| Damage::Replace(at, byte)),
        (place.clone(), 1_usize..200).prop_map(|(at, length)| Damage::Cut(at, length)),
        (place.clone(), prop::collection::vec(any::<u8>(), 1..40))
            .prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        (
            place.clone(),
            prop::sample::select(vec![
                "-1",
                "1e999",
                "null",
                "\"",
                "18446744073709551616",
                "\n",
                "{",
                "[["
            ])
        )
            .prop_map(|(at, text)| Damage::Insert(at, text.as_bytes().to_vec())),
        place.prop_map(Damage::End),
    ]
}

fn damaged(text: &[u8], damages: &[Damage]) -> Vec<u8> {
    let mut bytes = text.to_vec();
    for damage in damages {
        let length = bytes.len();
        let place = |at: usize| at % (length + 1);
        match damage {
            Damage::Replace(at, byte) if length > 0 => bytes[at % length] = *byte,
            Damage::Replace(..) => {}
            Damage::Cut(at, count) => {
                let end = (place(*at) + count).min(length);
                bytes.drain(place(*at)..end);
            }
            Damage::Insert(at, more) => {
                bytes.splice(place(*at)..place(*at), more.iter().copied());
            }
            Damage::End(at) => bytes.truncate(place(*at)),
        }
    }
    bytes
}

fn is_sound(sample: &Sample) -> Result<(), TestCaseError> {
    let run = sample.read();
    let curves = [&run.metrics.loss, &run.metrics.accuracy];
    for series in curves
        .iter()
        .flat_map(|curve| [&curve.step, &curve.epoch, &curve.validation])
    {
        let points = series.points(512);
        prop_assert!(points.len() <= 4 * 512);
        prop_assert!(points.iter().all(|point| point.y.is_finite()));
    }
    let html = run.to_html();
    // The name of a temporary folder is drawn, and may have an `NaN` in it.
    let folder = sample.path().file_name().unwrap_or_default();
    let html = html.replace(&*folder.to_string_lossy(), "run");
    prop_assert!(html.len() < 3_000_000);
    prop_assert!(html.ends_with("</html>\n"));
    prop_assert!(!html.contains("NaN") && !html.contains("inf%"));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn damaged_lines_cost_no_more_than_themselves(damages in prop::collection::vec(damage(), 1..6)) {
        let bytes = damaged(metrics(40).as_bytes(), &damages);
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count() as u64;
        let sample = Sample::empty().with("metrics.jsonl", &bytes);
        let run = sample.read();
        let (read, lost) = (run.metrics.lines, run.metrics.damaged);
        prop_assert!(read + lost <= lines && lines <= read + lost + 1, "{read} + {lost} of {lines}");
        prop_assert_eq!(lost > 0, run.notes.iter().any(|note| note.what.contains("of its lines are damaged")));
        is_sound(&sample)?;
    }

    #[test]
    fn any_file_may_be_damaged(
        file in prop::sample::select(vec![
            "config.toml", "metrics.jsonl", "report.json", "ranks.jsonl", "events.jsonl", "confusion.json",
            "environment.json", "logs/rank-0.log", "checkpoints/epoch-0001/manifest.json",
        ]),
        damages in prop::collection::vec(damage(), 1..5),
    ) {
        let sample = Sample::whole();
        let bytes = damaged(&std::fs::read(sample.path().join(file)).unwrap(), &damages);
        is_sound(&sample.with(file, bytes))?;
    }

    #[test]
    fn any_bytes_may_stand_in_any_file(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut sample = Sample::whole();
        for file in ["config.toml", "metrics.jsonl", "report.json", "ranks.jsonl", "events.jsonl", "confusion.json"] {
            sample = sample.with(file, &bytes);
        }
        is_sound(&sample)?;
    }
}
