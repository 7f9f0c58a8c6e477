//! Tests of `lines`.

use std::sync::{Arc, Mutex};

use super::*;

/// What was written.
#[derive(Clone, Default)]
pub(in crate::renderer) struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    pub(in crate::renderer) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_bar_fits_a_terminal() {
    let mut lines = Lines::new(Box::new(std::io::sink()));
    lines.start(3, 1, None, None);
    lines.start_split("train", 100);
    lines.processed = 57;
    assert_eq!(lines.bar(), "epoch 1/3 train [#####-----]");
    let metrics = [
        ("Loss", "0.3172"),
        ("Accuracy", "90.24 %"),
        ("Samples per second", "26.1 k"),
    ];
    lines.metrics = metrics
        .map(|(name, text)| (name.into(), text.into()))
        .into();
    // What does not fit is left out.
    let line = "epoch 1/3 train [#####-----]  loss 0.3172  accuracy 90.24 %";
    assert_eq!(lines.bar(), line);
    lines.metrics.remove(1);
    let line = "epoch 1/3 train [#####-----]  loss 0.3172  26.1 k samples/s";
    assert_eq!(lines.bar(), line);
    lines.start_split("train", 0);
    assert_eq!(lines.bar(), "epoch 1/3 train [----------]");
}

#[test]
fn a_line_has_the_rate_since_the_one_before_and_the_last_one_the_mean() {
    let begun = Instant::now();
    let after = |seconds| begun + Duration::from_secs(seconds);
    // A resumed epoch begins within.
    let mut pace = Pace::begin(begun, 5_000);
    let soon = begun + Duration::from_micros(3);
    assert_eq!([begun, soon].map(|now| pace.rate(now, 5_000)), [None; 2]);
    let rates = [(2, 5_800), (4, 6_600), (6, 6_620), (7, 6_630)]
        .map(|(seconds, processed)| pace.rate(after(seconds), processed));
    assert_eq!(rates, [400.0, 400.0, 10.0, 10.0].map(Some));
    let mut lines = Lines::new(Box::new(std::io::sink()));
    lines.start(3, 1, None, None);
    lines.start_split("train", 100);
    lines.metrics = vec![("Samples per second".into(), "300".into())];
    lines.rate = Some(10.0);
    assert!(lines.whole_line().ends_with("  10.0 samples/s"));
    lines.processed = 100;
    lines.write_line(true);
    assert!(lines.whole_line().ends_with("  300 samples/s"));
}

#[test]
fn a_line_is_not_written_twice_where_a_limit_of_steps_ends_the_split() {
    let written = Written::default();
    let mut lines = Lines::new(Box::new(written.clone()));
    lines.start(3, 1, None, None);
    lines.start_split("train", 100);
    lines.processed = 64;
    lines.write_line(false);
    lines.end_split();
    assert_eq!(written.text(), "epoch 1/3  train  64/100\n");
}
