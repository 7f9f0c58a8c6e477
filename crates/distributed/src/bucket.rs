//! Gradients travel in buckets, not one by one (Li et al. 2020, "PyTorch Distributed", section 3.2).

use std::ops::Range;
use std::sync::Arc;

use burn::module::ParamId;
use burn::tensor::DType;

use crate::communication_hook::ParameterSlot;

/// A parameter whose gradient is exchanged.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use burn::module::ParamId;
/// use burn::tensor::DType;
/// use everburn::distributed::BucketEntry;
///
/// let (path, id) = ("fc1.weight".to_owned(), ParamId::new());
/// let entry = BucketEntry { path, id, shape: vec![4, 2], dtype: DType::F32 };
/// assert_eq!((entry.num_elements(), entry.num_bytes()), (8, 32));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct BucketEntry {
    /// The parameter's path in the model, `fc1.weight` say.
    pub path: String,
    /// The parameter's identity in this process.
    pub id: ParamId,
    /// The shape of the parameter and of its gradient.
    pub shape: Vec<usize>,
    /// The type of its elements.
    pub dtype: DType,
}

impl BucketEntry {
    /// How many elements the gradient has.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// How many bytes the gradient has.
    pub fn num_bytes(&self) -> usize {
        self.num_elements() * self.dtype.size()
    }
}

/// How large buckets may become, in bytes.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::BucketLimits;
///
/// let limits = BucketLimits { first: 1 << 20, others: 25 << 20 };
/// assert!(limits.first < limits.others);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketLimits {
    /// The first bucket: a small one lets communication begin early.
    pub first: usize,
    /// All others.
    pub others: usize,
}

/// Into how many buckets at least a model is cut that is large enough: with fewer, the last one, which
/// nothing hides, is a large part of the whole.
const FEWEST_BUCKETS: usize = 8;

/// Buckets are not made smaller than this for the sake of their number or place, in bytes: latency
/// would cost more than overlap gains.
const SMALLEST_CUT: usize = 1 << 20;

/// How large a bucket may become behind which, itself included, `rest` bytes are still to come. Nothing
/// hides the last one, so towards the end each is at most half of what is left.
fn tapered(limit: usize, rest: usize) -> usize {
    limit.min((rest / 2).max(SMALLEST_CUT))
}

impl BucketLimits {
    /// Limits for a model whose gradients are `bytes` long: a model of a few buckets' size is cut
    /// finer, so that most of it can travel while the backward pass continues.
    #[must_use]
    pub fn for_model(self, bytes: usize) -> Self {
        let finer = (bytes / FEWEST_BUCKETS).max(SMALLEST_CUT);
        Self {
            first: self.first.min(finer),
            others: self.others.min(finer),
        }
    }
}

/// Gradients that travel together: one type of element, one message.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use burn::module::ParamId;
/// use burn::tensor::DType;
/// use everburn::distributed::{Bucket, BucketEntry, BucketLimits, BucketPlan};
///
/// let (path, id) = ("fc1.weight".to_owned(), ParamId::new());
/// let entry = BucketEntry { path, id, shape: vec![4, 2], dtype: DType::F32 };
/// let plan = BucketPlan::in_reverse(&[entry], BucketLimits { first: 100, others: 100 });
/// let bucket: &Bucket = &plan.buckets()[0];
/// assert_eq!((bucket.len(), bucket.parameters()), (8, &[0][..]));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Bucket {
    /// The parameters' numbers in order of registration.
    parameters: Vec<usize>,
    slots: Arc<[ParameterSlot]>,
    dtype: DType,
    length: usize,
}

impl Bucket {
    /// The parameters' numbers in order of registration, as they are in the bucket.
    pub fn parameters(&self) -> &[usize] {
        &self.parameters
    }

    /// The parameters' places, in the order of [`Bucket::parameters`].
    pub fn slots(&self) -> &Arc<[ParameterSlot]> {
        &self.slots
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// How many elements the bucket has.
    pub fn len(&self) -> usize {
        self.length
    }

    /// How many elements its buffer has: those of the gradients, then one for each parameter that
    /// says whether it was used.
    pub(crate) fn length_with_flags(&self) -> usize {
        self.length + self.parameters.len()
    }

    /// Whether it has no elements, which is so for parameters without any.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub(crate) fn range(&self, slot: usize) -> Range<usize> {
        let start = self.slots[slot].offset;
        let next = self.slots.get(slot + 1);
        start..next.map_or(self.length, |next| next.offset)
    }
}

