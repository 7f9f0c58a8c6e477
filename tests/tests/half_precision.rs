//! `--precision`, as a user gives it: with processes, records, resumes and what is refused.

use everburn_tests::{Everburn, NO_PRESET, Run, assert_refused};

#[test]
fn an_overflow_on_one_process_skips_the_step_on_all_and_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let ended = Everburn::train(folder.path(), "mnist")
        .words(NO_PRESET)
        .words("--precision f16 --ranks 2 --run-dir run")
        .words("--epochs 2 --log-every 1 --compare-every 1 --chaos overflow=1@step:3")
        .succeed();
    let skipped = "steps skipped because gradients overflowed f16: 1";
    ended.prints([skipped]);
    let run = Run::new(folder.path().join("run"));
    assert_eq!(run.number("skipped_steps"), 1.0);
    assert_eq!(run.number("steps"), 16.0);
    let expected = [&[65_536.0; 2][..], &[32_768.0; 14]].concat();
    assert_eq!(run.values("step", "loss_scale"), expected, "{ended}");
    let expected = [&[0.0; 2][..], &[1.0; 14]].concat();
    assert_eq!(run.values("step", "skipped_steps"), expected, "{ended}");
    let events = run.text("events.jsonl");
    let skip = "step 3 is skipped: a gradient is too large for f16; the loss scale falls from 65536 to 32768";
    assert_eq!(events.matches(skip).count(), 1, "{events}");
    assert!(run.text("config.toml").contains("precision = \"f16\""));

    // Another epoch with the scale that the run had come to, and what it was measured by is f16 again.
    let ended = Everburn::line(folder.path(), "train --resume --run-dir run --epochs 3")
        .words("--ranks 2")
        .succeed();
    assert_eq!(run.number("skipped_steps"), 1.0, "{ended}");
    let ended = Everburn::line(folder.path(), "eval run --json --data synthetic")
        .words("--train-samples 600 --test-samples 200")
        .succeed();
    let result = ended.json();
    let (found, told) = (
        result["test_loss"].as_f64().unwrap(),
        run.number("test_loss"),
    );
    assert!((found - told).abs() < 1e-6, "{found} {told}: {ended}");
}

#[test]
fn a_text_model_learns_in_bf16_with_gradients_that_travel_in_bf16() {
    let folder = tempfile::tempdir().unwrap();
    let train = |name: &str, flags: &[&str]| {
        Everburn::line(folder.path(), "train gpt-nano --ranks 2 --data embedded")
            .args(["--steps", "10", "--batch-size", "8", "--run-dir", name])
            .args(flags)
            .succeed();
        Run::new(folder.path().join(name))
    };
    let exact = train("f32", &[]);
    let flags = ["--precision", "bf16", "--communication-hook", "bf16"];
    let low = train(
        "bf16",
        &[&flags[..], &["--activation-checkpointing", "blocks"]].concat(),
    );
    let (exact_loss, low_loss) = (exact.number("test_loss"), low.number("test_loss"));
    assert_ne!(exact_loss, low_loss);
    assert!(
        (low_loss / exact_loss - 1.0).abs() < 0.02,
        "{exact_loss} {low_loss}"
    );
    let share = low.number("gradient_bytes") / exact.number("gradient_bytes");
    assert!(share < 0.6, "{share} of the bytes");
}

#[test]
fn what_a_precision_cannot_be_used_with_is_refused_before_anything_starts() {
    assert_refused(
        "mlp",
        "
        --precision fp16 | `fp16` is no precision | use f32, bf16, f16 or tf32
        --precision tf32 | is for GPUs | use f32
        --precision f16 --ranks 2 --local-steps 4 | do not go together | --precision bf16
        --precision f16 --ranks 2 --communication-hook power-sgd:2 | do not go together | --communication-hook bf16
        --precision bf16 --ranks 2 --pipeline 2 | --precision bf16 do not go together | use --precision f32
        --chaos overflow=0@step:1 | --precision f16
        ",
    );
}
