//! Gradients travel in buckets, not one by one (Li et al. 2020, "PyTorch Distributed", section 3.2).

use burn::module::ParamId;
use burn::tensor::DType;

/// A parameter's place in a bucket.
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
}

/// Which gradients travel together.
///
/// Buckets follow the reverse order of registration, which is about the order in which the backward
/// pass finishes gradients; all gradients of a bucket have one type of element.
///
/// ```
/// use burn::module::ParamId;
/// use burn::tensor::DType;
/// use everburn_distributed::{BucketEntry, BucketPlan};
///
/// let entry = |path: &str, length: usize| BucketEntry {
///     path: path.to_string(),
///     id: ParamId::new(),
///     shape: vec![length],
///     dtype: DType::F32,
/// };
/// let plan = BucketPlan::new(vec![entry("a", 10), entry("b", 10), entry("c", 25)], 100);
/// let paths = |bucket: &[BucketEntry]| bucket.iter().map(|e| e.path.clone()).collect::<Vec<_>>();
/// let buckets = plan.buckets().map(paths).collect::<Vec<_>>();
/// assert_eq!(buckets, [vec!["c"], vec!["b", "a"]]);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct BucketPlan {
    buckets: Vec<Vec<BucketEntry>>,
}

impl BucketPlan {
    /// Packs parameters, given in order of registration, into buckets of at most `max_bytes`; a
    /// larger parameter gets a bucket of its own.
    pub fn new(parameters: Vec<BucketEntry>, max_bytes: usize) -> Self {
        let mut buckets: Vec<Vec<BucketEntry>> = Vec::new();
        let mut bytes_in_last = 0;
        for entry in parameters.into_iter().rev() {
            let bytes = entry.num_elements() * entry.dtype.size();
            match buckets.last_mut() {
                Some(last)
                    if bytes_in_last + bytes <= max_bytes && last[0].dtype == entry.dtype =>
                {
                    last.push(entry);
                    bytes_in_last += bytes;
                }
                _ => {
                    buckets.push(vec![entry]);
                    bytes_in_last = bytes;
                }
            }
        }
        Self { buckets }
    }

    /// The buckets, in the order in which they are reduced.
    pub fn buckets(&self) -> impl ExactSizeIterator<Item = &[BucketEntry]> {
        self.buckets.iter().map(Vec::as_slice)
    }

    /// All parameters, in the order in which they lie in the buckets.
    pub fn entries(&self) -> impl Iterator<Item = &BucketEntry> {
        self.buckets.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(length: usize, dtype: DType) -> BucketEntry {
        BucketEntry {
            path: format!("p{length}"),
            id: ParamId::new(),
            shape: vec![length],
            dtype,
        }
    }

    fn lengths(plan: &BucketPlan) -> Vec<Vec<usize>> {
        plan.buckets()
            .map(|b| b.iter().map(BucketEntry::num_elements).collect())
            .collect()
    }

    #[test]
    fn a_bucket_is_never_larger_than_asked_for_unless_one_parameter_is() {
        let entries = [1, 2, 3, 100, 4].map(|n| entry(n, DType::F32));
        let plan = BucketPlan::new(entries.to_vec(), 20);
        assert_eq!(lengths(&plan), [vec![4], vec![100], vec![3, 2], vec![1]]);
    }

    #[test]
    fn types_do_not_mix() {
        let entries = vec![
            entry(1, DType::F32),
            entry(2, DType::F16),
            entry(3, DType::F16),
        ];
        assert_eq!(
            lengths(&BucketPlan::new(entries, 1 << 20)),
            [vec![3, 2], vec![1]]
        );
    }

    #[test]
    fn no_parameters_make_no_bucket() {
        assert_eq!(BucketPlan::new(Vec::new(), 10).buckets().len(), 0);
    }
}
