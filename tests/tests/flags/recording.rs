//! What a rank of a training with `--profile` has recorded.

use everburn_tests::Run;
use serde_json::Value;

/// A file of the folder `profile`, read by someone who knows it only by its documentation.
pub(crate) struct Recording(Value);

impl Recording {
    /// That of a rank of `run`.
    pub(crate) fn of(run: &Run, rank: usize) -> Self {
        Self(run.json(&format!("profile/rank-{rank}.json")))
    }

    fn list(&self, name: &str) -> &[Value] {
        let list = self.0[name].as_array();
        list.unwrap_or_else(|| panic!("no {name} in the recording"))
    }

    /// With what the rank was told to train: how many `threads` or `workers`, say.
    pub(crate) fn fact(&self, name: &str) -> u64 {
        let facts = &self.0["facts"];
        let number = facts[name].as_u64();
        number.unwrap_or_else(|| panic!("no {name} in {facts:#}"))
    }

    /// The passes that came to the weights of `layer`, in their order: F forward, B backward with the gradient.
    pub(crate) fn passes(&self, layer: &str) -> String {
        let marks = self.list("marks").iter();
        let own = marks.filter(|mark| self.path(mark) == format!("{layer}.weight"));
        own.map(|mark| match mark["pass"].as_str() {
            Some("forward") => 'F',
            _ => 'B',
        })
        .collect()
    }

    /// The layers whose weights this rank used, in the order of their first use, each with the passes that came to
    /// it before another one.
    pub(crate) fn order(&self) -> String {
        let mut order = String::new();
        let mut before = String::new();
        for mark in self.list("marks") {
            let path = self.path(mark);
            let Some(layer) = path.strip_suffix(".weight") else {
                continue;
            };
            if before != layer {
                order = format!("{order} {layer}:");
                before = layer.to_string();
            }
            order.push(if mark["pass"] == "forward" { 'F' } else { 'B' });
        }
        order.trim_start().to_string()
    }

    /// The path of the parameter that a pass has come to.
    fn path(&self, mark: &Value) -> String {
        let number = mark["parameter"].as_u64().expect("a mark has a number");
        let path = &self.list("parameters")[number as usize];
        path.as_str().expect("a path is text").to_string()
    }

    /// When each bucket of gradients began to travel, and when the last gradient was finished.
    pub(crate) fn buckets(&self) -> (Vec<u64>, u64) {
        let spans = self.list("background").iter();
        let buckets = spans.filter(|span| {
            let name = span["name"].as_str().unwrap_or_default();
            name.starts_with("bucket")
        });
        let begun = buckets.map(|span| span["begin"].as_u64().expect("a span has a beginning"));
        let marks = self.list("marks").iter();
        let backward = marks.filter(|mark| mark["pass"] == "backward");
        let last = backward.map(|mark| mark["at"].as_u64().expect("a mark has a time"));
        (begun.collect(), last.max().expect("there are gradients"))
    }

    /// How many threads have assembled batches, and how many batches.
    pub(crate) fn loaders(&self) -> (usize, usize) {
        let spans = self.list("background").iter();
        let loading = spans.filter_map(|span| span["track"]["loader"].as_u64());
        let threads = loading.collect::<Vec<_>>();
        let batches = threads.len();
        let each: std::collections::HashSet<_> = threads.into_iter().collect();
        (each.len(), batches)
    }

    /// How many floating point operations all steps took.
    pub(crate) fn operations(&self) -> u64 {
        let phases = self.list("phases").iter();
        let counted = phases.map(|span| {
            let at = |end: usize| span["operations"][end].as_u64().unwrap_or_default();
            at(1).saturating_sub(at(0))
        });
        counted.sum()
    }
}
