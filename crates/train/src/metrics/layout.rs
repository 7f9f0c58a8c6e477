//! Which metrics ranks exchange, and where in a message.
//!
//! A metric has no number but its place among those that a message is of, so all ranks must have the same metrics.
//! They agree on them once, with the first sums of a group: each says which it reports, and a rank without samples
//! takes over the others'. From then on each rank sees to it that it reports those, so that no message is ever of
//! another length than the others'.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use everburn_collectives::group::ProcessGroup;
use everburn_distributed::all_gather_object;

use crate::error::TrainError;
use crate::metrics::sums::{MetricSums, WeightedSum};

/// The loss, predictions and samples.
const FIXED: usize = 3;

/// The names of metrics, in the order of their numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MetricLayout {
    names: Arc<[Cow<'static, str>]>,
}

impl MetricLayout {
    pub(crate) fn of(sums: &MetricSums) -> Self {
        Self {
            names: sums.metrics.keys().cloned().collect(),
        }
    }

    pub(crate) fn width(&self) -> usize {
        FIXED + 2 * self.names.len()
    }

    /// Writes `sums` to its place; what it does not have is zero there.
    pub(crate) fn write(&self, sums: &MetricSums, place: &mut [f64]) {
        let (fixed, metrics) = place.split_at_mut(FIXED);
        let (predictions, samples) = (sums.predictions as f64, sums.samples as f64);
        fixed.copy_from_slice(&[sums.loss_sum, predictions, samples]);
        for (name, place) in self.names.iter().zip(metrics.chunks_exact_mut(2)) {
            let own = sums.metrics.get(name).copied().unwrap_or_default();
            place.copy_from_slice(&[own.sum, own.weight]);
        }
    }

    /// Reads what [`write`](Self::write) has written, on several ranks, and was added up.
    pub(crate) fn read(&self, numbers: &[f64]) -> MetricSums {
        let pairs = numbers[FIXED..].chunks_exact(2);
        let metrics = self
            .names
            .iter()
            .cloned()
            .zip(pairs.map(|pair| WeightedSum {
                sum: pair[0],
                weight: pair[1],
            }));
        MetricSums {
            loss_sum: numbers[0],
            predictions: numbers[1] as u64,
            samples: numbers[2] as u64,
            metrics: metrics.collect(),
        }
    }

    /// Checks that `sums` has the metrics that were agreed on, if it has anything.
    fn check(&self, sums: &MetricSums) -> Result<(), TrainError> {
        if sums.is_nothing() {
            return Ok(());
        }
        let is_new = |name: &&Cow<'static, str>| !self.names.contains(name);
        let is_missing = |name: &&Cow<'static, str>| !sums.metrics.contains_key(*name);
        let changed = |metric: &Cow<'static, str>, is_new| TrainError::MetricsChanged {
            metric: metric.to_string(),
            is_new,
        };
        match (
            sums.metrics.keys().find(is_new),
            self.names.iter().find(is_missing),
        ) {
            (Some(new), _) => Err(changed(new, true)),
            (None, Some(missing)) => Err(changed(missing, false)),
            (None, None) => Ok(()),
        }
    }
}

/// The layout of a group's messages, once it has been agreed on.
#[derive(Debug, Default)]
pub(crate) struct MetricAgreement {
    layout: Option<MetricLayout>,
}

impl MetricAgreement {
    /// An agreement on metrics of these names, if ranks have come to one.
    pub(crate) fn on(names: Option<Vec<String>>) -> Self {
        let layout = names.map(|names| MetricLayout {
            names: names.into_iter().map(Cow::Owned).collect(),
        });
        Self { layout }
    }

    /// The names of the metrics that were agreed on.
    pub(crate) fn names(&self) -> Option<Vec<String>> {
        let layout = self.layout.as_ref()?;
        Some(layout.names.iter().map(ToString::to_string).collect())
    }

    /// The layout in which this rank's `sums` are told. All ranks call it before each exchange; the first time,
    /// and again as long as no rank has anything to tell, they compare their metrics.
    ///
    /// # Errors
    /// [`TrainError::DifferentMetrics`] on all ranks, if some report a metric and others do not;
    /// [`TrainError::MetricsChanged`] on a rank whose metrics are not those of the steps before.
    pub(crate) fn layout<'a>(
        &mut self,
        sums: impl IntoIterator<Item = &'a MetricSums> + Clone,
        group: &ProcessGroup,
    ) -> Result<MetricLayout, TrainError> {
        if self.layout.is_none() {
            let mut told = sums.clone().into_iter().filter(|sums| !sums.is_nothing());
            self.layout = agree(told.next().map(MetricLayout::of), group)?;
        }
        let layout = self.layout.clone().unwrap_or_default();
        for sums in sums {
            layout.check(sums)?;
        }
        Ok(layout)
    }
}

