//! What a run directory says, and what is said of what it lacks.

use std::fmt::Write as _;
use std::path::Path;

use everburn_record::{EventKind, Live, LiveRank, Phase, proc};
use everburn_report::{Note, RankTimes, ReportError, Run, Series};

use crate::sample::{Sample, metrics};

/// What was read of a run, in short.
fn summary(run: &Run) -> String {
    let metrics = &run.metrics;
    let ends = |series: &Series| match (series.first(), series.last()) {
        (Some(first), Some(last)) => {
            let ends = format!("({}, {}) to ({}, {})", first.x, first.y, last.x, last.y);
            format!("{} points, {ends}", series.count())
        }
        _ => "nothing".to_owned(),
    };
    let curves = [
        ("loss, steps", &metrics.loss.step),
        ("loss, epochs", &metrics.loss.epoch),
        ("loss, validation", &metrics.loss.validation),
        ("loss by time", &metrics.loss_by_time.step),
        ("samples per second", &metrics.samples_per_second),
        ("learning rate", &metrics.learning_rate),
        ("gradient norm", &metrics.gradient_norm),
        ("bytes", &metrics.gradient_bytes),
    ];
    let ranks = run.ranks_at_start();
    let mut lines = vec![format!("state: {}, {ranks:?} ranks", run.state())];
    lines.extend(curves.map(|(name, series)| format!("{name}: {}", ends(series))));
    lines.extend(metrics.epochs.iter().map(|epoch| format!("{epoch:?}")));
    let (read, damaged) = (metrics.lines, metrics.damaged);
    lines.push(format!("lines: {read}, damaged: {damaged}"));
    let settings = run.config.iter();
    lines.extend(settings.map(|(key, value)| format!("{key} = {value}")));
    for event in run.events.iter() {
        let rank = event.rank.map(|rank| format!(", rank {rank}"));
        let ranks = event.ranks.as_ref();
        let ranks = ranks.map(|ranks| format!(", ranks {ranks:?}"));
        let whom = [rank, ranks].map(Option::unwrap_or_default).concat();
        let (kind, step, text) = (event.kind, event.step, &event.text);
        lines.push(format!("{kind:?} after {step:?}{whom}: {text}"));
    }
    let slow = run.ranks.as_ref().map(RankTimes::slow);
    lines.push(format!("ranks: {slow:?}"));
    let notes = run.notes.iter();
    lines.extend(notes.map(|note| format!("{}: {}", note.file, note.what)));
    lines.into_iter().map(|line| line + "\n").collect()
}

#[test]
fn a_run_of_today() {
    insta::assert_snapshot!(summary(&Sample::elastic().read()));
}

#[test]
fn a_run_that_writes_all_there_is() {
    insta::assert_snapshot!(summary(&Sample::whole().read()));
}

#[test]
fn what_is_missing_is_noted() {
    let run = Sample::empty()
        .with("config.toml", "model = 'mnist'")
        .read();
    insta::assert_snapshot!(summary(&run));
}

#[test]
fn a_run_that_goes_on_has_a_line_that_is_cut_off() {
    let text = metrics(3);
    let run = Sample::empty()
        .with("metrics.jsonl", &text[..text.len() - 20])
        .read();
    assert_eq!((run.metrics.lines, run.metrics.damaged), (2, 0));
    assert_eq!(run.state(), "not finished");
    let noted = run.notes.iter().any(|note| note.what.contains("cut off"));
    assert!(noted, "{:?}", run.notes);
}

#[test]
fn lines_that_cannot_be_read_are_counted() {
    let text = format!(
        "{}{{\"kind\":\nnot json\n{}\n{}",
        metrics(2),
        "x".repeat(1 << 20),
        metrics(3)
    );
    let run = Sample::empty().with("metrics.jsonl", text).read();
    assert_eq!((run.metrics.lines, run.metrics.damaged), (5, 3));
    let mut notes = run.notes.iter();
    let note = notes.find(|note| note.what.contains("damaged")).unwrap();
    assert_eq!(note.file, "metrics.jsonl");
    let what = &note.what;
    assert!(
        what.contains("3 of its lines") && what.contains("line 3"),
        "{what}"
    );
    // Steps 1 and 2 were made again.
    assert_eq!(run.metrics.loss.step.count(), 3);
    assert!(run.notes.iter().any(|note| note.what.contains("go back")));
}

