//! Run directories for the tests.

use std::fmt::Write as _;
use std::path::Path;

use tempfile::TempDir;

/// A run directory whose files are made by a test.
pub(crate) struct Sample {
    folder: TempDir,
}

impl Sample {
    pub(crate) fn empty() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// An elastic run on three ranks, as `train` leaves it: two epochs of 20 steps, with a rank lost at step 12.
    pub(crate) fn elastic() -> Self {
        Self::empty()
            .with("config.toml", CONFIG)
            .with("metrics.jsonl", metrics(40))
            .with("report.json", REPORT)
            .with("logs/rank-0.log", LOG_0)
            .with("logs/rank-1.log", LOG_1)
            .with("logs/rank-2.log", LOG_2)
            .with("checkpoints/epoch-0001/manifest.json", manifest(20))
            .with("checkpoints/epoch-0002/manifest.json", manifest(40))
    }

    /// The same with all that a training can write for its report.
    pub(crate) fn whole() -> Self {
        Self::elastic()
            .with("ranks.jsonl", ranks(40))
            .with("events.jsonl", EVENTS)
            .with("confusion.json", CONFUSION)
            .with("environment.json", ENVIRONMENT)
    }

    pub(crate) fn with(self, name: &str, text: impl AsRef<[u8]>) -> Self {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self
    }

    pub(crate) fn without(self, name: &str) -> Self {
        std::fs::remove_file(self.path().join(name)).unwrap();
        self
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn read(&self) -> everburn_report::Run {
        everburn_report::Run::read(self.path()).unwrap()
    }
}

/// Lines of this many steps; the loss of step `n` is `2 / n`.
pub(crate) fn metrics(steps: u64) -> String {
    let mut text = String::new();
    for step in 1..=steps {
        let (loss, epoch) = (2.0 / step as f64, (step - 1) / 20 + 1);
        let rate = 0.001 * (1.0 - step as f64 / 64.0);
        writeln!(
            text,
            r#"{{"kind":"step","epoch":{epoch},"step":{step},"loss":{loss},"accuracy":0.5,"samples":32,"predictions":32,"seconds":0.0625,"waited":0.0125,"exposed":0.01,"communication":0.02,"gradient_bytes":328136,"peak_memory":47902720,"learning_rate":{rate}}}"#
        )
        .unwrap();
        if step % 20 == 0 {
            for (kind, loss) in [("train", 0.5), ("validation", 0.75)] {
                writeln!(
                    text,
                    r#"{{"kind":"{kind}","epoch":{epoch},"step":{step},"loss":{loss},"accuracy":0.75,"samples":640,"predictions":640,"seconds":1.25,"waited":0.25,"exposed":0.2,"communication":0.4,"gradient_bytes":6562720}}"#
                )
                .unwrap();
            }
        }
    }
    text
}

fn ranks(steps: u64) -> String {
    let mut text = String::new();
    for step in 1..=steps {
        let of = |rank: usize, waited: f64| {
            format!(
                r#"{{"rank":{rank},"seconds":0.0625,"waited":{waited},"data":0.005,"forward":0.01,"backward":0.015,"optimizer":0.0025,"samples":16,"peak_memory":47902720}}"#
            )
        };
        let mut all = vec![of(0, 0.03), of(1, 0.0)];
        if !(12..=20).contains(&step) {
            all.push(of(2, 0.03));
        }
        writeln!(text, r#"{{"step":{step},"ranks":[{}]}}"#, all.join(",")).unwrap();
    }
    text
}

fn manifest(step: u64) -> String {
    format!(
        r#"{{"format_version":2,"progress":{{"model":"mnist-bn","epoch":1,"step":{step}}},"files":[{{"name":"model.safetensors","bytes":199088,"sha256":""}}],"tensors":[]}}"#
    )
}

const CONFIG: &str = r#"
model = "mnist-bn"

[data]
name = "mnist"

[ranks]
ranks = 3
nodes = 1
elastic = "2:3"

[training]
batch_size = 32
chaos = "kill=2@step:12"

[training.optimizer]
learning_rate = 0.001
"#;

const REPORT: &str = r#"{
  "model": "mnist-bn",
  "dataset": "mnist",
  "dataset_origin": "found by EVERBURN_DATA_DIR",
  "test_accuracy": 0.984,
  "test_loss": 0.0482,
  "test_samples": 10000,
  "test_predictions": 10000,
  "best_epoch": {"epoch": 1, "validation_loss": 0.75},
  "samples_per_second": 1168.149,
  "world_size": 3,
  "batch_size": 32,
  "epochs": 2,
  "steps": 40,
  "seconds": 5.5,
  "train_seconds": 2.5,
  "exposed_seconds": 0.4,
  "gradient_bytes": 13125440,
  "peak_memory": 49741824,
  "stopped": null,
  "resumed_after_epoch": null,
  "versions": {"everburn": "0.1.0", "burn": "0.22.1"}
}"#;

const LOG_0: &str = "\
epoch 1/2  train  120/640  loss 2.2973
2026-11-22T00:32:49.304676Z  WARN after step 11: rank 0 lost rank 2 in all_reduce(i64[1], sum) (collective 11, step 12, after 0.020 s): its connection closed without a goodbye; its ranks were [0, 1, 2]
2026-11-22T00:32:49.374676Z  WARN ranks [0, 1] have made step 12, 0.07 s after the step before
2026-11-22T00:32:50.661195Z  INFO after step 20: more ranks come, and all meet again
2026-11-22T00:32:50.716870Z  WARN ranks [0, 1, 2] have made step 21, 0.06 s after the step before
";

const LOG_1: &str = "\
2026-11-22T00:32:49.324676Z  WARN after step 11: rank 1 lost rank 2 in all_reduce(i64[1], sum) (collective 11, step 12, after 0.021 s): rank 0 noticed that its connection closed without a goodbye; its ranks were [0, 1, 2]
";

const LOG_2: &str = "\
2026-11-22T00:32:49.284676Z  WARN chaos: rank 2 is killed at step 12
--- rank 2: process 2 begins here ---
";

const EVENTS: &str = r#"{"kind":"start","unix_time_ms":1795300855000,"step":0,"text":"3 ranks"}
{"kind":"loss","unix_time_ms":1795300856000,"step":11,"rank":2,"text":"rank 2 is gone"}
{"kind":"regroup","unix_time_ms":1795300857000,"step":12,"ranks":[0,1],"text":"two go on"}
{"kind":"something-new","step":13,"text":"of a later version"}
{"kind":"regroup","unix_time_ms":1795300858000,"step":21,"ranks":[0,1,2],"text":"three go on"}
{"kind":"checkpoint","step":20,"text":"epoch 1"}
"#;

const CONFUSION: &str = r#"{"split":"test","step":40,"classes":["cat","dog","cow"],"counts":[[90,6,4],[2,98,0],[0,0,50]]}"#;

const ENVIRONMENT: &str = r#"{"started_unix_ms":1795300850000,"command":"everburn train mnist-bn --ranks 3","host":"node07","cores":32,"memory_bytes":137438953472,"versions":{"rustc":"1.95.0"},"variables":{"EVERBURN_SECRET":"abc"}}"#;