/// The layout of all ranks that have one.
fn agree(
    own: Option<MetricLayout>,
    group: &ProcessGroup,
) -> Result<Option<MetricLayout>, TrainError> {
    if group.world_size() == 1 {
        return Ok(own);
    }
    let names = own.as_ref().map(|own| &*own.names);
    let told = all_gather_object::<Option<BTreeSet<String>>>(group, &names)?;
    let ranks = told.iter().enumerate();
    let ranks = ranks.filter_map(|(rank, names)| Some((rank, names.as_ref()?)));
    for name in told.iter().flatten().flatten() {
        let (with, without): (Vec<_>, Vec<_>) =
            ranks.clone().partition(|(_, names)| names.contains(name));
        if !without.is_empty() {
            let numbers = |ranks: Vec<(usize, _)>| ranks.into_iter().map(|(rank, _)| rank);
            return Err(TrainError::DifferentMetrics {
                metric: name.clone(),
                with: numbers(with).collect(),
                without: numbers(without).collect(),
            });
        }
    }
    let names = told.into_iter().flatten().next();
    Ok(names.map(|names| MetricLayout {
        names: names.into_iter().map(Cow::Owned).collect(),
    }))
}

#[cfg(test)]
mod tests {
    use everburn_collectives::group::GroupOptions;

    use super::*;

    fn sums(metrics: &[&'static str]) -> MetricSums {
        let nothing = MetricSums {
            loss_sum: 1.5,
            predictions: 4,
            samples: 2,
            ..MetricSums::default()
        };
        let with = |sums: MetricSums, name: &&'static str| sums.with_metric(*name, 0.25, 2.0);
        metrics.iter().fold(nothing, with)
    }

    #[test]
    fn what_is_written_is_read() {
        let own = sums(&["mae", "accuracy"]);
        let layout = MetricLayout::of(&own);
        let mut numbers = vec![0.0; layout.width()];
        layout.write(&own, &mut numbers);
        assert_eq!(layout.read(&numbers), own);
        // Of nothing, zeros have the same places.
        layout.write(&MetricSums::default(), &mut numbers);
        assert_eq!(numbers, [0.0; 7]);
    }

    #[test]
    fn a_metric_that_is_no_number_spoils_no_other() {
        let own = sums(&["mae"]).with_metric("iou", f64::NAN, 1.0);
        let layout = MetricLayout::of(&own);
        let mut numbers = vec![0.0; layout.width()];
        layout.write(&own, &mut numbers);
        let read = layout.read(&numbers);
        assert!(read.mean("iou").unwrap().is_nan());
        assert_eq!((read.mean("mae"), read.mean_loss()), (Some(0.125), 0.375));
    }

    #[test]
    fn an_agreement_is_handed_on_by_its_names() {
        let group = ProcessGroup::alone(GroupOptions::default());
        let mut agreement = MetricAgreement::default();
        assert_eq!(agreement.names(), None);
        let layout = agreement.layout([&sums(&["mae", "iou"])], &group).unwrap();
        let names = agreement.names();
        assert_eq!(names, Some(vec!["iou".to_owned(), "mae".to_owned()]));
        let mut next = MetricAgreement::on(names);
        let nothing = MetricSums::default();
        assert_eq!(next.layout([&nothing], &group).unwrap(), layout);
        // Of a rank that has made no step yet, too.
        let fewer = next.layout([&sums(&["mae"])], &group).unwrap_err();
        let expected =
            "the metric `iou` was reported in the steps before, and is missing on this rank: ";
        assert!(fewer.to_string().starts_with(expected), "{fewer}");
        let more = next.layout([&sums(&["mae", "iou", "f1"])], &group);
        let more = more.unwrap_err().to_string();
        let expected = "the metric `f1` was not reported in the steps before: ";
        assert!(more.starts_with(expected), "{more}");
    }

    #[test]
    fn metrics_stay_those_of_the_first_step() {
        let group = ProcessGroup::alone(GroupOptions::default());
        let mut agreement = MetricAgreement::default();
        // Nobody has anything: that settles nothing.
        let nothing = MetricSums::default();
        assert_eq!(agreement.layout([&nothing], &group).unwrap().width(), FIXED);
        agreement.layout([&sums(&["mae"])], &group).unwrap();
        agreement.layout([&nothing], &group).unwrap();
        let more = agreement.layout([&sums(&["mae", "iou"])], &group);
        assert!(more.unwrap_err().to_string().contains("`iou`"));
        let fewer = agreement.layout([&sums(&[])], &group);
        assert!(fewer.unwrap_err().to_string().contains("`mae`"));
    }
}