/// Which gradients travel together, and in which order.
///
/// At first buckets follow the reverse order of registration, which is about the order in which the
/// backward pass finishes gradients; after the first step, the order in which it really did. All
/// gradients of a bucket have one type of element.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use burn::module::ParamId;
/// use burn::tensor::DType;
/// use everburn::distributed::{BucketEntry, BucketLimits, BucketPlan};
///
/// let parameter = |path: &str, length: usize| BucketEntry {
///     path: path.to_string(),
///     id: ParamId::new(),
///     shape: vec![length],
///     dtype: DType::F32,
/// };
/// let parameters = [parameter("a", 10), parameter("b", 10), parameter("c", 25)];
/// let limits = BucketLimits { first: 100, others: 100 };
/// let plan = BucketPlan::in_reverse(&parameters, limits);
/// let numbers: Vec<_> = plan.buckets().iter().map(|bucket| bucket.parameters()).collect();
/// assert_eq!(numbers, [vec![2], vec![1, 0]]);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct BucketPlan {
    buckets: Vec<Bucket>,
    /// By parameter: its bucket, and its slot there.
    places: Vec<(usize, usize)>,
}

impl BucketPlan {
    /// Buckets in the reverse order of registration.
    pub fn in_reverse(parameters: &[BucketEntry], limits: BucketLimits) -> Self {
        let order: Vec<usize> = (0..parameters.len()).rev().collect();
        Self::in_order(parameters, &order, limits)
    }

    /// Buckets in the order `order` of the parameters' numbers; those that it does not name come
    /// last, in reverse order of registration. A parameter larger than a bucket gets one of its own.
    pub fn in_order(parameters: &[BucketEntry], order: &[usize], limits: BucketLimits) -> Self {
        let mut named = vec![false; parameters.len()];
        let mut groups: Vec<(Vec<usize>, usize)> = Vec::new();
        // One bucket for each type of element is open at a time.
        let mut open: Vec<(DType, usize)> = Vec::new();
        let mut left: usize = parameters.iter().map(BucketEntry::num_bytes).sum();
        let rest = (0..parameters.len()).rev();
        for number in order.iter().copied().chain(rest) {
            if number >= parameters.len() || std::mem::replace(&mut named[number], true) {
                continue;
            }
            let entry = &parameters[number];
            let bytes = entry.num_bytes();
            left -= bytes;
            let mut of_type = open.iter_mut().find(|(dtype, _)| *dtype == entry.dtype);
            if let Some((_, group)) = &mut of_type {
                let limit = if *group == 0 {
                    limits.first
                } else {
                    limits.others
                };
                let with_it = groups[*group].1 + bytes;
                if with_it <= tapered(limit, with_it + left) {
                    groups[*group].0.push(number);
                    groups[*group].1 = with_it;
                    continue;
                }
                *group = groups.len();
            } else {
                open.push((entry.dtype, groups.len()));
            }
            groups.push((vec![number], bytes));
        }
        // A bucket leaves when its last gradient is there, so that is what it is sorted by.
        let mut finished_at = vec![None; parameters.len()];
        let rest = (0..parameters.len()).rev();
        for (position, number) in order.iter().copied().chain(rest).enumerate() {
            if let Some(place) = finished_at.get_mut(number) {
                place.get_or_insert(position);
            }
        }
        groups.sort_by_key(|(numbers, _)| numbers.iter().map(|n| finished_at[*n]).max());
        let mut places = vec![(0, 0); parameters.len()];
        let mut buckets = Vec::with_capacity(groups.len());
        for (numbers, _) in groups {
            let mut slots = Vec::with_capacity(numbers.len());
            let mut offset = 0;
            for (slot, number) in numbers.iter().enumerate() {
                let entry = &parameters[*number];
                places[*number] = (buckets.len(), slot);
                slots.push(ParameterSlot {
                    path: entry.path.clone(),
                    shape: entry.shape.clone(),
                    offset,
                });
                offset += entry.num_elements();
            }
            buckets.push(Bucket {
                dtype: parameters[numbers[0]].dtype,
                parameters: numbers,
                slots: slots.into(),
                length: offset,
            });
        }
        Self { buckets, places }
    }

    /// The buckets, in the order in which they are reduced.
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// The bucket of the parameter with this number, and its slot there.
    pub(crate) fn place(&self, parameter: usize) -> (usize, usize) {
        self.places[parameter]
    }
}

