//! Consecutive blocks shared out evenly.

use std::ops::Range;

use everburn_schedules::even_cuts;

use super::PlacementError;

/// Cuts blocks of these costs into `parts` runs of consecutive blocks, none empty, such that the run
/// that costs most costs as little as can be.
///
/// # Errors
/// [`PlacementError`] if there are no parts, more parts than costs, or a cost is negative or not a
/// number.
pub fn balanced_parts(costs: &[f64], parts: usize) -> Result<Vec<Range<usize>>, PlacementError> {
    balanced_parts_of(costs, parts, |block| block.to_string())
}

/// The same of blocks with names, for errors.
pub(super) fn balanced_parts_of(
    costs: &[f64],
    parts: usize,
    name: impl Fn(usize) -> String,
) -> Result<Vec<Range<usize>>, PlacementError> {
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
            block: name(block),
            cost: costs[block],
        });
    }
    Ok(even_cuts(costs, parts).expect("as many blocks as parts, or more"))
}

#[cfg(test)]
mod tests {
    use super::*;

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