#[test]
fn a_loss_that_is_no_number_is_told_of() {
    let line =
        r#"{"kind":"step","epoch":1,"step":3,"loss":null,"accuracy":null,"samples":0,"seconds":0}"#;
    let run = Sample::empty()
        .with("metrics.jsonl", format!("{}{line}\n", metrics(2)))
        .read();
    assert_eq!((run.metrics.damaged, run.metrics.loss.step.count()), (0, 2));
    let is_noted = |note: &Note| note.what.contains("not a number");
    assert!(run.notes.iter().any(is_noted), "{:?}", run.notes);
}

#[test]
fn damaged_documents_are_left_out_with_a_reason() {
    let run = Sample::whole()
        .with("config.toml", "model = \n")
        .with("report.json", "{")
        .with("environment.json", "\"no\"")
        .with(
            "confusion.json",
            r#"{"classes":["a","b"],"counts":[[1,2]]}"#,
        )
        .with("checkpoints/epoch-0002/manifest.json", "{}")
        .with("ranks.jsonl", "{}\n")
        .read();
    assert!(
        run.results.is_none()
            && run.environment.is_none()
            && run.confusion.is_none()
            && run.ranks.is_none()
    );
    let noted: Vec<_> = run.notes.iter().map(|note| note.file.as_str()).collect();
    for file in [
        "config.toml",
        "report.json",
        "environment.json",
        "confusion.json",
        "checkpoints/epoch-0002/manifest.json",
        "ranks.jsonl",
    ] {
        assert!(noted.contains(&file), "{file} is not in {noted:?}");
    }
    assert!(run.to_html().contains("What could not be read"));
}

#[test]
fn a_link_out_of_the_run_is_not_followed() {
    let sample = Sample::elastic().without("config.toml");
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret");
    std::fs::write(&secret, "key = 'abc-secret'\n").unwrap();
    for name in [
        "config.toml",
        "environment.json",
        "events.jsonl",
        "logs/rank-7.log",
    ] {
        std::os::unix::fs::symlink(&secret, sample.path().join(name)).unwrap();
    }
    let run = sample.read();
    assert!(!run.to_html().contains("abc-secret"));
    let links = run.notes.iter().filter(|note| note.what.contains("link"));
    assert_eq!(links.count(), 4, "{:?}", run.notes);
}

#[test]
fn a_rank_that_failed_says_so_once() {
    let message = "after step 7, `conv1.weight` of rank 1 differs from the other ranks'";
    let failure = format!(
        r#"{{"rank":1,"step":null,"kind":"own","message":"{message}\n  because: it is\nhelp: run it again","unix_time_ms":1795300856850}}"#
    );
    let run = Sample::empty()
        .with("config.toml", "model = 'mnist'")
        .with("logs/rank-1.error.json", failure)
        .with(
            "logs/rank-1.log",
            format!("error: {message}\n  because: it is\nhelp: run it again\n"),
        )
        .read();
    let told: Vec<_> = run
        .events
        .iter()
        .map(|event| (event.kind, event.step, event.rank))
        .collect();
    assert_eq!(
        told,
        [
            (EventKind::Divergence, Some(7), Some(1)),
            (EventKind::Failure, Some(7), Some(1)),
        ]
    );
    assert_eq!(run.state(), "failed");
}

#[test]
fn a_run_whose_launcher_was_killed_says_so() {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let ended = child.id();
    child.wait().unwrap();
    let told = |phase: Phase, process: u32| {
        let rank = LiveRank {
            rank: 3,
            alive: true,
            pid: Some(process),
            host: proc::host_name(),
            ..LiveRank::default()
        };
        let live = Live {
            phase,
            step: 12,
            ranks: vec![rank],
            ..Live::default()
        };
        let live = serde_json::to_string(&live).unwrap();
        let run = Sample::elastic().with("live.json", live).read();
        let killed = run
            .events
            .iter()
            .filter(|it| it.text.contains("was cut off on "));
        killed.count()
    };
    assert_eq!(told(Phase::Training, ended), 1);
    assert_eq!(told(Phase::Training, std::process::id()), 0);
    assert_eq!(told(Phase::Ended, ended), 0);
}