#[cfg(test)]
impl BucketEntry {
    /// A parameter of this shape, by which it is called.
    pub(crate) fn of_shape(shape: &[usize], dtype: DType) -> Self {
        Self {
            path: format!("{shape:?}"),
            id: ParamId::new(),
            shape: shape.to_vec(),
            dtype,
        }
    }
}

#[cfg(test)]
impl Bucket {
    /// A bucket of parameters of these shapes, in this order.
    pub(crate) fn of_shapes(shapes: &[&[usize]], dtype: DType) -> Self {
        let entries = shapes
            .iter()
            .map(|shape| BucketEntry::of_shape(shape, dtype));
        let entries: Vec<_> = entries.collect();
        let order: Vec<usize> = (0..entries.len()).collect();
        let limits = BucketLimits {
            first: 1 << 30,
            others: 1 << 30,
        };
        let plan = BucketPlan::in_order(&entries, &order, limits);
        plan.buckets()[0].clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(lengths: &[(usize, DType)]) -> Vec<BucketEntry> {
        let lengths = lengths.iter();
        let entries = lengths.map(|(length, dtype)| BucketEntry::of_shape(&[*length], *dtype));
        entries.collect()
    }

    fn numbers(plan: &BucketPlan) -> Vec<Vec<usize>> {
        plan.buckets()
            .iter()
            .map(|b| b.parameters.clone())
            .collect()
    }

    const fn limits(first: usize, others: usize) -> BucketLimits {
        BucketLimits { first, others }
    }

    #[test]
    fn a_bucket_is_never_larger_than_asked_for_unless_one_parameter_is() {
        let entries = parameters(&[1, 2, 3, 100, 4].map(|n| (n, DType::F32)));
        let plan = BucketPlan::in_reverse(&entries, limits(20, 20));
        assert_eq!(numbers(&plan), [vec![4], vec![3], vec![2, 1], vec![0]]);
        assert_eq!(plan.place(1), (2, 1));
        assert_eq!(plan.buckets()[2].range(1), 3..5);
    }

    #[test]
    fn the_first_bucket_has_a_limit_of_its_own() {
        let entries = parameters(&[1; 6].map(|n| (n, DType::F32)));
        let plan = BucketPlan::in_reverse(&entries, limits(4, 12));
        assert_eq!(numbers(&plan), [vec![5], vec![4, 3, 2], vec![1, 0]]);
    }

    #[test]
    fn a_model_of_one_buckets_size_is_cut_into_several() {
        let limits = limits(1 << 20, 25 << 20);
        let of = |mib: usize| limits.for_model(mib << 20).others >> 20;
        assert_eq!([2, 24, 100, 1000].map(of), [1, 3, 12, 25]);
    }

    #[test]
    fn the_last_buckets_are_small() {
        let entries = parameters(&[256 << 10; 16].map(|n| (n, DType::F32)));
        let plan = BucketPlan::in_reverse(&entries, limits(1 << 20, 8 << 20));
        let sizes: Vec<_> = plan.buckets().iter().map(|b| b.len() >> 18).collect();
        assert_eq!(sizes, [1, 7, 4, 2, 1, 1]);
    }

    #[test]
    fn types_do_not_mix() {
        let entries = parameters(&[(1, DType::F32), (2, DType::F16), (3, DType::F16)]);
        let plan = BucketPlan::in_reverse(&entries, limits(1 << 20, 1 << 20));
        assert_eq!(numbers(&plan), [vec![2, 1], vec![0]]);
    }

    #[test]
    fn types_that_alternate_do_not_make_a_bucket_each() {
        let mixed = [(1, DType::F32), (1, DType::BF16)].repeat(3);
        let plan = BucketPlan::in_reverse(&parameters(&mixed), limits(64, 64));
        assert_eq!(numbers(&plan), [vec![5, 3, 1], vec![4, 2, 0]]);
    }

    #[test]
    fn an_order_that_is_incomplete_or_absurd_still_places_everything_once() {
        let entries = parameters(&[1; 5].map(|n| (n, DType::F32)));
        let plan = BucketPlan::in_order(&entries, &[3, 1, 3, 99], limits(8, 8));
        assert_eq!(numbers(&plan), [vec![3, 1], vec![4, 2], vec![0]]);
    }

    #[test]
    fn no_parameters_make_no_bucket() {
        assert!(
            BucketPlan::in_reverse(&[], limits(10, 10))
                .buckets()
                .is_empty()
        );
    }
}
