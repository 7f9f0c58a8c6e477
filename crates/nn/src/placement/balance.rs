//! Consecutive blocks shared out evenly.

use std::ops::Range;

use super::PlacementError;

/// Cuts blocks of these costs into `parts` runs of consecutive blocks, none empty, such that the run
/// that costs most costs as little as can be.
///
/// The least greatest cost of the first `i` blocks in `p` parts is the least, over the place `j` of
/// the last cut, of the greater of that of the first `j` blocks in `p - 1` parts and the cost of the
/// rest. Tabulated in `O(blocks^2 * parts)` steps; the earliest of equally good cuts is taken.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// let parts = everburn::nn::balanced_parts(&[1.0, 1.0, 1.0, 3.0], 2).unwrap();
/// assert_eq!(parts, [0..3, 3..4]);
/// ```
///
/// # Errors
/// [`PlacementError`] if there are no parts, more parts than costs, or a cost is negative or not a
/// number.
pub fn balanced_parts(costs: &[f64], parts: usize) -> Result<Vec<Range<usize>>, PlacementError> {
    let blocks = costs.len();
    if parts == 0 {
        return Err(PlacementError::NoDevices);
    }
    if parts > blocks {
        return Err(PlacementError::TooManyDevices {
            devices: parts,
            blocks,
        });
    }
    if let Some(block) = costs
        .iter()
        .position(|cost| !cost.is_finite() || *cost < 0.0)
    {
        return Err(PlacementError::Cost {
            block: block.to_string(),
            cost: costs[block],
        });
    }
    // The cost of the first this many blocks.
    let mut before = vec![0.0];
    for cost in costs {
        before.push(before[before.len() - 1] + cost);
    }
    // least[i]: the least greatest cost of the first `i` blocks in the parts so far.
    let mut least = before.clone();
    let mut last_cuts = Vec::with_capacity(parts);
    for part in 1..parts {
        let mut next = vec![f64::INFINITY; blocks + 1];
        let mut cuts = vec![part; blocks + 1];
        for end in part + 1..=blocks {
            for cut in part..end {
                let greatest = least[cut].max(before[end] - before[cut]);
                if greatest < next[end] {
                    (next[end], cuts[end]) = (greatest, cut);
                }
            }
        }
        least = next;
        last_cuts.push(cuts);
    }
    let mut end = blocks;
    let mut ranges = Vec::with_capacity(parts);
    for cuts in last_cuts.iter().rev() {
        ranges.push(cuts[end]..end);
        end = cuts[end];
    }
    ranges.push(0..end);
    ranges.reverse();
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The least greatest cost over all ways to cut.
    fn by_trying_all(costs: &[f64], parts: usize) -> f64 {
        let total = costs.iter().sum::<f64>();
        if parts == 1 {
            return total;
        }
        let cuts = 1..=costs.len() + 1 - parts;
        let greatest = cuts.map(|cut| {
            let first = costs[..cut].iter().sum::<f64>();
            first.max(by_trying_all(&costs[cut..], parts - 1))
        });
        greatest.fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn no_way_to_cut_is_better() {
        let costs = [3.0, 0.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 0.0, 6.0];
        for blocks in 1..=costs.len() {
            for parts in 1..=blocks {
                let costs = &costs[..blocks];
                let ranges = balanced_parts(costs, parts).unwrap();
                assert_eq!(ranges.len(), parts);
                let mut end = 0;
                for range in &ranges {
                    assert!(range.start == end && !range.is_empty(), "{ranges:?}");
                    end = range.end;
                }
                assert_eq!(end, blocks);
                let cost = |range: &Range<usize>| costs[range.clone()].iter().sum::<f64>();
                let greatest = ranges.iter().map(cost).fold(0.0, f64::max);
                assert_eq!(greatest, by_trying_all(costs, parts), "{ranges:?}");
            }
        }
    }

    #[test]
    fn what_cannot_be_cut_is_refused() {
        let (devices, blocks) = (3, 2);
        let many = PlacementError::TooManyDevices { devices, blocks };
        assert_eq!(balanced_parts(&[1.0, 2.0], 3), Err(many));
        assert_eq!(balanced_parts(&[1.0], 0), Err(PlacementError::NoDevices));
        let negative = balanced_parts(&[1.0, -1.0], 2).unwrap_err();
        assert!(negative.to_string().contains("block 1 is -1"), "{negative}");
        assert!(balanced_parts(&[f64::NAN], 1).is_err());
    }
}