#[test]
fn more_events_than_are_kept_are_counted() {
    let mut text = String::new();
    for step in 0..20_000 {
        writeln!(
            text,
            r#"{{"kind":"checkpoint","step":{step},"text":"one"}}"#
        )
        .unwrap();
    }
    let run = Sample::elastic().with("events.jsonl", text).read();
    assert_eq!(run.events.count(EventKind::Checkpoint), 20_000);
    assert!(run.events.iter().len() <= 5_000);
    assert_eq!(run.events.iter().last().unwrap().step, Some(19_999));
    assert!(run.to_html().contains("more are not listed"));
}

#[test]
fn checkpoints_that_could_not_be_written_are_counted_with_the_first_reason_and_the_newest_good_one()
{
    let mut text = String::new();
    // The first by the word of earlier files.
    for (kind, step, why) in [
        ("unsaved", 10, "<no space left>"),
        ("checkpoint-failed", 30, "read-only"),
    ] {
        let line = format!(r#"{{"kind":"{kind}","step":{step},"text":"{why}"}}"#);
        writeln!(text, "{line}").unwrap();
    }
    let run = Sample::elastic().with("events.jsonl", text).read();
    let told = run.events.failed_checkpoints().unwrap();
    assert_eq!(
        told,
        "2 checkpoints could not be written; the first, after step 10: <no space left>; the newest good one now: \
         checkpoint epoch-0002, 194 KiB, after step 40"
    );
    let html = run.to_html();
    assert!(html.contains("the first, after step 10: &lt;no space left&gt;"));
    assert!(html.contains("checkpoint-failed × 2"));
    assert_eq!(Sample::elastic().read().events.failed_checkpoints(), None);
}

#[test]
fn one_stop_counts_once_and_what_has_no_step_is_in_the_order_of_time() {
    let text = r#"{"kind":"warning","unix_time_ms":10,"text":"waits"}
{"kind":"start","unix_time_ms":20,"step":0,"text":"begins"}
{"kind":"stop","unix_time_ms":30,"text":"SIGHUP"}
{"kind":"stop","unix_time_ms":31,"step":8,"text":"on request"}
{"kind":"stop","unix_time_ms":32,"step":8,"text":"by SIGHUP"}
{"kind":"warning","unix_time_ms":40,"text":"waits again"}
{"kind":"resume","unix_time_ms":50,"step":8,"text":"continues"}
{"kind":"stop","unix_time_ms":60,"step":9,"text":"on request again"}
"#;
    let sample = Sample::empty().with("config.toml", "model = 'mnist'");
    let run = sample.with("events.jsonl", text).read();
    assert_eq!(run.events.count(EventKind::Stop), 2);
    assert_eq!(run.events.count(EventKind::Warning), 2);
    let times: Vec<_> = run.events.iter().filter_map(|it| it.unix_time_ms).collect();
    assert_eq!(times, [10, 20, 30, 31, 32, 40, 50, 60]);
}

#[test]
fn of_many_checkpoints_the_newest_are_listed() {
    let manifest = |step| {
        let name = format!("checkpoints/epoch-{step:04}/manifest.json");
        (name, format!(r#"{{"progress":{{"step":{step}}}}}"#))
    };
    let sample = (1..=201).map(manifest).fold(
        Sample::empty().with("config.toml", "model = 'mnist'"),
        |sample, (name, text)| sample.with(&name, text),
    );
    let steps: Vec<_> = sample.read().events.iter().map(|it| it.step).collect();
    assert_eq!(steps, (2..=201).map(Some).collect::<Vec<_>>());
}

#[test]
fn a_folder_without_a_run_is_refused() {
    let error = Run::read(Sample::empty().with("notes.txt", "").path()).unwrap_err();
    assert!(error.to_string().contains("--run-dir"), "{error}");
    assert!(error.missing_run().is_some(), "{error}");
    let error = Run::read("/no/such/folder").unwrap_err();
    assert!(matches!(error, ReportError::File { .. }), "{error}");
    assert!(error.to_string().contains("/no/such/folder"), "{error}");
    assert_eq!(error.missing_run(), Some(Path::new("/no/such/folder")));
    let output = Path::new("/no/such/folder/report.html");
    let whole = Sample::whole();
    let error = everburn_report::write_report(whole.path(), Some(output)).unwrap_err();
    assert_eq!(error.missing_run(), None, "{error}");
}
